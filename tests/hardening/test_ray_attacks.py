"""Ray's workers under attack, through the command line: environments that raise, answer garbage, print, exit or die there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramify.trace.db import Run
from ramify.trace.jsonl import write_lines

HERE = Path(__file__).parent
PARTS = HERE.parent / "rollout"
KEY = "sk-canary-51f2c7d09ab34e68"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A local cluster that has the key in its environment, as one started in a user's shell has; its address and its folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("OPENAI_API_KEY", KEY)
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, (HERE, PARTS))))
        ray = pytest.importorskip("ray", reason="ray is not installed: RAY'S WORKERS ARE NOT ATTACKED")
        ray.init(
            address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
            object_store_memory=2**27,
        )  # fmt: skip
        context = ray.get_runtime_context()
        yield context.gcs_address, Path(ray._private.worker._global_node.get_session_dir_path())
        ray.shutdown()


def ramify(cluster: tuple[str, Path], *words: object) -> subprocess.Popen[str]:
    variables = {
        "RAY_ADDRESS": cluster[0], "OPENAI_API_KEY": KEY, "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, (HERE, PARTS))),
    }  # fmt: skip
    command = [sys.executable, "-m", "ramify.cli.main", *map(str, words)]
    return subprocess.Popen(
        command, env=os.environ | variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
    )


def rollout(cluster: tuple[str, Path], out: Path, backend: str, env: str) -> subprocess.Popen[str]:
    return ramify(
        cluster, "rollout", "--model", "factory:worker_parts:walker", "--env", f"factory:ray_parts:{env}", "--count", 3,
        "--attempts", 2, "--seed", 3, "--backend", backend, "--out", out, "--json",
    )  # fmt: skip


def records(folder: Path) -> list[str]:
    """Everything in a run but settings and times."""
    with Run.open(folder) as run:
        write_lines(run, folder / "all.jsonl")
    kinds = [(line, json.loads(line)) for line in (folder / "all.jsonl").read_text("utf-8").splitlines()]
    return sorted(line for line, r in kinds if r["kind"] != "run" and r.get("entry") not in ("stretch", "start"))


def hits(folder: Path) -> list[str]:
    """Files below a folder that hold the key."""
    return [str(path) for path in folder.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


@pytest.mark.parametrize("env", ["raising", "garbage", "printing", "exiting"])
def test_what_misbehaves_in_a_worker_is_the_same_data_as_here(cluster: tuple[str, Path], tmp_path: Path, env: str) -> None:
    codes = []
    for backend in ("local", "ray:2"):
        process = rollout(cluster, tmp_path / backend, backend, env)
        out, err = process.communicate(timeout=300)
        codes.append(process.returncode)
        assert "Traceback" not in err, err
        if env != "printing" or backend != "local":  # what an environment prints here is printed
            assert KEY not in out + err
    assert codes[0] == codes[1], codes
    assert records(tmp_path / "ray:2") == records(tmp_path / "local")
    assert not hits(tmp_path)
    if env == "printing":
        assert all("worker" in name for name in hits(cluster[1])), "Ray's own log of a worker has what it printed, nothing else"
    elif env == "raising":
        assert not hits(cluster[1])
        assert "hunter2" not in "".join(records(tmp_path / "ray:2"))


def test_an_environment_that_kills_every_worker_costs_its_own_attempts_only(cluster: tuple[str, Path], tmp_path: Path) -> None:
    process = rollout(cluster, tmp_path / "run", "ray:2", "dying")
    _, err = process.communicate(timeout=500)
    assert process.returncode in (0, 1), err
    assert "Traceback" not in err
    found = [json.loads(line) for line in records(tmp_path / "run")]
    failed = [r for r in found if "died 3 times" in json.dumps(r)]
    assert len(failed) >= 2
    good = ramify(
        cluster, "rollout", "--model", "factory:worker_parts:walker", "--env", "factory:ray_parts:printing", "--count", 3,
        "--attempts", 2, "--seed", 3, "--out", tmp_path / "good",
    )  # fmt: skip
    good.communicate(timeout=300)
    assert good.returncode == 0
    ours, theirs = (replies(tmp_path / name) for name in ("run", "good"))
    assert ours
    assert ours <= theirs, "an attempt beside the deadly ones is another one than alone"


def replies(folder: Path) -> set[str]:
    with Run.open(folder) as run:
        return {node.id for tree in run.trees() for node in run.nodes(tree.name) if node.role == "assistant" and node.text}


def test_code_of_a_foreign_run_reaches_no_worker(cluster: tuple[str, Path], tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    process = rollout(cluster, tmp_path / "run", "local", "printing")
    process.communicate(timeout=300)
    process = ramify(cluster, "export", tmp_path / "run", tmp_path / "run.jsonl")
    assert process.communicate(timeout=300)
    assert process.returncode == 0
    head, rest = (tmp_path / "run.jsonl").read_text("utf-8").split("\n", 1)
    record = json.loads(head)
    record["config"] |= {"env": f"factory:{tmp_path / 'theirs.py'}:make", "backend": "ray:2", "attempts": 9}
    (tmp_path / "theirs.jsonl").write_text(json.dumps(record) + "\n" + rest, "utf-8")
    process = ramify(cluster, "import", tmp_path / "theirs.jsonl", "--run", tmp_path / "imported")
    assert process.communicate(timeout=300)
    assert process.returncode == 0
    process = ramify(cluster, "resume", tmp_path / "imported")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 2
    assert "--trust" in err
    assert "backend 'ray:2'" in err
    assert not (tmp_path / "ran").exists()
