"""Results of tau-bench (a list of ``task_id, reward, info, traj, trial``) and of tau2-bench (``tasks`` and ``simulations``).

The user of these benchmarks is a model, too: its turns, its calls of tools and their results are given text, not the agent's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.base.registry import register
from ramify.integrations.formats.attempts import Attempts, WholeAttempt, ending, named, objects, words
from ramify.trace.aliases import RECORD
from ramify.trace.db import Run
from ramify.trace.foreign import import_records
from ramify.trace.formats import Reader
from ramify.trace.lines import field, read_items, read_members
from ramify.trace.message import Message, number, plain, read_message
from ramify.trace.notes import unread

_TAU = frozenset(("task_id", "reward", "info", "traj", "messages", "trial", "records"))
_TAU2 = frozenset(
    (
        "id", "task_id", "messages", "reward_info", "termination_reason", "trial", "seed", "mode", "ticks", "agent_cost",
        "user_cost",
    )
)  # fmt: skip
_OF_MESSAGE = ("turn_idx", "raw_data", "requestor", "error", "tool_messages", "is_audio", "audio_format", "is_final_chunk")


def read_tau(path: Path, folder: Path) -> int:
    """Make a run in ``folder`` from results of tau-bench: a JSON list, or one a line. Returns how many attempts.

    The task is ``task_id``, with the user's instruction; trials of it are attempts. ``reward`` is the outcome, a success at 1;
    its parts are metrics. A result that holds an error is a failure. Raises UserError naming file, item and field."""
    attempts = Attempts()

    def add(run: Run, record: dict[str, Any], place: str, _: int) -> None:
        info = field(record, "info", dict, place, {})
        spots = objects(record.get("messages"), f"{place}: 'traj'")
        messages = [read_message({k: v for k, v in value.items() if k != "index"}, spot) for spot, value in spots]
        reward = field(record, "reward", (float, int), place, None)
        task = named(info, "task")
        parts = named(info, "reward_info", "info")
        unread({k: v for k, v in record.items() if k not in _TAU}, RECORD, "record")
        attempt = WholeAttempt(
            task=str(field(record, "task_id", (int, str), place)),
            messages=messages,
            judged=ending(record, place, reward),
            about={k: v for k, v in record.items() if k not in ("task_id", "messages", "info")}
            | {"info": {k: v for k, v in info.items() if k != "task"}},
            facts=dict(task) if isinstance(task, Mapping) else {},
            metrics=_metrics(parts, "r_actions", "r_outputs"),
        )
        attempts.hang(run, attempt, place)

    return import_records(path, folder, "tau-bench", add, end=attempts.end, records=read_items(path))


def read_tau2(path: Path, folder: Path) -> int:
    """Make a run in ``folder`` from results of tau2-bench: the whole file, of any size, or a file with one simulation. Returns
    how many simulations.

    The task is ``domain/task_id`` with what the user is told; simulations of it are attempts. The reward is the outcome, a
    success at 1, its parts are metrics; ``termination_reason`` says whose fault a bad end was. A provider's raw answer is not
    kept. Raises UserError naming file, simulation and field, also on a spoken simulation, which is kept in ticks and not in
    messages.
    """
    importer = _Simulations()
    return import_records(path, folder, "tau2-bench", importer.add, importer.records(path), end=importer.attempts.end)


class _Simulations:
    def __init__(self) -> None:
        self.attempts = Attempts()
        self.info: Mapping[str, Any] = {}
        self.tasks: dict[str, Any] = {}

    def records(self, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
        """The simulations; what stands before them in the file is kept for them."""
        if not _is_results(path):
            yield from read_items(path)
            return
        for name, place, value in read_members(path):
            if name == "info" and isinstance(value, Mapping):
                self.info = value
            elif name == "tasks" and place and value.get("id") is not None:
                self.tasks[str(value["id"])] = {k: value[k] for k in ("description", "user_scenario") if value.get(k) is not None}
            elif name == "simulations" and place:
                yield place, value

    def add(self, run: Run, record: dict[str, Any], place: str, _: int) -> None:
        if record.get("messages") is None and record.get("ticks"):
            raise UserError(f"{place}: a spoken simulation, which has 'ticks' and no 'messages': it is not read")
        task = str(field(record, "task_id", (str, int), place))
        reward = field(record, "reward_info", dict, place, {})
        paid = field(reward, "reward", (float, int), f"{place}: 'reward_info'", None)
        domain = words(named(self.info, "environment_info", "domain_name"))
        agent = named(self.info, "agent_info")
        policy = words(named(self.info, "environment_info", "policy")) or words(record.get("policy"))
        messages = list(_said(record.get("messages"), f"{place}: 'messages'"))
        if policy and not any(message.role == "system" for message in messages):
            messages.insert(0, Message("system", policy))
        rest = {k: v for k, v in record.items() if k not in ("messages", "policy", "ticks")}
        unread({k: v for k, v in rest.items() if k not in _TAU2}, RECORD | {"review", "user_only_review", "info"}, "simulation")
        attempt = WholeAttempt(
            task=f"{domain}/{task}" if domain else task,
            messages=messages,
            judged=ending({"termination_reason": record.get("termination_reason")}, place, paid),
            about=rest,
            facts=self.tasks.get(task, {}),
            group=domain,
            model=words(named(agent, "llm")),
            settings=named(agent, "llm_args") if isinstance(named(agent, "llm_args"), Mapping) else {},
            metrics={
                **_metrics(reward.get("reward_breakdown"), *(reward.get("reward_breakdown") or {})),
                **_metrics(record, "agent_cost", "user_cost"),
            },
        )
        self.attempts.hang(run, attempt, place)


def _metrics(values: Any, *names: str) -> dict[str, float | None]:
    return {str(name): value for name in names if (value := number(named(values, name))) is not None}


def _said(values: Any, place: str) -> Iterator[Message]:
    """The messages of a simulation. What the user's tools were asked and answered the agent did not see as its own."""
    for spot, entry in objects(values, place):
        several = entry.get("tool_messages")
        for where, value in objects(several, f"{spot}: 'tool_messages'") if several else [(spot, entry)]:
            users = value.get("requestor") == "user"
            kept = {k: v for k, v in value.items() if k not in _OF_MESSAGE and v is not None}
            about = {k: plain(value[k]) for k in ("requestor", "error") if value.get(k)}
            if value.get("role") == "tool":
                kept["tool_call_id"] = str(kept.pop("id", ""))
                kept.setdefault("content", "")
            if isinstance(calls := kept.get("tool_calls"), list):
                kept["tool_calls"] = [{k: v for k, v in call.items() if k != "requestor"} for _, call in objects(calls, where)]
            message = read_message(kept, where)
            if users or (message.role == "user" and message.data.get("tool_calls")):
                data = {k: v for k, v in message.data.items() if k not in ("tool_calls", "tool_call_id")}
                yield Message("user", message.spoken(), {**data, "requestor": "user"})
            else:
                yield Message(message.role, message.text, {**message.data, **about})


