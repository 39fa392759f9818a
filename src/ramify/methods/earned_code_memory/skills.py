"""What a memory has earned as Agent Skills: a folder for each active tool, and for each plan past the gate that has none.

The code of a tool is written as text, and is never run here. What was written is in the memory's log by its hash, so a skill that
somebody changed is noticed, and neither overwritten nor removed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from ramify.base.errors import UserError
from ramify.base.files import refusal, write_whole
from ramify.base.skills import Skill, folder_contents, folder_hash, skill_name
from ramify.base.words import plural
from ramify.methods.earned_code_memory.memory import Memory, schema
from ramify.methods.earned_code_memory.results import ErasedMemory, ExportedSkills, MadeSkill
from ramify.methods.earned_code_memory.store import MemoryEntry, MemoryState, ToolEntry
from ramify.stats.intervals import clopper_pearson

_MOST = 20
"""Tasks, and requests, that are named in a skill; the others are counted."""


def made_skills(memory: Memory, license: str = "") -> dict[str, Skill]:
    """The skills of a memory, by the id of the plan or the name of the tool. Two never have one name."""
    state, skills, names = memory.state, dict[str, Skill](), set[str]()
    tools = [tool for tool in state.tools.values() if tool.status == "active"]
    owned = {name for tool in tools for name in (*state.chain(tool.plan), *state.heads(tool.plan))}
    plans = [entry for entry in state.entries.values() if entry.status == "active" and entry.kind == "plan"]
    earned = [plan for plan in plans if plan.id not in owned and len(state.evidence(plan.id)) >= memory.config.k]
    every: list[ToolEntry | MemoryEntry] = [*tools, *earned]
    for item in every:
        known = item.name if isinstance(item, ToolEntry) else item.id
        name = skill_name(item.name if isinstance(item, ToolEntry) else item.title) or f"skill-{skill_name(known)}"
        while name in names:
            name = skill_name(f"{name[:50]}-{skill_name(known)[:12]}")
        names.add(name)
        skills[known] = _skill(memory, item, name, license)
    return skills


def _skill(memory: Memory, item: ToolEntry | MemoryEntry, name: str, license: str) -> Skill:
    state = memory.state
    plan = item.plan if isinstance(item, ToolEntry) else item.id
    entry = state.entries.get(next(iter(state.heads(plan)), plan))
    requests = sorted(state.requests(plan))
    title, body = (entry.title, entry.body) if entry is not None else (name, "")
    what = (item.doc.partition("\n")[0] if isinstance(item, ToolEntry) and item.doc else title).rstrip(".")
    use = f"{what}. Use when asked for what these requests ask: {'; '.join(requests[:3])}" if requests else what
    parts = [f"# {title}", "Earned from earlier tasks by `ramify earned-code-memory`. Check it against what you observe.", body]
    files, calls = dict[str, str](), ""
    if isinstance(item, ToolEntry):
        given = json.dumps(schema(item)["function"]["parameters"], ensure_ascii=False)
        files[f"scripts/{item.name}.py"] = f"{item.source.strip()}\n"
        parts.append(
            f"`scripts/{item.name}.py` does it: `{item.name}(api, ...)`, where `api.NAME(...)` calls an API. A model wrote it: "
            f"read it before you run it. Its parameters: `{given}`."
        )
        if item.tests.strip():
            files["scripts/tests.py"] = f"{item.tests.strip()}\n"
        calls = ", ".join(item.deps)
    if requests:
        more = [f"- and {len(requests) - _MOST} more"] if len(requests) > _MOST else []
        parts.append("\n".join(["## Requests that it served", "", *(f"- {request}" for request in requests[:_MOST]), *more]))
    text = "\n\n".join(part for part in parts if part)
    about = dict(_provenance(memory, item, plan)) | {"ramify-content-sha256": folder_hash({**files, "": text})}
    return Skill(name, use, text, license, f"Needs the APIs {calls}" if calls else "", about, files)


def _provenance(memory: Memory, item: ToolEntry | MemoryEntry, plan: str) -> Iterator[tuple[str, str]]:
    """Where a skill comes from, as names and texts of its metadata."""
    state = memory.state
    requests = state.requests(plan)
    tasks = [task for task in state.tasks.values() if task.recorded and task.query in requests]
    ended = [task.outcome for task in tasks if task.outcome is not None]
    yield "ramify-id", item.name if isinstance(item, ToolEntry) else item.id
    yield "ramify-plan", plan
    needed = state.config.gate
    wanted = f", {needed:g} needed" if needed < float("inf") else ""
    yield "ramify-evidence", f"{plural(len(state.evidence(plan)), 'structurally different request')}{wanted}"
    yield "ramify-tasks", _listed([task.id for task in tasks])
    if sources := [task.source for task in tasks if task.source]:
        yield "ramify-nodes", _listed(sources)
    if ended:
        yield "ramify-succeeded", _share(sum(map(bool, ended)), len(ended))
    if isinstance(item, ToolEntry) and item.calls:
        yield "ramify-calls-failed", _share(item.failures, item.calls)
    if state.config.env_version:
        yield "ramify-env-version", state.config.env_version
    yield "ramify-earned", datetime.fromtimestamp(memory.store.when(item.created), UTC).date().isoformat()


def _share(k: int, n: int) -> str:
    low, high = clopper_pearson(k, n)
    return f"{k} of {n} (95 % interval {low:.2f} to {high:.2f})"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more


def export(memory: Memory, folder: Path, license: str = "") -> ExportedSkills:
    """Write each skill to a folder of its own below ``folder``. One that is there, and is not as this memory wrote it, is kept
    and named. Raises UserError where it cannot be written."""
    ready, rows, kept = made_skills(memory, license), list[MadeSkill](), list[str]()
    for known, skill in ready.items():
        place = folder / skill.name
        why = changed(memory.state, place)
        if why:
            kept.append(f"{place} is kept: {why}")
            continue
        contents = skill.contents()
        digest = folder_hash(contents)
        old = folder_contents(place) if place.is_dir() else {}
        if folder_hash(old) != digest:
            for name in old.keys() - contents.keys():
                (place / name).unlink()
            for name, text in contents.items():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                write_whole(place / name, text)
        if memory.state.skills.get(digest) != known:
            with memory.store.writing() as write:
                write("skill", {"id": known, "sha256": digest})
        kind = "tool" if known in memory.state.tools else "plan"
        rows.append(MadeSkill(skill.name, known, kind, digest, tuple(sorted(contents))))
    stale = [name for name, known in _ours(memory.state, folder) if known not in ready]
    kept += [f"{folder / name} is of an entry that is no longer active" for name in stale]
    few = sum(
        entry.kind == "plan" and entry.status == "active" and len(memory.state.evidence(entry.id)) < memory.config.k
        for entry in memory.state.entries.values()
    )
    if few:
        kept.append(f"{plural(few, 'plan')} served fewer than {memory.config.k} structurally different requests: no skill yet")
    return ExportedSkills(str(folder), tuple(rows), caveats=tuple(kept))


def changed(state: MemoryState, place: Path) -> str:
    """Why a folder is not a skill as this memory wrote it; "" where it is, or where there is none."""
    if place.is_symlink():
        return "it is a link"
    if not place.exists():
        return ""
    if not place.is_dir():
        return "it is not a folder"
    return "" if folder_hash(folder_contents(place)) in state.skills else "it is not as this memory wrote it"


def _ours(state: MemoryState, folder: Path) -> Iterator[tuple[str, str]]:
    """Folders that are as this memory wrote them: their name, and of which entry they are."""
    for place in sorted(folder.iterdir()) if folder.is_dir() else ():
        if place.is_dir() and not place.is_symlink():
            known = state.skills.get(folder_hash(folder_contents(place)))
            if known is not None:
                yield place.name, known


def _claimed(folder: Path) -> Iterator[tuple[str, str]]:
    """Folders whose SKILL.md says of which entry they are, changed or not."""
    for place in sorted(folder.iterdir()) if folder.is_dir() else ():
        text = folder_contents(place).get("SKILL.md", b"") if place.is_dir() and not place.is_symlink() else b""
        for line in text.decode("utf-8", "replace").splitlines():
            name, _, value = line.strip().partition(": ")
            if name == "ramify-id":
                yield place.name, value.strip('"')
                break


def erase(memory: Memory, name: str, folder: Path | None = None) -> ErasedMemory:
    """Take an entry or tool, and all that was made of it, out of the memory and out of its log, and remove their skills below
    ``folder``. A skill that somebody changed is kept and named. Raises UserError where there is no such entry."""
    erased = memory.erase(name)
    removed, kept = list[str](), list[str]()
    if folder is not None:
        ours: Mapping[str, str] = dict(_ours(memory.state, folder))
        for place, known in {**dict(_claimed(folder)), **ours}.items():
            if known not in erased:
                continue
            if place in ours:
                try:
                    shutil.rmtree(folder / place)
                except OSError as error:
                    raise refusal(f"cannot remove {folder / place}", error) from None
                removed.append(str(folder / place))
            else:
                kept.append(f"{folder / place} is kept: it is not as this memory wrote it")
    elif any(known in erased for known in memory.state.skills.values()):
        kept.append("skills were written of it: name their folder with --skills, and they are removed as well")
    return ErasedMemory(erased[0], tuple(erased[1:]), tuple(removed), caveats=tuple(kept))


def check_license(license: str | None) -> str:
    """The licence that skills name. Raises UserError on an empty one."""
    if license is not None and not license.strip():
        raise UserError("--license needs a name, such as Apache-2.0")
    return license or ""
