"""What the verbs found, and the sentences that say whether it stands out. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import Any

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.base.words import plural
from ramify.methods.crosscoder.record import (
    Confirmed,
    DictionaryAbout,
    ListedFeature,
    OwnFeatures,
    Quality,
    SteeringOutcome,
)
from ramify.methods.crosscoder.settings import MOSTLY, OWN, SteerOptions
from ramify.render.numbers import number, p_value, percent, points, points_interval
from ramify.render.result import CALL, Cell, CurveLine, Curves, Grid, Result, Section, numbers, table
from ramify.trace.connect import holds_run
from ramify.trace.db import Run
from ramify.trace.node import Finding

KIND = "crosscoder steer"
"""Of the run, and the verb that keeps its study there."""
SHOWN = 20
"""Cells of a search that a reader sees, the best."""


@dataclass(frozen=True)
class CapturedStates(Result):
    """Hidden states that were kept."""

    rows: int
    tool: int
    """Of them in the corpus of interest."""
    plain: int
    texts: int
    """Prompts and texts that they are of."""
    width: int
    out: str

    def sections(self) -> Iterable[Section]:
        """The numbers."""
        counts: dict[str, Cell] = {"rows": self.rows, "tool": self.tool, "plain": self.plain, "texts": self.texts}
        counts |= {"width": self.width}
        yield Section.of("", numbers(counts | {"out": self.out}))


@dataclass(frozen=True)
class TrainedDictionary(OwnFeatures, Quality, Result):
    """A dictionary that was trained, and what is the tuned model's own in it."""

    dead: float
    difference: float
    """Variance of the models' difference over that of the tuned model's states."""
    base_against_base: OwnFeatures | None
    """The same of the base against itself; None without the control."""
    verdict: str
    out: str

    def sections(self) -> Iterable[Section]:
        """The numbers, and the verdict."""
        shown: dict[str, Cell] = {
            "variance explained (fve)": _listed(self.fve),
            "cosine": _listed(self.cosine),
            "active features a row (l0)": _named(self.l0),
            "dead": percent(self.dead),
            "never": percent(self.never),
            "difference": percent(self.difference),
            "own": _listed(self.own),
            "mostly own": _listed(self.mostly),
            "tested": self.tested,
            "highest_d": self.highest_d,
        }
        if self.base_against_base is not None:
            same = {"l0": _named(self.base_against_base.l0), "mostly own": _listed(self.base_against_base.mostly)}
            same |= {"highest_d": number(self.base_against_base.highest_d)}
            shown |= {f"base against base: {name}": value for name, value in same.items()}
        yield Section.of("", self.verdict, numbers(shown | {"out": self.out}))


def _listed(values: Sequence[float]) -> str:
    return ", ".join(map(number, values))


def _named(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in values.items())


@dataclass(frozen=True)
class FeatureRanking(Result):
    """Features in the order in which they separate the corpora."""

    tool_signed: int
    own: tuple[int, ...]
    mostly: tuple[int, ...]
    """Features of which most is the tuned model's own."""
    verdict: str
    features: tuple[ListedFeature, ...]
    top: int = field(default=SHOWN, metadata={"json": False})
    """Rows that a reader sees."""

    def sections(self) -> Iterable[Section]:
        """The verdict and the first features."""
        counted = f"higher on the tool corpus: {plural(self.tool_signed, 'feature')}, {len(self.features)} listed"
        rows = [astuple(one) for one in self.features[: self.top]]
        yield Section.of("", f"{self.verdict}\n{counted}", table([one.name for one in fields(ListedFeature)], rows))


@dataclass(frozen=True)
class WrittenVectors(Result):
    """Directions and steering vectors that were written."""

    out: str
    features: tuple[int, ...]

    def sections(self) -> Iterable[Section]:
        """Where."""
        yield Section.of("", f"wrote {self.out}")


