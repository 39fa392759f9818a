"""When experience becomes text, when text becomes code, and when code goes back:
pure functions (arXiv 2606.24151, sections 3.2 to 3.5).

Axis legend: Q queries.
"""

from __future__ import annotations

import ast
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
from pydantic import Field

from ramify.base.config import Config
from ramify.base.ids import stable_hash

KINDS = ("plan", "fact", "pitfall")
"""What a text entry may be. Only plans may become code."""
MEANING = {
    "plan": "an ordered procedure that can be used again, without values that differ between tasks",
    "fact": "a stable property of the environment",
    "pitfall": "what sets a mistake off, the mistake, what comes of it, and what to do",
}
LEVEL = 0.05
"""At most this share of tools that fail as often as is allowed are ever demoted, however often one looks."""

TOP_TEXT, TOP_TOOL = 20, 10
"""Text entries and tools that the manager chooses from: all fit a prompt of a few thousand tokens."""
LONGEST = 4000
"""Characters of an entry; a longer one is dropped and counted: it would crowd the others out of the prompt."""
REPAIRS = 2
"""Times that a tool which was not admitted is given back to who wrote it, with the errors; each costs a call."""
FAILING = 0.2
"""Share of failed checks that a tool may have: where more fail, the plan it was made from serves better."""


class MemoryConfig(Config):
    """Settings of a memory. They are kept in its file."""

    BASIC = "mode k env_version review"

    mode: Literal["safe", "paper", "text-only", "code-only", "eager"] = "safe"
    """safe: tools are guarded, checked, and go back to text; paper: as published; eager:
    code at first sight; text-only; code-only."""
    k: int = Field(default=3, ge=1, le=1000)
    """Structurally different requests that a plan must serve before it may become a tool."""
    env_version: str = ""
    """Version of the environment that tools are for: tools of another one are candidates again."""
    review: Literal["auto", "ask", "never"] = "ask"
    """Who lets a tool in: the tests alone, a person (`review`), nobody.
    Text that quotes what a tool returned waits for a person always."""
    evidence: Literal["structures", "queries"] = "structures"
    """What counts as another request: another structure (values left out), or any other wording or value."""
    reflect: Literal["all", "new"] = "all"
    """Tasks that are reflected on: all, or those that did not succeed by a plan that they were given."""
    inject: int = Field(default=6, ge=1, le=100)
    """Most text entries that are given where no manager chooses."""
    least: float = Field(default=0.5, ge=0, le=1)
    """Share of the words of a request, values left out, that an entry must hold to be given where no manager chooses."""
    embed: str = ""
    """MODEL@URL of an endpoint with /embeddings, by whose vectors entries are near a request; empty:
    by words (BM25), which needs none."""
    embed_least: float = Field(default=0.5, ge=-1, le=1)
    """Cosine with a request, by those vectors, from which an entry is given where no manager chooses."""

    @property
    def gate(self) -> float:
        """Evidence that a plan needs: ``k``, 1 in mode eager, infinite in mode text-only."""
        return {"eager": 1.0, "code-only": 1.0, "text-only": float("inf")}.get(self.mode, float(self.k))

    @property
    def safe(self) -> bool:
        """Whether the additions are on: evidence of what was followed, guard, checks, fallback, demotion."""
        return self.mode == "safe"


# -- the structure of a request (section 3.5) ------------------------------------------------------------------------------------

_COLOURS = "red|green|blue|yellow|orange|purple|pink|brown|black|white|gr[ae]y"
_DAYS = (
    "monday|tuesday|wednesday|thursday|friday|saturday|sunday|today|tomorrow|yesterday|"
    "january|february|march|april|june|july|august|september|october|november|december"
)
_COUNTS = "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
_SLOTS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern, flags))
    for name, pattern, flags in (
        ("<text>", r"\"[^\"\n]*\"|“[^”\n]*”|«[^»\n]*»|(?<!\w)'[^'\n]*'(?!\w)|`[^`\n]*`", 0),
        ("<email>", r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+", 0),
        ("<url>", r"\bhttps?://\S+", 0),
        ("<date>", r"\b\d{4}-\d\d?-\d\d?(?:[T ][\d:.]+Z?)?\b|\b\d\d?[/.]\d\d?[/.]\d{2,4}\b", 0),
        ("<date>", rf"\b(?:{_DAYS})\b", re.IGNORECASE),
        ("<colour>", rf"\b(?:{_COLOURS})\b", re.IGNORECASE),
        ("<id>", r"\b(?=[\w-]*\d)(?=[\w-]*[A-Za-z_])[\w]+(?:-[\w]+)*\b", 0),
        ("<n>", r"[$€£]?\d+(?:[.,:]\d+)*%?", 0),
        ("<n>", rf"\b(?:{_COUNTS})\b", re.IGNORECASE),
        ("<name>", r"(?<![.!?:\n]\s)(?<!^)\b[A-Z][\w'-]*(?:\s+[A-Z][\w'-]*)*\b", 0),
    )
)
_POLITE_WORDS = (
    "please kindly could would can you thanks thank hi hello hey just now i me my the a an to of for in on and or is are"
)
_POLITE = frozenset(_POLITE_WORDS.split())
_WORD = re.compile(r"<[a-z]+>|[^\W_]+(?:[._][^\W_]+)*", re.UNICODE)


