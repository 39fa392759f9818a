"""Every verb with a live line, in a real terminal: 80 and 200 columns, with and without colour, and Ctrl-C.

Each runs in a process of its own whose terminal is a pseudo-terminal. What a line of it shows is read off what was printed.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest
from forked import Forks
from terminals import HIDDEN, SHOWN_AGAIN, Screen, Terminal

from ramify.base.ids import stable_hash
from ramify.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
RUN = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from ramify.cli.main import main; sys.exit(main())"
PARTS = "factory:tests.cli.terminal_parts"
ORGANISM = "factory:tests.methods.forensics.scripted_organisms"

IMPROVE = "improve --tokens 600 --updates 2 --eval-episodes 6 --train-tasks 16 --tasks-per-update 2"
ENDLESS = "improve --tokens 100000 --updates 2 --eval-episodes 400"


@dataclass(frozen=True)
class Verb:
    """A verb at a small size. Words in braces are files and folders of ``parts``;
    every command runs in a copy of an empty folder."""

    call: str
    phases: str
    """Pattern of what its live line says."""
    endless: str = ""
    """The same at a size that Ctrl-C finds at work; empty: as small, which some interrupts may come too late for."""
    kept: str = ""
    """Pattern of how its sentence after Ctrl-C ends."""
    before: tuple[str, ...] = ()
    """Commands to run first."""
    fast: bool = False
    """Not marked as slow."""
    ends: tuple[int, ...] = (0,)
    """Exit codes that it may end with."""


AT_WORK = r"\d/s|(?<!load )\b0:0[1-9]"
"""The live line of work that is under way: a rate, or seconds."""
CELL = "case .* runs, .* did it"
NOTHING = "nothing was written"
AGAIN = "the same command continues"
DSPARK = "--sequences 18 --length 20 --steps 4 --rows 4 --anchors 4 --layers 1 --block 3"
DRAFTER = f"dspark train builtin --out drafter {DSPARK}"
CROSS = "--tuned hf:{policy} --base hf:{reference} --layer 1 --tool {tool} --plain {plain} --raw"
DICTIONARY = "crosscoder train states --out dictionary --features 40 --k 6 --batch 32"
STUDY = (
    "early-decision run --model builtin --label regex:a --prompts {prompts} --out study --k 2 --think-tokens {} --answer-tokens "
    "3 --open <t> --close </t>"
)
CLIFFS = f"cliffs scan --model builtin --verifier {PARTS}:verifier --truncated graded --problems {{problems}} --out scan"

VERBS = {
    "improve": Verb(IMPROVE, "evaluate before|sample 1/2|train 1/2|evaluate after", ENDLESS, "continue with `ramify resume"),
    "improve --compare": Verb(f"{IMPROVE} --compare true", r"grpo\+resample train 2/2"),
    "improve, workers": Verb(
        f"{IMPROVE} --backend processes:2", "sample 2/2", f"{ENDLESS} --backend processes:2", "ramify resume"
    ),
    "improve --dry-run": Verb("improve --dry-run", "evaluate trial"),
    "rollout": Verb(
        "rollout --count 2 --attempts 2", "play .*4/4 attempts", "rollout --count 4000", "continue with `ramify resume", fast=True
    ),
    "resume": Verb(
        "resume runs/rollout-1",
        "play",
        "resume runs/rollout-9",
        "ramify resume",
        ("rollout --count 2", "stop rollout --count 4000"),
    ),
    "fork": Verb(
        "fork runs/rollout-1 NODE --n 2", "fork .*2/2", "fork runs/rollout-1 NODE --n 4000", "stay in", ("rollout --count 1",)
    ),
    "why": Verb(
        "why runs/rollout-1 --first 2 --n 4",
        "why .*/",
        "why runs/rollout-1 --first 4000 --n 4000",
        AGAIN,
        ("rollout --count 1",),
    ),
    "rollout --tree": Verb(
        "rollout --tree --count 2 --tree-budget 40",
        "sample .* turns",
        "rollout --tree --count 64 --tree-budget 4000",
        "continue with `ramify resume",
    ),
    "repro": Verb("repro tree-rollouts --quick --fresh", "cells", kept=AGAIN),
    "cliffs scan": Verb(
        f"{CLIFFS} --samples 2 --max-tokens 6 --budget-rollouts 200",
        "scan .*traces",
        f"{CLIFFS} --samples 400 --max-tokens 60",
        f"{AGAIN}|{NOTHING}",
        ends=(0, 3),
    ),
    "cliffs ablate": Verb(
        f"cliffs ablate scan --n 4 --k 1,4 --model builtin --verifier {PARTS}:verifier",
        "fork 4 times|0:0",
        before=(f"{CLIFFS} --samples 6 --max-tokens 6",),
    ),
    "crosscoder capture": Verb(f"crosscoder capture {CROSS} --out states", "capture 0:0"),
    "crosscoder train": Verb(
        f"{DICTIONARY} --steps 60",
        "train .* steps",
        f"{DICTIONARY} --steps 400000",
        NOTHING,
        (f"crosscoder capture {CROSS} --out states",),
    ),
    "crosscoder steer": Verb(
        f"crosscoder steer dictionary states --prompts {{tool}} --out study --raw --score {PARTS}:verifier --features 0,9 "
        "--gains 1,8 --budgets 1 --randoms 2",
        "search|confirm|all budgets",
        before=(f"crosscoder capture {CROSS} --out states", f"{DICTIONARY} --steps 20"),
    ),
    "dspark train": Verb(
        DRAFTER,
        "sample text|train .* steps",
        f"dspark train builtin --out drafter {DSPARK} --steps 90000",
        f"{AGAIN}|nothing was done yet",
    ),
    "dspark calibrate": Verb(
        "dspark calibrate builtin drafter --n 24 --tokens 24",
        "sample .* replies",
        "dspark calibrate builtin drafter --n 4000 --tokens 64",
        "as it was",
        (DRAFTER,),
        ends=(0, 2),
    ),
    "dspark profile": Verb(
        "dspark profile builtin drafter --loads 1,2 --repeats 3",
        "at once",
        "dspark profile builtin drafter --repeats 9000",
        "as it was",
        (DRAFTER,),
    ),
    "dspark bench": Verb(
        "dspark bench builtin drafter --n 4 --tokens 8 --loads 1 --turns 3",
        "bench 1 at once",
        before=(DRAFTER,),
    ),
    "dspark verify-lossless": Verb(
        "dspark verify-lossless builtin drafter --n 2 --samples 1000",
        "schedules",
        "dspark verify-lossless builtin drafter --samples 900000",
        "as it was",
        (DRAFTER,),
        ends=(0, 1),
    ),
    "early-decision run": Verb(STUDY.replace("{}", "12"), "run .* traces", STUDY.replace("{}", "300") + " --k 400", AGAIN),
    "early-decision probe": Verb(
        "early-decision probe study --layers 0", "probe", before=(STUDY.replace("{}", "12"),), ends=(0, 2)
    ),
    "early-decision probe, valley": Verb(
        "early-decision probe study valley --points 6 --samples 20", "probe", before=(STUDY.replace("{}", "12"),), ends=(0, 2)
    ),
    "early-decision continue": Verb(
        "early-decision continue study --m 1 --n 2 --shares 0,0.5",
        "prefixes",
        "early-decision continue study --m 2 --n 900",
        AGAIN,
        (STUDY.replace("{}", "12"),),
    ),
    "early-decision continue, turns": Verb(
        f"early-decision continue study turns --judges {PARTS}:judge",
        "continue .* traces",
        before=(STUDY.replace("{}", "12"),),
        ends=(0, 2),
    ),
    "forensics run": Verb("forensics run case", "baseline .* runs.* did it", "forensics run case --n 90000", AGAIN),
    "forensics change field": Verb("forensics change case field errors --values 50,130,258 --n 12", CELL),
    "forensics change variant": Verb("forensics change case variant --n 12", CELL),
    "forensics change forbid": Verb("forensics change case forbid huge huge --n 6", CELL),
    "forensics change sentences": Verb(
        "forensics change case sentences --k 4", "fork 4 times", before=("forensics run case",), ends=(0, 2)
    ),
    "forensics change --known": Verb(f"forensics change case variant seen --known {ORGANISM}:sly --n 6", CELL),
    "forensics ask": Verb("forensics ask case question advice What? fix --n 4", "ask .* answers"),
    "governance bench": Verb(
        "governance bench --out rows.jsonl --tasks email --reps 1",
        "bench .* episodes",
        "governance bench --out rows.jsonl --reps 900",
        AGAIN,
    ),
    "governance attack": Verb(
        "governance attack --out rows.jsonl --tasks email,spend --reps 1 --budget 60",
        "attack (search|report)",
        kept=AGAIN,
        ends=(0, 2),
    ),
    "governance judge": Verb(
        "governance judge rows.jsonl --judge builtin",
        "judge",
        before=("governance bench --out rows.jsonl --tasks email --reps 1",),
        ends=(0, 1, 2),
    ),
    "forensics ask hypotheses": Verb(
        "forensics ask case hypotheses --proposer builtin", "case 0:0", before=("forensics run case",), ends=(0, 1, 2)
    ),
    "implicit-advantage judge": Verb(
        "implicit-advantage judge --scores s --trajectories {attempts} --model builtin --tokenizer {policy}",
        "judge",
        before=("implicit-advantage score --trajectories {attempts} --policy {policy} --reference {reference} --out s",),
        ends=(0, 4),
    ),
    "implicit-advantage score": Verb(
        "implicit-advantage score --trajectories {attempts} --policy {policy} --reference {reference} --out s",
        "score .* rows",
        "implicit-advantage score --trajectories {many} --policy {policy} --reference {reference} --out s",
        "nothing was written",
    ),
    "verify-or-ship calibrate": Verb(
        "verify-or-ship calibrate candidates --judge new=regex:ab",
        "calibrate .*candidates",
        before=("import {candidates.jsonl} --run candidates",),
    ),
}


def cases(wide: bool) -> list[object]:
    """Verbs, widths and whether in colour. All but the fast ones are slow, and wide only where Ctrl-C is not tried, which is."""
    return [
        pytest.param(verb, columns, columns == 80, id=f"{name}-{columns}", marks=[] if verb.fast else [pytest.mark.slow])
        for name, verb in VERBS.items()
        for columns in (80, 200)
        if (columns == 200 and verb.endless if not wide else columns == 80 or verb.fast or not verb.endless)
    ]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small inputs: two checkpoints, prompts, corpora, attempts."""
    import torch

    from ramify.engine.checkpoints import model_folder
    from ramify.engine.tiny import TinyLM
    from ramify.model.tokenizer import HfTokenizer

    base = tmp_path_factory.mktemp("parts")
    rng = np.random.default_rng(0)
    module, tokenizer = TinyLM.load(model_folder("builtin")), HfTokenizer.load(model_folder("builtin"))
    module.save(base / "policy", tokenizer)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    module.save(base / "reference", tokenizer)

    def write(name: str, rows: list[dict[str, object]]) -> None:
        (base / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def attempt(i: int) -> dict[str, object]:
        steps = [
            {"role": role, "token_ids": rng.integers(20, 90, 5).tolist(), "is_action": role == "assistant"}
            for role in ("user", "assistant", "user")
        ]
        return {"task_id": f"t{i // 2}", "trial": i % 2, "steps": steps, "outcome": {"reward": float(i % 2)}}

    ids = [rng.integers(20, 90, 4).tolist() for _ in range(8)]
    write("prompts", [{"id": f"p{i}", "prompt_ids": ids[i], "prompt": "go", "pool": "ab"[i % 2]} for i in range(8)])
    write("problems", [{"id": f"p{i}", "prompt_ids": ids[i], "answer": "a"} for i in range(8)])
    for name in ("tool", "plain"):
        write(name, [{"id": f"{name}{i}", "prompt": f"go {name} {i}"} for i in range(24)])
    write(
        "candidates.jsonl",
        [
            {
                "instance_id": f"bug {i}",
                "step": step,
                "Y": (i + step) % 2,
                "critics": {"tests": bool(i % 3)},
                "payload": f"a{'b' * ((i + step) % 2)} = {i}",
            }
            for i in range(40)
            for step in range(2)
        ],
    )
    write("attempts", [attempt(i) for i in range(8)])
    write("many", [attempt(i) for i in range(4000)])
    return {path.name: path for path in base.iterdir()}


@pytest.fixture
def shell(tmp_path: Path, parts: dict[str, Path], forks: Forks, monkeypatch: pytest.MonkeyPatch) -> Shell:
    case = "\n".join(
        [
            f'question = "Why?"\nenv = "{ORGANISM}:environment"\nmodel = "{ORGANISM}:tedious"\nn = 12\nsentences = "stops"',
            '[fields.errors]\nbaseline = 258\nvalues = [50, 258]\nrole = "effort"',
            '[fields.instruction]\nbaseline = "ambiguous"\nrole = "clarity"\nshows = ["task"]',
            '[fields.reviewer]\nbaseline = "absent"\nrole = "oversight"',
            '[variants.clear]\nset = { instruction = "clear" }\n[variants.seen]\nset = { reviewer = "present" }',
        ]
    )
    (tmp_path / "case").mkdir()
    (tmp_path / "case/case.toml").write_text(case, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path, parts, forks)


class HasBefore(Protocol):
    """A verb and what must be there before it."""

    @property
    def before(self) -> tuple[str, ...]:
        """Commands to run first."""


@dataclass
class Shell:
    """Runs commands of ramify in one folder."""

    folder: Path
    parts: dict[str, Path]
    forks: Forks

    def words(self, call: str) -> list[str]:
        """The words of a call, with files for names in braces, and a node of the first run for NODE."""
        for name, path in self.parts.items():
            call = call.replace(f"{{{name}}}", str(path))
        if "NODE" in call:
            from ramify.trace.db import Run

            with Run.open(self.folder / "runs/rollout-1") as run:
                node = next(n for n in run.nodes(run.trees("")[0].name) if n.role == "assistant")
            call = call.replace("NODE", node.id)
        return call.split()

    def before(self, verb: HasBefore) -> None:
        """What must be there, made without a terminal; ``stop`` interrupts a run."""
        made = self.parts["policy"].parent / f"made-{stable_hash(*verb.before)}"
        if made.exists():
            shutil.copytree(made, self.folder, dirs_exist_ok=True)
            return
        for call in verb.before:
            if call.startswith("stop "):
                with self.begun(call.removeprefix("stop ") + " --out runs/rollout-9", 80, {}) as terminal:
                    assert terminal.until(AT_WORK)
                    terminal.press(b"\x03")
                    assert terminal.wait() == 130
            else:
                assert main([*self.words(call), "--json"]) == 0
        if verb.before:
            shutil.copytree(self.folder, made)

    def begun(self, call: str, columns: int, env: dict[str, str], code: str = RUN) -> Terminal:
        """The terminal in which it runs, by the program ``code``."""
        terminal = Terminal(columns)
        words, env = (
            self.words(call),
            {"TERM": "xterm-256color", "NO_COLOR": "", "COLUMNS": "", "RAMIFY_CACHE": str(self.folder), **env},
        )
        terminal.start(lambda: self.forks.run(code, self.folder, argv=words, env=env, tty=terminal.name).returncode)
        return terminal


def shown_well(terminal: Terminal) -> list[str]:
    """The live lines. Each is one line of the terminal and none is left twice."""
    assert "Traceback" not in terminal.text
    assert terminal.live, terminal.text
    live, over, _ = terminal.text.rpartition(SHOWN_AGAIN)
    assert over, terminal.text
    screen = Screen(live, terminal.columns)
    assert screen.wrapped == []
    assert len([line for line in screen.lines if re.search(r"/s, .*left|\d/\d.* \w+$", line)]) <= 1 + live.count(HIDDEN), (
        screen.lines
    )
    return terminal.live


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("verb", "columns", "colour"), cases(wide=True))
def test_a_verb_shows_how_far_it_is(verb: Verb, columns: int, colour: bool, shell: Shell) -> None:
    shell.before(verb)
    with shell.begun(verb.call, columns, {} if colour else {"NO_COLOR": "1"}) as terminal:
        assert terminal.wait() in verb.ends, terminal.text
        live = shown_well(terminal)
        assert any(re.search(verb.phases, line) for line in live), terminal.text
        assert colour == bool(re.search(r"\x1b\[[0-9;]*3[0-9]", terminal.text)) or not any("━" in line for line in live)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("verb", "columns", "colour"), cases(wide=False))
