"""Theories and metrics as programs nobody trusts: closed forms of the canonical ones,
and every listed error as a recorded problem."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramify.base.errors import UserError
from ramify.methods.theory_loop import bench as bench_module
from ramify.methods.theory_loop.bench import Metric, TheoryBench, projected, projection
from ramify.methods.theory_loop.canonical import CANONICAL, find_theory
from ramify.methods.theory_loop.domain import PROBLEMS, Data, Design, TheoryError, hilbig, random_design, read_design
from ramify.methods.theory_loop.theories import SAMPLE, Theory, check_theory, draw, read_theory
from ramify.methods.theory_loop.verbs import alike_pairs

PAIR = Design((0.9, 0.8, 0.7, 0.6), ((0, 1, 1, 1), (0, 1, 1, 1)), ((1, 0, 0, 1), (1, 0, 0, 0)))
"""0111 against 1001, and 0111 against 1000."""
SURE = {"beta": "[500, 500]", "epsilon": "[0, 0]"}


def boxed(work: Callable[[TheoryBench], Awaitable[Any]], seconds: float = 20.0) -> Any:
    async def main() -> Any:
        async with TheoryBench(seconds) as bench:
            return await work(bench)

    return asyncio.run(main())


def p_b(design: Design, theories: dict[str, Theory]) -> dict[str, np.ndarray]:
    async def work(bench: TheoryBench) -> dict[str, np.ndarray]:
        return {name: (await bench.tables(theory, [(design, 3)], 0))[0].mean(axis=0) for name, theory in theories.items()}

    found: dict[str, np.ndarray] = boxed(work)
    return found


def fixed(name: str, **ranges: float) -> Theory:
    theory = CANONICAL[name]
    return replace(
        theory, parameters={**theory.parameters, **SURE, **{key: f"[{value}, {value}]" for key, value in ranges.items()}}
    )


def test_the_pair_that_tells_three_theories_apart() -> None:
    found = p_b(PAIR, {name: fixed(name) for name in ("ttb", "tallying", "validity-wadd")})
    assert found["ttb"][0] > 0.99
    assert found["tallying"][0] < 0.01
    assert found["validity-wadd"][0] < 0.01


def test_one_dial_and_rank_decay_flip_where_they_must() -> None:
    golden = (5**0.5 - 1) / 2
    below = {"gamma": 3.94139 - 0.01, "decay": golden + 0.005}
    above = {"gamma": 3.94139 + 0.01, "decay": golden - 0.005}
    theories = {
        f"{name} {side}": fixed(name, **{key: ends[key]})
        for side, ends in (("a", below), ("b", above))
        for name, key in (("power-weights", "gamma"), ("rank-decay", "decay"))
    }
    theories |= {"late a": fixed("power-weights", gamma=4.85166 - 0.01), "late b": fixed("power-weights", gamma=4.85166 + 0.01)}
    theories |= {"slow a": fixed("rank-decay", decay=0.54369 + 0.005), "slow b": fixed("rank-decay", decay=0.54369 - 0.005)}
    found = p_b(PAIR, theories)
    for name in ("power-weights", "rank-decay"):
        assert found[f"{name} a"][0] < 0.5 < found[f"{name} b"][0], name
    for name in ("late", "slow"):
        assert found[f"{name} a"][1] < 0.5 < found[f"{name} b"][1], name


def test_gamma_0_is_equal_weights_and_tallying_only_of_binary_ratings() -> None:
    theories = {"zero": fixed("power-weights", gamma=0.0), "equal": fixed("equal-weight"), "tally": fixed("tallying")}
    found = p_b(hilbig(), theories)
    np.testing.assert_allclose(found["zero"], found["equal"], atol=1e-6)
    np.testing.assert_allclose(found["zero"], found["tally"], atol=1e-6)
    steep = Design((0.9, 0.7), ((5, 0),), ((1, 3),), 5)
    cardinal = p_b(steep, theories)
    assert cardinal["zero"][0] == pytest.approx(cardinal["equal"][0])
    assert abs(cardinal["zero"][0] - cardinal["tally"][0]) > 0.4


def test_the_winner_of_take_the_best_is_chosen_as_often_as_integration_says() -> None:
    async def work(bench: TheoryBench) -> float:
        table = (await bench.tables(CANONICAL["ttb"], [(Design((0.9, 0.6), ((1, 0),), ((0, 1),)), 20_000)], 0))[0]
        return float(1 - table.mean())

    assert boxed(work) == pytest.approx(0.8507, abs=0.003)


def test_diminishing_returns_in_numbers() -> None:
    """u(x) at alpha .5 and s 1; one cue against another of equal validity."""
    design = Design((0.8, 0.8), tuple((x, 0) for x in range(6)), tuple((0, 0) for _ in range(6)), 5)
    theory = replace(
        CANONICAL["dr-wadd"], parameters={"alpha": "[0.5, 0.5]", "s": "[1, 1]", "beta": "[2, 2]", "epsilon": "[0, 0]"}
    )
    linear = replace(theory, parameters={**theory.parameters, "alpha": "[1, 1]", "s": "[3, 3]"})
    found = {name: -np.log(p / (1 - p)) for name, p in p_b(design, {"concave": theory, "linear": linear}).items()}
    np.testing.assert_allclose(found["concave"], [0, 0.4142, 0.7321, 1, 1.2361, 1.4495], atol=1e-3)
    np.testing.assert_allclose(found["linear"], np.arange(6), atol=1e-3)


def test_a_policy_of_ones_own_makes_choices_deterministic() -> None:
    code = (
        "def predict(parameters, state, history):\n    return [0.4, 0.6]\n\n\ndef policy(probs):\n    return "
        "int(np.argmax(probs))\n"
    )
    data = boxed(lambda bench: bench.simulate(Theory("", {}, code), PAIR, 5, 0))
    assert data.response.all()


def test_samples_are_decided_by_the_seed_alone() -> None:
    async def work(bench: TheoryBench) -> list[Data]:
        return [
            await bench.simulate(CANONICAL[name], PAIR, 6, seed, "x") for name in ("wadd", "perseveration") for seed in (1, 1, 2)
        ]

    found = boxed(work)
    for first, again, other in (found[:3], found[3:]):
        np.testing.assert_array_equal(first.response, again.response)
        np.testing.assert_array_equal(first.order, again.order)
        assert (first.response != other.response).any()


def test_one_theory_cannot_touch_the_next() -> None:
    """A request's process ends with it: numpy patched by one theory is whole for the next."""
    bad = Theory("", {}, "np.exp = None\n\n\ndef predict(parameters, state, history):\n    return [0.5, 0.5]\n")

    async def work(bench: TheoryBench) -> np.ndarray:
        await bench.tables(bad, [(PAIR, 2)], 0)
        return (await bench.tables(fixed("validity-wadd"), [(PAIR, 2)], 0))[0]

    assert boxed(work)[0][0] < 0.01


