"""The ``ramify`` command. Verbs and methods load only when they are called, so ``--help`` stays fast.

Exit codes are those of ``base.errors``: 0 done, 1 failed, 2 usage or bad input, 3 budget spent, 4 needs not met, 130 interrupted.
"""

from __future__ import annotations

import importlib
import keyword
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ramify.base import interrupt
from ramify.base.errors import EXIT_DONE, EXIT_FAILED, RamifyError, UserError, nearest
from ramify.base.extras import needed
from ramify.base.version import VERSION

if TYPE_CHECKING:
    from ramify.kit import Verbs

#: Each is the module of its name under ramify.cli.
VERBS = [
    *("record", "why", "show", "ui", "fork", "fix", "improve", "rollout", "resume", "serve", "mcp", "import", "export"),
    *("test", "doctor", "list", "new", "check", "repro", "completion"),
]
FRONT = """\
Usage: ramify VERB ... | METHOD VERB ...      (--help after any word; --version)

Branch an agent's run at any token, see which step had which consequence, and
use that to make the agent better.

An agent failed        record      run any agent as it is, n times, recorded
                       why         which step lost it, what would have helped
                       show        a run in the terminal, or as web pages
                       ui          all runs of a folder, as web pages
                       fork        change one thing at any token, sample on
                       fix         which edit helps, also at other tasks
                       test        how reliable, and whether a version differs
Make an agent better   improve     attempts, credit per step, training, report
                       rollout     play tasks with any agent, keep the trees
                       resume      continue what was interrupted
Serve                  serve       a model, or a gateway, for OpenAI clients
                       mcp         runs as tools of a coding agent
Keep and convert runs  import      other tools' traces   export  write for them
Parts and setup        doctor      what is installed, missing or broken
                       list        name models, judges, methods, other parts
                       new         write the skeleton of a part of your own
                       check       test a part, or a method where truth is known
                       repro       reproduce a result   completion  for a shell

Methods, by what they are for (`ramify list` says what each does)
Study a checkpoint     crosscoder, implicit-advantage, cliffs, early-decision
Credit and sampling    graph-credit, tree-rollouts, maze-recovery
Motives and rules      forensics, governance, theory-loop
Judges and tests       judge-evolution, verify-or-ship
Memory, simulation     earned-code-memory, world-model
Code, speed, routing   diagnose, kernel-search, dspark, orchestrator
"""
"""What ``ramify --help`` prints: a text, so that nothing is loaded for it."""
HELP = {"--help", "-h", "--help-all"}


#: Options that name what is made: an empty name, as of a variable that is not set, would be the current folder, or nothing.
NAMED = ("--out", "--run", "--record")


def _version() -> str:
    return f"ramify {VERSION}"


def command_line(called: str | None = None) -> Verbs:
    """The command line with the verb or method ``called``, and nothing where that is an option; with all of them for None.

    Raises UserError, with the nearest name, where nothing is called so.
    """
    from ramify.base import registry  # all of these are slow to load, and help needs none
    from ramify.cli.methods import method_app
    from ramify.kit import Verbs

    app = Verbs("ramify", version=_version)
    app.suppress_keyboard_interrupt = False
    methods = registry.builtin_methods()
    if called is not None and not called.startswith("-") and called not in VERBS and called not in methods:
        methods = registry.names("method")
        if called not in methods:
            raise UserError(f"unknown verb or method '{called}' ({nearest(called, [*VERBS, *methods])})")
    for name in VERBS:
        if called in (name, None):
            module = f"ramify.cli.{name}_" if keyword.iskeyword(name) else f"ramify.cli.{name}"
            app.command(importlib.import_module(module).app)
    for name in methods:
        if called in (name, None):
            app.command(method_app(name))
    return app


def run(words: Sequence[str]) -> int:
    """What the command does, and its exit code. Raises RamifyError where it fails."""
    ours = words[: words.index("--")] if "--" in words else words  # what follows is another program's
    for i, word in enumerate(ours):
        flag, equals, value = word.partition("=")
        if flag in NAMED and not value and (equals or "" in ours[i + 1 : i + 2]):
            raise UserError(f"{flag} takes a name, and the one given is empty")
    if HELP.intersection(words) and all(word.startswith("-") for word in words):
        sys.stdout.write(FRONT)
        return EXIT_DONE
    from ramify.kit import call

    first, *rest = words
    return call(command_line(rest[0]), [*rest, first]) if first in HELP else call(command_line(first), words)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. A user's mistake is one sentence on stderr, never a traceback.

    A bug in ramify is raised where ``argv`` is given, and shown as a traceback on the command line.
    """
    words = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if argv is None:
        interrupt.watch(_leave)
        if "RAMIFY_ATTENDED" in os.environ:
            from ramify.base import attended  # help starts faster without it

            attended.attend()
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
        from ramify.base.files import refusal

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


def _leave(sentence: str) -> None:
    """The last sentence of a command that Ctrl-C ends where it stands."""
    from ramify.base.secrets import redact
    from ramify.render.terminal import say_last

    say_last("ramify: " + redact(sentence))


def _complain(sentence: str, code: int, more: str = "") -> int:
    """Print ``sentence`` on one line, whatever it quotes, then the lines of ``more``."""
    from ramify.base.secrets import redact
    from ramify.render.terminal import say
    from ramify.render.text import sanitize

    interrupt.last_words()
    say("ramify: " + sanitize(redact(sentence), flatten=True))
    if more:
        say(redact(more))
    return code


if __name__ == "__main__":
    sys.exit(main())
