"""What the verbs of a world model find: records with the text and tables that people read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ramify.base.errors import EXIT_DONE, EXIT_FAILED
from ramify.base.words import plural
from ramify.methods.world_model.algorithm import RUBRIC
from ramify.render.numbers import number, p_value, percent, percent_interval, points
from ramify.render.result import CALL, Cell, CurveLine, Curves, Part, Result, Section, table
from ramify.stats.intervals import Interval, clustered_share

MOST_TURNS, MOST_TOOLS = 20, 20
"""Rows of a table by turn, and by tool."""

# -- recording, preparing, training --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecordedWorld(Result):
    """Episodes of an environment that a run keeps."""

    run: str
    episodes: int
    tasks: int
    turns: int
    failed: int
    """Episodes that an infrastructure failure ended."""

    def sections(self) -> Iterable[Section]:
        """The counts, and what comes next."""
        lost = f", {plural(self.failed, 'episode')} ended in an infrastructure failure" if self.failed else ""
        yield Section.of(
            "",
            f"{plural(self.episodes, 'episode')} of {plural(self.tasks, 'task')}, {plural(self.turns, 'turn')}{lost}",
            f"next: `ramify world-model prepare {self.run}`, then `ramify world-model train {self.run} --out WORLD`",
        )


@dataclass(frozen=True)
class PreparedClass:
    """Turns of one class, those of them that are kept, and the probability of that."""

    kind: str
    turns: int
    kept: int
    keep: float


@dataclass(frozen=True)
class PreparedTurns(Result):
    """Which recorded turns carry information; turns that branches share count once."""

    trajectories: int
    turns: int
    kept: int
    share_of_text: float
    """Of the characters of observations, those of kept turns."""
    classes: tuple[PreparedClass, ...]
    mask: str
    out: str | None = None

    def sections(self) -> Iterable[Section]:
        """The classes."""
        rows = [(one.kind, one.turns, one.kept, one.keep) for one in self.classes]
        title = (
            f"{self.turns} turns of {self.trajectories} trajectories, {self.kept} trained on, "
            f"{percent(self.share_of_text)} of the text"
        )
        yield Section.of("", table(("class", "turns", "kept", "probability"), rows, title), self.out)


@dataclass(frozen=True)
class TrainedWorld(Result):
    """A training that ended: what was trained on, and the losses of its last step."""

    stage: str
    steps: int
    rows: int
    observation_tokens: int
    last: Mapping[str, float]
    """Name -> value at the last step."""
    weights: int
    world: str
    trained_weights: int = 0
    """Of the model, or of its adapter."""
    groups_without_a_difference: int | None = None
    """Of stage rl: groups with equal rewards, which teach nothing."""
    peak_memory: int = field(default=0, metadata=CALL)
    """Bytes that the process of this call had in memory at most."""

    def sections(self) -> Iterable[Section]:
        """The numbers, and what comes next."""
        rows: list[tuple[str, Cell]] = [
            ("stage", self.stage),
            ("steps", self.steps),
            ("rows", self.rows),
            ("observation tokens", self.observation_tokens),
            *((name.replace("_", " "), value) for name, value in self.last.items()),
            ("weights", self.weights),
            ("weights trained", self.trained_weights),
            ("peak memory, MB", round(self.peak_memory / 1e6)),
        ]
        if self.groups_without_a_difference is not None:
            rows.append(("groups without a difference", self.groups_without_a_difference))
        folder = self.world.partition(":")[2]
        yield Section.of(
            "",
            table(("trained", self.world), rows),
            f"next: `ramify world-model eval {folder} --data HELD-OUT`, or `ramify rollout --env {self.world}`",
        )


# -- how often it answers as the real one did ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExactShare:
    """A share over attempts or trajectories: ``k`` of ``n``, with the 95 % interval where there are two of them."""

    value: float | None = None
    interval: Interval | None = None
    k: int = 0
    n: int = 0

    @classmethod
    def of(cls, hits: Sequence[bool], clusters: Sequence[str]) -> ExactShare:
        """The share of ``hits`` (n,), which were sampled by ``clusters`` (n,)."""
        found = clustered_share(hits, clusters)
        return cls() if found is None else cls(found.value, found.interval, found.k, found.n)


@dataclass(frozen=True)
class WrongTurns:
    """Whether a second player is wrong more often than the first, trajectory by trajectory."""

    gap: float
    """Of all turns, by how many more it is wrong."""
    more_wrong: int
    less_wrong: int
    p: float
    """Exact sign test over trajectories where they differ."""
    found: bool


@dataclass(frozen=True)
class WorldScores:
    """Exact match in all, by tool, by class and by turn."""

    turns: int
    failed: int
    answered_by: Mapping[str, int]
    cut: int
    """Turns that were predicted without the oldest of their history, which did not fit the model's context."""
    exact: ExactShare
    macro_over_tools: float | None
    by_tool: Mapping[str, ExactShare]
    by_class: Mapping[str, ExactShare]
    by_turn: Mapping[str, ExactShare]
    against: WrongTurns | None = None
    """Of a baseline: whether it is wrong more often than the world."""


