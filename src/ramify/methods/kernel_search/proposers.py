"""Who writes candidates: typed transforms (no model), any model by name, or a list that was written before."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.base.seeds import generator
from ramify.methods.kernel_search.algorithm import hit_rate
from ramify.methods.kernel_search.library import CodeLibrary
from ramify.methods.kernel_search.task import KernelTask
from ramify.methods.kernel_search.tools import WEIGHT, Prescription
from ramify.methods.kernel_search.transforms import transforms_for, variants
from ramify.methods.kernel_search.wall import Code
from ramify.model.chat import ChatTemplate
from ramify.model.protocol import Model, Sampling
from ramify.rollout.sampler import FailurePolicy, Sampler
from ramify.score.judge import reply_to
from ramify.trace.lines import read_rows
from ramify.trace.message import Message

Proposal = tuple[Code, str, str]
"""Code, the transform or author, and the tool whose finding asked for it ("" of none)."""
PROMPT = """You make one function faster. It must give the same results within rounding; it is checked on fresh inputs, its \
timed calls too.

```{language}
{source}
```

Compiled with: {flags}. What was found in it (worst first; act on the first that you can):

{findings}
{memory}{library}{error}
Write the whole file again, with {wanted}, in one fenced block. Only the last fenced block of
your answer is read. To change the compiler's flags, let its first line be `// flags: ...`."""
_BLOCK = re.compile(r"```[\w+-]*\n(.*?)```", re.S)
_SAFE_FLAG = re.compile(r"^-(?:O[0-3s]|Ofast|f[\w-]+(?:=[\w.-]+)?|m[\w-]+(?:=[\w.-]+)?|D\w+(?:=[\w.+-]*)?|std=[\w+]+)$")


class KernelProposer(Protocol):
    """Writes candidates."""

    name: str

    async def propose(
        self, code: Code, findings: Sequence[Prescription], error: str, n: int, position: Sequence[int], known: Mapping[str, Any]
    ) -> list[Proposal]:
        """At most ``n`` candidates made from ``code`` that are not in ``known`` (their hashes).
        ``error`` is why ``code`` failed, if it did.

        Keyed by ``position``. Raises InfrastructureError where it fails.
        """
        ...


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One line of the memory: what a transform that a finding asked for came to."""

    klass: str
    tool: str
    transform: str
    ratio: float | None
    """To its parent's speed; None of a failure."""
    error: str = ""


class SearchMemory:
    """What helped before: an append-only file of JSON lines of (class, tool, transform, ratio, error)."""

    def __init__(self, path: Path | None) -> None:
        """Raises UserError naming the line of a damaged file."""
        self.path, self.klass = path, ""
        self.rows = [] if path is None or not path.exists() else list(read_rows(path, MemoryRow))

    def add(self, tool: str, transform: str, ratio: float | None, error: str) -> None:
        """Append one outcome of a kernel of class ``self.klass``."""
        row = MemoryRow(self.klass, tool, transform, ratio, error[:120])
        self.rows.append(row)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(codec.to_json(row)) + "\n")

    def rate(self, tool: str, transform: str | None = None) -> float:
        """The tool's hit rate (a ratio above 1.5), or that of one of its transforms, with its prior."""
        rows = [row for row in self.rows if row.tool == tool and transform in (None, row.transform)]
        return hit_rate(sum((row.ratio or 0) > 1.5 for row in rows), len(rows))

    def lines(self, tools: Sequence[str]) -> list[str]:
        """At most five lines for a prompt: what became of these findings in kernels of class ``self.klass``."""
        rows = [row for row in self.rows if row.tool in tools and row.klass == self.klass][-5:]
        return [
            f"- {row.tool}: {row.transform} gave {f'a failure, {row.error}' if row.ratio is None else f'{row.ratio:.2f}x'}"
            for row in rows
        ]


def ranked(findings: Sequence[Prescription], memory: SearchMemory) -> list[Prescription]:
    """By severity * hit rate * ln(expected gain)."""

    def weight(prescription: Prescription) -> float:
        gain = math.log((prescription.expected_gain or (1.0, 1.1))[1])
        return WEIGHT[prescription.severity] * memory.rate(prescription.tool) * gain

    return sorted(findings, key=lambda prescription: -weight(prescription))


