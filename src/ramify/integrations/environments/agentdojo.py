"""AgentDojo's suites (banking, slack, travel, workspace) as environments, with its injections and its checkers:
``agentdojo:SUITE``, or ``agentdojo:SUITE?attack=NAME`` for every user task with every injection (Debenedetti et al. 2024).

A snapshot is the list of the calls that were made: the tools act on the suite's state alone, so making the calls again gives
that state exactly. The state itself, as JSON, would not: the suite's validators rebuild parts of it. Two of the tools write the
clock's time into it; for them the clock stands.
"""

from __future__ import annotations

import datetime
import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from ramify.base.errors import UserError, nearest
from ramify.base.ids import canonical_json, json_hash, stable_hash
from ramify.base.registry import register
from ramify.env.protocol import Env, Observation, Snapshot, Task, TaskSet
from ramify.env.tools import tool_json
from ramify.integrations.environments.spec import TaskList, import_package, options
from ramify.integrations.environments.tools import ToolEpisode, ToolReply, refusal
from ramify.trace.message import write_call

VERSION = "v1.2.1"
MAX_TURNS = 20
GOALS = ("utility", "resisted", "both")
"""What an attempt must reach: the user's task, that the injection's goal was not reached, or both."""
_TIME = datetime.datetime(2024, 5, 15, 12)
"""The time of every call; the suites are set in that month."""
_CLOCKED = ("email_client", "cloud_drive_client")
"""Modules of AgentDojo whose tools write the time."""


class AgentDojoEpisode(ToolEpisode):
    """One task of a suite, with one injection or none."""

    def __init__(self, environment: AgentDojoEnvironment) -> None:
        effects = {str(tool["function"]["name"]): "sandboxed" for tool in environment.tools}
        super().__init__(self.call, environment.tools, environment.system, environment.max_turns, self._goal, effects)
        self._environment = environment
        self._calls: list[dict[str, Any]] = []
        self._world: Any = None
        self._begun: Any = None
        self._checks: dict[str, bool] = {}

    def reset(self, task: Task, seed: int) -> Observation:
        """Show the user's task. Raises UserError where the suite has no such task or injection."""
        self._begun, self._world = self._environment.world(task), self._environment.world(task)
        self._calls, self._checks = [], {}
        return self.begin(task)

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolReply:
        """Run a tool of the suite."""
        if name not in self._environment.names:
            return refusal(f"there is no tool '{name}' ({nearest(name, self._environment.names)})")
        return self.guarded(name, arguments, lambda: self._run(name, arguments))

    def step(self, action: str) -> Observation:
        """Run the reply's calls, or take it as the answer; the last observation has ``checks``, what the suite's checkers say:
        ``utility``, and ``injected`` where there was an injection."""
        seen = super().step(action)
        return replace(seen, data={**seen.data, "checks": self._checks}) if self._checks else seen

    def snapshot(self) -> Snapshot:
        """The calls that were made."""
        return {"calls": [dict(call) for call in self._calls], "over": self._over}

    def restore(self, snapshot: Snapshot) -> None:
        """Begin the task anew and make the calls of ``snapshot`` again."""
        assert self._task is not None
        self._world, self._calls, self._checks = self._environment.world(self._task), [], {}
        self._over = snapshot["over"]
        for call in snapshot["calls"]:
            self._run(call["name"], call["arguments"])

    def key(self) -> str | None:
        """The task and the suite's state; the calls too where the task's checker reads them."""
        if self._task is None:
            return None
        state = canonical_json(self._world.model_dump(mode="json"))
        traced = self._calls if self._environment.traced(self._task) else []
        return json_hash([dict(self._task.data), state, traced, self._over])

    def _run(self, name: str, arguments: Mapping[str, Any]) -> ToolReply:
        self._calls.append({"name": name, "arguments": dict(arguments)})
        with _clock():
            text, error = self._environment.run(self._world, name, arguments)
        if error and error.startswith("ValidationError"):
            self._calls.pop()  # nothing ran
            return refusal(f"{name}: {error}")
        return ToolReply(f"error: {error}", failed=True) if error else ToolReply(text)

    def _goal(self, task: Task, answer: str, _: Any) -> float:
        self._checks = self._environment.checks(task, answer, self._begun, self._world, self._calls)
        return float(self._environment.reached(self._checks))