def test_ctrl_c_is_one_sentence(verb: Verb, columns: int, colour: bool, shell: Shell) -> None:
    shell.before(verb)
    with shell.begun(verb.endless, 80 if verb.fast else columns, {} if colour or verb.fast else {"NO_COLOR": "1"}) as terminal:
        named = re.match(r"[a-z][a-z-]*( [a-z][a-z-]*)?", verb.endless)
        assert named is not None
        # a verb that still loads shows its name and the time: what is kept is known once its work has begun
        assert terminal.until(AT_WORK.replace(r"\b0", rf"(?<!{named[0]} )\b0")), terminal.text
        terminal.press(b"\x03")
        assert terminal.wait() == 130, terminal.text
        shown_well(terminal)
        after = terminal.text.rpartition(SHOWN_AGAIN)[2].replace("\n", " ").strip()
        assert re.fullmatch(rf"ramify: interrupted; .*(?:{verb.kept}).*", re.sub(r"\s+", " ", after)), terminal.text


@pytest.mark.slow
def test_help_fits_the_terminal(shell: Shell) -> None:
    for call in ("--help", "improve --help", "cliffs scan --help", "dspark --help"):
        with shell.begun(call, 80, {}) as terminal:
            assert terminal.wait() == 0, terminal.text
            assert terminal.screen.wrapped == []
            assert len(terminal.screen.lines) > 10
