"""From a stored tree to what the pages show: its steps with their credit and outcome, and its merged states and moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ramify.base.errors import NeedsError
from ramify.render.graphs import State, StateMove
from ramify.render.svg import clip
from ramify.render.trees import TreeStep
from ramify.trace.db import Run
from ramify.trace.failures import failure_of
from ramify.trace.message import Message
from ramify.trace.node import Annotation, AttemptRecord, Node, Score, TreeInfo
from ramify.trace.outcome import Decider, Ending, cut_short, ended, settled, succeeded
from ramify.trace.parallel import by_call
from ramify.trace.path import message_of

START = "start"
_ENDS = {"success": "the attempt succeeded", "failure": "the attempt failed", "cut": "the attempt was cut off", "done": "an end"}


@dataclass(slots=True)
class ShownStep:
    """One message of the agent, with the environment's answer to it."""

    node: Node
    parent: str | None
    """Id of the step before it; None for the first of an attempt."""
    depth: int
    """1 for the first step of an attempt."""
    before: str
    """Key of the state it was taken in."""
    why: Mapping[str, Any] = field(default_factory=dict)
    """The numbers that explain its credit, as the credit rule noted them; empty where it noted none."""
    rule: str = ""
    """Who noted them."""
    grades: Sequence[Annotation] = ()
    """What graders noted of it (``grade`` annotations)."""
    pieces: tuple[tuple[Node, int], ...] = ()
    """The nodes that the message consists of, each with how much of it is kept: a reply that was forked inside has several."""
    lead: tuple[Node, ...] = ()
    """The messages between the step before and this one."""
    after: str = ""
    answer: str = ""
    answers: list[Node] = field(default_factory=list)
    """The messages that follow it, of all branches, up to the next steps."""
    outcome: str = ""
    """success, failure, cut or done where an attempt ends with this step, else empty."""
    reward: float | None = None
    fork: bool = False
    """What ends with this step is a fork, not an attempt."""

    @property
    def id(self) -> str:
        """The node's id."""
        return self.node.id

    @property
    def message(self) -> Message:
        """What the agent wrote, whole; only the last piece's where the others cannot be cut (no ends of their tokens)."""
        if len(self.pieces) < 2:
            return self.node.message
        try:
            return message_of([(node, 0, kept) for node, kept in self.pieces])
        except NeedsError:
            return self.node.message

    @property
    def credit(self) -> float | None:
        """The step's total credit; None where it has none."""
        value = self.why.get("A")
        return float(value) if isinstance(value, int | float) else None


@dataclass(frozen=True, slots=True)
class TaskTree:
    """One tree, read: its prompt, its steps (every parent before its children), and texts of its states by key."""

    info: TreeInfo
    prompt: str
    steps: tuple[ShownStep, ...]
    states: Mapping[str, str]

    @property
    def ends(self) -> list[ShownStep]:
        """The last steps of its attempts and forks."""
        return [step for step in self.steps if step.outcome]

    @property
    def attempts(self) -> list[ShownStep]:
        """The last steps of its attempts."""
        return [step for step in self.ends if not step.fork]

    @property
    def forks(self) -> list[ShownStep]:
        """The last steps of its forks."""
        return [step for step in self.ends if step.fork]

    @property
    def mixed(self) -> bool:
        """True where some attempts succeed and some do not."""
        outcomes = {step.outcome for step in self.ends}
        return "success" in outcomes and bool(outcomes & {"failure", "cut"})

    @property
    def strongest(self) -> float:
        """The largest absolute credit of a step; 0 where there is none."""
        return max((abs(step.credit) for step in self.steps if step.credit is not None), default=0.0)


def read_tree(run: Run, name: str, deciding: Decider | None = None) -> TaskTree:
    """Read one tree of a run. ``deciding``: the scorer that decides how attempts ended;
    by default the run's, where that is clear.

    An attempt ends at a node with such a score; in a tree without one, at a leaf.
    Raises UserError when there is no tree of that name.
    """
    info = run.tree_info(name)
    why = {
        annotation.node: annotation
        for annotation in run.annotations(tree=name, name="why")
        if isinstance(annotation.value, Mapping)
    }
    grades: dict[str, list[Annotation]] = {}
    for annotation in run.annotations(tree=name, name="grade"):
        grades.setdefault(annotation.node, []).append(annotation)
    ends = {one.node: one for one in ended(run, name, deciding or settled(run))}
    children: dict[str | None, list[Node]] = {}
    keyed = False  # whether the environment told its states; else they are the texts of observations
    for node in run.nodes(name):
        children.setdefault(node.parent, []).append(node)
        keyed = keyed or node.state_key is not None
    prompt: list[str] = []
    steps: list[ShownStep] = []
    states: dict[str, str] = {}
    stack: list[tuple[Node, ShownStep | None, str, float | None, tuple[Node, ...]]] = [
        (node, None, START, None, ()) for node in reversed(children.get(None, []))
    ]
    while stack:
        node, step, state, paid, lead = stack.pop()
        # Children that hang inside the node replace the rest of it; the others follow it.
        onward = [child for child in children.get(node.id, ()) if child.offset >= len(node)]
        if node.reward is not None:
            paid = node.reward + (paid or 0.0)
        if node.role == "assistant":
            before = step
            if step is not None and not node.opens and step.id == node.parent:
                step = ShownStep(node, step.parent, step.depth, step.before, lead=step.lead)
                step.pieces = (*before.pieces[:-1], (before.node, node.offset), (node, len(node)))  # type: ignore[union-attr]
            else:
                step = ShownStep(node, step.id if step else None, step.depth + 1 if step else 1, state, lead=lead)
                step.pieces = ((node, len(node)),)
            step.grades = grades.get(node.id, ())
            if (noted := why.get(node.id)) is not None:
                step.why, step.rule = noted.value, noted.maker
            if not onward or any(child.opens or child.role != "assistant" for child in onward):
                steps.append(step)  # else it is the beginning of the replies below it
            lead = ()
        else:
            lead = (*lead, node)
            if step is None:
                prompt.append(node.text)
            else:
                step.answers.append(node)
                step.answer = step.answer or node.text
        if node.state_key is not None or (not keyed and step is not None and node.role != "assistant" and node.text):
            came, text = state, _observed(node, lead, step)
            state = text if node.state_key is None else node.state_key
            states.setdefault(state, text)
            if step is not None and (not step.after or (step.after == came and len(lead) > 1 and lead[-2].role == "tool")):
                step.after = state
        if (broke := failure_of(node, one.record if (one := ends.get(node.id)) else None)) is not None:
            note = f"The attempt failed: {broke}"
            if step is None:
                prompt.append(note)
            else:
                step.answer = f"{step.answer}\n{note}" if step.answer else note
        if step is not None and (node.id in ends or not ends) and not onward:  # an attempt that ended, not one that forks here
            one = ends.get(node.id) or Ending(node.id, None, None)
            step.outcome = outcome_of(one.record, one.score, node.stop, paid)
            step.fork = one.fork
            step.reward = paid if one.score is None else one.score.value
        stack += [(child, step, state, paid, lead) for child in reversed(children.get(node.id, []))]
    return TaskTree(info, "\n".join(text for text in prompt if text), tuple(steps), states)


