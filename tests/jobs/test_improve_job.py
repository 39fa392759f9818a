"""The main job on real parts: it runs, resumes to the same end after kills, refuses changed parts, and every arm is its own."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramify.base.errors import UserError
from ramify.engine.checkpoints import load_model, model_folder
from ramify.engine.tiny import SCRATCH
from ramify.jobs.components import task_sets
from ramify.jobs.improve import ARMS, ImproveConfig, improve, plan, resume
from ramify.jobs.results import EvaluationEntry, Improved, UpdateReport
from ramify.rollout.components import find_environment
from ramify.rollout.stored import AGENT
from ramify.trace.db import Run

SMALL = {"updates": 3, "tokens": 2700, "tasks_per_update": 4, "eval_episodes": 12, "train_tasks": 24}


def hashes(path: Path) -> dict[str, str]:
    with Run.open(path) as run:
        return {info.name: run.tree(info.name).hash for info in run.trees()}


def story(path: Path) -> list[Any]:
    """Everything the run concluded, without times and blob names."""
    with Run.open(path) as run:
        evals = [(key, one.outcomes) for key, one in run.memo("eval", EvaluationEntry).items()]
        updates = [[key, one.tokens, one.success, one.train, one.critic] for key, one in run.memo("update", UpdateReport).items()]
    return [*evals, *updates]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("improve") / "whole"
    improve(ImproveConfig(**SMALL), path)
    return path


def test_the_job_leaves_everything_a_report_needs(whole: Path) -> None:
    with Run.open(whole) as run:
        result = run.memo("result", Improved)["improve"]
        assert result.before.n == 12
        assert 0 < result.tokens <= 2700 * 1.3
        updates = list(run.memo("update", UpdateReport).values())
        assert [u.update for u in updates] == list(range(len(updates)))
        assert len(updates) == 3
        assert result.updates == 3
        assert result.attempts == sum(u.attempts for u in updates) > 0
        trees = run.trees(f"{ImproveConfig().arm}-0000")
        assert 4 <= len(trees) <= 4 * 4
        marks = run.annotations(name="why")
        assert marks
        assert {"A", "successes", "attempts"} <= set(marks[0].value)
        assert len(list(run.blobs.names())) == 1, "only the newest checkpoint is kept"
    model, _ = load_model(whole / AGENT)
    start, _ = load_model(model_folder("builtin"))
    assert model.identity.weights != start.identity.weights


def test_a_finished_run_resumes_to_its_result(whole: Path) -> None:
    before = hashes(whole)
    with Run.open(whole) as run:
        assert resume(whole) == run.memo("result", Improved)["improve"]
    assert hashes(whole) == before


def test_changed_parts_are_refused_with_what_changed(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    with Run.open(path, write=True) as run:
        run._db.execute("DELETE FROM journal WHERE kind = 'result'")
        run._db.execute("UPDATE meta SET value = ? WHERE key = 'parts'", ('{"version": "0.0.1", "weights": "abc"}',))
    with pytest.raises(UserError, match=r"version was '0\.0\.1', is .*weights was 'abc'"):
        resume(path)


#: Children are forked from a server that has imported what the job needs: an instant is then one of the job, not of an import.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["ramify.jobs.improve", "ramify.engine.local", "torch._dynamo"])  # an optimizer loads the last


def is_run(path: Path) -> bool:
    with contextlib.suppress(UserError), Run.open(path):
        return True
    return False


def killed(work: Callable[..., Any], *args: Any, path: Path, after: float) -> None:
    """Start ``work`` in a child and SIGKILL it ``after`` seconds after there is a run at ``path``."""
    child = SERVER.Process(target=work, args=args)
    child.start()
    while not is_run(path) and child.is_alive():
        time.sleep(0.02)
    child.join(after)
    child.kill()
    child.join()
    assert child.exitcode in (0, -signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_random_instants_it_ends_as_the_undisturbed_run(whole: Path, tmp_path: Path) -> None:
    path, seen, rng = tmp_path / "cut", set(), random.Random(5)
    for _ in range(20):
        work = (resume, path) if path.exists() else (improve, ImproveConfig(**SMALL), path)
        killed(*work, path=path, after=rng.uniform(0.05, 3.5))
        names = (
            {node for info in Run.open(path).trees() for node in Run.open(path).tree(info.name).nodes} if path.exists() else set()
        )
        assert seen <= names, "a committed node is gone"
        seen = names
    resume(path)
    assert hashes(path) == hashes(whole)
    assert story(path) == story(whole)


@pytest.mark.slow
def test_an_interrupted_run_continues(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut"
    killed(improve, ImproveConfig(**SMALL), path, path=path, after=0.5)
    resume(path)
    assert hashes(path) == hashes(whole)
    assert story(path) == story(whole)


@pytest.mark.slow
def test_a_pretrained_model_killed_at_random_instants_ends_as_undisturbed(tmp_path: Path) -> None:
    """Its validations, the bound and the checkpoint that was chosen, too."""
    shutil.copytree(model_folder("builtin"), tmp_path / "model")
    record = json.loads((tmp_path / "model/config.json").read_text())
    del record[SCRATCH]
    (tmp_path / "model/config.json").write_text(json.dumps(record))
    config, rng = ImproveConfig(**SMALL, model=f"hf:{tmp_path / 'model'}", changes=0, max_reply=24), random.Random(7)
    whole = improve(config, tmp_path / "undisturbed")
    path = tmp_path / "cut"
    for _ in range(6):
        work = (resume, path) if path.exists() else (improve, config, path)
        killed(*work, path=path, after=rng.uniform(0.5, 3.0))
    ended = resume(path)
    assert hashes(path) == hashes(tmp_path / "undisturbed")
    assert story(path) == story(tmp_path / "undisturbed")
    assert whole.lost is not None
    assert ended.lost is not None
    assert (ended.lost.kept, ended.lost.before, ended.lost.after) == (whole.lost.kept, whole.lost.before, whole.lost.after)


SPLIT = {**SMALL, "arm": "auto", "sampling": "splitting", "credit": "self-imitate", "critic": {"wins": 1}}
"""Attempts are split from the first update on, and the critic is asked as soon as one was won,
by the sampling and by the credit."""


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("split") / "whole"
    improve(ImproveConfig(**SPLIT), path)
    return path


@pytest.mark.slow
def test_splitting_forks_and_asks_the_critic(split: Path) -> None:
    with Run.open(split) as run:
        updates = list(run.memo("update", UpdateReport).values())
        result = run.memo("result", Improved)["improve"]
        marks = run.annotations(name="why")
    assert {"A", "advantage", "V", "V_next", "critic", "attempts"} <= set(marks[0].value)
    assert result.forks == sum(u.forks for u in updates) > 0
    assert all(u.split == u.groups for u in updates)
    assert updates[-1].critic is not None
    assert updates[-1].critic.spoke
    assert 0.7 * 2700 <= result.tokens <= 1.3 * 2700


@pytest.mark.slow
def test_an_interrupted_run_with_splitting_continues(split: Path, tmp_path: Path) -> None:
    path, rng = tmp_path / "cut", random.Random(2)
    killed(improve, ImproveConfig(**SPLIT), path, path=path, after=rng.uniform(0.5, 3))
    killed(resume, path, path=path, after=rng.uniform(0.5, 3))
    resume(path)
    assert hashes(path) == hashes(split)
    assert story(path) == story(split)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [SMALL, SPLIT])
def test_workers_change_no_sample_and_no_update(settings: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    alone = request.getfixturevalue("whole" if settings is SMALL else "split")
    improve(ImproveConfig(**settings, backend="processes:2"), tmp_path / "run")
    assert hashes(tmp_path / "run") == hashes(alone)
    assert story(tmp_path / "run") == story(alone)


@pytest.mark.slow
@pytest.mark.parametrize("arm", [name for name in ARMS if name != ImproveConfig().arm])
def test_every_arm_spends_the_same_tokens(arm: str, tmp_path: Path) -> None:
    config = ImproveConfig(**{**SMALL, "updates": 1, "tokens": 900, "eval_episodes": 4, "arm": arm})
    result = improve(config, tmp_path / "run")
    assert 0.7 * 900 <= result.tokens <= 1.3 * 900


@pytest.mark.slow
def test_the_cost_estimate_is_an_upper_bound(whole: Path) -> None:
    cost_estimate = plan(ImproveConfig(**SMALL)).cost_estimate
    with Run.open(whole) as run:
        spent = sum(one.tokens for one in run.memo("eval", EvaluationEntry).values())
    assert spent <= cost_estimate["evaluation tokens"]
    assert cost_estimate["cost"] == 0.0


@pytest.mark.slow
def test_ones_own_tasks_are_split_by_id(tmp_path: Path) -> None:
    environment = find_environment("household")
    file = tmp_path / "tasks.jsonl"
    file.write_text("".join(json.dumps({"id": t.id, **t.data}) + "\n" for t in environment.task_set("tune", 20)))
    train, held = task_sets(environment, str(file), 1, 1, 0)
    assert {t.id for t in train} & {t.id for t in held} == set()
    assert len(train) + len(held) == 20
    assert len(held) >= 1
    few = {**SMALL, "updates": 1, "tokens": 900, "eval_episodes": 4}
    result = improve(ImproveConfig(**few, tasks=str(file)), tmp_path / "run")
    assert result.before.n == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "gpt"}, "neither 'builtin' nor 'hf:PATH'"),
        ({"model": "hf:/nowhere"}, "no folder /nowhere"),
        ({"env": "houshold"}, "did you mean 'household'"),
        ({"tasks": "/nowhere.jsonl"}, "cannot read /nowhere.jsonl"),
    ],
)
def test_bad_parts_are_refused_before_a_run_exists(settings: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        improve(ImproveConfig(**settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_few_updates_take_more_passes_each_but_never_many() -> None:
    assert [ImproveConfig().train.of("imitate", updates).epochs for updates in (1, 10, 16, 50, 100, 500)] == [4, 4, 4, 4, 2, 1]
    assert ImproveConfig(train={"epochs": 7}).train.of("grpo", 50).epochs == 7
