"""Ray, for real: a local cluster, the tree of this process with 1, 2 and 8 workers, killed workers, a killed collector."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from ramify.base.errors import CellError, NeedsError, RamifyError
from ramify.env.builtin.household import HouseholdEnvironment
from ramify.integrations.ray import RayBackend
from ramify.jobs.collect import Collection, RolloutConfig
from ramify.jobs.play import play
from ramify.trace.db import Run
from ramify.trace.jsonl import write_lines
from ramify_experiments.lab import ResultCache

PARTS = Path(__file__).parents[1] / "rollout"
WALKER = "factory:worker_parts:walker"
TASKS = list(HouseholdEnvironment().task_set("train", 4, 3))


def test_without_ray_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(NeedsError, match=r"pip install 'ramify\[ray\]'"):
        RayBackend().open(2)


@pytest.mark.slow
def test_a_cluster_that_cannot_be_reached_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="ray is not installed: THE RAY DOOR IS NOT TESTED")
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1"):
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(RamifyError, match=f"cannot reach Ray at {address} .RAY_ADDRESS.: [Cc]onnection refused"):
            RayBackend().open(1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A local cluster of two CPUs; its address. Workers find this folder's parts and die as often as the file ``deaths`` says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("DOOMED", TASKS[1].data["start"])
        patch.setenv("DOOM_COUNT", str(tmp_path_factory.mktemp("doom") / "deaths"))
        patch.setenv("SLOW", "0.1")
        patch.setenv("QUICK", HouseholdEnvironment().make().reset(TASKS[0], 0).text)  # of this one attempts are there soon
        Path(os.environ["DOOM_COUNT"]).write_bytes(b"")
        patch.syspath_prepend(str(PARTS))
        ray = pytest.importorskip("ray", reason="ray is not installed: THE RAY DOOR IS NOT TESTED")
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=2**27,
        )
        yield ray.get_runtime_context().gcs_address
        ray.shutdown()


def lines(folder: Path) -> list[bytes]:
    """Everything in a run in its order, without settings and times."""
    with Run.open(folder) as run:
        write_lines(run, folder / "all.jsonl")
    kinds = [(line, json.loads(line)) for line in (folder / "all.jsonl").read_bytes().splitlines()]
    return [line for line, r in kinds if r["kind"] != "run" and r.get("entry") not in ("stretch", "start")]


def played(folder: Path, backend: str, model: str, env: str = "household") -> Any:
    attempts = play(model, env, TASKS, attempts=4, out=folder, seed=3, backend=backend, concurrency=16)
    return [(a.tree, a.index, a.leaf, a.reward, a.outcome, len(a.turns)) for a in attempts], lines(folder)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "numbers"), [(WALKER, (1, 2, 8)), ("builtin", (8,))])
def test_same_seed_same_tree_with_one_two_and_eight_workers(
    cluster: str, tmp_path: Path, model: str, numbers: tuple[int, ...]
) -> None:
    here, records = played(tmp_path / "local", "local", model)
    orders = []
    for workers in numbers:
        there, order = played(tmp_path / str(workers), f"ray:{workers}", model)
        assert there == here
        assert sorted(order) == sorted(records)  # ids, tokens, log-probs: every bit
        orders.append(order)
    assert all(order == orders[0] for order in orders)


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_nothing(cluster: str, tmp_path: Path) -> None:
    deadly = "factory:worker_parts:DeadlyEnvironment"
    here, records = played(tmp_path / "local", "local", WALKER, deadly)
    Path(os.environ["DOOM_COUNT"]).write_bytes(b"..")
    there, order = played(tmp_path / "ray", "ray:2", WALKER, deadly)
    assert Path(os.environ["DOOM_COUNT"]).read_bytes() == b"", "nobody died"
    assert there == here
    assert sorted(order) == sorted(records)


@pytest.mark.slow
def test_a_killed_collector_takes_its_workers_along_and_its_run_continues(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    config = RolloutConfig(model="factory:worker_parts:slow_walker", count=4, attempts=6, seed=3, backend="ray:2", concurrency=4)
    options = [f"--{name}={getattr(config, name)}" for name in ("model", "count", "attempts", "seed", "backend", "concurrency")]
    process = subprocess.Popen(
        [sys.executable, "-m", "ramify.cli.main", "rollout", *options, "--out", str(tmp_path / "run")],
        env=os.environ | {"RAY_ADDRESS": cluster, "PYTHONPATH": str(PARTS)},
    )
    assert until(lambda: committed(tmp_path / "run") >= 3, 120)
    process.send_signal(signal.SIGKILL)
    process.wait(100)
    kept = set(lines(tmp_path / "run"))
    assert committed(tmp_path / "run") < 24
    assert until(lambda: ray.available_resources().get("CPU", 0.0) == 2.0, 120)  # the cluster took their places back
    assert Collection(config).collect(tmp_path / "run").missing == 0
    monkeypatch.setenv("SLOW", "0")
    Collection(config.model_copy(update={"backend": "local"})).collect(tmp_path / "whole")
    assert kept <= set(lines(tmp_path / "run")), "something committed was lost"
    assert sorted(lines(tmp_path / "run")) == sorted(lines(tmp_path / "whole"))


@pytest.mark.slow
def test_cells_of_a_reproduction_run_on_the_cluster(cluster: str, tmp_path: Path) -> None:
    run, finish = RayBackend().cells(2)
    cells = ResultCache(tmp_path, runner=run)
    assert cells.map(json.loads, {text: {"s": text} for text in ("1", "[2]", "3")}) == {"1": 1, "[2]": [2], "3": 3}
    with pytest.raises(CellError, match=r"cell '\{' failed: JSONDecodeError: Expecting property name"):
        cells.map(json.loads, {text: {"s": text} for text in ("3", "{")})
    finish()
    import ray

    assert ray.is_initialized(), "a connection that was there before stays"


def committed(folder: Path) -> int:
    try:
        with Run.open(folder) as run:
            return len(run.journal("attempt"))
    except RamifyError:
        return 0
