"""Errors of our own in attempts at AgentDojo and TextWorld, and what names them in the log alone.

    python -m ramify_experiments.why.injected [--games 12] [--out repro/injected_errors.json]

An agent follows the environment's own solution, and slips now and then. In one attempt of a task one step is replaced: a call to
a tool that there is not, a call without a required argument, another value, a call left out, a call made twice, or a call for
something that does not exist; the agent goes on as if nothing had happened. The attempt failed, and forks with the unchanged
agent say that it was lost at that step (``ramify why``, played): only then it is a case. What is asked of the log alone: the step
that a rule names, the first error, the last step, and a random one.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ramify
from ramify.env.protocol import Task
from ramify.jobs.log.rules import RULES
from ramify.rollout.components import any_environment
from ramify.stats.intervals import clopper_pearson
from ramify.trace.message import parse_tool_calls, write_call

SUITES = ("banking", "slack", "travel", "workspace")
GAMES = "textworld:make?rooms=4&objects=6&length=6&max_turns=12"
SLIP = 0.03
"""Chance of a step that is not the solution's."""
TOOL_KINDS = ("no such tool", "argument missing", "another value", "left out", "twice", "error ignored")
TEXT_KINDS = ("no such command", "left out", "twice", "another way")
Agent = Callable[[list[Mapping[str, Any]], int], str]


@dataclass
class InjectedStep:
    """One attempt with an injected error, and what names which of its steps (from 1; None: no step)."""

    environment: str
    task: str
    kind: str
    steps: int
    injected: int
    lost: bool
    """Whether forks say that the attempt was lost there."""
    before: float | None
    rule: int | None = None
    by: str = ""
    """The rule that names it."""
    first_error: int | None = None


class _ByHistory:
    """An environment whose states are what was said: the agent goes by that, and an environment's own state would hide it."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def make(self) -> Any:
        """An episode that reports no state."""
        episode = self._environment.make()
        episode.key = lambda: None
        return episode


def _replies(messages: list[Mapping[str, Any]]) -> int:
    return sum(bool(message["role"] == "assistant") for message in messages)


def follower(right: list[str]) -> Agent:
    """The agent: the solution's step, or with chance :data:`SLIP` the one before once more."""

    def reply(messages: list[Mapping[str, Any]], key: int) -> str:
        at = min(_replies(messages), len(right) - 1)
        slips = at and random.Random(key).random() < SLIP
        return right[at - 1] if slips else right[at]

    return reply


def with_error(right: list[str], step: int, wrong: str | None) -> Agent:
    """The same agent without slips; step ``step``, from 0, is ``wrong``, or left out where that is None."""
    path = [*right[:step], *([] if wrong is None else [wrong]), *right[step + 1 :]]

    def reply(messages: list[Mapping[str, Any]], key: int) -> str:
        return path[min(_replies(messages), len(path) - 1)]

    return reply


def broken_call(kind: str, right: list[str], step: int, rng: random.Random) -> tuple[str | None, bool]:
    """(what stands in the place of a step that is a call, whether there is such an error of this call)."""
    (call, *_), said = parse_tool_calls(right[step]), right[step]
    arguments = dict(call.arguments)
    texts = [name for name, value in arguments.items() if isinstance(value, str) and value]
    if kind == "no such tool":
        return write_call(f"{call.name}_now", arguments), True
    if kind == "argument missing":
        return write_call(call.name, dict(list(arguments.items())[1:])), bool(arguments)
    if kind == "another value":
        numbers = [name for name, value in arguments.items() if isinstance(value, int | float) and not isinstance(value, bool)]
        if numbers:
            return write_call(call.name, arguments | {numbers[0]: arguments[numbers[0]] + 7}), True
        name = rng.choice(texts) if texts else ""
        return write_call(call.name, arguments | {name: f"{arguments.get(name)}2"}), bool(texts)
    if kind == "error ignored":
        name = texts[0] if texts else ""
        return write_call(call.name, arguments | {name: "nobody-knows-this"}), bool(texts)
    if kind == "twice":
        return right[step - 1], step > 0 and bool(parse_tool_calls(right[step - 1]))
    return None, kind == "left out" and bool(said)


