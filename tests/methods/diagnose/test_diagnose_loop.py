"""The loop and its recoveries, driven by scripts, and what it makes of answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.methods.diagnose.algorithm import LocalizeConfig
from ramify.methods.diagnose.case import CaseFile, Diagnosis, checked
from ramify.methods.diagnose.loop import DROPPED, FINAL, LOOK_FIRST, SHORTER, TurnReply, played, written_answer, written_call
from ramify.methods.diagnose.policy import RulePolicy
from ramify.methods.diagnose.replies import AskedCall, Located, Unclear, read_reply
from ramify.methods.diagnose.snapshot import Snapshot
from ramify.methods.diagnose.tools import RepoTools
from ramify.trace.message import Message

SNAPSHOT = Snapshot({"a.py": "".join(f"line_{n} = {n}\n" for n in range(1, 21)), "b.py": "import a\n"}, "demo")
ANSWER = written_answer([Diagnosis("a.py", 3, 5, "here", "cause", "idea", "nothing", "a test")])
VIEW = written_call("view_file", path="a.py")


def said(*texts: str) -> tuple[Callable[[Sequence[Message]], TurnReply], list[list[Message]]]:
    """A speaker that says these, the last one for ever, and what it was shown."""
    shown: list[list[Message]] = []

    def speaker(messages: Sequence[Message]) -> TurnReply:
        shown.append(list(messages))
        text = texts[min(len(shown), len(texts)) - 1]
        return TurnReply(Message("assistant", text), "length" if text.startswith("<think>cut") else "eos")

    return speaker, shown


def go(*texts: str, **settings: object) -> tuple[CaseFile, list[list[Message]]]:
    speaker, shown = said(*texts)
    return played(RepoTools(SNAPSHOT), "It is wrong.", speaker, LocalizeConfig(**settings))[0], shown


def test_a_call_then_an_answer() -> None:
    case, shown = go(VIEW, ANSWER)
    assert case.locations == [("a.py", 3, 5)]
    one = case.findings[0]
    assert (one.root_cause, one.testing_impact) == ("cause", "a test")
    assert one.evidence[0].tool == "view_file"
    assert one.evidence[0].lines == (1, 20)
    assert (case.meta.turns, case.meta.calls, case.meta.zero_tool) == (2, 1, False)
    assert "a.py (20)" in shown[0][1].text
    assert "line_1" not in shown[0][1].text  # no file contents up front
    assert codec.from_json(CaseFile, json.loads(json.dumps(case.to_json())), "here") == case


def test_an_answer_before_any_call_is_refused_and_flagged() -> None:
    case, shown = go(ANSWER, VIEW, ANSWER)
    assert shown[1][-1].text == LOOK_FIRST
    assert case.locations
    assert case.meta.zero_tool
    assert go(ANSWER, zero_tool=True)[0].meta.turns == 1


def test_it_always_ends() -> None:
    for text in (VIEW, "nothing", "<think>cut", ANSWER):
        case, shown = go(text, turns=6)
        assert len(shown) == 7  # six turns and the final prompt
        assert shown[-1][-1].text == FINAL
        assert case.meta.final
        assert len(go(text, turns=6, final_prompt=False)[1]) == 6
    assert go(*[VIEW] * 20, ANSWER)[0].locations == [("a.py", 3, 5)]


def test_the_same_call_again_is_warned_of_and_another_is_not() -> None:
    _, shown = go(VIEW, VIEW, written_call("view_file", path="a.py", view_range=[1, 2]), ANSWER)
    assert "Warning" not in shown[1][-1].text
    assert shown[2][-1].text.startswith("Warning: you have made this call of view_file 2 times")
    assert "Warning" not in shown[3][-1].text
    assert "Warning" not in go(VIEW, VIEW, ANSWER, warn_loops=False)[1][2][-1].text


def test_what_was_cut_off_is_asked_for_again_with_less_thinking() -> None:
    case, shown = go("<think>cut", VIEW, ANSWER)
    assert SHORTER in shown[1][-1].text
    assert case.meta.cut_off == 1
    assert SHORTER not in go("<think>cut", VIEW, ANSWER, shorten=False)[1][1][-1].text


def test_a_long_conversation_keeps_issue_tree_and_what_is_new() -> None:
    views = [written_call("view_file", path="a.py", view_range=[n, 20]) for n in range(1, 15)]
    _, shown = go(*views, ANSWER, context=6000)
    last = shown[-1]
    assert last[:2] == shown[0][:2]
    assert DROPPED in [one.text for one in last]
    assert "line_20" in last[-1].text
    assert [one.role for one in last] == ["system", "user", *["assistant", "user"] * 14]
    assert sum(len(one.text) for one in last) <= 6000


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ('I will call {"name": "view_file", "arguments": {"path": "a.py"}}', ("view_file", {"path": "a.py"})),
        ('```json\n{"tool": "repo_tree", "args": {}}\n```', ("repo_tree", {})),
        ('view_file("a.py", [3, 9])', ("view_file", {"path": "a.py", "view_range": [3, 9]})),
        ("codebase_search(query='a=b')", ("codebase_search", {"query": "a=b"})),
        ("repo_tree()", ("repo_tree", {})),
    ],
)
def test_a_call_without_its_wrapper_is_run_where_it_can_mean_one_thing(text: str, call: tuple[str, dict[str, object]]) -> None:
    done = read_reply(Message("assistant", text))
    assert isinstance(done, AskedCall)
    assert (done.name, done.arguments, done.recovered) == (*call, True)
    assert isinstance(read_reply(Message("assistant", text), implicit=False), Unclear)


def test_an_ambiguous_call_is_not_run() -> None:
    done = read_reply(Message("assistant", 'view_file("a.py") or view_file("b.py")'))
    assert isinstance(done, Unclear)
    assert "2 different calls" in done.why
    case, _ = go('view_file("a.py") or view_file("b.py")', VIEW, ANSWER)
    assert (case.meta.calls, case.meta.recovered) == (1, 0)
    assert go('view_file("a.py")', ANSWER)[0].meta.recovered == 1


@pytest.mark.parametrize("line", ["a.py:3-5", "- `a.py:3-5`", "  a.py: 3 - 5", "./a.py:3-5"])
def test_locations_as_models_write_them(line: str) -> None:
    done = read_reply(Message("assistant", f"<think>a.py:9-9</think><locations>\n{line}\n</locations>"))
    assert isinstance(done, Located)
    assert [one.span for one in done.found] == [("a.py", 3, 5)]


@given(st.text(max_size=200))
def test_any_reply_is_read(text: str) -> None:
    for reply in (text, f"<tool_call>{text}", f"<findings>{text}</findings><locations>\na.py:1-2\n"):
        assert isinstance(read_reply(Message("assistant", reply)), Located | AskedCall | Unclear)


def test_locations_are_checked_against_the_repository() -> None:
    found = [
        Diagnosis("a.py", 9, 4),
        Diagnosis("a.py", 18, 40),
        Diagnosis("c.py", 1, 1),
        Diagnosis("a.py", 5, 10, root_cause="x"),
        Diagnosis("a.py", 30, 40),
    ]
    kept, notes = checked(found, SNAPSHOT)
    assert [one.span for one in kept] == [("a.py", 4, 10), ("a.py", 18, 20)]
    assert kept[0].root_cause == "x"
    assert [note.partition(": ")[2].split()[0] for note in notes] == ["swapped", "clipped", "there", "overlaps", "a.py"]


def test_an_empty_issue_is_refused() -> None:
    with pytest.raises(UserError, match="issue is empty"):
        played(RepoTools(SNAPSHOT), " \n", said("x")[0], LocalizeConfig())


def test_the_rule_policy_finds_what_a_traceback_ends_in() -> None:
    texts = {
        "shop/sums.py": "def total(items):\n    result = 0\n    for item in items:\n        result += item\n    return result / "
        "len(items)\n",
        "shop/text.py": "def title(words):\n    return words[0].upper()\n",
        "main.py": "from shop.sums import total\n\n\ndef main():\n    print(total([]))\n",
    }
    issue = (
        'It crashes.\n  File "main.py", line 5, in main\n  File "shop/sums.py", line 5, in total\nZeroDivisionError: division '
        "by zero\n"
    )
    case, _ = played(RepoTools(Snapshot(texts, "shop")), issue, RulePolicy(), LocalizeConfig())
    assert case.locations == [("shop/sums.py", 1, 5)]
    assert "no" in case.findings[0].root_cause or "guess" in case.findings[0].root_cause
