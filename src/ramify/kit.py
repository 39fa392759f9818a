"""What every verb is made of: its arguments, options and settings as types, and the one parser that reads them all (cyclopts).

A verb is a typed function. Its parameters are arguments and options, annotated with :func:`argument` and :func:`option` or with a
shared type from here (:data:`Json`, :data:`DryRun`, ...). A verb with settings names their class:
``@app.verb(settings=ScanOptions)``; every field of it is an option with a dotted name, and the first parameter of the function
gets the resolved record. Defaults < ``--config`` files left to right < options. Settings that are not in the class's ``BASIC``
are advanced: only ``--help-all`` lists them.

Progress and Ctrl-C are :func:`ramify.render.terminal.progress`.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from cyclopts import App, ArgumentCollection, CycloptsError, Group, Parameter
from cyclopts.exceptions import (
    CoercionError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    ValidationError,
)
from cyclopts.exceptions import UnusedCliTokensError as UnusedError
from cyclopts.validators import Number

from ramify.base import paces
from ramify.base.errors import EXIT_DONE, EXIT_USAGE, InterruptedRunError, UserError, nearest
from ramify.base.interrupt import interrupted
from ramify.base.secrets import redact
from ramify.base.verdicts import Verdicts, collected
from ramify.base.words import unwrapped

F = TypeVar("F", bound=Callable[..., Any])

SWITCH = ("true", "false")
ALL, ANY = "--help-all", "VALUE"
_everything: ContextVar[bool] = ContextVar("everything", default=False)
"""Whether help lists advanced settings, too."""

ARGUMENTS, OPTIONS = Group("Arguments", sort_key=0), Group("Options", sort_key=1)
FURTHER, ADVANCED = Group("Settings of a format", sort_key=2), Group("Advanced settings", sort_key=3)


def argument(metavar: str | None = None, help: str = "") -> Parameter:
    """A positional argument. ``list[...]`` takes all that are given."""
    named: dict[str, Any] = {} if metavar is None else {"name": metavar.removesuffix("..."), "metavar": metavar}
    return Parameter(help=help, group=ARGUMENTS, show_default=False, negative=(), **named)


def option(
    *names: str,
    help: str = "",
    metavar: str | None = None,
    min: float | None = None,
    max: float | None = None,
    show_default: bool = True,
) -> Parameter:
    """An option, named ``--as-its-parameter`` unless ``names`` say otherwise; ``list[...]`` may be repeated.

    A switch without ``names`` has a ``--no-`` form. Numbers lie from ``min`` to ``max``.
    """
    more: dict[str, Any] = {"validator": Number(gte=min, lte=max)} if min is not None or max is not None else {}
    more |= {"name": names, "negative": ()} if names else {}
    more |= {} if show_default else {"show_default": False}
    return Parameter(help=help, metavar=metavar, group=OPTIONS, negative_iterable=(), json_list=False, **more)


Json = Annotated[bool, option("--json", help="Print the result as one line of JSON.")]
DryRun = Annotated[bool, option("--dry-run", help="Print the settings and the cost estimate; run nothing.")]
Seed = Annotated[int, option("--seed", help="Decides every sample.")]
Files = Annotated[list[Path] | None, option("--config", metavar="FILE", help="TOML file with settings; later files win.")]
RunArgument = Annotated[str, argument("RUN", help="Folder of a run, or its name under ./runs.")]
Trust = Annotated[
    bool,
    option(
        "--trust",
        help="Allow the settings of a run that was imported, or made elsewhere, to load code, open connections and read files.",
    ),
]
ForkModel = Annotated[
    str | None,
    option("--model", metavar="MODEL", help="The agent that continues, as in `ramify rollout`; needed where the run names none."),
]
ForkEnv = Annotated[
    str | None, option("--env", metavar="ENV", help="The environment to continue in; needed where the run names none.")
]
Effects = Annotated[
    list[str] | None,
    option(
        "--effect",
        metavar="TOOL=EFFECT",
        help="What a tool does to the world: pure, replay, sandboxed or ask; repeatable; the tool * is all others. One that "
        "declares none is not run on a "
        "branch, whatever an MCP server's annotations say of it.",
    ),
]
Form = Annotated[
    str | None,
    option(
        "--from",
        metavar="FORMAT",
        help="Format of the file, see `ramify list reader`; by default it is detected from the content.",
    ),
]
Device = Annotated[
    str, option("--device", help="Where the local engine runs: cpu, cuda, cuda:1, ...; default: RAMIFY_DEVICE, else cpu.")
]
Dtype = Annotated[
    str,
    option(
        "--dtype",
        help="float32; int8, for speed, on a CPU; bfloat16 on an accelerator, without seeds; default: RAMIFY_DTYPE.",
    ),
]


def words_of(choice: str, words: Sequence[str] | None, called: str) -> list[str]:
    """The ``words`` that follow ``choice``, one for each that is ``called`` so; those in brackets may be missing, and with "..."
    there may be more. Raises UserError where there are too few or too many."""
    given, names = list(words or ()), called.split()
    if not sum(name[0] != "[" for name in names) <= len(given) <= (len(given) if "..." in called else len(names)):
        raise UserError(f"{choice} takes {called or 'no words'}, not {' '.join(map(repr, given)) or 'nothing'}")
    return given


def find_run(text: str) -> Path:
    """The folder of the run ``text`` names. Raises UserError with the nearest run that exists."""
    from ramify.trace.connect import FILE  # help starts faster without numpy
    from ramify.trace.sources import RUNS, run_folder

    folder = run_folder(Path(text))
    if folder is not None:
        return folder
    if not text:
        raise UserError("a run is named by its folder, and the name given is empty")
    if Path(text).is_file():
        raise UserError(f"{text} is a file; a run is a folder with a {FILE}")
    if Path(text).is_dir():
        raise UserError(f"{text} is not a run: it holds no {FILE}")
    known = [path.parent.name for path in RUNS.glob(f"*/{FILE}")]
    raise UserError(f"no run '{text}' ({nearest(Path(text).name, known)})")


def check_forks(fork: int | None, *who: object) -> None:
    """Raises UserError where ``who`` continues (--model, --env, --trust) is given without anything to continue."""
    if fork is None and any(who):
        raise UserError("--model, --env and --trust choose what continues the attempts, so they go with --fork N")


def only_for(choice: str, **given: object) -> None:
    """Raises UserError where one of the options ``given``, which ``choice`` does not take, has a value other than None or
    False."""
    for name, value in given.items():
        if value is not None and value is not False:
            raise UserError(f"{choice} takes no {_flag(name)}")


class Verbs(App):
    """The verbs of a method, or one verb: a cyclopts application whose functions are read only when one is called or shown."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.group_arguments, self.group_parameters = ARGUMENTS, OPTIONS
        self.help_format = "plaintext"

    def verb(
        self, name: str = "", settings: Any = None, more: Any = None, epilogue: Any = None, keeps: str = ""
    ) -> Callable[[F], F]:
        """Register a function as the verb ``name`` (by default its own name).

        A function that returns a :class:`ramify.render.result.Result` gets ``--json``: the result is printed, and its exit code
        is the verb's. It may return an iterator of results, each printed as it comes, or None where it served. ``keeps`` names
        the parameter with the run that keeps the result, where it is a run, or with a list of them (``folder/run``: with
        the folder in which ``run`` is one). ``settings`` is a :class:`ramify.base.config.Config`, or a function that returns it,
        which puts off importing it. ``more`` returns further options by name with their help, whose texts arrive in the parameter
        ``more``. ``epilogue`` returns what help says last.
        """

        def register(function: F) -> F:
            called = name or function.__name__.strip("_").replace("_", "-")
            app = Verbs(called, help=unwrapped(inspect.getdoc(function) or ""), sort_key=len(self._commands))
            app.default_command = Verb(function, settings, more, epilogue, f"{self.name[0]} {called}", keeps)
            self.command(app)
            return function

        return register

    def study(
        self,
        name: str = "",
        settings: Any = None,
        plan: Callable[..., Any] | None = None,
        unit: str = "",
        itself: bool = False,
        folder: str = "",
        resumed: bool = False,
        keeps: bool = True,
        run: str = "out",
    ) -> Callable[[F], F]:
        """Register a function as the verb ``name`` that does long work in a run and continues it when called again.

        The function's parameters are those of :meth:`verb`, ``bar`` (a :class:`ramify.base.progress.Progress`, which counts in
        ``unit``) and the run, named by ``run``; it returns a Result, which the run keeps unless it says the same itself
        (``keeps``). Here stand once: ``--json``; ``--dry-run``, which prints the settings and what ``plan`` says of the same
        arguments (name -> at most, or a whole :class:`ramify.render.result.Planned`; ``plan`` gets those of them that it names,
        all where it takes ``**``) and does nothing; progress; and Ctrl-C, which says how to continue: with the same command, or
        where the run is ``resumed``, with ``ramify resume``. ``folder``: without ``out`` it is the next free runs/FOLDER-N.
        ``itself``: as :meth:`itself`."""

        def register(function: F) -> F:
            called = "" if itself else name or function.__name__.strip("_").replace("_", "-")
            maker = f"{self.name[0]} {called}".rstrip()
            verb = StudyVerb(function, settings, maker, plan, unit, folder, resumed, keeps, run)
            app = self if itself else Verbs(called, sort_key=len(self._commands))
            app.help = unwrapped(verb.__doc__ or "")
            app.default_command = verb
            if not itself:
                self.command(app)
            return function

        return register

    def itself(self, settings: Any = None, more: Any = None, epilogue: Any = None, keeps: str = "") -> Callable[[F], F]:
        """Register the function that is called where no further verb is named, as :meth:`verb` does."""

        def register(function: F) -> F:
            self.default_command = Verb(function, settings, more, epilogue, self.name[0], keeps)
            self.help = unwrapped(inspect.getdoc(function) or "")
            return function

        return register


