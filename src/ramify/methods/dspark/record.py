"""What training, calibration, profiles and comparisons come to, as records and as the verbs' results. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ramify.base.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED
from ramify.render.numbers import interval, number
from ramify.render.result import Cell, CurveLine, Curves, Result, Section, numbers, table
from ramify.stats.checks import Check
from ramify.stats.intervals import Interval

PLAIN = "plain"
"""The entrant without drafts."""


@dataclass(frozen=True)
class Losses:
    """Of one step of training."""

    loss: float
    tau: float
    """Tokens a pass that the drafter would get, under teacher forcing."""
    cross_entropy: float | None = None
    """On the next token; None of Eagle3."""

    def __str__(self) -> str:
        entropy = "" if self.cross_entropy is None else f"cross_entropy {self.cross_entropy:.3f}, "
        return f"loss {self.loss:.3f}, {entropy}tau {self.tau:.3f}"


@dataclass(frozen=True)
class TrainStep(Losses):
    """One that is reported."""

    step: int = 0


@dataclass(frozen=True)
class TrainedDrafter(Result):
    """A drafter that was trained, and its last losses."""

    out: str
    kind: str
    rows: int
    """Replies of the target that it learned from."""
    mask_token: int
    step: int
    loss: float
    cross_entropy: float | None
    tau: float

    def sections(self) -> Iterable[Section]:
        """The numbers."""
        entropy = {} if self.cross_entropy is None else {"cross_entropy": self.cross_entropy}
        made: dict[str, Cell] = {"out": self.out, "kind": self.kind, "rows": self.rows, "mask_token": self.mask_token}
        yield Section.of("", numbers(made | {"step": self.step, "loss": self.loss} | entropy | {"tau": self.tau}))


@dataclass(frozen=True, slots=True)
class Calibration:
    """How well the survival of one position is predicted."""

    position: int
    n: int
    error: float
    """ECE."""
    floor: float
    """ECE of a perfect predictor of as many rounds."""
    ranking: float | None
    """AUROC; None where all labels are alike."""


@dataclass(frozen=True)
class CalibratedDrafter(Result):
    """Temperatures that were fitted to a drafter's confidences, and how well these are calibrated on other prompts."""

    rounds: int
    tokens_a_pass: float
    acceptance: tuple[float | None, ...]
    """Conditional acceptance by position; None where no round came so far."""
    temperatures: tuple[float, ...]
    before: tuple[Calibration, ...]
    after: tuple[Calibration, ...]

    def sections(self) -> Iterable[Section]:
        """The positions."""
        rows = [
            (one.position, one.n, self.temperatures[one.position - 1], before.error, one.error, one.floor, one.ranking)
            for before, one in zip(self.before, self.after, strict=True)
        ]
        head = ("position", "rounds", "temperature", "error before", "error after", "of a perfect one", "AUROC")
        title = f"{self.rounds} rounds, {self.tokens_a_pass:.2f} tokens a pass of the target"
        at = tuple(float(one.position) for one in self.after)
        lines = [("before", self.before), ("after", self.after)]
        curves = [CurveLine(name, at, tuple(one.error for one in some)) for name, some in lines]
        curves.append(CurveLine("of a perfect predictor", at, tuple(one.floor for one in self.after)))
        yield Section.of("", table(head, rows, title), Curves("Calibration error", "position", "error", tuple(curves)))


@dataclass(frozen=True, slots=True)
class LoadOutlook:
    """The best drafting at one load, by a profile. A gain of at most 1 says that drafting does not pay there."""

    requests: int
    plain: float
    """Tokens a second of all of them together, without drafts."""
    drafting: float
    gain: float
    depth: int
    """Drafts."""
    verified: float
    """Of them verified, a request."""
    interval: Interval
    """Of the gain, 95 %: of cycles drawn again."""

    @property
    def pays(self) -> bool:
        """Whether drafts that are verified gain, beyond what the times and the acceptance leave open."""
        return self.verified > 0 and self.interval[0] > 1


SHARES = (0.4, 0.6, 0.8, 1.0)
"""Shares of accepted drafts for which a gain is told before there is a drafter."""


@dataclass(frozen=True, slots=True)
class LoadNeed:
    """What drafting needs at one load to pay, by what cycles cost."""

    requests: int
    plain: float
    """Tokens a second of all of them together, without drafts."""
    acceptance: float | None
    """Least share of drafts that must be accepted, the same at every position; None: it is slower even if all are."""
    interval: Interval
    """Of that share, 95 %: of cycles drawn again; 1 stands for more than all."""
    gains: tuple[float, ...]
    """Over no drafting, by the best number of drafts, where each of :data:`SHARES` is accepted."""
    possible: bool | None
    """Whether it can pay at all; None where the times leave that open."""


@dataclass(frozen=True)
class DraftingNeeds(Result):
    """Whether drafting can pay on this machine, and with what acceptance: told before a drafter is trained."""

    loads: tuple[LoadNeed, ...]
    block: int
    weights: int
    """That would be trained."""

    @property
    def verdict(self) -> str:
        """Where it can pay, and with what."""
        can = [f"{row.requests} (from {row.acceptance:.0%} accepted on)" for row in self.loads if row.possible and row.acceptance]
        said = [f"drafting can pay at {', '.join(can)} requests at once"] if can else []
        never = [str(row.requests) for row in self.loads if row.possible is False]
        said += [f"it cannot at {', '.join(never)}, whatever is accepted"] if never else []
        open_ = [str(row.requests) for row in self.loads if row.possible is None]
        said += [f"at {', '.join(open_)} the times leave it open"] if open_ else []
        return "; ".join(said)

    def sections(self) -> Iterable[Section]:
        """The table, and where it can pay."""
        rows = [
            (
                row.requests,
                row.plain,
                "more than all" if row.acceptance is None else row.acceptance,
                interval(row.interval),
                *row.gains,
            )
            for row in self.loads
        ]
        head = ("requests", "plain, tokens/s", "accepted, at least", "95 %", *(f"gain at {share:.0%}" for share in SHARES))
        note = f"by drafts of up to {self.block} tokens of an untrained drafter of {self.weights:,} weights: what they cost"
        yield Section.of("", table(head, rows, self.verdict), note)


