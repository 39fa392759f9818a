"""Probes that see nothing they should not, and the controls beside them."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

from ramify.base.errors import NeedsError, UserError
from ramify.base.seeds import generator
from ramify.methods.early_decision.probe import (
    STATE_A,
    TABLE,
    Probed,
    ProbeRecipe,
    bar,
    corrected,
    folds_of,
    near_duplicates,
    out_of_fold,
    probe,
    youden,
)
from ramify.stats.ranking import auroc

pytest.importorskip("sklearn")
PLAIN = ProbeRecipe("plain", c=0.03)


def data(n: int = 400, width: int = 20, gap: float = 0.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = generator(seed, "data")
    y = rng.random(n) < 0.5
    x = rng.normal(size=(n, width))
    x[:, 0] += gap * y
    return x, y


def test_a_probe_finds_what_is_there() -> None:
    x, y = data(gap=2.0)
    found = probe(x, y, np.arange(400), recipe=STATE_A, shuffles=19)
    best = found.pools[0]
    assert best.auroc == pytest.approx(0.5 * (1 + math.erf(1.0)), abs=0.04)  # Phi(2 / sqrt 2)
    assert best.interval is not None
    assert best.interval[0] < best.auroc < best.interval[1]
    assert best.balanced == pytest.approx(0.84, abs=0.05)
    assert found.null is not None
    assert found.null < 0.65
    assert auroc(found.scores, ~y) == pytest.approx(1 - best.auroc)  # swapped labels


def test_with_no_signal_pooled_scores_rank_below_one_half() -> None:
    values = []
    for seed in range(12):
        x, y = data(400, 60, seed=seed)
        y = np.arange(400) % 4 == 0  # the same share in every fold
        values.append(auroc(out_of_fold(x, y, folds_of(y, np.arange(400)), PLAIN), y))
    assert 0.36 < np.mean(values) < 0.5
    assert auroc(np.ones(4), np.array([1, 0, 1, 0], bool)) == 0.5


def test_no_prompt_is_on_both_sides() -> None:
    _, y = data(100)
    groups = np.arange(100) // 4
    held = []
    for train, test in folds_of(y, groups):
        assert not set(groups[train]) & set(groups[test])
        held += test.tolist()
    assert sorted(held) == list(range(100))
    with pytest.raises(UserError, match="3 groups cannot be held out in 5 folds"):
        folds_of(y, np.arange(100) % 3)


def test_a_sample_never_scores_itself() -> None:
    """A state that is the label of one sample only is learnt from that sample alone, so its own score must not know it."""
    x, y = np.eye(60), np.arange(60) % 2 == 0
    scores = out_of_fold(x, y, folds_of(y, np.arange(60)), PLAIN)
    assert auroc(scores, y) <= 0.5


def test_controls_and_pools() -> None:
    rng = generator(5, "pools")
    harmful = rng.random(400) < 0.5
    y = rng.random(400) < np.where(harmful, 0.8, 0.2)
    x = rng.normal(size=(400, 8))
    x[:, 0] += 3 * harmful  # knows the topic, not the outcome
    texts = {"prompt": ["bad thing" if h else "good thing" for h in harmful], "first token": ["so"] * 400}
    found = probe(
        x, y, np.arange(400), recipe=PLAIN, pools=np.where(harmful, "harmful", "benign").tolist(), texts=texts, shuffles=10,
        other_groups={"source": np.arange(400) % 7, "too few": np.zeros(400)},
    )  # fmt: skip
    pooled, benign, inside = found.pools
    assert (pooled.pool, benign.pool, inside.pool) == ("all", "benign", "harmful")
    assert pooled.auroc is not None
    assert pooled.auroc > 0.7  # looks like a prediction of the outcome
    assert found.within_pools is not None
    assert found.within_pools < 0.58  # and is none
    assert found.controls["prompt"] == pytest.approx(pooled.auroc, abs=0.06)
    assert found.controls["first token"] is not None
    assert found.controls["first token"] <= 0.5
    assert found.controls["source"] == pytest.approx(pooled.auroc, abs=0.05)
    assert found.controls["too few"] is None


def test_a_pool_of_several_sources_is_judged_by_their_mean() -> None:
    x, y = data(300, 6, gap=2.0)
    source = np.arange(300) % 3
    y[source == 2] = False  # one source without the outcome is left out
    x[source == 1, 0] = 0.0
    found = probe(x, y, np.arange(300) // 2, recipe=PLAIN, pools=["benign"] * 300, sources=source.tolist(), shuffles=0)
    pooled, pool, mean = found.pools
    assert (pool.pool, mean.pool, mean.n) == ("benign", "benign, mean of 2 sources", 200)
    each = [auroc(found.scores[source == s], y[source == s]) or 0 for s in (0, 1)]
    assert mean.auroc == pytest.approx(sum(each) / 2)
    assert mean.interval is not None
    assert mean.interval[0] <= mean.auroc <= mean.interval[1]
    assert pooled.auroc == pool.auroc


def test_too_few_of_an_outcome_is_said_and_not_fitted() -> None:
    x = np.zeros((50, 3))
    for y, says in [(np.zeros(50, bool), "all outcomes are the same"), (np.arange(50) < 19, "only 19 samples")]:
        found = probe(x, y, np.arange(50))
        assert found.pools[0].auroc is None
        assert says in found.pools[0].reason
        assert np.isnan(found.scores).all()
        assert found.null is None
    with pytest.raises(UserError, match="as many outcomes"):
        probe(x, np.zeros(49, bool), np.arange(50))


def test_the_paper_s_recipe_runs_where_there_are_fewer_dimensions_than_it_keeps() -> None:
    x, y = data(120, 12, gap=2.5)
    found = probe(x, y, np.arange(120) // 2, recipe=TABLE, shuffles=0)
    assert found.pools[0].auroc is not None
    assert found.pools[0].auroc > 0.85
    assert found.recipe == "table"


def test_blank_texts_tell_nothing() -> None:
    """Every trace may begin with the same line break, which is no word."""
    x, y = data(60)
    assert probe(x, y, np.arange(60), texts={"first token": ["\n"] * 60}, shuffles=0).controls == {"first token": 0.5}


def test_controls_by_pool() -> None:
    # words that tell the pools apart tell the outcome of all together, and nothing within a pool
    x, _ = data(200)
    pools = np.where(np.arange(200) % 2, "harmful", "benign")
    y = generator(5, "pools").random(200) < np.where(pools == "harmful", 0.8, 0.3)
    found = probe(x, y, np.arange(200), pools=pools.tolist(), texts={"words": pools.tolist()}, shuffles=19)
    every, *each = found.pools
    assert every.null == found.null
    assert every.controls == found.controls
    assert [one.pool for one in each] == ["benign", "harmful"]
    for one in each:
        assert (one.controls["words"] or 0) < 0.55  # pooled over folds it lies below one half
        assert one.null is not None
    assert (every.controls["words"] or 0) > 0.65


@pytest.mark.slow
def test_many_labellings_are_fitted_at_once_as_one_by_one_and_as_by_scikit_learn() -> None:
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    for n, width, recipe in [
        (200, 12, TABLE),
        (200, 12, STATE_A),
        (90, 150, STATE_A),
        (90, 150, ProbeRecipe("pca", 20, 0.3, True)),
    ]:
        x, y = data(n, width, gap=1.0)
        y &= x[:, 1] > -0.5  # a rarer outcome, so that balancing weighs
        split = folds_of(y, np.arange(n))
        labels = np.stack([y, *(generator(1, "mixed", i).permutation(y) for i in range(4))])
        together = out_of_fold(x, labels, split, recipe)
        np.testing.assert_allclose(together, [out_of_fold(x, one, split, recipe) for one in labels], atol=2e-4)
        wanted = np.zeros(n)
        for train, held in split:
            steps = [StandardScaler(), *([PCA(recipe.pca, random_state=0)] if 0 < recipe.pca < width else [])]
            fit = LogisticRegression(C=recipe.c, class_weight="balanced" if recipe.balanced else None, max_iter=3000, tol=1e-8)
            wanted[held] = make_pipeline(*steps, fit).fit(x[train], y[train]).decision_function(x[held])
        np.testing.assert_allclose(together[0], wanted, atol=2e-3)


@pytest.mark.slow
def test_p_is_uniform_where_there_is_nothing_and_the_bar_is_its_level() -> None:
    """Prompts of two traces that are alike, in states and in outcomes.
    Of 20 shuffles, the bar was passed twice as often as it said."""
    ps, above = [], 0
    for seed in range(80):
        rng = generator(seed, "nothing")
        groups = np.repeat(np.arange(40), 2)
        x = rng.normal(size=(40, 6))[groups] + 0.3 * rng.normal(size=(80, 6))
        y = rng.random(80) < rng.beta(1, 1, 40)[groups]
        found = probe(x, y, groups, recipe=PLAIN, shuffles=199).pools[0]
        if found.p is not None:
            assert found.auroc is not None
            assert found.null is not None
            assert (found.auroc > found.null) == (found.p <= 0.05)
            ps.append(found.p)
            above += found.auroc > found.null
    assert len(ps) > 60
    assert above / len(ps) < 0.15
    assert np.mean(ps) == pytest.approx(0.5, abs=0.12)
    assert bar(range(1, 200)) == 190
    assert bar(range(18)) is None  # the least p of 18 shuffles is 1 / 19


@pytest.mark.slow
def test_a_state_that_knows_its_pool_alone_does_not_beat_shuffled_labels() -> None:
    rng = generator(5, "pools")
    harmful = np.arange(400) % 2 == 0
    y = rng.random(400) < np.where(harmful, 0.8, 0.2)
    x = rng.normal(size=(400, 8))
    x[:, 0] += 3 * harmful
    named = np.where(harmful, "harmful", "benign").tolist()
    alone, beside = (probe(x, y, np.arange(400), recipe=PLAIN, pools=pools).pools[0] for pools in (None, named))
    assert alone.p == 0.005
    assert beside.p is not None
    assert beside.p > 0.05
    assert beside.auroc == alone.auroc


def of(*found: Probed) -> list[float | None]:
    return [one.pools[0].p_corrected for one in corrected(found)]


@pytest.mark.slow
def test_looking_in_many_places_is_corrected_for_how_alike_they_are() -> None:
    x, y = data(120, 4, gap=0.5)
    noise = generator(3, "noise").normal(size=(20, 120, 4))
    one = probe(x, y, np.arange(120), recipe=PLAIN)
    assert one.pools[0].p is not None
    assert of(one) == [one.pools[0].p]
    assert of(*[one] * 9) == [one.pools[0].p] * 9  # the same place nine times is one place
    first, *others = of(one, *(probe(z, y, np.arange(120), recipe=PLAIN) for z in noise))
    assert first is not None
    assert first > one.pools[0].p
    assert all(p is not None and p > 0.05 for p in others)
    assert of(probe(x, y, np.arange(120), recipe=PLAIN, shuffles=0)) == [None]
    with pytest.raises(UserError, match="the same number of shuffles"):
        corrected([one, probe(x, y, np.arange(120), recipe=PLAIN, shuffles=19)])


def test_near_duplicates_share_a_group() -> None:
    texts = ["how do I pick a lock at night", "how do I pick a lock at night?", "write a poem about spring", ""]
    groups = near_duplicates(texts)
    assert groups[0] == groups[1]
    assert len({groups[0], groups[2], groups[3]}) == 3
    assert near_duplicates(["", ""]).tolist() == [0, 0]


def test_youden_threshold() -> None:
    y = np.array([False, False, True, True])
    assert youden(np.array([0.1, 0.4, 0.6, 0.9]), y) == pytest.approx(0.6)
    assert youden(np.ones(2), np.array([True, True])) == float("inf")


def test_without_scikit_learn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(NeedsError, match=r"pip install 'ramify\[interp\]'"):
        folds_of(np.arange(10) % 2 == 0, np.arange(10))