@dataclass(frozen=True)
class DriftPoint:
    """Shares of exact turns at one turn, over so many trajectories."""

    turn: int
    forced: float
    closed: float
    trajectories: int


@dataclass(frozen=True)
class LoopDrift(WrongTurns):
    """Whether errors feed on errors: of each trajectory the wrong turns in closed loop against those on true history."""

    curve: tuple[DriftPoint, ...] = ()


@dataclass(frozen=True)
class RubricScores:
    """The rubric, 1 to 5 and as 0 to 100; ``scores`` are the means of the five, None where the judge gives only their mean."""

    judge: str
    failed: int
    mean: float | None
    of_100: float | None
    scores: Mapping[str, float | None]


@dataclass(frozen=True)
class WorldEvaluation(Result):
    """How often a world answers as the real environment did: on true history (``forced``), on its own (``closed``), beside
    baselines on true history.

    ``better``: whether every baseline is wrong more often than the world on true history; None where that was not played.
    """

    world: str
    forced: WorldScores | None = None
    closed: WorldScores | None = None
    baselines: Mapping[str, WorldScores] = field(default_factory=dict)
    better: bool | None = None
    drift: LoopDrift | None = None
    """None unless both modes were played."""
    rubric: RubricScores | None = None

    @property
    def first(self) -> WorldScores:
        """The scores on true history, else those on its own."""
        found = self.forced or self.closed
        assert found is not None
        return found

    def sections(self) -> Iterable[Section]:
        """Exact match of all arms, by tool, the drift, and the rubric."""
        played = {name: own for name, own in (("forced", self.forced), ("closed", self.closed)) if own is not None}
        arms = played | {f"baseline {name}": own for name, own in self.baselines.items()}
        rows = [
            (
                name,
                percent(own.exact.value),
                percent_interval(own.exact.interval),
                own.exact.n,
                own.failed,
                percent(own.macro_over_tools),
            )
            for name, own in arms.items()
        ]
        yield Section.of(
            "",
            table(("", "exact", "95 % interval", "turns", "failed", "mean over tools"), rows),
            "\n".join(f"{name}: answered by {_answered(own.answered_by, own.cut)}" for name, own in played.items()),
            self._beside_baselines() if self.better is not None else "",
            _by_tool(arms),
            self._rubric(),
        )
        if self.drift is not None:
            yield Section.of("Drift", *_drift(self.drift))

    def _rubric(self) -> str:
        own = self.rubric
        if own is None:
            return ""
        scores = ", ".join(f"{name} {value:.2f}" for name in RUBRIC if (value := own.scores.get(name)) is not None)
        return f"rubric by {own.judge}: {number(own.of_100)} of 100 ({scores or 'no single scores'}; {own.failed} failed)"

    def _beside_baselines(self) -> str:
        """Whether the world is better than looking answers up: by the baseline against which that is least clear."""
        each = [(name, own.against) for name, own in self.baselines.items() if own.against is not None]
        name, by = max(each, key=lambda item: (not item[1].found, item[1].p))
        verdict = "better than every baseline" if self.better else f"NOT shown to be better than the baseline {name}"
        counts = f"fewer wrong turns than {name} in {by.more_wrong} trajectories, more in {by.less_wrong} (p {p_value(by.p)})"
        return f"{verdict}: {counts}" + ("" if len(each) > 1 else "; --train gives the others")


def _answered(by: Mapping[str, int], cut: int) -> str:
    who = ", ".join(f"{name} {count}" for name, count in by.items()) or "nobody says"
    return who + (f"; {cut} without the oldest turns, which did not fit the model's context" if cut else "")


