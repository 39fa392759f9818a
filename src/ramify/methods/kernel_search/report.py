"""What the verbs found, and what a search came to as a comment for a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ramify.base.errors import EXIT_DONE, EXIT_FAILED
from ramify.base.words import plural
from ramify.methods.kernel_search.algorithm import Class, Gain
from ramify.methods.kernel_search.asm import Loop
from ramify.methods.kernel_search.tools import Prescription
from ramify.methods.kernel_search.wall import Code
from ramify.render.markdown import fenced, markdown
from ramify.render.numbers import percent
from ramify.render.result import Grid, Result, Section, Verbatim, table

MOST_ROWS = 20

# -- diagnoses -----------------------------------------------------------------------------------------------------------------


def findings_table(findings: Sequence[Prescription]) -> Grid | str:
    """A row a finding, or that there is none."""
    rows = [(finding.severity, finding.tool, finding.where, finding.cause, finding.prescription) for finding in findings]
    return table(("", "tool", "where", "cause", "what to do"), rows) if rows else "no tool found anything"


def grouped_by_reason(missing: Sequence[str]) -> str:
    """Tools that are not measurable for the same reason on one line."""
    named: dict[str, list[str]] = {}
    for sentence in missing:
        tool, _, why = sentence.partition(": ")
        named.setdefault(why, []).append(tool)
    return "\n".join(f"{', '.join(tools)}: {why}" for why, tools in named.items())


@dataclass(frozen=True, slots=True)
class Roofline:
    """A kernel against the measured roofs; flops a second."""

    intensity: float | None
    """Flops a byte."""
    ridge: float
    attainable: float | None
    reached: float | None
    share_of_roof: float


@dataclass(frozen=True, slots=True)
class DiagnosedLoop(Loop):
    """A loop, what it takes, and why it is not vectorized."""

    took: float | None
    """Share of the simulated instructions; None where nothing was simulated."""
    missed: str
    """What the compiler says of it."""


@dataclass(frozen=True)
class DiagnosedKernel(Result):
    """Why a kernel is slow."""

    kernel: str
    kind: str
    bound: Class
    """What bounds it: its class."""
    seconds: float | None
    """Of a call."""
    noise: float | None
    roofline: Roofline | None
    """None where the roofs, its traffic or its time are not known."""
    findings: tuple[Prescription, ...]
    not_measurable: tuple[str, ...]
    loops: tuple[DiagnosedLoop, ...]
    skipped: tuple[str, ...]
    """Input sets on which the original itself is off."""

    def sections(self) -> Iterable[Section]:
        """The class, the findings, and what is not measurable."""
        said = f"{self.kernel}: class {self.bound}"
        if self.seconds:
            said += f", {self.seconds * 1e6:.1f} us a call"
        if self.roofline is not None:
            said += f", {percent(self.roofline.share_of_roof, 0)} of its roof"
        skipped = f"not compared, the original itself is off there: {', '.join(self.skipped)}" if self.skipped else ""
        yield Section.of("", said, findings_table(self.findings), grouped_by_reason(self.not_measurable), skipped)


@dataclass(frozen=True)
class CountedLoops(Result):
    """The innermost loops of a function."""

    function: str
    loops: tuple[Loop, ...]

    def sections(self) -> Iterable[Section]:
        """What is counted in each."""
        rows = [
            (
                loop.line or "-",
                loop.depth,
                loop.instructions,
                loop.packed,
                loop.scalar,
                loop.width,
                loop.loads,
                loop.stores,
                loop.stack,
                loop.shuffles + loop.gathers,
                loop.converts,
                loop.jumps,
                ", ".join(loop.calls),
            )
            for loop in self.loops
        ]
        head = (
            *("line", "depth", "instructions", "packed", "scalar", "bits", "loads", "stores", "stack"),
            *("shuffles", "converts", "jumps", "calls"),
        )
        none = f"{self.function} has no loop that computes or moves data"
        yield Section.of("", table(head, rows) if rows else none)


# -- trials and searches -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BenchedKernel(Result):
    """Whether another version is right, and faster."""

    refused: str
    stage: str
    """Of a refusal: build, run, wrong, clock, physics."""
    gain: Gain | None
    """None where it was refused, not timed, or is the original's machine code."""
    times: Mapping[str, tuple[float, ...]]
    """Seconds a call, one number a batch, of reference and candidate."""
    checked: int
    """Outputs compared."""
    skipped: tuple[str, ...]
    overhead: float | None
    faults: float | None
    same_code: bool
    """It compiles to the machine code of the original, so it was not timed."""

    @property
    def exit_code(self) -> int:
        """1 where it was refused or is not faster; what is right and not timed, as Triton, has not failed."""
        good = self.gain.gains if self.gain else not self.refused and self.checked
        return EXIT_DONE if good else EXIT_FAILED

    @property
    def verdict(self) -> str:
        """In a sentence."""
        gain = self.gain
        if self.refused:
            return f"refused ({self.stage}): {self.refused}"
        if self.same_code:
            return "not faster: it compiles to the machine code of the original"
        if gain is None:
            return f"right on {self.checked} outputs; nothing was timed"
        said = "faster" if gain.gains else "not shown to be faster"
        if not gain.ranked:
            said = "not ranked, the times are too noisy: give more --pairs"
        return (
            f"{said}: {gain.speedup:.3f} times as fast, 95 % interval {gain.low:.3f} to {gain.high:.3f} over {gain.rounds} "
            f"starts, {gain.pairs} pairs of batches in all\n"
            f"{gain.reference * 1e6:.2f} us and {gain.candidate * 1e6:.2f} us a call, spread {percent(gain.noise)}; "
            f"{self.checked} outputs compared"
        )

    def sections(self) -> Iterable[Section]:
        """The verdict."""
        yield Section.of("", self.verdict)


