"""Episodes in lock step: tokens, marks and log-probs are those of the model, and no episode depends on its neighbours."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ramify.base.errors import UserError
from ramify.engine.forward import TinyForward
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.env.builtin.desk import DeskEnvironment, demonstrate
from ramify.model.chat import TagTemplate, train_tokenizer
from ramify.train.batch import collate
from ramify.train.loop import token_logprobs
from ramify_experiments.lockstep import Episode, play

ENVIRONMENT = DeskEnvironment()
TASKS = list(ENVIRONMENT.task_set("train", 4))


@pytest.fixture(scope="module")
def setting() -> tuple[TinyLM, TagTemplate]:
    texts = [text for t in TASKS for pair in demonstrate(t, 0, np.random.default_rng(0), 0.5, 0.2) for text in pair]
    template = TagTemplate(train_tokenizer(texts, 300))
    shape = TinyConfig(
        vocab=template.tokenizer.size, width=32, layers=2, heads=2, kv_heads=1, head_size=16, ffn=48, eos=template.stop_tokens
    )
    return TinyLM(shape), template


def test_tokens_marks_and_logprobs(setting: tuple[TinyLM, TagTemplate]) -> None:
    model, template = setting
    episodes = play(TinyForward(model), template, ENVIRONMENT, TASKS, range(4), max_reply=4)
    with torch.no_grad():
        again = token_logprobs(model, collate([e.row() for e in episodes])).numpy()
    for e, found in zip(episodes, again, strict=True):
        assert len(e.tokens) == len(e.turn) == len(e.logprobs)
        np.testing.assert_allclose(e.logprobs, found[: len(e.tokens)], atol=1e-4)
        sampled = [[t for t, turn in zip(e.tokens, e.turn, strict=True) if turn == i] for i in range(len(e.replies))]
        assert [template.tokenizer.decode([t for t in d if t not in template.stop_tokens]) for d in sampled] == e.replies
        assert all(1 <= len(d) <= 4 for d in sampled)
        # what is between the samples is what the environment showed, laid out by the template
        env = ENVIRONMENT.make()
        seen = [env.reset(e.task, e.key).text, *(env.step(reply).text for reply in e.replies)]
        shown = [t for t, turn in zip(e.tokens, e.turn, strict=True) if turn < 0]
        layout = [t for text in seen[: len(e.replies)] for t in (*template.render("user", text)[0], *template.open("assistant"))]
        ends = set(template.stop_tokens)
        assert [t for t in shown if t not in ends] == [t for t in layout if t not in ends]


def test_an_episode_does_not_depend_on_its_neighbours(setting: tuple[TinyLM, TagTemplate]) -> None:
    model, template = setting
    forward = TinyForward(model)

    def texts(episodes: list[Episode]) -> list[list[str]]:
        return [e.replies for e in episodes]

    together = texts(play(forward, template, ENVIRONMENT, TASKS, range(4), max_reply=4))
    assert texts(play(forward, template, ENVIRONMENT, TASKS, range(4), max_reply=4, rows=2)) == together
    assert texts(play(forward, template, ENVIRONMENT, TASKS[2:], range(2, 4), max_reply=4)) == together[2:]
    assert texts(play(forward, template, ENVIRONMENT, TASKS, range(6, 10), max_reply=4)) != together


def test_mistakes(setting: tuple[TinyLM, TagTemplate]) -> None:
    model, template = setting
    with pytest.raises(UserError, match="4 episodes need as many keys; 2 were given"):
        play(TinyForward(model), template, ENVIRONMENT, TASKS, [0, 1])
    short = TinyLM(TinyConfig(vocab=template.tokenizer.size, width=32, heads=2, kv_heads=1, head_size=16, ffn=48, context=12))
    with pytest.raises(UserError, match="longer than the model's context of 12 tokens"):
        play(TinyForward(short), template, ENVIRONMENT, TASKS, range(4))
