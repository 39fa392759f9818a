"""Scores of a run and the judges they depend on: what counts, what a replacement would erase,
checking and promoting a judge, scoring anew.

A slot is a name under which judges follow each other. The run's journal says who its judge is
(:meth:`ramify.trace.db.Run.replace_judge`), so nothing is rewritten when a judge is replaced, and no score is lost.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from ramify.base import codec
from ramify.base.budget import Budget
from ramify.base.errors import EXIT_DONE, EXIT_FAILED, UserError, nearest
from ramify.base.ledger import Ledger
from ramify.base.progress import SILENT, Progress
from ramify.env.protocol import Task
from ramify.methods.judge_evolution.algorithm import ChallengerRow, PromotionConfig, decide, level_of
from ramify.render.numbers import NOTHING, p_value, percent, percent_interval, points, points_interval
from ramify.render.result import Cell, Result, Section, table
from ramify.score.anchor import Anchor, JudgeQuality, answers, needed, quality
from ramify.score.judge import Item, Judge, Judgement, judged, records
from ramify.stats.intervals import Proportion
from ramify.trace.db import JUDGE, Run, counts
from ramify.trace.node import Finding, Score

CHECK, PROMOTE = "judge-evolution check", "judge-evolution promote"
LOOK = "anchor look"
"""What the journal calls one use of an anchor to choose a judge."""
EVERY = "rescore every attempt"
"""What the journal calls a slot that was without scores when its judge began."""


class Stored:
    """``stored:SCORER``: what a scorer said of the attempts of a run, as a judge of them;
    whatever verb of whatever method stored it."""

    def __init__(self, run: Run, scorer: str) -> None:
        """Raises UserError where the run holds no score of that name, or scores of several judges under it."""
        known = {one.node: one for one in run.scores(scorer=scorer)}
        if not known:
            raise UserError(
                f"{run.folder} holds no score of '{scorer}' that counts "
                f"({nearest(scorer, [name for name, _, _ in run.scorers()])})"
            )
        sets = {tuple(sorted(one.judges.items())) for one in known.values()}
        if len(sets) > 1:
            raise UserError(
                f"the scores of '{scorer}' in {run.folder} come from {len(sets)} versions of the judge: replace them by one "
                "with `promote`"
            )
        self.name, self._known = f"stored:{scorer}", known
        self.identity = "+".join(judge for _, judge in next(iter(sets))) or f"stored:{scorer}"

    async def judge(self, items: Sequence[Item]) -> list[Judgement]:
        """See :class:`ramify.score.judge.Judge`; an attempt without a score is missing."""
        found = [self._known.get(item.id) for item in items]
        return [Judgement(None if one is None or one.value is None else one.value > 0) for one in found]


@dataclass(frozen=True)
class AnchorLook:
    """One use of an anchor to choose a judge: what it is used for often it fits by luck."""

    slot: str
    anchor: str
    challengers: tuple[str, ...]
    why: str = ""
    dry_run: bool = False


@dataclass(frozen=True)
class Appointment:
    """A judge that took a slot, as the run's journal says (:meth:`ramify.trace.db.Run.replace_judge`)."""

    slot: str
    judge: str
    spec: str = ""
    """How it was named; "" where nothing is known of it."""


@dataclass(frozen=True)
class JudgeTally:
    """Scores by one judge of a slot."""

    scores: int = 0
    missing: int = 0
    mean: float | None = None
    """Of those that have a value."""
    scorers: tuple[str, ...] = ()

    def joined(self, scorer: str, n: int, given: int, total: float) -> JudgeTally:
        """With ``n`` more by ``scorer``, ``given`` of which have a value, together ``total``."""
        answered = self.scores - self.missing + given
        whole = (self.mean or 0.0) * (self.scores - self.missing) + total
        return JudgeTally(
            self.scores + n,
            self.missing + n - given,
            whole / answered if answered else None,
            tuple(sorted({*self.scorers, scorer})),
        )


