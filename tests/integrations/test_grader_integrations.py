"""The grade of implicit-advantage through every door: the scorer battery, TRL's rewards,
inspect's scorers, assertions in tests."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ramify.base.errors import UserError
from ramify.engine.checkpoints import model_folder
from ramify.engine.local import LocalModel
from ramify.engine.tiny import TinyLM
from ramify.env.protocol import Task
from ramify.integrations.pytest.assertions import assert_no_step_below
from ramify.integrations.trainers.trl_trainer import reward_function
from ramify.methods.implicit_advantage import AdvantageConfig, AdvantageScorer
from ramify.methods.implicit_advantage.grader import AdvantageGrader
from ramify.model.chat import TagTemplate
from ramify.model.pair import Pair, Side
from ramify.model.tokenizer import HfTokenizer
from ramify.score.judge import judged_path
from ramify.score.trajectories import chat_layout
from ramify.testing import check_judge
from ramify.trace.node import Score, TokenValues, make_node
from ramify.trace.path import Path as TracePath


@pytest.fixture(scope="module")
def grader() -> AdvantageGrader:
    folder = model_folder("builtin")
    tokenizer = HfTokenizer.load(folder)
    policy, reference = TinyLM.load(folder), TinyLM.load(folder)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in reference.parameters():
            weight.add_(0.02 * torch.randn(weight.shape, generator=generator))
    pair = Pair(LocalModel(policy, tokenizer), LocalModel(reference, tokenizer))
    return AdvantageGrader(pair, chat_layout(TagTemplate(tokenizer)))


def test_the_grader_is_a_judge(grader: AdvantageGrader) -> None:
    assert check_judge(grader) == []


def test_its_streams_sum_to_the_grades_of_the_steps(grader: AdvantageGrader) -> None:
    prompt = make_node("t", None, 0, "user", "ab", tokens=[5, 6])
    reply = make_node("t", prompt.id, 2, "assistant", "xyz", tokens=[7, 8, 9], sampled=[0, 1, 1], index=0)
    score, token_values = asyncio.run(judged_path(grader, TracePath.of([prompt, reply]), Task("t", {})))
    assert isinstance(score, Score)
    assert isinstance(token_values, TokenValues)
    assert score.unit == "advantage"
    assert token_values.values[0] == 0
    assert token_values.values.sum() == pytest.approx(score.value, abs=1e-5)


def test_it_rewards_completions_of_trl(grader: AdvantageGrader) -> None:
    reward = reward_function(grader)
    values = asyncio.run(reward(prompts=["go to the kitchen", "look"], completions=["look", ""]))
    assert values[0] is not None
    assert np.isfinite(values[0])
    assert values[1] == 0.0  # an empty action


def test_trls_own_ids_are_what_is_graded(grader: AdvantageGrader) -> None:
    from ramify.score.trajectories import trajectory

    reward, tokenizer = reward_function(grader), grader.template.tokenizer
    end = grader.template.stop_tokens[0]
    ids = [[*tokenizer.encode("l"), *tokenizer.encode("ook"), end], [30, 31, 40, 41, 32, end]]  # not what the text encodes to
    prompt = [{"role": "user", "content": "go"}]
    masks = [[1] * len(ids[0]), [1, 1, 0, 0, 1, 1]]
    values = asyncio.run(reward(prompts=["go", prompt], completions=["look", "x"], completion_ids=ids, env_mask=masks))
    shown = [*grader.template.render("user", "go", "")[0], *grader.template.open("assistant", "user")]
    wanted = AdvantageScorer(grader.pair).score_many(
        [
            trajectory("a", "0", [(tokenizer.encode("go"), False), (ids[0], True)]),
            trajectory("b", "1", [(shown, False), (ids[1][:2], True), (ids[1][2:4], False), (ids[1][4:], True)]),
        ]
    )
    assert values == pytest.approx([one.score for one in wanted], abs=1e-5)
    text = asyncio.run(reward(prompts=["go"], completions=["look"]))
    assert text[0] != pytest.approx(values[0], abs=1e-5)


def test_a_batch_of_rewards_opens_each_model_once(grader: AdvantageGrader) -> None:
    opened: list[str] = []

    def side(model: LocalModel, name: str) -> Side:
        def load() -> LocalModel:
            opened.append(name)
            return model

        return Side(load, name, model.tokenizer, keep=False)

    pair = Pair(*(side(one.model(), name) for one, name in ((grader.pair.policy, "p"), (grader.pair.reference, "r"))))
    lazy = AdvantageGrader(pair, grader.layout)
    prompts, completions = ["look"] * 4, ["go", "look", "a", "go"]
    values = asyncio.run(reward_function(lazy)(prompts=prompts, completions=completions))
    assert opened == ["p", "r"]
    assert pair.policy._model is None
    assert pair.reference._model is None
    assert values == pytest.approx(asyncio.run(reward_function(grader)(prompts=prompts, completions=completions)), abs=1e-5)


def test_streams_leave_out_what_is_not_graded(grader: AdvantageGrader) -> None:
    end = grader.template.stop_tokens[0]
    prompt = make_node("t", None, 0, "user", "ab", tokens=[5, 6])
    reply = make_node("t", prompt.id, 2, "assistant", "xyz", tokens=[30, 31, end], sampled=[1, 1, 1], index=0)
    bare = AdvantageGrader(grader.pair, config=AdvantageConfig(keep_special=False))
    score, token_values = asyncio.run(judged_path(bare, TracePath.of([prompt, reply]), Task("t", {})))
    assert token_values.values[2] == 0
    assert token_values.values.sum() == pytest.approx(score.value, abs=1e-5)


EVALUATION = """
import sys
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from ramify.engine.checkpoints import load_model, model_folder
from ramify.integrations.inspect.scorer import inspect_scorer
from ramify.methods.implicit_advantage.grader import AdvantageGrader
from ramify.model.pair import Pair
from ramify.score.match import ExactMatch
from ramify.score.trajectories import chat_layout

