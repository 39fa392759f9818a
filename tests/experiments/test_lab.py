from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from ramify.base import codec
from ramify.base.errors import CellError, UserError
from ramify.base.progress import Progress
from ramify.cli import experiments
from ramify.stats.checks import Check
from ramify_experiments.lab import Checks, ResultCache, sized, tuned


def square(x: int) -> dict[str, object]:
    return {"square": x * x, "threads": os.environ.get("OMP_NUM_THREADS"), "pid": os.getpid()}


def fail_on_three(x: int) -> int:
    if x == 3:
        raise RuntimeError("three is bad")
    return x


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_cell_runs_once(tmp_path: Path, in_memory: bool) -> None:
    calls = []

    def count(x: int) -> tuple[int, int]:
        calls.append(x)
        return x, x

    cells = ResultCache(None if in_memory else tmp_path / "cells")
    assert cells.get("a/b", count, x=2) == [2, 2]  # the same JSON value before and after it was stored
    assert cells.get("a/b", count, x=2) == [2, 2]
    assert calls == [2]
    if not in_memory:
        assert ResultCache(tmp_path / "cells").get("a/b", count, x=2) == [2, 2]
        assert [path.suffix for path in (tmp_path / "cells").iterdir()] == [".json"]
    with pytest.raises(UserError, match="a/b"):
        cells.get("a/b", count, x=3)


def scaled(seed: int, lr: float, best: float) -> float:
    return seed - abs(lr - best)


def test_arms_by_seeds_and_each_arms_own_best_rate(tmp_path: Path) -> None:
    found = ResultCache(tmp_path).grid(scaled, {"a": {"lr": 1.0, "best": 1.0}, "b": {"lr": 1.0, "best": 3.0}}, (4, 5), workers=1)
    assert found == {"a": [4.0, 5.0], "b": [2.0, 3.0]}
    best = tuned(ResultCache(), scaled, {"a": {"best": 1.0}, "b": {"best": 2.0}}, (1.0, 3.0), (4, 5), float)
    assert best == {"a": (1.0, [4.0, 5.0]), "b": (1.0, [3.0, 4.0])}, "of equal ones the first"


def test_a_size_that_is_not_there_is_refused_before_anything_runs() -> None:
    @sized("toy", quick=1, cpu=2)
    def reproduce(size: str, cells: ResultCache, seeds: Sequence[int]) -> list[Check]:
        return [Check(size, 0, None, 1, tuple(seeds), "report")]

    assert [(check.name, check.seeds) for check in reproduce("cpu", ResultCache(), 3)] == [("cpu", (3, 4))]
    with pytest.raises(UserError, match="the reproduction of toy has no size 'gpu': there are quick and cpu"):
        reproduce("gpu", ResultCache())


def test_a_mean_has_students_interval_and_a_share_wilsons() -> None:
    checks = Checks((0, 1, 2), {"gain": "known"})
    checks.mean("gain", [1.0, 2.0, 3.0], ">=", 0.5)
    checks.mean("other", [1.0])
    checks.mean("none", [], ">", 0.0)
    checks.share("fires", 23, 175, "<=", 0.2)
    checks.share("exactly", 0, 10, exact=True)
    mean, one, none, share, exactly = checks
    assert (mean.value, mean.n, mean.seeds, mean.status, mean.known_failure) == (2.0, 3, (0, 1, 2), "pass", "known")
    assert mean.interval == pytest.approx((2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5), abs=1e-5)
    assert (one.value, one.interval, one.op, one.known_failure) == (1.0, None, "report", "")
    assert (codec.to_json(none)["value"], none.n, none.status) == (None, 0, "miss")
    assert (share.value, share.n, share.status) == (23 / 175, 175, "pass")
    assert share.interval == pytest.approx((0.0892, 0.1895), abs=5e-5)
    assert exactly.interval == pytest.approx((0.0, 1 - 0.025**0.1))


def test_a_report_leaves_out_what_is_missing_and_a_check_misses_by_it() -> None:
    checks = Checks((5, 6, 7))
    checks.mean("gain", [1.0, None, 3.0])
    checks.mean("gain", [1.0, None, 3.0], ">", 0.0)
    told, judged = checks
    assert (told.value, told.n, told.seeds, told.status) == (2.0, 2, (5, 7), "reported")
    assert (judged.n, judged.interval, judged.status) == (3, None, "miss")


def test_pairs_differ_by_their_mean_and_the_worst_is_on_the_wrong_side() -> None:
    checks = Checks((0, 1))
    checks.paired("gain", [3.0, 5.0], [1.0, 2.0], ">", 2.0)
    for op in ("<=", "<", "==", ">=", ">"):
        checks.worst("w", [1.0, 3.0, 2.0], op, 2.0, n=40)
    pair, *worst = checks
    assert (pair.value, pair.n, pair.status) == (2.5, 2, "pass")
    assert pair.interval == pytest.approx((2.5 - 12.7062 * 0.5, 2.5 + 12.7062 * 0.5), abs=1e-3)
    assert [one.value for one in worst] == [3.0, 3.0, 3.0, 1.0, 1.0]
    assert {one.n for one in worst} == {40}


