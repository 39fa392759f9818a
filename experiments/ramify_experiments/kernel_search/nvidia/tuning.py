"""Configurations of a Triton kernel, each compiled for a chip that need not be here;
those worth timing are written for ``triton.autotune``.

What is left out: what does not compile, does not fit a multiprocessor, or keeps moving registers to memory where another does
not. What is fastest of the rest only a GPU can say.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ramify.base.errors import UserError, nearest
from ramify.methods.kernel_search.compiled import CompileTarget
from ramify.render.numbers import percent
from ramify.render.result import Result, Section, table
from ramify_experiments.kernel_search.nvidia.sass import read_gpu, triton_kernel
from ramify_experiments.kernel_search.nvidia.symptoms import GpuMetrics

MOST, SPILLS = 200, 16
"""Configurations of one call; moves to and from local memory from which a configuration spills."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """One configuration and what its machine code tells."""

    constants: Mapping[str, str]
    warps: int
    stages: int | None
    why: str = ""
    """Why it is left out; empty where it is worth timing."""
    spills: int = 0
    """Moves to and from local memory."""
    metrics: GpuMetrics | None = None
    """None where it does not compile."""
    findings: tuple[str, ...] = ()

    @property
    def occupancy(self) -> float | None:
        """Share of a multiprocessor's threads; None where it does not compile."""
        return self.metrics.occupancy if self.metrics else None

    @property
    def label(self) -> str:
        """As a reader is shown it."""
        parts = [f"{name}={value}" for name, value in self.constants.items()] + [f"warps={self.warps}"]
        return " ".join(parts + ([] if self.stages is None else [f"stages={self.stages}"]))

    @property
    def call(self) -> str:
        """As ``triton.autotune`` takes it."""
        constants = ", ".join(f'"{name}": {value}' for name, value in self.constants.items())
        return f"triton.Config({{{constants}}}, num_warps={self.warps}" + (f", num_stages={self.stages})" if self.stages else ")")


@dataclass(frozen=True)
class TunedKernel(Result):
    """Configurations of a Triton kernel, those worth timing first."""

    kernel: str
    arch: str
    configurations: tuple[Tuning, ...]
    out: str = ""
    """File that those worth timing were written into."""

    def sections(self) -> Iterable[Section]:
        """The configurations."""
        rows = []
        for one in self.configurations:
            m = one.metrics or GpuMetrics()
            taken = (m.registers, m.shared) if one.metrics else ("", "")
            share = f"{percent(m.occupancy, 0)} ({m.limiter})" if m.occupancy is not None else ""
            rows.append((one.label, *taken, share, one.spills, one.why or ", ".join(one.findings)))
        kept = sum(not one.why for one in self.configurations)
        said = f"{kept} of {len(self.configurations)} are worth timing on a GPU{f': {self.out}' if self.out else ''}"
        yield Section.of("", table(("configuration", "registers", "shared", "occupancy", "spills", ""), rows), said)


def choices_of(text: str) -> dict[str, list[str]]:
    """``BLOCK = 64, 128; warps = 2, 4`` as name -> values. Raises UserError naming the part that is none such."""
    found: dict[str, list[str]] = {}
    for part in filter(None, (one.strip() for one in text.split(";"))):
        name, equals, values = (one.strip() for one in part.partition("="))
        given = [one.strip() for one in values.split(",")]
        if not (equals and name.isidentifier() and all(re.fullmatch(r"-?\d+|True|False", one) for one in given)):
            raise UserError(f"CHOICES: '{part}' is not a choice: BLOCK = 64, 128; warps = 2, 4; stages = 2, 3")
        if name in ("warps", "stages") and any(not one.isdigit() or int(one) not in range(1, 33) for one in given):
            raise UserError(f"CHOICES: {name} are from 1 to 32, not {', '.join(given)}")
        found[name] = list(dict.fromkeys(given))
    if not found:
        raise UserError("CHOICES names no choice: BLOCK = 64, 128; warps = 2, 4; stages = 2, 3")
    return found