PROGRAMS = {
    "sums to less": ("probabilities", "return [0.3, 0.3]"),
    "negative": ("probabilities", "return [-0.5, 1.5]"),
    "no pair": ("probabilities", "return 0.5"),
    "text": ("probabilities", "return 'A'"),
    "not a number": ("probabilities", "return [float('nan'), 0.5]"),
    "raises on one pair": ("raised", "return [0.5, 0.5] if state['option_b_ratings'][3] else [1 / 0, 0]"),
    "samples inside": ("not repeatable", "p = np.random.rand()\n    return [p, 1 - p]"),
    "too slow": ("time", "while True:\n        pass"),
    "asks for too much": ("memory", "np.ones(10**12)\n    return [0.5, 0.5]"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_theory_does_wrong_is_a_problem(name: str) -> None:
    kind, body = PROGRAMS[name]
    theory = Theory("", {}, f"def predict(parameters, state, history):\n    {body}\n")

    async def work(bench: TheoryBench) -> Data:
        with pytest.raises(TheoryError) as caught:
            await bench.simulate(theory, PAIR, 3, 0)
        assert caught.value.kind == kind, caught.value.why
        return await bench.simulate(CANONICAL["coin"], PAIR, 3, 0)  # and the box is whole

    assert len(boxed(work, seconds=1.0).order) == 3


SOURCES = {
    "imports the system": "import os\ndef predict(p, s, h):\n    return [0.5, 0.5]\n",
    "imports from it": "from subprocess import run\ndef predict(p, s, h):\n    return [0.5, 0.5]\n",
    "reads files": "def predict(p, s, h):\n    return open('/etc/passwd')\n",
    "keeps state": "n = 0\ndef predict(p, s, h):\n    global n\n    n += 1\n    return [0.5, 0.5]\n",
    "reaches around": "def predict(p, s, h):\n    return ().__class__.__bases__\n",
    "two arguments": "def predict(p, s):\n    return [0.5, 0.5]\n",
    "no predict": "def guess(p, s, h):\n    return [0.5, 0.5]\n",
    "no Python": "def predict(p, s, h) return 1",
    "too deep": "x = " + "(" * 5000 + ")" * 5000,
}


@pytest.mark.parametrize("name", SOURCES)
def test_source_is_read_before_it_runs(name: str) -> None:
    with pytest.raises(TheoryError) as caught:
        check_theory(Theory("", {}, SOURCES[name]))
    assert caught.value.kind == "code"


def test_a_batch_form_that_says_something_else_is_refused() -> None:
    code = (
        "def predict(p, s, h):\n    return [0.5, 0.5]\n\n\ndef predict_all(p, a, b, v):\n    return np.full((1, len(a)), 0.7)\n"
    )
    with pytest.raises(TheoryError) as caught:
        boxed(lambda bench: bench.simulate(Theory("", {}, code), PAIR, 3, 0))
    assert caught.value.kind == "batch differs"


METRICS = {
    "raises": ("raised", "def metric(data):\n    return data['nothing'].mean()\n"),
    "no number": ("metric value", "def metric(data):\n    return float('nan')\n"),
    "imports": ("code", "import socket\n\n\ndef metric(data):\n    return 1.0\n"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", METRICS)
def test_what_a_metric_does_wrong_is_a_problem(name: str) -> None:
    kind, code = METRICS[name]

    async def work(bench: TheoryBench) -> None:
        data = await bench.simulate(CANONICAL["ttb"], PAIR, 3, 0)
        with pytest.raises(TheoryError) as caught:
            await bench.measure(Metric(code), data)
        assert caught.value.kind == kind

    boxed(work)


@pytest.mark.slow
def test_metrics_that_need_several_subjects_and_that_change_their_table() -> None:
    several = "def metric(data):\n    assert data['subject_id'].nunique() > 1\n    return float(data['response'].mean())\n"
    changes = "def metric(data):\n    value = float(data['response'].mean())\n    data['response'] = 0\n    return value\n"

    async def work(bench: TheoryBench) -> None:
        data = await bench.simulate(CANONICAL["ttb"], PAIR, 4, 0)
        found, notes = await bench.measure(Metric(several), data)
        assert found.variance is None
        assert [kind for kind, _ in notes] == ["metric per subject"]
        found, notes = await bench.measure(Metric(changes), data)
        assert found.value == pytest.approx(data.response.mean())
        assert found.variance == pytest.approx(data.response.mean(axis=1).var())
        assert [kind for kind, _ in notes] == ["metric changes data"]

    boxed(work)


def test_a_projection_is_what_its_source_computes_whatever_the_order_of_trials() -> None:
    design = random_design(np.random.default_rng(3))
    weights = np.random.default_rng(4).normal(size=design.pairs).round(4).tolist()

    async def work(bench: TheoryBench) -> None:
        data = await bench.simulate(CANONICAL["wadd"], design, 7, 0)
        found, _ = await bench.measure(projection(design, weights), data, checked=True)
        assert found.value == pytest.approx(projected(data, weights).value)
        mixed = Data(design, data.order[:, ::-1], data.response[:, ::-1], data.subjects)
        assert (await bench.measure(projection(design, weights), mixed, checked=True))[0].value == pytest.approx(found.value)
        with pytest.raises(TheoryError, match="weights"):
            await bench.measure(replace(projection(design, weights), weights=tuple(w + 1 for w in weights)), data, checked=True)

    boxed(work)


def test_what_comes_next_given_what_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A theory that repeats is right about a subject who repeats, a coin at one half."""
    order = PAIR.orders(2, 0)
    data = Data(PAIR, order, np.zeros_like(order))

    async def work(bench: TheoryBench) -> None:
        repeats = await bench.forced(CANONICAL["perseveration"], data, 40, 0)
        coin = await bench.forced(CANONICAL["coin"], data, 5, 0)
        assert (coin == 0.5).all()
        assert repeats[0, 0] == pytest.approx(0.5)
        assert (repeats[:, 1:] < 0.2).all()
        requests = bench.requests
        monkeypatch.setattr(bench_module, "CALLS", 40 * order.shape[1])  # a request then holds one subject
        assert (await bench.forced(CANONICAL["perseveration"], data, 40, 0) == repeats).all()
        assert bench.requests == requests + 2

    boxed(work)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, theory in CANONICAL.items() if theory.limits])
def test_a_theory_is_at_its_limits_what_it_says(name: str) -> None:
    """On ratings from 0 to 5, too, where a limit does not name tallying, which counts cues."""
    theory = CANONICAL[name]
    cardinal = random_design(np.random.default_rng(4), pairs=40, rating_max=5)

    async def work(bench: TheoryBench) -> None:
        for limit, other in theory.limits.items():
            for design in (hilbig(), cardinal):
                tallies = other == "tallying" and name == "power-weights" and design is cardinal
                alike = await alike_pairs(bench, theory.at(limit), CANONICAL[other], design, 0)
                assert (alike == design.pairs) != (tallies or (design is cardinal and "12" in limit)), (limit, alike)
            assert await alike_pairs(bench, theory.at(limit), CANONICAL["take-the-worst"], hilbig(), 0) < 24

    boxed(work)


DESIGNS: dict[str, tuple[str, dict[str, Any]]] = {
    "unequal options": ("design lengths", {"trial_a_ratings": [[0, 1], [1, 0]]}),
    "short option": ("design lengths", {"trial_a_ratings": [[0]]}),
    "no pairs": ("design lengths", {"trial_a_ratings": [], "trial_b_ratings": []}),
    "rating too large": ("design range", {"trial_a_ratings": [[0, 2]]}),
    "rating between": ("design range", {"trial_a_ratings": [[0, 0.5]]}),
    "validity too small": ("design range", {"validities": [0.9, 0.4]}),
    "validity a text": ("design range", {"validities": [0.9, "high"]}),
    "scale of another kind": ("design range", {"rating_max": 5}),
    "no list": ("design", {"trial_b_ratings": "none"}),
}


@pytest.mark.parametrize("name", DESIGNS)
def test_designs_that_are_none(name: str) -> None:
    kind, change = DESIGNS[name]
    good = {"validities": [0.9, 0.6], "trial_a_ratings": [[0, 1]], "trial_b_ratings": [[1, 0]]}
    assert read_design(good, "binary").repeats == 96
    with pytest.raises(TheoryError) as caught:
        read_design({**good, **change}, "binary")
    assert caught.value.kind == kind
    assert kind in PROBLEMS


def test_parameters_in_four_notations() -> None:
    rng, design = np.random.default_rng(0), PAIR
    values = draw("[2, 4]", "x", 500, design, rng)
    assert 2 <= min(values) < 2.1 < 3.9 < max(values) <= 4
    assert set(draw("{1, 3}", "x", 50, design, rng)) == {1, 3}
    assert np.shape(draw("[(0, 1)] * n_features", "x", 7, design, rng)) == (7, 4)
    assert draw("validities", "x", 2, design, rng) == [[0.9, 0.8, 0.7, 0.6]] * 2
    for bad in ("[3, 2]", "0..1", "__import__('os')", "[0, inf]", "[(0, 1)] * 10**9", "lambda: 0", "{}", "[" * 4000):
        with pytest.raises(TheoryError) as caught:
            draw(bad, "x", 2, design, rng)
        assert caught.value.kind == "parameters"


def test_a_theory_is_a_file(tmp_path: Path) -> None:
    for name, theory in CANONICAL.items():
        path = tmp_path / f"{name}.py"
        path.write_text(theory.file())
        read = read_theory(path)
        assert read.description == theory.description
        assert read.limits == theory.limits
        assert read.hash == replace(theory, code=theory.code.strip() + "\n").hash
    path = tmp_path / "own.yaml"
    path.write_text(
        'description: repeats\nparameters: {k: "[0, 1]"}\npredict: |\n  def predict(p, s, h):\n      return [p["k"], 1 - '
        'p["k"]]\npolicy: |\n' + "".join(f"  {line}\n" for line in SAMPLE.splitlines())
    )
    assert read_theory(path).samples
    assert not read_theory(path).reads_history
    for text, what in (
        ("description: x\n", "predict"),
        ("- 1\n", "table"),
        ("a: [", "YAML"),
        ("description: x\npredict: 3\n", "predict"),
        ("description: x\nlimits: [k]\npredict: 'def predict(p, s, h): return [1, 0]'\n", "limits"),
        (
            "description: x\nlimits: {k=0: ttb}\npredict: 'def predict(p, s, h): return [1, 0]'\n",
            "'k=0' does not set a parameter",
        ),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=what):
            read_theory(path)
    with pytest.raises(UserError, match="ttb"):
        find_theory("tbb")
