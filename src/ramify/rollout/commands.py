"""Commands about a run, as they are printed for a person to type: each runs as it stands, from the folder we are in."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from ramify.base.errors import UserError
from ramify.env.tools import effect_options
from ramify.render.escape import visible
from ramify.rollout.stored import WhoPlays, named_components
from ramify.trace.db import Run
from ramify.trace.sources import run_folder

WHO = "tell it who plays, by `--model` and `--env`"
"""What it takes to go on where a run names nobody."""
RULE = '{"rule": {"add": "Check before you act."}}'
"""An edit, as an example."""


@dataclass(frozen=True, slots=True)
class Commands:
    """The commands of one run."""

    run: str
    """Its folder, from the current one where it lies below."""
    plays: bool = True
    """Whether a command can continue its attempts: the run names an agent and an environment, or ``options`` do."""
    options: str = ""
    """The end of each command that continues attempts."""

    @property
    def name(self) -> str:
        """The run as a word of the shell."""
        return shlex.quote(self.run)

    @property
    def show(self) -> str:
        """Opens the run's page."""
        return f"ramify show {self.name} --web"

    def why(self, where: str = "", more: str = "") -> str:
        """Asks which step lost an attempt: one of the tree or through the node ``where``."""
        return f"ramify why {self.name}{f' {shlex.quote(where)}' if where else ''}{more}{self.options}"

    def fork(self, node: str, more: str = " --n 32") -> str:
        """Samples on from ``node``; "" where nobody is named who could."""
        return f"ramify fork {self.name} {node[:12]}{more}{self.options}" if self.plays else ""

    def of_step(self, tokens: bool) -> list[tuple[str, str, str]]:
        """What can be done at a step: what it does, and the command before and after the step's node. A fork of the whole step is
        at offset 0. The last, to ask why, is for a step after which somebody said how an attempt ended. ``tokens``: whether those
        of replies were recorded."""
        fork, rule = f"ramify fork {self.name} ", shlex.quote(RULE)
        able = [
            ("sample this step and all after it anew", fork, f":0 --n 32{self.options}"),
            ("change something here, such as a rule, with a control", fork, f" --edit {rule} --n 32{self.options}"),
        ]
        why = f"ramify why {self.name} "
        able += [
            ("which part of what it was shown caused this step", why, f" --context{self.options}"),
            *[("which of its tokens was a fork", why, f" --tokens{self.options}")] * tokens,
        ]
        return able * self.plays + [("which step lost it", why, self.options)]

    def of(self, run: Run) -> Commands:
        """The same where ``run`` lies now; of an answer that was stored without any: those of the run."""
        return replace(self, run=run_name(run.folder)) if self.run else commands(run)

    def go_on(self, node: str, samples: str) -> str:
        """One sentence with the command that ``samples`` something from ``node``, or with what it takes to have one."""
        if self.plays:
            return f"`{self.fork(node)}` samples {samples}"
        return f"`ramify fork` samples {samples}: {WHO}"


NOBODY = Commands("", plays=False)
"""Of an answer about no run."""


def commands(run: Run, who: WhoPlays | None = None) -> Commands:
    """The commands of ``run`` for ``who`` continues it (None: whom the run names). An agent or environment that is an object of
    Python has no name that a command could give."""
    who = who or WhoPlays()
    folder = run_name(run.folder)
    model, env = who.model, who.env
    given = {"--model": model, "--env": env}
    options = "".join(f" {option} {shlex.quote(name)}" for option, name in given.items() if isinstance(name, str))
    options += effect_options(who.effects) + (" --trust" if who.trust else "")
    try:
        named_components(run, model if isinstance(model, str) else None, env if isinstance(env, str) else None)
    except UserError:
        return Commands(folder, plays=False)
    objects = any(part is not None and not isinstance(part, str) for part in given.values())
    return Commands(folder, plays=not objects, options="" if objects else options)


def commands_at(source: Path) -> Commands:
    """The commands of the run that ``source`` is or names; a log that is none has nobody who plays."""
    folder = run_folder(source)
    if folder is None:
        return Commands(str(source), plays=False)
    with Run.open(folder) as run:
        return commands(run)


def run_name(folder: Path | str) -> str:
    """The run in ``folder`` as commands name it: from the current folder where it lies below."""
    path = Path(folder)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return visible(str(path))
