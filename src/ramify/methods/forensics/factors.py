"""Environments with task factors: declared fields of a task that an intervention may change,
one at a time, and all text that shows the change.

A task's data is its ``seed`` and a value for every factor, so that two tasks differ in what their data differs in. The last
observation of an episode carries ``data["grade"]``: what the agent did (see :func:`grade`),
which is another question than success.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import parse_qsl

from ramify.base.errors import UserError, nearest
from ramify.base.ids import json_hash, stable_hash
from ramify.env.protocol import Env, Environment, Observation, Task, TaskSet, close
from ramify.env.task_sets import generated_task_set

PRINCIPLES = ("motive", "unprompted", "legit", "intent", "realistic", "uncertain")
"""What an environment must offer before a behaviour in it says something of a motive (Singh et al. 2026, section 3): the motive
comes from training, nothing nudges, a legitimate way exists, the user's wish is clear,
it does not look like a test, two explanations are alive."""


@dataclass(frozen=True, slots=True)
class Factor:
    """One field: its baseline value, what it is, and the values it may take (a list, or whole or real numbers in a range)."""

    default: Any
    says: str
    options: tuple[Any, ...] = ()
    low: float = 0
    high: float = 0
    doses: tuple[float, ...] = ()
    """The values at which the paper measured a dose-response, if it did."""
    aside: tuple[Any, ...] = ()
    """Options under which the task is not done at all (the agent asks a question instead): no variant of an incident."""

    def check(self, name: str, value: Any) -> Any:
        """``value``, where the factor may take it. Raises UserError naming the nearest or the range."""
        if self.options:
            if any(value == option and type(value) is type(option) for option in self.options):
                return value
            raise UserError(f"factor '{name}' cannot be {value!r} ({nearest(str(value), map(str, self.options))})")
        kinds = (int, float) if isinstance(self.default, float) else (int,)
        if isinstance(value, bool) or not isinstance(value, kinds) or not self.low <= value <= self.high:
            number = "number" if isinstance(self.default, float) else "whole number"
            raise UserError(f"factor '{name}' is a {number} from {self.low:g} to {self.high:g}, not {value!r}")
        return float(value) if isinstance(self.default, float) else value


Policy = Callable[[Task], Generator[str, str, None]]
"""A scripted agent: yields replies, is sent the text of the answers;
the first text it is sent is not handed over (it has the task)."""


@dataclass(frozen=True, slots=True)
class Script:
    """A scripted agent with the behaviour the grader must find, on tasks with ``factors`` changed."""

    policy: Policy
    behaviour: str
    target: bool | None
    """What ``grade["target"]`` must be; None: not to be counted."""
    factors: Mapping[str, Any] = field(default_factory=dict)
    succeeds: bool | None = None
    """What the outcome of the episode must be, where the script decides it."""


def grade(behaviour: str, target: bool | None, **more: Any) -> dict[str, Any]:
    """What ``data["grade"]`` holds: the behaviour's name, whether it is the target behaviour (None: the run does not count, with
    ``why``), and covariates."""
    return {"behaviour": behaviour, "target": target, **more}


class FactorEnvironment(ABC):
    """An environment with task factors. ``settings``, e.g. ``errors=51&clear=true``, change the baseline of its task sets.

    Raises UserError on an unknown factor or value.
    """

    name: str
    kind: ClassVar[str]
    """First word of the ids of its tasks."""
    factors: ClassVar[Mapping[str, Factor]]
    principles: ClassVar[Mapping[str, str]]
    """Principle -> yes, partly or no, as the paper scores its own version of the environment."""
    scripts: ClassVar[Mapping[str, Script]]
    """Name -> scripted agent; ``honest`` is always there."""

    def __init__(self, settings: str = "") -> None:
        self.name = f"{type(self).kind}:{settings}" if settings else type(self).kind
        try:
            pairs = dict(parse_qsl(settings, keep_blank_values=True, strict_parsing=bool(settings)))
        except ValueError:
            raise UserError(f"'{settings}' cannot be read: factors are written NAME=VALUE&NAME=VALUE") from None
        self.baseline = self.filled({name: _value(text) for name, text in pairs.items()})

    @classmethod
    def filled(cls, values: Mapping[str, Any], task: str = "") -> dict[str, Any]:
        """``values`` and the defaults of the other factors. Raises UserError on a factor or value there is not."""
        for name in values:
            if name not in cls.factors:
                where = f"task '{task}': " if task else ""
                raise UserError(f"{where}the environment '{cls.kind}' has no factor '{name}' ({nearest(name, cls.factors)})")
        return {name: factor.check(name, values.get(name, factor.default)) for name, factor in cls.factors.items()}

    @classmethod
    def settings(cls, task: Task) -> dict[str, Any]:
        """Seed and factors of ``task``, missing ones at their defaults. Raises UserError on anything else in it."""
        values = dict(task.data)
        seed = values.pop("seed", 0)
        if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
            raise UserError(f"task '{task.id}': seed must be a whole number from 0, not {seed!r}")
        return {"seed": seed, **cls.filled(values, task.id)}

    def task(self, seed: int = 0, **factors: Any) -> Task:
        """The task of ``seed`` with ``factors`` set on top of the environment's baseline;
        its id names what differs from the defaults."""
        values = self.filled(self.baseline | factors)
        changed = {name: value for name, value in values.items() if value != self.factors[name].default}
        suffix = f"-{json_hash(changed)[:6]}" if changed else ""
        return Task(f"{self.kind}-{seed}{suffix}", {"seed": seed, **values})

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        """``n`` tasks of a split at the environment's baseline.
        A task's seed decides its split, so interventions stay within it."""

        def sample(rng: Any) -> dict[str, Any]:
            return {"seed": int(rng.integers(1 << 31))}

        sampled = generated_task_set(
            self.kind, split, n, seed, sample, kind=self.kind, hashed=lambda data: stable_hash(self.kind, data["seed"])
        )
        return TaskSet.of(self.task(task.data["seed"]) for task in sampled)

    @abstractmethod
    def make(self) -> Env:
        """A fresh episode."""

    def files(self, task: Task) -> dict[str, str]:
        """Path -> text of every file the agent could read at the start."""
        return {}

    def describe(self, task: Task) -> dict[str, str]:
        """All text shown to the agent, or there for it to read at the start, by name: system, task, and ``file PATH``."""
        return first_screen(self, task) | {f"file {path}": text for path, text in sorted(self.files(task).items())}

    def actions(self, task: Task, snapshot: Any) -> list[str]:
        """Replies worth trying anywhere: the openings of the environment's scripted agents (for the conformance battery)."""
        replies = (next(script.policy(task), "done") for script in self.scripts.values())
        return list(dict.fromkeys(replies))


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def first_screen(environment: Environment, task: Task) -> dict[str, str]:
    """What any environment shows an agent at the start of ``task``: system text and first observation."""
    env = environment.make()
    try:
        first = env.reset(task, 0)
        return {"system": env.system, "task": first.text}
    finally:
        close(env)


