"""Judges of every kind: what they say, what they refuse, what they cost, and the battery that all of them pass."""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramify.base import registry
from ramify.base.budget import Budget
from ramify.base.errors import InfrastructureError, NeedsError, UserError
from ramify.base.ledger import Ledger
from ramify.env.protocol import Task
from ramify.methods.early_decision.judges import find_jury, find_stance_judge
from ramify.methods.governance.judges import find_survival_jury
from ramify.methods.implicit_advantage.baselines import find_baseline
from ramify.model.chat import TagTemplate
from ramify.model.scripted import ScriptedModel
from ramify.score.judge import (
    CommandJudge,
    Each,
    FunctionJudge,
    Item,
    Judge,
    Judgement,
    Pattern,
    Question,
    as_asked,
    find_judge,
    judged,
    judged_path,
    yes_or_no,
)
from ramify.score.match import ExactMatch, NumberMatch, last_boxed, last_number
from ramify.testing.judge import check_judge, path_of
from ramify.trace.node import Score, TokenValues

TASK = Task("t", {"answer": "42"})


def value(judge: Any, text: str, answer: object = "42") -> Any:
    (found,) = asyncio.run(judge.judge([Item.of(path_of(text), Task("t", {"answer": answer}))]))
    return found.value


@pytest.mark.parametrize("name", ["exact", "number", "boxed"])
def test_registered_judges_pass_the_battery(name: str) -> None:
    assert check_judge(registry.get("judge", name)()) == []


@pytest.mark.parametrize("spec", ["regex:4.", "equals:42", "jury:exact,number,regex:nine", "factory:tests.score.test_judge:own"])
def test_judges_by_name_pass_the_battery(spec: str) -> None:
    assert check_judge(find_judge(spec)) == []


def own() -> Any:
    return lambda text, data: text == data.get("answer")


class Bad(Each):
    """Breaks what a judge promises, one promise at a time."""

    def __init__(self, fault: str) -> None:
        self.fault, self.name, self.looks, self.identity = fault, "bad", 0, "hash"

    async def judge(self, items: Any) -> Any:
        self.looks += 1
        if self.fault == "crash" and "Ignore" in items[0].text:
            raise KeyError("x")
        if self.fault == "answer":
            assert items[0].data["answer"]
        if self.fault == "few" and len(items) > 1:
            return [Judgement(1.0)]
        return {"number": 1.0, "list": [1.0]}.get(self.fault) or await super().judge(items)

    async def one(self, item: Item) -> Judgement:
        if self.fault == "edits":
            item.path.segments[0][0].data["seen"] = True  # type: ignore[union-attr]
        if self.fault == "refuses":
            raise UserError("not my task")
        node_id = {"stream": item.path.segments[-1][0].id, "place": "elsewhere"}.get(self.fault)  # type: ignore[union-attr]
        return Judgement(
            {"nan": float("nan"), "draws": float(self.looks)}.get(self.fault, 1.0),
            "no" if self.fault == "both" else "",
            confidence=2.0 if self.fault == "confidence" else None,
            token_values=(TokenValues(node_id, "s", "bad", np.zeros(7)),) if node_id else (),
        )


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("place", "not on the path"),
        ("crash", "KeyError"),
        ("stream", "7 entries on a node of length 1"),
        ("nan", "returned 'nan'"),
        ("draws", "different values"),
        ("confidence", "confidence 2.0"),
        ("answer", "an item without data raises KeyError"),
        ("edits", "changed the item"),
        ("refuses", "judges none of the items (not my task): give it a method examples()"),
        ("number", "returned float, not a list"),
        ("list", "returned a float, which is not a Judgement"),
        ("few", "1 judgements of 2 items"),
        ("both", "failed (no) has the value 1.0"),
    ],
)
def test_battery_finds_broken_promises(fault: str, sentence: str) -> None:
    assert any(sentence in problem.message for problem in check_judge(Bad(fault)))
    assert check_judge(Bad("")) == []


def test_not_a_judge() -> None:
    found: Any = object()
    assert check_judge(found)[0].message == "it lacks a name, an identity or a method judge(items)"


