"""The conformance battery every environment must pass: what rollouts, forks and task sets rely on, each point one check."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ramify.base.errors import UserError
from ramify.base.ids import canonical_json
from ramify.base.problem import Problem
from ramify.base.progress import Progress
from ramify.base.seeds import generator
from ramify.env.protocol import Env, Environment, Observation, Snapshot, Task, TaskSet, Volatile, close, tools_of
from ramify.testing.probe import name_of, run_checks

#: Replies that mean nothing in any environment, or try to break it.
BAD_ACTIONS = ("", " ", "\n", "\x00", "take", "go nowhere at all", "{}[]\"'", "a" * 5000, "\u202eopen", "🗝", "-1", "None")
SPLITS = ("train", "eval", "tune")

Actions = Callable[[Task, Snapshot], Sequence[str]]
"""Given a task and the state's snapshot (None where the environment has none): replies worth trying."""


def check_env(
    environment: Environment,
    actions: Actions | None = None,
    tasks: int = 3,
    turns: int = 8,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Problem]:
    """Run every check on ``tasks`` training tasks, walks of at most ``turns`` turns; no problem means the environment conforms.

    Replies come from ``actions``, else from the environment's own method ``actions(task, snapshot)``, else from the words it
    shows. ``progress`` is told the checks that are done, and the episodes begun in the one under way.
    """
    at, begun = 0, 0

    def begins(number: int) -> None:
        nonlocal at, begun
        at, begun = number, 0
        report()

    def report(begins: int = 0) -> None:
        nonlocal begun
        begun += begins
        if progress is not None:
            name = name_of(CHECKS[at]).replace("_", " ")
            progress.at(at, f"{name}, episode {begun}" if begun else name)

    probe = _Probe(environment, actions or getattr(environment, "actions", None), tasks, turns, seed, report)
    return run_checks(CHECKS, probe, begins, probe.close_all)


@dataclass(frozen=True, slots=True)
class _Place:
    """A state reached: the actions that lead there, and what was seen of it."""

    actions: tuple[str, ...]
    seen: Observation
    snapshot: Snapshot | None
    key: str | None

    @property
    def over(self) -> bool:
        return self.seen.terminated or self.seen.truncated


@dataclass(frozen=True)
class _Probe:
    environment: Environment
    suggest: Actions | None
    count: int
    turns: int
    seed: int
    report: Callable[[int], None]
    """Told of every episode that begins."""
    opened: list[Env] = field(default_factory=list)

    def close_all(self) -> Iterator[str]:
        """Give back every environment that was started; what that raises."""
        while self.opened:
            try:
                close(self.opened.pop())
            except Exception as error:  # third-party code
                yield f"close raises {type(error).__name__}: {error}"

    def task_set(self) -> TaskSet:
        return self.environment.task_set("train", self.count, self.seed)

    def start(self, task: Task) -> tuple[Env, Observation]:
        self.report(1)
        env = self.environment.make()
        self.opened.append(env)
        return env, env.reset(task, self.seed)

    def walk(self, task: Task, number: int) -> list[_Place]:
        """Walk ``number`` from the task's start: every place on the way."""
        env, seen = self.start(task)
        rng = generator(self.seed, "battery", task.id, number)
        places = [_Place((), seen, _kept(env.snapshot()), env.key())]
        while len(places) <= self.turns and not places[-1].over:
            options = self.options(task, places[-1])
            action = options[int(rng.integers(len(options)))]
            seen = env.step(action)
            places.append(_Place((*places[-1].actions, action), seen, _kept(env.snapshot()), env.key()))
        return places

    def options(self, task: Task, place: _Place) -> list[str]:
        actions = list(self.suggest(task, place.snapshot)) if self.suggest else place.seen.text.split()
        return actions or ["wait"]

    def replay(self, task: Task, actions: Sequence[str]) -> Env:
        env, _ = self.start(task)
        for action in actions:
            env.step(action)
        return env


def _kept(snapshot: Snapshot | None) -> Snapshot | None:
    """The snapshot as a store gives it back; one that is kept in memory only, as it is."""
    return snapshot if snapshot is None or isinstance(snapshot, bytes | Volatile) else json.loads(canonical_json(snapshot))