def tuned(
    spec: str,
    choices: Mapping[str, Sequence[str]],
    target: CompileTarget,
    progress: Callable[[int, str], None] = lambda done, label: None,
) -> list[Tuning]:
    """Every configuration of ``choices``, those worth timing first: fewest spills, then highest occupancy.

    The target's warps and stages are those of all where ``choices`` have none.
    Raises UserError where the kernel has no such constant, or nothing compiles.
    """
    path, kernel, _, signature, default_warps = triton_kernel(spec, target.signature)
    names = [argument.arg for argument in kernel.args.args]
    types = [word.strip() for word in signature.split(",")]
    if len(types) != len(names):
        raise UserError(
            f"{path}: the signature has {len(types)} types, and {kernel.name} takes {len(names)} arguments: {', '.join(names)}"
        )
    constants = [name for name, word in zip(names, types, strict=True) if re.fullmatch(r"-?\d+|True|False", word)]
    for name in choices:
        if name not in (*constants, "warps", "stages"):
            raise UserError(
                f"CHOICES: '{name}' is not a constant of {kernel.name} ({nearest(name, [*constants, 'warps', 'stages'])})"
            )
    combinations = list(itertools.product(*choices.values()))
    if len(combinations) > MOST:
        raise UserError(f"CHOICES: {len(combinations)} configurations are more than {MOST}: each takes seconds to compile")
    tunings: list[Tuning] = []
    for combination in combinations:
        chosen = dict(zip(choices, combination, strict=True))
        values = {name: value for name, value in chosen.items() if name not in ("warps", "stages")}
        configured = replace(
            target,
            signature=", ".join(values.get(name, word) for name, word in zip(names, types, strict=True)),
            warps=int(chosen["warps"]) if "warps" in chosen else target.warps or default_warps,
            stages=int(chosen["stages"]) if "stages" in chosen else target.stages,
        )
        tunings.append(_configuration(f"{path}:{kernel.name}", values, configured))
        progress(len(tunings), tunings[-1].label)
    fitting = [tuning for tuning in tunings if not tuning.why]
    if not fitting:
        raise UserError(f"{path}: no configuration of {kernel.name} can run: {tunings[0].label} {tunings[0].why}")
    least = min(tuning.spills for tuning in fitting)
    judged = [
        replace(tuning, why=f"spills registers {tuning.spills} times")
        if not tuning.why and tuning.spills >= SPILLS > least
        else tuning
        for tuning in tunings
    ]
    return sorted(judged, key=lambda tuning: (bool(tuning.why), tuning.spills, -(tuning.occupancy or 0.0)))


def _configuration(spec: str, constants: Mapping[str, str], target: CompileTarget) -> Tuning:
    """One configuration, compiled and read."""
    warps = target.warps or 0
    try:
        reading = read_gpu(spec, target)
    except UserError as error:
        reason = str(error).rpartition("does not compile: ")[2][:160]
        return Tuning(constants, warps, target.stages, f"does not compile: {reason}")
    metrics, serious = reading.metrics, tuple(finding.tool for finding in reading.findings if finding.severity != "info")
    why = "" if metrics.blocks else f"does not fit a multiprocessor: {metrics.limiter}"
    return Tuning(constants, warps, target.stages, why, metrics.count("LDL", "STL"), metrics, serious)


def configs_file(spec: str, arch: str, found: Sequence[Tuning]) -> str:
    """Python source with ``CONFIGS``, the list that ``triton.autotune`` takes."""
    kept = [one for one in found if not one.why]
    left = "".join(f"#   {one.label}: {one.why}\n" for one in found if one.why)
    text = (
        f'"""Configurations of {Path(spec).name} for {arch} that are worth timing: {len(kept)} of {len(found)}, as their '
        'machine code tells without a GPU."""\n\n'
    )
    text += (
        "import triton\n\n# @triton.autotune(configs=CONFIGS, key=[...])\nCONFIGS = [\n"
        + "".join(f"    {one.call},\n" for one in kept)
        + "]\n"
    )
    text += f"# Left out:\n{left}" if left else ""
    ast.parse(text)
    return text