@dataclass(frozen=True)
class Windows:
    """Mean scores after so many tokens, of both models: clean, reconstructed (spillover is the base's over its clean one) and, of
    the one that is steered, steered."""

    budgets: tuple[int, ...]
    scores: Mapping[str, tuple[float, ...]]

    def parts(self) -> tuple[Grid, Curves]:
        """As a table and as a picture."""
        named = sorted(self.scores, key=lambda name: (name.startswith("base"), name))
        rows = [(name, *map(percent, self.scores[name])) for name in named]
        lines = tuple(CurveLine(name, self.budgets, self.scores[name]) for name in named)
        return table(("", *map(str, self.budgets)), rows), Curves("Score after so many tokens", "tokens", "score", lines)


@dataclass(frozen=True)
class SteeringStudy(Result):
    """What ``ramify crosscoder steer`` found: the search, the confirmation with its controls, the windows."""

    about: DictionaryAbout
    options: SteerOptions
    partition: Mapping[str, int]
    search: tuple[SteeringOutcome, ...]
    chosen: str
    confirmed: tuple[SteeringOutcome, ...]
    sets: tuple[Confirmed, ...]
    windows: Windows
    verdict: str
    spent: Mapping[str, Any] = field(default_factory=dict, metadata=CALL)
    """What the judges of this call cost."""

    def finding(self) -> Finding:
        """The verdict as the run's finding."""
        evidence = codec.to_json({"chosen": self.chosen, "confirmed": self.confirmed, "sets": self.sets})
        lift = self.confirmed[0].lift
        return Finding("steering", KIND, self.verdict, None, 0, "", lift, "score", evidence, self.options.to_json())

    def sections(self) -> Iterable[Section]:
        """The report."""
        about, chosen = self.about, self.confirmed[0]
        chose = (
            f"Chosen on {plural(self.search[0].n, 'prompt')} out of {plural(len(self.search), 'cell')}: "
            f"{self.chosen} of model {self.options.target}."
        )
        came = (
            f"On {plural(chosen.n, 'other prompt')}, scored by {self.options.score}, the score goes from "
            f"{percent(chosen.score - chosen.lift)} to {percent(chosen.score)} ({_lift(chosen)}; {chosen.rescued} rescued, "
            f"{chosen.broken} broken, p = {p_value(chosen.p)})."
        )
        fires = (
            f"{'A feature' if self.sets else 'The feature'} fires on {percent(chosen.coverage)} of them; the change is "
            f"{chosen.size:.2f} times as long as the state."
        )
        randoms = [one for one in self.confirmed if one.is_random]
        above = sum(one.score >= chosen.score for one in randoms)
        kind = "sets" if self.sets else "directions"
        as_well = f"{above} of {len(randoms)} random {kind} of the same length do as well." if randoms else ""
        title = f"Steering {about.tuned} (a) and {about.base} (b) after block {about.layer}"
        yield Section.of(title, self.verdict, "\n".join(filter(None, (chose, came, fires, as_well))))
        if self.sets:
            yield Section.of("Sets, each by its best cell, on the other prompts", _sets(self.sets))
        yield Section.of("Confirmed on the other prompts", _outcomes(self.confirmed))
        note = (
            "What a score gains at few tokens and not at many is an answer that comes sooner, not a new one. Spillover is "
            "the base's reconstructed score over its clean one."
        )
        yield Section.of("After so many tokens", *self.windows.parts(), note)
        best = sorted(self.search, key=lambda one: -one.score)[:SHOWN]
        yield Section.of(f"The search (the best {SHOWN} cells; p corrected for all of them)", _outcomes(best))


def _lift(one: SteeringOutcome) -> str:
    return f"{points(one.lift)} points{'' if one.interval is None else f' {points_interval(one.interval)}'}"


def _sets(sets: Sequence[Confirmed]) -> Grid:
    rows = []
    for one in sets:
        own, randoms = one.confirmed[0], [row.score for row in one.confirmed if row.is_random]
        best = percent(max(randoms, default=None))
        rows.append((one.name, own.name, percent(own.score), _lift(own), p_value(one.p_holm), best, p_value(one.p_random)))
    return table(("set", "change", "score", "lift [95 %]", "p (Holm)", "best random set", "p (random sets)"), rows)


