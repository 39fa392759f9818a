"""Ask judges which step lost an attempt of a log, keep what they answered, and say what they name in successful attempts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import combinations, islice
from pathlib import Path

from ramify.base import codec
from ramify.base.errors import RamifyError, UserError
from ramify.base.ids import stable_hash
from ramify.base.waiting import wait_for
from ramify.jobs.log.answer import NOTE, InSuccesses, JudgeAgreement, Opinion, WhyJudged, WhyJudgedAll
from ramify.jobs.log.judges import LONGEST, Ask, JudgedLog, judge_of, named_by
from ramify.jobs.log.rarity import Successes, broken_rules, successes
from ramify.jobs.log.rules import violations
from ramify.jobs.log.ways import WAYS, Way
from ramify.jobs.why.attempts import asked as chosen
from ramify.jobs.why.attempts import attempts_in
from ramify.jobs.why.findings import NOTHING
from ramify.rollout.commands import commands
from ramify.score.judge import Item, Judge, Judgement, as_asked, judged
from ramify.stats.intervals import wilson
from ramify.trace.db import Run
from ramify.trace.graph import short
from ramify.trace.message import named_calls
from ramify.trace.node import Annotation, Finding
from ramify.trace.outcome import Decider, settled
from ramify.trace.view import View

MAKER = "why --judge"
"""Maker of its findings and annotations, and the kind of its journal entries."""


@dataclass(frozen=True, slots=True)
class JudgeQuestion:
    """See :func:`why_judged`. Raises UserError on a way that there is not, and without a judge."""

    judges: tuple[str, ...]
    ways: tuple[Way, ...] = ("whole",)
    successes: int = 0
    level: float = 0.05
    scorer: str | None = None

    def __post_init__(self) -> None:
        if not self.judges or not self.ways:
            raise UserError("name a judge and a way of asking it")
        for way in self.ways:
            if way not in WAYS:
                raise UserError(f"a log is judged in the ways {', '.join(WAYS)}, not {way!r}")

    def most(self, steps: Iterable[int]) -> int:
        """Questions at most, about attempts of so many steps."""
        total = 0
        for n in steps:
            each: dict[Way, int] = {"whole": 1, "steps": n, "halving": max(n - 1, 0).bit_length(), "answer": 1}
            total += sum(each[way] for way in self.ways)
        return total * len(self.judges)


def why_judged(
    path: Path | str,
    where: str = "",
    *,
    judges: Sequence[str],
    ways: Sequence[Way] = ("whole",),
    successes: int = 0,
    level: float = 0.05,
    scorer: str | None = None,
    on_question: Callable[[int], object] = lambda done: None,
) -> WhyJudged:
    """Which step of an attempt in the run at ``path`` judges name, ``where`` as for :func:`ramify.jobs.why.ask.why`.

    ``judges`` are those of :func:`ramify.score.judge.find_judge`, or models; each is asked in each of ``ways``
    (:mod:`ramify.jobs.log.judges`). They are also asked about the first ``successes`` successful attempts: the answer is
    ``step`` only where at most ``level`` of such would have a step named with as much agreement (so at 0.05 it takes 19), else
    ``opinion``. Answers are kept in the run's journal: the same call again asks nothing. The result is stored as a finding, each
    judge's answer as an annotation ``named by judge`` of the step. Raises UserError, and RamifyError where no judge could run.
    """
    question = JudgeQuestion(tuple(judges), tuple(ways), successes, level, scorer)
    with Run.open(path, write=True) as run:
        (answer,) = judged_attempts(run, settled(run, scorer), question, where, False, on_question)
        return answer


def counted(run: Run, deciding: Decider, question: JudgeQuestion, where: str, every: bool) -> tuple[int, int]:
    """(attempts, questions at most). Nothing is asked."""
    views = chosen(run, deciding, where, every)
    won = _won(run, deciding, question.successes)
    return len(views), question.most(sum(m.role == "assistant" for m in view.messages) for view in (*views, *won))


def together(answers: Sequence[WhyJudged]) -> WhyJudgedAll:
    """Answers about several attempts as one."""
    return WhyJudgedAll(tuple(answers), _agreement([entry.opinions for entry in answers]))


def judged_attempts(
    run: Run,
    deciding: Decider,
    question: JudgeQuestion,
    where: str = "",
    every: bool = False,
    on_question: Callable[[int], object] = lambda done: None,
) -> list[WhyJudged]:
    """The answer about each attempt of a run that is open for writing, stored in it; see :func:`why_judged`."""
    views = chosen(run, deciding, where, every)
    for view in views:
        if view.success:
            raise UserError("judges are asked which step lost a failed attempt, and this one succeeded")
    won = _won(run, deciding, question.successes, {view.leaf for view in views})
    asking = _Asking(run, question, on_question)
    opinions = wait_for(asking.about([*views, *won]))
    run.commit()
    if not any(entry.spoke or entry.unread for rows in opinions for entry in rows):
        raise RamifyError(f"no judge could answer, the first because {opinions[0][0].failure}")
    null, among = [_vote(rows) for rows in opinions[len(views) :]], successes(run, deciding)
    answers = [_answer(run, view, rows, null, among, question) for view, rows in zip(views, opinions, strict=False)]
    _keep(run, answers, question, asking.identity)
    return answers


def _won(run: Run, deciding: Decider, most: int, without: Set[str] = frozenset()) -> list[View]:
    """Successful attempts, of each tree in turn the first."""
    trees = sorted(run.trees(), key=lambda entry: entry.name)
    views = (view for info in trees for view in attempts_in(run, info, deciding))
    fit = (view for view in views if view.success and not view.fork and view.steps and view.leaf not in without)
    return list(islice(fit, most))


class _Asking:
    """The judges, and what they answered before."""

    def __init__(self, run: Run, question: JudgeQuestion, on_question: Callable[[int], object]) -> None:
        from ramify.engine.named import find_model

        opener = cache(find_model)
        specs = [(spec, as_asked(spec)) for spec in question.judges]
        self.judges = [(spec, way, judge_of(full, way, opener)) for spec, full in specs for way in question.ways]
        self.run, self.on_question, self.done = run, on_question, 0
        self.known = {entry.key: Judgement(**entry.payload) for entry in run.journal(MAKER)}
        self.identity = {f"{spec}, {way}": judge.identity for spec, way, judge in self.judges}

    async def about(self, views: Sequence[View]) -> list[list[Opinion]]:
        """The opinions of all judges about each attempt."""
        logs = [JudgedLog.of(view) for view in views]
        jobs = [self._opinion(log, *judge) for log in logs for judge in self.judges]
        rows = await asyncio.gather(*jobs)
        each = len(self.judges)
        return [list(rows[i * each : (i + 1) * each]) for i in range(len(views))]

    async def _opinion(self, log: JudgedLog, spec: str, way: Way, judge: Judge) -> Opinion:
        ask: Ask = partial(self._ask, judge, log.leaf)
        answer = await named_by(way, log, ask)
        step = None if answer.step is None else log.steps[answer.step]
        reason = answer.reason or "; ".join(answer.said)
        told = Opinion(spec, way, None, None, "", reason, answer.asked, answer.unread, answer.failure)
        return told if step is None else replace(told, node=step.node, step=step.step, action=step.action)

    async def _ask(self, judge: Judge, leaf: str, what: str, item: Item) -> Judgement:
        key = stable_hash(judge.identity, leaf, what)
        if key not in self.known:
            (judgement,) = await judged(judge, [item])
            self.done += 1
            self.on_question(self.done)
            if judgement.failure:
                return judgement
            kept = {"value": judgement.value, "evidence": judgement.evidence}
            self.known[key] = Judgement(**kept)
            self.run.log(MAKER, key, kept)
            self.run.commit()
        return self.known[key]


def _vote(opinions: Sequence[Opinion]) -> tuple[Opinion | None, int, int]:
    """The opinion that names the step most answers name (of several the first step), how many do, and answers in all."""
    spoke = [entry for entry in opinions if entry.spoke]
    votes = Counter(entry.node for entry in spoke if entry.node is not None)
    named = [entry for entry in spoke if entry.node is not None]
    best = min(named, key=lambda entry: (-votes[str(entry.node)], entry.step or 0), default=None)
    return best, 0 if best is None else votes[str(best.node)], len(spoke)


def _answer(
    run: Run,
    view: View,
    opinions: Sequence[Opinion],
    null: Sequence[tuple[Opinion | None, int, int]],
    among: Successes,
    question: JudgeQuestion,
) -> WhyJudged:
    best, votes, of = _vote(opinions)
    share = votes / of if of else 0.0
    known = None
    if null:
        named = [count / spoke for entry, count, spoke in null if entry is not None]
        known = InSuccesses(len(null), len(named), sum(entry >= share for entry in named))
    sure = best is not None and known is not None and known.p <= question.level
    broken = broken_rules(violations(run, view), among, question.level, view.leaf)
    rule = next((entry for entry in broken if entry.p <= question.level), None)
    told = [*opinions, Opinion("rules", "rules", rule.node, rule.step, rule.action, rule.why)] if rule else list(opinions)
    return WhyJudged(
        tree=view.info.name,
        attempt=view.leaf,
        success=bool(view.success),
        verdict="none" if best is None else "step" if sure else "opinion",
        headline=_headline(best, votes, of, opinions),
        node=None if best is None else best.node,
        action=None if best is None else best.action,
        votes=votes,
        of=of,
        opinions=tuple(told),
        agreement=_agreement([told]),
        successes=known,
        broken=broken,
        level=question.level,
        run=str(run.folder),
        commands=commands(run),
        caveats=tuple(_caveats(view, opinions)),
    )


def _headline(best: Opinion | None, votes: int, of: int, opinions: Sequence[Opinion]) -> str:
    if best is None:
        return f"No step is named: of {len(opinions)} answers {of} could be read, and none of them names one. {NOTE}."
    action = short(named_calls(best.action), 60)
    reason = f": {best.reason.rstrip('.')}" if best.reason else ""
    return f"{votes} of {of} answers name step {best.step}, `{action}`{reason}. {NOTE}."


def _caveats(view: View, opinions: Sequence[Opinion]) -> Iterable[str]:
    unread, failed = sum(entry.unread for entry in opinions), [entry.failure for entry in opinions if entry.failure]
    if unread:
        yield f"{unread} answers could not be read and name nothing"
    if failed:
        yield f"{len(failed)} judges could not run, the first because {failed[0]}; the same command asks them again"
    if cut := JudgedLog.of(view).cut:
        yield f"the judges were shown {LONGEST:,} characters of each of {cut} longer messages"


def _agreement(each: Sequence[Sequence[Opinion]]) -> tuple[JudgeAgreement, ...]:
    """Of each pair of those that were asked: how often both name the same step, over all attempts."""
    rows = [
        {f"{entry.judge}, {entry.way}" if entry.way != entry.judge else entry.judge: entry.node for entry in opinions}
        for opinions in each
    ]
    names = list(dict.fromkeys(name for row in rows for name in row))
    told = []
    for first, second in combinations(names, 2):
        both = [row[first] == row[second] for row in rows if row.get(first) and row.get(second)]
        if both:
            told.append(JudgeAgreement(first, second, sum(both), len(both), wilson(sum(both), len(both))))
    return tuple(told)


def _keep(run: Run, answers: Sequence[WhyJudged], question: JudgeQuestion, identity: dict[str, str]) -> None:
    """Store the answers as findings, those about other attempts stay, and each opinion as an annotation of its step."""
    now = {entry.attempt for entry in answers}
    others = [entry for entry in run.findings(maker=MAKER) if entry.identity.get("attempt") not in now]
    for entry in answers:
        for opinion in entry.opinions:
            if opinion.node is not None:
                value = {"judge": opinion.judge, "way": opinion.way, "reason": opinion.reason}
                run.add(Annotation(opinion.node, 0, "named by judge", f"{MAKER} {opinion.judge} {opinion.way}", value))
    run.conclude(MAKER, [*others, *(_finding(entry, question, identity) for entry in answers)])
    run.commit()


def _finding(entry: WhyJudged, question: JudgeQuestion, identity: dict[str, str]) -> Finding:
    name = {"step": "named by judges", "opinion": "a judge's opinion", "none": NOTHING}[entry.verdict]
    share = entry.votes / entry.of if entry.of else None
    identified = {"attempt": entry.attempt, "question": codec.to_json(question), "judges": identity}
    evidence = codec.to_json(entry)
    return Finding(
        name,
        MAKER,
        entry.headline,
        entry.node or entry.attempt,
        0,
        entry.commands.show,
        share,
        "share of answers",
        evidence,
        identified,
    )
