"""Section 7(a2), the environment: six applications in memory, 30 APIs with tokens, two kinds of pages,
confirmations, and tasks with a checker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ramify.base.errors import UserError
from ramify.base.seeds import generator

PAGE = 5
APPS: dict[str, tuple[str, str, tuple[str, str]]] = {
    "mail": ("messages", "size", ("delete", "archive")),
    "music": ("songs", "plays", ("remove", "like")),
    "payments": ("bills", "amount", ("pay", "decline")),
    "files": ("documents", "pages", ("shred", "compress")),
    "calendar": ("events", "minutes", ("accept", "cancel")),
    "shop": ("orders", "price", ("refund", "rate")),
}
"""Application -> what it holds, the field with a number, its two actions."""
SELECTORS = ("label", "oldest", "above", "below", "label_oldest")
LABELS = ("Ann", "Bob", "Cem", "Dan", "Eve", "Fay", "Gus", "Ida")
TRAINED = 40
"""Families that are trained on; the other 20 are new."""


@dataclass(frozen=True)
class Goal:
    """What a task asks for: ``action`` on all items of ``app`` that the selector picks."""

    app: str
    action: str
    selector: str
    values: Mapping[str, Any] = field(hash=False)
    """label, n and x, where the selector has them."""

    @property
    def query(self) -> str:
        """The request in words."""
        what, number, _ = APPS[self.app]
        v = self.values
        selection = {
            "label": "all {what} from {label}", "oldest": "the {n} oldest {what}", "above": "{what} with {number} above {x}",
            "below": "{what} with {number} below {x}", "label_oldest": "the {n} oldest {what} from {label}",
        }[self.selector].format(what=what, number=number, **v)  # fmt: skip
        return f"in {self.app} {self.action} {selection}"


def picked(items: list[dict[str, Any]], selector: str, label: str = "", n: int = 0, x: int = 0) -> list[dict[str, Any]]:
    """The items that a selector picks."""
    if selector in ("label", "label_oldest"):
        items = [item for item in items if item["label"] == label]
    if selector in ("oldest", "label_oldest"):
        items = sorted(items, key=lambda item: item["date"])[:n]
    if selector == "above":
        items = [item for item in items if item["number"] > x]
    if selector == "below":
        items = [item for item in items if item["number"] < x]
    return items


def families(seed: int) -> list[tuple[str, str, str]]:
    """All 60 families in an order of their own for each seed; the first :data:`TRAINED` are trained on."""
    found = [(app, action, selector) for app in APPS for action in APPS[app][2] for selector in SELECTORS]
    return [found[i] for i in generator(seed, "office", "families").permutation(len(found))]


HEAD, SHARE = 3, 0.9
"""So many families make this share of the tasks; the others, a long tail, the rest evenly."""


def weights(count: int) -> np.ndarray:
    """Chances of families by rank, (count,)."""
    return np.array([SHARE / HEAD] * HEAD + [(1 - SHARE) / (count - HEAD)] * (count - HEAD))


def goal(family: tuple[str, str, str], rng: np.random.Generator) -> Goal:
    """A task of a family with values of its own."""
    app, action, selector = family
    values: dict[str, Any] = {}
    if "label" in selector:
        values["label"] = str(rng.choice(LABELS))
    if "oldest" in selector:
        values["n"] = int(rng.integers(2, 9)) if selector == "oldest" else int(rng.integers(1, 6))
    if selector in ("above", "below"):
        values["x"] = int(rng.integers(60, 90)) if selector == "above" else int(rng.integers(15, 40))
    return Goal(app, action, selector, values)


@dataclass(frozen=True)
class Rules:
    """How the APIs behave: applications whose lists have a cursor, and actions ("app.action") that need a confirmation."""

    cursor: frozenset[str]
    confirm: frozenset[str]


def rules(seed: int, shifted: bool) -> Rules:
    """The rules of a seed; ``shifted``: of 30 APIs 8, a quarter, follow the other rule."""
    rng = generator(seed, "office", "rules")
    lists, acts = list(APPS), [f"{app}.{action}" for app in APPS for action in APPS[app][2]]
    cursor, confirm = set(rng.permutation(lists)[:3].tolist()), set(rng.permutation(acts)[:6].tolist())
    if shifted:
        for name in rng.permutation([*lists, *acts])[:8].tolist():
            side = cursor if name in APPS else confirm
            side.symmetric_difference_update({name})
    return Rules(frozenset(cursor), frozenset(confirm))


def catalogue() -> dict[str, dict[str, Any]]:
    """The 30 APIs, as a memory is told of them: what stands in every version of the documents."""
    token, found = {"type": "string", "description": "what login returned"}, dict[str, dict[str, Any]]()

    def put(name: str, description: str, properties: dict[str, Any], read_only: bool = False) -> None:
        parameters = {"type": "object", "properties": properties, "required": list(properties)[:2]}
        found[name] = {"description": description, "parameters": parameters, "read_only": read_only}

    for app, (what, number, actions) in APPS.items():
        put(f"{app}.login", f"Log in to {app} and get a token for the other calls.", {"user": {"type": "string"}}, True)
        more = {"page": {"type": "integer"}, "cursor": {"type": "string"}}
        put(
            f"{app}.list",
            f"The {what} of {app} in pages of {PAGE}: id, label, date, {number}, state.",
            {"token": token, **more},
            True,
        )
        for action in actions:
            put(f"{app}.{action}", f"{action} one of the {what} of {app}.", {"token": token, "id": {"type": "integer"}})
        put(f"{app}.confirm", f"Confirm what {app} holds back until then.", {"token": token, "code": {"type": "string"}})
    return found


class Office:
    """One task's state. :meth:`call` answers an API call; a visible error is a UserError."""

    def __init__(self, goal: Goal, rules: Rules, rng: np.random.Generator) -> None:
        self.goal, self.rules = goal, rules
        count = int(rng.integers(8, 17))
        self.items = [
            {"id": i, "label": str(rng.choice(LABELS)), "date": int(d), "number": int(rng.integers(0, 100)), "state": "open"}
            for i, d in enumerate(rng.permutation(count))
        ]
        if "label" in goal.selector and not picked(self.items, goal.selector, **goal.values):
            self.items[-1]["label"] = goal.values["label"]
        self.wanted = {item["id"] for item in picked(self.items, goal.selector, **goal.values)}
        self._pending: dict[str, tuple[int, str]] = {}

    @property
    def solved(self) -> bool:
        """Whether the action was done to what was asked for, and to nothing else."""
        return {item["id"] for item in self.items if item["state"] != "open"} == self.wanted and all(
            item["state"] in ("open", self.goal.action) for item in self.items
        )

    def call(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of an API. Parameters that it does not know are passed over."""
        app, _, what = name.partition(".")
        if app not in APPS or what not in ("login", "list", "confirm", *APPS[app][2]):
            raise UserError(f"404: there is no {name}")
        if what == "login":
            return {"token": f"t-{app}"}
        if given.get("token") != f"t-{app}":
            raise UserError("401: log in first")
        items = self.items if app == self.goal.app else []
        if what == "list":
            return self._page(app, items, given)
        if what == "confirm":
            if given.get("code") not in self._pending:
                raise UserError("409: nothing to confirm")
            held, state = self._pending.pop(str(given["code"]))
            items[held]["state"] = state
            return {"status": "done"}
        at: Any = given.get("id")
        if not isinstance(at, int) or not 0 <= at < len(items):
            raise UserError("404: no such id")
        if name in self.rules.confirm and items[at]["state"] != what:
            self._pending[f"k{at}"] = (at, what)
            return {"status": "pending", "code": f"k{at}"}
        items[at]["state"] = what
        return {"status": "done"}

    def _page(self, app: str, items: list[dict[str, Any]], given: Mapping[str, Any]) -> dict[str, Any]:
        if app in self.rules.cursor:
            text = given.get("cursor")
            start = int(text[1:]) if isinstance(text, str) and text[1:].isdigit() else 0
            more = f"c{start + PAGE}" if start + PAGE < len(items) else None
            return {"items": items[start : start + PAGE], "total": len(items), "next": more}
        page = given.get("page")
        start = PAGE * (page if isinstance(page, int) else 0)
        return {"items": items[start : start + PAGE], "total": len(items), "pages": -(-len(items) // PAGE)}
