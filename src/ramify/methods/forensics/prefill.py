"""Words put into the agent's mouth: a reflection before it acts,
and how likely a commitment is at each break of its reply [3.4, 4 and 10].

Both are off-policy, since the agent did not say it: a reflection that moves the rate is an upper bound of what reflecting would
do. Each has its null: a neutral sentence at the same position, and runs that did not do it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ramify.base.errors import UserError
from ramify.base.waiting import wait_for
from ramify.methods.forensics import record
from ramify.methods.forensics.experiment import ArmDetail, Reflection, TestResult, counterfactuals
from ramify.methods.forensics.found import ComparedTexts
from ramify.methods.forensics.run import Case
from ramify.methods.forensics.study import Played
from ramify.methods.forensics.words import shuffled, sides
from ramify.model.protocol import require
from ramify.rollout.fork import Arm, WantedArm, arms
from ramify.rollout.stored import task_of
from ramify.stats.drops import Counts
from ramify.stats.intervals import Proportion
from ramify.stats.ranking import auroc
from ramify.trace.node import Node
from ramify.trace.segment import sentence_offsets

NEUTRAL = "Let me continue with the next step."
"""The null of a reflection: a sentence at the same position that says nothing of the behaviour."""
FIRST = 10
"""Breaks of a reply that are looked at, as in the paper."""
_BREAK = re.compile(r"\n\s*\n")


def reflect(case: Case, name: str, sentence: str, run: Played, turn: int = 0, k: int = 50, neutral: str = NEUTRAL) -> TestResult:
    """Put a sentence before the last one of a reply, where it acts, and continue ``k`` times; the same with a neutral one.

    The test compares the rate after the sentence with that after the neutral one, among the case's tests; ``detail`` also has the
    rate without either (``unedited``). Raises NeedsError where the model cannot continue inside a message, UserError where there
    is no such reply or nothing said in it.
    """
    require(case.agent.model, ("tokens", "continue"), "a reflection inside a reply")
    node, episodes = record.reply_of(case.run, run.leaf, turn), case.episodes()
    starts = sentence_offsets(node, case.config.sentences, node.head)[:-1]
    if not starts:
        raise UserError(f"reply {turn} of the run that ends at {run.leaf} has no sentence to reflect before")
    task, _ = task_of(case.run, run.tree)
    case.progress.begin(3, 0, f"continue {k} times", "arms")

    async def counts(arm: Arm) -> Counts:
        graded = await asyncio.gather(*(case.grade("reflect", episodes, one) for one in arm.attempts))
        return Counts.of(one.behavior for one in graded)

    async def played() -> list[Counts]:
        edits = [{"append": f" {text.strip()}"} for text in (sentence, neutral)]
        said, other = (WantedArm(node.id, starts[-1], edit, start=0) for edit in edits)
        wanted = said, WantedArm(node.id, starts[-1], start=k), other
        found = []
        for arm in await arms(episodes, run.tree, task, wanted, k, "forensics reflect"):
            found.append(await counts(arm))
            case.progress.at(len(found))
        return found

    edited, unedited, other = wait_for(played())
    case.run.commit()
    (result,) = counterfactuals(other, {f"reflect {name}": edited}, kind="probe")
    assert isinstance(result.detail, ArmDetail)
    reflection = Reflection(run.leaf, turn, sentence, neutral, (unedited.k, unedited.n))
    detail = replace(result.detail, reflection=reflection)
    return case.record([replace(result, detail=detail, confounds=("off-policy: at most an upper bound",))])[0]


def commitment(
    case: Case,
    name: str,
    phrase: str,
    turn: int = 0,
    at: str = "paragraphs",
    above: float | None = None,
    neutral: str = NEUTRAL,
    most: int = 50,
) -> ComparedTexts:
    """How likely the agent is to commit itself: log p of ``phrase`` at the first :data:`FIRST` breaks of every run's reply, the
    highest of them.

    ``at``: paragraphs or sentences. It is tested whether the phrase separates runs that did it from the others (``auroc``, p by
    shuffling the sides), and so by the neutral phrase, which must not (``auroc_neutral``). ``rate``: runs above ``above``
    (climbers; default: the median of all). Raises NeedsError where the model gives no log-probs of given tokens.
    """
    model, template = case.agent.model, case.agent.template
    require(model, ("tokens", "continue"), "log-probs of a phrase inside a reply")
    if at not in ("paragraphs", "sentences"):
        raise UserError(f"breaks are at paragraphs or sentences, not at '{at}'")
    assert template is not None
    runs = sides(case, most)
    every = [run for some in runs.values() for run in some]
    ids = {text: np.asarray(template.tokenizer.encode(text), np.int32) for text in (phrase, neutral)}
    if any(not len(one) for one in ids.values()):
        raise UserError("a phrase without a token has no probability")

    def places(run: Played) -> list[np.ndarray]:
        node = record.reply_of(case.run, run.leaf, turn)
        return [case.run.path(node.id).upto(offset).tokens for offset in breaks(case, node, at)[:FIRST]]

    async def highest(run: Played, i: int) -> dict[str, float]:
        rows = [(text, np.concatenate([before, own])) for before in places(run) for text, own in ids.items()]
        scored = await model.logprobs([row for _, row in rows])
        case.progress.at(i + 1)
        found: dict[str, float] = {}
        for (text, _), one in zip(rows, scored, strict=True):
            own = float(np.sum(one.logprobs[-len(ids[text]) :], dtype=np.float64))
            found[text] = max(found.get(text, -np.inf), own)
        return found

    async def everything() -> list[dict[str, float]]:
        return [await highest(run, i) for i, run in enumerate(every)]

    case.progress.begin(len(every), 0, "score a phrase", "runs")
    found = wait_for(everything())
    did = np.array([run.behavior is True for run in every])
    values, others = (np.array([one[text] for one in found]) for text in (phrase, neutral))
    line = float(np.median(values)) if above is None else above
    p = _by_rank(values, did, case.config.seed)
    question = ComparedTexts(
        name=name,
        kind="log-prob prefill",
        question=phrase,
        above=line,
        rate=Proportion.of(int((values[did] > line).sum()), int(did.sum())),
        others=Proportion.of(int((values[~did] > line).sum()), int((~did).sum())),
        auroc=auroc(values, did),
        auroc_neutral=auroc(others, did),
        p_raw=p,
        p=p,
        p_neutral=_by_rank(others, did, case.config.seed),
        examples=(),
    )
    return record.keep_question(case.run, question)


def breaks(case: Case, node: Node, at: str) -> list[int]:
    """Token offsets of the breaks of a reply, its beginning first; of paragraphs the tokens that begin one."""
    head = node.head
    if at == "sentences":
        return sentence_offsets(node, case.config.sentences, head)[:-1] or [head]
    assert node.ends is not None
    start = int(node.ends[head - 1]) if head else 0
    ends = np.asarray(node.ends)
    found = [int(np.searchsorted(ends, one.end(), side="right")) for one in _BREAK.finditer(node.text, start)]
    return sorted({head, *(offset for offset in found if head < offset < len(node))})


def _by_rank(values: Sequence[float] | np.ndarray, did: np.ndarray, seed: int) -> float:
    """Two-sided p that the sides have the same distribution, by shuffling them over the mid-ranks of the values."""
    x = np.asarray(values, float)
    ranks = (x[:, None] > x[None, :]).sum(axis=1) + 0.5 * (x[:, None] == x[None, :]).sum(axis=1)
    return shuffled(ranks[did], ranks[~did], seed)