def _by_tool(arms: Mapping[str, WorldScores]) -> Part | None:
    tools = sorted({tool for own in arms.values() for tool in own.by_tool})
    if len(tools) < 2:
        return None
    shares = [[own.by_tool.get(tool, ExactShare()).value for own in arms.values()] for tool in tools[:MOST_TOOLS]]
    return table(("tool", *arms), [(tool, *map(percent, each)) for tool, each in zip(tools, shares, strict=False)])


def _drift(own: LoopDrift) -> Iterable[Part]:
    rows = [(one.turn, percent(one.forced), percent(one.closed), one.trajectories) for one in own.curve[:MOST_TURNS]]
    turns = tuple(float(one.turn) for one in own.curve)
    yield table(("turn", "exact on true history", "exact on its own", "trajectories"), rows)
    verdict = "drift: errors feed on errors" if own.found else "no drift found"
    yield f"{verdict}: closed loop has {points(own.gap)} points more wrong turns than true history (p {p_value(own.p)})"
    lines = (
        CurveLine("on true history", turns, tuple(one.forced for one in own.curve)),
        CurveLine("on its own", turns, tuple(one.closed for one in own.curve)),
    )
    yield Curves("Exact answers by turn", "turn", "exact", lines)


# -- what agents did in it -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NotedAnswers:
    """Who answered in the attempts of a run, how many answers were made without the oldest turns, and which fields the model
    invented, how often."""

    answered_by: Mapping[str, int]
    cut: int
    further_tries: int
    invented: Mapping[str, int]


@dataclass(frozen=True)
class TruePoint:
    """Share of attempts whose observations were all true up to a turn."""

    turn: int
    share: float
    attempts: int


@dataclass(frozen=True)
class ReplayedRun:
    """What replays in the real environment come to (:func:`ramify.methods.world_model.evaluation.audited`)."""

    attempts: int
    simulated_success: ExactShare
    real_success: ExactShare
    only_simulated: int
    only_real: int
    p_of_a_loophole: float
    loophole: bool
    turns: int
    different_turns: int
    unstable: int
    p_of_drift: float
    drift: bool
    true_so_far: tuple[TruePoint, ...]


@dataclass(frozen=True)
class BesideReal:
    """Success of an agent in a simulated environment and of one in the real environment, on the tasks that both runs hold."""

    tasks: int
    simulated_success: ExactShare
    real_success: ExactShare
    higher_in_the_simulation: int
    lower: int
    p_of_a_loophole: float
    loophole: bool


@dataclass(frozen=True)
class WorldAudit(Result):
    """What agents did in a simulated environment, checked against the real one: by playing their actions there (``replay``), by
    a run of the same agent there (``beside``), or both."""

    run: str
    noted: NotedAnswers
    replay: ReplayedRun | None = None
    beside: BesideReal | None = None
    loophole: bool = False
    """Whether success is not real: by the run beside it, else by the replays."""
    drift: bool = False
    strict: bool = field(default=False, metadata={"json": False})

    @property
    def success(self) -> BesideReal | ReplayedRun | None:
        """What ``loophole`` is said by."""
        return self.beside or self.replay

    @property
    def exit_code(self) -> int:
        """1 where it is strict and something was found."""
        return EXIT_FAILED if self.strict and (self.loophole or self.drift) else EXIT_DONE

    def sections(self) -> Iterable[Section]:
        """Success here and there, drift, and who answered."""
        parts: list[Part] = []
        for source, one in (("", self.replay), ("beside a run in the real environment", self.beside)):
            if one is not None:
                shares = {"simulated": one.simulated_success, "real": one.real_success}
                rows = [
                    (name, percent(own.value), percent_interval(own.interval), own.n) for name, own in shares.items() if own.n
                ]
                verdict = "success that is NOT real" if one.loophole else "no loophole found"
                parts.append(table(("success", "share", "95 % interval", "attempts"), rows, source))
                parts.append(f"{verdict} (p {p_value(one.p_of_a_loophole)})")
        if (own := self.replay) is not None:
            turns = [(one.turn, percent(one.share), one.attempts) for one in own.true_so_far[:MOST_TURNS]]
            parts.append(
                f"{'drift' if own.drift else 'no drift found'}: {own.different_turns} of {own.turns} observations are not the "
                f"real ones (p {p_value(own.p_of_drift)})"
            )
            parts.append(table(("turn", "all observations true so far", "attempts"), turns))
        parts.append(f"answered by: {_answered(self.noted.answered_by, self.noted.cut)}")
        invented = ", ".join(f"{name} ({count})" for name, count in self.noted.invented.items())
        yield Section.of("", *parts, f"invented fields: {invented}" if invented else "")
