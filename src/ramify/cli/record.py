"""``ramify record``: run somebody's agent as it is, n times, with every call of its model on record and a check that decides."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ramify.base.errors import UserError
from ramify.base.progress import Progress
from ramify.env.tools import read_effects
from ramify.jobs.results import Collected
from ramify.kit import Effects, Seed, Verbs, argument, option
from ramify.render.result import Cell
from ramify.render.terminal import say

if TYPE_CHECKING:
    from ramify.integrations.harnesses.commands import CommandSettings

app = Verbs("record")


def plan(command: list[str], n: int, model: str, calls: int) -> Mapping[str, Cell]:
    """What it takes at most."""
    return {"attempts": n, "calls": n * calls}


@app.study(plan=plan, unit="attempts", itself=True, folder="record", resumed=True, keeps=False, run="run")
def record(
    command: Annotated[
        list[str], argument("CMD...", help="The agent's command, after --; {url} in its words becomes the address of the model.")
    ],
    n: Annotated[int, option("-n", "--n", help="Attempts, those that the run holds already among them.", min=1)] = 8,
    check: Annotated[
        str,
        option(metavar="LINE", help="A line of the shell that decides: exit code 0 is success; default: the command's."),
    ] = "",
    repo: Annotated[
        Path, option(metavar="DIR", help="The git repository, or a folder in it; attempts work in checkouts of HEAD.")
    ] = Path("."),
    model: Annotated[
        str,
        option(metavar="MODEL", help="Answers every call, whatever model is named: chat:MODEL@URL, or as for `serve`."),
    ] = "",
    run: Annotated[
        Path | None, option(metavar="RUN", help="Folder of the run to make or continue; default: the next free runs/record-N.")
    ] = None,
    concurrency: Annotated[int, option(help="Attempts that run at once.", min=1)] = 4,
    seconds: Annotated[
        float, option(help="Most seconds of an attempt; then the command is ended and the check decides.", min=0.1)
    ] = 3600,
    check_seconds: Annotated[
        float, option(help="Most seconds of a check; one that takes longer decides nothing.", min=0.1)
    ] = 600,
    calls: Annotated[int, option(help="Most calls of the model in an attempt.", min=1)] = 1000,
    effect: Effects = None,
    seed: Seed = 0,
    *,
    bar: Progress,
) -> Collected:
    """Run an agent as it is, n times, each in a git worktree of its own, with every call of its model recorded.

    The address of the model is in the environment variables that clients read. What the attempts cost and how they ended is
    one run: `ramify why RUN` and `ramify fork RUN NODE` start the command again by themselves.
    """
    from ramify.integrations.harnesses.commands import CommandSettings
    from ramify.integrations.harnesses.worktrees import base_commit
    from ramify.jobs.recording import Recording, settings_of

    assert run is not None
    if not model:
        raise UserError(
            "--model says who answers the agent's calls: chat:MODEL@URL (as chat:gpt-5@https://api.openai.com/v1, "
            "or anthropic:MODEL@https://api.anthropic.com/v1), or another model that `ramify serve` takes"
        )
    _check_words(command, repo)
    given = CommandSettings(
        tuple(command), str(repo.resolve()), base_commit(repo, "HEAD"), check, seconds, check_seconds, calls,
        read_effects(effect or []),
    )  # fmt: skip
    _check_files(command, repo)
    settings, notes = _as_begun(given, run)
    config = settings_of(model=model, env=f"command:{settings.to_text()}", attempts=n, concurrency=concurrency, seed=seed)
    recording = Recording(config)
    for note in notes:
        say(f"note: {note}")
    recorded = recording.collect(run, bar)
    return replace(recorded, caveats=(*recorded.caveats, *notes))


def _check_words(words: list[str], repo: Path) -> None:
    """Raises UserError where the command cannot be started, or holds what may not be stored."""
    from ramify.base.secrets import redact, without_keys

    for word in words:
        if "\0" in word or (not word.isprintable() and word.encode("utf-8", "replace").decode() != word):
            raise UserError(f"the command's word {word!r} is not text")
        if redact(word) != word or without_keys(word) != word:
            raise UserError(
                "the command holds what looks like a key or a login, and it is stored in the run: give it in an environment "
                "variable"
            )
    if "/" not in words[0] and shutil.which(words[0]) is None:
        raise UserError(f"there is no command '{words[0]}' on the PATH")
    if words[0].startswith("/") and shutil.which(words[0]) is None:
        raise UserError(f"there is no command {words[0]}, or it may not be run")


def _check_files(words: list[str], repo: Path) -> None:
    """Say what attempts do not see of the files that are there. Raises UserError where that is the command."""
    if _git_says(repo, "status", "--porcelain", "-uno"):
        say(f"note: {repo} has changes that are not committed; attempts begin with its HEAD, without them")
    for at, word in enumerate(words):
        path = "/" in word if at == 0 else os.path.isfile(repo / word)  # a long word is not a path, which os says without raising
        if not path or os.path.isabs(word) or "{url}" in word or _git_says(repo, "ls-tree", "HEAD", "--", word):
            continue
        lacks = f"'{word}' is not in HEAD of {repo}, and attempts work in a checkout of it: commit it, or give its absolute path"
        if at == 0:
            raise UserError(lacks)
        say(f"note: {lacks}")


def _git_says(repo: Path, *words: str) -> bool:
    done = subprocess.run(["git", "-C", str(repo), *words], capture_output=True, text=True)
    return bool(done.stdout.strip())


def _as_begun(given: CommandSettings, run: Path) -> tuple[CommandSettings, list[str]]:
    """The settings with which the recording in ``run`` continues, and what to know of that. Raises UserError where it was begun
    with others."""
    from ramify.integrations.harnesses.commands import CommandEnvironment, CommandSettings, not_started, passed
    from ramify.jobs.recording import stored_environment

    kind, _, text = stored_environment(run).partition(":")
    if kind != "command":
        at_base = CommandEnvironment(given).check_at_base()
        if at_base is None:
            return given, []
        if not_started(at_base):
            raise UserError(f"the check `{given.check}` cannot be run in a fresh checkout of {given.repo}: {at_base.last}")
        first = passed(at_base, given)
        return given, ["the check passes before the agent has done anything, so it cannot tell success"] if first else []
    known = CommandSettings.of(text)
    for name in CommandSettings.__slots__:
        then, now = getattr(known, name), getattr(given, name)
        if then != now and name != "base":
            raise UserError(f"{run} cannot continue, it began with another {name}: {then!r}, now {now!r}; choose another --run")
    moved = known.base != given.base
    return known, [f"attempts begin with {known.base[:12]}, as the first did, and not with the present HEAD"] if moved else []