@dataclass(frozen=True)
class SlotTally:
    """Scores of a slot: how many count and how many do not, by judge."""

    counting: int
    erased: int
    judges: Mapping[str, JudgeTally]
    incumbent: str | None = None
    """The judge that holds it; None where the run names none."""
    epoch: int = 0
    """How many judges have taken it."""
    spec: str = ""
    """How its judge was named."""


@dataclass(frozen=True)
class ToldFinding:
    """A finding of a verb of this method."""

    name: str
    why: str
    node: str | None


@dataclass(frozen=True)
class JudgeBoard(Result):
    """Every slot of a run, how often an anchor was looked at, and what was found."""

    slots: Mapping[str, SlotTally]
    independent: int
    """Scores that depend on no judge."""
    looks: tuple[AnchorLook, ...]
    findings: tuple[ToldFinding, ...]

    def sections(self) -> Iterable[Section]:
        """Judges by slot, sums, findings."""
        rows = [
            (
                slot,
                judge[:12],
                "incumbent" if judge == row.incumbent else "" if row.incumbent is None else "replaced",
                own.scores,
                own.missing,
                own.mean,
                ", ".join(own.scorers),
            )
            for slot, row in self.slots.items()
            for judge, own in row.judges.items()
        ]
        sums = [
            f"{slot}: {row.counting} scores count, {row.erased} do not, epoch {row.epoch}" for slot, row in self.slots.items()
        ]
        found = [f"{one.name}: {one.why}" for one in self.findings]
        last = (f"{self.independent} scores depend on no judge", f"{len(self.looks)} looks at anchors")
        yield Section.of(
            "",
            table(("slot", "judge", "", "scores", "missing", "mean", "scorer"), rows),
            "" if rows else "no score depends on a judge",
            "\n".join((*sums, *last, *found)),
        )


def board(run: Run) -> JudgeBoard:
    """Every slot of a run: its judge, how often it was replaced, how many scores count and how many do not, by judge."""
    now, history = run.incumbents(), _history(run)
    independent = 0
    counting: Counter[tuple[str, bool]] = Counter()
    judges: dict[str, dict[str, JudgeTally]] = {}
    for scorer, own, n, given, total in run.tallies():
        independent += 0 if own else n
        for slot, judge in own.items():
            counting[slot, counts(own, now)] += n
            tallies = judges.setdefault(slot, {})
            tallies[judge] = tallies.get(judge, JudgeTally()).joined(scorer, n, given, total)
    slots = {
        slot: SlotTally(
            counting[slot, True],
            counting[slot, False],
            judges.get(slot, {}),
            now.get(slot),
            len(history.get(slot, ())),
            history[slot][-1].spec if slot in history else "",
        )
        for slot in dict.fromkeys([*judges, *history])
    }
    told = [one for one in run.findings() if one.maker.startswith("judge-evolution")]
    return JudgeBoard(
        slots,
        independent,
        tuple(run.memo(LOOK, AnchorLook).values()),
        tuple(ToldFinding(one.name, one.why, one.node) for one in told),
    )


def _history(run: Run) -> dict[str, list[Appointment]]:
    known = run.incumbents()
    taken = run.memo(JUDGE, Appointment).values()
    return {slot: [one for one in taken if one.slot == slot] for slot in known}


@dataclass(frozen=True)
class Stake:
    """What another judge of a slot does: scores that stop counting, and scores that count again."""

    erased: int
    restored: int


def at_stake(run: Run, slot: str, judge: str) -> Stake:
    """What making ``judge`` the incumbent of ``slot`` does."""
    now = run.incumbents()
    then = now | {slot: judge}
    erased = back = 0
    for _, judges, n, _, _ in run.tallies():
        before, after = counts(judges, now), counts(judges, then)
        erased += n if before and not after else 0
        back += n if after and not before else 0
    return Stake(erased, back)


@dataclass(frozen=True)
class NamedAnchor:
    """An anchor, without its items."""

    name: str
    hash: str
    items: int


