"""Really generated TextWorld games: solved by their walkthrough, forked at each of its steps,
and closed to the interpreter's commands."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramify.base.errors import UserError
from ramify.env.protocol import Task
from ramify.jobs.play import fork_run, play
from ramify.model.scripted import ScriptedModel
from ramify.rollout.components import find_environment
from ramify.testing import check_env
from ramify.trace.db import Run

pytestmark = pytest.mark.slow
textworld = pytest.importorskip("textworld", reason="textworld is not installed: THE textworld DOOR IS NOT TESTED")
from textworld.challenges.tw_treasure_hunter import treasure_hunter  # noqa: E402
from textworld.generator import QuestGenerationError  # noqa: E402

from ramify.integrations.environments.walkthroughs import play_walkthroughs  # noqa: E402
from ramify_experiments.recipes import TextWorldRecipe, hunted  # noqa: E402

GAME = "textworld:make?rooms=2&objects=4&length=4"


class Yielding(ScriptedModel):
    """Gives way before every sample, so that episodes interleave."""

    async def sample(self, *arguments: Any) -> Any:
        await asyncio.sleep(0)
        return await super().sample(*arguments)


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def first(environment: Any) -> Task:
    return next(iter(environment.task_set("train", 1)))


def test_a_generated_game_is_won_by_its_walkthrough_and_every_fork_of_it_continues_right(tmp_path: Path) -> None:
    environment: Any = find_environment(GAME)
    task = first(environment)
    steps = environment.walkthrough(task)
    assert len(steps) >= 4
    with Run.create(tmp_path / "run", {"env": GAME, "model": None, "seed": 0, "sampling": {"max_tokens": 256}}) as run:
        (walked,) = asyncio.run(play_walkthroughs(environment, [task], run))
    assert (walked.outcome, walked.reward, walked.failure) == (True, 1.0, None)
    assert walked.turns[-1].answer.stop == "terminated"
    model = ScriptedModel(steps, tokens=False, name="walkthrough")
    for at, turn in enumerate(walked.turns):
        done = fork_run(tmp_path / "run", turn.node.id, n=2, model=model)  # nothing in memory: replayed and checked
        assert (done.arm.successes, done.arm.scored) == (2, 2)
        assert {a.replayed for a in done.arm.attempts} == {at}
        (again, _) = done.arm.attempts
        assert [t.answer.text for t in again.turns] == [t.answer.text for t in walked.turns[at:]]
        lost = ScriptedModel([*steps, *["look"] * 100], tokens=False)
        wandered = fork_run(tmp_path / "run", turn.node.id, n=1, model=lost, edit={"replace": "inventory"})
        assert wandered.arm.attempts[0].failure is None


def test_real_games_conform() -> None:
    assert check_env(find_environment(GAME), tasks=2, turns=4) == []
    admissible: Any = find_environment(GAME + "&admissible=true")
    assert check_env(admissible, tasks=1, turns=3) == []
    text = admissible.make().reset(first(admissible), 0).text
    assert "look" in text.rpartition("Commands: ")[2].split("; ")
    assert "TEXTWORLD" not in text
    assert "$$" not in text, "the banner is cut"


def test_a_treasure_hunt_is_won_by_its_walkthrough_and_knows_its_levels() -> None:
    environment: Any = find_environment("textworld:treasure?level=3")
    task = first(environment)
    *_, last = environment.walkthrough(task)
    assert last.startswith("take ")
    env = environment.make()
    env.reset(task, 0)
    assert [env.step(command).outcome for command in environment.walkthrough(task)] == [None, True]
    with pytest.raises(UserError, match="has no option 'rooms'"):
        find_environment("textworld:treasure?rooms=3")
    beyond: Any = find_environment("textworld:treasure?level=31")
    with pytest.raises(UserError, match="level to be within"):
        beyond.make().reset(first(beyond), 0)


def test_a_seed_whose_map_has_no_room_for_the_quest_gets_another_map() -> None:
    environment: Any = find_environment("textworld:treasure?level=10")
    task = list(environment.task_set("train", 3, 0))[2]
    options = textworld.GameOptions()
    options.seeds = task.data["seed"]
    with pytest.raises(QuestGenerationError, match="doesn't permit quest of length"):
        treasure_hunter.make({"level": 10}, options)
    assert len(environment.walkthrough(task)) == 5


def test_a_recipe_makes_an_agent_of_noisy_demonstrations(tmp_path: Path) -> None:
    recipe = TextWorldRecipe(games=2, times=2, steps=3, rows=2, vocab=320, width=32, layers=1)
    recipe.write(tmp_path / "agent")
    environment: Any = find_environment(recipe.GAMES)
    (task,) = environment.task_set("demo", 1, 0)
    careful = hunted(environment, task, 0.0, np.random.default_rng(0))
    assert [text for role, text in careful if role == "assistant"] == environment.walkthrough(task)
    (attempt,) = play(f"hf:{tmp_path / 'agent'}", recipe.GAMES, [task], out=tmp_path / "run")
    assert attempt.failure is None
    assert attempt.turns


def test_games_are_cached_by_their_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    environment: Any = find_environment(GAME)
    file = environment.file(first(environment))
    made = file.stat().st_mtime_ns
    monkeypatch.setattr(textworld, "make", None)
    again: Any = find_environment(GAME)
    assert again.file(first(again)) == file
    assert file.stat().st_mtime_ns == made
    assert not [path for path in file.parent.iterdir() if path.is_dir()], "no folder is left behind"


def test_a_file_and_a_folder_of_games(tmp_path: Path) -> None:
    environment: Any = find_environment(GAME)
    for i, task in enumerate(environment.task_set("train", 4)):
        file = environment.file(task)
        for suffix in (".z8", ".json"):
            shutil.copy(file.with_suffix(suffix), tmp_path / f"game{i}{suffix}")
    single: Any = find_environment(f"textworld:{tmp_path / 'game0.z8'}")
    assert single.make().reset(first(single), 0).text == environment.make().reset(first(environment), 0).text
    folder: Any = find_environment(f"textworld:{tmp_path}")
    other = tmp_path / "moved"
    other.mkdir()
    for name in ("game3", "game0", "game2", "game1"):
        for suffix in (".z8", ".json"):
            shutil.copy(tmp_path / (name + suffix), other)
    moved: Any = find_environment(f"textworld:{other}")
    assert folder.task_set("train", 9).hash == moved.task_set("train", 9).hash, (
        "a task set does not depend on where its files lie"
    )
    with pytest.raises(UserError, match="there is no game"):
        folder.make().reset(Task("t", {"game": "gone.z8"}), 0)
    with pytest.raises(UserError, match="neither a 'game' nor a 'seed'"):
        folder.make().reset(Task("t", {}), 0)


@pytest.mark.parametrize(
    "reply",
    [
        "save",
        "RESTORE",
        "restart",
        "quit",
        "script",
        "look then save",
        "look. save",
        "tw-trace-actions",
        "undo",
        "\x00",
        "",
        "é",
        "a" * 500,
    ],
)
def test_commands_to_the_interpreter_are_refused_and_the_game_stands_still(reply: str, tmp_path: Path) -> None:
    environment: Any = find_environment(GAME)
    task = first(environment)
    env = environment.make()
    env.reset(task, 0)
    before = sorted(path.name for path in environment.file(task).parent.iterdir())
    seen = env.step(reply)
    assert (seen.valid, seen.terminated, seen.text) == (False, False, "That is not a command of the game.")
    assert sorted(path.name for path in environment.file(task).parent.iterdir()) == before
    for command in environment.walkthrough(task):
        seen = env.step(command)
    assert seen.outcome is True


def test_many_episodes_at_once_do_not_mix(tmp_path: Path) -> None:
    environment: Any = find_environment(GAME)
    tasks = list(environment.task_set("train", 2))
    steps = {task.id: environment.walkthrough(task) for task in tasks}
    opening = {environment.make().reset(task, 0).text: steps[task.id] for task in tasks}

    def reply(messages: Any, key: int) -> str:
        route = opening[messages[1].text]
        turn = sum(m.role == "assistant" for m in messages)
        return route[turn] if key % 7 and turn < len(route) else "look"

    attempts = play(Yielding(reply, tokens=False), environment, tasks, attempts=6, out=tmp_path / "run")
    assert all(a.failure is None for a in attempts)
    assert any(a.outcome for a in attempts)
    assert sum(map(len, environment._idle.values())) == 12, "interpreters come back for the next episode"


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("textworld", "there is no game ''"),
        ("textworld:gone.z8", "there is no game 'gone.z8'"),
        ("textworld:make?roms=3", "did you mean 'rooms'"),
        ("textworld:make?rooms=0", "rooms must be a whole number from 1"),
        ("textworld:make?max_turns=x", "max_turns must be"),
    ],
)
def test_what_does_not_exist_is_refused(spec: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        find_environment(spec)


@pytest.mark.parametrize("size", [0, 30, 30_000, None])
def test_a_file_that_is_no_game_is_refused_before_the_interpreter_sees_it(tmp_path: Path, size: int | None) -> None:
    environment: Any = find_environment(GAME)
    story = environment.file(first(environment)).read_bytes()
    broken = story[:-200] + b"\x01" * 200 if size is None else story[:size]
    (tmp_path / "broken.z8").write_bytes(broken)
    bad: Any = find_environment(f"textworld:{tmp_path / 'broken.z8'}")
    with pytest.raises(UserError, match="not a whole Z-machine story"):
        bad.make().reset(first(bad), 0)
