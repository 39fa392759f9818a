"""What a memory has cost and earned, why an entry is there, what changed, and its tools as files."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.errors import UserError, nearest
from ramify.base.files import refusal, write_whole
from ramify.methods.earned_code_memory.algorithm import break_even
from ramify.methods.earned_code_memory.results import (
    ChainLink,
    ChangedEntry,
    MemoryEntryUse,
    MemoryReport,
    MemoryTasks,
    MemoryTokens,
    MemoryToolUse,
    Repaid,
    ReplayedMemory,
    TokensEach,
    WholeEntry,
)
from ramify.methods.earned_code_memory.store import MemoryEntry, MemoryState, MemoryStore, MemoryTask, ToolEntry

SERVING, BUILDING = ("executor", "manager", "embedding"), ("reflection", "codification")


def report(state: MemoryState) -> MemoryReport:
    """Spending by who spent it, what the entries were used for, what they saved, and when that pays.
    Costs are of recorded tasks with tokens."""
    spent = {who: sum(classes.values()) for who, classes in state.tokens.items()}
    serving, construction = (sum(spent.get(who, 0) for who in group) for group in (SERVING, BUILDING))
    with_, without = _costs(state, lambda task: bool(task.selected)), _costs(state, lambda task: not task.selected)
    saving = _less(without, with_)
    tools = tuple(_tool(state, tool) for tool in state.tools.values())
    given: dict[str, list[MemoryTask]] = defaultdict(list)
    for task in state.tasks.values():
        for name in task.selected:
            given[name].append(task)
    entries = tuple(
        _entry(state, entry, given[entry.id]) for entry in state.entries.values() if entry.status in ("active", "review")
    )
    return MemoryReport(
        tasks=MemoryTasks(len(state.tasks), len(with_), len(without)),
        tokens=MemoryTokens(state.tokens, serving, construction, serving + construction),
        per_task=TokensEach(_mean(with_), _mean(without), saving),
        per_solved_task=TokensEach(
            _solved(state, lambda task: bool(task.selected)), _solved(state, lambda task: not task.selected)
        ),
        break_even=pays(construction, saving),
        entries=entries,
        tools=tools,
        never_used=tuple(tool.name for tool in tools if tool.calls == 0 and tool.status != "candidate"),
        waiting=(
            *(entry.id for entry in entries if entry.status == "review"),
            *(tool.name for tool in tools if tool.status == "candidate"),
        ),
        dropped=dict(sorted(state.dropped.items())),
    )


def pays(construction: float, saving: float | None) -> Repaid:
    """When ``construction`` tokens are paid back: the number of tasks, "never" where nothing is saved,
    None where nothing is known."""
    if saving is None:
        return Repaid(construction, None, None)
    found = break_even(construction, saving)
    return Repaid(construction, saving, "never" if found is None else found)


def _cost(task: MemoryTask) -> int:
    return sum(task.tokens.values())


def _costs(state: MemoryState, wanted: Any) -> list[int]:
    return [_cost(task) for task in state.tasks.values() if task.recorded and _cost(task) and wanted(task)]


def _mean(costs: Sequence[float]) -> float | None:
    return float(np.mean(costs)) if costs else None


def _less(before: Sequence[float], after: Sequence[float]) -> float | None:
    return float(np.mean(before) - np.mean(after)) if before and after else None


def _solved(state: MemoryState, wanted: Any) -> float | None:
    """Tokens of all such tasks per one that succeeded: an agent that fails early looks cheap otherwise."""
    tasks = [task for task in state.tasks.values() if task.recorded and _cost(task) and task.outcome is not None and wanted(task)]
    won = sum(bool(task.outcome) for task in tasks)
    return sum(map(_cost, tasks)) / won if won else None


def _entry(state: MemoryState, entry: MemoryEntry, given: Sequence[MemoryTask]) -> MemoryEntryUse:
    """Uses of an entry and its break-even: what tasks cost that were given nothing, beside those that were given it."""
    uses = state.uses.get(entry.id, {})
    ended = [task.outcome for task in given if task.outcome is not None]
    saving = _less(
        _costs(state, lambda task: not task.selected), [_cost(task) for task in given if task.recorded and _cost(task)]
    )
    return MemoryEntryUse(
        id=entry.id,
        kind=entry.kind,
        title=entry.title,
        status=entry.status,
        flag=entry.flag,
        given=len(given),
        selected=len(uses.get("selected", ())),
        followed=len(uses.get("followed", ())),
        evidence=len(state.evidence(entry.id)) if entry.kind == "plan" else 0,
        succeeded=sum(map(bool, ended)),
        ended=len(ended),
        tokens=entry.tokens,
        saving=saving,
        break_even=pays(entry.tokens, saving).after,
    )


def _tool(state: MemoryState, tool: ToolEntry) -> MemoryToolUse:
    """Uses, checks and break-even of a tool: what tasks cost that were given its plan and did not call it, beside those that
    did."""
    plans = set(state.chain(tool.plan)) | set(state.heads(tool.plan))
    called = _costs(state, lambda task: tool.name in task.called)
    text = _costs(state, lambda task: plans & set(task.selected) and tool.name not in task.called)
    saving = tool.saved / tool.calls if tool.saved and tool.calls else _less(text, called)
    return MemoryToolUse(
        name=tool.name,
        plan=tool.plan,
        status=tool.status,
        why=tool.why,
        calls=tool.calls,
        failures=tool.failures,
        raised=tool.raised,
        tokens=tool.tokens,
        saving=saving,
        break_even=pays(tool.tokens, saving).after,
        env_version=tool.env_version,
    )


def find(state: MemoryState, name: str) -> MemoryEntry | ToolEntry:
    """An entry by its id or the beginning of it, or a tool by its name. Raises UserError with the nearest."""
    if name in state.tools:
        return state.tools[name]
    known = [entry for entry in state.entries.values() if name and entry.id.startswith(name)]
    if len(known) == 1:
        return known[0]
    what = "is the beginning of several ids" if known else "is not an entry and no tool"
    raise UserError(f"'{name}' {what} ({nearest(name, [*state.entries, *state.tools])})")


def whole(state: MemoryState, name: str) -> WholeEntry:
    """An entry or tool, and why it is there. Raises UserError as :func:`find`."""
    found = find(state, name)
    entry, tool = (None, found) if isinstance(found, ToolEntry) else (found, None)
    plan = found.plan if isinstance(found, ToolEntry) else found.id
    given = [task for task in state.tasks.values() if plan in task.selected]
    return WholeEntry(
        entry=entry,
        tool=tool,
        use=_tool(state, found) if isinstance(found, ToolEntry) else _entry(state, found, given),
        evidence_queries=tuple(sorted(state.requests(plan))),
        structures=tuple(sorted(state.evidence(plan))),
        needed=state.config.gate if state.config.gate < float("inf") else "never",
        chain=tuple(
            ChainLink(one, state.entries[one].status, state.entries[one].title)
            for one in state.chain(plan)
            if one in state.entries
        ),
        tools=tuple(one.name for one in state.tools_of(plan)),
    )


def difference(before: MemoryState, after: MemoryState) -> tuple[ChangedEntry, ...]:
    """What was added and what changed its status between two states."""
    rows = []
    for kind in ("entries", "tools"):
        old, new = getattr(before, kind), getattr(after, kind)
        for name, one in new.items():
            was = old[name].status if name in old and old[name].created == one.created else None
            if was != one.status:
                what, title = (one.kind, one.title) if isinstance(one, MemoryEntry) else ("tool", one.doc.partition("\n")[0])
                rows.append(ChangedEntry(name, what, was, one.status, title))
    return tuple(rows)


def replay(store: MemoryStore) -> ReplayedMemory:
    """Make the state anew from the log and compare: whether they are equal, and what breaks a rule of the store."""
    anew = store.at(store.refresh().seq)
    return ReplayedMemory(store.state.seq, anew == store.state, tuple(faults(anew)))


def faults(state: MemoryState) -> list[str]:
    """Broken rules: a chain with a way back or with several active entries, a tool without a plan,
    an active tool of a demoted one."""
    found = []
    heads: dict[str, set[str]] = {}
    for entry in state.entries.values():
        later = [name for name in state.chain(entry.id)[1:] if name in state.entries and entry.id in state.chain(name)]
        found += [f"{entry.id} supersedes itself by way of {name}" for name in later]
        if entry.status == "active":
            for name in state.chain(entry.id):
                heads.setdefault(name, set()).add(entry.id)
    found += [f"{name} has {len(ids)} active successors" for name, ids in heads.items() if len(ids) > 1]
    for tool in state.tools.values():
        found += [] if tool.plan in state.entries else [f"the tool {tool.name} is of no plan"]
        bad = [
            name for name in tool.deps if tool.status == "active" and name in state.tools and state.tools[name].status != "active"
        ]
        found += [f"the tool {tool.name} uses {name}, which is not active" for name in bad]
    return found


def export(state: MemoryState, folder: Path) -> list[str]:
    """Write the active tools as files, each with its tests and the JSON schemas, and the text as Markdown.
    Raises UserError where it cannot."""
    active = [tool for tool in state.tools.values() if tool.status == "active"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refusal(f"cannot make {folder}", error) from None
    written: dict[str, str] = {}
    for tool in active:
        written[f"{tool.name}.py"] = (
            f'"""Tool {tool.name}, of plan {tool.plan}. Call it with an api object: see README.md."""\n\n{tool.source.strip()}\n'
        )
        if tool.tests.strip():
            written[f"test_{tool.name}.py"] = (
                f"from {tool.name} import {tool.name}\n\n\ndef test_{tool.name}():\n{_indented(tool.tests)}\n"
            )
    from ramify.methods.earned_code_memory.memory import schema

    written["tools.json"] = json.dumps([schema(tool) for tool in active], indent=1, ensure_ascii=False) + "\n"
    lines = [f"- **{e.kind}** {e.title}: {e.body} (`{e.id}`)" for e in state.entries.values() if e.status == "active"]
    written["README.md"] = (
        "# Exported memory\n\nWritten by models and rules: read it before you run it.\n\n" + "\n".join(lines) + "\n"
    )
    for name, text in written.items():
        write_whole(folder / name, text)
    return sorted(written)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line.strip() else "" for line in text.strip().splitlines())