JSON, DRY = "as_json", "dry_run"
CONTINUES = "The same command continues what was interrupted."
RESUMES = "`ramify resume RUN` continues what was interrupted."


def keep(source: Path, maker: str, result: Any) -> str:
    """Keep a Result in the run that ``source`` is or names, where it replaces an earlier one of ``maker`` of the same ``part``;
    nowhere where it is not a run. A run that has it already is not written to. Returns why it could not be kept, else ""."""
    from ramify.base.ids import canonical_json
    from ramify.trace import sources
    from ramify.trace.db import Run
    from ramify.trace.node import KeptResult

    new = KeptResult(f"{maker} {result.part}".rstrip(), *result.as_kept())

    def add(run: Run) -> None:
        if canonical_json(asdict(new)) not in {canonical_json(asdict(known)) for known in run.results(new.maker)}:
            run.add(new)

    return sources.keep(source, [], add)


class Verb:
    """A function as the parser sees it: its parameters, a parameter for each setting, and ``--config``."""

    UNSEEN = frozenset[str]()
    """Parameters of the function that nobody gives."""

    def __init__(
        self, function: Callable[..., Any], settings: Any, more: Any, epilogue: Any, maker: str = "", keeps: str = ""
    ) -> None:
        self.function, self._settings, self.more, self.epilogue = function, settings, more, epilogue
        self.maker, self.keeps = maker, keeps
        self.__doc__, self.__name__, self.__module__ = function.__doc__, function.__name__, function.__module__
        self._keys: dict[str, str] = {}
        self._made: dict[bool, list[inspect.Parameter]] = {}

    def settings(self) -> Any:
        """The class of the settings, None without."""
        return self._settings if self._settings is None or isinstance(self._settings, type) else self._settings()

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.Signature(self.parameters())

    @property
    def __annotations__(self) -> dict[str, Any]:  # type: ignore[override]
        return {parameter.name: parameter.annotation for parameter in self.parameters()}

    def parameters(self) -> list[inspect.Parameter]:
        """What the parser reads; advanced settings are hidden but in a call with ``--help-all``."""
        everything = _everything.get()
        if everything not in self._made:
            self._made[everything] = list(self._parameters())
        return self._made[everything]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Resolve the settings, call the function, and print and keep the result that it returns."""
        given = self.__signature__.bind(*args, **kwargs).arguments
        options = {key: given.pop(name) for name, key in self._keys.items() if given.get(name) is not None}
        for name, record in self._records().items():
            given[name] = record(**{entry.name: given.pop(entry.name) for entry in fields(record) if entry.name in given})
        as_json = bool(given.pop(JSON, False))
        settings, first = self.settings(), []
        if self.more is not None:
            given["more"] = options
        elif settings is not None:
            from ramify.base.config import load

            first = [load(settings, given.pop("config", None) or (), options)]
        if not self.returns():
            printing = {JSON: as_json} if JSON in inspect.signature(self.function).parameters else {}
            return self.function(*first, **printing, **given)
        from ramify.render.terminal import quiet, working

        with quiet(as_json), working(self.maker), collected() as verdicts:
            return self.conclude(self.work(first, given), given, as_json, verdicts)

    def returns(self) -> bool:
        """Whether the function returns a Result, which is printed here."""
        from ramify.render.result import Result

        hint = _hints(self.function, self.settings()).get("return")
        return any(isinstance(kind, type) and issubclass(kind, Result) for kind in (hint, *get_args(hint)))

    def work(self, first: list[Any], given: dict[str, Any]) -> Any:
        """The function's result."""
        return self.function(*first, **given)

    def conclude(self, result: Any, given: dict[str, Any], as_json: bool, verdicts: Verdicts) -> int:
        """Print the result, or each of several as it comes, keep it in its run, and return the exit code."""
        from ramify.render.result import Result
        from ramify.render.terminal import say, show

        name, _, inside = self.keeps.partition("/")
        code, runs = EXIT_DONE, given.get(name)
        for answer in (result,) if isinstance(result, Result) else result or ():
            # what a judge did, and what was cut, is of this call alone: it is shown, not kept, and decides no exit code
            same = [text for text in verdicts.caveats() if text not in answer.caveats]
            show(replace(answer, caveats=(*answer.caveats, *same)) if same else answer, as_json)
            for run in runs if isinstance(runs, list) else [runs] if runs is not None else []:
                lost = keep(Path(run, inside), self.maker, answer) if answer.KEPT else ""
                if lost and lost not in answer.caveats:  # what else could not be kept said so
                    say(f"warning: {lost}")
            code = max(code, answer.exit_code)
        for host, server in verdicts.servers.items():
            say(server.sentence(host))
        return code

    def _records(self) -> dict[str, Any]:
        """Parameters of the function that are records of options: each field is an option of the verb."""
        hints = _hints(self.function, self.settings())
        return {
            name: hint for name, hint in hints.items() if is_dataclass(hint) and name != "return" and hint is not self.settings()
        }

    def switches(self) -> list[tuple[str, Any]]:
        """Switches that the function need not declare."""
        return [(JSON, Json)] if self.returns() else []

    def _parameters(self) -> Iterator[inspect.Parameter]:
        settings, names = self.settings(), list(inspect.signature(self.function).parameters)
        hints = _hints(self.function, settings)
        written = inspect.signature(self.function).parameters
        skipped = self.UNSEEN | ({names[0]} if settings else {"more"} if self.more else set())
        records = self._records()
        shown = [
            parameter
            for name in names
            if name not in skipped
            for parameter in (_spread(records[name]) if name in records else [_parameter(written[name], hints[name])])
        ]
        shown += [_switch(name, hint) for name, hint in self.switches() if name not in names]
        if settings is not None:
            shown.append(inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Files))
        yield from sorted(shown, key=lambda parameter: parameter.kind)
        taken = {
            flag
            for parameter in shown
            for mark in get_args(parameter.annotation)[1:]
            for flag in mark.name or (_flag(parameter.name),)
        }
        for key, hint, mark in _leaves(settings) if settings is not None else _texts(self.more() if self.more else {}):
            if _flag(key) not in taken:
                name = "set__" + key.replace(".", "__").replace("-", "_")
                self._keys[name] = key
                yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[hint, mark])