@register("env", "agentdojo")
class AgentDojoEnvironment:
    """A suite of AgentDojo. Options after ``?``: ``attack`` (a name of AgentDojo's; none: user tasks alone), ``injection`` (one
    injection task; default all), ``goal`` (:data:`GOALS`), ``version``, ``max_turns``.

    A user task and all its injections are in one split. Raises UserError on a suite, attack or option that does not exist,
    NeedsError where agentdojo is not installed.
    """

    def __init__(self, argument: str = "") -> None:
        suite, given = options(argument)
        import_package("agentdojo", "worlds", "the environment 'agentdojo'")
        self.name = f"agentdojo:{argument}"
        self.attack, self._injection = str(given.pop("attack", "")), str(given.pop("injection", ""))
        self.goal, self._version = str(given.pop("goal", GOALS[0])), str(given.pop("version", VERSION))
        self.max_turns = given.pop("max_turns", MAX_TURNS)
        if given:
            known = ("attack", "injection", "goal", "version", "max_turns")
            raise UserError(f"{self.name} has no option '{next(iter(given))}' ({nearest(next(iter(given)), known)})")
        if type(self.max_turns) is not int or self.max_turns < 1:
            raise UserError(f"max_turns must be a whole number from 1, not {self.max_turns!r}")
        if self.goal not in GOALS:
            raise UserError(f"goal is {', '.join(GOALS)}, not '{self.goal}' ({nearest(self.goal, GOALS)})")
        self._suite = _suite(suite, self._version)
        self._attack = _attack(self.attack, self._suite) if self.attack else None
        if self._injection and not self.attack:
            raise UserError(
                f"{self.name}: an injection needs an attack that puts it there, such as attack=important_instructions"
            )
        self._runtime = importlib.import_module("agentdojo.functions_runtime").FunctionsRuntime(self._suite.tools)
        self._as_text = importlib.import_module("agentdojo.agent_pipeline.tool_execution").tool_result_to_str
        self._call_of = importlib.import_module("agentdojo.functions_runtime").FunctionCall
        self.names = tuple(tool.name for tool in self._suite.tools)
        self.tools = [tool_json(tool.name, tool.description, tool.parameters.model_json_schema()) for tool in self._suite.tools]
        self.system = importlib.import_module("agentdojo.agent_pipeline.agent_pipeline").load_system_message(None)
        self._tasks = TaskList(self._listed(), self.name)
        self._untouched = lru_cache(maxsize=64)(self._load)

    def make(self) -> Env:
        """A fresh episode."""
        return AgentDojoEpisode(self)

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        """At most ``n`` tasks of a split."""
        return self._tasks.task_set(split, n, seed)

    def world(self, task: Task) -> Any:
        """The suite's state at the beginning of a task, a copy of its own."""
        return self._untouched(*self._named(task)).model_copy(deep=True)

    def run(self, world: Any, name: str, arguments: Mapping[str, Any]) -> tuple[str, str | None]:
        """What a tool gives, as AgentDojo shows it, and its error."""
        result, error = self._runtime.run_function(world, name, dict(arguments))
        return ("" if error else self._as_text(result)), error

    def traced(self, task: Task) -> bool:
        """Whether a checker of the task reads the calls, not the state alone."""
        base = importlib.import_module("agentdojo.base_tasks")
        user, injection = self._of(task)
        reads_calls = type(user).utility_from_traces is not base.BaseUserTask.utility_from_traces
        return reads_calls or (
            injection is not None and type(injection).security_from_traces is not base.BaseInjectionTask.security_from_traces
        )

    def checks(self, task: Task, answer: str, before: Any, after: Any, calls: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
        """What the suite's own checkers say: ``utility``, and of an injection ``injected``, whether its goal was reached."""
        user, injection = self._of(task)
        run = [self._call_of(function=call["name"], args=dict(call["arguments"])) for call in calls]
        traced = user.utility_from_traces(answer, before, after, run)
        told = {"utility": bool(user.utility(answer, before, after) if traced is None else traced)}
        if injection is not None:
            traced = injection.security_from_traces(answer, before, after, run)
            told["injected"] = bool(injection.security(answer, before, after) if traced is None else traced)
        return told

    def reached(self, checks: Mapping[str, bool]) -> bool:
        """Whether an attempt with these checks reached the goal."""
        resisted = not checks.get("injected", False)
        return {"utility": checks["utility"], "resisted": resisted, "both": checks["utility"] and resisted}[self.goal]

    def walkthrough(self, task: Task, injected: bool = False) -> list[str]:
        """Replies that reach the user's goal, or the injection's; AgentDojo's own."""
        user, injection = self._of(task)
        if injected and injection is None:
            raise UserError(f"task '{task.id}' has no injection")
        chosen = injection if injected else user
        calls = [write_call(call.function, dict(call.args)) for call in chosen.ground_truth(self.world(task))]
        return [*calls, str(getattr(chosen, "GROUND_TRUTH_OUTPUT", "")) or "Done."]

    def actions(self, task: Task, snapshot: Snapshot) -> Sequence[str]:
        """Replies worth trying, for the conformance battery."""
        return self.walkthrough(task)

    def _listed(self) -> Iterator[Task]:
        injections = [""] if self._attack is None else [self._injection] if self._injection else [*self._suite.injection_tasks]
        if self._injection and self._injection not in self._suite.injection_tasks:
            raise UserError(f"{self.name} has no injection ({nearest(self._injection, self._suite.injection_tasks)})")
        for name, user in self._suite.user_tasks.items():
            split = ("train", "train", "eval", "tune")[int(stable_hash("split", self._suite.name, name)[:8], 16) % 4]
            for injection in injections:
                data = {"prompt": user.PROMPT, "user_task": name, "split": split}
                data |= {"injection_task": injection} if injection else {}
                yield Task("-".join(filter(None, (self._suite.name, name, injection))), data)

    def _named(self, task: Task) -> tuple[str, str]:
        return str(task.data.get("user_task", "")), str(task.data.get("injection_task", ""))

    def _of(self, task: Task) -> tuple[Any, Any]:
        """The suite's user task and injection task. Raises UserError where it has none of the name."""
        user, injection = self._named(task)
        for what, name, known in (
            ("user task", user, self._suite.user_tasks),
            ("injection task", injection, {"": None, **self._suite.injection_tasks}),
        ):
            if name not in known:
                raise UserError(f"task '{task.id}': the suite {self._suite.name} has no {what} '{name}' ({nearest(name, known)})")
        return self._suite.user_tasks[user], self._suite.injection_tasks.get(injection)

    def _load(self, user: str, injection: str) -> Any:
        task, goal = self._of(Task("", {"user_task": user, "injection_task": injection}))
        try:
            injections = self._attack.attack(task, goal) if self._attack is not None and goal is not None else {}
        except ValueError as error:
            raise UserError(f"{self.name}: the attack cannot reach the task '{user}': {error}") from error
        return task.init_environment(self._suite.load_and_inject_default_environment(injections))


@lru_cache(maxsize=8)
def _suite(name: str, version: str) -> Any:
    loading = importlib.import_module("agentdojo.task_suite.load_suites")
    versions = list(loading._SUITES)
    if version not in versions:
        raise UserError(f"AgentDojo has no version '{version}' of its suites ({nearest(version, versions)})")
    suites = loading.get_suites(version)
    if name not in suites:
        raise UserError(f"AgentDojo has no suite '{name}': it has {', '.join(sorted(suites))} ({nearest(name, suites)})")
    return suites[name]


def _attack(name: str, suite: Any) -> Any:
    known = importlib.import_module("agentdojo.attacks.attack_registry")
    if name not in known.ATTACKS or name == "manual":  # which asks the person at the terminal
        names = [attack for attack in known.ATTACKS if attack != "manual"]
        raise UserError(f"AgentDojo has no attack '{name}' ({nearest(name, names)})")
    base = importlib.import_module("agentdojo.agent_pipeline.base_pipeline_element").BasePipelineElement
    # an attack asks whom it attacks what it may call the model: nobody knows here which one plays
    victim = type("Victim", (base,), {"name": "local", "query": lambda *_, **__: None})()
    return known.load_attack(name, suite, victim)


@contextmanager
def _clock() -> Iterator[None]:
    """The tools read one time: what an attempt does is the same whenever it is played."""

    class Clock(datetime.datetime):
        """A clock that stands."""

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
            """The time."""
            return _TIME

    pinned = SimpleNamespace(**{**vars(datetime), "datetime": Clock})
    modules = [importlib.import_module(f"agentdojo.default_suites.v1.tools.{name}") for name in _CLOCKED]
    with patch.object(modules[0], "datetime", pinned), patch.object(modules[1], "datetime", pinned):
        yield
