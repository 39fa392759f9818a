from __future__ import annotations

import io
import json
import re
import sys
import threading
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from ramify.base.errors import InterruptedRunError
from ramify.render import terminal
from ramify.render.terminal import emit, progress, say, short
from ramify.render.text import sanitize, table


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("plain\ttext\nüñ 日本 😀", "plain\ttext\nüñ 日本 😀"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x9b31mred", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://evil/\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bP+q544e\x1b\\x", "x"),
        ("\x1b]52;c;unterminated", "52;c;unterminated"),
        ("a\x08b\x00c\x7f", "abc"),
        ("abc\u202edcba\u2069\u200f", "abcdcba"),
        ("one\rtwo\r\nthree\u2028four\x85five", "one\ntwo\nthree\nfour\nfive"),
        ("bad\ud800surrogate", "badsurrogate"),
        ("[bold]not markup[/bold]", "[bold]not markup[/bold]"),
    ],
)
def test_sanitize(raw: str, clean: str) -> None:
    assert sanitize(raw) == clean


@given(st.text(alphabet=st.characters(), max_size=60))
def test_nothing_that_acts_on_a_terminal_is_left(text: str) -> None:
    clean = sanitize(text)
    assert all(c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs") for c in clean)
    assert sanitize(clean) == clean
    assert "\n" not in sanitize(text, flatten=True)


def test_emit_json_is_one_ascii_line(capsys: pytest.CaptureFixture[str]) -> None:
    result = {"text": "\x1b[2J\u202e\x7f\nx", "n": 1}
    emit(result, True, "not shown")
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert all(" " <= c < "\x7f" for c in out.rstrip("\n"))
    assert json.loads(out) == result


def test_emit_text_and_say_are_clean(capsys: pytest.CaptureFixture[str]) -> None:
    emit({}, False, "\x1b[2Jhello")
    say("\x1b[31moops")
    assert capsys.readouterr() == ("hello\n", "oops\n")


def test_a_narrow_locale_does_not_end_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    emit({}, False, "naïve ± 日本")
    sys.stdout.flush()
    assert raw.getvalue() == b"na?ve ? ??\n"


def test_table_flattens_and_aligns() -> None:
    text = table(["name", "value"], [["a\nb\x1b[31m", 1.23456], ["[red]c[/red]", None]], title="A\nB")
    lines = text.splitlines()
    assert lines[0] == "A B"
    assert any(line.startswith("a b") and line.endswith("1.235") for line in lines)
    assert any("[red]c[/red]" in line and line.endswith("-") for line in lines)
    assert table(["n"], [], "a title wider than its table").splitlines()[0] == "a title wider than its table"
    with pytest.raises(ValueError, match="needs 2 cells"):
        table(["a", "b"], [["x"]])


def test_short_work_says_nothing_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("work", 10, "tokens", clock=lambda: 0.0) as bar:
        bar.at(5, "half")
    assert capsys.readouterr() == ("", "")


def test_the_time_left_of_a_bound_is_a_bound(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    with progress("why", 144, "continuations at most", False, clock=lambda: now[0]) as bar:
        now[0] = 72.0
        bar.at(72, "success 24%")
    words = "why: 50% after 1.2 min, 72/144 continuations at most, 1/s, 1:12 left at most, success 24%\n"
    assert capsys.readouterr().err.startswith(words)


@pytest.mark.parametrize("as_json", [False, True])
def test_long_work_says_a_line_now_and_then_without_a_terminal(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    now = [0.0]
    with progress("work\x1b[2J", 1, "tokens", as_json, clock=lambda: now[0]) as bar:
        bar.begin(200, 50, "play")
        for then, done, note in ((29.0, 60, "a"), (30.0, 100, "update 3"), (59.0, 120, "b"), (90.0, 150, "")):
            now[0] = then
            bar.at(done, note)
        now[0] = 93.0
        bar.at(200, "all", "train")
    lines = (
        "work play: 50% after 0.5 min, 100/200 tokens, 1.7/s, 1:00 left, update 3\n"
        "work play: 75% after 1.5 min, 150/200 tokens, 1.1/s, 0:45 left\n"
        "work train: 100% after 1.6 min, 200/200 tokens, 1.6/s, 0:00 left, all\n"
    )
    assert capsys.readouterr() == ("", "" if as_json else lines)


class Screen(io.StringIO):
    """Says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_the_live_line_is_never_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    screen, now = Screen(), [0.0]
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    with progress("日本-a long name of a run\x1b]0;x\x07", 0, "tokens", clock=lambda: now[0]) as bar:
        now[0] = 65.0
        bar.begin(2000, 500, "sample 3/50")
        now[0] = 75.0
        bar.at(1500, "success 41%, 日本日本日本日本日本日本")
    shown = [line for line in sanitize(screen.getvalue()).split("\n") if line.strip()]
    assert all(cell_len(line) < columns for line in shown)
    if columns >= 80:
        assert re.search(r"sample 3/50 .*1.5k/2.0k tokens, 100/s, 0:05 left, success 41%", shown[-1])


def test_what_is_wider_than_a_terminal_is_broken_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "30")
    emit({}, False, "  interrupted; finished work is kept: continue with `ramify resume r` or stay\n" + "x" * 40 + " short")
    assert screen.getvalue().splitlines() == [
        "  interrupted; finished work",
        "  is kept: continue with",
        "  `ramify resume r` or stay",
        "x" * 40,
        "short",
    ]


def test_a_terminal_without_control_sequences_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, now = Screen(), [0.0]
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "dumb")
    with progress("work", 4, "runs", clock=lambda: now[0]) as bar:
        now[0] = 40.0
        bar.at(2)
    assert screen.getvalue() == "work: 50% after 0.7 min, 2/4 runs, 3/min, 0:40 left\n" * 2


def test_ctrl_c_says_what_is_kept() -> None:
    with (
        pytest.raises(InterruptedRunError, match=r"^interrupted; all of it is kept$"),
        progress("work", kept="all of it is kept"),
    ):
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt), progress("work"):
        raise KeyboardInterrupt


@pytest.mark.parametrize(("n", "text"), [(0, "0"), (0.25, "0.2"), (950, "950"), (1234, "1.2k"), (34567, "35k"), (5.6e6, "5.6M")])
def test_short(n: float, text: str) -> None:
    assert short(n) == text


def test_no_line_of_a_slow_verb_begins_while_its_result_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that began between the two would stand in front of the result."""
    begun = threading.Event()

    @contextmanager
    def line(*_: object) -> Iterator[None]:
        begun.set()
        yield

    class Slow(io.StringIO):
        def write(self, text: str) -> int:
            assert not begun.wait(0.3)
            return super().write(text)

    monkeypatch.setattr(terminal, "FIRST", 0.05)
    monkeypatch.setattr(terminal, "_bar_or_lines", line)
    with terminal.working("verb"):
        monkeypatch.setattr(sys, "stdout", Slow())
        emit({}, False, "the result")
        assert begun.wait(10), "what still works says so after it"