class StudyVerb(Verb):
    """See :meth:`Verbs.study`."""

    UNSEEN = frozenset({"bar"})

    def __init__(
        self,
        function: Callable[..., Any],
        settings: Any,
        maker: str,
        plan: Any,
        unit: str,
        folder: str = "",
        resumed: bool = False,
        keeps: bool = True,
        run: str = "out",
    ) -> None:
        super().__init__(function, settings, None, None, maker, run if keeps else "")
        self.run = run
        self.plan, self.unit, self.folder, self.resumed = plan, unit, folder, resumed
        self.__doc__ = f"{inspect.getdoc(function) or ''}\n\n{RESUMES if resumed else CONTINUES}"

    def switches(self) -> list[tuple[str, Any]]:
        """``--dry-run`` and ``--json``."""
        return [(DRY, DryRun), *super().switches()]

    def work(self, first: list[Any], given: dict[str, Any]) -> Any:
        """What the work found, or with --dry-run what it would take."""
        from ramify.render.terminal import progress
        from ramify.trace.sources import next_run

        rest = list(inspect.signature(self.function).parameters.values())[len(first) :]
        for parameter in rest:
            if parameter.name not in self.UNSEEN:
                given.setdefault(parameter.name, parameter.default)
        named = given[self.run] is not None
        out = given[self.run] = given[self.run] if named else next_run(self.folder)
        if self.run == "out" and Path(out).is_file():  # one of another name may be there already, and its verb says so
            raise UserError(f"cannot make a run in {out}: it is a file")
        dry = given.pop(DRY, False)
        title = Path(out).name if self.folder and not dry else self.maker
        with progress(title, 0, self.unit, kept="" if dry else lambda: self._kept(Path(out), named)) as bar:
            bar.begin(0, phase="load")
            if dry:
                return self._planned(first, {**given, "bar": bar})
            with paces.measured(self.maker, _model_of(first, given), bar, self.unit) as counted:
                return self.function(*first, bar=counted, **given)

    def _planned(self, first: list[Any], given: dict[str, Any]) -> Any:
        from ramify.render.result import Planned

        known = inspect.signature(self.plan).parameters if self.plan else {}
        rest = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
        asked = {name: value for name, value in given.items() if name in known or (rest and name not in self.UNSEEN)}
        estimate = self.plan(*first, **asked) if self.plan else {}
        if not isinstance(estimate, Planned):
            seen = {name: value for name, value in given.items() if name not in self.UNSEEN}
            for record in seen.keys() & self._records().keys():  # its fields are the options
                options = seen.pop(record)
                seen |= {part.name: getattr(options, part.name) for part in fields(options)}
            told = {
                name: [str(each) for each in value] if isinstance(value, list) else str(value)
                for name, value in seen.items()
                if value is not None
            }
            estimate = Planned(first[0].to_json() if first else told, estimate)
        costs = estimate.cost_estimate
        more = paces.seconds(self.maker, _model_of(first, given), self.unit, costs)
        return replace(estimate, cost_estimate={**costs, **more})

    def _kept(self, out: Path, named: bool) -> str:
        """What an interrupted call leaves, and how to continue."""
        from ramify.trace.sources import run_folder

        if run_folder(out) is None:
            return "nothing was done yet"
        if self.resumed:
            return f"finished work is kept: continue with `ramify resume {shlex.quote(str(out))}`"
        return f"what is done is kept in {out}: the same command{'' if named else f' with --out {out}'} continues"