def _is_results(path: Path) -> bool:
    """Whether a file is one object with simulations, by how it begins."""
    try:
        for name, _, _ in read_members(path):
            if name == "simulations":
                return True
    except (OSError, UserError):
        return False
    return False


def _is_tau(path: Path, first: Mapping[str, Any] | None) -> bool:
    talk = None if first is None else first.get("messages", first.get("traj"))
    return first is not None and {"task_id", "reward", "info", "trial"} <= first.keys() and isinstance(talk, list)


def _is_tau2(path: Path, first: Mapping[str, Any] | None) -> bool:
    talk = None if first is None else first.get("messages", first.get("ticks"))
    return first is not None and {"task_id", "termination_reason"} <= first.keys() and isinstance(talk, list)


_TALK = [
    {"role": "user", "content": "Cancel my flight."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "cancel", "arguments": '{"flight": "A1"}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "name": "cancel", "content": "cancelled"},
    {"role": "assistant", "content": "It is cancelled."},
]
_TAU_EXAMPLE = {
    "task_id": 0,
    "reward": 1.0,
    "info": {"task": {"user_id": "mia", "instruction": "Cancel A1."}, "source": "user", "user_cost": 0.01},
    "traj": [{"role": "system", "content": "You are an agent."}, *_TALK],
    "trial": 0,
}
_TAU2_EXAMPLE = {
    "id": "s1",
    "task_id": "0",
    "duration": 2.5,
    "termination_reason": "user_stop",
    "trial": 0,
    "reward_info": {"reward": 1.0, "reward_breakdown": {"DB": 1.0}},
    "messages": [
        {"role": "user", "content": "Cancel my flight.", "turn_idx": 0},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "name": "cancel", "arguments": {"flight": "A1"}, "requestor": "assistant"}],
            "turn_idx": 1,
        },
        {"id": "c1", "role": "tool", "content": "cancelled", "requestor": "assistant", "error": False, "turn_idx": 2},
        {"role": "assistant", "content": "It is cancelled.", "tool_calls": None, "turn_idx": 3},
    ],
}
for _reader in (
    Reader(
        "tau-bench",
        "Results of tau-bench: trials of a task as attempts, reward and its parts.",
        _is_tau,
        read_tau,
        example=json.dumps(_TAU_EXAMPLE) + "\n",
    ),
    Reader(
        "tau2-bench",
        "Results of tau2-bench, of any size: simulations of a task as attempts, reward, whose fault a bad end was.",
        _is_tau2,
        read_tau2,
        example=json.dumps(_TAU2_EXAMPLE) + "\n",
    ),
):
    register("reader", _reader.name)(_reader)
