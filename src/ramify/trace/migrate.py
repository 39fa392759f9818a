"""Runs of older schemas: opened for reading they are unchanged; opened for writing they are converted to the newest schema.

Schema 1 had no findings, and did not store which verb made a run: that follows from its settings, and the hashes it began with
from its journal."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from ramify.trace import schema

VERBS: dict[str, frozenset[str]] = {
    "import": frozenset({"imported"}),
    "serve --record": frozenset({"serve"}),
    "forensics": frozenset({"forensics"}),
    "cliffs show --run": frozenset({"cliffs"}),
    "improve": frozenset({"model", "env", "updates"}),
    "rollout --tree": frozenset({"model", "env", "tree_budget"}),
    "rollout": frozenset({"model", "env", "attempts", "budget"}),
    "play": frozenset({"model", "env", "sampling"}),
}
"""The verb that made a run of schema 1 -> settings that only its runs have, the first that fits."""


def verb_of(config: Any) -> str:
    """The verb that made a run with these settings; empty where none fits."""
    given = config.keys() if isinstance(config, Mapping) else frozenset()
    return next((verb for verb, names in VERBS.items() if names <= given), "")


def settings(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run that ``kind`` made, by their present names; other verbs may call another thing ``panel``."""
    earlier = {"panel": "count"} if kind in ("rollout", "rollout --tree", "forensics") else {}
    return {earlier.get(name, name): value for name, value in config.items()}


def for_reading(db: sqlite3.Connection) -> None:
    """Let an open file of schema 1 be read like one of the newest: nothing is written to it."""
    (locked,) = db.execute("PRAGMA query_only").fetchone()
    db.execute("PRAGMA temp_store = MEMORY")
    db.execute("PRAGMA query_only = OFF")
    db.executescript(
        schema.FINDINGS.replace("CREATE TABLE", "CREATE TEMP TABLE")
        .replace("INDEX ", "INDEX temp.")
        .replace(" REFERENCES nodes (seq)", "")
    )
    db.execute(f"PRAGMA query_only = {locked}")


def to_newest(db: sqlite3.Connection) -> None:
    """Make an open file of schema 1 one of schema 2, whole or not at all."""
    db.executescript(f"BEGIN IMMEDIATE; {schema.FINDINGS}")
    try:
        meta = dict(db.execute("SELECT key, value FROM meta"))
        made = {"verb": verb_of(schema.from_json(meta.get("config", "{}"))), "parts": _parts(db)}
        rows = [(key, schema.to_json(value, f"the {key} of the run")) for key, value in made.items() if value]
        db.executemany("INSERT OR IGNORE INTO meta VALUES (?,?)", rows)
        db.execute(f"PRAGMA user_version = {schema.SCHEMA}")
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise


def _parts(db: sqlite3.Connection) -> dict[str, Any]:
    """What a run of schema 1 noted of the parts it began with: weights, tasks, version, chat template."""
    parts: dict[str, Any] = {}
    for kind, payload in db.execute("SELECT kind, payload FROM journal WHERE kind IN ('start', 'template') ORDER BY seq"):
        noted = schema.from_object(payload)
        parts |= {"chat template": noted.get("hash")} if kind == "template" else noted
    return parts
