"""The ``ramify`` command. Verbs and methods load only when they are called, so ``--help`` stays fast.

Exit codes are those of ``base.errors``: 0 done, 1 failed, 2 usage or bad input, 3 budget spent, 4 needs not met, 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from ramify.base import registry
from ramify.base.errors import EXIT_DONE, EXIT_FAILED, EXIT_USAGE, InterruptedRunError, RamifyError, UserError, nearest
from ramify.base.files import refusal
from ramify.cli.methods import method_app, summary

#: Verb -> (module under ramify.cli, one line of help).
VERBS = {
    "improve": ("improve", "Make an agent better: branching rollouts, credit per step, training, a before/after report."),
    "rollout": ("rollout", "Play tasks with any agent in any world, here or on workers, and keep the trees."),
    "resume": ("resume", "Go on with an interrupted run."),
    "show": ("show", "Summarise a run in the terminal, as one HTML file or as local web pages."),
    "serve": ("serve", "Serve a model to OpenAI clients, with speculation, recording and middleware."),
    "fork": ("fork", "Rewind a run to a token, change one thing, go on n times, compare the outcomes."),
    "import": ("import_", "Read traces of other tools into a run."),
    "export": ("export", "Write a run for other tools: JSON lines, Parquet, Graphviz, HTML."),
    "list": ("list", "What there is: worlds, models, judges, methods."),
    "check": ("check", "Check that a world, model, judge or other part does what its kind promises."),
    "new": ("new", "Write the skeleton of a part of your own, with its test and plug-in entry."),
    "doctor": ("doctor", "Say what works here: versions, hardware, extras, plug-ins, endpoints, sandbox."),
    "repro": ("repro", "Reproduce a method's headline result and print its table of checks."),
}


#: Options that name what is made: an empty name, as of a variable that is not set, would be the current folder, or nothing.
NAMED = ("--out", "--run", "--record")


class LazyGroup(TyperGroup):
    """Lists verbs and methods without importing them; imports the one that is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Verbs in the order of their table, then methods."""
        return [*VERBS, *registry.builtin_methods()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A light stand-in with the help line: what the list of commands shows."""
        if cmd_name in VERBS:
            return TyperCommand(cmd_name, help=VERBS[cmd_name][1], rich_help_panel="Verbs")
        if cmd_name in registry.builtin_methods():
            return TyperCommand(cmd_name, help=summary(cmd_name), rich_help_panel="Methods (ramify METHOD VERB ...)")
        return None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import and return the command that is really called."""
        name = args[0]
        if name.startswith("-"):
            return super().resolve_command(ctx, args)
        if name in VERBS:
            module = importlib.import_module(f"ramify.cli.{VERBS[name][0]}")
            return name, typer.main.get_command(module.app), args[1:]
        known = registry.builtin_methods()
        if name in known or name in (known := registry.names("method")):
            return name, typer.main.get_group(method_app(name)), args[1:]
        raise UserError(f"unknown verb or method '{name}' ({nearest(name, [*VERBS, *known])})")

    def invoke(self, ctx: Any) -> Any:
        """Call the verb. Ctrl-C in one that says nothing of its own about it is one sentence, too."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise InterruptedRunError("interrupted") from None


app = typer.Typer(cls=LazyGroup, add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})


def _version(wanted: bool) -> None:
    if wanted:
        import ramify
        from ramify.render.terminal import emit

        emit({}, False, f"ramify {ramify.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Branch an agent's run at any token, see which step had which consequence, and use that to make the agent better."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. A user's mistake is one sentence on stderr, never a traceback.

    A fault of ours is raised where ``argv`` is given, and shown as its traceback in the command itself.
    """
    args = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        _check_named(args)
        code = typer.main.get_group(app).main(args=args, prog_name="ramify", standalone_mode=False)
        sys.stdout.flush()
    except RamifyError as error:
        return _complain(str(error), error.exit_code)
    except BrokenPipeError:  # the reader left (| head); nothing more may be written, not even by the interpreter's last flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except OSError as error:
        if error.filename is None:  # standard output on a full disk: nothing more may be written there, as above
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        refused = refusal(os.fsdecode(error.filename or "cannot write the output"), error)
        return _complain(str(refused), refused.exit_code)
    except Exception as error:
        explain = getattr(error, "format_message", None)  # the command-line library's own usage errors
        if explain is None and argv is not None:
            raise
        if (
            explain is None
        ):  # a fault of ours: the traceback may quote secrets and texts of a trace, so it leaves by the one exit, too
            import traceback

            return _complain("a fault of ramify itself, please report it:", EXIT_FAILED, traceback.format_exc())
        return _complain(explain().replace("Value error, ", ""), EXIT_USAGE)
    return code if isinstance(code, int) else EXIT_DONE


def _check_named(args: Sequence[str]) -> None:
    for i, word in enumerate(args):
        flag, equals, value = word.partition("=")
        if flag in NAMED and not value and (equals or "" in args[i + 1 : i + 2]):
            raise UserError(f"{flag} takes a name, and the one given is empty")


def _complain(sentence: str, code: int, more: str = "") -> int:
    """Say ``sentence`` on one line, whatever it quotes, then the lines of ``more``."""
    from ramify.base.secrets import redact
    from ramify.render.terminal import sanitize, say

    say("ramify: " + sanitize(redact(sentence), flatten=True))
    if more:
        say(redact(more))
    return code


if __name__ == "__main__":
    sys.exit(main())
