"""``ramify check``: run a kind's conformance battery on one component (built in, from a plug-in, or from your own file), check a
method against known truth, or check a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from ramify.base import registry
from ramify.base.errors import EXIT_FAILED, UserError, nearest
from ramify.base.plugins import find_attribute, own_path
from ramify.base.words import plural
from ramify.cli import experiments
from ramify.kit import Verbs, argument, option
from ramify.render.result import Result, Section, table
from ramify.render.terminal import progress
from ramify.testing import conformance
from ramify.trace import integrity

app = Verbs("check")

MODELS = ("builtin", "hf", "gguf", "smollm2", "chat", "completions", "anthropic", "responses", "factory")
"""What the name of a model may begin with that is not a registered model's name."""


@dataclass(frozen=True)
class CheckedPart:
    """One check of a battery, and the faults that it found."""

    check: str
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Conformance(Result):
    """Whether a component does what its kind promises, or a run is undamaged."""

    kind: str
    name: str
    conforms: bool
    checks: tuple[CheckedPart, ...]

    @property
    def exit_code(self) -> int:
        """1 where it does not."""
        return super().exit_code if self.conforms else EXIT_FAILED

    def sections(self) -> Iterable[Section]:
        """Every check, and the score."""
        rows = [(part.check.replace("_", " "), message) for part in self.checks for message in part.problems or ("pass",)]
        is_, is_not = ("is undamaged", "is damaged") if self.kind == "run" else ("conforms", "does not conform")
        faults = plural(sum(len(part.problems) for part in self.checks), "problem")
        score = f"{self.kind} '{self.name}' {is_ if self.conforms else f'{is_not}: {faults}'}"
        yield Section.of("", table(("check", "result"), rows), score)


@app.itself()
def check(
    kind: Annotated[
        str,
        argument(
            metavar="KIND",
            help="model, env, judge, credit, searcher, loss, compactor, sandbox, middleware, reader, method, or run.",
        ),
    ],
    name: Annotated[
        str,
        argument(
            metavar="NAME",
            help="A registered name (see `ramify list KIND`), NAME:ARGUMENT, or MODULE:ATTRIBUTE or FILE.py:ATTRIBUTE. "
            "Of a run: its folder. Of a method: its name, or all.",
        ),
    ],
    quick: Annotated[bool, option("--quick", help="Of a method: fewer repetitions, takes seconds.")] = False,
    seed: Annotated[int, option(min=0, help="Of a method: seed of the simulated samples.")] = 0,
    out: Annotated[
        Path | None, option(help="Of a method: also write the counts as JSON; those of other methods in it stay.")
    ] = None,
) -> Conformance | Iterator[Result]:
    """Check that a component does what its kind promises, that a run is undamaged,
    or that a method finds planted effects and nothing else.

    Exit code 0: passed; 1: failed; 4: a requirement is missing.
    """
    if kind == "method":
        reports: Iterator[Result] = experiments.command("check")(name, quick, seed, out)
        return reports
    if quick or seed or out is not None:
        raise UserError(f"--quick, --seed and --out belong to `ramify check method NAME`, not to kind '{kind}'")
    if kind == "run":
        checks, problems = integrity.CHECKS, integrity.check_run(Path(name))
    else:
        kind = conformance.known_kind(kind)
        part, options = find_component(kind, name), {}
        total = len(conformance.checks(kind))
        with progress(f"check {kind} {name}", total, "checks", None if kind == "env" else True) as bar:
            if kind == "env":  # the one kind whose steps may take long: a server, a game, a sandbox
                options = {"progress": bar}
            problems = conformance.check(kind, part, **options)
        checks = [] if any(problem.check == conformance.STOPPED for problem in problems) else conformance.checks(kind)
    names = list(dict.fromkeys([*checks, *(problem.check for problem in problems)]))
    by_check = [CheckedPart(check, tuple(each.message for each in problems if each.check == check)) for check in names]
    return Conformance(kind, name, not problems, tuple(by_check))


def find_component(kind: str, name: str) -> Any:
    """The component that NAME, NAME:ARGUMENT, MODULE:ATTRIBUTE or FILE.py:ATTRIBUTE names.

    Raises UserError naming the nearest right name, NeedsError where something the component needs is not installed.
    """
    plain, colon, attribute = name.partition(":")
    if kind == "model" and (plain in MODELS or own_path(name) is not None):
        from ramify.rollout.components import find_model

        return find_model(name)[0]
    known = registry.names(kind)
    if plain in known:
        return registry.named(kind, name)
    if not colon:
        raise registry.lacking(kind) or UserError(
            f"unknown {kind} '{name}' ({nearest(name, {*known, *(MODELS if kind == 'model' else ())})})"
        )
    if not attribute:
        raise UserError(f"'{name}' names no attribute: a component of your own is MODULE:ATTRIBUTE or FILE.py:ATTRIBUTE")
    part = find_attribute(name, f"unknown {kind} '{plain}' ({nearest(plain, known)}), and no module of that name")
    return registry.make(kind, part)