def _model_of(settings: list[Any], given: dict[str, Any]) -> str:
    """The model that a call is about, as it is named, without secrets; else the run, whose own model plays: ``run NAME``."""
    named = (given.get(name) or (getattr(settings[0], name, None) if settings else None) for name in ("model", "target", "agent"))
    run = f"{paces.RUN}{given['run']}" if given.get("run") else ""
    return str(redact(next((" ".join(map(str, name)) if isinstance(name, list) else str(name) for name in named if name), run)))


def _hints(function: Callable[..., Any], settings: Any) -> dict[str, Any]:
    return get_type_hints(function, None, {settings.__name__: settings} if settings else None, include_extras=True)


def _switch(name: str, hint: Any) -> inspect.Parameter:
    switch = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False)
    return _parameter(switch, hint)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _parameter(parameter: inspect.Parameter, hint: Any) -> inspect.Parameter:
    """A parameter of the function for the parser: positional or named, with a default worth showing, whole numbers whole."""
    hint, mark = (get_args(hint)[0], get_args(hint)[1]) if get_origin(hint) is Annotated else (hint, option())
    more: dict[str, Any] = {}
    if parameter.default in (None, False, "", inspect.Parameter.empty):
        more["show_default"] = False
    if hint is int or set(get_args(hint)) == {int, type(None)}:
        more["converter"] = _whole
    if not _is_list(hint):
        more["allow_repeating"] = True  # the last one counts
    positional = mark.group == (ARGUMENTS,)
    kind = inspect.Parameter.POSITIONAL_ONLY if positional else inspect.Parameter.KEYWORD_ONLY
    return parameter.replace(kind=kind, annotation=Annotated[hint, Parameter.combine(mark, Parameter(**more))])


