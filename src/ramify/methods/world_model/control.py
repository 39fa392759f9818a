"""What goes wrong, or is withheld, in a simulated environment: decided by code, so that it happens exactly when it should.

A plea in a prompt ("return a 429 on call 4") is ignored as often as not. Every control here is deterministic: its chance is keyed
by the episode's seed and history, so the same episode fails at the same calls, and a snapshot brings its memory back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ramify.base.config import read_toml
from ramify.base.errors import UserError, nearest
from ramify.methods.world_model.store import EnvCall


@dataclass(frozen=True, slots=True)
class Moment:
    """What a control may know when it decides."""

    turn: int
    """Calls of the episode before this one."""
    rng: np.random.Generator
    """Its own chance at this call."""
    memory: dict[str, Any]
    """What it remembers in this episode (JSON); part of the snapshot."""


@runtime_checkable
class EnvControl(Protocol):
    """One kind of trouble."""

    def before(self, call: EnvCall, at: Moment) -> str | None:
        """An answer that replaces the environment's, which then never sees the call; None to let it through."""
        ...

    def after(self, call: EnvCall, text: str, at: Moment) -> str:
        """The answer as the agent sees it."""
        ...


@dataclass(frozen=True, slots=True)
class PlainControl:
    """Which tools it concerns: all of them, or those of ``tool`` (names with commas; ``*search*`` matches inside)."""

    tool: str = field(default="*", kw_only=True)

    def concerns(self, call: EnvCall) -> bool:
        """Whether it applies to a call."""
        from fnmatch import fnmatchcase

        return any(fnmatchcase(call.name, one.strip()) for one in self.tool.split(","))

    def number(self, call: EnvCall, at: Moment) -> int:
        """Which of the episode's calls that concern it this one is, from 1;
        0 where it does not concern it. To be asked once a call."""
        if not self.concerns(call):
            return 0
        at.memory["calls"] = int(at.memory.get("calls", 0)) + 1
        return int(at.memory["calls"])

    def before(self, call: EnvCall, at: Moment) -> str | None:
        """Let it through."""
        return None

    def after(self, call: EnvCall, text: str, at: Moment) -> str:
        """Leave it as it is."""
        return text


@dataclass(frozen=True, slots=True)
class Fault(PlainControl):
    """Answers with ``text`` instead: at the calls numbered in ``on``, and at any other with probability ``p``.

    Calls of all the tools that it concerns are counted together.
    """

    text: str = "500 Internal Server Error"
    p: float = 0.0
    on: tuple[int, ...] = ()

    def before(self, call: EnvCall, at: Moment) -> str | None:
        """The fault's text, or None."""
        chance, number = at.rng.random(), self.number(call, at)
        return self.text if number and (number in self.on or chance < self.p) else None


@dataclass(frozen=True, slots=True)
class RateLimit(PlainControl):
    """429 with probability ``p``, and at every call after the first ``most`` of the episode (0: no such limit).

    Calls of all the tools that it concerns are counted together.
    """

    p: float = 0.0
    most: int = 0
    text: str = "429 Too Many Requests"

    def before(self, call: EnvCall, at: Moment) -> str | None:
        """The refusal, or None."""
        chance, number = at.rng.random(), self.number(call, at)
        return self.text if number and (0 < self.most < number or chance < self.p) else None