@dataclass(frozen=True)
class JudgeCheck(Result):
    """An incumbent and its challengers on one anchor."""

    anchor: NamedAnchor
    incumbent: JudgeQuality | None
    challengers: tuple[JudgeQuality, ...]
    comparison: tuple[ChallengerRow, ...] = ()
    """Each challenger beside the incumbent."""
    promote: bool | None = None
    """Whether one may take over; None without an incumbent."""
    winner: str | None = None
    why: str = ""
    spent: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    chosen: int | None = field(default=None, metadata={"json": False})
    """Index of the winner among the challengers."""
    strict: bool = field(default=False, metadata={"json": False})
    """Whether exit code 1 says that none may take over."""

    @property
    def exit_code(self) -> int:
        """1 of a strict one where no challenger may take over."""
        return EXIT_FAILED if self.strict and not self.promote else EXIT_DONE

    def sections(self) -> Iterable[Section]:
        """What each judge is worth, how the challengers compare, what it comes to."""
        sides = [*([self.incumbent] if self.incumbent else []), *self.challengers]
        pairs = [
            (one.judge, str(one.position.consistent or NOTHING), one.position.first, one.position.second, p_value(one.position.p))
            for one in sides
            if one.position
        ]
        rows = [
            (
                one.judge,
                row.better,
                row.worse,
                points(row.difference),
                points_interval(row.interval),
                p_value(row.p),
                p_value(row.level),
                row.belief,
            )
            for one, row in zip(self.challengers, self.comparison, strict=False)
        ]
        yield Section.of(
            "",
            table(_WORTH, map(_worth, sides)),
            table(("judge", "same in both orders", "first twice", "second twice", "p"), pairs),
            table(_BESIDE, rows),
            *self.told(),
        )

    def told(self) -> Iterable[str]:
        """What it comes to, a paragraph each."""
        if self.why:
            yield f"{'may take over' if self.promote else 'the incumbent stays'}: {self.why}"


_BESIDE = ("challenger", "alone right", "alone wrong", "difference", "95 % interval", "p", "level", "best belief")
_WORTH = (
    *("judge", "right", "accuracy", "95 % interval", "says yes to yes", "says no to no", "missing", "longer accepted", "p"),
    "machine / human",
)


def _worth(one: JudgeQuality) -> tuple[Cell, ...]:
    accuracy, length = one.accuracy, one.length
    return (
        one.judge,
        str(accuracy or NOTHING),
        _share(accuracy),
        percent_interval(None if accuracy is None else accuracy.interval),
        _share(one.sensitivity),
        _share(one.specificity),
        one.missing,
        percent(None if length is None else length.value),
        p_value(None if length is None else length.p),
        None if one.parity is None else one.parity.ratio,
    )


def _share(one: Proportion | None) -> str:
    return percent(None if one is None else one.value)


async def check(
    anchor: Anchor, challengers: Sequence[Judge], incumbent: Judge | None, config: PromotionConfig, *, repeats: int = 1,
    look: int = 1,
    ledger: Ledger | None = None, budget: Budget | None = None,
) -> JudgeCheck:  # fmt: skip
    """Put judges to an anchor; with an incumbent, decide whether one of them may take over.

    Raises UserError where the anchor is so small that no challenger could pass, whatever it answers.
    """
    if incumbent is not None and config.rule in ("mcnemar", "confirm"):
        most, least = len(anchor) // (2 if config.rule == "confirm" else 1), needed(level_of(config, len(challengers), look))
        if most < least:
            raise UserError(
                f"{anchor.name} has {most} items to test on, and the paired test of {len(challengers)} challengers at delta "
                f"{config.delta:g} needs "
                f"{least} on which a challenger alone is right: label more items"
            )
    found = [await answers(one, anchor, repeats, ledger, budget) for one in challengers]
    made = JudgeCheck(NamedAnchor(anchor.name, anchor.hash, len(anchor)), None, tuple(quality(anchor, one) for one in found))
    if incumbent is not None:
        own = await answers(incumbent, anchor, repeats, ledger, budget)
        values = np.array([one.values for one in found]).reshape(len(found), len(anchor))
        decision = decide(anchor.labels, own.values, values, config, look, anchor.first_half)
        made = replace(
            made,
            incumbent=quality(anchor, own),
            comparison=decision.rows,
            promote=decision.winner is not None,
            winner=None if decision.winner is None else found[decision.winner].judge,
            why=decision.why,
            chosen=decision.winner,
        )
    return replace(made, spent=ledger.spent if ledger else {})