def _spread(record: Any) -> list[inspect.Parameter]:
    """The fields of a record of options as parameters for the parser."""
    hints, written = get_type_hints(record, include_extras=True), inspect.signature(record).parameters
    return [_parameter(written[entry.name], hints[entry.name]) for entry in fields(record)]


def _is_list(hint: Any) -> bool:
    return get_origin(hint) in (list, tuple) or any(_is_list(member) for member in get_args(hint))


def _text(_: Any, tokens: Sequence[Any]) -> str:
    return str(tokens[0].value)


def _whole(_: Any, tokens: Sequence[Any]) -> int:
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError("must be a whole number") from None


def _leaves(settings: Any) -> Iterator[tuple[str, Any, Parameter]]:
    """(dotted name, type for the parser, option) of every setting, basic ones first.
    Values stay texts: the class itself reads them."""
    from ramify.base.config import describe

    every = describe(settings)
    basic = [each for each in every if each.name in settings.BASIC.split() or not settings.BASIC]
    left = len(every) - len(basic)
    note = "" if not left else f"{ALL} lists {left} more." if not _everything.get() else ""
    group = Group("Settings", help=note, sort_key=2)
    for setting in sorted(every, key=lambda each: each not in basic):
        flag, switch = _flag(setting.name), setting.type == "true|false"
        above, _, leaf = flag[2:].rpartition(".")
        yield (
            setting.name,
            bool | None if switch else str | None,
            Parameter(
                converter=None if switch else _text,  # "none" stays a text, too
                name=flag,
                negative=f"--{above}{'.' * bool(above)}no-{leaf}" if switch else (),
                metavar=None if switch else setting.type,
                help=f"{setting.help} [required]" if setting.required else setting.help,
                group=group if setting in basic else ADVANCED,
                show=setting in basic or _everything.get(),
                show_default=setting.default or False,
                allow_repeating=True,
            ),
        )


