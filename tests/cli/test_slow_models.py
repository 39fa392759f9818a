"""Every verb that asks a model, with one that is slow: it soon says that it works, and Ctrl-C ends it, whatever holds it up.

Seconds here are limits that no machine is too slow for, five times those that are promised: two to a line, five to the end.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from slow_models import slow_server
from terminals import SHOWN_AGAIN
from test_terminal_verbs import CLIFFS, DRAFTER, RUN, STUDY, Shell, parts, shell
from waiting import until

__all__ = ["parts", "shell"]  # fixtures

SAYS, ENDS = 10.0, 25.0
SLEEPS = "python:tests.cli.slow_models:sleeps"
SLOW = RUN.replace("from ramify.cli.main", "from tests.cli.slow_models import slow_down; slow_down(); from ramify.cli.main")
FAST = "factory:tests.methods.forensics.scripted_organisms"
MEMORY = "earned-code-memory learn memory.sqlite"
WORKS = r"\b0:0\d|\d/s"
"""What a live line shows of work: seconds."""


@dataclass(frozen=True)
class Slow:
    """A verb whose models are slow. ``{server}`` and ``{sleeps}`` are such; a local one, ``builtin`` or a folder, is made so."""

    call: str
    before: tuple[str, ...] = ()
    fast: bool = False
    """Not marked as slow."""


ROLLED, CANDIDATES = ("rollout --count 1",), ("import {candidates.jsonl} --run candidates",)
STUDIED = STUDY.replace("{}", "12")
SCORE = "implicit-advantage score --trajectories {attempts} --policy {policy} --reference {reference} --out s"
SCANNED = f"{CLIFFS} --samples 6 --max-tokens 6"
RECORD = "world-model record --env household --episodes 4 --turns 3 --out run"
PROMPT = "judge.txt"

VERBS = {
    "rollout, server": Slow("rollout --count 1 --model {server}", fast=True),
    "rollout, function": Slow("rollout --count 1 --model {sleeps}", fast=True),
    "rollout, local": Slow("rollout --count 1"),
    "rollout, workers": Slow("rollout --count 4 --backend processes:2 --model {sleeps}"),
    "fork": Slow("fork runs/rollout-1 NODE --n 2 --model {sleeps}", ROLLED),
    "why": Slow("why runs/rollout-1 --model {sleeps} --n 4", ROLLED),
    "improve": Slow("improve --updates 1 --tokens 300"),
    "forensics run": Slow("forensics run slowcase --n 4", fast=True),
    "forensics change": Slow("forensics change slowcase variant clear --n 4"),
    "forensics ask": Slow("forensics ask case hypotheses --proposer {server}", ("forensics run case",)),
    "diagnose run": Slow("diagnose run --repo shop --issue issue.md --out found --model {server}"),
    "earned-code-memory learn": Slow(f"{MEMORY} runs/rollout-1 --write text --model {{sleeps}}", ROLLED),
    "governance bench": Slow("governance bench --out rows --tasks email --reps 1 --agent {server}"),
    "governance attack": Slow("governance attack --out rows --tasks email,spend --reps 1 --budget 20 --agent {sleeps}"),
    "governance judge": Slow("governance judge rows --judge {server}", ("governance bench --out rows --tasks email --reps 1",)),
    "cliffs scan": Slow(f"{CLIFFS} --samples 2 --max-tokens 6"),
    "early-decision run": Slow(STUDIED),
    "early-decision continue": Slow("early-decision continue study --m 1 --n 2 --shares 0,0.5", (STUDIED,)),
    "implicit-advantage judge": Slow(
        "implicit-advantage judge --scores s --trajectories {attempts} --model {sleeps} --tokenizer {policy}", (SCORE,)
    ),
    "verify-or-ship calibrate": Slow(f"verify-or-ship calibrate candidates --judge new=judge:{{server}}#{PROMPT}", CANDIDATES),
    "judge-evolution rescore": Slow(f"judge-evolution rescore candidates reviewer --judge judge:{{sleeps}}#{PROMPT}", CANDIDATES),
    "judge-evolution check": Slow(
        f"judge-evolution check candidates --truth verifier --judge judge:{{server}}#{PROMPT} --judge regex:a", CANDIDATES
    ),
    "orchestrator collect": Slow("orchestrator collect pool.toml --tasks asked.jsonl --n 2 --out run"),
    "orchestrator run": Slow("orchestrator run pool.toml what? --composer {sleeps} --out run"),
    "orchestrator eval": Slow("orchestrator eval pool.toml --tasks asked.jsonl --out run"),
    "world-model record": Slow("world-model record --env household --episodes 2 --out run --model {server}"),
    "world-model eval": Slow("world-model eval slow.toml --data run --judge none", (RECORD,)),
    "theory-loop run": Slow("theory-loop run --out loop --rounds 1 --people 4 --runs 6 --proposer {sleeps}"),
    "dspark bench": Slow("dspark bench builtin drafter --n 4 --tokens 8 --loads 1 --turns 3", (DRAFTER,)),
    "dspark profile": Slow("dspark profile builtin drafter --loads 1,2 --repeats 3", (DRAFTER,)),
    "dspark train": Slow(DRAFTER),
    "dspark verify-lossless": Slow("dspark verify-lossless builtin drafter --n 2 --samples 20", (DRAFTER,)),
    "kernel-search search": Slow("kernel-search search sum.c:total --proposer {sleeps} --out search"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with slow_server() as address:
        yield f"chat:slow@{address}"


def left_over(session: int) -> list[str]:
    """Processes of a session that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, its_session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session and state != "Z":
                found.append(stat.parent.name)
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("verb", [pytest.param(v, id=k, marks=[] if v.fast else [pytest.mark.slow]) for k, v in VERBS.items()])
def test_a_slow_model_keeps_nobody_waiting(verb: Slow, shell: Shell, server: str) -> None:
    call = verb.call.replace("{server}", server).replace("{sleeps}", SLEEPS)
    files(shell.folder, server)
    shell.before(verb)
    shell.forks.run("pass", shell.folder)  # what forks the process has loaded what takes seconds
    with shell.begun(call, 120, {}, SLOW) as terminal:
        assert terminal.until(WORKS, SAYS), f"nothing is said of it:\n{terminal.text}"
        session = terminal.group
        time.sleep(2)
        terminal.press(b"\x03")
        assert terminal.wait(ENDS) == 130, terminal.text
        assert until(lambda: not left_over(session)), left_over(session)
        assert "Traceback" not in terminal.text, terminal.text
        after = " ".join(terminal.text.rpartition(SHOWN_AGAIN)[2].split())
        assert re.fullmatch(r"ramify: interrupted.*", after), terminal.text


