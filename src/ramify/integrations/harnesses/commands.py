"""Somebody's agent as it is: a command that runs in a git worktree of its own, with the model's address in the environment
variables that such programs read, and a check that decides how the attempt ended.

It is the environment ``command:SETTINGS``, so that a run names it: what plays, forks and asks why needs nothing more, and a run
that was made elsewhere starts its command on the user's own word alone
(:func:`ramify.rollout.components.check_trust`).
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ramify.base.errors import InfrastructureError, UserError
from ramify.base.ids import canonical_json, json_hash
from ramify.base.registry import register
from ramify.base.secrets import hidden, redact
from ramify.env.protocol import CHAT, LABELS, Env, Observation
from ramify.env.tools import EVERY, ask_person
from ramify.integrations.harnesses.agents import AgentEnvironment, AgentEpisode
from ramify.integrations.harnesses.worktrees import PLACE, CommandEnd, Worktree, sweep
from ramify.trace.message import plain

MOST_CALLS = 1000
"""Requests of one attempt, by default."""
SECONDS, CHECK_SECONDS = 3600.0, 600.0
"""Limits of an attempt and of its check, by default."""
MOST_SHOWN = 4000
"""Characters of what the command and its check printed last that are kept."""
PLACEHOLDER = "sk-ramify-placeholder"
"""What the command gets as a key: the real one stays with ramify."""
_NOT_STARTED = (126, 127)
"""A shell's exit codes for what it cannot run."""
_ENDED_FROM_OUTSIDE = (-9, -15, -2, 137, 143, 130)
"""SIGKILL, SIGTERM and SIGINT, of the shell itself or of what it ran."""
_VARIES = re.compile(
    r"(?P<uuid>\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b)"
    r"|\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z| ?[+-]\d\d:?\d\d)?)?"
    r"|\b\d\d?:\d\d:\d\d(?:[.,]\d+)?\b"
    r"|\b(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? )?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* +"
    r"\d{1,2}\b(?:,? \d{4})?"
    r"|\b\d+(?:\.\d+)? ?(?:ms|µs|us|ns|s|sec|secs|seconds?|minutes?)\b"
    r"|\b0x[0-9a-f]{6,}\b|\bramify-[a-z0-9_]{8}\b|\b1[5-9]\d{8}(?:\.\d+|\d{3})?\b|\bpid[ =:]+\d+"
    r"|\b(?:chunk|process|session|request|shell)[ _]?id[ =:]+[\w-]+"
    r"|(?<=/tmp/)[\w.-]+|\b[0-9a-f]{32,}\b",
    re.IGNORECASE,
)
"""What differs between two runs of a program that does the same: ids, dates, clocks, durations, addresses, names of temporary
files. Two requests that differ in these alone are one request."""


@dataclass(frozen=True, slots=True)
class CommandSettings:
    """What is recorded: the command, where it works, and what decides."""

    command: tuple[str, ...]
    repo: str
    """Folder of the git repository."""
    base: str
    """The commit that every attempt begins with."""
    check: str = ""
    """A line of the shell: exit code 0 is success. Without one the command's own exit code decides."""
    seconds: float = SECONDS
    check_seconds: float = CHECK_SECONDS
    calls: int = MOST_CALLS
    effects: Mapping[str, str] = field(default_factory=dict)

    def to_text(self) -> str:
        """As :func:`command` reads it."""
        return canonical_json(plain(asdict(self)))

    @classmethod
    def of(cls, written: str) -> CommandSettings:
        """Inverse of :meth:`to_text`. Raises UserError."""
        try:
            given = json.loads(written)
            read = cls(**{**given, "command": tuple(given["command"])})
            texts = (*read.command, read.repo, read.base, read.check, *read.effects.values())
            if not read.command or not all(isinstance(text, str) for text in texts):
                raise TypeError("a text was wanted")
            if not (min(read.seconds, read.check_seconds) > 0 and read.calls >= 1):
                raise TypeError("limits must be positive")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(f"the environment 'command' takes what `ramify record` stores, as JSON: {error}") from None
        return read


def _same(value: Any) -> Any:
    """A JSON value without what differs between two runs of a program that does the same."""
    if isinstance(value, str):
        return _VARIES.sub("*", value)
    if isinstance(value, dict):
        return {key: _same(inner) for key, inner in value.items()}
    return [_same(inner) for inner in value] if isinstance(value, list) else value


@register("env", "command")
def command(settings: str) -> CommandEnvironment:
    """A command in a git worktree, as `ramify record` stores it. Raises UserError."""
    return CommandEnvironment(CommandSettings.of(settings))


class CommandEnvironment(AgentEnvironment):
    """See :class:`CommandSettings`."""

    def __init__(self, settings: CommandSettings) -> None:
        words = settings.command
        task = {"id": Path(words[0]).name, "prompt": shlex.join(words)}
        super().__init__(
            words,
            {EVERY: "sandboxed", **settings.effects},
            None,
            [task],
            ask_person,
            max_turns=settings.calls,
            at_once=8,
            patience=settings.seconds + settings.check_seconds,
            name="command",
            repo=settings.repo,
            base=settings.base,
            place=PLACE,
        )
        self.settings = settings
        sweep()

    def make(self) -> Env:
        """A fresh episode."""
        return CommandEpisode(self)

    @staticmethod
    def same(value: Any) -> Any:
        """What a request says, without what differs between two runs of a program that does the same."""
        return _same(value)

    def check_at_base(self) -> CommandEnd | None:
        """How the check ends on files that nobody has changed; None without one."""
        if not self.settings.check:
            return None
        tree = Worktree(Path(self.settings.repo), self.base, self.place)
        try:
            return tree.ended(self.settings.check, _without_keys(), self.settings.check_seconds)
        finally:
            tree.close()


