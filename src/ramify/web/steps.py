"""From a stored tree to what the pages show: its steps with their credit and outcome, and its merged states and moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ramify.render.graphs import State, StateMove
from ramify.render.svg import clip
from ramify.render.trees import TreeStep
from ramify.trace.db import Run
from ramify.trace.message import Message
from ramify.trace.node import Annotation, Node, TreeInfo
from ramify.trace.outcome import Decider, Ending, ended, settled
from ramify.trace.tree import Tree
from ramify.trace.view import HowEnded, Reached, SeenSoFar, TokenMessage, walk

START = "start"
_ENDS = {"success": "the attempt succeeded", "failure": "the attempt failed", "cut": "the attempt was cut off", "done": "an end"}


@dataclass(slots=True)
class ShownStep:
    """One message of the agent, with the environment's answer to it."""

    reply: TokenMessage
    seen: SeenSoFar
    """What the agent had been shown."""
    parent: str | None
    """Id of the step before it; None for the first of an attempt."""
    before: str
    """Key of the state it was taken in."""
    why: Mapping[str, Any] = field(default_factory=dict)
    """The numbers that explain its credit, as the credit rule noted them; empty where it noted none."""
    rule: str = ""
    """Who noted them."""
    grades: Sequence[Annotation] = ()
    """What graders noted of it (``grade`` annotations)."""
    after: str = ""
    answer: str = ""
    answers: list[TokenMessage] = field(default_factory=list)
    """The messages that follow it, of all branches, up to the next steps."""
    outcome: str = ""
    """:attr:`ramify.trace.view.HowEnded.word` where an attempt ends with this step, else empty."""
    reward: float | None = None
    fork: bool = False
    """What ends with this step is a fork, not an attempt."""

    @property
    def node(self) -> Node:
        """The node it ends in: a reply that was forked inside has several."""
        return self.reply.nodes[-1]

    @property
    def id(self) -> str:
        """The node's id."""
        return self.node.id

    @property
    def depth(self) -> int:
        """1 for the first step of an attempt."""
        return self.seen.replies + 1

    @property
    def message(self) -> Message:
        """What the agent wrote."""
        return self.reply.message

    @property
    def credit(self) -> float | None:
        """The step's total credit; None where it has none."""
        value = self.why.get("A")
        return float(value) if isinstance(value, int | float) else None


@dataclass(frozen=True, slots=True)
class TaskTree:
    """One tree, read: its prompt, its steps (every parent before its children), and texts of its states by key."""

    info: TreeInfo
    tree: Tree
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
    tree = run.tree(name)
    # Whether the environment told its states; else they are the texts of observations.
    keyed = any(node.state_key is not None for node in tree.nodes.values())
    prompt: list[str] = []
    steps: list[ShownStep] = []
    states: dict[str, str] = {}
    stood: dict[str, tuple[ShownStep | None, str]] = {}  # by node: the last step up to it, and the state after it
    for here in walk(tree):
        node = here.node
        step, state = (None, START) if here.up is None else stood[here.up]
        told = bool(here.parts)
        if told and here.message.role == "assistant":
            told = False
            step = ShownStep(here.message, here.above, None if step is None else step.id, state, grades=grades.get(node.id, ()))
            if (noted := why.get(node.id)) is not None:
                step.why, step.rule = noted.value, noted.maker
            if here.closed:
                steps.append(step)  # else it is the beginning of the replies below it
        elif here.closed:
            if step is None:
                prompt.append(here.message.text)
            else:
                step.answers.append(here.message)
                step.answer = step.answer or here.message.text
        if node.state_key is not None or (told and not keyed and step is not None and node.text):
            came, text = state, here.seen.observation if told else node.text
            state = text if node.state_key is None else node.state_key
            states.setdefault(state, text)
            lead = here.seen.shown
            if step is not None and (not step.after or (step.after == came and len(lead) > 1 and lead[-2].role == "tool")):
                step.after = state
        if node.id in ends or node.stop == "failed" or not (ends or here.onward):
            _end(step, prompt, here, ends.get(node.id))
        stood[node.id] = step, state
    return TaskTree(info, tree, "\n".join(text for text in prompt if text), tuple(steps), states)


def _end(step: ShownStep | None, prompt: list[str], here: Reached, ending: Ending | None) -> None:
    """Note on ``step``, else in the prompt, that an attempt ended: not where it only forks, or goes on."""
    record, score = (None, None) if ending is None else (ending.record, ending.score)
    said = HowEnded(here.node, record, score, here.paid)
    if said.failure is not None:
        note = f"The attempt failed: {said.failure}"
        if step is None:
            prompt.append(note)
        else:
            step.answer = f"{step.answer}\n{note}" if step.answer else note
    if step is not None and not here.onward:
        step.outcome, step.fork, step.reward = said.word, said.fork, said.reward


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
