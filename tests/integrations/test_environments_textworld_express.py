"""TextWorldExpress's games, played by their own gold paths and forked by replaying."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from ramify.base.errors import UserError
from ramify.env.protocol import Task
from ramify.jobs.play import fork_run
from ramify.methods.world_model.recording import RecordOptions, record
from ramify.methods.world_model.trajectories import read_trajectories
from ramify.model.scripted import ScriptedModel
from ramify.rollout.components import find_environment
from ramify.testing import check_env
from ramify.trace.db import Run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("java") is None, reason="Java is not installed: THE textworld-express DOOR IS NOT TESTED"),
]
pytest.importorskip("textworld_express", reason="textworld-express is not installed: ITS DOOR IS NOT TESTED")

from ramify.integrations.environments.textworld_express import GAMES  # noqa: E402
from ramify.integrations.environments.walkthroughs import play_walkthroughs  # noqa: E402


@pytest.mark.parametrize("game", GAMES)
def test_a_game_is_won_by_its_gold_path(game: str) -> None:
    environment: Any = find_environment(f"textworld-express:{game}")
    (task,) = environment.task_set("eval", 1)
    episode = environment.make()
    episode.reset(task, 0)
    total = 0.0
    for command in environment.walkthrough(task):
        seen = episode.step(command)
        total += seen.reward
        if seen.terminated:
            break
    assert (seen.outcome, round(total, 6)) == (True, 1.0)
    episode.close()


def test_games_conform_and_a_fork_replays_and_continues_right(tmp_path: Path) -> None:
    name = "textworld-express:coin?numLocations=5&admissible=true"
    environment: Any = find_environment(name)
    assert check_env(environment, actions=lambda task, _: environment.walkthrough(task)[:4], tasks=1, turns=3) == []
    (task,) = environment.task_set("train", 1)
    with Run.create(tmp_path / "run", {"env": name, "model": None, "seed": 0, "sampling": {"max_tokens": 256}}) as run:
        (won,) = asyncio.run(play_walkthroughs(environment, [task], run))
    assert won.outcome is True
    model = ScriptedModel(environment.walkthrough(task), tokens=False, name="walkthrough")
    at = len(won.turns) - 1
    done = fork_run(tmp_path / "run", won.turns[at].node.id, n=2, model=model)
    assert (done.arm.successes, done.arm.scored) == (2, 2)
    assert {attempt.replayed for attempt in done.arm.attempts} == {at}


def test_what_a_game_does_not_have_is_one_sentence() -> None:
    with pytest.raises(UserError, match="no game 'chess'"):
        find_environment("textworld-express:chess")
    wrong: Any = find_environment("textworld-express:coin?numPlaces=5")
    (task,) = wrong.task_set("train", 1)
    with pytest.raises(UserError, match="numPlaces"):
        wrong.make().reset(task, 0)
    with pytest.raises(UserError, match="900 train games"):
        wrong.task_set("train", 901)
    with pytest.raises(UserError, match="names no 'seed'"):
        find_environment("textworld-express:coin").make().reset(Task("x", {}), 0)


def test_an_explorer_gives_commands_that_make_sense(tmp_path: Path) -> None:
    record(RecordOptions(env="textworld-express:coin", episodes=2, turns=5), tmp_path / "run")
    turns = [turn for game in read_trajectories(tmp_path / "run") for turn in game.turns]
    assert len(turns) == 10
    assert not [turn for turn in turns if turn.observation.startswith("Unknown action")]