def looks(run: Run, anchor: Anchor) -> int:
    """How often the run's judges were chosen on this anchor before."""
    return sum(one.anchor == anchor.hash for one in run.memo(LOOK, AnchorLook).values())


def incumbent_spec(run: Run, slot: str) -> str:
    """How the slot's judge was named when it took over; "" where nothing is known of it."""
    past = _history(run).get(slot)
    return past[-1].spec if past else ""


def known_incumbent(run: Run, slot: str, judge: Judge) -> None:
    """Raises UserError where ``judge`` is not the one that holds the slot: a changed prompt, model or source is another judge."""
    now = run.incumbents().get(slot)
    known = {one for _, judges, *_ in run.tallies() for name, one in judges.items() if name == slot} if now is None else {now}
    if known and judge.identity not in known:
        raise UserError(
            f"'{judge.name}' is not the judge of slot '{slot}' in {run.folder}: it is version {judge.identity}, the scores are "
            f"by {', '.join(sorted(known))[:80]}; a changed prompt, model or source is a new judge, which `promote` puts to the "
            "anchor"
        )


@dataclass(frozen=True, kw_only=True)
class Promotion(JudgeCheck):
    """A look at an anchor that may have replaced the judge of a slot."""

    slot: str
    look: int
    """How often the run's judges were chosen on this anchor, with this time."""
    dry_run: bool
    stake: Stake
    promoted: bool = False

    def told(self) -> Iterable[str]:
        """What is at stake, and what became of it."""
        erased, back = ("stopped counting", "count") if self.promoted else ("would stop counting", "would count")
        yield (
            f"{self.stake.erased} scores of slot '{self.slot}' {erased}, {self.stake.restored} {back} again; look {self.look} at "
            "this anchor"
        )
        yield f"{'promoted' if self.promoted else 'may take over' if self.promote else 'the incumbent stays'}: {self.why}"

    def finding(self) -> Finding:
        """What it came to, for the run."""
        what = "took over" if self.promoted else "may take over" if self.promote else "may not take over"
        who = self.challengers[0].judge if self.winner is None else self.winner
        do = f"ramify judge-evolution rescore RUN {self.slot} scores anew what stopped counting" if self.promoted else ""
        return Finding(
            f"judge of {self.slot}",
            PROMOTE,
            f"look {self.look}: {who} {what} slot '{self.slot}': {self.why}",
            action=do,
            value=float(self.stake.erased),
            unit="scores erased",
            evidence=self.to_json(),
        )


async def promote(
    run: Run, slot: str, challengers: Mapping[str, Judge], anchor: Anchor, incumbent: Judge | None, config: PromotionConfig,
    dry_run: bool = False, repeats: int = 1, ledger: Ledger | None = None,
) -> Promotion:  # fmt: skip
    """Put ``challengers`` (by their names) to the anchor against the slot's incumbent, and replace it where the rule allows.

    What it came to is a finding of the run. Without an incumbent the first challenger takes the free slot. A dry run changes no
    judge; its look at the anchor is written down all the same.
    Raises UserError as :func:`check`, and where ``incumbent`` is not the one that holds the slot.
    """
    if incumbent is not None:
        known_incumbent(run, slot, incumbent)
    look = looks(run, anchor) + 1
    checked = await check(anchor, list(challengers.values()), incumbent, config, repeats=repeats, look=look, ledger=ledger)
    at = checked.chosen if incumbent is not None else 0
    spec, judge = list(challengers.items())[at or 0]
    if incumbent is None:
        free = f"the slot has no judge to defend: '{judge.name}' takes it without a test"
        checked = replace(checked, promote=True, winner=judge.name, why=free)
    held = {one.name: getattr(checked, one.name) for one in fields(checked)}
    found = Promotion(**held, slot=slot, look=look, dry_run=dry_run, stake=at_stake(run, slot, judge.identity))
    found = replace(found, promoted=at is not None and not dry_run)
    used = AnchorLook(slot, anchor.hash, tuple(one.identity for one in found.challengers), found.why, dry_run)
    with run.transaction():
        run.log(LOOK, str(len(run.journal(LOOK)) + 1), codec.to_json(used))
        if found.promoted:
            run.replace_judge(slot, judge.identity, {"spec": spec, "name": judge.name, "anchor": anchor.hash, "why": found.why})
        run.conclude(PROMOTE, [*run.findings(maker=PROMOTE), found.finding()])
    return found