def broken_command(kind: str, right: list[str], step: int, rng: random.Random) -> tuple[str | None, bool]:
    """The same of a command in a game."""
    if kind == "no such command":
        return f"zap {right[step].split()[-1]}", True
    if kind == "twice":
        return right[step - 1], step > 0
    if kind == "another way":
        others = sorted({"go north", "go south", "go east", "go west", "look"} - {right[step]})
        return rng.choice(others), True
    return None, kind == "left out"


def cases(games: int, seed: int) -> Iterator[InjectedStep]:
    """Every task of AgentDojo's suites and ``games`` games, each with errors of two kinds."""
    rng = random.Random(seed)
    for suite in SUITES:
        environment = _ByHistory(any_environment(f"agentdojo:{suite}"))
        tasks = [task for split in ("train", "eval", "tune") for task in environment.task_set(split, 10_000)]
        for task in tasks:
            yield from _of_task(environment, f"agentdojo:{suite}", task, TOOL_KINDS, broken_call, rng)
    environment = _ByHistory(any_environment(GAMES))
    for task in environment.task_set("train", games):
        yield from _of_task(environment, "textworld", task, TEXT_KINDS, broken_command, rng)


def _of_task(
    environment: Any, name: str, task: Task, kinds: tuple[str, ...], broken: Callable[..., Any], rng: random.Random
) -> Iterator[InjectedStep]:
    right = environment.walkthrough(task)
    able = [i for i, said in enumerate(right) if broken is broken_command or parse_tool_calls(said)]
    for kind in rng.sample(kinds, 2) if len(right) > 2 and able else ():
        step = rng.choice(able)
        wrong, fits = broken(kind, right, step, rng)
        if fits and wrong != right[step] and (case := _played(environment, name, task, kind, right, step, wrong)) is not None:
            yield case


def _played(
    environment: Any, name: str, task: Task, kind: str, right: list[str], step: int, wrong: str | None
) -> InjectedStep | None:
    """Play the attempt, ask forks where it was lost, and ask the log alone; None where the attempt succeeded all the same."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        ramify.play(with_error(right, step, wrong), environment, [task], attempts=1, out=run)
        log = ramify.why(run, samples=0)
        if log.success:
            return None
        played = ramify.why(run, model=follower(right), env=environment, describe=0, n=16)
        at = [one.node for one in played.steps]
        injected = step + 1 if wrong is not None or step < len(at) else len(at)
        case = InjectedStep(name, task.id, kind, len(at), injected, _number(played.node, at) == injected, played.before.p)
        if log.named_by == "rule":
            case.rule, case.by = _number(log.node, at), next(one.rule for one in log.broken if one.node == log.node)
        errors = [one.step for one in log.broken if one.rule in ("failed call", "ignored error", "refused call")]
        case.first_error = min(errors, default=None)
        return case


def _number(node: str | None, nodes: list[str]) -> int | None:
    return nodes.index(node) + 1 if node in nodes else None


def summary(found: list[InjectedStep]) -> dict[str, Any]:
    """Of the cases whose effect forks measured: how often each way names the injected step, in all and by kind."""
    known = [one for one in found if one.lost]
    groups = {"all": known} | {
        kind: [one for one in known if one.kind == kind] for kind in (*TOOL_KINDS, *TEXT_KINDS[:1], TEXT_KINDS[3])
    }
    groups |= {"textworld": [one for one in known if one.environment == "textworld"]}
    rows = {}
    for name, ones in groups.items():
        ways = {
            "rule": [one.rule == one.injected for one in ones],
            "rule names any": [one.rule is not None for one in ones],
            "first error": [one.first_error == one.injected for one in ones],
            "last step": [one.steps == one.injected for one in ones],
        }
        rows[name] = {way: share(sum(hits), len(hits)) for way, hits in ways.items()}
        rows[name]["random step"] = {"p": sum(1 / one.steps for one in ones) / len(ones) if ones else None, "n": len(ones)}
    return rows


def share(k: int, n: int) -> dict[str, Any]:
    """k of n with the exact interval."""
    return {"k": k, "n": n, "interval": clopper_pearson(k, n) if n else None}


def main() -> None:
    """The command above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = []
    for case in cases(args.games, args.seed):
        found.append(case)
        print(json.dumps(asdict(case)), flush=True)
    rows = summary(found)
    record = {"failed": len(found), "lost there": sum(one.lost for one in found), "rules": list(RULES), "found": rows}
    print(json.dumps(record))
    if args.out:
        args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
