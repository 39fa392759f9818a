"""Acts: what a person does on the pages of ``ramify ui --act``, and an agent with the tools of ``ramify mcp``.

Each is one command line of ramify, made of values that are checked here. A text becomes a file that the command names, so none
stands between the words of a command, and no shell reads them. Who plays is whom the run itself names: no act takes a model, an
environment, a path or a command.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError, nearest
from ramify.rollout.components import check_trust
from ramify.rollout.edits import check_edit
from ramify.rollout.stored import named_components, task_of
from ramify.trace.db import Run
from ramify.trace.node import ROLLOUT, Node
from ramify.trace.schema import stored

MOST_TEXT = 20_000
"""Characters of a text."""
MOST_RULES = 8


@dataclass(frozen=True, slots=True)
class ActLimits:
    """What an act may take; then it ends, and what is done is kept."""

    tokens: int = 1_000_000
    """Of prompts and replies."""
    seconds: int = 3600


@dataclass(frozen=True, slots=True)
class Act:
    """A command of ramify that is ready to be started."""

    name: str
    run: Path
    title: str
    words: tuple[str, ...]
    attempts: int
    """That it plays at most."""
    edits: tuple[Mapping[str, Any], ...] = ()
    """Written to files, which the command gets as ``flag``."""
    flag: str = "--edit"
    task: str = ""
    """Of the step that it is about."""

    def command(self, folder: Path) -> list[str]:
        """Its words, with the files of its edits in ``folder``."""
        files = [f"{self.flag}={folder / f'edit-{i}.json'}" for i in range(1, 1 + len(self.edits))]
        return [self.words[0], *files, *self.words[1:]]

    def write(self, folder: Path) -> None:
        """Write the files of its edits."""
        for i, edit in enumerate(self.edits, 1):
            (folder / f"edit-{i}.json").write_text(json.dumps(edit, ensure_ascii=False), "utf-8")


@dataclass(frozen=True, slots=True)
class Field:
    """A value of an act: a number with ``least``, a text otherwise, one of ``options`` where there are some."""

    name: str
    label: str
    default: str | int | None = ""
    """None: it must be given."""
    least: int | None = None
    most: int = MOST_TEXT
    options: Mapping[str, str] | None = None
    long: bool = False

    def read(self, given: Any) -> Any:
        """The value, of a form's text or of JSON. Raises UserError."""
        if given is None or given == "":
            if self.default is None:
                raise UserError(f"{self.label}: it is needed")
            return self.default
        if self.least is not None:
            try:
                number = int(given) if isinstance(given, (str, int)) and not isinstance(given, bool) else None
            except ValueError:
                number = None
            if number is None or not self.least <= number <= self.most:
                raise UserError(f"{self.label}: it must be a whole number from {self.least} to {self.most}")
            return number
        if not isinstance(given, str) or len(given) > self.most or "\0" in given:
            raise UserError(f"{self.label}: it must be a text of at most {self.most} characters")
        if self.options is not None and given not in self.options:
            raise UserError(f"{self.label}: must be one of {', '.join(self.options)}")
        return given.replace("\r\n", "\n")


@dataclass(frozen=True, slots=True)
class ActKind:
    """What can be done, with which values."""

    title: str
    does: str
    fields: tuple[Field, ...]
    make: Callable[..., Act]


def act_of(name: str, run: Path, given: Mapping[str, Any]) -> Act:
    """The act ``name`` on the run in the folder ``run``. Raises UserError on a value, step or run that it cannot be done with,
    RamifyError on a damaged run."""
    if name not in ACTS:
        raise UserError(f"there is no act '{name}' ({nearest(name, ACTS)})")
    fields = {field.name: field for field in ACTS[name].fields}
    for key in given:
        if key not in fields:
            raise UserError(f"'{name}' takes no '{key}' ({nearest(key, fields)})")
    with Run.open(run) as opened:
        return stored(ACTS[name].make)(opened, **{key: field.read(given.get(key)) for key, field in fields.items()})


def _step(run: Run, name: str) -> Node:
    """The node that is meant, of a run whose own agent can be played."""
    node = run.node(run.find(name.strip()))
    named_components(run)
    check_trust(run, False)
    return node


def _forked(name: str, title: str, run: Run, node: Node, offset: int | str, n: int, *edits: Any) -> Act:
    where = f"{node.id}:{offset}" if offset != "" else node.id
    checked = tuple(edit for edit in map(check_edit, edits) if edit is not None)
    words = ("fork", f"--n={n}", "--", str(run.folder), where)
    arms = len(checked) + 1 if checked else 1
    return Act(name, run.folder, f"{title} {node.id[:12]}", words, n * arms, checked, task=task_of(run, node.tree)[0].id)


def _fork(run: Run, node: str, offset: int | str, n: int) -> Act:
    return _forked("fork", "sample again from step", run, _step(run, node), offset, n)


def _edit(run: Run, node: str, how: str, text: str, n: int) -> Act:
    edit = {"rule": {"rule": {"add": text}}, "message": {"insert": {"role": "user", "text": text}}, "replace": {"replace": text}}
    return _forked("edit", f"{HOW[how]} at step", run, _step(run, node), "", n, edit[how])


def _token(run: Run, node: str, offset: int, text: str, n: int) -> Act:
    return _forked("token", f"force tokens at {offset} of step", run, _step(run, node), offset, n, {"append": text})