def _observed(node: Node, lead: Sequence[Node], step: ShownStep | None) -> str:
    """What ``node`` shows the agent, with the results of tools that came together with it, in the order of their calls."""
    first = next((i for i in range(len(lead) - 1, -1, -1) if lead[i].role != "tool"), -1) + 1
    if step is None or node.role != "tool" or len(lead) - first < 2:
        return node.text
    return "\n".join([one.text for one in by_call(lead[first:], step.node.data, lambda one: one.data)])


def outcome_of(record: AttemptRecord | None, score: Score | None, stop: str = "", paid: float | None = None) -> str:
    """success, cut, failure, or done where nobody said. ``stop``: why the last node ended; ``paid``: rewards on the way to it."""
    success = succeeded(record, score)
    if success is None and score is None and paid is not None and (record is None or record.failure is None):
        success = paid > 0
    if success:
        return "success"
    if cut_short(record, stop):
        return "cut"
    return "done" if success is None else "failure"


def picture_steps(tree: TaskTree, href: str) -> list[TreeStep]:
    """The tree's picture; ``href`` is put before each step's id."""
    root = TreeStep("root", None, clip(tree.prompt or tree.info.name, 300))
    return [
        root,
        *(TreeStep(s.id, s.parent or "root", step_text(s), s.credit, s.outcome, s.reward, href + s.id) for s in tree.steps),
    ]


def step_text(step: ShownStep) -> str:
    """What the agent wrote and called in one line, special tokens of chat templates included as text."""
    return clip(step.message.spoken(), 200) or "(nothing)"


def merged(tree: TaskTree, most: int = 60) -> tuple[list[State], list[StateMove], int]:
    """States and moves of a tree with equal states merged, and how many states were left out (the least visited above ``most``).

    A step counts once, however many attempts go through it. Ends of attempts are states of their own, by outcome.
    """
    arrivals: dict[str, int] = {}
    departures: dict[str, int] = {}
    depth: dict[str, int] = {}
    values: dict[str, float] = {}
    taken: dict[tuple[str, str], list[ShownStep]] = {}
    for step in tree.steps:
        target = f"end: {step.outcome}" if step.outcome else step.after
        departures[step.before] = departures.get(step.before, 0) + 1
        depth[step.before] = min(depth.get(step.before, step.depth - 1), step.depth - 1)
        if isinstance(step.why.get("V"), int | float):
            values[step.before] = float(step.why["V"])
        if target:
            arrivals[target] = arrivals.get(target, 0) + 1
            depth[target] = min(depth.get(target, step.depth), step.depth)
            taken.setdefault((step.before, target), []).append(step)
    visits = {key: max(arrivals.get(key, 0), departures.get(key, 0)) for key in depth}
    ends = {f"end: {name}": name for name in _ENDS}
    inner = sorted((key for key in depth if key not in ends), key=lambda key: (depth[key] > 0, -visits[key], key))
    kept = set(inner[:most]) | (ends.keys() & depth.keys())
    last = max((depth[key] for key in kept - ends.keys()), default=0) + 1
    states = [
        State(key, last, visits[key], _ENDS[ends[key]], None, ends[key])
        if key in ends
        else State(key, depth[key], visits[key], _state_text(tree, key), values.get(key))
        for key in sorted(kept, key=lambda key: (depth[key], key))
    ]
    moves = [
        StateMove(source, target, len(steps), _mean_credit(steps), _variants(steps))
        for (source, target), steps in taken.items()
        if source in kept and target in kept
    ]
    return states, moves, max(0, len(inner) - most)


def _state_text(tree: TaskTree, key: str) -> str:
    text = tree.states.get(key, "")
    return text or ("the start" if key == START else key)


def _mean_credit(steps: Sequence[ShownStep]) -> float | None:
    credits = [step.credit for step in steps if step.credit is not None]
    return sum(credits) / len(credits) if credits else None


def _variants(steps: Sequence[ShownStep]) -> str:
    texts = sorted({clip(step.message.spoken(), 60) for step in steps})
    return " | ".join(texts[:3]) + (f" | and {len(texts) - 3} more" if len(texts) > 3 else "")