@dataclass(frozen=True)
class Rescored(Result):
    """What a slot's judge scored anew."""

    slot: str
    judge: str
    scored: int
    missing: int
    kept: int
    """Scores of its own that were there."""
    left: int
    """Scores that are still to come."""
    spent: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def sections(self) -> Iterable[Section]:
        """One sentence."""
        yield Section.of(
            "",
            f"{self.scored} scored anew by '{self.judge}', {self.missing} missing, {self.kept} were there, {self.left} left",
        )


async def rescore(
    run: Run, slot: str, judge: Judge, limit: int | None = None, ledger: Ledger | None = None, budget: Budget | None = None,
    progress: Progress = SILENT, together: int = 16,
) -> Rescored:  # fmt: skip
    """Score anew, by the slot's judge, what its earlier judges scored and it did not;
    where nothing was scored in the slot, every attempt.

    What it scored already is left as it is; missing answers are asked for again. Committed as it goes, ``together`` at a time.
    """
    known_incumbent(run, slot, judge)
    now = run.scores(counting=None)
    done = {one.node for one in now if one.judges.get(slot) == judge.identity and one.value is not None}
    scorers = {one.node: one.scorer for one in now if slot in one.judges}
    every = f"{slot} {judge.identity}"
    if not scorers:
        run.log(EVERY, every)  # committed with the first scores: there are some then, and the others are still to come
    ends = run.ends() if any(one.key == every for one in run.journal(EVERY)) else ()
    wanted = [node for node in dict.fromkeys([*scorers, *ends]) if node not in done]
    chosen = wanted if limit is None else wanted[:limit]
    tasks = {info.name: Task(str(info.task.get("id", info.name)), dict(info.task.get("data") or {})) for info in run.trees()}
    scored = missing = 0
    progress.begin(len(chosen))
    for start in range(0, len(chosen), together):
        nodes = chosen[start : start + together]
        items = []
        for node in nodes:
            path = run.path(node)
            items.append(Item.of(path, tasks[path.segments[-1][0].tree]))
        for node, one in zip(nodes, await judged(judge, items, ledger, budget), strict=True):
            (score, *_) = records(judge, node, one)
            assert isinstance(score, Score)
            run.add(replace(score, scorer=scorers.get(node, slot), judges={slot: judge.identity}))
            scored, missing = scored + (score.value is not None), missing + (score.value is None)
        run.commit()
        progress.at(start + len(nodes))
    spent = ledger.spent if ledger else {}
    return Rescored(slot, judge.name, scored, missing, len(done), len(wanted) - len(chosen), spent)


def family(name: str) -> str:
    """A model's family, from its name: the letters it begins with, without where it is served.
    ``chat:org/Qwen3-8B@URL`` is qwen."""
    plain = re.sub(r"^(judge|chat|completions|hf):", "", name.partition("#")[0])
    plain = re.sub(r"^(judge|chat|completions|hf):", "", plain).partition("@")[0].rstrip("/").rpartition("/")[2]
    found = re.match(r"[a-z]+", plain.lower())
    return found[0] if found else ""


def judges_itself(judge: str, authors: Sequence[str]) -> str:
    """A warning where a judge that is a model is of the family of one whose work it judges; "" where not."""
    if not judge.startswith("judge:"):
        return ""
    own = family(judge)
    same = next((author for author in authors if own and family(author) == own), None)
    return "" if same is None else f"'{judge}' judges the work of '{same}', a model of its own family: judges favour their kin"
