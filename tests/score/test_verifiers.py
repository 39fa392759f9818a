"""Verifiers of whole replies: built-in ones, a script in the sandbox, a function of one's own."""

from __future__ import annotations

import asyncio
import inspect
import selectors
import threading
from pathlib import Path
from typing import Any

import pytest

from ramify.base.errors import NeedsError, UserError
from ramify.model.protocol import Sampling
from ramify.rollout.token_traces import TokenTrace
from ramify.score.verifiers import CommandVerifier, find_verifier, last_boxed, limited


def verdict(spec: Any, text: str, **data: Any) -> bool | None:
    verifier = find_verifier(spec) if isinstance(spec, str) else spec
    found = verifier(text, TokenTrace("a", "a", (1,), (1,), Sampling(), data=data))

    async def wait() -> bool | None:
        return await found if inspect.isawaitable(found) else found

    return asyncio.run(wait())


def own() -> Any:
    return lambda text, trace: text == "fine"


RELEASED = threading.Event()


def hung() -> Any:
    def wait(text: str, trace: TokenTrace) -> bool:
        return RELEASED.wait(600)

    return wait


class Skipping(selectors.DefaultSelector):
    """Moves the time on instead of waiting."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.now += timeout or 0.0
        return super().select(0)


def skipping() -> asyncio.AbstractEventLoop:
    """An event loop whose clock stands still while something runs: what takes long here takes no time of a test."""
    selector = Skipping()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    return loop


@pytest.mark.parametrize(
    ("spec", "text", "answer", "right"),
    [
        ("exact", " The  Cat\n", "the cat", True),
        ("exact", "the dog", "the cat", False),
        ("number", "so 3 and 4 make 1,007.0", "1007", True),
        ("number", "no number", 7, False),
        ("boxed", r"first \boxed{2}, then \boxed{\frac{1}{2}}", r"\frac{1}{2}", True),
        ("boxed", r"\boxed{ 0.50 }", "1/2", True),
        ("boxed", r"\boxed{12} and so on 7", "7", False),
        ("boxed", r"\boxed{x=2}", "2", False),
        ("boxed", "7", "7", False),
        ("boxed", r"\boxed{7} then \boxed{8", "7", True),
    ],
)
def test_built_in(spec: str, text: str, answer: Any, right: bool) -> None:
    assert verdict(spec, text, answer=answer) is right


def test_boxes() -> None:
    assert last_boxed(r"\boxed{a{b}c}") == "a{b}c"
    assert last_boxed(r"\boxed{\boxed{3}}") == "3"
    assert last_boxed(r"\boxed{") is None


def test_ones_own_function_and_its_time() -> None:
    assert verdict(f"factory:{__name__}:own", "fine")
    RELEASED.clear()
    try:
        assert verdict(find_verifier(f"factory:{__name__}:hung", seconds=0.05), "x") is None
    finally:
        RELEASED.set()  # only now: what hangs was not waited for


class Own:
    async def __call__(self, text: str, trace: TokenTrace) -> bool:
        return text == "fine"


@pytest.mark.parametrize("verifier", [Own(), lambda text, trace: Own()(text, trace)])
def test_what_a_verifier_returns_may_be_awaitable(verifier: Any) -> None:
    assert [verdict(limited(verifier, 60), text) for text in ("fine", "bad")] == [True, False]


def test_waiting_for_a_turn_is_no_time_of_the_verifier() -> None:
    async def slow(text: str, trace: TokenTrace) -> bool:
        await asyncio.sleep(float(text))
        return True

    judge: Any = limited(slow, seconds=12, at_once=1)

    async def many(*seconds: int) -> list[Any]:
        return await asyncio.gather(*(judge(f"{s}", TokenTrace("a", "a", (1,), (1,), Sampling())) for s in seconds))

    with asyncio.Runner(loop_factory=skipping) as runner:
        assert runner.run(many(10, 10, 14, 10, 10)) == [True, True, None, True, True]


def test_what_a_verifier_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        verdict(limited(lambda text, trace: 1 / 0, 60), "x")


def test_what_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "check.sh"
    script.write_text("exit 0\n")
    for spec, sentence in {
        "boxd": "did you mean 'boxed'",
        "cmd:": "is none of",
        "cmd:/nowhere": "cannot read the verifier /nowhere",
        f"cmd:{script}": "must begin with the line that names its program",
        "factory:nowhere:x": "names nothing that can be imported",
        "factory:builtins:dict": "returned a dict",
    }.items():
        with pytest.raises(UserError, match=sentence):
            find_verifier(spec)
    with pytest.raises(UserError, match="trace 'a' has no 'answer'"):
        verdict("exact", "x")
    with pytest.raises(UserError, match="is not a number"):
        verdict("number", "3", answer="three")


def test_a_script_in_the_sandbox(tmp_path: Path) -> None:
    script = tmp_path / "check.sh"
    script.write_text(
        '#!/bin/sh\nread said\ncase "$said" in\n  good) grep -q 42 data.json ;;\n  slow) sleep 600 ;;\n  odd) exit 7 ;;\n  *) exit 1 ;;\nesac\n'
    )
    try:
        check, hurried = CommandVerifier(script, seconds=60), CommandVerifier(script, seconds=0.5)
    except NeedsError as error:
        pytest.skip(f"nothing isolates here: {error}")
    assert verdict(check, "good\n", answer=42) is True
    assert verdict(check, "bad\n", answer=42) is False
    assert verdict(hurried, "slow\n", answer=42) is None
    assert verdict(check, "odd\n", answer=42) is None
