"""The wall clock jumps by hours between two readings, or stands still: the same records, and no limit in seconds breaks."""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from raw_client import post
from serve_process import serve
from waiting import until

from ramify.base.errors import RamifyError
from ramify.trace.db import Run
from ramify.trace.jsonl import write_lines

HERE = Path(__file__).parent
PARTS = HERE.parent / "rollout"
SOURCE = HERE.parents[1] / "src" / "ramify"
CLOCKS = ["jumps", "still"]
ROLLOUT = ["rollout", "--model", "factory:worker_parts:slow_walker", "--count", "2", "--attempts", "3", "--seed", "3",
           "--concurrency", "1", "--budget.seconds", "3600"]  # fmt: skip


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The preloaded library whose wall clock is wrong, compiled; skips where there is no compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("NOT CHECKED: no C compiler, so NO CLOCK JUMPED")
    made = tmp_path_factory.mktemp("clock") / "clock_shim.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", made, HERE / "clock_shim.c"], check=True)
    return made


def wrong(shim: Path, clock: str) -> dict[str, str]:
    """What makes a process read the wrong clock."""
    return {"LD_PRELOAD": str(shim), "RAMIFY_SHIM_CLOCK": clock}


def ramify(*words: object, clock: dict[str, str] | None = None, slow: float = 0) -> subprocess.Popen[str]:
    environment = {"PYTHONPATH": str(PARTS), "SLOW": str(slow), "OMP_NUM_THREADS": "1"} | (clock or {})
    command = [sys.executable, "-m", "ramify.cli.main", *map(str, words)]
    return subprocess.Popen(
        command, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
    )


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, err
    assert "Traceback" not in err
    return out


def records(folder: Path) -> list[str]:
    """Everything in a run but its settings, its times and where its code ran."""
    with Run.open(folder) as run:
        write_lines(run, folder / "all.jsonl")
    found = [json.loads(line) for line in (folder / "all.jsonl").read_text("utf-8").splitlines()]
    kept = [r for r in found if r["kind"] != "run" and r.get("entry") not in ("stretch", "start", "environment")]
    for record in kept:
        strip(record)
    return sorted(json.dumps(record, sort_keys=True) for record in kept)


def strip(value: object) -> None:
    """Take seconds, and the run's folder, out of a record."""
    if isinstance(value, dict):
        for key in [key for key in value if "seconds" in key or key in ("run", "rate")]:
            del value[key]
        for inner in value.values():
            strip(inner)


def played(folder: Path) -> int:
    try:
        with Run.open(folder) as run:
            return len(run.journal("attempt"))
    except RamifyError:
        return 0


