"""The stage that calibrates when a thinking may end: probes along stored thoughts, and the setting that they certify."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import get_args

import numpy as np
from pydantic import Field

from ramify.base.config import Config
from ramify.base.errors import InfrastructureError, UserError
from ramify.base.progress import SILENT, Progress, gathered
from ramify.base.seeds import derive_key
from ramify.methods.early_decision.record import CALIBRATE, PROBED, Study, StudyTrace
from ramify.methods.early_decision.results import RuleRow, StopCalibrated, StopSettings
from ramify.methods.early_decision.run import Cuts, cut_of
from ramify.methods.early_decision.stopping import (
    Probe,
    ProbedThought,
    RuleName,
    answer_in,
    certified,
    least_thoughts,
    measured,
)
from ramify.methods.early_decision.thinking import Thinking
from ramify.model.protocol import Completion, Sampling
from ramify.rollout.sampler import token_ids
from ramify.score.judge import Item, Jury, judged
from ramify.stats.intervals import Proportion
from ramify.trace.db import Record


class StopConfig(Config):
    """Which rule ends the thinking, and what is certified of it."""

    rule: RuleName = "consistency"
    """consistency: probes in a row agree; confidence: the model is sure of a probe's answer; budget: so much was thought"""
    alpha: float = Field(0.05, gt=0, lt=1)
    """at most so many thoughts may be stopped before their answer is final"""
    level: float = Field(0.95, gt=0.5, lt=1)
    """probability over the calibration with which that holds"""
    every: int = Field(64, ge=1)
    """tokens of thinking between two probes"""
    probe_tokens: int = Field(16, ge=1)
    """longest probe"""
    answer: str = "text"
    """what makes two answers the same: text (as a whole), regex:PATTERN (its last match), or outcome (as --label votes)"""
    held_out: float = Field(0.3, ge=0, lt=1)
    """share of the prompts that do not calibrate, on which the rule is measured"""

    def cost_estimate(self, study: Study) -> dict[str, int]:
        """Most that will be sampled."""
        probes = sum(len(places(trace, self.every)) for trace in thoughts(study))
        return {"thoughts": len(thoughts(study)), "probes": probes, "answers": probes}


def thoughts(study: Study) -> list[StudyTrace]:
    """A thought of each prompt, chosen by a hash, that came to an answer: attempts at one prompt are not independent."""
    return [trace for trace in study.prefixes(1) if trace.thinking and trace.answer is not None]


def places(trace: StudyTrace, every: int) -> range:
    """How many tokens of a trace's thinking come before each probe."""
    return range(every, len(trace.thinking), every)


def probing(thinking: Thinking, probe_tokens: int) -> Sampling:
    """Settings of a probe: the likeliest answer, cut short."""
    return Sampling(temperature=0.0, max_tokens=probe_tokens, stop_tokens=thinking.answering.stop_tokens)


def confidence_of(completion: Completion) -> float | None:
    """Geometric mean of the probabilities of a probe's tokens under the model; None where they are not known or it is empty."""
    logprobs = completion.model_logprobs
    return None if logprobs is None or not len(logprobs) else float(np.exp(np.mean(logprobs, dtype=np.float64)))


@dataclass(frozen=True)
class AnswerKeys:
    """What makes two answers the same."""

    how: str
    jury: Jury

    async def of(self, texts: Sequence[str], name: str, prompt: str) -> list[str]:
        """Each of ``texts``, answers to one prompt, as it is compared; "" where there is none, or the jury says neither yes nor
        no. Raises InfrastructureError where the jury failed."""
        if self.how != "outcome":
            return [answer_in(text, self.how) for text in texts]
        different = list(dict.fromkeys(texts))
        votes = await judged(self.jury, [Item(text, name, prompt) for text in different])
        if failure := next((vote.failure for vote in votes if vote.failure), ""):
            raise InfrastructureError("scorer", failure)
        said = {
            text: "" if vote.value is None else "yes" if vote.value is True else "no"
            for text, vote in zip(different, votes, strict=True)
        }
        return [said[text] for text in texts]


@dataclass(frozen=True)
class ProbedTrace:
    """A thought that was probed, as the journal has it; ``again``: the answer to the whole thought, sampled once more."""

    trace: str
    thought: ProbedThought
    again: str


