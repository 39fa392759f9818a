"""The pure rules of the method: structures, anti-unification, break-even, demotion, what a tool may hold."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base.seeds import generator
from ramify.methods.earned_code_memory.algorithm import (
    HOLE,
    anti_unify,
    break_even,
    closure,
    contradicts,
    failing,
    followed,
    guard,
    guarded,
    outline,
    signature_faults,
    structure,
)
from ramify.methods.earned_code_memory.retrieval import Index

ROWS = st.lists(st.tuples(*[st.sampled_from("abc")] * 4), min_size=1, max_size=5)


def test_a_structure_leaves_values_out() -> None:
    assert structure("Please delete my 3 oldest red notes") == "delete <n> oldest <colour> notes"
    assert structure("delete my 10 oldest blue notes!") == structure("Delete three oldest green notes, thanks")
    assert structure("delete my oldest notes") != structure("delete my 3 oldest notes")
    assert structure("mail 'the plan' to ann@acme.com by 2026-03-01") == "mail <text> <email> by <date>"
    assert structure("open ticket AB-1234 of Eve Long") == "open ticket <id> <name>"
    assert structure("删除 3 个笔记") == "删除 <n> 个笔记"


def test_anti_unification_has_its_closed_forms() -> None:
    assert anti_unify(("a", 1, "x"), ("a", 2, "x")) == ("a", HOLE, "x")
    assert anti_unify(("a", HOLE, "x"), ("b", 3, "x")) == (HOLE, HOLE, "x")
    with pytest.raises(ValueError, match="one length"):
        anti_unify((1,), (1, 2))


@given(ROWS, ROWS)
def test_anti_unification_is_idempotent_commutative_associative(a: list[tuple[str, ...]], b: list[tuple[str, ...]]) -> None:
    one, two = anti_unify(*a), anti_unify(*b)
    assert anti_unify(one, one) == one
    assert anti_unify(one, two) == anti_unify(two, one) == anti_unify(*a, *b)


def test_break_even_is_what_the_paper_paid() -> None:
    assert break_even(7.9e6, 15.2e3) == pytest.approx(519.7, abs=0.05)
    assert break_even(11.8e6, 23.2e3) == pytest.approx(508.6, abs=0.05)
    assert break_even(3.7e6, 4.6e3) == pytest.approx(804.3, abs=0.05)
    assert break_even(1.0, 0.0) is break_even(1.0, -3.0) is None


@pytest.mark.slow
def test_a_tool_within_its_limit_is_seldom_demoted_however_often_one_looks() -> None:
    demoted = 0
    for seed in range(400):
        failures = 0
        for calls, bad in enumerate(generator(seed, "calls").random(200) < 0.2, 1):
            failures += int(bad)
            if failing(failures, calls, 0.2):
                demoted += 1
                break
    assert demoted <= 0.05 * 400
    assert [failing(k, k, 0.2) for k in range(5)] == [False, False, False, True, True]
    assert not failing(0, 10_000, 0.2)
    assert failing(4000, 10_000, 0.2)


def test_a_guard_is_what_all_requests_share() -> None:
    shared = guard(["delete all mail from Ann", "delete all mail from Bob"])
    assert shared == {"delete", "all", "mail", "from"}
    assert guarded(shared, "please delete all my mail from Eve")
    assert not guarded(shared, "delete the oldest mail from Eve")
    assert "ann" in guard(["delete all mail from Ann"]), "one request hard-codes all its values"


def test_followed_wants_the_calls_in_their_order() -> None:
    plan = ("login", "list", "delete", "confirm")
    assert followed(plan, ["login", "list", "list", "delete", "confirm", "delete", "confirm"])
    assert not followed(plan, ["confirm", "delete", "list", "login"])
    assert not followed((), ["login"])


GOOD = '''
def clear(api, *, n):
    """Clear n notes."""
    for one in sorted(api.notes.list()["items"], key=lambda note: note["date"])[:n]:
        api.notes.delete(id=one["id"])


def check_clear(api, result, *, n):
    return len(api.notes.list()["items"]) <= n
'''


def test_what_a_tool_may_hold() -> None:
    assert outline(GOOD, "clear") == (["notes.delete", "notes.list"], [], ["n"])


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("def clear(api, *, n):\n    '''.'''\n    open('x')\n", "calls 'open'"),
        ("import os\ndef clear(api, *, n):\n    '''.'''\n", "imports os"),
        ("def clear(api, *, n):\n    '''.'''\n    return api.__class__\n", "private"),
        ("def clear(api, *, n):\n    '''.'''\n    f = api\n", "not passed on"),
        ("def clear(api, n):\n    '''.'''\n", "by name"),
        ("def clear(api, *, n):\n    return 1\n", "no docstring"),
        ("x = 1\ndef clear(api, *, n):\n    '''.'''\n", "at the top"),
        ("def other(api, *, n):\n    '''.'''\n", "no function 'clear'"),
        ("def clear(api, *, n:\n", "does not parse"),
        ("def clear(api, *, n):\n    '''.'''\n\ndef check_clear(api, result, *, n):\n    return True\n", "checks nothing"),
        (
            "def clear(api, *, n):\n    '''.'''\n\ndef check_clear(api, result, *, n):\n    try:\n        return bool(result)\n"
            "    except Exception:\n        return True\n",
            "hides them",
        ),
        ("def clear(api, *, n):\n    '''.'''\n    eval('1')\n", "calls 'eval'"),
        ("def clear(api, *, n):\n    '''.'''\n    (lambda: 0).__globals__\n", "private"),
    ],
)
def test_what_a_tool_may_not_hold(source: str, why: str) -> None:
    assert any(why in fault for fault in outline(source, "clear")[1]), outline(source, "clear")[1]


def test_dependencies_are_closed() -> None:
    tools = {"b": ["api.x", "c"], "c": ["api.y"]}
    assert closure("a", ["b", "api.x"], {"api.x", "api.y"}, tools) == []
    assert "no API and no active tool" in closure("a", ["gone"], {"api.x"}, tools)[0]
    assert "comes back to itself" in closure("c", ["b"], {"api.x"}, {"b": ["c"]})[0]
    assert "calls itself" in closure("a", ["a"], set(), {})[0]


def test_signatures() -> None:
    good = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    assert signature_faults("clear", good, ["n"]) == []
    assert signature_faults("Clear it", good, ["n"])
    assert signature_faults("clear", {"type": "string"}, [])
    assert signature_faults("clear", {"type": "object", "properties": {"n": {"type": "int"}}}, ["n"])
    assert signature_faults("clear", good, ["m"])


def test_retrieval_finds_by_words_and_forgets() -> None:
    index = Index()
    for name, text in {"a": "delete old notes", "b": "send a mail", "c": "delete notes of Eve", "d": "删除所有旧笔记"}.items():
        index.add(name, text)
    assert [name for name, _, _ in index.nearest("delete the note", 5)] == ["a", "c"]
    assert index.nearest("旧笔记", 1)[0][0] == "d"
    assert index.nearest("nothing at all", 5) == index.nearest("", 5) == []
    index.drop("a")
    index.add("c", "send letters")
    assert [name for name, _, _ in index.nearest("delete the note", 5)] == []
    assert len(index) == 3


@settings(max_examples=30)
@given(st.lists(st.text(max_size=30), max_size=12), st.text(max_size=30))
def test_retrieval_takes_any_text(texts: list[str], query: str) -> None:
    index = Index()
    for i, text in enumerate(texts):
        index.add(str(i), text)
    found = index.nearest(query, 3)
    assert len(found) <= 3
    assert [score for _, score, _ in found] == sorted((score for _, score, _ in found), reverse=True)


@pytest.mark.parametrize(
    ("one", "other", "at_odds"),
    [
        ("A page holds 20 items.", "A page holds 50 items.", True),
        ("A page holds 20 items.", "A page holds 20 items.", False),
        ("The token expires after login elsewhere.", "The token doesn't expire after login elsewhere.", True),
        (
            "The token expires after login.",
            "Whoever logs in again finds the old token valid.",
            False,
        ),  # other wordings are not seen
        ("A token lasts after login.", "A token never lasts after login.", True),
        ("Mail pages hold 20 items.", "Music pages hold 50 items.", False),
        ("Call `mail.send` once. It never fails twice.", "Call `mail.send` two times. It is slow.", False),
        ("Read it first. A page of mail holds 20 letters.", "Wait a little. A page of mail holds 30 letters.", True),
        ("20", "50", False),
        ("", "A page holds 20 items.", False),
    ],
)
def test_two_statements_are_at_odds(one: str, other: str, at_odds: bool) -> None:
    assert contradicts(one, other) is contradicts(other, one) is at_odds