def _texts(texts: dict[str, str]) -> Iterator[tuple[str, Any, Parameter]]:
    """The same of options that the verb lists itself, at the end of its help. Each may be given once."""
    for name, text in texts.items():
        yield (
            name,
            str | None,
            Parameter(converter=_text, name=_flag(name), metavar=ANY, help=text, group=FURTHER, show=False),
        )


# -- from words to a call ------------------------------------------------------------------------------------------------------


def call(app: App, words: Sequence[str]) -> int:
    """Parse ``words`` and call the verb they name; its exit code.
    Raises UserError on words that name none or that it cannot take."""
    token = _everything.set(ALL in words[: words.index("--")] if "--" in words else ALL in words)
    try:
        chain, apps, rest = app.parse_commands([word for word in words if word != ALL or not _everything.get()])
        verb = next((inner.default_command for inner in reversed(apps) if isinstance(inner.default_command, Verb)), None)
        if not rest and apps[-1].default_command is None and not _everything.get():
            app.help_print(list(chain))
            return EXIT_USAGE
        if verb is not None and verb is apps[-1].default_command:
            rest = _spelled(apps[-1], rest)
        words = [*chain, *rest, *(["--help"] if _everything.get() else [])]
        command, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
        code = command(*bound.args, **bound.kwargs)
        if command is not verb and verb is not None and verb.epilogue is not None:
            from ramify.render.terminal import emit  # help alone starts faster without it

            emit({}, False, verb.epilogue())
    except CycloptsError as error:
        raise UserError(_sentence(error)) from None
    except KeyboardInterrupt:
        raise InterruptedRunError(interrupted()) from None
    except SystemExit as ended:
        code = ended.code
    finally:
        _everything.reset(token)
    return code if isinstance(code, int) else EXIT_DONE