def said(text):
    return ModelOutput(model="mockllm/model", usage=ModelUsage(), choices=ModelOutput.from_content("mockllm/model", text).choices)

model, template = load_model(model_folder("builtin"))
samples = [Sample("where is the key?", target="look", metadata={"answer": "go"}), Sample("look", target="y")]
for scorer in (AdvantageGrader(Pair(model, model), chat_layout(template)), AdvantageGrader(Pair(model, model)), ExactMatch()):
    mock = get_model("mockllm/model", custom_outputs=[said("look"), said("go")])
    (log,) = eval(Task(samples, scorer=inspect_scorer(scorer)), model=mock, log_dir=sys.argv[1], display="none", max_samples=1)
    print(log.status, *(sample.scores[scorer.name].value for sample in log.samples))
"""


@pytest.mark.slow
def test_it_scores_samples_of_inspect(tmp_path: Path) -> None:
    pytest.importorskip("inspect_ai")
    done = subprocess.run([sys.executable, "-c", EVALUATION, tmp_path], capture_output=True, text=True, timeout=300)
    grades, unscored, exact = done.stdout.splitlines()
    assert grades == "success 0.0 0.0"  # a model against itself
    assert unscored == "success nan nan"  # text, and no layout for it: no zero
    assert exact == "success 1.0 0.0"


def test_no_step_below(grader: AdvantageGrader, tmp_path: Path) -> None:
    from ramify.methods.implicit_advantage.run import add_record, graders
    from ramify.score.trajectories import trajectory
    from ramify.trace.db import Run

    scored = AdvantageScorer(grader.pair).score(
        trajectory("a", "t", [([5, 6], False), ([7, 8], True), ([9], True)], actions=["x", "y"])
    )
    worst = float(scored.steps.min())
    assert_no_step_below(scored, worst)
    with Run.create(tmp_path / "run", {}) as run:
        add_record(run, scored.record(), 1, graders(grader.pair))
    assert_no_step_below(tmp_path / "run", worst)
    with pytest.raises(AssertionError, match=r"of 2 steps are graded below .* the lowest is step \d \('[xy]'\) of attempt 'a'"):
        assert_no_step_below([scored], worst + 0.01)
    with pytest.raises(UserError, match="no token aggregator 'total'"):
        assert_no_step_below(scored, worst, token="total")
    whole = scored.record()
    cut = replace(whole, steps=(replace(whole.steps[0], truncated=True, A_sum=-99.0), *whole.steps[1:]))
    assert_no_step_below(cut, worst)
    with pytest.raises(AssertionError, match="step 0"):
        assert_no_step_below(replace(cut, keep_truncated=True), worst)
    with pytest.raises(AssertionError, match="no step was graded"):
        assert_no_step_below([], 0.0)