def _screen(run: Run, node: str, rules: str, n: int) -> Act:
    edits = [{"rule": {"add": rule}} for rule in _rules(rules)]
    return _forked("screen", "screen candidates at step", run, _step(run, node), "", n, *edits)


def _why(run: Run, where: str, samples: int) -> Act:
    where = where.strip()
    if where and not run.has_tree(where):
        where = run.find(where)
    words = ("why", f"--samples={samples}", "--", str(run.folder), *([where] if where else []))
    return Act("why", run.folder, f"which step lost {where[:24] or 'an attempt'}", words, samples)


def _cause(run: Run, node: str, samples: int) -> Act:
    step = _step(run, node)
    words = ("why", "--context", f"--samples={samples}", "--", str(run.folder), step.id)
    return Act("cause", run.folder, f"what caused step {step.id[:12]}", words, samples, task=task_of(run, step.tree)[0].id)


def _fix(run: Run, node: str, rules: str, n: int, tasks: int, attempts: int) -> Act:
    step, edits = _step(run, node), tuple({"rule": {"add": rule}} for rule in _rules(rules))
    words = ("fix", f"--n={n}", f"--tasks={tasks}", f"--attempts={attempts}", "--", str(run.folder), step.id)
    most = (len(edits) + 1) * (n + tasks * attempts)
    return Act("fix", run.folder, f"which rule fixes step {step.id[:12]}", words, most, edits, "--try")


def _record(run: Run, n: int) -> Act:
    if run.kind != "record":
        raise UserError(f"{run.folder} was not made by `ramify record`, so it holds no command")
    check_trust(run, False)
    settings = json.loads(str(run.config["env"]).partition(":")[2])
    more = n + len({attempt.index for attempt in run.attempts(purpose=ROLLOUT)})
    options = {"n": more, "run": run.folder, "model": run.config["model"], "seed": run.config.get("seed", 0)}
    options |= {"concurrency": run.config.get("concurrency", 4)}
    options |= {name.replace("_", "-"): settings[name] for name in ("check", "repo", "seconds", "check_seconds", "calls")}
    effects = [f"--effect={tool}={effect}" for tool, effect in settings.get("effects", {}).items()]
    words = ("record", *(f"--{name}={value}" for name, value in options.items()), *effects, "--", *settings["command"])
    return Act("record", run.folder, f"{n} more attempts of {Path(settings['command'][0]).name}", words, n)


def _rules(text: str) -> list[str]:
    """One rule a line."""
    rules = list(dict.fromkeys(line.strip() for line in text.split("\n") if line.strip()))
    if not 1 <= len(rules) <= MOST_RULES:
        raise UserError(f"write 1 to {MOST_RULES} rules, one a line")
    return rules


HOW = {"rule": "add a rule", "message": "insert a message", "replace": "another text"}
_NODE = Field("node", "Step: a node's id or its first digits", None, most=64)
_N = Field("n", "Continuations of each", 16, 1, 500)
_RULES = Field("rules", "Rules, one a line", None, long=True)
ACTS: Mapping[str, ActKind] = {
    "fork": ActKind(
        "Sample again",
        "Samples the step again from where it began, or from a token inside it, n times, and counts how the attempts end.",
        (_NODE, Field("offset", "Token inside it to begin at (empty: its beginning)", "", 0, 10_000_000), _N),
        _fork,
    ),
    "edit": ActKind(
        "Try an edit",
        "Plays on from the step n times with the edit and n times without it, and compares how they end.",
        (_NODE, Field("how", "What changes", "rule", options=HOW), Field("text", "Text", None, long=True), _N),
        _edit,
    ),
    "token": ActKind(
        "Force tokens",
        "Writes a text into the reply at a token, plays on n times from there and n times without it, and compares. It needs a "
        "model that takes tokens.",
        (_NODE, Field("offset", "Token to write at", None, 0, 10_000_000), Field("text", "Text", None), _N),
        _token,
    ),
    "why": ActKind(
        "Ask why",
        "Finds the step of a failed attempt at which success fell, by sampling its steps again; 0 samples compare the attempts "
        "that are there.",
        (
            Field("where", "Task's tree, or a node of an attempt (empty: a failed attempt)", "", most=500),
            Field("samples", "Continuations at most", 96, 0, 5000),
        ),
        _why,
    ),
    "cause": ActKind(
        "Ask for the cause",
        "Finds which part of what the agent was shown caused the step, by sampling it with parts left out.",
        (_NODE, Field("samples", "Samples at most", 150, 10, 5000)),
        _cause,
    ),
    "fix": ActKind(
        "Fix",
        "Screens rules at the step, then confirms the better ones by whole attempts at other tasks. Nothing is written.",
        (
            _NODE,
            _RULES,
            _N,
            Field("tasks", "Other tasks at most", 8, 1, 100),
            Field("attempts", "Attempts at each", 8, 1, 100),
        ),
        _fix,
    ),
    "screen": ActKind(
        "Screen candidates",
        "Plays on from the step n times with each candidate rule and n times without one, and compares, corrected over all. What "
        "it finds is a screening, and no more: whether a rule holds at other tasks is for a person to ask, with `ramify fix`.",
        (_NODE, _RULES, _N),
        _screen,
    ),
    "record": ActKind(
        "Record more attempts",
        "Starts the recorded command again, n times, each in a git worktree of its own.",
        (Field("n", "More attempts", 4, 1, 100),),
        _record,
    ),
}
