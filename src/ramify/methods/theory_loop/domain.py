"""Multi-attribute choice: designs, data, the battery of Hilbig and Moshagen, and data as CSV."""

from __future__ import annotations

import base64
import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.errors import UserError
from ramify.base.files import reason
from ramify.base.ids import canonical_json, stable_hash
from ramify.base.seeds import generator

TRIALS = 96
"""Trials of a subject, about: a pair is shown max(1, 96 // pairs) times."""
MOST_PAIRS, MOST_CUES, MOST_RATING = 200, 20, 1000
COLUMNS = ("subject_id", "option_a_ratings", "option_b_ratings", "response")
HILBIG = (
    *("0000-1011", "0000-1100", "0001-1000", "0001-1101", "0010-1110", "0011-1010"),
    *("0011-1111", "0100-1111", "0101-1100", "0110-1000", "0111-1001", "0111-1110"),
)


class TheoryError(Exception):
    """What a theory, a metric, a design or a reply did wrong: one of :data:`PROBLEMS`, and a sentence.
    Recorded by the loop, never its end."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind, self.why = kind, why


PROBLEMS = {
    "design lengths": "a design whose lists do not have one length",
    "design range": "a design with a rating or a validity out of its range",
    "design": "a design that is none for another reason",
    "code": "source that does not parse, or has not the functions and imports that it may have",
    "parameters": "parameters in a notation that is none",
    "probabilities": "probabilities that are negative, not numbers, not two, or do not sum to 1",
    "raised": "code that raised",
    "choice": "a policy that returned no option",
    "not repeatable": "a prediction that differs when it is asked for again",
    "batch differs": "predict_all that does not say what predict says",
    "metric value": "a metric whose value is not a finite number",
    "metric per subject": "a metric that cannot be computed for one subject alone: it has no variance, and cannot pass the gate",
    "metric changes data": "a metric that changed the data it was given; it had a copy, and its value counts",
    "time": "code slower than its limit",
    "memory": "code that needed more memory than its limit",
    "died": "code that ended its process",
    "reply": "a reply that is not JSON of the form that was asked for",
    "no metric passed": "all designs and metrics of an advocate were rejected; the last one was used",
    "too few participants": "fewer participants than were asked for",
    "same theory": "a candidate equal to one that was tried in this revision",
}
"""What can go wrong in a loop without ending it: kind -> what it is."""


@dataclass(frozen=True, slots=True)
class Design:
    """An experiment: cue validities (n,), and pairs of options with a rating for each cue."""

    validities: tuple[float, ...]
    a: tuple[tuple[int, ...], ...]
    b: tuple[tuple[int, ...], ...]
    rating_max: int = 1
    rationale: str = ""

    @property
    def pairs(self) -> int:
        """How many pairs it has."""
        return len(self.a)

    @property
    def repeats(self) -> int:
        """How often a pair is shown to a subject."""
        return max(1, TRIALS // self.pairs)

    @property
    def options(self) -> tuple[np.ndarray, np.ndarray]:
        """Ratings (P, n) of both options."""
        return np.array(self.a, float), np.array(self.b, float)

    @property
    def hash(self) -> str:
        """Of what subjects see."""
        return stable_hash("design", canonical_json({**self.to_json(), "rationale": ""}))

    def to_json(self) -> dict[str, Any]:
        """As stored, and as a proposer writes it."""
        return {
            "validities": list(self.validities),
            "trial_a_ratings": [list(one) for one in self.a],
            "trial_b_ratings": [list(one) for one in self.b],
            "rating_max": self.rating_max,
            "rationale": self.rationale,
        }

    def orders(self, n: int, seed: int, *key: str | int) -> np.ndarray:
        """(n, T) the pair of each trial, shuffled for each subject."""
        plain = np.repeat(np.arange(self.pairs), self.repeats)
        return generator(seed, "order", *key).permuted(np.tile(plain, (n, 1)), axis=1)


def read_design(record: Any, ratings: str = "", rating_max: int | None = None) -> Design:
    """A design from its JSON. ``ratings`` binary allows 0 and 1 only. Raises TheoryError on one that is none."""
    if not isinstance(record, Mapping):
        raise TheoryError("design", "a design is an object with validities, trial_a_ratings and trial_b_ratings")
    missing = [name for name in ("validities", "trial_a_ratings", "trial_b_ratings") if not isinstance(record.get(name), list)]
    if missing:
        raise TheoryError("design", f"the design has no list '{missing[0]}'")
    most = record.get("rating_max", 1 if ratings == "binary" else rating_max or 1)
    if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= MOST_RATING:
        raise TheoryError("design range", f"rating_max must be a whole number from 1 to {MOST_RATING}, not {most!r:.40}")
    if ratings == "binary" and most != 1:
        raise TheoryError("design range", f"ratings of this loop are 0 and 1, and rating_max is {most}")
    validities, a, b = record["validities"], record["trial_a_ratings"], record["trial_b_ratings"]
    for number in validities:
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0.5 <= number <= 1.0:
            raise TheoryError("design range", f"a validity lies from 0.5 to 1.0, and one is {number!r:.40}")
    n = len(validities)
    if not 1 <= n <= MOST_CUES or not 1 <= len(a) <= MOST_PAIRS:
        raise TheoryError(
            "design lengths", f"a design has 1 to {MOST_CUES} validities and 1 to {MOST_PAIRS} pairs, not {n} and {len(a)}"
        )
    if len(a) != len(b):
        raise TheoryError("design lengths", f"trial_a_ratings has {len(a)} options and trial_b_ratings {len(b)}")
    for name, options in (("trial_a_ratings", a), ("trial_b_ratings", b)):
        for i, option in enumerate(options):
            if not isinstance(option, list) or len(option) != n:
                raise TheoryError("design lengths", f"{name}[{i}] does not have {n} ratings, one for each validity")
            for rating in option:
                if (
                    isinstance(rating, bool)
                    or not isinstance(rating, int | float)
                    or not math.isfinite(rating)
                    or rating != int(rating)
                    or not 0 <= rating <= most
                ):
                    raise TheoryError(
                        "design range", f"{name}[{i}] has the rating {rating!r:.40}; ratings are whole numbers from 0 to {most}"
                    )
    whole = [tuple(tuple(int(rating) for rating in option) for option in options) for options in (a, b)]
    return Design(tuple(float(v) for v in validities), whole[0], whole[1], most, str(record.get("rationale", ""))[:4000])


def design_file(path: Path) -> Design:
    """The design in a JSON file, or that of a registration. Raises UserError naming the file."""
    import json

    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read the design {path}: {reason(error)}") from None
    try:
        return read_design(record["design"] if isinstance(record, dict) and "design" in record else record)
    except TheoryError as error:
        raise UserError(f"{path}: {error}") from None


def random_design(rng: np.random.Generator, cues: int = 4, pairs: int = 12, rating_max: int = 1) -> Design:
    """A random design: validities in [.5, 1] with one .95 and one .55, and ``pairs`` different pairs of different options."""
    between = rng.uniform(0.5, 1.0, cues - 2)
    validities = rng.permutation(np.round(np.concatenate([[0.95, 0.55], between]), 3))
    pairs = min(pairs, (rating_max + 1) ** cues * ((rating_max + 1) ** cues - 1))
    chosen: dict[tuple[tuple[int, ...], tuple[int, ...]], None] = {}
    while len(chosen) < pairs:
        a, b = (tuple(int(x) for x in rng.integers(0, rating_max + 1, cues)) for _ in range(2))
        if a != b:
            chosen[a, b] = None
    return Design(
        tuple(float(v) for v in validities), tuple(a for a, _ in chosen), tuple(b for _, b in chosen), rating_max, "random"
    )


def hilbig() -> Design:
    """The 24 ordered pairs of Hilbig and Moshagen (2014), experiment 1: twelve and their mirrors."""
    sides = [tuple(tuple(int(x) for x in side) for side in pair.split("-")) for pair in HILBIG]
    both = [(first, second) for first, second in sides] + [(second, first) for first, second in sides]
    return Design(
        (0.9, 0.8, 0.7, 0.6), tuple(a for a, _ in both), tuple(b for _, b in both), 1, "Hilbig and Moshagen (2014), experiment 1"
    )


@dataclass(frozen=True)
class PersonReport:
    """How somebody took part, and why they are left out; ``dropped`` is empty where they are kept."""

    subject: str
    trials: int
    same_key: float | None
    """Share of trials of one key, and of those that follow another; None where the keys are not known."""
    alternates: float | None
    mean_rt_ms: float | None
    off_tab_ms: float | None
    bot: bool
    dropped: str = ""


@dataclass(frozen=True, kw_only=True)
class LeftOut(PersonReport):
    """Somebody who is left out, with their choices."""

    order: tuple[int, ...]
    response: tuple[int, ...]


@dataclass(frozen=True)
class Attendance:
    """What else is known of subjects: how many there were, how many ended early or were left out."""

    asked: int | None = None
    failed: int = 0
    dropped: tuple[LeftOut, ...] = ()
    reports: tuple[PersonReport, ...] = ()


@dataclass(frozen=True)
class StoredChoices:
    """:class:`Data` as a run stores it: both arrays as base64 of unsigned bytes."""

    design: Mapping[str, Any]
    shape: tuple[int, int]
    order: str
    response: str
    subjects: tuple[str, ...]
    extra: Attendance


@dataclass(frozen=True)
class Data:
    """What subjects chose: the pair of each trial (S, T) and the response (S, T), 0 = A, 1 = B,
    in the order in which they were made."""

    design: Design
    order: np.ndarray
    response: np.ndarray
    subjects: tuple[str, ...] = ()
    extra: Attendance = Attendance()

    @cached_property
    def proportions(self) -> np.ndarray:
        """(S, P) each subject's proportion of B choices for each pair; nan where it was not shown."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(self._counts[1] / self._counts[0])

    @property
    def p_b(self) -> np.ndarray:
        """(P,) proportion of B choices for each pair, all subjects together; nan where nobody saw it."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(self._counts[1].sum(axis=0) / self._counts[0].sum(axis=0))

    @cached_property
    def _counts(self) -> tuple[np.ndarray, np.ndarray]:
        """(S, P) how often each pair was shown, and how often B was chosen."""
        size = self.design.pairs
        cells = (np.arange(len(self.order))[:, None] * size + self.order).ravel()
        both = [np.bincount(cells, weights, len(self.order) * size) for weights in (None, self.response.ravel().astype(float))]
        return both[0].reshape(-1, size).astype(float), both[1].reshape(-1, size)

    def stored(self) -> StoredChoices:
        """As a run stores it."""
        order, response = (base64.b64encode(one.astype(np.uint8).tobytes()).decode() for one in (self.order, self.response))
        return StoredChoices(self.design.to_json(), self.order.shape, order, response, self.subjects, self.extra)

    @classmethod
    def of(cls, kept: StoredChoices) -> Data:
        """Inverse of :meth:`stored`."""
        order, response = (
            np.frombuffer(base64.b64decode(text), np.uint8).reshape(kept.shape).astype(np.int64)
            for text in (kept.order, kept.response)
        )
        return cls(read_design(kept.design), order, response, kept.subjects, kept.extra)

    def to_csv(self) -> str:
        """All trials as CSV, lists as JSON."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(COLUMNS)
        names = self.subjects or tuple(str(s) for s in range(len(self.order)))
        pairs = [[canonical_json(list(side)) for side in pair] for pair in zip(self.design.a, self.design.b, strict=True)]
        for name, order, response in zip(names, self.order.tolist(), self.response.tolist(), strict=True):
            writer.writerows([name, *pairs[p], r] for p, r in zip(order, response, strict=True))
        return out.getvalue()


def check_choices(values: Sequence[Sequence[Any]], orders: np.ndarray, who: str) -> np.ndarray:
    """Choices (S, T) as an array. Raises UserError naming subject and trial of one that is neither 0 nor 1."""
    if len(values) != len(orders):
        raise UserError(f"{who} returned choices of {len(values)} subjects, and {len(orders)} were asked for")
    for s, row in enumerate(values):
        if len(row) != orders.shape[1]:
            raise UserError(f"{who}: subject {s} made {len(row)} choices, and there are {orders.shape[1]} trials")
        for t, value in enumerate(row):
            if value not in (0, 1):
                raise UserError(f"{who}: subject {s} chose {value!r:.40} in trial {t}, which is neither 0 (A) nor 1 (B)")
    return np.array([[int(value) for value in row] for row in values], np.int64)