def test_a_judge_brings_items_it_can_judge() -> None:
    class Picky(Bad):
        async def one(self, item: Item) -> Judgement:
            if "colour" not in item.data:
                raise UserError("no colour")
            return await super().one(item)

        def examples(self) -> list[Item]:
            return [Item.of(path_of("blue"), Task("t", {"colour": "blue"}))]

    assert check_judge(Picky("")) == []


def test_failures_become_unscored() -> None:
    class Down(Bad):
        async def one(self, item: Item) -> Judgement:
            raise InfrastructureError("scorer", "no route")

    (score,) = asyncio.run(judged_path(Down(""), path_of("42"), TASK))
    assert isinstance(score, Score)
    assert score.value is None
    assert score.evidence == {"failure": "no route"}
    assert score.judges == {"bad": "hash"}
    with pytest.raises(UserError, match="'t' has no 'answer'"):
        asyncio.run(judged_path(ExactMatch(), path_of("42"), Task("t")))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("the answer is 42.", 42),
        ("-1,234.5", Fraction("-1234.5")),
        ("6.02e23", Fraction("6.02e23")),
        ("7 then 3/4", Fraction(3, 4)),
        ("1/0", None),
        (".5", Fraction(1, 2)),
        ("v3 is not one", None),
        ("10-4", 4),
        ("", None),
        ("1" * 1000, None),
    ],
)
def test_last_number(text: str, number: Any) -> None:
    assert last_number(text) == number


def test_graders() -> None:
    assert value(ExactMatch(), "  Forty \n TWO", "forty two") == 1.0
    assert value(ExactMatch(), "42!") == 0.0
    assert value(NumberMatch(), "so it is 42.0 apples") == 1.0
    assert value(NumberMatch(), "so it is 41.9") == 0.0
    assert value(NumberMatch(tolerance=0.1), "so it is 41.9") == 1.0
    assert value(NumberMatch(), "nothing") == 0.0
    assert NumberMatch(0.1).identity != NumberMatch().identity
    with pytest.raises(UserError, match="is not a number"):
        value(NumberMatch(), "42", "blue")
    with pytest.raises(UserError, match="tolerance"):
        NumberMatch(-1)


# -- patterns, commands, functions


def ask(spec: Any, text: str, **data: Any) -> Judgement:
    (found,) = asyncio.run(judged(find_judge(spec) if isinstance(spec, str) else spec, [Item(text, "a", data=data)]))
    return found


def score(spec: Any, text: str, **data: Any) -> Any:
    return ask(spec, text, **data).value


RELEASED = threading.Event()


def hung() -> Any:
    def wait(text: str, data: Any) -> bool:
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
    assert score(spec, text, answer=answer) is right


def test_boxes() -> None:
    assert last_boxed(r"\boxed{a{b}c}") == "a{b}c"
    assert last_boxed(r"\boxed{\boxed{3}}") == "3"
    assert last_boxed(r"\boxed{") is None


def test_ones_own_function_and_its_time() -> None:
    assert score(f"factory:{__name__}:own", "fine", answer="fine")
    RELEASED.clear()
    try:
        late = ask(find_judge(f"factory:{__name__}:hung", seconds=0.05), "x")
    finally:
        RELEASED.set()  # only now: what hangs was not waited for
    assert (late.value, late.failure) == (None, "wait said nothing within 0.05 s")


class Own:
    async def __call__(self, text: str, data: Any) -> bool:
        return text == "fine"


@pytest.mark.parametrize("function", [Own(), lambda text, data: Own()(text, data)])
def test_what_a_function_returns_may_be_awaitable(function: Any) -> None:
    assert [score(FunctionJudge(function, seconds=60), text) for text in ("fine", "bad")] == [True, False]


def test_waiting_for_a_turn_is_no_time_of_the_function() -> None:
    async def slow(text: str, data: Any) -> bool:
        await asyncio.sleep(float(text))
        return True

    judge = FunctionJudge(slow, seconds=12, at_once=1)
    items = [Item(f"{seconds}") for seconds in (10, 10, 14, 10, 10)]
    with asyncio.Runner(loop_factory=skipping) as runner:
        assert [one.value for one in runner.run(judged(judge, items))] == [True, True, None, True, True]


