"""The reproduction's parts on agents whose law is known; the figures themselves come from `ramify repro forensics`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base import codec
from ramify.base.seeds import generator
from ramify.engine.local import LocalModel
from ramify.methods.forensics.algorithm import sentence_scores
from ramify.methods.forensics.case import CaseConfig, FieldConfig
from ramify.methods.forensics.experiment import ArmDetail, DoseDetail
from ramify.methods.forensics.judges import by_pattern
from ramify.methods.forensics.run import Case
from ramify_experiments.forensics import battery, organisms, repro
from ramify_experiments.forensics.battery import CUT, LEAVES, ReplyTable, of_distribution, run
from ramify_experiments.forensics.incidents.tedious_repair import TediousRepairEnvironment, action_of
from ramify_experiments.forensics.organisms import HUGE, K

KNOWN = repro.known(dict.fromkeys(repro.OWN, (50, 3)), 50)


def first(reply: int) -> bool:
    return not reply >> (K - HUGE - 1) & 1


def test_the_law_of_tedium() -> None:
    assert organisms.tedium(np.array([258, 200, 151, 50])) == pytest.approx([0.137, 0.047, 0.018, 0.005], abs=6e-4)
    table = of_distribution("tedium")()
    assert table.says[HUGE][0, 0] == pytest.approx(0.383, abs=5e-4)
    assert pytest.approx(0.213, abs=5e-4) == repro.PLANTED


@pytest.mark.parametrize(
    ("kind", "factors", "rate"),
    [
        ("tedium", {}, 0.137),
        ("tedium", {"errors": 50}, 0.005),
        ("tedium", {"question": "advise"}, 0.005),
        ("confused", {}, 0.13),
        ("confused", {"instruction": "clear"}, 0.01),
        ("confused", {"question": "advise"}, 0.6),
        ("evasive", {"errors": 0}, 0.13),
        ("evasive", {"reviewer": "present"}, 0.01),
        ("clean", {}, 0.005),
    ],
)
def test_rates_of_the_distributions(kind: str, factors: dict[str, Any], rate: float) -> None:
    table = of_distribution(kind)(**factors)
    assert table.rate == pytest.approx(rate, abs=5e-4)
    assert table.whole.sum() == pytest.approx(1.0)
    assert table.whole[:, CUT].sum() == pytest.approx(table.ahead[0][0, 0])


def test_what_is_said_tells_nothing_of_the_motive() -> None:
    spoken = [of_distribution(kind)().whole.sum(axis=1) for kind in organisms.KINDS]
    assert all(np.allclose(spoken[0], other) for other in spoken[1:])


@pytest.mark.parametrize("reply", [0, 1, 517, 1023])
def test_score_is_one_minus_pi_times_delta(reply: int) -> None:
    table = of_distribution("tedium")()
    score, pi, delta = table.exact_score(reply, HUGE)
    assert score == pytest.approx((1 - pi) * delta, abs=1e-12)
    if first(reply):
        assert (score, pi, delta) == pytest.approx((0.213, 0.383, 0.345), abs=5e-4)
    assert table.exact_score(reply, 0)[0] == pytest.approx(0.0, abs=1e-12)


@given(st.integers(0, LEAVES - 1), st.integers(0, 1000))
@settings(max_examples=10)
def test_scores_of_forks_telescope(reply: int, seed: int) -> None:
    outcomes = of_distribution("tedium")().forks(reply, 40, generator(seed, "test"))
    scores = sentence_scores(outcomes)
    assert scores.scores.sum() == pytest.approx(outcomes[-1].mean() - outcomes[0].mean())


def test_forks_agree_with_exact_rates() -> None:
    table = of_distribution("tedium")()
    outcomes = table.forks(0, 20_000, generator(0, "test"))
    exact = [table.ahead[j][0, 0] for j in range(K + 1)]
    assert outcomes.mean(axis=1) == pytest.approx(exact, abs=0.015)


def test_forbidding_what_is_never_said_changes_and_rejects_nothing() -> None:
    table = of_distribution("tedium")(errors=258)
    says = [*table.says]
    says[HUGE] = np.tile([0.0, 1.0], (len(says[HUGE]), 1))
    silent = ReplyTable(tuple(says), table.acts)
    counts, rejected, unfiltered = silent.without(HUGE, 5000, generator(0, "test"))
    assert (rejected, unfiltered, counts.n) == (0, 0, 5000)
    assert counts.k == pytest.approx(0.005 * 5000, abs=20)


def test_forbidding_the_sentence_brings_the_rate_to_the_floor() -> None:
    counts, rejected, unfiltered = of_distribution("tedium")().without(HUGE, 20_000, generator(0, "test"))
    assert counts.rate == pytest.approx(0.005, abs=0.002)
    assert rejected / counts.n == pytest.approx(0.383 / 0.617, abs=0.03)
    assert (unfiltered, counts.missing) == (0, 0)


def test_a_sentence_that_is_always_said_runs_out_of_redraws() -> None:
    table = of_distribution("clean")()
    says = [*table.says]
    says[HUGE] = np.tile([1.0, 0.0], (len(says[HUGE]), 1))
    counts, rejected, unfiltered = ReplyTable(tuple(says), table.acts).without(HUGE, 50, generator(0, "test"))
    assert (counts.n, counts.missing, unfiltered, rejected) == (0, 0, 50, 50 * battery.REDRAWS)


def test_what_leaves_the_grammar_is_invalid() -> None:
    table = of_distribution("evasive")()
    leaky = ReplyTable(table.says, 0.9 * table.acts)
    reply, action = leaky.sample(5000, generator(0, "test"))
    assert (action == -1).mean() == pytest.approx(0.1, abs=0.02)
    assert ((reply == -1) == (action == -1)).all()
    assert leaky.rate == pytest.approx(table.rate)
    assert np.isnan(leaky.forks(3, 2000, generator(0, "test"))).mean() == pytest.approx(0.1, abs=0.02)
    counts, _, _ = leaky.without(HUGE, 2000, generator(0, "test"))
    assert counts.missing == pytest.approx(200, abs=60)


@pytest.mark.parametrize("kind", organisms.KINDS)
def test_the_protocol_names_scripted_agents(kind: str) -> None:
    tests, more = run(of_distribution(kind), generator(3, "test", kind))
    assert repro.verdict(tests, KNOWN) == [kind]
    assert [test.name for test in tests if repro._fires(test)] == [name for name, (own, _) in repro.OWN.items() if own == kind]
    assert more["baselines"]["words"] in organisms.KINDS
    placebo = next(test for test in tests if test.name == "placebo")
    assert placebo.seen == "uninterpretable"


def test_silence_without_positive_controls_decides_nothing() -> None:
    tests, _ = run(of_distribution("clean"), generator(3, "test", "clean"))
    assert sorted(repro.verdict(tests, {})) == sorted(organisms.KINDS)
    assert repro.verdict(tests, KNOWN) == ["clean"]


def test_organisms_read_the_environment_as_it_is_shown() -> None:
    tokenizer, environment = organisms.tokenizer(), TediousRepairEnvironment(explain=False)
    factors = battery.settings(1, errors=51, reviewer="present")
    shown = environment.describe(environment.task(errors=51, reviewer="present"))["task"]
    assert organisms.prompts(factors)[0, 1:-2].tolist() == tokenizer.encode(shown)
    assert tokenizer.decode(organisms.prompts(factors)[0, 1:-2].tolist()) == shown
    told, target = organisms.lesson("tedium", 4, 0, 0)
    reply = tokenizer.decode(told[0, organisms.LENGTH :].tolist())
    assert action_of(reply) is not None
    assert tokenizer.encode(reply) == told[0, organisms.LENGTH :].tolist()
    assert target.sum(-1).numpy() == pytest.approx(1.0)


def test_checks_on_scripted_agents() -> None:
    size = {"n": 150, "traces": 20, "k": 100}
    cells = {
        seed: {
            kind: repro.measured(of_distribution(kind), kind, seed, size) | {"played": [130, 1000, 0.13]}
            for kind in organisms.KINDS
        }
        for seed in (2, 3)
    }
    found = repro._Found(cells, dict.fromkeys(repro.OWN, (50, 3)), 50)
    for judge in (repro._organisms, repro._tests, repro._sentence, repro._verdicts):
        judge(found, True)
    by_name = {check.name: check for check in found}
    assert len(by_name) == len(found)
    assert [check.name for check in found if check.status == "miss"] == []
    assert all(by_name[f"{kind}: largest distance of an exact rate from the law"].value == 0 for kind in organisms.KINDS)
    assert by_name["dose: fires on tedium"].value == 1.0
    assert by_name["protocol names evasive"].n == 2
    for check in found:
        assert json.dumps(codec.to_json(check))


@pytest.mark.slow
def test_teaching_repeats() -> None:
    one, again = (organisms.taught(3, ("clean",), steps=1)["clean"].state_dict() for _ in range(2))
    assert all(bool((one[name] == again[name]).all()) for name in one)


def test_graders_know_the_scripted_agents_of_a_environment() -> None:
    assert repro.scripted("secret-number") == {"agents": 6, "wrong": []}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_case_on_an_organism_finds_its_exact_rates(tmp_path: Path) -> None:
    """Runs, doses, forks and resamples of the verbs, token by token, against the list of all replies of the same organism."""
    model = organisms.taught(5, ["tedium"], steps=300, more=150)["tedium"]
    tables, environment = battery.of_model(model), organisms.environment()
    fields = {name: FieldConfig(baseline=factor.default) for name, factor in environment.factors.items()}
    config = CaseConfig(env="tedious-repair", n=150, fields=fields)

    def near(k: float, n: int, p: float) -> bool:
        return bool(abs(k / n - p) <= 4 * (p * (1 - p) / n) ** 0.5 + 0.01)

    with Case(tmp_path, config, model=LocalModel(model, organisms.tokenizer()), environment=environment) as case:
        base, table = case.base(), tables()
        assert near(base.k, base.n, table.rate)
        assert near(base.missing, base.forks, 1 - table.ahead[0][0, 1])
        dose = case.vary("errors", [0, 151, 258]).detail
        assert isinstance(dose, DoseDetail)
        assert all(near(k, n, tables(errors=e).rate) for k, n, e in zip(dose.hits, dose.n, dose.doses, strict=True))
        filtered, rejected, _ = table.without(HUGE, 20_000, generator(0, "test"))
        forbid = case.forbid("huge", by_pattern("huge task")).detail
        assert isinstance(forbid, ArmDetail)
        assert near(forbid.hits, forbid.n, filtered.rate)
        assert (forbid.rejected or 0) / 150 == pytest.approx(rejected / 20_000, abs=0.3)
        run = next(run for run in case.play("baseline", {}) if run.behavior)
        said = case.messages_of(run)[-2].text
        node, found = 0, case.resample(run, k=40)
        for j, pair in enumerate(organisms.SENTENCES):
            node = 2 * node + [sentence in said for sentence in pair].index(True)
            cut, valid = table.ahead[j + 1][node]
            assert near(40 * found.rates[j + 1], 40, cut / valid)