def structure(query: str) -> str:
    """``query`` with its values replaced by typed slots, in lower case, without punctuation and words of politeness.

    ``Please delete my 3 oldest red notes`` and ``delete my 10 oldest blue notes!`` are one structure:
    ``delete <n> oldest <colour> notes``.
    """
    text = unicodedata.normalize("NFKC", query)[:4000]
    for slot, pattern in _SLOTS:
        text = pattern.sub(f" {slot} ", text)
    found = [word for word in _WORD.findall(text.casefold()) if word not in _POLITE]
    return " ".join(word for i, word in enumerate(found) if not (word.startswith("<") and i and found[i - 1] == word))


def wording(query: str) -> str:
    """``query`` in lower case, without punctuation and words of politeness, values kept."""
    return " ".join(w for w in _WORD.findall(unicodedata.normalize("NFKC", query)[:4000].casefold()) if w not in _POLITE)


def content_words(text: str) -> frozenset[str]:
    """The words of a structure that are no slots."""
    return frozenset(word for word in structure(text).split() if not word.startswith("<"))


def guard(queries: Iterable[str]) -> frozenset[str]:
    """The words that all ``queries`` (Q,) share, values included: what a tool made of them was never seen without."""
    words = [frozenset(wording(query).split()) for query in queries]
    return frozenset.intersection(*words) if words else frozenset()


def guarded(shared: Collection[str], query: str) -> bool:
    """Whether ``query`` holds every word that the queries behind a tool share: else it is another kind of request."""
    return set(shared) <= set(wording(query).split())


# -- anti-unification (section 7(a) of the specification) ------------------------------------------------------------------------


class _Hole:
    def __repr__(self) -> str:
        return "?"


HOLE: Final = _Hole()
"""What differs: it becomes a parameter."""


def anti_unify(*rows: Sequence[Any]) -> tuple[Any, ...]:
    """The least general pattern of rows of one length: a value where all agree, :data:`HOLE` where they do not.

    Idempotent, commutative and associative. Raises ValueError on no row, and on rows of different lengths.
    """
    if not rows or len({len(row) for row in rows}) > 1:
        raise ValueError("anti-unification needs rows of one length")
    return tuple(column[0] if all(value == column[0] for value in column) else HOLE for column in zip(*rows, strict=True))


# -- what it costs (section 3.7) -------------------------------------------------------------------------------------------------


def break_even(construction: float, saving: float) -> float | None:
    """Tasks (or uses) after which ``construction`` tokens are paid back at ``saving`` tokens each:
    N* = C / s. None, never, where nothing is saved."""
    return construction / saving if saving > 0 else None


# -- the way back (section 3.6 of the specification) -----------------------------------------------------------------------------


def failing(failures: int, calls: int, allowed: float, level: float = LEVEL) -> bool:
    """Whether ``failures`` of ``calls`` show a failure rate above ``allowed``, at a ``level`` that holds however often one looks.

    The lower end of an anytime-valid interval lies above ``allowed``: the mean likelihood ratio against it, over rates above it,
    reaches 1 / level (Ville's inequality).
    """
    if not 0 <= failures <= calls:
        raise ValueError(f"{failures} of {calls} is not a count")
    rates = allowed + (1 - allowed) * (np.arange(200) + 0.5) / 200
    log = failures * np.log(rates / allowed) + (calls - failures) * np.log((1 - rates) / (1 - allowed))
    return bool(np.exp(log - log.max()).mean() * np.exp(min(float(log.max()), 700.0)) >= 1 / level)


STREAK = 5
"""Failures in a row after which a tool is demoted whatever came before: the environment may have changed."""