def _comparable(snapshot: Snapshot | None) -> Snapshot | None:
    """What of a snapshot can be compared: of one in memory only that it is one."""
    return "volatile" if isinstance(snapshot, Volatile) else _kept(snapshot)


def _task_set(probe: _Probe) -> Iterator[str]:
    first, again = probe.task_set(), probe.task_set()
    # an environment whose tasks are a list may have fewer, but then it has no more of them
    if len(first) > probe.count or (
        len(first) < probe.count and len(probe.environment.task_set("train", probe.count + 1, probe.seed)) != len(first)
    ):
        yield f"a task set of {probe.count} tasks has {len(first)}"
    if first.hash != again.hash:
        yield "the same split and seed give different task sets"
    if TaskSet.of(reversed(list(first))).hash != first.hash:
        yield "the task set's hash depends on the order of its tasks"


def _splits(probe: _Probe) -> Iterator[str]:
    task_sets = {}
    for split in SPLITS:
        try:
            tasks = [
                *itertools.chain(*(probe.environment.task_set(split, 10 * probe.count, probe.seed + more) for more in (0, 1)))
            ]
        except UserError:  # a list of tasks may have none for some split
            tasks = []
        task_sets[split] = {task.id for task in tasks} | {canonical_json(dict(task.data)) for task in tasks if task.data}
    for left, right in itertools.combinations(SPLITS, 2):
        if task_sets[left] & task_sets[right]:
            yield f"the splits {left} and {right} share tasks"
    try:
        probe.environment.task_set("no-such-split", 1)
    except UserError:
        return
    yield "an unknown split is not refused with a UserError"


def _observations(probe: _Probe) -> Iterator[str]:
    env = probe.environment.make()
    if not isinstance(env.max_turns, int) or env.max_turns < 1:
        yield f"max_turns is {env.max_turns!r}, not a whole number from 1"
    if not isinstance(env.system, str):
        yield "system is not text"
    for task in probe.task_set():
        for place in probe.walk(task, 0):
            seen = place.seen
            if seen.terminated and seen.truncated:
                yield "an observation is terminated and truncated at once"
            if not isinstance(seen.text, str) or seen.role not in ("user", "tool"):
                yield f"an observation is not text of role user or tool, but {type(seen.text).__name__} of role {seen.role!r}"
            if not math.isfinite(seen.reward):
                yield f"a reward is {seen.reward}"
            if seen.outcome not in (None, True, False):
                yield f"an outcome is {seen.outcome!r}, not True, False or None"


def _reset(probe: _Probe) -> Iterator[str]:
    for task in probe.task_set():
        places = probe.walk(task, 0)
        fresh, _ = probe.start(task)
        used = probe.replay(task, places[-1].actions)
        for env, what in ((fresh, "a fresh environment"), (used, "an environment used before")):
            if not _same(env, env.reset(task, probe.seed), places[0]):
                yield f"reset of {what} with the same task and seed gives another start"
            yield from _follow(env, places, 0, f"after reset of {what}, the same actions")


def _snapshots(probe: _Probe) -> Iterator[str]:
    for task in probe.task_set():
        env, _ = probe.start(task)
        snapshot = env.snapshot()
        if snapshot is None or isinstance(snapshot, bytes | Volatile):
            continue
        try:
            canonical_json(snapshot)
        except (TypeError, ValueError) as error:
            yield f"a snapshot is neither JSON nor bytes, nor declared Volatile: {error}"


def _restore(probe: _Probe) -> Iterator[str]:
    for task in probe.task_set():
        places = probe.walk(task, 1)
        if places[0].snapshot is None:
            return
        for number, place in enumerate(places):
            fresh, _ = probe.start(task)
            used = probe.replay(task, places[-1].actions)
            for env, what in ((fresh, "a fresh"), (used, "a used")):
                env.restore(place.snapshot)
                if _comparable(env.snapshot()) != _comparable(place.snapshot) or env.key() != place.key:
                    yield f"restore into {what} environment gives another snapshot or key than was taken"
                yield from _follow(env, places, number, f"after restore into {what} environment, the same actions")