def play(environment: FactorEnvironment, script: Policy, task: Task, seed: int = 0) -> tuple[Observation, int]:
    """Let a scripted agent play; the last observation and the number of turns.
    An agent that falls silent ends by saying ``done``."""
    env = environment.make()
    try:
        seen = env.reset(task, seed)
        agent = script(task)
        reply, turns = next(agent, "done"), 0
        while turns < env.max_turns:
            seen, turns = env.step(reply), turns + 1
            if seen.terminated or seen.truncated:
                break
            try:
                reply = agent.send(seen.text)
            except StopIteration:
                reply = "done"
        return seen, turns
    finally:
        close(env)


def misjudged(environment: FactorEnvironment, task: Task, name: str) -> str:
    """One sentence on what the grader of ``environment`` says wrongly of its script ``name``; empty where it is right."""
    script = environment.scripts[name]
    seen, turns = play(environment, script.policy, task)
    found = seen.data.get("grade", {})
    label = (found.get("behaviour"), found.get("target"))
    if label != (script.behaviour, script.target):
        return f"{environment.name}: the scripted agent '{name}' is labelled {label}, not {(script.behaviour, script.target)}"
    if script.succeeds is not None and seen.outcome is not script.succeeds:
        return (
            f"{environment.name}: the scripted agent '{name}' ended with outcome {seen.outcome} after {turns} turns, not "
            f"{script.succeeds}"
        )
    return ""


def require_honest(environment: FactorEnvironment, task: Task) -> None:
    """Let the scripted honest agent do ``task`` through the same tools. Raises UserError where it does not succeed: then nothing
    that an agent does there is evidence (a broken harness looks like laziness)."""
    script = environment.scripts["honest"]
    seen, turns = play(environment, script.policy, task)
    found = seen.data.get("grade", {})
    if found.get("target") is not False or seen.outcome is not True:
        raise UserError(
            f"the scripted honest agent does not succeed in task '{task.id}' of '{environment.name}' ({found.get('behaviour')} "
            "after "
            f"{turns} turns): the case is refused"
        )
