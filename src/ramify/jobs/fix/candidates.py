"""Candidates: edits that mean the same at every task. Those of a file are played by whole attempts that begin with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramify.base.errors import UserError
from ramify.env.protocol import EditsFiles
from ramify.rollout.components import any_environment, check_trust
from ramify.rollout.edits import check_edit
from ramify.rollout.stored import WhoPlays, named_components
from ramify.trace.db import Run

Edit = Mapping[str, Any]
FILE = "file"
"""``{"file": {"path": "AGENTS.md", "old": "...", "text": "..."}}``: attempts begin with this text in the file, instead of the old
one. A fork cannot make it: it would have to change the history."""
CANDIDATES = ("rule", "insert", "tool", FILE)
"""Edits that mean the same at every task. An edit of ``history`` changes one conversation, and ``append`` one reply."""


def check_candidates(edits: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Candidates as read from files. Raises UserError where one does not mean the same at every task."""
    checked = dict[str, dict[str, Any]]()
    for name, edit in edits.items():
        candidate = edit if isinstance(edit, dict) and is_file(edit) else check_edit(edit)
        if candidate is None or next(iter(candidate)) not in CANDIDATES:
            kinds = f"{', '.join(CANDIDATES[:-2])} or {CANDIDATES[-2]}"
            raise UserError(f"{name}: a candidate is an edit {kinds}, which means the same at every task")
        twin = next((other for other, edit in checked.items() if edit == candidate), None)
        if twin is not None:
            raise UserError(f"{twin} and {name} are the same candidate")
        checked[name] = candidate
    if not checked:
        raise UserError("there is no candidate: name one with --try FILE, --rule TEXT or --propose")
    return checked


def is_file(edit: Edit) -> bool:
    """Whether a candidate is the text of a file."""
    return FILE in edit


def check_player(run: Run, who: WhoPlays) -> str:
    """The environment that ``run`` names, "" where ``who`` brings one. Raises UserError where nobody could play the run, and
    where its settings are not trusted."""
    _, env = named_components(run, who.model, who.env)
    check_trust(run, who.trust or (who.model is not None and who.env is not None))
    return "" if who.env is not None else str(env or "")


class EditedFile:
    """A file that attempts of a run begin with."""

    def __init__(self, run: Run, who: WhoPlays, name: str) -> None:
        """Raises UserError where the run is not of an agent that works on files, or ``name`` is none of them."""
        environment = any_environment(check_player(run, who) or who.env or "")
        if not isinstance(environment, EditsFiles):
            raise UserError(
                f"--file goes with a command that works in a git repository, as `ramify record` runs it, not {run.folder}"
            )
        for tool, effect in {**getattr(environment, "effects", {}), **who.effects}.items():
            if effect in ("ask", "replay"):
                raise UserError(f"--file plays whole attempts, and in these the tool '{tool}', declared '{effect}', would run")
        self.environment, self.name = environment, name
        self.path, self.old = environment.file(name)

    def tried(self, texts: Mapping[str, str]) -> dict[str, Edit]:
        """Candidates of the ``texts`` (or unified diffs) that it may say, by their names. Raises UserError where one says what it
        says."""
        candidates: dict[str, Edit] = {}
        for name, given in texts.items():
            text = self.environment.edited(self.old, given, name)
            if text == self.old:
                raise UserError(f"{name} says what {self.path} says: there is nothing to try")
            candidates[name] = {FILE: {"path": self.path, "old": self.old, "text": text}}
        return candidates


def at_the_step(edit: Edit) -> Edit | None:
    """The edit of a fork that stands for a candidate at a step, where the history is held: of a file its new text wherever the
    agent was shown the old one. None where there is no old text that it could have been shown."""
    if not is_file(edit):
        return edit
    old, new = (str(edit[FILE][name]).strip() for name in ("old", "text"))
    return {"shown": {"replace": [old, new]}} if old and old != new else None