def _outcomes(rows: Sequence[SteeringOutcome]) -> Grid:
    made = [
        (
            one.name,
            percent(one.score),
            _lift(one),
            one.rescued,
            one.broken,
            p_value(one.p if one.p_holm is None else one.p_holm),
            percent(one.coverage),
            f"{one.size:.2f}",
        )
        for one in rows
    ]
    return table(("change", "score", "lift [95 %]", "rescued", "broken", "p", "fires", "length"), made)


def read_study(folder: Path) -> SteeringStudy:
    """What a study found, as its run keeps it. Raises UserError where there is none."""
    if not holds_run(folder):
        raise UserError(f"{folder} holds no study: `ramify {KIND}` makes one, and a dictionary is shown with its STATES")
    with Run.open(folder) as run:
        kept = run.results(KIND)
    if not kept:
        raise UserError(f"{folder} holds no study that came to its end: the same `ramify {KIND}` again continues it")
    return codec.from_json(SteeringStudy, kept[0].result, f"{folder}, the study")


# -- verdicts ------------------------------------------------------------------------------------------------------------------


def own_verdict(own: Sequence[int], mostly: Sequence[int], tested: int) -> str:
    """Which features of ``tested`` are the tuned model's own, or mostly so, in a sentence."""
    if not mostly and not own:
        rule = f"less than {MOSTLY:g} of it in the base, p <= 0.05 over the {tested} that fire"
        return f"Nothing stands out: no feature is the tuned model's own, or mostly so ({rule})."
    parts = []
    for some, bound, what in ((own, OWN, "the tuned model's own"), (mostly, MOSTLY, "mostly the tuned model's own")):
        rule = f"less than {bound:g} of it in the base, p <= 0.05 over the {tested} that fire"
        named = ", ".join(map(str, some[:20])) + (" and more" if len(some) > 20 else "")
        parts += [f"{len(some)} feature{'s are' if len(some) > 1 else ' is'} {what} ({rule}): {named}."] if some else []
    return " ".join(parts)


def small_difference(apart: float, fve: Sequence[float]) -> tuple[str, ...]:
    """What is to be said where nothing was found and the models' difference is less than the dictionary leaves unexplained."""
    lost = 1 - min(fve)
    if not 0 < apart < lost:
        return ()
    return (
        f"the models' difference is {apart:.1%} of the states' variance, and the dictionary leaves {lost:.1%} unexplained, so it "
        "need not hold what training changed: --difference 10 gives the difference more weight, as do more states and features",
    )


def verdict(confirmed: Sequence[SteeringOutcome]) -> str:
    """What the confirmation comes to, in a sentence: the chosen cell stands out where it raises the score (sign test, p at most
    0.05) and does more than random directions of its length (p = (1 + those that do as well) / (1 + all),
    at most 0.05, so 19 are needed)."""
    chosen, randoms = confirmed[0], [one for one in confirmed if one.is_random]
    p = (1 + sum(one.score >= chosen.score for one in randoms)) / (1 + len(randoms))
    if chosen.lift > 0 and chosen.p <= 0.05 and p <= 0.05:
        return f"{chosen.name} raises the score, and does more than random directions of its length (p = {p_value(p)})."
    return (
        f"Nothing stands out: {chosen.name} does not raise the score by more than chance (p = {p_value(chosen.p)}) and by more "
        f"than random directions of its length (p = {p_value(p)})."
    )


def sets_verdict(sets: Sequence[Confirmed]) -> str:
    """What the confirmation of several sets comes to, in a sentence: a set stands out where it raises the score (sign test,
    Holm's over the sets) and does more than the best of the random sets that were searched alike, both at 5 %."""
    found = [one for one in sets if one.stands_out]
    if found:
        named = "; ".join(f"{one.cell.name} (p = {p_value(max(one.p_holm, one.p_random))})" for one in found)
        return f"{len(found)} of {len(sets)} sets raise the score, and do more than random sets of their size and norms: {named}."
    rule = "raises the score by more than chance and by more than random sets of its size and norms"
    return f"Nothing stands out: of {plural(len(sets), 'set')}, none {rule}, corrected over them."