@dataclass(frozen=True, slots=True)
class LineStep:
    """A candidate on the way from the original to the best one."""

    number: int
    how: str
    speedup: float | None


@dataclass(frozen=True, slots=True)
class ToolRate:
    """How often what a tool advises gained 1.5x over the parent."""

    gained: int
    tried: int


@dataclass(frozen=True)
class SearchedKernel(Result):
    """What a search came to."""

    speedup: float
    """Of the best one over the original, as confirmed; 1 where nothing was faster."""
    interval: tuple[float, float]
    """95 %."""
    gain: Gain | None
    number: int
    """Of the best candidate; 0 is the original."""
    best: Code
    candidates: int
    refused: int
    repeated: int
    """Proposals that were the same code as an earlier candidate."""
    unranked: int
    """Candidates whose times were too noisy to compare."""
    stopped: str
    line: tuple[LineStep, ...]
    tools: Mapping[str, ToolRate]
    strict: bool = field(default=False, metadata={"json": False})

    @property
    def exit_code(self) -> int:
        """1 where nothing was faster and that was asked to be a failure."""
        return EXIT_FAILED if self.strict and self.gain is None else EXIT_DONE

    def sections(self) -> Iterable[Section]:
        """How it went, and the best candidate."""
        counted = f"{self.candidates} candidates, {self.refused} refused, {self.repeated} repeated; {self.stopped}"
        if self.gain is None:
            yield Section.of("", counted, "nothing is faster than the original")
            return
        low, high = self.interval
        said = (
            f"candidate {self.number} is {self.speedup:.2f} times as fast, 95 % interval {low:.2f} to {high:.2f}: "
            f"{' -> '.join(step.how for step in self.line)}\nflags: {' '.join(self.best.words)}"
        )
        yield Section.of("", counted, said, Verbatim(self.best.source))


@dataclass(frozen=True)
class CandidateCode(Result):
    """The source of one candidate of a search."""

    KEPT = False
    number: int
    source: str
    flags: tuple[str, ...]

    def sections(self) -> Iterable[Section]:
        """The source."""
        yield Section.of("", Verbatim(self.source))


@dataclass(frozen=True, slots=True)
class TreeRow:
    """A candidate in the tree of a search."""

    number: int
    parent: int | None
    how: str
    speedup: float | None
    """Lower bound; None where it was refused."""
    visits: int
    pruned: str


@dataclass(frozen=True)
class SearchExplained(Result):
    """A stored search."""

    candidates: int
    best: int
    why: str
    """The verdict; empty of a search that has not ended."""
    tree: tuple[TreeRow, ...]
    refused: Mapping[str, int]
    """Stage of the wall -> candidates."""
    tools: Mapping[str, ToolRate]

    def sections(self) -> Iterable[Section]:
        """The tree, the verdict, the tools and the refusals."""
        ended = self.why or "the search has not ended: the same command continues it"
        refused = "\n".join(f"{count} refused: {stage}" for stage, count in self.refused.items())
        rates = table(("tool", "gained 1.5x", "tried"), [(name, one.gained, one.tried) for name, one in self.tools.items()])
        yield Section.of("", Verbatim("\n".join(self.outline())), ended, rates, refused)

    def outline(self) -> list[str]:
        """The tree as lines, each child below its parent."""
        below: dict[int | None, list[TreeRow]] = {}
        for row in self.tree:
            below.setdefault(row.parent, []).append(row)
        lines: list[str] = []

        def walk(row: TreeRow, indent: int) -> None:
            worth = "refused" if row.speedup is None else f"{row.speedup:.2f}x"
            visits = f", {row.visits} visits" if row.number in below else ""
            pruned = f" ({row.pruned})" if row.pruned else ""
            lines.append(f"{'  ' * indent}{row.number} {row.how}: {worth}{visits}{pruned}")
            for child in below.get(row.number, ()):
                walk(child, indent + 1)

        walk(self.tree[0], 0)
        return lines


def comment(explained: SearchExplained, source: str, language: str) -> str:
    """Markdown of what `explain` found: the verdict, the fastest candidates, advice that was tried,
    and the new source to unfold."""
    order = sorted(explained.tree[1:], key=lambda row: -(row.speedup or 0))
    rows = [
        [row.number, row.how, "refused" if row.speedup is None else f"{row.speedup:.2f}", f"of {row.parent}"]
        for row in order[:MOST_ROWS]
    ]
    lines = [
        "### Is this kernel faster?",
        "",
        f"{explained.why or 'The search has not ended'}. {plural(explained.candidates, 'candidate')}, "
        f"{sum(explained.refused.values())} refused.",
        "",
        *markdown(["candidate", "made by", "times as fast, lower bound", "made"], rows),
    ]
    if explained.tools:
        tools = [[name, rate.gained, rate.tried] for name, rate in explained.tools.items()]
        lines += ["", *markdown(["advice of", "gained 1.5x", "tried"], tools)]
    if explained.best:
        summary = f"<details><summary>Source of candidate {explained.best}</summary>"
        lines += ["", summary, "", fenced(source, language), "", "</details>"]
    return "\n".join([*lines, "", "Made by `ramify kernel-search explain --out FILE.md`."]) + "\n"
