"""A small API of notes, an agent's trajectories on it, and who writes tools for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ramify.methods.earned_code_memory.roles import RoleReply

PARAMETERS = {"type": "object", "properties": {"page": {"type": "integer"}, "id": {"type": "integer"}}}
APIS = {
    "notes.list": {"description": "list notes", "parameters": PARAMETERS, "read_only": True},
    "notes.delete": {"description": "delete a note", "parameters": PARAMETERS},
}
QUERIES = ("delete my 3 oldest notes", "delete my oldest red notes", "delete all notes from yesterday that are old")
"""Three structures of one plan."""


def trajectory(query: str, answer: str = "ok", pages: int = 2) -> list[dict[str, Any]]:
    """An agent that lists and deletes; ``answer`` is what every call returns."""
    out: list[dict[str, Any]] = [{"role": "user", "content": query}]
    for i, (name, given) in enumerate([*(("notes.list", {"page": p}) for p in range(pages)), ("notes.delete", {"id": 4})]):
        call = {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
        out += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{i}", "content": answer},
        ]
    return [*out, {"role": "assistant", "content": "Done."}]


SOURCE = '''def NAME(api, *, n):
    """Delete the n oldest notes.

    Pre: there are n notes. Post: they are gone.
    """
    found = sorted(api.notes.list(page=0)["items"], key=lambda note: note["date"])[:n]
    for one in found:
        api.notes.delete(id=one["id"])
    return [one["id"] for one in found]


def check_NAME(api, result, *, n):
    left = [one["id"] for one in api.notes.list(page=0)["items"]]
    return len(result) == n and not set(result) & set(left)
'''
TESTS = """class Fake:
    pass
items = [{"id": i, "date": -i} for i in range(3)]
fake = Fake()
fake.notes = Fake()
fake.notes.list = lambda page: {"items": list(items)}
fake.notes.delete = lambda id: items.remove([one for one in items if one["id"] == id][0])
assert NAME(fake, n=2) == [2, 1]
"""


def candidate(name: str = "delete_notes", source: str = SOURCE, tests: str = TESTS) -> dict[str, Any]:
    """A tool as a codifier writes it."""
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    return {"name": name, "parameters": parameters, "source": source.replace("NAME", name), "tests": tests.replace("NAME", name)}


class Codifier:
    """Writes the same tools at each asking, and keeps the prompts."""

    def __init__(self, *tools: Mapping[str, Any]) -> None:
        self.tools, self.prompts = list(tools) or [candidate()], list[str]()

    def __call__(self, prompt: str) -> RoleReply:
        self.prompts.append(prompt)
        return RoleReply(json.dumps({"tools": self.tools}), 100, 50)


def notes(count: int = 6) -> tuple[list[dict[str, Any]], Any]:
    """Notes, and the API on them."""
    kept = [{"id": i, "date": -i} for i in range(count)]

    def api(name: str, given: Mapping[str, Any]) -> Any:
        if name == "notes.list":
            return {"items": list(kept)}
        kept[:] = [one for one in kept if one["id"] != given["id"]]
        return None

    return kept, api


def reflecting(candidates: Sequence[Mapping[str, Any]]) -> Any:
    """A reflector that says the same of every task."""
    answers = {"general": True, "new": True, "explained": True, "scoped": True, "scope": ""}
    return lambda prompt: RoleReply(json.dumps({"candidates": [{**answers, **one} for one in candidates]}), 30, 20)


PLAN = {
    "kind": "plan",
    "title": "delete notes",
    "body": "Call `notes.list` to the end, then `notes.delete` for each.",
    "quote": "notes.list(",
}
