"""The ``ramify`` command. Verbs and methods load only when they are called, so ``--help`` stays fast.

Exit codes are those of ``base.errors``: 0 done, 1 failed, 2 usage or bad input, 3 budget spent, 4 needs not met, 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from cyclopts import Group

from ramify.base import registry
from ramify.base.errors import EXIT_FAILED, RamifyError, UserError, nearest
from ramify.base.extras import needed
from ramify.base.files import refusal
from ramify.base.version import VERSION
from ramify.cli.methods import method_app, method_path, summary
from ramify.kit import Verbs, call

#: Verb -> (module under ramify.cli, one line of help).
VERBS = {
    "improve": ("improve", "Make an agent better: attempts, credit per step, training, a before/after report."),
    "rollout": ("rollout", "Play tasks with any agent in any environment, here or on workers, and keep the trees."),
    "resume": ("resume", "Continue an interrupted run."),
    "show": ("show", "Summarise a run in the terminal, as one HTML file or as local web pages."),
    "why": ("why", "Which step of an attempt lost it, what else was possible there, and what would have helped."),
    "serve": ("serve", "Serve a model to OpenAI clients, with speculation, recording and middleware."),
    "fork": ("fork", "Rewind a run to a token, change one thing, sample n continuations, compare the outcomes."),
    "import": ("import_", "Read traces of other tools into a run."),
    "export": ("export", "Write a run for other tools: JSON lines, Parquet, Graphviz, HTML."),
    "list": ("list", "List environments, models, judges, methods and other components."),
    "check": ("check", "Check that an environment, model, judge or other component does what its kind promises."),
    "new": ("new", "Write the skeleton of a component of your own, with its test and plug-in entry."),
    "doctor": ("doctor", "Check the installation: versions, hardware, extras, plug-ins, endpoints, sandbox."),
    "repro": ("repro", "Reproduce a method's headline result and print its table of checks."),
    "completion": ("completion", "Print the completion script of a shell: bash, zsh or fish."),
}
ABOUT = "Branch an agent's run at any token, see which step had which consequence, and use that to make the agent better."
GROUPS = Group("Verbs", sort_key=0), Group("Methods (ramify METHOD VERB ...)", sort_key=1)


#: Options that name what is made: an empty name, as of a variable that is not set, would be the current folder, or nothing.
NAMED = ("--out", "--run", "--record")


def _version() -> str:

    return f"ramify {VERSION}"


def command_line(called: str | None = None) -> Verbs:
    """The whole command line, of which only the verb or method ``called`` is imported; all of them for None.

    Raises UserError, with the nearest name, where nothing is called so.
    """
    app = Verbs("ramify", help=ABOUT, version=_version, group_commands=GROUPS[0])
    app.suppress_keyboard_interrupt = False
    methods = registry.builtin_methods()
    if called is not None and not called.startswith("-") and called not in VERBS and called not in methods:
        methods = registry.names("method")
        if called not in methods:
            raise UserError(f"unknown verb or method '{called}' ({nearest(called, [*VERBS, *methods])})")
    for rank, (name, (module, text)) in enumerate(VERBS.items()):
        if called in (name, None):
            found = importlib.import_module(f"ramify.cli.{module}").app
            found.sort_key = rank
            app.command(found)
        else:
            app.command(f"ramify.cli.{module}:app", name=name, help=text, group=GROUPS[0], sort_key=rank)
    for name in methods:
        if called in (name, None):
            found = method_app(name)
            found.group = GROUPS[1]
            app.command(found)
        elif path := method_path(name):
            app.command(f"{path}:app", name=name, help=summary(name), group=GROUPS[1])
    return app


def run(words: Sequence[str]) -> int:
    """What the command does, and its exit code. Raises RamifyError where it fails."""
    for i, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag in NAMED and not value and (equals or "" in words[i + 1 : i + 2]):
            raise UserError(f"{flag} takes a name, and the one given is empty")
    return call(command_line(words[0]), words)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. A user's mistake is one sentence on stderr, never a traceback.

    A bug in ramify is raised where ``argv`` is given, and shown as a traceback on the command line.
    """
    words = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        code = run(words)
        sys.stdout.flush()
    except RamifyError as error:
        return _complain(str(error), error.exit_code)
    except BrokenPipeError:  # the pipe was closed (| head); nothing more may be written, not even by the interpreter's last flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except OSError as error:
        if error.filename is None:  # standard output on a full disk: nothing more may be written there, as above
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        refused = refusal(os.fsdecode(error.filename or "cannot write the output"), error)
        return _complain(str(refused), refused.exit_code)
    except Exception as error:
        if (lacking := needed(error)) is not None:
            return _complain(str(lacking), lacking.exit_code)
        if argv is not None:
            raise
        import traceback  # it may quote secrets and texts of a trace, so it leaves by the one exit, too

        from ramify.base.plugins import whose

        at = whose(error)
        blamed = f"a fault in {at}:" if at else "a bug in ramify, please report it:"
        return _complain(blamed, EXIT_FAILED, traceback.format_exc())
    return code


def _complain(sentence: str, code: int, more: str = "") -> int:
    """Print ``sentence`` on one line, whatever it quotes, then the lines of ``more``."""
    from ramify.base.secrets import redact
    from ramify.render.terminal import say
    from ramify.render.text import sanitize

    say("ramify: " + sanitize(redact(sentence), flatten=True))
    if more:
        say(redact(more))
    return code


if __name__ == "__main__":
    sys.exit(main())
