"""At which tokens of a step another one leads elsewhere: the search on outcomes of known chance, what real servers name beside a
token, and runs of an agent whose forks are known."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import halls
import pytest

import ramify
from ramify.base import codec
from ramify.base.errors import NeedsError, UserError
from ramify.env.protocol import Observation, Task
from ramify.jobs.tokens.answer import WhyTokens
from ramify.jobs.tokens.ask import MAKER, ODDS, why_tokens
from ramify.jobs.tokens.search import OtherToken, SearchedTokens, TokenSearch
from ramify.model.scripted import ScriptedModel
from ramify.model.wire import next_alternatives
from ramify.rollout.commands import Commands
from ramify.trace.db import Run
from ramify.trace.message import Message
from ramify.web.drawn import drawn
from ramify.web.outline import outline
from ramify.web.steps import read_tree

REPLIES = {"red, so left": 0.57, "red, so right": 0.03, "blue, so left": 0.02, "blue, so right": 0.38}
"""The colour decides the door, nine times in ten and more."""
EVEN = {f"{colour}, so {door}": 0.5 * share for colour in ("red", "blue") for door, share in (("left", 0.9), ("right", 0.1))}
"""It does not."""


class Painter(ScriptedModel):
    """Says one of ``replies``, and names the likeliest next characters as an endpoint does."""

    def __init__(self, replies: dict[str, float]) -> None:
        self.weights = replies
        super().__init__(self._said)

    def _said(self, messages: Sequence[Message], key: int) -> str:
        begun = messages[-1].text if messages[-1].role == "assistant" else ""
        left = {text: weight for text, weight in self.weights.items() if text.startswith(begun)}
        return random.Random(key).choices([*left], [*left.values()])[0] if left else begun

    async def next_tokens(self, given: Sequence[int], top: int) -> dict[int, float]:
        text = self.tokenizer.decode(list(given)).rpartition("<|assistant|>")[2]
        left = {reply: weight for reply, weight in self.weights.items() if reply.startswith(text) and reply != text}
        chances: dict[int, float] = {}
        for reply, weight in left.items():
            (token,) = self.tokenizer.encode(reply[len(text)])
            chances[token] = chances.get(token, 0.0) + weight / sum(left.values())
        return dict(sorted(chances.items(), key=lambda pair: -pair[1])[:top])


class OneDoor(halls.Stateless):
    """One reply; left is right."""

    def reset(self, task: Task, seed: int) -> Observation:
        return Observation("Which door?")

    def step(self, action: str) -> Observation:
        won = "left" in action
        return Observation("end", float(won), True, outcome=won)


def played(folder: Path, replies: dict[str, float], said: str) -> tuple[Path, str]:
    """A run of the painter, and one of its replies that says ``said``."""
    ramify.play(Painter(replies), OneDoor, [{"id": "door"}], attempts=12, out=folder / "run")
    with Run.open(folder / "run") as run:
        nodes = run.tree("door").nodes.values()
    return folder / "run", next(node.id for node in nodes if node.role == "assistant" and node.text == said)


def test_forks_are_named_with_their_odds_and_load_again(tmp_path: Path) -> None:
    folder, node = played(tmp_path, REPLIES, "red, so left")
    asked: list[int] = []
    answer = why_tokens(folder, node, target="says:left", model=Painter(REPLIES), env=OneDoor, on_sample=asked.append)
    assert [(entry.before, entry.token, entry.instead) for entry in answer.forks] == [("", "r", "b"), ("red, so", "l", "r")]
    first, second = answer.forks
    assert (round(first.odds, 2), round(first.instead_odds, 2), round(second.instead_odds, 2)) == (0.6, 0.4, 0.05)
    assert first.kept.k > first.changed.k
    assert first.confirmed
    assert answer.verdict == "tokens"
    assert "'b' (40%)" in answer.headline
    assert asked[-1] == answer.samples
    with Run.open(folder) as run:
        assert [codec.from_json(WhyTokens, finding.evidence) for finding in run.findings(maker=MAKER)] == [answer]
        before = len(run.journal(MAKER))
        (marked, _) = run.annotations(tree="door", name=ODDS)
        assert marked.value[0]["named"] is True
    again = why_tokens(folder, node, target="says:left", model=Painter(REPLIES), env=OneDoor)
    assert again == answer
    with Run.open(folder) as run:
        assert len(run.journal(MAKER)) == before  # nothing was sampled again


def test_the_page_has_the_odds_of_the_tokens(tmp_path: Path) -> None:
    folder, node = played(tmp_path, REPLIES, "red, so left")
    why_tokens(folder, node, target="says:left", model=Painter(REPLIES), env=OneDoor)
    with Run.open(folder) as run:
        tree = read_tree(run, "door")
        choices = drawn(run, tree, outline(run, tree), {}).choices
    (odds,) = [choice.inside.odds for choice in choices if choice.inside is not None and choice.inside.odds]
    assert [(text, p, named) for _, text, p, _, _, named in odds] == [("'b'", 0.4, True), ("'r'", 0.05, True)]


def test_the_outcome_is_counted_by_playing_forks_on(tmp_path: Path) -> None:
    folder, node = played(tmp_path, REPLIES, "blue, so right")
    answer = why_tokens(folder, node, outcome=True, model=Painter(REPLIES), env=OneDoor)
    assert answer.measured == "outcome"
    assert answer.target == "failure"
    assert "the attempt fails" in answer.headline
    assert [(entry.token, entry.instead) for entry in answer.forks] == [("b", "r"), ("r", "l")]
    with Run.open(folder) as run:
        purposes = {record.purpose for record in run.attempts(tree="door")}
    assert f"{MAKER} confirm" in purposes


def test_a_token_that_decides_nothing_is_no_fork(tmp_path: Path) -> None:
    folder, node = played(tmp_path, EVEN, "red, so left")
    answer = why_tokens(folder, node, target="says:left", model=Painter(EVEN), env=OneDoor)
    assert [(entry.token, entry.instead) for entry in answer.forks] == [("l", "r")]  # the door itself, not the colour
    none = why_tokens(folder, node, target="says:so", model=Painter(EVEN), env=OneDoor)
    assert none.verdict == "none"
    assert none.forks == ()
    assert none.headline.startswith("No token stands out")
    assert len(none.tried) == none.known == 2


def test_what_cannot_be_asked_is_refused(tmp_path: Path) -> None:
    folder, node = played(tmp_path, REPLIES, "red, so left")
    with pytest.raises(UserError, match="--samples is at least 1"):
        why_tokens(folder, node, samples=0, model=Painter(REPLIES), env=OneDoor)
    with pytest.raises(NeedsError, match="has no alternatives"):  # a model that names no other tokens
        why_tokens(folder, node, model=halls.agent(), env=OneDoor)
    with pytest.raises(NeedsError, match="a fork inside a reply needs a model with continue"):
        why_tokens(folder, node, model=halls.talker(), env=OneDoor)
    ramify.play(halls.talker(), halls.Halls(), [{"id": "t"}], attempts=1, out=tmp_path / "text")
    with Run.open(tmp_path / "text") as run:
        reply = next(node.id for node in run.tree("t").nodes.values() if node.role == "assistant")
    with pytest.raises(UserError, match="is text alone"):
        why_tokens(tmp_path / "text", reply, model=Painter(REPLIES), env=halls.Halls())


def searched(seed: int, chance: Any, **settings: Any) -> SearchedTokens:
    """A search over 20 other tokens of 10 positions; ``chance(t, token)`` is that of coming out as recorded."""
    rng = random.Random(seed)
    others = [OtherToken(t, token, 0.3 / (1 + token)) for t in range(10) for token in range(2)]

    async def sample(t: int, token: int | None, purpose: str, index: int) -> bool | None:
        p = chance(t, token)
        return None if p is None else rng.random() < p

    return asyncio.run(TokenSearch(others, sample, **settings).run())


def named(found: SearchedTokens) -> list[tuple[int, int]]:
    return [(entry.other.t, entry.other.token) for entry in found.tried if entry.named]


def test_the_search_names_what_leads_elsewhere_and_nothing_else() -> None:
    for seed in range(5):
        result = searched(seed, lambda t, token: 0.05 if (t, token) in ((3, 0), (7, 1)) else 0.95)
        assert named(result) == [(3, 0), (7, 1)]
        assert result.screened < result.samples <= 300


def test_a_coin_names_at_most_the_level() -> None:
    false = sum(bool(named(searched(seed, lambda t, token: 0.5))) for seed in range(40))
    assert false <= 6  # of 40 at a level of 0.05: more has a chance of 0.003


def test_an_agent_that_always_continues_alike_is_asked_once() -> None:
    result = searched(0, lambda t, token: float((t, token) != (4, 1)), exact=True)
    assert named(result) == [(4, 1)]
    assert result.samples == 30  # 20 other tokens and their 10 positions


def test_failed_samples_count_for_nothing_and_end() -> None:
    result = searched(0, lambda t, token: None)
    assert result.failed == result.samples
    assert named(result) == []
    some = searched(1, lambda t, token: None if token is None and t == 3 else 0.9)
    assert named(some) == []


@pytest.mark.parametrize(("server", "likeliest"), [("llamacpp", 504), ("vllm", 504)])
def test_tokens_that_real_servers_name_are_read(server: str, likeliest: int) -> None:
    file = Path(__file__).parents[1] / "fixtures" / f"served_{server}.json"
    choice = json.loads(json.loads(file.read_text(encoding="utf-8"))["answers"]["completion"]["body"])["choices"][0]
    read = next_alternatives(choice, None, 49152, "host")
    assert list(read) == [likeliest]
    assert 0.9 < read[likeliest] < 0.92
    assert next_alternatives({"logprobs": {"top_logprobs": [{"a": -0.1, "b": -2.3}]}}, {"a": 1, "b": 2}, 9, "host").keys() == {
        1,
        2,
    }
    assert next_alternatives({"logprobs": None}, None, 9, "host") == {}


def test_the_result_says_how_it_was_counted(tmp_path: Path) -> None:
    folder, node = played(tmp_path, REPLIES, "red, so left")
    answer = why_tokens(folder, node, target="says:left", samples=40, model=Painter(REPLIES), env=OneDoor)
    assert isinstance(answer, WhyTokens)
    text = str(answer)
    assert "at most 0.05" in text
    assert f"ramify show {folder} --web" in text
    assert "ramify fork" not in text  # the agent is an object, which no command could name
    named = replace(answer, commands=Commands("two words", options=" --env E"))
    assert f"`ramify fork 'two words' {node[:12]}:{answer.forks[0].offset} --n 32 --env E`" in str(named)
