"""Anchors: reading them, asking judges about them, and what is said of a judge's errors and leanings."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ramify.base.errors import UserError
from ramify.score.anchor import (
    Anchor,
    Labelled,
    answers,
    compare,
    leaks,
    length_bias,
    needed,
    one_sided,
    parity,
    quality,
    read_anchor,
)
from ramify.score.judge import Each, Item, Judgement, find_judge
from ramify.stats.intervals import Proportion


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


GOOD = {"id": 1, "artefact": "a good one", "label": True}
BAD = {"id": "b", "artefact": "bad", "label": 0, "group": "human"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "holds no item"),
        ([GOOD], "all 1 items are labelled True"),
        ([GOOD, {**BAD, "id": "1"}], "the id '1' stands for 2 items"),
        ([GOOD, {**BAD, "label": 0.5}], "2: 'label' must be true or false, not 0.5"),
        ([GOOD, '{"id": "b", "artefact": "x", "label": NaN}'], "2: "),
        ([GOOD, {"id": "b", "label": False}], "'artefact'"),
        ([GOOD, {"id": "b", "artefacts": ["one"], "label": False}], "'artefacts' must be two texts"),
        ([GOOD, '{"id": "b", "art'], "2: not JSON"),
    ],
)
def test_a_bad_anchor_is_one_sentence(tmp_path: Path, rows: list[object], message: str) -> None:
    with pytest.raises(UserError) as found:
        read_anchor(write(tmp_path / "a.jsonl", *rows))
    assert message in str(found.value)
    assert "\n" not in str(found.value)


def test_halves_and_hash_do_not_follow_the_order(tmp_path: Path) -> None:
    rows = [{"id": i, "artefact": f"text {i}", "label": i % 2} for i in range(11)]
    one, other = read_anchor(write(tmp_path / "a", *rows)), read_anchor(write(tmp_path / "b", *reversed(rows)))
    assert one.hash == other.hash
    halves = [{item.item.id for item, first in zip(a.items, a.first_half, strict=True) if first} for a in (one, other)]
    assert halves[0] == halves[1]
    assert len(halves[0]) == 5


class Odd(Each):
    """Says no to what is short, nothing of what holds "?", half of what holds "~", fails on "!", and hesitates on "*"."""

    name, identity = "odd", "0"

    def __init__(self) -> None:
        self.requests: list[str] = []

    async def one(self, item: Item) -> Judgement | float | None:
        self.requests.append(item.id)
        if "!" in item.text:
            raise RuntimeError("down")
        if "*" in item.text:
            return self.requests.count(item.id) % 2 == 1
        return None if "?" in item.text else 0.5 if "~" in item.text else len(item.text) > 5


def anchor(*texts: str) -> Anchor:
    return Anchor(tuple(Labelled(Item(text, str(i)), i % 2 == 0) for i, text in enumerate(texts)))


def test_what_a_judge_does_not_answer_is_missing_and_never_no() -> None:
    judge, items = Odd(), anchor("long enough", "short", "what?", "half~", "fails!")
    found = asyncio.run(answers(judge, items))
    assert found.final == (True, False, None, None, None)
    assert judge.requests.count("0") == 1
    assert judge.requests.count("2") == judge.requests.count("4") == 2, "asked once more"
    assert found.failures == {
        "2": "it gave no answer",
        "3": "it gave 0.5, where only yes and no count",
        "4": "RuntimeError: down",
    }
    record = quality(items, found)
    assert (record.missing, str(record.accuracy)) == (3, "2 of 2")


def test_a_judge_that_samples_is_asked_several_times() -> None:
    found = asyncio.run(answers(Odd(), anchor("*", "short"), repeats=3))
    assert found.votes == ((True, False, True), (False, False, False))
    assert found.final == (True, False)
    assert quality(anchor("*", "short"), found).unsteady == 1
    assert asyncio.run(answers(Odd(), anchor("*", "short"), repeats=2)).final[0] is None, "a tie is missing"


def test_pairs_are_shown_in_both_orders(tmp_path: Path) -> None:
    rows = [{"id": i, "artefacts": ["gold", "dross"] if i % 2 else ["dross", "gold"], "label": bool(i % 2)} for i in range(8)]
    pairs = read_anchor(write(tmp_path / "a", *rows))
    steady = asyncio.run(answers(find_judge("regex:First:\ngold"), pairs))
    sure = quality(pairs, steady)
    assert sure.position
    assert (str(sure.accuracy), str(sure.position.consistent)) == ("8 of 8", "8 of 8")
    first = asyncio.run(answers(find_judge("regex:."), pairs))  # always the first
    record = quality(pairs, first)
    assert record.position
    assert (record.missing, record.position.first, record.position.second) == (8, 8, 0)
    assert record.position.p == pytest.approx(2**-7)


def test_length_and_makers_are_told_apart_from_quality() -> None:
    rng = np.random.default_rng(0)
    items = Anchor(tuple(Labelled(Item("x" * int(n), str(i)), bool(n > 50)) for i, n in enumerate(rng.integers(1, 100, 200))))
    right = asyncio.run(answers(find_judge("regex:x{51}"), items))
    assert length_bias(items, right) is None, "within a label it accepts all or nothing"
    longer = asyncio.run(answers(find_judge("regex:x{30}"), items))
    found = length_bias(items, longer)
    assert found is not None
    assert found.value == 1.0
    assert found.p < 0.01
    machine, human = Proportion.of(30, 50), Proportion.of(20, 50)
    favour, none = parity({"machine": machine, "human": human}), parity({"machine": machine, "human": Proportion.of(0, 5)})
    assert favour
    assert none
    assert favour.ratio == pytest.approx(1.5)
    assert parity({"machine": machine}) is None
    assert none.ratio is None


def test_the_paired_test_is_exact() -> None:
    assert [needed(0.05), needed(0.05 / 16), needed(0.5)] == [5, 9, 1]
    assert (one_sided(5, 0), one_sided(0, 9)) == (1 / 32, 1.0)
    assert one_sided(7, 3) == pytest.approx(0.171875)
    label = np.array([True] * 6 + [False] * 2)
    found = compare(label, np.array([0.0] * 5 + [1, 0, np.nan]), np.ones(8), 0.05)
    assert (found.better, found.worse, found.n, found.possible) == (5, 1, 7, 5)


def test_a_leak_is_found_up_to_case_and_spaces() -> None:
    items = anchor("A Sentence that nobody\nshould see", "tiny")
    assert leaks(items, {"prompt": "... a sentence THAT nobody should see ..."}) == ("0", "prompt")
    assert leaks(items, {"prompt": "tiny and nothing else"}) is None, "too short to tell"


def test_judgements_come_in_the_order_of_items() -> None:
    class Late(Each):
        name, identity = "late", "1"

        async def judge(self, items: Sequence[Item]) -> list[Judgement]:
            return [Judgement(item.text == "yes") for item in items]

    assert asyncio.run(answers(Late(), anchor("yes", "no", "yes"))).final == (True, False, True)
