"""A pretrained model as the reflector, the codifier and the agent of a memory, on tasks that others made (AgentDojo's bank,
played by its own solutions). Beside it the reflector of rules; null: attempts of which nothing recurs, another task's plan."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ramify.base.seeds import generator
from ramify.base.waiting import wait_for
from ramify.env.protocol import Task, tools_of
from ramify.integrations.environments.walkthroughs import play_walkthroughs
from ramify.methods.earned_code_memory.memory import Memory
from ramify.methods.earned_code_memory.roles import Role, RoleReply, ask, read_json, role_of
from ramify.methods.earned_code_memory.rules import procedure, reflect
from ramify.methods.earned_code_memory.runs import learn
from ramify.model.protocol import Sampling
from ramify.rollout.components import find_environment, find_model
from ramify.rollout.sampler import Sampler
from ramify.score.judge import reply_to
from ramify.stats.checks import Check
from ramify.trace.db import Run
from ramify.trace.message import Message
from ramify_experiments.earned_code_memory.nulls import CALLS, THINGS, line
from ramify_experiments.lab import Checks, ResultCache
from ramify_experiments.models import place

BANK = "agentdojo:banking"
RECURS = ("get_most_recent_transactions", "send_money")
"""What several of the bank's tasks, in other words each, are solved by."""
REFLECTED, NOISE, LONGEST = 4, 3, 192
SILENT = (
    "asked for the name of a tool and nothing else, the model names none within 12 tokens, with a plan or without: "
    "see docs/methods/earned-code-memory.md"
)
"""Why no plan helps 135 million weights."""
"""Tasks and attempts of noise that the model reflects on, and its longest reply in tokens."""


def real(model: str, cells: ResultCache, first: int = 0) -> Sequence[Check]:
    """What the model writes, what of it is let in, and whether it goes by what it is given."""
    found = cells.get("memory", studied, model=model, seed=first)
    checks = Checks((first,), dict.fromkeys(("agent: own plan - none", "agent: own plan - another's"), SILENT))
    bank, noise, code, agent = found["bank"], found["noise"], found["code"], found["agent"]
    for where, one in (("bank", bank), ("noise", noise)):
        checks.share(f"reflector, {where}: replies that are read", one["read"], one["tasks"])
        checks.value(f"reflector, {where}: entries kept of a task", one["kept"] / one["tasks"], one["tasks"])
    checks.value("rules, bank: entries kept of a task", bank["rules"] / bank["all"], bank["all"])
    checks.value("rules, bank: procedures that recur", bank["recurring"], bank["all"], ">=", 1)
    checks.value("null: procedures that recur in noise", noise["recurring"], noise["all"], "<=", 0)
    checks.value("null: plans past the gate, of noise", noise["gated"], noise["all"], "<=", 0)
    checks.value("null: tools of noise", noise["tools"], noise["all"], "<=", 0)
    checks.value("plans past the gate, bank", code["gated"], bank["all"], ">=", 1)
    checks.share("codifier: replies that hold tools", code["read"], code["replies"])
    checks.value("codifier: tools that are let in", code["tools"], code["replies"])
    for arm in ("none", "own", "another's"):
        checks.share(f"agent, right first call: plan given, {arm}", sum(agent[arm]), len(agent[arm]))
    checks.share("most frequent first call", agent["frequent"], len(agent["own"]))
    checks.share("the first call that the plan names", sum(agent["read off"]), len(agent["own"]))
    checks.paired("agent: own plan - none", agent["own"], agent["none"], ">=", 0.2)
    checks.paired("agent: own plan - another's", agent["own"], agent["another's"], ">=", 0.2)
    checks.value("processor seconds", found["seconds"], 1)
    return checks