def test_what_a_function_raises_is_its_items_failure() -> None:
    for seconds in (None, 60):
        judge = FunctionJudge(lambda text, data: 1 / len(text), seconds=seconds)
        good, bad = asyncio.run(judged(judge, [Item("x"), Item("")]))
        assert (good.value, bad.value, bad.failure) == (1.0, None, "ZeroDivisionError: division by zero")
    with pytest.raises(UserError, match="returned 'fine'; a judge returns True, False, a number or None"):
        score(FunctionJudge(lambda text, data: text), "fine")


def test_what_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "check.sh"
    script.write_text("exit 0\n")
    for spec, sentence in {
        "boxd": "did you mean 'boxed'",
        "number:3": "takes no argument",
        "cmd:": "needs an argument after a colon",
        "cmd:/nowhere": "cannot read the judge /nowhere",
        f"cmd:{script}": "must begin with the line that names its program",
        "factory:nowhere:x": "names nothing that can be imported",
        "factory:builtins:dict": "returned a dict",
    }.items():
        with pytest.raises(UserError, match=sentence):
            find_judge(spec)
    with pytest.raises(UserError, match="'a' has no 'answer'"):
        score("exact", "x")
    with pytest.raises(UserError, match="is not a number"):
        score("number", "3", answer="three")


def test_a_script_in_the_sandbox(tmp_path: Path) -> None:
    script = tmp_path / "check.sh"
    script.write_text(
        '#!/bin/sh\nread said\ncase "$said" in\n  good) grep -q 42 data.json ;;\n  slow) sleep 600 ;;\n  odd) exit 7 ;;\n  *) '
        "exit 1 ;;\nesac\n"
    )
    try:
        check, hurried = CommandJudge(script, seconds=60), CommandJudge(script, seconds=0.5)
    except NeedsError as error:
        pytest.skip(f"nothing isolates here: {error}")
    assert score(check, "good\n", answer=42) is True
    assert score(check, "bad\n", answer=42) is False
    assert ask(hurried, "slow\n", answer=42).failure.startswith("cmd:check.sh did not end by itself")
    odd = ask(check, "odd\n", answer=42)
    assert (odd.value, odd.failure) == (None, "")


# -- models and juries


def test_a_models_prompt_is_an_argument_and_part_of_its_identity(tmp_path: Path) -> None:
    shown: list[str] = []

    def answer(messages: Any, key: int) -> str:
        shown.append(messages[-1].text)
        return "Let me see: yes"

    rubric, other = tmp_path / "rubric.txt", tmp_path / "other.txt"
    rubric.write_text("Does {text} answer {prompt}? yes or no")
    other.write_text("Is {text} polite? yes or no, {nothing}")
    opener: Any = lambda name: (ScriptedModel(answer, name=name, tokens=False), None)  # noqa: E731
    judge = find_judge(f"judge:m#{rubric}", opener=opener)
    (found,) = asyncio.run(judged(judge, [Item("{4}", prompt="2+2")], spent := Ledger()))
    assert found.value is True
    assert shown == ["Does {4} answer 2+2? yes or no"]
    assert spent.total("calls") == 1
    assert judge.identity == find_judge(f"judge:m#{rubric}", opener=opener).identity
    rubric.write_text("Does {text} answer {prompt}? Say yes or no")
    assert judge.identity != find_judge(f"judge:m#{rubric}", opener=opener).identity
    with pytest.raises(UserError, match=r"cannot be filled in .*it may hold \{text\}, \{prompt\}"):
        score(find_judge(f"judge:m#{other}", opener=opener), "x")
    with pytest.raises(UserError, match="cannot read the prompt"):
        find_judge(f"judge:m#{tmp_path / 'none.txt'}", opener=opener)


