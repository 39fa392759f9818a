"""A folder of source code that a search may use: kernels that were accepted before are tried first on a like task, and a model is
shown like code.

A kept kernel is a source file whose first line says what it is (``// ramify kernel: {...}``); every other source below the folder
is read, never run: a library tree such as CUTLASS, or your own. Its code goes through the wall as any candidate does.
"""

from __future__ import annotations

import json
import keyword
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.base.files import read_small, write_whole
from ramify.base.ids import stable_hash
from ramify.methods.kernel_search.task import MATH, KernelTask
from ramify.methods.kernel_search.wall import Code

SUFFIXES = (".c", ".h", ".cu", ".cuh", ".cpp", ".hpp", ".py")
MOST_FILES, MOST_BYTES, MOST_LINES = 5000, 1 << 20, 40
LIKE = 0.5
"""Least share of neighbouring words that the original of a kept kernel has in common with a task's, names aside."""
_LANGUAGE = {
    *keyword.kwlist,
    *MATH,
    *(f"{name}f" for name in MATH),
    *"""int float double long size_t int32_t int64_t unsigned char uint8_t void const static inline restrict if else for while
    return do switch case sizeof memset memcpy torch nn numpy np""".split(),
}
"""Words that are no names of the kernel's own."""
_KEPT = re.compile(r"^(?://|#) ramify kernel: (\{.*\})\n")
_WORDS = re.compile(r"[A-Za-z_]\w+|[-+*/%<>=!&|^]+")


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Code of the library that is like a task's."""

    path: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class KeptKernel:
    """What the first line of a kept kernel says of it."""

    symbol: str
    signature: str
    flags: tuple[str, ...]
    macros: Mapping[str, str]
    speedup: float
    words: tuple[str, ...]
    """Of its original, names aside."""


def signature(task: KernelTask) -> str:
    """Types and roles of the arguments in order, and what is returned: kernels of one signature can stand for each other."""
    arrays = {array.name: f"{array.type}{array.role}" for array in task.arrays}
    returned = [f"{array.type}*" for array in task.arrays if array.name not in task.order]
    return " ".join([task.kind, *(arrays.get(name) or task.scalar_types[name] for name in task.order), *returned])


class CodeLibrary:
    """Source below one folder."""

    def __init__(self, folder: Path | str) -> None:
        """Raises UserError where ``folder`` is a file."""
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise UserError(f"the library {folder} is not a folder")
        self._excerpts: list[tuple[Excerpt, Counter[str]]] | None = None

    def _files(self) -> Iterator[tuple[Path, str]]:
        files = (file for file in sorted(self.folder.rglob("*")) if file.suffix in SUFFIXES and file.is_file())
        for number, path in enumerate(files):
            if number >= MOST_FILES:
                return
            if path.stat().st_size <= MOST_BYTES:
                yield path, read_small(path, "the library").decode("utf-8", "replace")

    def keep(self, task: KernelTask, code: Code, speedup: float) -> Path:
        """Write an accepted kernel into the folder, under a name made of its code; returns the file."""
        words = tuple(sorted(_renamed(task.source, task.symbol)))
        about = KeptKernel(task.symbol, signature(task), code.flags, code.macros, round(speedup, 3), words)
        python = task.kind != "c"
        path = (
            self.folder / f"{task.symbol}-{stable_hash('kept kernel', code.key, task.identity)[:10]}{'.py' if python else '.c'}"
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, f"{'#' if python else '//'} ramify kernel: {json.dumps(codec.to_json(about))}\n{code.source}")
        return path

    def like(self, task: KernelTask, most: int = 2) -> list[Code]:
        """Kept kernels of the same signature whose original is like the task's, the most alike first, under the task's own name.

        Raises UserError naming the file where the line of a kept one is damaged.
        """
        mine, likenesses = _renamed(task.source, task.symbol), list[tuple[float, float, str, Code]]()
        for path, text in self._files():
            head = _KEPT.match(text)
            if head is None:
                continue
            try:
                about = codec.from_json(KeptKernel, json.loads(head[1]), "")
            except (ValueError, RecursionError, UserError):
                raise UserError(
                    f"{path}:1 is not a line of a kept kernel: write it again with --library, or remove the file"
                ) from None
            words, same = set(about.words), about.signature == signature(task)
            alike = len(words & mine) / max(1, len(words | mine))
            if same and alike >= LIKE and re.fullmatch(r"[A-Za-z_]\w*", about.symbol):
                source = re.sub(rf"\b{about.symbol}\b", task.symbol, text[head.end() :])
                likenesses.append((alike, about.speedup, str(path), Code(source, about.flags, about.macros)))
        likenesses.sort(key=lambda row: (-row[0], -row[1], row[2]))
        return [code for *_, code in likenesses[:most]]

    def excerpts(self, text: str, most: int = 2) -> list[Excerpt]:
        """Blocks of the library that share most rare words with ``text``, at most 40 lines each."""
        if self._excerpts is None:
            self._excerpts = [
                (excerpt, Counter(_WORDS.findall(excerpt.text)))
                for path, body in self._files()
                for excerpt in _blocks(path, body)
            ]
        known, asked = self._excerpts, set(_WORDS.findall(text))
        seen = Counter(word for _, words in known for word in words)
        rare = {word: math.log(1 + len(known) / seen[word]) for word in asked if seen[word]}
        rows = [
            (sum(rare[word] for word in words if word in rare) / math.sqrt(20 + len(words)), excerpt) for excerpt, words in known
        ]
        rows = sorted((row for row in rows if row[0] > 0), key=lambda row: (-row[0], row[1].path, row[1].line))
        return [excerpt for _, excerpt in rows[:most]]


def _renamed(source: str, symbol: str) -> set[str]:
    """Every four neighbouring words of a kernel, its names replaced by the order in which they appear."""
    code = re.sub(r"//[^\n]*|^\s*#[^\n]*|/\*.*?\*/", " ", source, flags=re.S | re.M)
    names: dict[str, str] = {symbol: "kernel"}
    tokens = []
    for word in re.findall(r"[A-Za-z_]\w*|\d[\w.]*|[^\s\w]+", code):
        if word.isidentifier() and word not in _LANGUAGE:
            word = names.setdefault(word, f"name{len(names)}")
        tokens.append(word)
    return {" ".join(tokens[at : at + 4]) for at in range(max(1, len(tokens) - 3))}


def _blocks(path: Path, text: str) -> Iterator[Excerpt]:
    """Pieces of a file between empty lines at the top level, cut at 40 lines."""
    lines, begin = text.splitlines(), 0
    for at in range(len(lines) + 1):
        whole = at == len(lines) or (
            not lines[at].strip() and at + 1 < len(lines) and lines[at + 1][:1] not in (" ", "\t", "}", "")
        )
        if whole or at - begin >= MOST_LINES:
            if any(line.strip() for line in lines[begin:at]):
                yield Excerpt(str(path), begin + 1, "\n".join(lines[begin:at]).strip("\n"))
            begin = at
