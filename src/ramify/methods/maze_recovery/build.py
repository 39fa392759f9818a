"""Sets for supervised training that keep recoveries, cut them out, or hold a share of them, at a budget of trained tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from ramify.base.config import Config, check
from ramify.base.errors import UserError
from ramify.base.seeds import derive_key
from ramify.base.words import plural
from ramify.methods.maze_recovery.attempts import Trace, Traces, from_records
from ramify.methods.maze_recovery.conversations import Conversation, Spans, counted, whole
from ramify.methods.maze_recovery.loops import shortest_ways
from ramify.methods.maze_recovery.traces import BACK, Agreement, Marked, taken_back
from ramify.render.result import Result, Section, numbers
from ramify.trace.view import TokenMessage

if TYPE_CHECKING:
    from ramify.model.chat import ChatTemplate


_OFF = 0.01
"""Distance of the share of recoveries from the requested one above which a warning is given."""


class BuildConfig(Config):
    """What goes into the set."""

    mode: Literal["golden", "success_raw", "success_loop_erased", "recovery_mix", "recovery_only_suffix"] = "recovery_mix"
    """The shortest recorded way of each task; successes as they are, or without their loops; a mix of successes with a recovery
    and clean ones; successes with a loss from the first way back on."""
    rho: float = Field(0.5, ge=0, le=1)
    """Share of examples with a recovery (recovery_mix)."""
    token_budget: int | None = Field(None, ge=1)
    """Largest number of tokens with a loss in the whole set."""
    mask_mistakes: bool = False
    """No loss on steps into a loop, only on the way back out of it and on steps that made progress; none on retracted text."""
    mask_precision: float = Field(0.8, ge=0, le=1)
    """Least precision of masks that a detector sets in texts: the lower end of the interval measured on labels."""
    seed: int = 0
    """Decides the order in which traces are taken."""


class Example(NamedTuple):
    """One conversation of the set."""

    task: Any
    attempt: Any
    recovery: bool
    """Whether it shows one."""
    conversation: Conversation
    cost: int
    """Tokens with a loss."""


@dataclass(frozen=True, eq=False)
class SftSet:
    """The examples, and the ``summary`` that says what is in them."""

    examples: list[Example]
    summary: SetSummary


@dataclass(frozen=True)
class SetSummary(Result):
    """What is in a set, how its tokens were counted and why it ends where it does; where it was written, ``rows`` of ``form``,
    and what a detector took."""

    mode: str
    examples: int
    tasks: int
    with_recovery: int
    share_with_recovery: float
    tokens: int
    counted_by: str
    token_budget: int | None
    stopped: str
    form: str = ""
    rows: int | None = None
    out: str = ""
    spent: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def sections(self) -> Iterable[Section]:
        """The numbers."""
        kept = {name: value for name, value in vars(self).items() if name not in ("caveats", "spent") and value != ""}
        yield Section.of("", numbers(kept))


def build_sft(
    traces: Iterable[Mapping[str, Any]] | Traces,
    *,
    marks: Sequence[Sequence[Marked]] | None = None,
    measured: Agreement | None = None,
    template: ChatTemplate | None = None,
    **options: Any,
) -> SftSet:
    """Build a set from the traces that succeeded; ``options`` are fields of :class:`BuildConfig`.

    ``marks`` (``traces.detect``) are the labels of steps that retract something, for traces without states; ``measured`` how well
    they agree with labels (``run.on_labels``), without which they mask nothing. ``template`` counts the tokens of texts. Raises
    UserError where nothing succeeded, nothing fits, the mode needs states,
    or masks would be set by labels whose precision is unknown.
    """
    config = check(BuildConfig, options)
    if marks is not None:
        check_masks(config, measured)
    t = traces if isinstance(traces, Traces) else Traces(from_records(traces))
    source: _States | _Marks = _States(t) if marks is None else _Marks(t, marks)
    order = sorted((i for i, trace in enumerate(t.traces) if trace.success), key=lambda i: _place(config.seed, t.traces[i]))
    if not order:
        raise UserError("no trace is known to have succeeded, and sets are made of successes only")
    kinds = {"success_loop_erased": "clean", "recovery_only_suffix": "suffix"}
    pools = {False: [(i, kinds.get(config.mode, "raw")) for i in order]}
    if config.mode == "golden":
        one_a_task = {t.graph.visit_task[t.first[i]]: i for i in order}.values()
        pools = {False: [(i, "golden") for i in one_a_task]}
    elif config.mode == "recovery_only_suffix":
        pools = {True: [(i, kind) for i, kind in pools[False] if source.recovers(i)]}
    elif (
        config.mode == "recovery_mix"
    ):  # of the clean ones, those that nothing is cut out of come first; from texts nothing can be
        clean = [(i, "clean") for i in sorted(order, key=source.recovers) if marks is None or not source.recovers(i)]
        pools = {True: [(i, "raw") for i in order if source.recovers(i)], False: clean}
    return _fill(source, pools, config, template)


def check_masks(config: BuildConfig, measured: Agreement | None) -> None:
    """Raise UserError where a detector would set masks whose precision is unknown, or may be below ``mask_precision``.

    A false label hides a right step and trains the wrong one: with the last sentence of "7 * 8 = 54. Hmm, 56. Wait, 56 + 5?"
    taken for a retraction, the 56 is hidden.
    """
    if not config.mask_mistakes:
        return
    masks = None if measured is None else measured.masks
    if masks is None:
        raise UserError(
            "mask_mistakes (--mask-mistakes) hides what a text takes back, and how often the detector is right about that is "
            "not measured: "
            "give --labels with the steps of whole traces ('trace'), each retraction with the index of the step it takes back "
            "('target'), "
            "or leave --detector out where traces have states"
        )
    low = 0.0 if masks.interval is None else masks.interval[0]
    if low < config.mask_precision:
        raise UserError(
            f"of {masks.n} labelled steps that the detector would hide {masks.k} are taken back, a share that may be as "
            "low as "
            f"{low:.2f}: mask_mistakes needs {config.mask_precision:g} (mask_precision), so label more traces or take a better "
            "detector"
        )


def _place(seed: int, trace: Trace) -> tuple[int, str, str]:
    return derive_key(seed, "sft", str(trace.task), str(trace.attempt)), str(trace.task), str(trace.attempt)


class _States:
    """Builds conversations of traces with states: loops and mistakes are found by state keys."""

    def __init__(self, t: Traces) -> None:
        self.t = t
        self._back: dict[int, int] = {}
        for recovery in t.loops.recoveries:
            number, turn = t.place(recovery.turn)
            self._back[number] = min(turn, self._back.get(number, turn))

    @cached_property
    def _ways(self) -> dict[int, list[int]]:
        return shortest_ways(self.t.graph, self.t.success)

    @cached_property
    def _begun(self) -> dict[int, int]:
        """The first trace that began in each group."""
        firsts = self.t.graph.visit_group[self.t.first[:-1]].tolist()
        return {group: n for n, group in reversed(list(enumerate(firsts)))}

    def recovers(self, i: int) -> bool:
        """Whether trace ``i`` shows a recovery."""
        return i in self._back

    def make(self, i: int, kind: str, mask_mistakes: bool) -> Conversation:
        """Trace ``i`` as it is (raw), without loops (clean),
        with a loss from its first way back on (suffix), or its task's shortest way."""
        if kind == "golden":
            return self._golden(i)
        trace, rows = self.t.traces[i], slice(int(self.t.first[i]), int(self.t.first[i + 1]))
        kept = self.t.loops.kept[rows]
        if kind == "clean":
            at = np.flatnonzero(kept).tolist()
            # what the agent saw on getting there is what followed the step before, not what the last visit showed
            seen = [0, *(before + 1 for before in at[:-1])]
            return _join(trace.given, ((trace.steps[s].shown, trace.steps[a].reply, True) for s, a in zip(seen, at, strict=True)))
        states = self.t.graph.visit_group[rows]
        # a retreat helps where it leaves a state that the attempt's way does not lead through
        helps = kept | ((self.t.loops.moves[rows] < 0) & ~np.isin(states, states[kept]))
        train = helps if mask_mistakes else np.ones(len(kept), np.bool_)
        if kind == "suffix":
            train = train & (np.arange(len(kept)) >= self._back[i])
        return _join(trace.given, ((step.shown, step.reply, bool(on)) for step, on in zip(trace.steps, train, strict=True)))

    def _golden(self, i: int) -> Conversation:
        graph = self.t.graph
        way = self._ways[int(graph.visit_task[self.t.first[i]])]
        begun = self._begun[int(graph.visit_group[way[0]])]
        places = [self.t.place(row) for row in way]
        shown = [self.t.traces[begun].steps[0].shown, *(self.t.traces[n].steps[s + 1].shown for n, s in places[:-1])]
        replies = (self.t.traces[n].steps[s].reply for n, s in places)
        return _join(self.t.traces[begun].given, ((seen, reply, True) for seen, reply in zip(shown, replies, strict=True)))


