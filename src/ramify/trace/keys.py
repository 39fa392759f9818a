"""Canonicalisers: from an agent's observations to keys of states. Equal keys are merged into one state.

A canonicaliser takes the observations of one attempt in time order and gives one key for each, so that a key may depend on what
came before. The choice is part of a method: too fine a key and no state repeats, too coarse and states with different futures
are averaged. Prefer canonicalisation to similarity: being similar is not transitive, so merging by it depends on order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ramify.base.errors import UserError, nearest

Canonicaliser = Callable[[Sequence[Any]], list[str]]

#: What :func:`scrub` can remove, in the order of application.
SCRUBS: dict[str, tuple[re.Pattern[str], str]] = {
    "timestamps": (
        re.compile(
            r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"
            r"|\b\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?(?:\s?[AaPp][Mm]\b)?"
        ),
        "<time>",
    ),
    "numbers": (re.compile(r"(?<![\w.])[-+]?\d+(?:[.,]\d+)*(?:[eE][-+]?\d+)?(?!\w)"), "<n>"),
    "whitespace": (re.compile(r"\s+"), " "),
}


def canonical(value: Any) -> str:
    """One text per value: canonical JSON, so that None, "None", 1 and "1" differ and dictionaries ignore order.

    Arrays count as nested lists, tuples as lists, sets as sorted lists, bytes as hexadecimal. Raises UserError on other types.
    """
    try:
        return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"a state of type {type(value).__name__} has no canonical key: {error}; pass text or JSON") from error


def exact(observations: Sequence[Any]) -> list[str]:
    """Each observation as it is."""
    return [canonical(observation) for observation in observations]


def scrub(*what: str) -> Canonicaliser:
    """A canonicaliser that removes ``timestamps``, ``numbers`` (standing alone:
    "cabinet 3", not "x3") and ``whitespace``, or all three.

    Numbers often distinguish objects: scrub them only where they count steps or time. Raises UserError on an unknown name.
    """
    for name in what:
        if name not in SCRUBS:
            raise UserError(f"cannot scrub '{name}': {nearest(name, SCRUBS)}")
    chosen = [SCRUBS[name] for name in SCRUBS if not what or name in what]

    def apply(observations: Sequence[Any]) -> list[str]:
        return [canonical(_scrubbed(observation, chosen)) for observation in observations]

    return apply


class StatePattern:
    """Extracts the state from each text by a regular expression: the groups of the first match, or the match where it has none.

    A text without a match is its own state, and so is a value that is not text. Raises UserError on an expression that is none.
    """

    def __init__(self, expression: str) -> None:
        try:
            self._search = re.compile(expression).search
        except re.error as error:
            raise UserError(f"--state-pattern {expression!r} is not a regular expression: {error}") from None
        self.expression = expression
        self._texts = self._found = 0
        self._missed = ""

    def states(self, observations: Sequence[Any]) -> list[Any]:
        """The state of each observation."""
        return [self._state(observation) if isinstance(observation, str) else observation for observation in observations]

    def _state(self, text: str) -> Any:
        match = self._search(text)
        self._texts += 1
        if match is None:
            self._missed = self._missed or text
            return text
        self._found += 1
        return match[match.re.groups] if match.re.groups < 2 else list(match.groups())

    def check(self) -> list[str]:
        """One sentence where some of the texts so far did not hold it, none where all did. Raises UserError where no text did."""
        if self._texts and not self._found:
            raise UserError(
                f"--state-pattern {self.expression!r} is found in none of {self._texts} observations, such as "
                f"{self._missed[:80]!r}"
            )
        missed = self._texts - self._found
        note = f"--state-pattern is not found in {missed} of {self._texts} observations, such as {self._missed[:80]!r}"
        return [f"{note}: their whole text is their state"] if missed else []


def canonicaliser(pattern: StatePattern | None = None, scrubbed: Sequence[str] = (), history: int = 0) -> Canonicaliser | None:
    """The canonicaliser of a verb's options: a pattern, then :func:`scrub`, then :func:`with_history`; None without options."""
    if pattern is None and not scrubbed and not history:
        return None
    keys = scrub(*scrubbed) if scrubbed else exact
    return with_history(history, keys if pattern is None else lambda observations: keys(pattern.states(observations)))


def with_history(k: int, then: Canonicaliser = exact) -> Canonicaliser:
    """Each key together with the ``k`` before it. Raises UserError when ``k`` is negative."""
    if k < 0:
        raise UserError(f"a history of {k} observations is not possible; it starts at 0")

    def apply(observations: Sequence[Any]) -> list[str]:
        keys = then(observations)
        return keys if k == 0 else [canonical(keys[max(0, i - k) : i + 1]) for i in range(len(keys))]

    return apply


def _scrubbed(value: Any, chosen: Iterable[tuple[re.Pattern[str], str]]) -> Any:
    if isinstance(value, str):
        for pattern, stand_in in chosen:
            value = pattern.sub(stand_in, value)
        return value.strip() if any(stand_in == " " for _, stand_in in chosen) else value
    if isinstance(value, Mapping):
        return {key: _scrubbed(item, chosen) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_scrubbed(item, chosen) for item in value]
    return value


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else canonical(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item) for item in value), key=canonical)
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain(value.tolist())
    raise TypeError("it is not a JSON value, array, set or bytes")