async def calibrate(study: Study, cuts: Cuts, config: StopConfig, progress: Progress = SILENT) -> StopCalibrated:
    """Probe a thought of each prompt, sample the answer after each place, and certify the rule on the prompts that are not held
    out. Each answer is a fork of its trace; what failed is tried again by the next call.

    Raises UserError where the study's traces were sampled under a guard, which a served model does not have, where no thought
    is long enough to be probed, or where ``answer`` names nothing.
    """
    if study.config.guard != "none":
        raise UserError(f"{study.folder} was sampled under --guard {study.config.guard}, which no served model has")
    answer_in("", "text" if config.answer == "outcome" else config.answer)
    chosen = thoughts(study)
    if not any(places(trace, config.every) for trace in chosen):
        longest = max((len(trace.thinking) for trace in chosen), default=0)
        raise UserError(f"no thought can be probed: the longest has {longest} tokens; lower --every, which is {config.every}")
    answers = AnswerKeys(config.answer, cuts.jury)
    stored: dict[str, ProbedTrace] = {}

    async def probe_it(trace: StudyTrace) -> None:
        key = f"{trace.key}|{config.every}|{config.probe_tokens}|{config.answer}"
        with suppress(InfrastructureError):
            stored[trace.key] = await study.run.once_awaited(
                PROBED, key, ProbedTrace, lambda: _probed(cuts, trace, config, answers)
            )

    progress.begin(len(chosen), 0, unit="thoughts")
    await gathered([probe_it(trace) for trace in chosen], progress)
    rows = [(trace, stored[trace.key]) for trace in chosen if trace.key in stored]
    kept = [(trace, row) for trace, row in rows if row.thought.answer]
    ranked = sorted(kept, key=lambda pair: derive_key(study.config.seed, "held out", pair[0].prompt))
    apart = round(config.held_out * len(ranked))
    held, used = ([row.thought for _, row in part] for part in (ranked[:apart], ranked[apart:]))
    result = StopCalibrated.of(
        StopSettings(**config.to_json()),
        [_row(name, used, held, config.alpha, config.level) for name in get_args(RuleName)],
        len(used),
        len(held),
        least_thoughts(config.alpha, config.level),
        Proportion.of(sum(row.again != row.thought.answer for _, row in kept), len(kept)),
        {
            "prompts without a thought that came to an answer": len(study.prompts) - len(chosen),
            "samples failed": len(chosen) - len(rows),
            "answers with nothing to compare": len(rows) - len(kept),
        },
        cuts.sampler.ledger.spent,
    )
    study.conclude(CALIBRATE, result, result.chosen, config.to_json())
    return result


def _row(name: RuleName, used: Sequence[ProbedThought], held: Sequence[ProbedThought], alpha: float, level: float) -> RuleRow:
    """A rule with the setting that ``used`` certify, there and on those held out."""
    rule = certified(name, used, alpha, level)
    if rule is None:
        return RuleRow(name, None, None)
    return RuleRow(name, measured(rule, used, level), measured(rule, held, level) if held else None)


async def _probed(cuts: Cuts, trace: StudyTrace, config: StopConfig, answers: AnswerKeys) -> tuple[ProbedTrace, list[Record]]:
    """The probes of a thought and the answers after it. Raises InfrastructureError where a sample failed."""
    study, sampler, thinking = cuts.study, cuts.sampler, cuts.thinking
    prompt, settings = study.prompts[trace.prompt], probing(cuts.thinking, config.probe_tokens)
    records: list[Record] = []
    texts, probed = [trace.answer or ""], []
    stopped: list[int] = []
    for kept in places(trace, config.every):
        closed = thinking.closed(prompt.prompt_ids, trace.thinking[:kept])
        (probe,) = await sampler.sample(closed, 1, settings, (trace.key, "probe", kept))
        if probe is None:
            raise InfrastructureError("provider", sampler.first_failure)
        cut = cut_of(trace, kept, (trace.key, "stop", kept), "forced", CALIBRATE)
        (fork,), forks = await cuts.sampled(trace.prompt, cut, 1)
        records += forks
        probed.append((kept, probe))
        assert fork.answer is not None
        stopped.append(len(fork.answer.tokens))
        texts += [thinking.answer(probe).text, fork.answer.text]
    whole = cut_of(trace, len(trace.thinking), (trace.key, "stop", "anew"), trace.closed, CALIBRATE)
    (again,), forks = await cuts.sampled(trace.prompt, whole, 1)
    assert again.answer is not None
    compared = await answers.of([*texts, again.answer.text], trace.prompt, prompt.text)
    probes = tuple(
        Probe(kept, answer, confidence_of(probe), len(token_ids(probe)))
        for (kept, probe), answer in zip(probed, compared[1:-1:2], strict=True)
    )
    thought = ProbedThought(
        len(trace.thinking), compared[0], len(trace.answer_ids or ()), probes, tuple(compared[2:-1:2]), tuple(stopped)
    )
    return ProbedTrace(trace.key, thought, compared[-1]), [*records, *forks]