class _Marks:
    """Conversations cut by what a detector saw in their replies."""

    def __init__(self, t: Traces, marks: Sequence[Sequence[Marked]]) -> None:
        self.t, self.marks = t, marks

    def recovers(self, i: int) -> bool:
        """Whether a reply of trace ``i`` takes something back."""
        return any(step.kind in BACK for reply in self.marks[i] for step in reply.steps)

    def make(self, i: int, kind: str, mask_mistakes: bool) -> Conversation:
        """Trace ``i`` as it is, or with a loss from where something is first taken back."""
        if kind == "golden" or (kind == "clean" and self.recovers(i)):
            raise UserError("what a text takes back cannot be cut out of it without states: this needs traces with a state key")
        trace = self.t.traces[i]
        steps, on = [], kind != "suffix"
        for step, mark in zip(trace.steps, self.marks[i], strict=True):
            wrong = taken_back(mark.steps) if mask_mistakes else ()
            spans: list[tuple[int, int]] = []
            for at, ((start, end), seen) in enumerate(zip(mark.spans, mark.steps, strict=True)):
                on = on or seen.kind in BACK
                if on and at not in wrong:
                    joins = bool(spans) and spans[-1][1] == start
                    spans[-1:] = [(spans[-1][0], end)] if joins else [*spans[-1:], (start, end)]
            full = on and sum(b - a for a, b in spans) == sum(b - a for a, b in mark.spans)
            steps.append((step.shown, step.reply, True if full else tuple(spans)))
        return _join(trace.given, steps)


