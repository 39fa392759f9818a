"""Every number of section 8 of the method's description, and what must hold of tests, scores and the table of evidence."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.methods.forensics.ach import BENIGN, STANDARD
from ramify.methods.forensics.algorithm import awareness, forbidding, plan, sentence_scores
from ramify.methods.forensics.experiment import (
    ArmDetail,
    Control,
    DoseDetail,
    TestResult,
    absence,
    corrected,
    counterfactuals,
    dose_response,
    stacked,
)
from ramify.methods.forensics.hypotheses import ACH, NONE, NOTHING, UNDECIDED, Hypothesis
from ramify.methods.forensics.trend import cochran_armitage
from ramify.stats.drops import Counts
from ramify.stats.intervals import wilson
from ramify.stats.tests import fisher, two_proportions

DOSES = [0, 10, 28, 51, 77, 108, 124, 151, 182, 200, 224, 258]
HITS = [0, 0, 0, 0, 2, 2, 6, 7, 8, 7, 16, 23]
RUNS = [100, 183, 191, 162, 169, 162, 169, 161, 146, 141, 163, 175]
SURE = Control(0.95, 0.05, 100, "an organism")


def reread(test: TestResult) -> TestResult:
    """A test as a run gives it back."""
    return codec.from_json(TestResult, json.loads(json.dumps(codec.to_json(test))))


def dose(test: TestResult) -> DoseDetail:
    """The detail of a dose-response."""
    assert isinstance(test.detail, DoseDetail)
    return test.detail


def arm(test: TestResult) -> ArmDetail:
    """The detail of a test of an arm."""
    assert isinstance(test.detail, ArmDetail)
    return test.detail


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [
        (23, 175, 8.92, 18.95),
        (13, 40, 20.1, 48.0),
        (6, 50, 5.6, 23.8),
        (0, 100, 0, 3.7),
        (0, 162, 0, 2.3),
        (581, 960, 57.4, 63.6),
    ],
)
def test_wilson(k: int, n: int, low: float, high: float) -> None:
    digits = 2 if (k, n) == (23, 175) else 1
    assert tuple(round(100 * end, digits) for end in wilson(k, n)) == (low, high)


def test_trends_of_the_paper() -> None:
    z, p = cochran_armitage(HITS, RUNS, DOSES)
    assert z == pytest.approx(8.99, abs=0.005)
    assert p == pytest.approx(2.5e-19, rel=0.05)
    flips, shares = [0, 0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3], [15, 37, 49, 56, 67, 62, 72, 670]
    assert cochran_armitage(shares, [199, 137, 87, 96, 97, 93, 93, 873], flips)[0] == pytest.approx(18.5, abs=0.05)
    z, p = cochran_armitage([14, 10, 9], [93, 97, 98], [0, 1, 2])
    assert (z, p) == (pytest.approx(-1.27, abs=0.005), pytest.approx(0.21, abs=0.005))


def test_fisher_and_z_tests_of_the_paper() -> None:
    assert fisher(46, 98, 8, 108) == pytest.approx(5e-11, rel=0.02)
    assert fisher(46, 98, 19, 69) == pytest.approx(0.015, abs=5e-4)
    assert two_proportions(46, 98, 19, 69) == pytest.approx(0.0113, abs=5e-5)
    assert fisher(46, 98, 19, 72) == pytest.approx(0.007, abs=5e-4)
    assert fisher(46, 98, 12, 65) == pytest.approx(2e-4, rel=0.1)
    assert [round(fisher(k, n, 23, 175), 2) for k, n in ((14, 93), (10, 97), (9, 98))] == [0.71, 0.56, 0.43]


def test_dose_response_says_where_a_share_is_reached() -> None:
    found = dose_response("errors", DOSES, [Counts(k, n) for k, n in zip(HITS, RUNS, strict=True)])
    assert (found.seen, found.value) == ("rises", pytest.approx(8.99, abs=0.005))
    point = dose(found).points["0.05"]
    assert point is not None
    assert point.interval[0] < point.dose < point.interval[1]
    assert 150 < point.dose < 210
    assert reread(found) == found
    assert found.seen == "rises"


def test_a_flat_dose_response_names_no_dose_and_is_json() -> None:
    found = dose_response("errors", (0, 10, 20), [Counts(5, 50), Counts(6, 50), Counts(5, 50)])
    assert dose(found).points == {"0.01": None, "0.05": None}
    json.dumps(codec.to_json(found), allow_nan=False)


def test_scores_telescope_and_ignore_nothing() -> None:
    rng = np.random.default_rng(0)
    outcomes = (rng.random((8, 40)) < rng.random((8, 1))).astype(float)
    found = sentence_scores(outcomes)
    assert found.scores.sum() == pytest.approx(found.rates[-1] - found.rates[0], abs=1e-12)
    assert sorted(found.order.tolist()) == list(range(7))


def test_the_score_of_a_sentence_is_one_minus_pi_times_delta() -> None:
    pi, delta, floor = 0.383, 0.345, 0.005
    before, behind = pi * (floor + delta) + (1 - pi) * floor, floor + delta
    assert behind - before == pytest.approx((1 - pi) * delta)
    assert behind - before == pytest.approx(0.213, abs=5e-4)
    k = 10_000
    arms = np.zeros((2, k))
    arms[0, : round(before * k)] = 1
    arms[1, : round(behind * k)] = 1
    assert sentence_scores(arms).scores[0] == pytest.approx(0.213, abs=1e-3)


@given(st.integers(1, 8), st.integers(0, 8), st.booleans())
@settings(max_examples=20, deadline=None)
def test_a_deterministic_policy_has_at_most_one_score_that_is_not_zero(sentences: int, flip: int, up: bool) -> None:
    outcomes = np.full((sentences + 1, 6), float(not up))
    outcomes[flip:] = float(up)
    scores = sentence_scores(outcomes).scores
    assert set(scores.tolist()) <= {-1.0, 0.0, 1.0}
    assert np.count_nonzero(scores) == (0 < flip <= sentences)


def test_a_policy_that_ignores_sentences_has_scores_of_mean_0_and_variance_2pq_over_k() -> None:
    rng, p, k = np.random.default_rng(1), 0.3, 50
    scores = np.concatenate([sentence_scores((rng.random((11, k)) < p).astype(float)).scores for _ in range(300)])
    assert scores.mean() == pytest.approx(0, abs=4 * np.sqrt(2 * p * (1 - p) / k / 300))
    assert scores.var() == pytest.approx(2 * p * (1 - p) / k, rel=0.1)


def test_held_out_scores_are_not_inflated_by_having_been_selected() -> None:
    rng = np.random.default_rng(2)
    top, kept = [], []
    for _ in range(300):
        found = sentence_scores((rng.random((11, 50)) < 0.3).astype(float))
        best = np.argmax(np.abs(found.scores))
        top.append(abs(found.scores[best]))
        kept.append(found.held_out[found.order[0]])
    assert np.mean(top) > 0.1
    assert abs(np.mean(kept)) < 0.02


def test_invalid_forks_are_left_out_and_too_few_are_refused() -> None:
    outcomes = np.array([[0, 0, 0, 0, np.nan, np.nan], [1, 1, 1, 1, 1, 0]], float)
    assert sentence_scores(outcomes).rates.tolist() == pytest.approx([0, 5 / 6])
    with pytest.raises(ValueError, match="at least 2 graded forks"):
        sentence_scores(np.array([[0, np.nan], [1, 1]]))
    with pytest.raises(ValueError, match="shape"):
        sentence_scores(np.zeros((1, 4)))


def test_a_silence_without_a_positive_control_is_uninterpretable() -> None:
    base, arms = Counts(20, 150), {"reviewer": Counts(18, 150)}
    (bare,) = counterfactuals(base, arms)
    (weak,) = counterfactuals(base, arms, {"reviewer": Control(0.5, 0.05, 50, "x")})
    (sure,) = counterfactuals(base, arms, {"reviewer": SURE})
    assert [r.seen for r in (bare, weak, sure)] == ["uninterpretable", "uninterpretable", "same"]
    (fired,) = counterfactuals(base, {"clear": Counts(2, 150)})
    assert fired.seen == "falls", "what moved needs no control"


def test_a_control_has_the_power_of_the_test_it_is_put_to() -> None:
    (large,) = counterfactuals(Counts(33, 60), {"seen": Counts(12, 60)})
    known = Control.of(large, "sly")
    assert (known.move, known.fired) == ("falls", True)
    known = codec.from_json(Control, json.loads(json.dumps(codec.to_json(known))))
    (small,) = counterfactuals(Counts(2, 12), {"seen": Counts(2, 12)})
    (same,) = counterfactuals(Counts(20, 60), {"seen": Counts(19, 60)})
    (great,) = counterfactuals(Counts(50, 200), {"seen": Counts(49, 200)})
    assert known.at(small).power < 0.2 < known.at(same).power == known.power < 0.6 < 0.95 < known.at(great).power
    assert replace(small, control=known.at(small)).seen == "uninterpretable"
    one, *_ = counterfactuals(Counts(8, 40), {name: Counts(8, 40) for name in ("seen", "b", "c", "d")})
    alone = counterfactuals(Counts(8, 40), {"seen": Counts(8, 40)})[0]
    assert known.at(one).power < known.at(alone).power - 0.1
    dose = Control.of(dose_response("errors", [0, 50, 100], [Counts(k, 60) for k in (3, 20, 40)]), "busy")
    tiny = dose_response("errors", [100, 50, 0, 25], [Counts(1, 6)] * 4)
    assert dose.at(tiny).power < 0.6 < 0.95 < dose.power


def test_a_control_that_does_not_fire_has_no_power() -> None:
    (large,) = counterfactuals(Counts(60, 150), {"seen": Counts(59, 150)})
    (quiet,) = counterfactuals(Counts(5, 10), {"seen": Counts(1, 10)})
    control = Control.of(quiet, "x")
    assert (control.fired, control.power, control.at(large).power) == (False, 0.0, 0.0)
    fires = stacked("both", Counts(2, 60), Counts(30, 60), Counts(30, 60), Counts(30, 60))
    (both,) = corrected([fires])
    assert both.fired
    assert 0.5 < Control.of(both, "x").power < 0.95, "an interaction has rates too: one that fired once is not a power of 1"
    assert Control.of(both, "x").at(large).power == 0.0, "a test of another kind"


@pytest.mark.parametrize(("p", "q"), [(0.5, 0.345), (0.3, 0.165), (0.9, 0.785)])
def test_a_control_is_believed_rarely_where_its_power_is_too_small(p: float, q: float) -> None:
    rng = np.random.default_rng(0)
    (test,) = counterfactuals(Counts(round(150 * p), 150), {"seen": Counts(round(150 * p), 150)})
    assert plan(p, q, 150).contrast < 0.8
    sampled = zip(rng.binomial(10, p, 400), rng.binomial(10, q, 400), strict=True)
    controls = [Control.of(counterfactuals(Counts(int(a), 10), {"seen": Counts(int(b), 10)})[0], "x") for a, b in sampled]
    assert np.mean([control.at(test).power >= 0.8 for control in controls]) <= 0.06


def test_all_tests_of_a_case_share_one_level() -> None:
    dose = dose_response("errors", [0, 1, 2], [Counts(10, 50), Counts(14, 50), Counts(19, 50)])
    arms = counterfactuals(Counts(20, 50), {"a": Counts(5, 50), "b": Counts(19, 50)})
    known = {r.name: r for r in corrected([dose, *arms])}
    assert dose.fired
    assert not known["errors"].fired
    raw = sorted(r.p_raw for r in known.values())
    assert [known[name].p for name in ("a", "errors", "b")] == pytest.approx([3 * raw[0], 2 * raw[1], raw[2]])
    assert corrected(known.values()) == list(known.values()), "no p is corrected twice"
    again = [reread(r) for r in known.values()]
    assert [r.p for r in corrected(again)] == [r.p for r in known.values()]


def test_silence_says_nothing_against_a_move_the_control_did_not_make() -> None:
    (sure,) = counterfactuals(Counts(30, 60), {"seen": Counts(55, 60)})
    (silent,) = counterfactuals(Counts(30, 60), {"seen": Counts(30, 60)})
    found = ACH([Hypothesis("up", predicts={"seen": "rises"}), Hypothesis("down", predicts={"seen": "falls"})])
    line = found.add(replace(silent, control=Control.of(sure, "x").at(silent)))
    assert line.cells == {"up": "inconsistent", "down": "neutral", NONE: "consistent"}


def test_interaction_of_a_stack_as_the_paper_reports_it() -> None:
    found = stacked("country", Counts(3, 100), Counts(19, 100), Counts(59, 100), Counts(65, 100))
    assert found.value == pytest.approx((0.03 - 0.19) - (0.59 - 0.65))
    assert found.value == pytest.approx(-0.10), "-16 points when stacked against -6 alone"


def test_forbidding_keeps_count_of_what_it_cost() -> None:
    found = forbidding(Counts(46, 98), Counts(19, 69, 1), 210, 2)
    assert (arm(found).rejected, arm(found).unfiltered) == (210, 2)
    assert found.p == pytest.approx(0.015, abs=5e-4)
    assert found.seen == "falls"


def test_what_was_never_seen_has_an_upper_end_and_a_price() -> None:
    found = absence(Counts(0, 100), 0.01)
    assert found.upper == pytest.approx(0.037, abs=5e-4)
    assert found.needed == 299
    with pytest.raises(ValueError, match="between 0 and 1"):
        absence(Counts(0, 1), 0)


def test_awareness_splits() -> None:
    found = awareness(Counts(1, 10), Counts(20, 100))
    assert (found.aware.n, found.unaware.k) == (10, 20)
    assert awareness(Counts(0, 0), Counts(1, 5)).p == 1.0


def test_power_before_payment() -> None:
    assert plan(0.13, 0.03, 150).contrast == pytest.approx(0.88, abs=0.02)
    assert plan(0.13, 0.01, 100).contrast == pytest.approx(0.93, abs=0.02)
    assert plan(0.13, 0.01, 150).contrast == pytest.approx(0.995, abs=0.01)
    assert plan(0.13, 0.13, 150).contrast == pytest.approx(0.025, abs=0.01)
    assert plan(0.5, 0.1, 150, k=50).sentence_sd == pytest.approx(0.10, abs=1e-9)
    doses = [0, 50, 100, 151, 200, 258]
    distribution = [max(0.005, 1 / (1 + np.exp(-(0.02 * d - 7)))) for d in doses]
    assert plan(0.13, 0.005, 150, doses, distribution).trend > 0.99
    assert plan(0.13, 0.01, 150, looks=4).contrast < plan(0.13, 0.01, 150).contrast


def table() -> ACH:
    found = ACH(["tedium", "confusion", "defiance"])
    found.add("dose", tedium="+", confusion="-", **{NONE: "-"})
    found.add("third person", tedium="+", defiance="-")
    return found


def test_a_row_that_fits_all_changes_no_ranking() -> None:
    found = table()
    before = found.inconsistencies()
    found.add("it happened", tedium="+", confusion="+", defiance="+")
    assert found.inconsistencies() == before
    assert found.fewest() == ["tedium"]


def test_rows_with_a_shared_confound_count_once() -> None:
    found = table()
    for i in range(4):
        found.add(f"again {i}", confounds=("one prompt",), tedium="-")
    assert found.inconsistencies() == {"tedium": 1, "confusion": 1, "defiance": 1, NONE: 1}
    assert not found.report().decided
    found.add("of itself", confounds=("another",), tedium="-")
    assert found.inconsistencies()["tedium"] == 2
    found.add("ties both", confounds=("one prompt", "another"), tedium="-")
    assert found.inconsistencies()["tedium"] == 1, "confounds chain"


def test_a_test_fills_its_row_from_the_predictions_and_silence_fills_nothing() -> None:
    found = ACH(list(STANDARD.values()))
    (clear,) = counterfactuals(Counts(20, 150), {"clear": Counts(2, 150)})
    line = found.add(replace(clear, detail=replace(clear.detail, role="clarity")))
    assert (line.cells["confusion"], line.cells["tedium"]) == ("consistent", "inconsistent")
    (silent,) = counterfactuals(Counts(20, 150), {"oversight": Counts(19, 150)})
    line = found.add(silent)
    assert set(line.cells.values()) == {"neutral"}
    report = found.report({}, BENIGN)
    assert report.uninterpretable == ("oversight",)
    assert (report.fewest, report.verdict, report.moved) == (("confusion",), "confusion", ("confusion",))
    assert report.benign["role-play"] == "not visited"
    assert report.overturned_by == {"confusion": STANDARD["confusion"].overturned_by}


def test_likelihoods_multiply_over_independent_rows_only() -> None:
    found = ACH(["a", "b"])
    for i, confound in enumerate(("x", "x", "y")):
        found.add(f"row {i}", confounds=(confound,), b="-")
        found.lines[-1] = replace(found.lines[-1], likelihood={"a": 0.9, "b": 0.1})
    assert found.likelihoods() == {"a": pytest.approx(0.81), "b": pytest.approx(0.01)}


@pytest.mark.parametrize(
    ("rows", "verdict", "says"),
    [
        ([], NOTHING, "There is no evidence yet."),
        ([{"a": "+"}], NOTHING, "No move came that a hypothesis foretells. Nor is any hypothesis cleared"),
        ([{"a": "-", "b": "+", NONE: "+"}], NOTHING, "No move came that a hypothesis foretells."),
        ([{"a": "+", "b": "-", NONE: "-"}], "a", "Fewest inconsistencies: a."),
        ([{"a": "+", "b": "+", NONE: "-"}], UNDECIDED, "Several have the fewest inconsistencies: a, b."),
        ([{"a": "+", NONE: "-"}], UNDECIDED, "An untested hypothesis has no more against it, so nothing is decided."),
        ([{"a": "+", "b": "-", NONE: "-"}, {"a": "-"}], UNDECIDED, f"the fewest inconsistencies: a, {NONE}."),
        ([{"a": "+", "b": "-", NONE: "-"}, {"a": "-"}, {"a": "-"}], NOTHING, f"More speaks against a than against '{NONE}'."),
    ],
)
def test_a_hypothesis_is_named_only_where_its_move_came(rows: list[dict[str, str]], verdict: str, says: str) -> None:
    found = ACH(["a", "b"])
    for i, cells in enumerate(rows):
        found.add(f"row {i}", **cells)
    report = found.report()
    assert (report.verdict, report.decided) == (verdict, verdict in ("a", "b"))
    assert says in str(report)


def test_a_test_that_moves_as_nobody_foretold_speaks_for_none_of_these() -> None:
    found = ACH([Hypothesis("a", predicts={"x": "rises", "y": "same"}), Hypothesis("b", predicts={"x": "same", "y": "same"})])
    for test in counterfactuals(Counts(40, 80), {"x": Counts(8, 80), "y": Counts(9, 80), "z": Counts(7, 80)}):
        found.add(test)
    assert found.inconsistencies() == {"a": 2, "b": 2, NONE: 0}
    assert found.lines[2].cells[NONE] == "neutral", "no hypothesis says anything of z"
    assert found.report().verdict == NOTHING


def test_mistakes_in_a_table_are_one_sentence() -> None:
    with pytest.raises(UserError, match="at least two hypotheses"):
        ACH(["only"])
    with pytest.raises(UserError, match="at least two hypotheses, each once"):
        ACH(["a", Hypothesis("a")])
    with pytest.raises(UserError, match="competes in every table"):
        ACH(["a", NONE])
    with pytest.raises(UserError, match="did you mean 'tedium'"):
        table().add("x", tedum="+")
    with pytest.raises(UserError, match="must be one of"):
        table().add("x", tedium="yes")