def test_a_reply_that_cannot_be_read_is_a_failure_and_equal_requests_are_asked_once() -> None:
    question = Question("{text}?", yes_or_no)
    replies = iter(["perhaps", "yes"])
    model = ScriptedModel(lambda messages, key: next(replies), tokens=False)
    judge = find_judge("judge:m", question=question, opener=lambda name: (model, None))
    spent = Ledger()
    assert "holds no yes and no no" in asyncio.run(judged(judge, [Item("a")], spent))[0].failure
    assert [asyncio.run(judged(judge, [Item("a")], spent))[0].value for _ in range(3)] == [True] * 3
    assert spent.total("calls") == 2


def test_what_judging_costs_stands_in_a_ledger_and_counts_to_a_budget() -> None:
    model = ScriptedModel(lambda messages, key: "yes, it is", tokens=True)
    judge = find_judge(
        "jury:judge:m,regex:b", question=Question("{text}?", yes_or_no), opener=lambda name: (model, TagTemplate(model.tokenizer))
    )
    spent, budget = Ledger(), Budget({"tokens": 8})
    asyncio.run(judged(judge, [Item("a"), Item("b")], spent, budget))
    row = spent.to_json()["spent"]["judge"]
    assert (row["judged"], row["calls"]) == (2, 2)
    assert row["tokens"] == budget.spent("tokens") > 8
    assert budget.spent_out == "tokens"  # the verdicts were had; whoever samples next is stopped
    asyncio.run(judged(Pattern("b"), [Item("a")], spent, budget))
    assert spent.to_json()["spent"]["judge"] == row | {"judged": 3}
    asyncio.run(judged(find_judge(f"factory:{__name__}:raising"), [Item("a")], spent))
    assert spent.to_json()["spent"]["judge"]["failed"] == 1


def test_a_jury_by_name() -> None:
    assert score("jury:number,regex:forty.?two", "42", answer="42") is False  # one of two is no majority
    assert score('jury:["number", "regex:4{1,2}2", "exact"]', "so 42", answer="42") is True
    found = ask(f"jury:regex:x,factory:{__name__}:raising", "y")
    assert (found.value, found.failure) == (False, "")
    assert found.evidence["failures"] == {f"factory:{__name__}:raising": "KeyError: 'z'"}
    assert ask(f"jury:factory:{__name__}:raising", "y").failure == "KeyError: 'z'"
    with pytest.raises(UserError, match="unknown judge 'exat'"):
        find_judge("jury:number,exat")


def raising() -> Any:
    def fails(text: str, data: Any) -> bool:
        raise KeyError("z")

    return fails


FAMILIES = ("regex:x", "equals:x", "number", "jury:regex:x,number", "judge:builtin", "builtin")


@pytest.mark.parametrize("spec", FAMILIES)
def test_every_use_takes_every_family(spec: str) -> None:
    """What a verb's own finder makes of a judge of each family."""
    finders: list[Callable[[str], Judge]] = [
        find_judge,
        lambda name: find_baseline(name, "grade"),
        find_stance_judge,
        lambda name: find_jury([name]),
        lambda name: find_survival_jury([name]),
        lambda name: find_judge(name, kinds={"stored": Pattern}),
    ]
    for finder in finders:
        assert finder(spec).identity


def test_a_models_name_alone_is_a_judge() -> None:
    opener: Any = lambda name: (ScriptedModel(lambda messages, key: "yes", name=name, tokens=False), None)  # noqa: E731
    assert find_judge("chat:m@http://x", opener=opener).name == "judge:chat:m@http://x"


def judge_of_two(text: str, data: Any) -> bool:
    """A judge of one's own."""
    return text == "x"


def model_of_one(messages: Any) -> str:
    """A model of one's own."""
    return "yes"


def test_an_object_of_ones_own_is_a_judge_or_a_model_by_its_arguments() -> None:
    here = f"python:{__name__}"
    assert as_asked(f"{here}:judge_of_two") == f"{here}:judge_of_two"
    assert as_asked(f"{here}:model_of_one") == f"judge:{here}:model_of_one"
    assert as_asked("chat:m@http://x") == "judge:chat:m@http://x"
    assert (as_asked("rules:FILE"), as_asked("head:x", "head")) == ("rules:FILE", "head:x")
