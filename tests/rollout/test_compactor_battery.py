"""The compactors' battery: every built-in compactor passes; each broken promise is found."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ramify.base import registry
from ramify.rollout.compact import DropOldest, Entry, Window
from ramify.testing import check_compactor
from ramify.trace.message import Message


@pytest.mark.parametrize("name", registry.names("compactor"))
def test_built_in_compactors_conform(name: str) -> None:
    assert check_compactor(registry.get("compactor", name)()) == []


class Broken(DropOldest):
    async def compact(self, messages: Sequence[Entry], window: Window) -> Any:
        return self.spoilt(list(await super().compact(messages, window)), messages)

    def spoilt(self, shown: list[Any], messages: Sequence[Entry]) -> Any:
        raise NotImplementedError


class KeepsAll(Broken):
    async def compact(self, messages: Sequence[Entry], window: Window) -> Any:
        return list(messages)


class DropsRules(Broken):
    def spoilt(self, shown: list[Any], messages: Sequence[Entry]) -> Any:
        return [item for item in shown if item.role != "system"]


class DropsNewest(Broken):
    def spoilt(self, shown: list[Any], messages: Sequence[Entry]) -> Any:
        return shown[:-1]


class Reverses(Broken):
    def spoilt(self, shown: list[Any], messages: Sequence[Entry]) -> Any:
        return shown[::-1]


class Repeats(Broken):
    def spoilt(self, shown: list[Any], messages: Sequence[Entry]) -> Any:
        return [*shown[:-1], *shown[-2:]]


class Rewrites(Broken):
    def spoilt(self, shown: list[Any], messages: Sequence[Entry]) -> Any:
        return [replace(item, text=item.text[:5]) for item in shown]


class Impersonates(Broken):
    def spoilt(self, shown: list[Any], messages: Sequence[Entry]) -> Any:
        return [*shown[:-1], Message("assistant", "x"), *shown[-1:]]


class StartsWithAReply(Broken):
    def spoilt(self, shown: list[Any], messages: Sequence[Entry]) -> Any:
        reply = next((m for m in messages if m.role == "assistant"), None)
        return [item for item in shown if item.role == "system"] + ([reply] if reply else []) + shown[-1:]


class Rolls(Broken):
    counter = itertools.count()

    def spoilt(self, shown: list[Any], messages: Sequence[Entry]) -> Any:
        return [*shown[:-1], Message("user", str(next(self.counter))), *shown[-1:]]


class EatsTheHistory(Broken):
    def spoilt(self, shown: list[Any], messages: Sequence[Entry]) -> Any:
        messages.clear()  # type: ignore[attr-defined]
        return shown


class NeedsAUser(Broken):
    def spoilt(self, shown: list[Any], messages: Sequence[Entry]) -> Any:
        next(item for item in messages if item.role == "user")
        return shown


class ReturnsText(Broken):
    def spoilt(self, shown: list[Any], messages: Sequence[Entry]) -> Any:
        return ["a summary"]


class NoIdentity:
    name = "x"

    async def compact(self, messages: Sequence[Entry], window: Window) -> Any:
        return messages


class NotAsync(DropOldest):
    def compact(self, messages: Sequence[Entry], window: Window) -> Any:
        return messages


@pytest.mark.parametrize(
    ("broken", "check", "message"),
    [
        (KeepsAll, "promises", "at most"),
        (DropsRules, "promises", "does not begin with the system messages"),
        (DropsNewest, "promises", "does not end with the newest message"),
        (Reverses, "promises", "changes the order"),
        (Repeats, "promises", "shows one twice"),
        (Rewrites, "promises", "changed one"),
        (Impersonates, "promises", "of a role other than"),
        (StartsWithAReply, "promises", "begins with an assistant message"),
        (Rolls, "repeats", "something else at the second look"),
        (EatsTheHistory, "leaves_the_history", "changes the list"),
        (NeedsAUser, "small", "raised"),
        (ReturnsText, "promises", "neither an entry"),
        (NoIdentity, "protocol", "lacks a name"),
        (NotAsync, "protocol", "not a coroutine function"),
    ],
)
def test_each_broken_promise_is_found(broken: Any, check: str, message: str) -> None:
    found = [p for p in check_compactor(broken()) if p.check == check]
    assert any(message in p.message for p in found), found


def test_one_that_never_answers_is_found() -> None:
    class Hangs(DropOldest):
        async def compact(self, messages: Sequence[Entry], window: Window) -> Any:
            import asyncio

            await asyncio.sleep(3600)

    assert any("TimeoutError" in problem.message for problem in check_compactor(Hangs(), timeout=0.01))
