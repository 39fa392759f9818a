"""Grades while the agent acts are those of the finished attempt; text judges read and fail as data."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from ramify.base.errors import InfrastructureError, UserError
from ramify.engine.checkpoints import model_folder
from ramify.engine.local import LocalModel
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.methods.implicit_advantage import AdvantageConfig, AdvantageScorer, Monitor
from ramify.methods.implicit_advantage.baselines import STYLES, read_grade, read_steps
from ramify.methods.implicit_advantage.follow import Follower
from ramify.methods.implicit_advantage.monitor import Grade
from ramify.model.pair import Pair
from ramify.model.protocol import Completion
from ramify.model.scripted import ScriptedModel
from ramify.model.tokenizer import HfTokenizer
from ramify.score.judge import Asked, Item, judged
from ramify.score.trajectories import trajectory

SHAPE = TinyConfig(vocab=50, width=32, layers=2, heads=2, kv_heads=1, head_size=16, ffn=48, context=700)


@pytest.fixture(scope="module")
def models() -> tuple[LocalModel, LocalModel]:
    return LocalModel(TinyLM(SHAPE, seed=1), name="policy"), LocalModel(TinyLM(SHAPE, seed=2), name="reference")


def test_the_monitors_grades_are_those_of_the_finished_attempt(models: tuple[LocalModel, LocalModel]) -> None:
    rng = np.random.default_rng(0)
    pieces = [(rng.integers(0, 50, n), i % 2 == 1) for i, n in enumerate((7, 3, 1, 300, 5, 0, 2, 1))]
    seen: list[Grade] = []
    monitor = Monitor(*models, on_step=seen.append)
    for tokens, is_action in pieces:
        if is_action:
            monitor.act(tokens)
        else:
            monitor.see(tokens)
    whole = AdvantageScorer(Pair(*models)).score(trajectory("a", "t", pieces))
    assert [g.value for g in seen] == pytest.approx(whole.columns["A_sum"].tolist(), abs=1e-3)
    assert seen[-1].total == pytest.approx(whole.columns["A_sum"].sum(), abs=1e-3)
    assert [g.n_tokens for g in seen] == [3, 300, 0, 1]
    assert seen == monitor.grades


def test_following_computes_each_token_once_and_equals_a_whole_pass(models: tuple[LocalModel, LocalModel]) -> None:
    row = np.random.default_rng(1).integers(0, 50, 600)
    follower, calls = Follower(models[0]), []
    run = models[0].forward.hidden

    def counted(batch, tap=None):  # type: ignore[no-untyped-def]
        calls.append(batch.used)
        return run(batch, tap)

    follower._forward = type(
        "Counted", (), {"hidden": staticmethod(counted), "__getattr__": lambda _, n: getattr(models[0].forward, n)}
    )()
    found = np.concatenate([follower.extend(row[a:b]) for a, b in ((0, 1), (1, 40), (40, 40), (40, 600))])
    (whole,) = asyncio.run(models[0].logprobs([row]))
    assert found == pytest.approx(whole.logprobs, abs=1e-4)
    assert sum(calls) == 600


def test_what_cannot_be_followed_is_refused(models: tuple[LocalModel, LocalModel]) -> None:
    with pytest.raises(UserError, match="shown nothing"):
        Monitor(*models).act([1])
    with pytest.raises(UserError, match="knows the tokens 0 to 49"):
        Follower(models[0]).extend([50])
    with pytest.raises(InfrastructureError, match="outgrows the context"):
        Follower(models[0]).extend(np.zeros(701, np.int64))


def test_what_one_model_cannot_follow_moves_neither(models: tuple[LocalModel, LocalModel]) -> None:
    small = TinyConfig(vocab=30, width=32, layers=2, heads=2, kv_heads=1, head_size=16, ffn=48, context=64)
    monitor = Monitor(models[0], LocalModel(TinyLM(small, seed=2)))
    monitor.see([1, 2, 3])
    with pytest.raises(UserError, match="knows the tokens 0 to 29"):
        monitor.act([35])
    assert [follower.length for follower in monitor._followers] == [3, 3]
    assert np.isfinite(monitor.act([4]).value)


def test_a_grade_is_a_number_or_an_error(models: tuple[LocalModel, LocalModel]) -> None:
    broken = TinyLM(SHAPE, seed=3)
    with torch.no_grad():
        broken.state_dict()["model.norm.weight"].fill_(float("nan"))
    monitor = Monitor(models[0], LocalModel(broken))
    monitor.see([1, 2])
    with pytest.raises(UserError, match=r"token 0 \(id 3, step 0\) has the log-prob nan under the reference"):
        monitor.act([3, 4])
    assert monitor.grades == []
    for options in ({"max_length": 100}, {"keep_truncated": True}):
        with pytest.raises(UserError, match="never cuts"):
            Monitor(*models, config=AdvantageConfig(**options))


def test_a_monitor_leaves_special_tokens_out_where_asked() -> None:
    tokenizer = HfTokenizer.load(model_folder("builtin"))
    policy, reference = (LocalModel(TinyLM.load(model_folder("builtin")), tokenizer) for _ in range(2))
    with torch.no_grad():
        for weight in reference.module.parameters():
            weight.mul_(1.02)
    reference.refresh()
    end = max(Pair(policy, reference).special)
    grades = []
    for keep, action in ((True, [30, 31]), (False, [30, 31, end]), (True, [30, 31, end])):
        monitor = Monitor(policy, reference, config=AdvantageConfig(keep_special=keep))
        monitor.see([5, 6])
        grades.append(monitor.act(action))
    assert grades[0].value == pytest.approx(grades[1].value, abs=1e-5)
    assert [grade.n_tokens for grade in grades] == [2, 2, 3]
    assert grades[2].value != pytest.approx(grades[1].value, abs=1e-5)


def test_a_judges_reply_is_read_from_its_end() -> None:
    assert read_grade("Score: 3 was my first thought. Score: 7.5") == 0.75
    for silent in ("it went well", "Score: 30"):
        with pytest.raises(ValueError, match="holds no score"):
            read_grade(silent)
    four, two = ([Item(data={"steps": steps})] for steps in (4, 2))
    assert read_steps(r"a \boxed{correct} b \boxed{Correct} c \boxed{incorrect}", four) == 0.5
    assert read_steps(r"\boxed{correct}" * 2, two) == 1.0
    with pytest.raises(ValueError, match="holds no verdict"):
        read_steps("fine", two)


def test_a_judge_that_says_nothing_leaves_an_attempt_unscored() -> None:
    replies = {"good": "Score: 9", "bad": "no idea"}

    def reply(text: str) -> str:
        return next(said for name, said in replies.items() if f"the {name} one" in text)

    asked = Asked(_Judge(reply), None, STYLES["grade"], "j")
    good, bad = asyncio.run(judged(asked, [Item("the good one", "a"), Item("the bad one", "b")]))
    assert (good.value, good.failure, good.cost) == (0.9, "", {"calls": 1, "tokens": 0})
    assert (bad.value, bad.failure) == (None, "the judge's reply holds no score")


class _Judge(ScriptedModel):
    def __init__(self, reply) -> None:  # type: ignore[no-untyped-def]
        self.reply = reply

    async def sample(self, prefix, n, settings, keys):  # type: ignore[no-untyped-def]
        return [Completion(self.reply(prefix.messages[0].text), "eos")]


@pytest.mark.slow
def test_a_reward_head_scores_and_a_bare_model_is_refused(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForSequenceClassification

    from ramify.base.errors import NeedsError
    from ramify.methods.implicit_advantage.reward_head import head_scores

    tokenizer = HfTokenizer.load(model_folder("builtin"))
    shape = {"vocab_size": tokenizer.size, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    shape |= {"num_attention_heads": 1, "num_key_value_heads": 1, "pad_token_id": 0}
    for labels in (1, 5):
        LlamaForSequenceClassification(LlamaConfig(**shape, num_labels=labels)).save_pretrained(tmp_path)
        (tmp_path / "tokenizer.json").write_text(tokenizer.to_json())
        scores = head_scores(tmp_path, ["go to the kitchen", "look"])
        assert len(set(scores)) == 2
        if labels == 5:
            assert all(0 <= score <= 4 for score in scores)
    with pytest.raises(NeedsError, match="not a reward model"):
        head_scores(model_folder("builtin"), ["x"])