def _join(
    given: Sequence[TokenMessage], steps: Iterable[tuple[Sequence[TokenMessage], TokenMessage, bool | Spans]]
) -> Conversation:
    """Turns end to end; each reply comes with what of it is trained (True: all)."""
    turns: list[TokenMessage] = list(given)
    trained: list[Spans] = [()] * len(turns)
    for shown, reply, train in steps:
        turns += [*shown, reply]
        trained += [*[()] * len(shown), whole(reply) if train is True else train or ()]
    return Conversation(tuple(turns), tuple(trained))


def _usable(
    source: _States | _Marks, pool: Iterable[tuple[int, str]], config: BuildConfig, template: ChatTemplate | None
) -> Iterator[Example]:
    """The examples of a pool that have anything to train."""
    for i, kind in pool:
        conversation = source.make(i, kind, config.mask_mistakes)
        if cost := conversation.cost(template):
            trace = source.t.traces[i]
            yield Example(trace.task, trace.attempt, kind in ("raw", "suffix") and source.recovers(i), conversation, cost)


def _fill(
    source: _States | _Marks, pools: Mapping[bool, Sequence[tuple[int, str]]], config: BuildConfig, template: ChatTemplate | None
) -> SftSet:
    """Take from the pools, keeping the share, up to the first that does not fit:
    continuing to shorter ones would favour straight traces."""
    left = {kind: _usable(source, pool, config, template) for kind, pool in pools.items()}
    taken: list[Example] = []
    spent = mixed = 0
    stopped = ""
    while not stopped:
        wanted = round(config.rho * (len(taken) + 1)) > mixed if len(pools) == 2 else next(iter(pools))
        example = next(left[wanted], None)
        if example is None:
            stopped = f"no more traces with{'' if wanted else 'out'} a recovery" if len(pools) == 2 else "all taken"
        elif config.token_budget is not None and spent + example.cost > config.token_budget:
            stopped = "budget spent"
        else:
            taken.append(example)
            spent, mixed = spent + example.cost, mixed + example.recovery
    if not taken:
        fault = "no success shows a recovery" if wanted else "no success has a text to train on"
        if example is None and len(pools) == 2 and not wanted:
            fault = "every success takes something back, which cannot be cut out of a text (rho 1 takes them as they are)"
        elif example is not None:
            fault = f"the first trace has {plural(example.cost, 'token')}, and the budget is {config.token_budget}"
        raise UserError(f"the set is empty: {fault}")
    turns = [turn for e in taken for turn, spans in zip(e.conversation.turns, e.conversation.trained, strict=True) if spans]
    share = sum(e.recovery for e in taken) / len(taken)
    caveat = ""
    if config.mode == "recovery_mix" and abs(share - config.rho) > _OFF:
        caveat = f"a share of {share:.3g} of the {len(taken)} examples shows a recovery, not {config.rho:g} as asked"
    real = template is not None or all(turn.tokens is not None for turn in turns)
    by_trace = all(counted(turn) is not None for turn in turns)
    summary = SetSummary(
        mode=config.mode,
        examples=len(taken),
        tasks=len({str(e.task) for e in taken}),
        with_recovery=sum(e.recovery for e in taken),
        share_with_recovery=share,
        tokens=spent,
        counted_by="tokens" if real else "the traces" if by_trace else "characters / 4",
        token_budget=config.token_budget,
        stopped=stopped,
        caveats=(f"{caveat} (ended: {stopped})",) if caveat else (),
    )
    return SftSet(taken, summary)
