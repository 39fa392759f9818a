"""What is compared is sampled in turns, so that what changes at a server meanwhile changes for all of it alike: the order in
which requests reach a real server that answers one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ramify
from ramify.base.errors import NeedsError
from ramify.jobs.helped import helped
from ramify.jobs.play import fork_run
from ramify.model.endpoint import HttpModel
from ramify.model.protocol import Prefix, Sampling
from ramify.model.scripted import ScriptedModel
from ramify.rollout.fork import compare
from ramify.rollout.potential import Fixed, potential
from ramify.rollout.sampler import Sampler
from ramify.rollout.steps import StepForks, step_trace
from ramify.rollout.stored import open_episodes
from ramify.trace.db import Run
from tests.halls import Halls, agent, talker
from tests.model.model_server import ModelServer, serving

Endpoint = tuple[ModelServer, str]


@pytest.fixture
def chat() -> Iterator[Endpoint]:
    """An agent behind a server that gets its requests one after the other."""
    server = ModelServer(chat=talker())
    with serving(server.app) as url:
        yield server, f"chat:tiny@{url}?concurrent=1"


def played(model: str, out: Path) -> ramify.Attempt:
    """An attempt that was lost."""
    attempts = ramify.play(model, Halls(), list(Halls().task_set("t", 1)), attempts=24, out=out)
    return next(attempt for attempt in attempts if attempt.outcome is False)


def asked(server: ModelServer) -> list[list[str]]:
    """The texts of each request's messages, but for those that find out what the server can do."""
    rows = [[message["content"] for message in body["messages"]] for body in server.log]
    return [row for row in rows if any(text.startswith("hall") for text in row)]


def test_the_arms_of_a_fork_take_turns(chat: Endpoint, tmp_path: Path) -> None:
    server, model = chat
    lost = played(model, tmp_path / "run")
    first = lost.turns[0].node.id
    server.log.clear()
    made = fork_run(tmp_path / "run", first, n=6, edit={"rule": {"add": "Go left."}}, model=model, env=Halls())
    assert made.control is not None
    assert (made.arm.scored, made.control.scored) == (6, 6)
    opening = ["Go left." in " ".join(texts) for texts in asked(server) if "door 1" not in texts]
    assert opening == [True, False] * 6


def test_a_fork_inside_a_message_of_text_says_what_it_needs_of_the_model(chat: Endpoint, tmp_path: Path) -> None:
    _, model = chat
    lost = played(model, tmp_path / "run")
    with pytest.raises(NeedsError, match="a fork inside a message needs a model with continue"):
        fork_run(tmp_path / "run", lost.turns[0].node.id, 3, model=model, env=Halls())


def test_several_edits_and_their_control_take_turns(chat: Endpoint, tmp_path: Path) -> None:
    server, model = chat
    lost = played(model, tmp_path / "run")
    node = lost.turns[0].node
    edits = {name: {"rule": {"add": f"Go {name}."}} for name in ("left", "right")}
    server.log.clear()
    with open_episodes(tmp_path / "run", node, model, Halls()) as (episodes, task):
        forks, rows = asyncio.run(compare(episodes, node.tree, task, node.id, edits, n=4))
    assert [fork.arm.scored for fork in forks] == [4, 4]
    assert [row.n for row in rows] == [4, 4]
    opening = [" ".join(texts) for texts in asked(server) if "door 1" not in texts]
    arms = ["left" if "Go left." in text else "right" if "Go right." in text else "as it was" for text in opening]
    assert arms == ["left", "as it was", "right"] * 4


def test_positions_that_are_compared_take_turns(chat: Endpoint, tmp_path: Path) -> None:
    server, model = chat
    lost = played(model, tmp_path / "run")
    server.log.clear()
    with open_episodes(tmp_path / "run", lost.turns[0].node, model, Halls()) as (episodes, _):
        trace = step_trace(episodes, lost)
        counts, _ = asyncio.run(potential(StepForks(episodes), trace, [0, 1, 2], Fixed(5), "turns"))
    assert [counts[t].n for t in range(3)] == [5, 5, 5]
    depth = [len(texts) for texts in asked(server)][:15]
    assert depth == [1, 3, 5] * 5


def test_forks_inside_a_reply_take_turns_and_those_of_a_local_model_go_together(tmp_path: Path) -> None:
    server = ModelServer(tokens=agent())
    with serving(server.app) as url:
        there = ScriptedModel(["left"])
        model = HttpModel(f"{url}?concurrent=1", "tiny", "completions", tokenizer=there.tokenizer)
        sampler, rows = Sampler(model), [there.tokenizer.encode(text) for text in ("one", "four")]
        assert model.capabilities
        server.log.clear()

        async def both() -> None:
            prefixes = [Prefix(np.array(row, np.int32)) for row in rows]
            await asyncio.gather(
                *(sampler.sample(prefix, 4, Sampling(max_tokens=2), (str(t),)) for t, prefix in enumerate(prefixes))
            )

        asyncio.run(both())
    assert [len(body["prompt"]) for body in server.log] == [3, 4] * 4


def test_what_would_have_helped_takes_turns_with_what_was_done(chat: Endpoint, tmp_path: Path) -> None:
    server, model = chat
    played(model, tmp_path / "run")
    why = ramify.why(tmp_path / "run", n=24, model=model, env=Halls())
    assert why.node is not None
    server.log.clear()
    (done,) = helped(tmp_path / "run", why, ["context=" + str(rule(tmp_path))], n=5, model=model, env=Halls())
    assert (done.changed.n, done.control.n) == (5, 5)
    with Run.open(tmp_path / "run") as run:
        at = len(run.path(why.node)) - 1
    opening = ["Go left." in " ".join(texts) for texts in asked(server) if len([t for t in texts if t != "Go left."]) == at]
    assert opening == [True, False] * 5


def rule(folder: Path) -> Path:
    """An edit that adds a rule."""
    file = folder / "rule.json"
    file.write_text('{"rule": {"add": "Go left."}}')
    return file