def _sharing(probe: _Probe) -> Iterator[str]:
    for task in probe.task_set():
        places = probe.walk(task, 2)
        alone, company = probe.start(task)[0], probe.start(task)[0]
        for action in places[-1].actions:
            alone.step(action)
        if not _same(company, places[0].seen, places[0]):
            yield "two environments share state: steps in one show in the other"
        yield from _follow(company, places, 0, "while another environment is open, the same actions")
        if places[0].snapshot is None:
            continue
        origin, _ = probe.start(task)
        snapshot = origin.snapshot()
        left, right, late = (probe.start(task)[0] for _ in range(3))
        left.restore(snapshot)
        right.restore(snapshot)
        for env in (origin, left):
            for action in places[-1].actions:
                env.step(action)
        if _comparable(snapshot) != _comparable(places[0].snapshot):
            yield "a snapshot changes when an environment steps on"
        if not _same(right, places[0].seen, places[0]):
            yield "two environments restored from one snapshot share mutable state"
        late.restore(snapshot)
        for env, what in ((right, "beside"), (late, "after")):
            yield from _follow(env, places, 0, f"in an environment restored {what} another from one snapshot, the same actions")


def _keys(probe: _Probe) -> Iterator[str]:
    for task in probe.task_set():
        walks = [probe.walk(task, 0)]
        if all(place.key is None for place in walks[0]):
            continue
        walks += [probe.walk(task, number) for number in range(1, 6)]
        first: dict[str, _Place] = {}
        for place in itertools.chain(*walks):
            if place.key is None:
                continue
            twin = first.setdefault(place.key, place)
            if twin.actions == place.actions:
                continue
            if twin.over != place.over:
                yield "an ended state and one that continues have the same key"
            elif not place.over:
                yield from _same_future(probe, task, twin, place)


def _same_future(probe: _Probe, task: Task, left: _Place, right: _Place) -> Iterator[str]:
    options = dict.fromkeys([*probe.options(task, left), *probe.options(task, right), BAD_ACTIONS[0]])
    for action in list(options)[:8]:
        a, b = probe.replay(task, left.actions), probe.replay(task, right.actions)
        if a.step(action) != b.step(action) or a.key() != b.key():
            yield "two states with the same key answer the same action differently"


def _bad_actions(probe: _Probe) -> Iterator[str]:
    task = next(iter(probe.task_set()))
    for action in BAD_ACTIONS:
        env, _ = probe.start(task)
        try:
            seen = env.step(action)
        except Exception as error:  # whatever a reply says, the environment must answer
            yield f"the reply {action[:20]!r} raises {type(error).__name__} instead of an observation"
            continue
        if not isinstance(seen, Observation):
            yield f"the reply {action[:20]!r} is answered with {type(seen).__name__} instead of an observation"


def _tools(probe: _Probe) -> Iterator[str]:
    names = []
    for tool in tools_of(probe.environment):
        function = tool.get("function", {})
        names.append(function.get("name"))
        if tool.get("type") != "function" or not isinstance(function.get("name"), str):
            yield f"a tool is not of the form {{'type': 'function', 'function': {{'name': ...}}}}: {str(tool)[:80]}"
        if function.get("parameters", {}).get("type") != "object":
            yield f"the parameters of the tool {function.get('name')!r} are no JSON schema of an object"
        canonical_json(tool)
    if len(set(names)) < len(names):
        yield "two tools have one name"


def _same(env: Env, seen: Observation, place: _Place) -> bool:
    return seen == place.seen and _comparable(env.snapshot()) == _comparable(place.snapshot) and env.key() == place.key


def _follow(env: Env, places: Sequence[_Place], start: int, what: str) -> Iterator[str]:
    for place in places[start + 1 :]:
        if not _same(env, env.step(place.actions[-1]), place):
            yield f"{what} give other observations, snapshots or keys"
            return


CHECKS: tuple[Callable[[_Probe], Iterator[Any]], ...] = (
    _task_set, _splits, _observations, _reset, _snapshots, _restore, _sharing, _keys, _bad_actions, _tools,
)  # fmt: skip