def test_a_log_gets_a_line_while_nothing_ends(tmp_path: Path) -> None:
    """Where standard error is a pipe the first line comes by itself, too; Ctrl-C there is a signal to the process alone."""
    words = ["rollout", "--count", "1", "--model", SLEEPS, "--out", "run"]
    command = [sys.executable, "-c", RUN, *words]
    env = {name: value for name, value in os.environ.items() if name != "RAMIFY_FIRST_LINE"}
    with subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert "1 reply under way" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(ENDS) == 130
        assert "ramify: interrupted; " in process.stderr.read()


def files(folder: Path, server: str) -> None:
    """Small inputs beside those of the fixture."""
    (folder / "slowcase").mkdir(exist_ok=True)
    case = (folder / "case/case.toml").read_text()
    (folder / "slowcase/case.toml").write_text(case.replace(f"{FAST}:tedious", SLEEPS))
    (folder / "shop").mkdir(exist_ok=True)
    (folder / "shop/sums.py").write_text("def total(items):\n    return sum(items) / len(items)\n")
    workers = "".join(f'[[workers]]\nname = "{name}"\nmodel = "{SLEEPS}"\n' for name in ("reds", "blues"))
    (folder / "pool.toml").write_text(workers)
    asked = [{"id": f"q{i}", "prompt": f"word{i}", "answer": "red"} for i in range(2)]
    (folder / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    (folder / "sum.c").write_text("// ramify: n = 500\nfloat total(int n, const float *x) {\n  return n ? x[0] : 0;\n}\n")
    (folder / PROMPT).write_text("Is this right, yes or no? {text}")
    (folder / "slow.toml").write_text(f'model = "{server}"\n')
    (folder / "issue.md").write_text("`total([])` fails with ZeroDivisionError.\n")
