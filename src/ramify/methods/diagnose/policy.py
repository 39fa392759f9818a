"""A localizer without a model: rules that drive the same loop and read nothing but the conversation.

They look for what the issue names, view the files that hold it and what these import, score every function they have seen by the
features below, and answer with the best one when it stands out. The weights are set by hand, or trained (:class:`Weights`): what
a policy knows of causes is how a function differs from its nearest sibling.
It understands no sentence, and says that it is not a model.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from ramify.base.seeds import derive_key
from ramify.methods.diagnose.case import Diagnosis
from ramify.methods.diagnose.code import TakenName, is_test, taken_names, words
from ramify.methods.diagnose.loop import FINAL, LOOK_FIRST, TurnReply, written_answer, written_call
from ramify.methods.diagnose.replies import AskedCall, read_reply
from ramify.methods.diagnose.tools import normal
from ramify.trace.message import Message

NAME = "rules"
STOP = frozenset(
    """the and for with that this from was were are not but has have had when then than there their which what returns return
    expected instead gives get got one two some any all its into about after before should would could can does did call
    calls calling value values raises error wrong result python line file test issue bug using use used def self none true
    false int str list dict assert import""".split()
)
BESIDE = 0.35
"""Share of belief from which on a function's sibling is looked for."""
TESTED = 3.0
"""What the score of a function gains where a failing test takes it from its file; half of it for others of that file."""
CAUSES = {
    "comparison": (
        "a comparison goes the wrong way or includes a bound that it should not",
        "turn the comparison round, or move its bound",
    ),
    "off-by-one": ("a bound or an index is one too large or too small", "move the bound or index by one"),
    "wrong variable": ("a value is taken from another variable than the one meant", "use the other variable"),
    "missing guard": (
        "a case that needs handling first, such as empty input, is not handled",
        "handle that case before the rest",
    ),
    "swapped arguments": ("arguments are passed in the wrong order", "exchange the arguments"),
    "wrong default": ("the default of a parameter is wrong", "correct the default value"),
    "dropped return": ("a computed value is not returned", "return the computed value"),
    "wrong constant": ("a constant is wrong", "correct the constant"),
}
"""Cause -> how it is said, and the direction of the edit."""
FEATURES = (
    "bias",
    "words of the issue in it",
    "words of the issue in its name",
    "named in the issue",
    "its file is named",
    "in the traceback",
    "last frame of the traceback",
    "calls lead to it",
    "is where the calls begin",
    "search hits",
    "differs from a sibling",
    "size of that difference",
    "value not returned",
    "unused parameter",
    "length",
    "is a test",
)
"""Features of a function, as :func:`features` gives them."""
CAUSE_FEATURES = (
    "bias",
    "sibling: comparison",
    "sibling: number",
    "sibling: number by one",
    "sibling: default",
    "sibling: if",
    "sibling: return",
    "sibling: order",
    "sibling: name",
    "value not returned",
    "unused parameter",
    "issue: exception",
    "issue: None",
    "issue: off by one",
    "has a comparison",
    "has a default",
    "has a guard",
)
"""What a cause is recognized by."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A function whose lines were displayed."""

    file: str
    name: str
    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Weights:
    """Of :data:`FEATURES`, (F,), and of the causes, (causes, C) over :data:`CAUSE_FEATURES`;
    ``certain``: the share of belief that ends the search."""

    functions: tuple[float, ...] = (0.0, 3.0, 2.0, 2.0, 0.8, 2.0, 3.0, 1.0, 0.0, 0.4, 0.6, 0.0, 1.5, 0.3, 0.0, -4.0)
    causes: tuple[tuple[float, ...], ...] = ()
    certain: float = 0.6
    name: str = NAME