def studied(model: str, seed: int) -> dict[str, Any]:
    """All of it: one cell."""
    began = os.times()
    folder = place("memory", {"model": model, "seed": seed, "bank": BANK}, __name__)
    shutil.rmtree(folder, ignore_errors=True)  # of a call that was stopped
    folder.mkdir(parents=True)
    environment: Any = find_environment(BANK)
    tasks = [task for split in ("train", "eval", "tune") for task in environment.task_set(split, 100, seed)]
    with Run.create(folder / "run", {"env": BANK, "model": None, "seed": seed, "sampling": {"max_tokens": 256}}) as run:
        asyncio.run(play_walkthroughs(environment, tasks, run, seed))
    rng, noise = generator(seed, "noise"), folder / "noise.jsonl"
    calls = [[str(name) for name in rng.permutation(CALLS)[: int(rng.integers(3, 6))]] for _ in range(NOISE)]
    lines = [line(f"{rng.choice(CALLS)} all {THINGS[i]}", own, bool(rng.random() < 0.7)) for i, own in enumerate(calls)]
    noise.write_text("\n".join(lines) + "\n", encoding="utf-8")
    apis = tools_of(environment)
    agent, template = find_model(model)
    role = role_of(agent, template, LONGEST)
    written: list[str] = []

    async def kept(prompt: str) -> RoleReply:
        said = await ask(role, prompt)
        written.append(said.text)
        return said

    def reflected(name: str, source: Any, count: int | None) -> dict[str, Any]:
        """What the model writes of the first ``count`` attempts, and what the rules write of all."""
        with Memory(folder / f"{name}.sqlite", review="auto") as memory, Memory(folder / f"{name}-rules.sqlite") as beside:
            if name == "bank":
                memory.offer(apis)
                beside.offer(apis)
            found = learn(beside, source)
            by_rules = wait_for(beside.reflect(reflect))
            learn(memory, source)
            some = _first(memory, count)
            result = wait_for(some(kept))
            gated = memory.past_the_gate()
            made = wait_for(memory.codify(kept)) if gated else None
        unread = result.dropped.get("unreadable", 0)
        return {
            "tasks": result.tasks, "read": result.tasks - unread, "kept": result.entries, "dropped": dict(result.dropped),
            "rules": by_rules.entries, "all": by_rules.tasks, "recurring": len(found.recurring), "gated": len(gated),
            "tools": 0 if made is None else len(made.active),
        }  # fmt: skip

    bank, nothing = reflected("bank", folder / "run", REFLECTED), reflected("noise", noise, None)
    few = [one for one in apis if one["function"]["name"] in RECURS]
    code = _codified(folder / "code.sqlite", folder / "run", few, kept, written)
    given = wait_for(_first_calls(folder / "bank-rules.sqlite", environment, tasks, apis, agent, template))
    ended = os.times()
    seconds = ended.user + ended.system - began.user - began.system
    return {"bank": bank, "noise": nothing, "code": code, "agent": given, "written": written, "seconds": seconds}


def _first(memory: Memory, count: int | None) -> Any:
    """Reflection on the first ``count`` tasks of a memory, all at once."""
    waiting = sum(bool(task.recorded) for task in memory.state.tasks.values())
    most = waiting if count is None else min(count, waiting)
    return partial(memory.reflect, budget_tokens=1, together=most)  # the first round spends the budget


def _codified(file: Any, run: Any, apis: Sequence[Any], role: Role, written: list[str]) -> dict[str, Any]:
    """A plan that a person wrote of what recurs, counted over the run, and the model as the writer of its tool."""
    start = len(written)
    with Memory(file, review="auto") as memory:
        memory.offer(apis)
        body = f"Call `{RECURS[0]}`, then `{RECURS[1]}`."
        memory.add("plan", "transactions, then send money", body, "send pay refund transactions")
        learn(memory, run)
        wait_for(memory.reflect(lambda prompt: RoleReply('{"candidates": []}')))
        gated = memory.past_the_gate()
        made = wait_for(memory.codify(role))
    read = 0
    for text in written[start:]:
        try:
            parsed = read_json(text)
        except ValueError:
            continue
        read += bool(isinstance(parsed, dict) and isinstance(parsed.get("tools"), list) and parsed["tools"])
    replies, tools = len(written) - start, len(made.active)
    return {"gated": len(gated), "replies": replies, "read": read, "tools": tools, "gave up": dict(made.gave_up)}


async def _first_calls(
    file: Any, environment: Any, tasks: Sequence[Task], apis: Sequence[Any], agent: Any, template: Any
) -> dict[str, Any]:
    """Whether the model names the first call of each task of several calls: with its plan, without one, with another task's."""
    names = [str(one["function"]["name"]) for one in apis]
    paths = {task.id: procedure(re.findall(r'"name": "(\w+)"', "\n".join(environment.walkthrough(task)))) for task in tasks}
    several = [task for task in tasks if len(paths[task.id]) > 1]
    with Memory(file, create=False) as memory:
        plans = {task.id: (await memory.select(str(task.data["prompt"]))).text for task in several}
    known = [task for task in several if plans[task.id]]
    sampler = Sampler(agent)
    stops = tuple(template.stop_tokens) if template is not None else ()
    settings = Sampling(temperature=0.0, max_tokens=12, stop_tokens=stops)
    head = f"Tools: {', '.join(names)}.\nReply with the name of the tool that is to be called first, and nothing else."

    async def right(task: Task, arm: str, plan: str) -> bool:
        text = "\n\n".join(filter(None, (head, plan, f"Request: {task.data['prompt']}")))
        reply = await reply_to(sampler, template, [Message("user", text)], settings, ("first call", arm, task.id))
        return _named(reply.text, names) == paths[task.id][0]

    shifted = [*known[1:], *known[:1]]
    arms = {"none": [""] * len(known), "own": [plans[one.id] for one in known], "another's": [plans[one.id] for one in shifted]}
    found: dict[str, Any] = {
        arm: list(map(int, await asyncio.gather(*(right(task, arm, plan) for task, plan in zip(known, given, strict=True)))))
        for arm, given in arms.items()
    }
    firsts = [paths[task.id][0] for task in known]
    found["frequent"] = int(np.max(np.unique(firsts, return_counts=True)[1])) if firsts else 0
    found["read off"] = [_named(plans[task.id], names) == paths[task.id][0] for task in known]
    return found


def _named(text: str, names: Sequence[str]) -> str:
    """The first of ``names`` in ``text``; "" where there is none."""
    at = {name: text.find(name) for name in names if name in text}
    return min(at, key=lambda name: (at[name], -len(name))) if at else ""