def _spelled(app: App, words: Sequence[str]) -> list[str]:
    """``words`` as the parser spells them: ``--a_b`` is ``--a-b``,
    ``--switch true`` and ``--name -1x`` have "="."""
    arguments = app.assemble_argument_collection()
    known = {name: argument for argument in arguments for name in argument.names}
    spelled: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        if word == "--" or not flag.startswith("--"):
            spelled += [word, *rest] if word == "--" else ["./-" if word == "-" else word]  # "-" alone is a file, no option
            rest = [] if word == "--" else rest
            continue
        flag = flag if flag in known else flag.replace("_", "-")
        argument = known.get(flag)
        if argument is not None and not equals and rest:
            follows = rest[0].lower() in SWITCH if argument.hint in (bool, bool | None) else _is_dashed(rest[0], known)
            equals, value = ("=", rest.pop(0)) if follows else ("", "")
        spelled.append(f"{flag}{equals}{value}")
    return spelled


def _is_dashed(word: str, known: Iterable[str]) -> bool:
    return word.startswith("-") and not word.startswith("--") and word not in known and word != "-h"


def _sentence(error: CycloptsError) -> str:
    """What is wrong with the words of a command, in one sentence that names the nearest right one."""
    called = _called(error)
    match error:
        case UnknownOptionError():
            flag = (error.token.keyword or error.token.value).partition("=")[0]
            return unknown_option(flag, error.argument_collection)
        case UnknownCommandError():
            word = (error.unused_tokens or [""])[0]
            names = [name for name in error.app or () if name.startswith("-") == word.startswith("-")]
            if word.startswith("-"):
                return f"unknown option {word} ({nearest(word, names)})"
            return f"unknown verb '{word}' of {error.app.name[0] if error.app else 'ramify'} ({nearest(word, names)})"
        case MissingArgumentError() if error.argument is not None:
            from ramify.base.config import inline

            what, text = error.argument.parameter.metavar, inline(error.argument.parameter.help or "")
            if error.keyword or error.argument.tokens:
                return f"{called} needs a value{f' ({what})' if what not in (None, ANY) else text}"
            return f"{called} is missing{text}"
        case ValidationError() if error.argument is not None:
            reason, given = error.exception_message.rstrip("."), ",".join(token.value for token in error.argument.tokens)
            return f"{called}: {reason[:1].lower()}{reason[1:]}, not {given}"
        case CoercionError() if error.token is not None:
            return f"{called}: must be {_kind(error)}, not '{error.token.value}'"
        case RepeatArgumentError():
            return f"{error.token.keyword} is given twice"
        case UnusedError():
            return f"unexpected argument '{(error.unused_tokens or [''])[0]}': options are written --name value"
    return " ".join(str(error).split()).rstrip(".")


def _called(error: CycloptsError) -> str:
    """The option as it was written, or the argument as help names it."""
    written = getattr(error, "keyword", None) or getattr(getattr(error, "token", None), "keyword", None)
    if written or error.argument is None:
        return written or ""
    flags = [name for name in error.argument.names if name.startswith("-")]
    return flags[0] if flags else error.argument.parameter.metavar or error.argument.field_info.name.upper()


def _kind(error: CoercionError) -> str:
    hint = error.argument.hint if error.argument is not None else error.target_type
    members = [member for member in (get_args(hint) or (hint,)) if member is not type(None)]
    literal = hint if get_origin(hint) is Literal else next((member for member in members if get_origin(member) is Literal), None)
    if literal is not None:
        return "one of " + ", ".join(str(choice) for choice in get_args(literal))
    return {bool: "true or false", int: "a whole number", float: "a number"}.get(members[0], "readable")


def unknown_option(flag: str, arguments: ArgumentCollection) -> str:
    """The sentence for an option that a verb does not have:
    the one with the same last part is nearer than the one alike in letters."""
    known = [name for argument in arguments if argument.parse for name in argument.names if name.startswith("--")]
    leaf = flag.lstrip("-").split(".")[-1].replace("_", "-")
    same = [name for name in known if name.lstrip("-").split(".")[-1] == leaf]
    return f"unknown option {flag} ({nearest(same[0] if same else flag, known)})"