def test_the_clock_of_these_tests_is_wrong(shim: Path) -> None:
    code = "import time, datetime; print(*(int(time.time()) for _ in range(3)), int(datetime.datetime.now().timestamp()))"
    found = {}
    for clock in CLOCKS:
        told = subprocess.run([sys.executable, "-c", code], env=os.environ | wrong(shim, clock), capture_output=True, text=True)
        found[clock] = [int(word) for word in told.stdout.split()]
    assert all(abs(one - other) > 3000 for one, other in zip(found["jumps"], found["jumps"][1:], strict=False))
    assert found["still"] == [1800000000] * 4


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.slow
def test_an_interrupted_rollout_continues_to_the_same_records(shim: Path, tmp_path: Path, clock: str) -> None:
    finish(ramify(*ROLLOUT, "--out", tmp_path / "whole"))
    process = ramify(*ROLLOUT, "--out", tmp_path / "run", clock=wrong(shim, clock), slow=0.05)
    assert until(lambda: played(tmp_path / "run") >= 2 or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    finish(process, 130)
    told = json.loads(finish(ramify("resume", tmp_path / "run", "--json", clock=wrong(shim, clock))))
    assert records(tmp_path / "run") == records(tmp_path / "whole")
    with Run.open(tmp_path / "run") as run:
        stretches = [entry.payload["seconds"] for entry in run.journal("stretch")]
    assert len(stretches) == 2, "the time of a stretch of work was forgotten, so a budget of seconds would not hold"
    assert all(0 <= seconds < 300 for seconds in [*stretches, told["seconds"]])


SANDBOXED = """
import asyncio, json, sys
real, sys.executable = sys.executable, sys.argv[1]  # the sandbox's server starts by this name, without this environment
from ramify.sandbox.process import ProcessSandbox
from ramify.sandbox.protocol import Limits
sandbox = ProcessSandbox()
if not sandbox.isolates: raise SystemExit("namespaces")
def run(argv, **limits):
    done = asyncio.run(sandbox.run(argv, limits=Limits(**limits)))
    return [done.reason, done.code, done.seconds, done.cpu_seconds]
print(json.dumps([run(["sh", "-c", "sleep .2; echo x"], seconds=100), run(["sleep", "100"], seconds=1),
                  run(["sh", "-c", "while :; do :; done"], seconds=100, cpu_seconds=1)]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("clock", CLOCKS)
def test_limits_of_a_sandboxed_command_hold(shim: Path, tmp_path: Path, clock: str) -> None:
    python = tmp_path / "python"
    settings = " ".join(f"{name}={value}" for name, value in wrong(shim, clock).items())
    python.write_text(f'#!/bin/sh\n{settings} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", SANDBOXED, str(python)], env=os.environ | wrong(shim, clock), capture_output=True, text=True
    )
    if done.stderr.endswith("namespaces\n"):
        pytest.skip("this kernel or container forbids namespaces: NO LIMIT WAS TRIED")
    assert done.returncode == 0, done.stderr
    quick, slow, busy = json.loads(done.stdout)
    assert quick[:2] == ["exit", 0]
    assert slow[0] == "timeout"
    assert busy[0] == "cpu"
    assert all(0 <= seconds < 100 for _, _, *times in (quick, slow, busy) for seconds in times)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("clock", CLOCKS)
def test_rollout_fork_improve_and_a_served_request_tell_the_same(shim: Path, tmp_path: Path, clock: str) -> None:
    found = []
    for name, settings in (("right", {}), ("wrong", wrong(shim, clock))):
        folder = tmp_path / name
        folder.mkdir()
        finish(ramify("rollout", "--count", 2, "--attempts", 2, "--seed", 3, "--out", folder / "run", clock=settings))
        with Run.open(folder / "run") as run:
            (tree, *_) = run.trees()
            node = next(node.id for node in run.nodes(tree.name) if node.role == "assistant")
        told = json.loads(finish(ramify("fork", folder / "run", node, "--n", 4, "--json", clock=settings)))
        strip(told)
        small = ["--updates", 1, "--tokens", 300, "--eval-episodes", 4, "--tasks-per-update", 4, "--train-tasks", 8]
        finish(ramify("improve", *small, "--out", folder / "better", clock=settings))
        weights = (folder / "better" / "agent" / "model.safetensors").read_bytes()
        with serve(folder, "builtin", "--record", str(folder / "served"), **settings) as served:
            asked = {"model": "builtin", "messages": [{"role": "user", "content": "go"}], "max_tokens": 8, "seed": 5}
            status, _, body = post(served.port, "/v1/chat/completions", asked)
            assert status == 200, body
            assert served.end() == 0
            assert "Traceback" not in served.said
        with Run.open(folder / "served") as run:
            answers = [(node.text, node.stop) for tree in run.trees() for node in run.nodes(tree.name)]
        said = json.loads(body)["choices"][0]["message"]
        found.append((records(folder / "run"), told, records(folder / "better"), weights, said, answers))
    for one, other in zip(*found, strict=True):
        assert one == other


# Where the package reads the wall clock, or the time that is written on a file, and what for.
READS = {
    "improve": "the name of a run folder nobody named; one that exists is refused",
    "JinjaTemplate.__post_init__": "the day a template tells; a run keeps that of its first day",
    "_now": "how long until a server's date, where the server does not tell its own",
    "Pin.active": "whether a rule with dates holds today: its user's wish",
    "Answer.__init__": "`created` of an answer, which the protocol wants",
    "_envelope": "`created_at` of an answer of the Responses protocol, which it wants",
    "_Handler._answer": "`created` of an answer to a person's own agent, which the protocol wants",
    "Api.__init__": "`created` of the model in the list, which the protocol wants",
    "Conversations._reply": "when a recorded request came, to be read",
    "_gone": "how long a file that a process of another machine left aside lies idle: a day",
    "Transport._watched": "since when a server is waited for, to be read",
    "Queue._submit": "when a job was asked for, to be read",
    "needs": "when an endpoint is asked again whether it answers",
    "MemoryStore._write": "when an entry of the log was written, to be read",
    "_restart_clocks": "monotonic clocks, of which the sandbox's own begin at zero",
}


def reads(path: Path) -> list[str]:
    """Functions of a file that read the wall clock."""
    found: list[str] = []

    def walk(node: ast.AST, inside: tuple[str, ...]) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = (*inside, node.name)
        elif isinstance(node, ast.Attribute) and reading(node):
            found.append(".".join(inside))
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            found.append(f"from time import in {path.name}")
        for inner in ast.iter_child_nodes(node):
            walk(inner, inside)

    walk(ast.parse(path.read_text("utf-8")), ())
    return found


def reading(node: ast.Attribute) -> bool:
    owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
    names = {
        "time": {"time", "time_ns", "localtime", "gmtime", "ctime", "asctime", "strftime", "clock_gettime", "clock_gettime_ns"},
        "datetime": {"now", "utcnow", "today"},
        "date": {"today"},
    }
    return node.attr in names.get(owner, ())


@pytest.mark.slow
def test_the_wall_clock_is_read_where_it_decides_nothing() -> None:
    files = [
        path for path in SOURCE.rglob("*.py") if "inside" not in path.parts
    ]  # there the pinned clock of sandboxed code is made
    found = {name: path.name for path in files for name in reads(path)}
    assert files
    assert set(found) == set(READS)


@pytest.mark.parametrize(
    "line",
    [
        "import time\ntime.time()",
        "import datetime\ndatetime.datetime.now()",
        "from time import time",
        "from datetime import date\nx = date.today",
        "import time\nf(default=time.time_ns)",
    ],
)
def test_the_check_itself_sees_each_kind(line: str, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(line)
    assert reads(tmp_path / "one.py")