@pytest.mark.parametrize("name", sorted(experiments.found("reproductions")))
def test_every_reproduction_names_its_sizes(name: str) -> None:
    with pytest.raises(UserError, match=f"the reproduction of {name} has no size 'gpu'"):
        experiments.load("reproductions", name)("gpu", ResultCache())


def test_the_time_of_cells_is_that_of_making_them(tmp_path: Path) -> None:
    first, again = ResultCache(tmp_path), ResultCache(tmp_path)
    first.map(square, {f"x{i}": {"x": i} for i in range(3)}, workers=1)
    again.get("x1", square, x=1)
    kept = [json.loads(file.read_text())["seconds"] for file in tmp_path.iterdir()]
    assert first.seconds == pytest.approx(sum(kept))
    assert again.seconds in kept


def test_keys_that_look_alike_as_file_names_stay_apart(tmp_path: Path) -> None:
    cells = ResultCache(tmp_path)
    assert [cells.get(key, fail_on_three, x=i) for i, key in enumerate(("a/b", "a-b", "../a b"))] == [0, 1, 2]
    assert len(list(tmp_path.iterdir())) == 3


def test_map_in_processes_and_in_process_agree(tmp_path: Path) -> None:
    grid = {f"x{i}": {"x": i} for i in range(4)}
    seen: list[tuple[int, int]] = []

    class Seen(Progress):
        def begin(self, total: float, done: float = 0, phase: str = "", unit: str = "") -> None:
            seen.append((int(done), int(total)))

        def at(self, done: float, note: str = "", phase: str = "") -> None:
            seen.append((int(done), seen[0][1]))

    spawned = ResultCache(tmp_path, progress=Seen()).map(square, grid)
    local = ResultCache().map(square, grid, workers=1)
    assert list(spawned) == list(local) == list(grid)
    assert [v["square"] for v in spawned.values()] == [v["square"] for v in local.values()] == [0, 1, 4, 9]
    assert {v["threads"] for v in spawned.values()} == {"1"}
    assert os.getpid() not in {v["pid"] for v in spawned.values()}
    assert seen == [(i, 4) for i in range(5)]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_failing_cell_names_its_key_and_finished_ones_stay(tmp_path: Path, workers: int) -> None:
    with pytest.raises(CellError, match="cell 'x3' failed: RuntimeError: three is bad"):
        ResultCache(tmp_path).map(fail_on_three, {f"x{i}": {"x": i} for i in range(1, 4)}, workers=workers)
    assert {json.loads(p.read_text())["key"] for p in tmp_path.iterdir()} == {"x1", "x2"}


def test_results_that_are_not_json_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CellError, match="not JSON"):
        ResultCache(tmp_path).get("nan", lambda: float("nan"))
    assert list(tmp_path.iterdir()) == []


def test_a_torn_cell_is_one_sentence(tmp_path: Path) -> None:
    ResultCache(tmp_path).get("a", fail_on_three, x=1)
    file = next(tmp_path.iterdir())
    file.write_text(file.read_text()[:10])
    with pytest.raises(UserError, match=file.name):
        ResultCache(tmp_path).get("a", fail_on_three, x=1)


INTERRUPTED = """
import os, signal, sys, time
from pathlib import Path
from ramify.base.progress import SILENT, Progress
from ramify.cli import experiments
from ramify.stats.checks import Check
from ramify_experiments.lab import ResultCache, sized, tuned

def cell(x, folder):
    if x > 1:
        Path(folder, f"started-{x}").touch()
        time.sleep(600)
    return x

class TwoDone(Progress):
    def at(self, done, note="", phase=""):
        if done == 2:
            while len(list(Path(sys.argv[1]).glob("started-*"))) < 2:
                time.sleep(0.05)
            os.killpg(0, signal.SIGINT)

if __name__ == "__main__":
    folder, told = sys.argv[1], TwoDone() if sys.argv[2] == "busy" else SILENT
    ResultCache(folder + "/cells", told).map(cell, {f"x{i}": {"x": i, "folder": folder} for i in range(6)})
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["waiting", "busy", "killed"])
def test_an_interrupt_keeps_finished_cells_and_leaves_no_process(tmp_path: Path, how: str) -> None:
    """While cells are waited for, or while a result is being handled; also the parent's sudden end."""
    script = tmp_path / "interrupted_experiment.py"
    script.write_text(INTERRUPTED)
    command = [sys.executable, str(script), str(tmp_path), how]
    child = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    until = time.monotonic() + 100
    written = tmp_path / "cells"
    try:
        if how != "busy":  # where it interrupts itself
            while not ((tmp_path / "started-3").exists() and len(list(written.glob("*.json"))) == 2) and time.monotonic() < until:
                time.sleep(0.05)
            os.killpg(child.pid, signal.SIGINT) if how == "waiting" else child.kill()
        assert child.wait(100) != 0
        assert {json.loads(p.read_text())["key"] for p in written.iterdir()} == {"x0", "x1"}
        assert {p.name for p in tmp_path.glob("started-*")} == {"started-2", "started-3"}
        while time.monotonic() < until and _group_alive(child.pid):
            time.sleep(0.05)
        assert not _group_alive(child.pid)
    finally:
        if _group_alive(child.pid):
            os.killpg(child.pid, signal.SIGKILL)


def _group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