@dataclass
class Gathered:
    """What a conversation says so far."""

    issue: str = ""
    paths: list[str] = field(default_factory=list)
    tools: set[str] = field(default_factory=set)
    lines: dict[str, dict[int, str]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    near: dict[str, set[str]] = field(default_factory=dict)
    """File -> files it imports."""
    hits: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """Query -> file -> lines."""
    defined: dict[str, frozenset[str]] = field(default_factory=dict)
    """Query -> files in which a window shows a definition of that name."""
    calls: list[tuple[str, str]] = field(default_factory=list)
    refused: set[tuple[str, str]] = field(default_factory=set)

    @property
    def known(self) -> frozenset[str]:
        """The paths so far."""
        return frozenset(self.paths)


def read(messages: Sequence[Message]) -> Gathered:
    """The conversation as facts: nothing else is remembered from one turn to the next."""
    found = Gathered()
    call: AskedCall | None = None
    for message in messages:
        if message.role == "system":
            found.tools = set(re.findall(r"^- (\w+)\(", message.text, re.MULTILINE))
        elif message.role == "assistant":
            done = _reply(message.text)
            call = done if isinstance(done, AskedCall) else None
        elif "<repository>" in message.text and not found.paths:
            issue, _, tree = message.text.partition("</issue>")
            found.issue = issue.removeprefix("<issue>").strip()
            found.paths = re.findall(r"^(.+?) \(\d+\)$", tree, re.MULTILINE)
        elif call is not None and "<observation>" in message.text:
            _observed(found, call, message.text)
            call = None
    return found


@lru_cache(maxsize=20_000)
def _reply(text: str) -> object:
    return read_reply(Message("assistant", text))


def _observed(found: Gathered, call: AskedCall, text: str) -> None:
    key = (call.name, str(sorted((k, str(v)) for k, v in call.arguments.items())))
    found.calls.append(key)
    body = text.partition("<observation>\n")[2].rpartition("\n</observation>")[0]
    if body.startswith("error:"):
        found.refused.add(key)
    elif call.name == "view_file":
        path, size, lines, near = _view(body)
        if path:
            found.sizes[path] = size
            found.lines.setdefault(path, {}).update(lines)
            found.near.setdefault(path, set()).update(near)
            found.paths += [one for one in near if one not in found.known]
    elif call.name == "codebase_search":
        query = str(call.arguments["query"])
        found.hits[query], found.defined[query] = _search(body), _definitions(body, query)
        found.paths += [path for path in found.hits[query] if path not in found.known]
    elif call.name == "connected_tree" and "file" in call.arguments:
        imports = body.partition(" is imported by ")[0]
        found.near.setdefault(normal(str(call.arguments["file"])), set()).update(re.findall(r"^  (\S+)$", imports, re.MULTILINE))


@lru_cache(maxsize=20_000)
def _view(body: str) -> tuple[str, int, dict[int, str], tuple[str, ...]]:
    head = re.match(r"(.+), lines \d+ to \d+ of (\d+)$", body.partition("\n")[0])
    if head is None:
        return "", 0, {}, ()
    lines = {int(number): line for number, line in re.findall(r"^ *(\d+)  (.*)$", body, re.MULTILINE)}
    near = re.search(r"^imports: (.*)$", body, re.MULTILINE)
    return head[1], int(head[2]), lines, tuple(one for one in near[1].split(", ") if "/" in one or "." in one) if near else ()


@lru_cache(maxsize=20_000)
def _search(body: str) -> dict[str, list[int]]:
    listing = body.partition("\n---")[0]
    return {
        path: [int(at) for at in where.split(", ")]
        for path, where in re.findall(r"^(\S.*?): (\d+(?:, \d+)*)$", listing, re.MULTILINE)
    }


@lru_cache(maxsize=20_000)
def _definitions(body: str, query: str) -> frozenset[str]:
    wanted, path, found = re.compile(rf"^ *\d+  \s*(?:\w+ )*(?:def|class|function|func|fn)\b.*\b{re.escape(query)}"), "", set()
    for line in body.split("\n"):
        if line.startswith("--- "):
            path = line[4:].rpartition(", lines ")[0]
        elif path and wanted.match(line):
            found.add(path)
    return frozenset(found)


# -- what an issue says --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Named:
    """What an issue names."""

    identifiers: tuple[str, ...]
    content: tuple[str, ...]
    frames: tuple[tuple[str, int], ...]
    """Files and lines of a traceback, the last one last."""
    paths: tuple[str, ...]


@lru_cache(maxsize=4096)
def named(issue: str) -> Named:
    """Identifiers (called ones first), other words, frames of a traceback and paths in an issue."""
    frames = tuple((normal(file), int(line)) for file, line in re.findall(r"File \"([^\"]+)\", line (\d+)", issue))
    frames += tuple((file, int(line)) for file, line in re.findall(r"^\s*(\S+\.\w+):(\d+): ", issue, re.MULTILINE))
    called = re.findall(r"\b([A-Za-z_]\w{2,})\(", issue)
    styled = re.findall(r"`([A-Za-z_][\w.]{2,})`", issue) + re.findall(
        r"\b\w*[a-z]_[a-z]\w*\b|\b[a-z]+[A-Z]\w+\b|\b[A-Z][a-z]+[A-Z]\w*\b", issue
    )
    whole = [one.rpartition(".")[2] for one in called + styled]
    kept = tuple(
        dict.fromkeys(
            one for one in whole if not re.search(r"(Error|Exception|Warning)$", one) and one.lower() not in STOP and len(one) > 2
        )
    )
    content = tuple(dict.fromkeys(one for one in words(issue) if len(one) > 3 and one not in STOP and not one.isdigit()))
    paths = tuple(dict.fromkeys(normal(one) for one in re.findall(r"[\w./-]+\.(?:py|pyi|js|jsx|ts|tsx|go|rs|java)\b", issue)))
    return Named(kept, content, frames, paths)


def _same(path: str, other: str) -> bool:
    return path == other or path.endswith("/" + other) or other.endswith("/" + path)


# -- functions that were seen --------------------------------------------------------------------------------------------------

_DEF = re.compile(
    r"^(\s*)(?:export\s+|default\s+|public\s+|private\s+|protected\s+|static\s+|async\s+|pub(?:\(\w+\))?\s+)*(?:def|function\*?|func|fn)\s+(?:\([^)]*\)\s*)?(\w+)"
)


def seen(found: Gathered) -> list[Seen]:
    """Every function whose definition was displayed, in the order of files."""
    return [one for path, lines in sorted(found.lines.items()) for one in _functions(path, tuple(sorted(lines.items())))]


@lru_cache(maxsize=4096)
def _functions(path: str, lines: tuple[tuple[int, str], ...]) -> tuple[Seen, ...]:
    made: list[Seen] = []
    opened: list[tuple[int, int, str, int]] = []  # indent, start, name, place in lines

    def close(indent: int, index: int) -> None:
        while opened and opened[-1][0] >= indent:
            _, start, name, first = opened.pop()
            last = index - 1
            while last > first and not lines[last][1].strip():
                last -= 1
            made.append(Seen(path, name, start, lines[last][0], "\n".join(line for _, line in lines[first : last + 1])))

    for index, (number, line) in enumerate(lines):
        stripped = line.strip()
        if not stripped or stripped[0] in ")]}#":
            continue
        close(len(line) - len(line.lstrip()), index)
        if match := _DEF.match(line):
            opened.append((len(match[1].expandtabs()), number, match[2], index))
    close(-1, len(lines))
    return tuple(sorted(made, key=lambda one: (one.start, -one.end)))


_TOKEN = re.compile(r"[A-Za-z_]\w*|\d+|[<>=!]=|[^\s\w]")
_WORDS = frozenset(
    """def if else elif for while return not and or in is None True False len range min max sum abs raise try except break
    continue lambda""".split()
)


def _roles(tokens: Sequence[str]) -> tuple[str, ...]:
    """Tokens with every name replaced by its role: the function itself, called ones,
    and the others in the order in which they come."""
    known: dict[str, str] = {}
    made = []
    for at, one in enumerate(tokens):
        if one in _WORDS or not (one[0].isalpha() or one[0] == "_"):
            made.append(one)
        elif at + 1 < len(tokens) and tokens[at + 1] == "(":
            made.append("f")
        else:
            made.append(known.setdefault(one, f"v{len(known)}"))
    return tuple(made)


@lru_cache(maxsize=50_000)
def _shape(text: str) -> tuple[tuple[str, ...], frozenset[str], frozenset[str], bool, bool]:
    """Tokens with names taken away, words, called names, whether a value is left unreturned, whether a parameter is not used."""
    code = re.sub(r'""".*?"""|\'\'\'.*?\'\'\'', "", text, flags=re.DOTALL)
    tokens = _TOKEN.findall(code)
    shape = _roles(tokens)
    calls = frozenset(re.findall(r"\b([A-Za-z_]\w*)\(", code)) - _WORDS
    lines = [line for line in code.split("\n") if line.strip()]
    last = lines[-1].strip() if lines else ""
    value = r"[a-z_]\w*( [%*+/-] [\w().]+)*"
    unreturned = (
        len(lines) > 1
        and last not in ("pass", "break", "continue", "return", "raise", "yield")
        and bool(re.fullmatch(value, last))
    )
    head = re.search(r"\((.*?)\)\s*(?:->.*?)?:", code, re.DOTALL)
    names = re.findall(r"([A-Za-z_]\w*)\s*(?:=|,|$|:)", head[1]) if head else []
    body = code[head.end() :] if head else ""
    unused = any(not re.search(rf"\b{re.escape(name)}\b", body) for name in names if name not in ("self", "cls"))
    return shape, frozenset(words(text)), calls, unreturned, unused


@lru_cache(maxsize=200_000)
def difference(text: str, other: str) -> tuple[int, tuple[str, ...]]:
    """How many tokens two functions differ in beyond names, and of which kinds; 99 where they are no siblings."""
    a, b = _shape(text)[0], _shape(other)[0]
    if abs(len(a) - len(b)) > 14 or min(len(a), len(b)) < 12:
        return 99, ()
    more, less = Counter(a), Counter(b)
    missing, extra = less - more, more - less
    size = sum(missing.values()) + sum(extra.values())
    if size > 16:
        return 99, ()
    kinds = []
    signs = {"<", ">", "<=", ">=", "==", "!="}
    if (signs & set(missing)) and (signs & set(extra)):
        kinds.append("comparison")
    numbers = [int(one) for one in missing if one.isdigit()], [int(one) for one in extra if one.isdigit()]
    if numbers[0] and numbers[1]:
        kinds += ["number", *(["number by one"] if any(abs(x - y) == 1 for x in numbers[0] for y in numbers[1]) else [])]
    if missing["if"]:
        kinds.append("if")
    if missing["return"]:
        kinds.append("return")
    if re.findall(r"=\s*(\d+)\s*[,)]", text.partition(":\n")[0]) != re.findall(r"=\s*(\d+)\s*[,)]", other.partition(":\n")[0]):
        kinds.append("default")
    names = [one for one in missing if one[0] == "v"], [one for one in extra if one[0] == "v"]
    if names[0] and names[1]:
        kinds.append("name")
    if not size and a != b:
        kinds.append("order")
    return size, tuple(kinds)


def siblings(functions: Sequence[Seen]) -> list[tuple[int, tuple[str, ...]]]:
    """Of each function the difference from its nearest sibling:
    another one that shares at least two words of its name, in their order."""
    by_words: dict[tuple[str, ...], list[int]] = {}
    for at, one in enumerate(functions):
        for pair in _pairs(one.name):
            by_words.setdefault(pair, []).append(at)
    made = []
    for at, one in enumerate(functions):
        near = {other for pair in _pairs(one.name) for other in by_words[pair]} - {at}
        made.append(
            min((difference(one.text, functions[other].text) for other in sorted(near)), default=(99, ()), key=lambda d: d[0])
        )
    return made


@lru_cache(maxsize=50_000)
def _pairs(name: str) -> frozenset[tuple[str, ...]]:
    pieces = words(name)
    return frozenset(itertools.pairwise(pieces))


def reached(functions: Sequence[Seen], issue: Named) -> list[int]:
    """How many calls lead from a function that the issue names to each, 99 where none do."""
    positions: dict[str, list[int]] = {}
    for at, one in enumerate(functions):
        positions.setdefault(one.name, []).append(at)
    far = [99] * len(functions)
    edge = [at for name in issue.identifiers for at in positions.get(name, ())]
    for step in range(7):
        for at in edge:
            far[at] = min(far[at], step)
        edge = [to for at in edge for name in _shape(functions[at].text)[2] for to in positions.get(name, ()) if far[to] == 99]
    return far


def features(functions: Sequence[Seen], found: Gathered) -> np.ndarray:
    """(functions, F): see :data:`FEATURES`."""
    issue = named(found.issue)
    content, n = set(issue.content), max(1, len(functions))
    counts = Counter(word for one in functions for word in _shape(one.text)[1] & content)
    weight = {word: math.log((n + 1) / (counts[word] + 0.5)) for word in content}
    total = sum(weight.values()) or 1.0
    far, near = reached(functions, issue), siblings(functions)
    inside = [rank for rank, (file, _) in enumerate(issue.frames) if not is_test(file)]
    last = inside[-1] if inside else -1
    hits: dict[str, list[int]] = {}
    for places in found.hits.values():
        for path, where in places.items():
            hits.setdefault(path, []).extend(where)
    rows = []
    for at, one in enumerate(functions):
        _, own, _, unreturned, unused = _shape(one.text)
        frames = [
            rank for rank in inside if _same(one.file, issue.frames[rank][0]) and one.start <= issue.frames[rank][1] <= one.end
        ]
        size, kinds = near[at]
        rows.append([
            1.0,
            sum(weight[word] for word in own & content) / total,
            sum(weight.get(word, 0.0) for word in set(words(one.name)) & content) / total,
            float(one.name in issue.identifiers),
            float(any(_same(one.file, path) for path in issue.paths)),
            float(bool(frames)),
            float(bool(frames) and frames[-1] == last),
            1.0 / (1 + far[at]) if 0 < far[at] < 99 else 0.0,
            float(far[at] == 0),
            math.log1p(sum(one.start <= line <= one.end for line in hits.get(one.file, ()))),
            float(size < 99 and bool(kinds)),
            size / 16 if size < 99 else 0.0,
            float(unreturned),
            float(unused),
            min(1.0, (one.end - one.start) / 60),
            float(is_test(one.file)),
        ])  # fmt: skip
    return np.array(rows) if rows else np.zeros((0, len(FEATURES)))


def cause_features(one: Seen, functions: Sequence[Seen], issue: str) -> np.ndarray:
    """(C,): see :data:`CAUSE_FEATURES`."""
    kinds = next((kinds for other, (_, kinds) in zip(functions, siblings(functions), strict=True) if other == one), ())
    shape, _, _, unreturned, unused = _shape(one.text)
    two = re.search(r"returns? (-?\d+)\D+expected (-?\d+)", issue)
    flags = [
        True,
        *(name in kinds for name in ("comparison", "number", "number by one", "default", "if", "return", "order", "name")),
        unreturned,
        unused,
    ]
    flags += [bool(re.search(r"\b\w+Error\b", issue)), "None" in issue, two is not None and abs(int(two[1]) - int(two[2])) == 1]
    flags += [
        bool({"<", ">", "<=", ">=", "==", "!="} & set(shape)),
        "=" in shape[: shape.index(":")] if ":" in shape else False,
        "if" in shape and "not" in shape,
    ]
    return np.array(flags, float)


@lru_cache(maxsize=20_000)
def _path_words(path: str) -> frozenset[str]:
    return frozenset(words(path))


@lru_cache(maxsize=20_000)
def _unlikely(path: str) -> float:
    return 3.0 * is_test(path) + 2.0 * (path.rpartition(".")[2] not in ("py", "js", "ts", "tsx", "jsx", "go", "rs", "java"))


@lru_cache(maxsize=20_000)
def _imports(lines: tuple[tuple[int, str], ...]) -> tuple[tuple[str, frozenset[str]], ...]:
    """(module, names) of the Python imports among displayed lines."""
    text = "\n".join(line for _, line in lines)
    found = re.findall(r"^from ([\w.]+) import (?:\(([^)]*)\)|(.*))$", text, re.MULTILINE)
    return tuple((module, frozenset(re.findall(r"\w+", several or one))) for module, several, one in found)


# -- what a failing test tests ---------------------------------------------------------------------------------------------------


def tested(gathered: Gathered) -> dict[str, dict[str, bool]]:
    """File -> names that the failing tests of the issue take from it, and whether they do so under a flag that may be off.

    A test is where a failure shows: its frames lead to what it imports. A name that a package hands on is followed into the
    package once its ``__init__`` was displayed.
    """
    out: dict[str, dict[str, bool]] = {}
    frames: dict[str, list[int]] = {}
    for name, line in named(gathered.issue).frames:
        path = next((known for known in gathered.lines if _same(known, name)), None)
        if path is not None and is_test(path):
            frames.setdefault(path, []).append(line)
    for path, lines in frames.items():
        for taken in taken_names(_text(gathered, path), tuple(lines)):
            for file, name in _defined_in(gathered, path, taken):
                known = out.setdefault(file, {})
                known[name] = known.get(name, True) and taken.off
    return out


def _tested_bonus(function: Seen, taken: Mapping[str, Mapping[str, bool]]) -> float:
    """What a function's score gains because a failing test takes it, or a module with a name of the test, from its file."""
    if is_test(function.file):
        return -TESTED
    names = taken.get(function.file, {})
    off = names.get(function.name, all(names.values()))
    return 0.0 if not names or off else TESTED if function.name in names else TESTED / 2


def _text(gathered: Gathered, path: str) -> str:
    shown = gathered.lines[path]
    return "\n".join(shown.get(line, "") for line in range(1, max(shown, default=0) + 1))


def _defined_in(gathered: Gathered, path: str, wanted: TakenName, deep: int = 3) -> list[tuple[str, str]]:
    """(file, name) of what a test takes: a module, or a name in it."""
    folder = path.split("/")[: -wanted.level] if wanted.level else []
    stem = "/".join([*folder, *(part for part in wanted.module.split(".") if part)])

    def file(tail: str) -> str | None:
        ends = (f"{tail}.py", f"{tail}/__init__.py")
        near = [
            known
            for known in gathered.paths
            if any(known == end or (not wanted.level and known.endswith("/" + end)) for end in ends)
        ]
        return min(near, key=lambda known: (is_test(known), len(known), known), default=None)

    if wanted.name and (module := file(f"{stem}/{wanted.name}" if stem else wanted.name)) is not None:
        return [(module, "")]
    home = file(stem) if stem else None
    if home is None:
        return []
    if home.endswith("__init__.py") and home in gathered.lines and deep:
        further = [
            place
            for inner in taken_names(_text(gathered, home), ())
            if inner.name in (wanted.name, "*")
            for place in _defined_in(gathered, home, TakenName(inner.module, inner.level, wanted.name), deep - 1)
        ]
        if further:
            return further
    return [(home, wanted.name)]


# -- the policy ----------------------------------------------------------------------------------------------------------------


class RulePolicy:
    """Answers a conversation as a model would. ``seed`` above 0 varies what is looked at and how near calls fall."""

    def __init__(self, weights: Weights | None = None, seed: int = 0, noise: float = 0.5) -> None:
        self.weights, self.seed, self.noise = weights or Weights(), seed, noise

    def __call__(self, messages: Sequence[Message]) -> TurnReply:
        """One turn: a tool call, or the answer."""
        found = read(messages)
        final = any(one.text == FINAL for one in messages[-1:])
        functions = seen(found)
        belief = self.belief(functions, found)
        sure = len(belief) > 0 and float(belief.max()) >= self.weights.certain and len(found.lines) >= min(3, len(found.paths))
        sure = sure and not is_test(functions[int(belief.argmax())].file)
        likely = len(belief) > 0 and float(belief.max()) >= BESIDE
        step = self._sibling_call(found, functions, belief) if likely and not final else None
        if step is None and not final and (not sure or messages[-1].text == LOOK_FIRST):
            step = self._next(found, functions, belief)
        text = step or self._answer(found, functions, belief)
        return TurnReply(Message("assistant", f"<think>{len(functions)} functions seen</think>{text}"))

    def belief(self, functions: Sequence[Seen], found: Gathered) -> np.ndarray:
        """(functions,): shares of belief that each is where the bug is."""
        rows = features(functions, found)
        if not len(rows):
            return np.zeros(0)
        score = rows @ np.array(self.weights.functions) + [self._jitter(one.file, one.name) for one in functions]
        if taken := tested(found):
            score += [_tested_bonus(function, taken) for function in functions]
        share = np.exp(score - score.max())
        out: np.ndarray = share / share.sum()
        return out

    def _jitter(self, *position: str) -> float:
        """Gumbel noise of a place, 0 for the first seed."""
        if not self.seed:
            return 0.0
        u = (derive_key(self.seed, "policy", *position) % (1 << 40) + 0.5) / (1 << 40)
        return -self.noise * math.log(-math.log(u))

    def _sibling_call(self, found: Gathered, functions: Sequence[Seen], belief: np.ndarray) -> str | None:
        """The call that shows a sibling of the likeliest function where none was seen:
        a search for how its name begins, then the file."""
        best = functions[int(belief.argmax())]
        query = "_".join(best.name.split("_")[:2])
        if "_" not in query or "codebase_search" not in found.tools or siblings(functions)[int(belief.argmax())][0] < 99:
            return None
        if query not in found.hits:
            return written_call("codebase_search", query=query)
        near = [path for path in found.hits[query] if path not in found.lines and path in found.defined[query]]
        return self._look(found, near[0], found.hits[query][near[0]]) if near else None

    def _next(self, found: Gathered, functions: Sequence[Seen], belief: np.ndarray) -> str | None:
        """The next call, or None where there is nothing left to look at."""
        issue = named(found.issue)
        for name, line in (*issue.frames[::-1], *((path, 0) for path in issue.paths)):
            path = next((one for one in found.paths if _same(one, name)), None)
            if path and (step := self._look(found, path, [line] if line else [])):
                return step
        for path in sorted(taken := tested(found), key=lambda known: all(taken[known].values())):
            if path not in found.lines and (step := self._look(found, path, [])):
                return step
        if "codebase_search" in found.tools:
            unsearched = [one for one in issue.identifiers[:4] if one not in found.hits]
            more = [one for one in issue.content[:8] if one not in found.hits]
            looked = len(found.lines)
            if unsearched:
                return written_call("codebase_search", query=unsearched[0])
            if more and (looked >= 2 * len([one for one in issue.content[:8] if one in found.hits]) or not found.hits):
                return written_call("codebase_search", query=more[0])
        score = self._file_scores(found, functions, belief)
        for path in sorted(found.paths, key=lambda one: -score[one]):
            lines = [
                at
                for query, places in found.hits.items()
                if path in found.defined[query] or query in issue.identifiers
                for at in places.get(path, ())
            ]
            if step := self._look(found, path, lines):
                return step
        return None

    def _look(self, found: Gathered, path: str, lines: Sequence[int]) -> str | None:
        """A view of a part of a file that was not displayed yet; of a long file the part around ``lines``."""
        shown = found.lines.get(path, {})
        if "view_file" not in found.tools or (
            found.sizes.get(path) is not None and not lines and len(shown) >= min(found.sizes[path], 400)
        ):
            return self._connect(found, path)
        size = found.sizes.get(path)
        if size is None:
            arguments: dict[str, object] = {"path": path}
            if lines and min(lines) > 350:
                arguments["view_range"] = [max(1, min(lines) - 60), min(lines) + 200]
        else:
            left = [at for at in lines if at not in shown and at <= size]
            if not left:
                return None
            arguments = {"path": path, "view_range": [max(1, min(left) - 60), min(size, min(left) + 200)]}
        key = ("view_file", str(sorted((k, str(v)) for k, v in arguments.items())))
        return None if key in found.refused or key in found.calls else written_call("view_file", **arguments)

    def _connect(self, found: Gathered, path: str) -> str | None:
        if "connected_tree" not in found.tools or path in found.near or ("view_file" in found.tools):
            return None
        key = ("connected_tree", str([("file", path)]))
        return None if key in found.calls else written_call("connected_tree", file=path)

    def _file_scores(self, found: Gathered, functions: Sequence[Seen], belief: np.ndarray) -> dict[str, float]:
        """How promising each file is: hits of searches, words in its path, imports by files that hold likely functions, and
        definitions of what functions call that the issue leads to."""
        issue = named(found.issue)
        content = set(issue.content)
        score = {
            path: 0.5 * len(_path_words(path) & content) + 0.3 * self._jitter(path) - _unlikely(path) for path in found.paths
        }
        for query, places in found.hits.items():
            for path in places:
                score[path] += (2.0 if query in issue.identifiers else 1.0) / math.sqrt(len(places)) + 3.0 * (
                    path in found.defined[query]
                )
        best: dict[str, float] = {}
        for one, share in zip(functions, belief, strict=True):
            best[one.file] = max(best.get(one.file, 0.0), float(share))
        named_files = {one.file for one in functions if one.name in issue.identifiers}
        for viewed, near in found.near.items():
            for path in near:
                if path in score:
                    score[path] += 1.0 * best.get(viewed, 0.0) + (0.5 if viewed in named_files else 0.2 * (viewed in found.lines))
        for path in self._called_from(found, functions, issue):
            if path in score:
                score[path] += 2.0
        return score

    def _called_from(self, found: Gathered, functions: Sequence[Seen], issue: Named) -> set[str]:
        """Files that imports say hold functions which are called, but not seen yet, where the issue's calls lead."""
        known = {one.name for one in functions}
        near = [one for one, far in zip(functions, reached(functions, issue), strict=True) if far < 99]
        needed = {(one.file, name) for one in near for name in _shape(one.text)[2] if name not in known}
        made = set()
        for file in {file for file, _ in needed}:
            names = {name for own, name in needed if own == file}
            for module, taken in _imports(tuple(sorted(found.lines[file].items()))[:80]):
                if names & taken:
                    made |= {
                        path
                        for path in found.near.get(file, ())
                        if path.rpartition(".")[0].replace("/", ".").endswith(module.lstrip("."))
                    }
        return made

    def _answer(self, found: Gathered, functions: Sequence[Seen], belief: np.ndarray) -> str:
        if not len(belief):
            if not found.paths:
                return "<think>there is nothing to name</think>"
            score = self._file_scores(found, (), np.zeros(0))
            path = max(found.paths, key=lambda one: score[one])
            lines = [at for places in found.hits.values() for at in places.get(path, ())]
            first = min(lines, default=1)
            return written_answer(
                [
                    Diagnosis(
                        path,
                        first,
                        first + (9 if lines else 0),
                        "Its name and the lines found by search fit the issue; it was not viewed.",
                    )
                ]
            )
        code = np.array([not is_test(function.file) for function in functions])
        if named(found.issue).frames and code.any():  # a test is where a failure shows
            belief = np.where(code, belief, 0.0)
        best = functions[int(belief.argmax())]
        return written_answer([self._diagnosis(best, functions, found, float(belief.max()))])

    def _diagnosis(self, best: Seen, functions: Sequence[Seen], found: Gathered, share: float) -> Diagnosis:
        row = features([*functions], found)[list(functions).index(best)]
        parts = row * np.array(self.weights.functions)
        why = [FEATURES[at] for at in np.argsort(-parts) if parts[at] > 0.05 and at][:3]
        cause, second = self.causes(best, functions, found.issue)
        (cause_text, edit), other = CAUSES[cause], CAUSES[second][1]
        callers = sorted(
            {f"`{one.name}` in {one.file}" for one in functions if best.name in _shape(one.text)[2] and one != best}
        )[:3]
        return Diagnosis(
            best.file, best.start, best.end,
            f"`{best.name}`: {', '.join(why) or 'the best of what was seen'} ({share:.0%} of the belief among {len(functions)} "
            "functions).",
            f"Likely {cause}: {cause_text}. A guess of rules, not of a model.",
            f"{edit[0].upper()}{edit[1:]} in `{best.name}` ({cause}); if that is not it, {other} ({second}).",
            f"Called by {', '.join(callers)}: check what they expect." if callers else "Nothing else that was seen calls it.",
            f"Add a test of `{best.name}` that asserts what the issue expects; it must fail before the edit.",
        )  # fmt: skip

    def causes(self, one: Seen, functions: Sequence[Seen], issue: str) -> tuple[str, str]:
        """The two likeliest causes, by the trained weights or by what the nearest sibling has that this one has not."""
        row = cause_features(one, functions, issue)
        if self.weights.causes:
            first, second = np.argsort(-(np.array(self.weights.causes) @ row), kind="stable")[:2]
            return list(CAUSES)[first], list(CAUSES)[second]
        flags = dict(zip(CAUSE_FEATURES, row, strict=True))
        order: Mapping[str, str] = {
            "value not returned": "dropped return",
            "sibling: return": "dropped return",
            "sibling: if": "missing guard",
            "sibling: comparison": "comparison",
            "sibling: default": "wrong default",
            "sibling: number by one": "off-by-one",
            "sibling: number": "wrong constant",
            "sibling: name": "wrong variable",
            "unused parameter": "wrong variable",
            "sibling: order": "swapped arguments",
            "issue: exception": "missing guard",
            "issue: off by one": "off-by-one",
            "has a comparison": "comparison",
        }
        likely = dict.fromkeys([*(cause for flag, cause in order.items() if flags[flag]), "wrong variable", "wrong constant"])
        first_, second_ = list(likely)[:2]
        return first_, second_