@dataclass(frozen=True, slots=True)
class _Worked:
    """The command has ended, and what the check says of its files."""

    command: CommandEnd
    check: CommandEnd | None


class CommandEpisode(AgentEpisode):
    """One attempt of the command."""

    varies = True
    """The first request of two attempts need not be the same: which of several conversations asks first is chance."""

    def __init__(self, environment: CommandEnvironment) -> None:
        super().__init__(environment)
        self._settings = environment.settings

    def key(self) -> str | None:  # type: ignore[override]
        """What was asked so far, without what differs between two runs of a program that does the same."""
        return None if self._now is None else self._now.key

    def _request_key(self, messages: list[str], asked: Mapping[str, Any]) -> str:
        kept = {name: value for name, value in asked.items() if name not in LABELS}
        return json_hash([[_same(json.loads(message)) for message in messages], _same(plain(kept))])

    def asks(self, body: Mapping[str, Any]) -> Any:
        """As :class:`AgentEpisode`; values of secret environment variables, and of fields named like secrets, are neither
        shown to the model nor stored."""
        shown = json.loads(hidden(json.dumps(body, ensure_ascii=False)))
        return super().asks(shown | redact({name: value for name, value in shown.items() if name not in ("messages", "tools")}))

    def _acted(self, prompt: str, url: str) -> _Worked:
        tree, settings = self._tree, self._settings
        assert tree is not None
        words = [word.replace("{url}", url) for word in settings.command]
        done = tree.ended(words, variables(url), settings.seconds)
        check = tree.ended(settings.check, _without_keys(), settings.check_seconds) if settings.check else None
        return _Worked(done, check)

    def _graded(self, answer: _Worked) -> Observation:
        self._over = True
        done, check = answer.command, answer.check
        if not self._conversations:
            why = f"the command ended with exit code {done.code} before it asked a model: {done.last}"
            return self._failed(why, "env")
        outcome = done.code == 0 and not done.late if check is None else passed(check, self._settings)
        last = str(self._tree.named(hidden(done.last), False)) if self._tree and done.code else ""
        data = {
            "command": _told(done) | ({"last": last} if last else {}),
            **({} if check is None else {"check": _told(check)}),
            **self._files(),
        }
        data[CHAT] = json.dumps({"request": f"ended {outcome}"})
        said = [hidden(done.out.strip())[-MOST_SHOWN:], f"[the command: {_how(done)}]"]
        if check is not None:
            said += [hidden(f"{check.out}\n{check.errors}".strip())[-MOST_SHOWN:], f"[the check: {_how(check)}]"]
        text = str(self._tree.named("\n".join(filter(None, said)), False)) if self._tree else ""
        return Observation(text, float(outcome), terminated=True, outcome=outcome, role="tool", data=data)


def variables(url: str) -> dict[str, str | None]:
    """What the command is given besides this process's environment, for a server at ``url``, which ends in ``/v1``: the address
    in each variable that a client is known to read, a placeholder where it wants a key, and no key of a model."""
    root = url.removesuffix("/v1")
    given: dict[str, str | None] = dict.fromkeys(_KEYS)
    given |= dict.fromkeys(("OPENAI_BASE_URL", "OPENAI_API_BASE", "AIDER_OPENAI_API_BASE", "LLM_BASE_URL"), url)
    given |= dict.fromkeys(("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE"), root)
    given |= dict.fromkeys(_HELD, PLACEHOLDER)
    around = ",".join(filter(None, (os.environ.get("NO_PROXY", os.environ.get("no_proxy", "")), "127.0.0.1")))
    given |= {"NO_PROXY": around, "no_proxy": around}
    if "OPENCODE_CONFIG_CONTENT" not in os.environ:  # it reads no address from the environment
        served = {"options": {"baseURL": url, "apiKey": PLACEHOLDER}}
        given["OPENCODE_CONFIG_CONTENT"] = json.dumps({"provider": {"openai": served, "anthropic": served}})
    return given


_KEYS = (
    "RAMIFY_API_KEY",
    "RAMIFY_TOKEN",
    "AIDER_OPENAI_API_KEY",
    "AIDER_ANTHROPIC_API_KEY",
    "OPENROUTER_API_KEY",
)
"""Keys that are taken away from the command."""
_HELD = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "LLM_API_KEY", "CODEX_API_KEY")
"""Keys that programs want: a placeholder."""


def _without_keys() -> dict[str, str | None]:
    """What the check is given: no key either."""
    return dict.fromkeys((*_KEYS, *_HELD))


def passed(check: CommandEnd, settings: CommandSettings) -> bool:
    """Whether the check says that the attempt succeeded. Raises InfrastructureError("scorer") where it says nothing: it could
    not be run, was ended from outside, or took too long."""
    line = f"the check `{settings.check}`"
    if check.late:
        raise InfrastructureError("scorer", f"{line} took longer than {settings.check_seconds:g} s")
    if check.code in _ENDED_FROM_OUTSIDE:
        raise InfrastructureError("scorer", f"{line} was ended from outside: {_how(check)}")
    if not_started(check):
        raise InfrastructureError("scorer", f"{line} cannot be run: {check.last}")
    return check.code == 0


def not_started(check: CommandEnd) -> bool:
    """Whether the shell could not run it."""
    return check.code in _NOT_STARTED


def _how(ended: CommandEnd) -> str:
    if ended.late:
        return "ended because its time was over"
    return f"signal {-ended.code}" if ended.code < 0 else f"exit code {ended.code}"


def _told(ended: CommandEnd) -> dict[str, Any]:
    return {"code": ended.code, **({"late": True} if ended.late else {})}