class TransformProposer:
    """Edits of this package: those that findings ask for first, then the others in random order;
    ``blind`` ones in random order only."""

    def __init__(
        self,
        task: KernelTask,
        seed: int = 0,
        blind: bool = False,
        memory: SearchMemory | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self.task, self.seed, self.blind, self.memory = task, seed, blind, memory or SearchMemory(None)
        self.names = list(names or transforms_for(task.kind))
        self.name = "transforms:blind" if blind else "transforms"
        if not self.names:
            raise UserError(f"{task.path}: transforms edit C and torch; for a {task.kind} kernel name a model with --proposer")

    async def propose(
        self, code: Code, findings: Sequence[Prescription], error: str, n: int, position: Sequence[int], known: Mapping[str, Any]
    ) -> list[Proposal]:
        """See :class:`KernelProposer`."""
        if error:
            return []  # an edit that failed is not repaired by another
        rng = generator(self.seed, "transforms", *position)
        rest = [self.names[i] for i in rng.permutation(len(self.names))]
        wanted = (
            []
            if self.blind
            else [
                (name, finding.tool)
                for finding in ranked(findings, self.memory)
                if finding.severity != "info"
                for name in finding.transforms
                if name in self.names
            ]
        )
        proposals: list[Proposal] = []
        seen: set[str] = set()
        for name, tool in [*wanted, *((name, "") for name in rest)]:
            for variant in variants(name, code, self.task):
                if len(proposals) == n:
                    return proposals
                if variant.key not in known and variant.key not in seen:
                    seen.add(variant.key)
                    proposals.append((variant, name, tool))
                    break  # of one transform the next variant comes later
        return proposals


class ScriptedProposer:
    """Candidates written before, in order."""

    name = "scripted"

    def __init__(self, codes: Sequence[Code]) -> None:
        self._codes = list(codes)

    async def propose(
        self, code: Code, findings: Sequence[Prescription], error: str, n: int, position: Sequence[int], known: Mapping[str, Any]
    ) -> list[Proposal]:
        """See :class:`KernelProposer`."""
        fresh = [each for each in self._codes if each.key not in known]
        return [(each, "scripted", "") for each in fresh[:n]]


class LLMProposer:
    """Any model by name; it is shown code, findings and memory, and writes the file again."""

    def __init__(
        self,
        task: KernelTask,
        model: Model,
        template: ChatTemplate | None,
        seed: int = 0,
        memory: SearchMemory | None = None,
        raw: bool = False,
        library: CodeLibrary | None = None,
    ) -> None:
        """``raw`` shows numbers instead of findings, for comparisons; of ``library`` it is shown what is like the code."""
        self.library = library
        self.task, self.seed, self.memory, self.raw = task, seed, memory or SearchMemory(None), raw
        self._template, self._sampler = template, Sampler(model, retries=FailurePolicy({}))
        self._settings = Sampling(
            temperature=1.0, max_tokens=4096, stop_tokens=() if template is None else tuple(template.stop_tokens)
        )
        self.name = model.identity.name

    def prompt(self, code: Code, findings: Sequence[Prescription], error: str) -> str:
        """What the model is shown: numbers stand only next to an instruction."""
        lines = [
            f"- {finding.where} ({finding.severity}): {finding.cause}. {finding.prescription} Then {finding.check} must move."
            for finding in ranked(findings, self.memory)
        ]
        memory = self.memory.lines([finding.tool for finding in findings])
        return PROMPT.format(
            language="c" if self.task.kind == "c" else "python",
            source=code.source.rstrip(),
            flags=" ".join(code.words) or "nothing",
            findings="\n".join(lines) or "- nothing",
            memory="\nWhat came of such findings before:\n" + "\n".join(memory) + "\n" if memory else "",
            library=_excerpts_for(self.library, code, findings),
            error=f"\nIt fails: {error}\n" if error else "",
            wanted="a class `ModelNew` that is made and called as `Model` is, its parameters made in the same order"
            if self.task.problem
            else f"the function `{self.task.symbol}` and its signature unchanged",
        )

    async def propose(
        self, code: Code, findings: Sequence[Prescription], error: str, n: int, position: Sequence[int], known: Mapping[str, Any]
    ) -> list[Proposal]:
        """See :class:`KernelProposer`."""
        messages = [Message("user", self.prompt(code, findings, error))]
        tool = findings[0].tool if findings else ""
        proposals: list[Proposal] = []
        for i in range(n):
            reply = await reply_to(
                self._sampler, self._template, messages, self._settings, ("kernel-search", self.seed, *position, i)
            )
            candidate = code_in(code, reply.text)
            if (
                candidate is not None
                and candidate.key not in known
                and candidate.key not in {each.key for each, _, _ in proposals}
            ):
                proposals.append((candidate, self.name, tool))
        return proposals


def _excerpts_for(library: CodeLibrary | None, code: Code, findings: Sequence[Prescription]) -> str:
    """Excerpts for a prompt."""
    excerpts = (
        [] if library is None else library.excerpts("\n".join([code.source, *(finding.prescription for finding in findings)]))
    )
    return "".join(f"\nLike code, from {excerpt.path}:{excerpt.line}:\n\n```\n{excerpt.text}\n```\n" for excerpt in excerpts)


class LibraryProposer:
    """Kept kernels of a like task first, from the original only; then what another proposer writes."""

    def __init__(self, inner: KernelProposer, task: KernelTask, library: CodeLibrary) -> None:
        self.inner, self.task, self.library, self.name = inner, task, library, inner.name

    async def propose(
        self, code: Code, findings: Sequence[Prescription], error: str, n: int, position: Sequence[int], known: Mapping[str, Any]
    ) -> list[Proposal]:
        """See :class:`KernelProposer`."""
        like = [] if error or position[0] else self.library.like(self.task)
        kept: list[Proposal] = [(each, "library", "") for each in like if each.key not in known][:n]
        if len(kept) == n:
            return kept
        return [*kept, *await self.inner.propose(code, findings, error, n - len(kept), position, known)]


def code_in(code: Code, text: str) -> Code | None:
    """What the last fenced block of a reply makes of ``code``; None where it has none."""
    blocks = _BLOCK.findall(text)
    return _flagged(code, blocks[-1]) if blocks else None


def _flagged(code: Code, block: str) -> Code:
    """The code in a model's block, with the flags of its first line where all of them are the compiler's own kind."""
    first = re.match(r"\s*//\s*flags:([^\n]*)\n", block)
    flags = first[1].split() if first else list(code.flags)
    safe = tuple(flag for flag in flags if _SAFE_FLAG.match(flag))
    return replace(code, source=block, flags=safe or code.flags)


def find_proposer(
    spec: str, task: KernelTask, seed: int, memory: SearchMemory, library: CodeLibrary | None = None
) -> KernelProposer:
    """The proposer that ``spec`` names, after what ``library`` keeps. Raises UserError where there is none such."""
    proposer: KernelProposer
    if spec in ("transforms", "transforms:blind"):
        proposer = TransformProposer(task, seed, spec.endswith("blind"), memory)
    else:
        from ramify.engine.named import find_model

        proposer = LLMProposer(task, *find_model(spec), seed=seed, memory=memory, library=library)
    return proposer if library is None else LibraryProposer(proposer, task, library)