def attempt_key(plan: str, evidence: Iterable[str]) -> str:
    """Names one attempt to write code: a plan's version and the evidence that it had."""
    return stable_hash("codify", plan, *sorted(evidence))


# -- what a tool may hold (section 3.5) ------------------------------------------------------------------------------------------

_BUILTINS = (
    "abs all any bool dict enumerate filter float frozenset int isinstance len list map max min next range reversed round set "
    "sorted str sum tuple zip ValueError KeyError RuntimeError AssertionError StopIteration"
)
BUILTINS = frozenset(_BUILTINS.split())
MODULES = frozenset(("re", "json", "math", "datetime", "itertools", "collections", "statistics", "string"))


def outline(source: str, name: str) -> tuple[list[str], list[str], list[str]]:
    """What the source of a tool calls of ``api``, the faults that keep it out, and the parameters of its function.

    A tool is a function ``name(api, *, ...)`` with a docstring, perhaps ``check_name(api, result, *, ...)`` and helpers
    ``_name_...``; at the top of the file stand nothing but these, a docstring and imports of :data:`MODULES`.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [], [f"it does not parse ({type(error).__name__}, line {getattr(error, 'lineno', None) or '?'})"], []
    faults: list[str] = []
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            if node.name not in (name, f"check_{name}") and not node.name.startswith(f"_{name}_"):
                faults.append(f"line {node.lineno}: a helper of '{name}' is called _{name}_..., not '{node.name}'")
        elif isinstance(node, ast.Import):
            faults += [f"line {node.lineno}: it imports {a.name}" for a in node.names if a.name not in MODULES]
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            faults.append(f"line {node.lineno}: only functions, a docstring and imports stand at the top")
    parameters: list[str] = []
    if name not in functions:
        faults.append(f"it holds no function '{name}'")
    else:
        own = functions[name].args
        parameters = [one.arg for one in own.kwonlyargs]
        if [one.arg for one in (*own.posonlyargs, *own.args)] != ["api"] or own.vararg or own.kwarg:
            faults.append(f"'{name}' takes api by place and everything else by name: def {name}(api, *, ...)")
        if not ast.get_docstring(functions[name]):
            faults.append(f"'{name}' has no docstring")
    called = _calls(tree, set(functions), faults)
    if (check := functions.get(f"check_{name}")) is not None:
        faults += _vacuous(check)
    return sorted(called), faults, parameters


def _calls(tree: ast.AST, own: set[str], faults: list[str]) -> set[str]:
    """Dotted names of ``api`` that are called; adds what may not be there to ``faults``."""
    called, chains = set[str](), set[int]()
    local = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    local |= {one.arg for node in ast.walk(tree) if isinstance(node, ast.arguments) for one in (*node.args, *node.kwonlyargs)}
    local |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            path, inner = [], node.func
            while isinstance(inner, ast.Attribute):
                path.append(inner.attr)
                inner = inner.value
            if isinstance(inner, ast.Name) and inner.id == "api":
                chains.add(id(inner))
                called.add(".".join(reversed(path)))
                if node.args:
                    faults.append(f"line {node.lineno}: arguments of api calls are given by name")
            elif isinstance(node.func, ast.Name) and node.func.id not in own | local | BUILTINS:
                faults.append(f"line {node.lineno}: it calls '{node.func.id}', which is no API and no tool")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            faults.append(f"line {node.lineno}: it reads '{node.attr}', which is private")
        elif isinstance(node, ast.ImportFrom | ast.Global | ast.Nonlocal | ast.ClassDef | ast.AsyncFunctionDef | ast.Await):
            faults.append(f"line {node.lineno}: {type(node).__name__} has no place in a tool")
        elif isinstance(node, ast.Call):
            for given in (*node.args, *(keyword.value for keyword in node.keywords)):
                if isinstance(given, ast.Name) and given.id == "api" and isinstance(node.func, ast.Name) and node.func.id in own:
                    chains.add(id(given))
    loose = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == "api" and id(n) not in chains]
    faults += [f"line {node.lineno}: api is called by name (api.mail.list(...)), not passed on or kept" for node in loose]
    return called


def _vacuous(check: ast.FunctionDef) -> list[str]:
    """Why a check can never fail: it catches what it should tell, or says the same of every result."""
    found = [f"line {n.lineno}: a check that catches errors hides them" for n in ast.walk(check) if isinstance(n, ast.Try)]
    returned = [n.value for n in ast.walk(check) if isinstance(n, ast.Return)]
    if not returned or all(value is None or isinstance(value, ast.Constant) for value in returned):
        found.append(f"line {check.lineno}: a check that says the same of every result checks nothing")
    return found


def closure(name: str, calls: Iterable[str], apis: Collection[str], tools: Mapping[str, Sequence[str]]) -> list[str]:
    """What is wrong with what the tool ``name`` calls: a name that is neither an API nor an active tool, or a way back to itself.

    ``tools`` are the active tools with what each of them calls.
    """
    faults, todo, seen = [], list(calls), set[str]()
    direct = set(todo)
    while todo:
        one = todo.pop()
        if one == name:
            faults.append(f"it comes back to itself by way of '{one}'" if one not in direct else "it calls itself")
        elif one in tools and one not in seen:
            todo += tools[one]
        elif one not in apis and one not in tools and one in direct:
            faults.append(f"it calls '{one}', which is no API and no active tool")
        seen.add(one)
    return sorted(set(faults))


TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


def signature_faults(name: str, parameters: Any, own: Sequence[str]) -> list[str]:
    """What is wrong with a tool's name and the JSON schema of its parameters, which must be those its function takes, ``own``."""
    faults = [] if _NAME.fullmatch(name) else [f"'{name[:70]}' is not a name: lower-case letters, digits and _, at most 64"]
    if not isinstance(parameters, Mapping) or parameters.get("type") != "object":
        return [*faults, 'the parameters are no JSON schema of an object: {"type": "object", "properties": {...}}']
    properties = parameters.get("properties", {})
    if not isinstance(properties, Mapping) or not all(isinstance(one, Mapping) for one in properties.values()):
        return [*faults, "'properties' must hold a schema for each parameter"]
    for key, one in properties.items():
        kinds = one.get("type", "string") if isinstance(one.get("type", "string"), list) else [one.get("type", "string")]
        faults += [f"the type of '{key}' is none of {', '.join(TYPES)}" for kind in kinds if kind not in TYPES]
    required = parameters.get("required", [])
    if not isinstance(required, list) or not set(map(str, required)) <= set(properties):
        faults.append("'required' names a parameter that is not there")
    if set(properties) != set(own):
        faults.append(f"the schema has the parameters {sorted(properties)}, the function {sorted(own)}")
    return faults


