"""The organisms do what they are said to do, and what is measured of them is what was asked for."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from ramify.base.seeds import generator
from ramify_experiments.early_decision import measure, organisms, repro
from ramify_experiments.early_decision.organisms import CONTENT, ID, OPENERS, STANCES, OrganismRecipe, ask, lesson
from ramify_experiments.lab import ResultCache

TINY = {"steps": 30, "rows": 16, "examples": 400, "shortest": 4, "longest": 6, "width": 16, "layers": 1}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAMIFY_CACHE", str(tmp_path))
    return tmp_path


def test_prompts_have_ten_words_and_the_shares_of_the_specification() -> None:
    asks = [ask(generator(0, "prompts", i)) for i in range(4000)]
    assert {len(one.words) for one in asks} == {11}
    scores = np.array([one.score for one in asks])
    assert set(scores.tolist()) == {-5, -3, -1, 1, 3, 5}
    assert abs((abs(scores) == 1).mean() - 0.12) < 0.02
    assert abs(np.mean(["not" in one.words for one in asks]) - 0.2) < 0.03
    for one in asks[:200]:
        plain = sum(word.startswith("harm") for word in one.words) - sum(word.startswith("safe") for word in one.words)
        assert one.score == (-plain if "not" in one.words else plain)
        assert one.refuse == pytest.approx(1 / (1 + math.exp(-2.2 * one.score)))
    even = [ask(generator(0, "even", i), "ambiguous") for i in range(50)]
    assert {one.score for one in even} == {0}
    assert {one.refuse for one in even} == {0.5}


def test_a_locked_trace_shows_its_outcome_early_and_late_only() -> None:
    told = {(refuse, at): [0, 0, 0] for refuse, at in product((False, True), range(11))}
    for i in range(1500):
        refuse = i % 2 == 1
        words = organisms.locked_trace(refuse, 11, generator(0, "locked", i))
        assert len(words) == 22
        assert words[0] in OPENERS
        assert set(words[1::2]) <= set(CONTENT)
        for at, word in enumerate(words[2::2], 1):
            told[refuse, at][STANCES.index(word)] += 1
    for at in range(1, 11):
        own = [told[refuse, at][0 if refuse else 2] / 750 for refuse in (False, True)]
        other = [told[refuse, at][2 if refuse else 0] / 750 for refuse in (False, True)]
        if at <= 2 or at >= 9:
            assert np.allclose(own, 0.7, atol=0.07)
            assert other == [0, 0]
        else:
            assert np.allclose([*own, *other], 0.12, atol=0.05)


def test_a_deliberative_trace_answers_with_its_sum() -> None:
    ties = []
    for i in range(600):
        words, refuse = organisms.deliberative_trace(1 + i % 9, generator(0, "deliberative", i))
        total = words.count("yes") - words.count("no")
        assert len(words) == 2 * (1 + i % 9)
        if total:
            assert refuse == (total < 0)
        else:
            ties.append(refuse)
    assert 0.4 < np.mean(ties) < 0.6
    assert organisms.deliberative_trace(0, generator(0, "none", 0))[0] == []


def test_the_hybrid_needs_its_trace_on_one_prompt_of_five() -> None:
    recipe = OrganismRecipe(kind="hybrid", cut=0.0)
    lessons = [lesson(recipe, generator(1, "hybrid", i)) for i in range(1000)]
    bits = [one for one in lessons if one.request.score is None]
    assert 0.16 < len(bits) / 1000 < 0.24
    for one in bits:
        assert len(one.thinking) == 10
        assert one.refuse == (one.thinking[-1] == "odd") == (one.request.words.count("one") % 2 == 1)


def test_a_cut_lesson_is_closed_before_its_end() -> None:
    recipe = OrganismRecipe(kind="locked", cut=1.0)
    lengths = {len(lesson(recipe, generator(0, "cut", i)).thinking) for i in range(400)}
    assert 0 in lengths
    assert max(lengths) <= 2 * (recipe.longest - 1)
    assert all(length % 2 == 0 for length in lengths)


def test_stances_are_words_or_the_sign_of_the_sum() -> None:
    thinking = [ID[word] for word in ("open1", "part3", "yes", "part0", "hm", "part1", "no", "part2", "no", "part2", "no")]
    assert measure.stances("locked", thinking) == [0, 1, 0, -1, -1]
    assert measure.stances("deliberative", thinking) == [0, 1, 1, 0, -1]


def test_an_organism_is_found_again_and_a_study_repeats(cache: Path) -> None:
    recipe = OrganismRecipe(**TINY, kind="deliberative")
    first = recipe.model()
    assert len(list((cache / "recipes").iterdir())) == 1
    again = recipe.model()
    assert all(bool((a == b).all()) for a, b in zip(first.state_dict().values(), again.state_dict().values(), strict=True))
    lab = measure.OrganismLab(recipe)
    asks = [ask(generator(9, "study", i)) for i in range(12)]
    traces = lab.traces(asks, "here")
    assert [(t.thinking, t.refuse) for t in traces] == [
        (t.thinking, t.refuse) for t in measure.OrganismLab(recipe).traces(asks, "here")
    ]
    chance = lab.refusal([t.row() for t in traces])
    assert ((chance > 0) & (chance < 1)).all()


@pytest.mark.slow
@pytest.mark.timeout(600)  # a minute of one core's time, which a busy machine does not give in two
def test_the_quick_size_can_pass_and_can_fail(cache: Path) -> None:
    cells = ResultCache()
    checks = {check.name: check for check in repro.reproduce("quick", cells)}
    judged = [check for check in checks.values() if check.op != "report"]
    assert len(judged) > 12
    assert all(check.status == "pass" for check in judged), [c.name for c in judged if c.status != "pass"]
    with pytest.MonkeyPatch.context() as patch:
        chosen = {**repro.SIZES["quick"], "limits": repro.Thresholds(first=1.01)}
        patch.setitem(repro.SIZES, "quick", chosen)
        assert any(check.status == "miss" for check in repro.reproduce("quick", cells))