@dataclass(frozen=True)
class BreakEven(Result):
    """At which loads drafting promises to pay."""

    loads: tuple[LoadOutlook, ...]
    saved: str

    @property
    def verdict(self) -> str:
        """Where it pays, and where that is open."""
        pays = [str(load.requests) for load in self.loads if load.pays]
        may = [str(load.requests) for load in self.loads if not load.pays and load.verified > 0 and load.interval[1] > 1]
        said = [f"drafting promises to pay at {', '.join(pays)} requests at once"] if pays else []
        said += [f"at {', '.join(may)} it is open: the interval holds 1"] if may else []
        return "; ".join(said) or "drafting pays at none of these loads"

    def sections(self) -> Iterable[Section]:
        """The table, and where it pays."""
        rows = [
            (load.requests, load.plain, load.drafting, load.gain, interval(load.interval), load.depth, load.verified)
            for load in self.loads
        ]
        head = ("requests", "plain, tokens/s", "drafting, tokens/s", "gain", "95 %", "drafts", "verified a request")
        at = tuple(float(load.requests) for load in self.loads)
        lines = (
            CurveLine("plain", at, tuple(load.plain for load in self.loads)),
            CurveLine("drafting", at, tuple(load.drafting for load in self.loads)),
        )
        yield Section.of(
            "",
            table(head, rows, self.verdict),
            Curves("Tokens a second, by requests at once", "requests", "tokens/s", lines, percent=False),
        )


@dataclass(frozen=True, slots=True)
class Pairing:
    """One entrant compared with plain decoding on one domain, or at one load."""

    place: str
    name: str
    tau: float
    """Tokens a target pass, the bonus or corrected token counted."""
    speed: float
    """Tokens a second, median of the turns."""
    user_speed: float
    """Tokens a second that one request sees, median of the turns."""
    ratio: float
    """Tokens a second / those of plain decoding, median of the turns."""
    interval: Interval
    turns: int
    verdict: str
    """``faster`` or ``slower`` where the interval leaves 1 out, else ``even``; ``open`` of fewer than three turns."""

    def __str__(self) -> str:
        """``1.42 [1.38, 1.45]``."""
        low, high = self.interval
        return f"{self.ratio:.2f} [{low:.2f}, {high:.2f}]"


@dataclass(frozen=True, slots=True)
class BenchMachine:
    """What a comparison ran on."""

    cpu: str
    threads: int


@dataclass(frozen=True)
class SpeedComparison(Result):
    """Entrants compared with plain decoding."""

    domains: tuple[Pairing, ...]
    """One request at a time, every entrant, by domain of the prompts."""
    loads: tuple[Pairing, ...]
    """The first drafter under each schedule, all domains mixed, by requests at once."""
    machine: BenchMachine
    interrupted: str = ""
    """After how many turns Ctrl-C ended it; "" where it came to its end."""

    @property
    def exit_code(self) -> int:
        """130 where it was interrupted."""
        return EXIT_INTERRUPTED if self.interrupted else EXIT_DONE

    def pays(self) -> list[Pairing]:
        """By load, the schedule with the largest ratio."""
        return [
            max((one for one in self.loads if one.place == place and one.name != PLAIN), key=lambda one: one.ratio)
            for place in dict.fromkeys(one.place for one in self.loads)
        ]

    def sections(self) -> Iterable[Section]:
        """Both tables and what they say."""
        alone = [(p.name, p.place, f"{p.tau:.2f}", f"{p.speed:,.0f}", str(p)) for p in self.domains]
        cells = {(p.name, p.place): str(p) for p in self.loads}
        loads, schedules = (list(dict.fromkeys(key[i] for key in cells)) for i in (1, 0))
        rows = [(name, *(cells[name, load] for load in loads)) for name in schedules if name != PLAIN]
        verdicts = [
            f"{best.place} at once: {best.name}: {best}, "
            + (best.verdict if best.verdict in ("even", "open") else f"{best.verdict} than no drafting")
            for best in self.pays()
        ]
        yield Section.of(
            "",
            table(("one request at a time", "on", "tau", "tokens/s", "x plain"), alone),
            table(("x plain, by requests at once", *loads), rows),
            "\n".join(verdicts),
        )


@dataclass(frozen=True)
class LosslessReport(Result):
    """Whether drafting changes nothing but the speed."""

    passed: bool
    samples: int
    """Outputs that were counted for each schedule."""
    profiled: bool
    """Whether the costs are the drafter's own profile's."""
    checks: tuple[Check, ...]

    @property
    def exit_code(self) -> int:
        """1 where a check missed."""
        return EXIT_DONE if self.passed else EXIT_FAILED

    def sections(self) -> Iterable[Section]:
        """The checks."""
        costs = "profile" if self.profiled else "made-up costs"
        said = "nothing changes but the speed" if self.passed else "MISSED"
        title = f"{said} ({self.samples} outputs a schedule; {costs})"
        rows = [
            (one.name, one.value, "" if one.threshold is None else f"{one.op} {number(one.threshold)}", one.n, one.status)
            for one in self.checks
        ]
        yield Section.of("", table(("check", "value", "must be", "n", "status"), rows, title))