def similar(a: str, b: str) -> float:
    """How much two entries share: Jaccard's index of their words."""
    x, y = set(wording(a).split()), set(wording(b).split())
    return len(x & y) / len(x | y) if x | y else 1.0


_NEGATIVE = frozenset(["not", "no", "never", "cannot", "without", "none", "neither", "nor", "nothing"])
_NUMBER = re.compile(rf"\d[\d._]*|{_COUNTS}")
AGREED = 0.8
"""Words, numbers and negations left out, that two statements share where they are about the same thing."""


def contradicts(one: str, other: str) -> bool:
    """Whether two texts hold statements that say the same but for their numbers,
    or but for a negation: they cannot both be right.

    Statements are compared one by one, and need three words in common. Other wordings of a contradiction are not seen.
    """
    return any(
        _at_odds(mine, theirs) for mine in map(_statement, _sentences(one)) for theirs in map(_statement, _sentences(other))
    )


def _sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?;])\s+|\n+", text)[:40]


_Statement = tuple[frozenset[str], frozenset[str], bool]


def _statement(text: str) -> _Statement:
    """Words, numbers, and whether it is negated."""
    words = wording(text.replace("n't", " not").replace("n’t", " not")).split()
    numbers = frozenset(word for word in words if _NUMBER.fullmatch(word))
    plain = (word for word in words if word not in numbers and word not in _NEGATIVE and word not in ("do", "does"))
    bare = frozenset(word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word for word in plain)
    return bare, numbers, sum(word in _NEGATIVE for word in words) % 2 == 1


def _at_odds(one: _Statement, other: _Statement) -> bool:
    (mine, numbers, denied), (theirs, others, also) = one, other
    if len(mine & theirs) < 3 or len(mine & theirs) < AGREED * len(mine | theirs):
        return False
    return denied != also or bool(numbers and others and not numbers & others)


def followed(steps: Sequence[str], calls: Sequence[str], share: float = 0.8) -> bool:
    """Whether ``calls`` made go through ``share`` of a plan's ``steps`` (names of calls) in their order.
    A plan without steps is followed by nobody."""
    if not steps:
        return False
    best = [0] * (len(calls) + 1)
    for step in steps:  # the longest common subsequence
        last = 0
        for i, call in enumerate(calls, 1):
            last, best[i] = best[i], max(best[i], best[i - 1], last + (call == step))
    return best[-1] >= share * len(steps)