@dataclass(frozen=True, slots=True)
class Paginate(PlainControl):
    """Shows ``size`` lines of a longer answer, and which page of how many it is.
    The argument ``page`` asks for others; of words ``... page 2``.

    All pages come from one answer, so they neither overlap nor lose a line, also where the environment has changed in between.
    """

    size: int = 5

    def before(self, call: EnvCall, at: Moment) -> str | None:
        """A later page of an answer that was given."""
        inner, page = unpaged(call)
        whole = at.memory.get(inner.text)
        return self._shown(whole, page) if self.concerns(call) and page > 1 and isinstance(whole, str) else None

    def after(self, call: EnvCall, text: str, at: Moment) -> str:
        """The page asked for."""
        if not self.concerns(call) or text.count("\n") < self.size:
            return text
        inner, page = unpaged(call)
        at.memory[inner.text] = text
        return self._shown(text, page)

    def _shown(self, text: str, page: int) -> str:
        lines = text.split("\n")
        pages = -(-len(lines) // self.size)
        if page > pages:
            return f"error: there is no page {page} of {pages}"
        return "\n".join([*lines[(page - 1) * self.size : page * self.size], f"(page {page} of {pages})"])


def unpaged(call: EnvCall) -> tuple[EnvCall, int]:
    """A call without its page, and that page, from 1: the argument ``page``, or the last two words ``page N`` of a command."""
    inner, page = call.without("page"), call.arguments.get("page", 1)
    words = list(call.arguments.values())
    if not call.written and words[-2:-1] == ["page"]:
        inner, page = call.without(str(len(words) - 1), str(len(words))), words[-1]
    return inner, int(page) if str(page).isascii() and str(page).isdigit() and int(page) >= 1 else 1


@dataclass(frozen=True, slots=True)
class Stingy(PlainControl):
    """Cuts every line of a search to its first ``words`` words but for a share of them, so that pages must be opened."""

    tool: str = field(default="*search*", kw_only=True)
    share: float = 0.1
    words: int = 4

    def after(self, call: EnvCall, text: str, at: Moment) -> str:
        """The lines, cut."""
        if not self.concerns(call):
            return text
        lines = []
        for line in text.split("\n"):
            whole = at.rng.random() < self.share
            words = line.split()
            lines.append(line if whole or len(words) <= self.words else " ".join([*words[: self.words], "..."]))
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Partial(PlainControl):
    """With probability ``p`` a part of the answer's lines, a share ``kept``, and a line that says so;
    with ``failed`` the others as failed."""

    p: float = 0.5
    kept: float = 0.5
    failed: bool = False

    def after(self, call: EnvCall, text: str, at: Moment) -> str:
        """The lines that came through."""
        lines = text.split("\n")
        chance = at.rng.random()
        if not self.concerns(call) or len(lines) < 2 or chance >= self.p:
            return text
        most = max(1, int(len(lines) * self.kept))
        left = [f"error: {line.split()[0] if line.split() else 'item'} failed" for line in lines[most:]]
        return "\n".join([*lines[:most], *(left if self.failed else [f"(partial result: {most} of {len(lines)})"])])


@dataclass(frozen=True, slots=True)
class Latency(PlainControl):
    """Adds to the episode's clock (``seconds`` of an observation's data), exponentially spread;
    past ``limit`` the call times out.

    Nobody waits: a rollout is as fast as without.
    """

    seconds: float = 1.0
    limit: float = 0.0
    text: str = "504 Gateway Timeout"

    def before(self, call: EnvCall, at: Moment) -> str | None:
        """The timeout, or None."""
        if not self.concerns(call):
            return None
        took = float(at.rng.exponential(self.seconds))
        late = bool(self.limit) and took > self.limit
        at.memory["seconds"] = at.memory.get("seconds", 0.0) + (self.limit if late else took)
        return self.text if late else None


KINDS: dict[str, type[PlainControl]] = {
    "fault": Fault,
    "latency": Latency,
    "paginate": Paginate,
    "partial": Partial,
    "rate-limit": RateLimit,
    "stingy": Stingy,
}


def read_controls(path: Path) -> tuple[EnvControl, ...]:
    """The controls of a TOML file: ``[[control]]`` tables with a ``kind`` and its settings.
    Raises UserError naming file, entry and field."""
    record = read_toml(path)
    for name in record:
        if name != "control":
            raise UserError(f"{path}: unknown table '{name}' (did you mean 'control'?)")
    listed = record.get("control", [])
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise UserError(f"{path}: controls are [[control]] tables with a kind")
    return tuple(_control(one, f"{path}: control {i}") for i, one in enumerate(listed, 1))


def _control(one: Mapping[str, Any], where: str) -> EnvControl:
    kind = one.get("kind")
    if kind not in KINDS:
        raise UserError(f"{where}: unknown kind '{kind}' ({nearest(str(kind), KINDS)})")
    made = KINDS[str(kind)]
    known = {spec.name: spec.default for spec in fields(made)}
    given = {}
    for name, value in one.items():
        if name == "kind":
            continue
        if name not in known:
            raise UserError(f"{where}: '{kind}' has no setting '{name}' ({nearest(name, known)})")
        given[name] = _typed(value, known[name], f"{where}: '{name}'")
    return made(**given)


def _typed(value: Any, like: Any, where: str) -> Any:
    if isinstance(like, tuple):
        if not isinstance(value, list) or not all(type(n) is int and n >= 1 for n in value):
            raise UserError(f"{where} must be a list of whole numbers from 1")
        return tuple(value)
    if isinstance(like, bool | str):
        if type(value) is not type(like):
            raise UserError(f"{where} must be {'true or false' if isinstance(like, bool) else 'text'}")
        return value
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or value < 0
        or (isinstance(like, int) and type(value) is not int)
    ):
        raise UserError(f"{where} must be {'a whole number' if isinstance(like, int) else 'a number'} from 0")
    if isinstance(like, float) and where.endswith(("'p'", "'share'", "'kept'")) and value > 1:
        raise UserError(f"{where} is a share from 0 to 1")
    return type(like)(value)


@dataclass(slots=True)
class Controls:
    """The controls of one episode, in order, with what they remember.
    The first that answers a call wins; answers pass through all."""

    controls: Sequence[EnvControl] = ()
    memory: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What each remembers, by its place."""

    def before(self, call: EnvCall, turn: int, rng: Sequence[np.random.Generator]) -> str | None:
        """An answer instead of the environment's; every control sees the call, so that a clock is not stopped by a fault."""
        found = [control.before(call, self._at(i, turn, rng[i])) for i, control in enumerate(self.controls)]
        return next((text for text in found if text is not None), None)

    def after(self, call: EnvCall, text: str, turn: int, rng: Sequence[np.random.Generator]) -> str:
        """The answer as the agent sees it."""
        for i, control in enumerate(self.controls):
            text = control.after(call, text, self._at(i, turn, rng[i]))
        return text

    @property
    def seconds(self) -> float | None:
        """The episode's clock; None without latency."""
        clocks = [own["seconds"] for own in self.memory.values() if "seconds" in own]
        return sum(clocks) if clocks else None

    def _at(self, place: int, turn: int, rng: np.random.Generator) -> Moment:
        return Moment(turn, rng, self.memory.setdefault(str(place), {}))
