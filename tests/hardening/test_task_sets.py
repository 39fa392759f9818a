"""A task task set has one hash: whatever the order of files and lines, the locale,
the hash seed of Python, and the number of workers."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from ramify.base.errors import UserError
from ramify.env.builtin.household import HouseholdEnvironment
from ramify.env.protocol import TaskSet, read_task_set
from ramify.integrations.environments.textworld import _games
from ramify.jobs.components import task_sets
from ramify.model.chat import TagTemplate
from ramify.model.protocol import Sampling
from ramify.model.scripted import ScriptedModel
from ramify.rollout.agent import Agent
from ramify.rollout.run import Episodes
from ramify.trace.db import Run

IDS = ["a", "B", "ä", "ı", "I", "i", "İ", "z", "Z", "ß", "ss", "10", "9", "x\u2028y", "日本", "a b", "A", "é", "e\u0301"]
ASK = """
import sys
from pathlib import Path
from ramify.jobs.components import task_sets
from ramify.env.protocol import read_task_set
from ramify.env.builtin.household import HouseholdEnvironment
print(read_task_set(Path(sys.argv[1])).hash)
for task_set in (*task_sets(HouseholdEnvironment(), sys.argv[1], 1, 1, 0), *task_sets(HouseholdEnvironment(), None, 5, 5, 7)):
    print(task_set.hash)
"""


def write_tasks(folder: Path, seed: int) -> Path:
    """The same tasks in another order of lines and keys."""
    rng = random.Random(seed)
    lines = []
    for task_id in rng.sample(IDS, len(IDS)):
        record = [("id", task_id), ("goal", f"find {task_id}"), ("n", 3)]
        rng.shuffle(record)
        lines.append(json.dumps(dict(record), ensure_ascii=rng.random() < 0.5))
    folder.mkdir()
    file = folder / "tasks.jsonl"
    file.write_bytes(rng.choice((b"\n", b"\r\n", b"\n\n")).join(line.encode() for line in lines))
    return file


def hashes(file: Path, **settings: str) -> list[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG"))}
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(file)], capture_output=True, text=True, env={**kept, **settings}, check=True
    )
    return done.stdout.split()


@pytest.mark.slow
def test_one_hash_in_every_locale_and_order(tmp_path: Path) -> None:
    found = [
        hashes(write_tasks(tmp_path / "one", 1), LC_ALL="C", PYTHONHASHSEED="0"),
        hashes(write_tasks(tmp_path / "two", 2), LC_ALL="tr_TR.UTF-8", PYTHONHASHSEED="1"),
        hashes(write_tasks(tmp_path / "three", 3), LC_ALL="C.UTF-8", PYTHONHASHSEED="77", PYTHONUTF8="0"),
        hashes(write_tasks(tmp_path / "four", 4), LC_ALL="POSIX", PYTHONIOENCODING="latin-1"),
    ]
    assert found == [found[0]] * 4
    assert len(set(found[0])) == 5


def test_a_folder_of_games_has_one_hash_whatever_the_order_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{name}.z8" for name in IDS]
    found = set()
    real = os.scandir
    for seed in range(4):
        rng = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        for name in rng.sample(names, len(names)):
            (folder / name).write_text(f"the game {name}")
        listed = rng.sample(sorted(os.listdir(folder)), len(names))

        @contextmanager
        def shuffled(path: object = ".", order: list[str] = listed):  # what another file system could answer
            with real(path) as entries:
                yield iter(sorted(entries, key=lambda entry: order.index(entry.name) if entry.name in order else -1))

        with monkeypatch.context() as patched:
            patched.setattr(os, "scandir", shuffled)
            patched.setattr(os, "listdir", lambda path, order=listed: list(order))
            found.add(TaskSet.of(_games(str(folder))).hash)
    assert len(found) == 1


def test_a_task_that_is_another_changes_the_hash(tmp_path: Path) -> None:
    file = write_tasks(tmp_path / "one", 1)
    before = read_task_set(file).hash
    file.write_text(file.read_text().replace('"n": 3', '"n": 4', 1))
    assert read_task_set(file).hash != before


def played(folder: Path, at_once: int) -> list[str]:
    """Hashes of the task set and of the trees of a run that plays ``at_once`` attempts at once."""
    train, _ = task_sets(HouseholdEnvironment(), None, 3, 3, 5)
    with Run.create(folder, {}) as run:
        model = ScriptedModel(lambda messages, key: "go " + "hall" if key % 2 else "wait")
        template = TagTemplate(model.tokenizer)
        agent = Agent(model, template, Sampling(max_tokens=20, stop_tokens=template.stop_tokens))
        episodes = Episodes(agent, HouseholdEnvironment(), run, seed=5)

        async def play() -> None:
            gate = asyncio.Semaphore(at_once)

            async def one(task, index: int) -> None:
                async with gate:
                    await episodes.attempt(task.id, task, index)

            await asyncio.gather(*(one(task, index) for task in train for index in range(2)))

        asyncio.run(play())
        run.commit()
        return [train.hash, *sorted(run.tree(tree.name).hash for tree in run.trees())]


def test_one_task_set_and_one_tree_with_any_number_of_workers(tmp_path: Path) -> None:
    found = [played(tmp_path / str(at_once), at_once) for at_once in (1, 2, 8)]
    assert found == [found[0]] * 3
    assert len(set(found[0])) == 4


@pytest.mark.parametrize(
    "line",
    ["[" * 5000, '{"id": "a", "n": ' + "9" * 5000 + "}", '{"id": 1}', "\x00", '{"id": "a"', '"id"', '{"id": "a", "x": NaN}',
     '{"id": "\\ud800"}'],
)  # fmt: skip
def test_hostile_task_files(tmp_path: Path, line: str) -> None:
    (tmp_path / "tasks.jsonl").write_text(f'{{"id": "first"}}\n{line}\n')
    try:
        assert read_task_set(tmp_path / "tasks.jsonl").hash
    except UserError as error:
        assert str(tmp_path / "tasks.jsonl") in str(error)  # noqa: PT017


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xff\xfe", b'{"id": "a"}\n{"id": "a"}'])
def test_no_task_set(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "tasks.jsonl").write_bytes(data)
    with pytest.raises(UserError):
        read_task_set(tmp_path / "tasks.jsonl")
    with pytest.raises(UserError, match="cannot read"):
        read_task_set(tmp_path / "nothing")
