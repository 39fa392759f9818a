"""Scans: budgeted against faithful on exact potentials, on the real engine, within a budget; ablation, candidates, pairs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramify.base.errors import NeedsError, UserError
from ramify.base.seeds import derive_key, generator, uniforms
from ramify.methods.cliffs.algorithm import correct
from ramify.methods.cliffs.forks import Chances, ReplyForks, ScoredForks
from ramify.methods.cliffs.report import ablation_table
from ramify.methods.cliffs.run import AblatedCliff, ScanConfig, Scanned, ScanResult, ablate, examine, mass_under, pairs, scan
from ramify.model.protocol import Sampling
from ramify.rollout.potential import ForkEnd
from ramify.rollout.steps import StepForks, step_trace
from ramify.rollout.token_traces import TokenProblem, TokenTrace
from ramify.stats.drops import Counts, ZTest
from ramify.trace.db import Run
from tests.methods.cliffs.digits import END, Digits, model
from tests.rollout.test_steps import played


class Simulated(ScoredForks):
    """Forks of replies whose potential is known: trace id -> (T + 1,)."""

    def __init__(self, v: dict[str, np.ndarray], pi: dict[str, np.ndarray] | None) -> None:
        super().__init__(self.drawn)
        self.v, self.pi = v, pi

    async def drawn(self, trace: TokenTrace, t: Any, numbers: range, purpose: str) -> list[ForkEnd]:
        u = uniforms(np.full(len(numbers), derive_key(0, trace.id, t, purpose)), np.array(numbers))
        return [ForkEnd(right) for right in (u < self.v[trace.id][t]).tolist()]

    async def chances(self, trace: TokenTrace) -> Chances:
        return Chances(None if self.pi is None else self.pi[trace.id])


def of(name: str, length: int, correct: bool | None = False) -> TokenTrace:
    return TokenTrace(name, name, (1,), tuple(range(length)), Sampling(), correct=correct, stop="length")


def process(traces: int, seed: int = 0, tokens: int = 150) -> tuple[Simulated, list[TokenTrace]]:
    """Replies whose potential is a martingale under the sampler: mostly forced tokens, some choices, few that matter much."""
    rng, v, pi = generator(seed, "process"), {}, {}
    out = []
    for name in map(str, range(traces)):
        potential, chances = [rng.uniform(0.3, 0.95)], []
        for _ in range(tokens):
            which = rng.choice(3, p=(0.8, 0.13, 0.07))
            q = np.array([0.995, 0.005]) if which == 0 else rng.dirichlet(([4, 1, 0.5], [1.5, 1, 0.7, 0.5])[which - 1])
            deviation = rng.normal(size=len(q)) * (0.12, 0.12, 0.35)[which]
            deviation -= q @ deviation
            room = np.where(deviation > 0, 1 - potential[-1], potential[-1]) / np.maximum(np.abs(deviation), 1e-12)
            token = rng.choice(len(q), p=q)
            potential.append(float(np.clip(potential[-1] + deviation[token] * min(1.0, room.min()), 0, 1)))
            chances.append(q[token])
        v[name], pi[name] = np.array(potential), np.array(chances)
        out.append(of(name, tokens, bool(rng.random() < potential[-1])))
    return Simulated(v, pi), out


def run(traces: Sequence[TokenTrace], forks: Any, **settings: Any) -> ScanResult:
    return asyncio.run(scan(traces, forks, ScanConfig(**settings)))


def places(result: ScanResult, *statuses: str) -> set[tuple[str, int]]:
    return {(cliff.trace_id, cliff.t) for one in result.scanned for cliff in one.of(*statuses)}


@pytest.mark.slow
def test_the_budgeted_scan_finds_what_the_faithful_one_confirms() -> None:
    forks, traces = process(25, seed=0)
    faithful = run(traces, forks, faithful=True, confirm=128)
    whole = 64 * 151 * 25
    assert sum(c.forks for one in faithful.scanned for c in one.trace.potentials or () if c) == whole
    cheap = Simulated(forks.v, forks.pi)
    budgeted = run(traces, cheap)
    reference, found = places(faithful, "confirmed"), places(budgeted, "confirmed")
    assert len(reference) > 5
    assert len(reference - found) <= 1
    assert cheap.spent().forks <= 0.2 * whole
    assert cheap.spent().forks == budgeted.spent.forks == sum(one.forks for one in budgeted.scanned)
    assert not places(budgeted, "found")


def test_a_faithful_scan_confirms_nothing_unless_asked() -> None:
    forks, traces = process(4)
    result = run(traces, forks, faithful=True)
    assert places(result, "confirmed", "refuted") == set()
    assert {len(one.trace.potentials or ()) for one in result.scanned} == {151}


def test_false_cliffs_are_refuted() -> None:
    """A flat potential at one half: what the test finds there is chance, and little of it survives fresh forks."""
    flat = Simulated({str(i): np.full(301, 0.5) for i in range(10)}, None)
    traces = [of(str(i), 300) for i in range(10)]
    result = run(traces, flat, faithful=True, confirm=128)
    found = places(result, "confirmed", "refuted")
    assert 1 <= len(found) <= 25  # 0.003 a token, 3,000 tokens
    assert len(places(result, "confirmed")) <= 1


def test_false_discoveries_are_bounded_over_the_whole_scan() -> None:
    """Three hundred replies, each with a token that loses exactly a tenth:
    corrected one by one, some of them would be confirmed."""
    names = [str(i) for i in range(300)]
    forks = Simulated({name: np.array([0.5, 0.4]) for name in names}, {name: np.array([0.5]) for name in names})
    scanned = run([of(name, 1) for name in names], forks).scanned
    assert sum(len(one.cliffs) for one in scanned) > 30
    assert not any(one.of("confirmed") for one in scanned)
    assert sum(cliff.status == "confirmed" for one in scanned for cliff in correct(one.cliffs, 0.05)) > 0


def test_candidates_are_looked_for_at_a_level_of_their_own() -> None:
    """Drops of a quarter: the test that has the last word finds half of them on 64 forks, and fresh forks confirm most."""
    names = [str(i) for i in range(60)]
    forks = Simulated({name: np.array([0.6, 0.35]) for name in names}, {name: np.array([0.4]) for name in names})
    traces = [of(name, 1) for name in names]
    loose, strict = (len(places(run(traces, forks, candidate=level), "confirmed")) for level in (ScanConfig().candidate, 0.05))
    assert loose >= strict + 9
    unchecked = run(traces, forks, confirm=0)  # what nothing checks is found at the test's own level
    assert places(unchecked, "found") == {
        key for key in places(run(traces, forks), "confirmed", "refuted") if _fires(unchecked, key)
    }


def _fires(result: ScanResult, key: tuple[str, int]) -> bool:
    potentials = next(one.trace.potentials for one in result.scanned if one.trace.id == key[0])
    return ZTest().fires(potentials[key[1] - 1], potentials[key[1]])


def test_forks_are_saved_where_the_bound_leaves_no_drop() -> None:
    """At a potential of .9 a token of probability .8 can lose .025 at most; at .3 it can lose .175."""
    spent = {}
    for v in (0.9, 0.3):
        names = [str(i) for i in range(20)]
        spent[v] = Simulated({name: np.full(2, v) for name in names}, {name: np.array([0.8]) for name in names})
        run([of(name, 1) for name in names], spent[v])
    assert spent[0.9].spent().forks < 1.1 * 20 * 2 * 16 < spent[0.3].spent().forks


def test_v0_makes_the_first_token_testable() -> None:
    forks = Simulated({"a": np.array([0.9, 0.1, 0.1])}, {"a": np.array([0.2, 0.99])})
    (one,) = run([of("a", 2)], forks).scanned
    assert [(c.t, c.token_id, c.status) for c in one.cliffs] == [(1, 0, "confirmed")]
    assert one.trace.potentials is not None
    assert one.trace.potentials[2] is None  # not measured, not filled


def test_drift_is_not_blamed_on_the_next_token() -> None:
    """20 tokens of probability 0.98 may lose 0.4 together; the estimate is taken anew before the token behind them."""
    v = np.array([0.9, *np.linspace(0.9, 0.5, 20), 0.5])
    forks = Simulated({"a": v}, {"a": np.array([*[0.98] * 20, 0.4])})
    (one,) = run([of("a", 21)], forks).scanned
    assert one.cliffs == ()


def test_early_stop_leaves_positions_unmeasured() -> None:
    forks = Simulated({"a": np.array([0.8, 0.0, *[0.0] * 40])}, None)
    (one,) = run([of("a", 41)], forks, faithful=True, early_stop=20).scanned
    assert one.trace.early_stopped_at == 20
    assert one.trace.potentials is not None
    assert all(c is None for c in one.trace.potentials[21:])
    assert one.forks == 21 * 64


def test_a_budget_ends_a_scan_between_traces() -> None:
    forks, traces = process(6)
    result = run(traces, forks, budget_rollouts=3000)
    assert 0 < len(result.scanned) < 6
    assert [*(one.trace.id for one in result.scanned), *(t.id for t in result.left)] == [t.id for t in traces]
    whole = run(traces, Simulated(forks.v, forks.pi))
    fresh = [[[(c.t, c.fresh) for c in one.cliffs] for one in found.scanned] for found in (result, whole)]
    assert fresh[0] == fresh[1][: len(result.scanned)]
    assert not run(traces, forks, budget_rollouts=1).scanned


def test_the_screen_needs_probabilities() -> None:
    forks = Simulated({"a": np.array([0.9, 0.1])}, None)
    with pytest.raises(NeedsError, match="--screen none"):
        run([of("a", 1)], forks)
    assert places(run([of("a", 1)], forks, screen="none"), "confirmed") == {("a", 1)}


def test_ablation() -> None:
    forks = Simulated({"a": np.array([0.8, 0.8, 0.1, 0.1]), "b": np.array([0.9, 0.9])}, None)
    scanned = run([of("a", 3), of("b", 1), of("c", 3, None)][:2], forks, screen="none").scanned
    (record,) = asyncio.run(ablate(scanned, forks))
    assert record.t == 2
    assert record.cuts["del"] == 1
    assert record.cuts["keep"] == 2
    assert record.counts["del"].k > 40 > 20 > record.counts["keep"].k
    assert record.counts["critical"] is None  # the potential never reaches 0
    right = [replace(scanned[0], trace=replace(scanned[0].trace, correct=True))]
    assert asyncio.run(ablate(right, forks)) == []
    with pytest.raises(UserError, match="unknown control 'tangle'"):
        asyncio.run(ablate(scanned, forks, controls=["tangle"]))


def starts_low(text: str, trace: TokenTrace) -> bool:
    """Right where the first digit is 0 or 1: everything is decided at the first token."""
    return text[:1] in ("0", "1")


def test_the_whole_way_on_the_engine() -> None:
    sampling = Sampling(max_tokens=6)
    forks = ReplyForks(model(), Digits(), starts_low, sampling, truncated="graded")
    traces = asyncio.run(forks.sample([TokenProblem("p", (1, 2))], 12))
    wrong = [t for t in traces if not t.correct][:2]
    result = run(wrong, forks)
    assert [[(c.t, c.status) for c in one.cliffs] for one in result.scanned] == [[(1, "confirmed")]] * len(wrong)
    assert result.spent.forward_tokens < result.spent.sampled_tokens + 0.1 * result.spent.given_tokens
    assert all(one.gap < 1e-4 for one in result.scanned)
    again = run(wrong[::-1], ReplyForks(model(), Digits(), starts_low, sampling, truncated="graded"))
    assert {one.trace.id: one.trace.potentials for one in again.scanned} == {
        one.trace.id: one.trace.potentials for one in result.scanned
    }
    test = ZTest()
    (examined, *_) = asyncio.run(examine(result.scanned[:1], forks, test, top=5))
    good = {c.token_id for c in examined.candidates if not c.is_cliff}
    assert good == {0, 1}
    bad = sum(c.q for c in examined.candidates if c.token_id not in good)
    assert examined.mass == pytest.approx(bad)
    rows = pairs([examined])
    assert {row.chosen_id for row in rows} == good
    assert {row.rejected_id for row in rows} == {wrong[0].response_ids[0]}
    assert rows[0].prompt_ids == (1, 2)
    assert pairs([examined], hard=True) == rows
    same = asyncio.run(mass_under([examined], forks))
    assert same[0].delta == pytest.approx(0, abs=1e-6)
    other = ReplyForks(model(7), Digits(), starts_low, sampling)
    every = asyncio.run(other.alternatives(wrong[0], 0, 5))
    (mass,) = asyncio.run(mass_under([examined], other))
    assert mass.cpm_other == pytest.approx(sum(every[token] for token in every if token not in good))  # however unlikely there
    assert abs(mass.delta) > 1e-3
    stranger = ReplyForks(model(7), Digits(), starts_low, sampling)
    stranger.tokenizer = type("Other", (Digits,), {"hash": "other"})()
    with pytest.raises(NeedsError, match="another tokenizer"):
        asyncio.run(mass_under([examined], stranger))
    kept = asyncio.run(ablate([Scanned(result.scanned[0].trace, result.scanned[0].cliffs)], forks))
    assert kept[0].counts["keep"].k == 0
    assert kept[0].counts["del"].k > 0


def test_steps_of_an_agent(tmp_path: Path) -> None:
    """The second door decides: the same scan finds it with forks of the environment in place of forks of text."""
    with Run.create(tmp_path / "run", {}) as run_:
        made, attempt = played(run_, False)
        (one,) = run([step_trace(made, attempt)], StepForks(made), screen="none", n=32, confirm=48).scanned
        assert [(c.t, c.status) for c in one.cliffs] == [(2, "confirmed")]
        with pytest.raises(NeedsError, match="--screen none"):
            run([step_trace(made, attempt)], StepForks(made))


def test_a_reply_that_does_not_fit_is_told_and_the_others_continue() -> None:
    forks = ReplyForks(model(), Digits(), starts_low, Sampling(max_tokens=60), truncated="graded")
    long = TokenTrace("long", "p", (1, 2), (2,) * 40, Sampling(max_tokens=60), correct=False)
    short = TokenTrace("short", "p", (1, 2), (2, END), Sampling(max_tokens=6), correct=False)
    result = run([long, short], forks)
    assert [one.trace.id for one in result.scanned] == ["short"]
    assert "do not fit the context of 32" in result.failed["long"]


class Dying(Simulated):
    """A model that is gone after some forks."""

    def __init__(self, v: dict[str, np.ndarray], lives: int) -> None:
        super().__init__(v, None)
        self.lives = lives

    async def drawn(self, trace: TokenTrace, t: Any, numbers: range, purpose: str) -> list[ForkEnd]:
        ends = await super().drawn(trace, t, numbers, purpose)
        alive = self.spent().forks + len(ends) <= self.lives
        return ends if alive else [ForkEnd(None, failure="no memory")] * len(ends)


@pytest.mark.parametrize(
    ("lives", "faithful"), [(0, False), (100, False), (300, False), (0, True), (64 * 9, True), (64 * 10 + 64, True)]
)
def test_a_trace_on_which_the_model_died_is_not_stored(lives: int, faithful: bool) -> None:
    """Be it at once, among the positions, or in the confirmation."""
    v = np.array([0.9] * 5 + [0.1] * 5)
    result = run([of("a", 9)], Dying({"a": v}, lives), faithful=faithful, confirm=128, screen="none")
    assert not result.scanned
    assert "no memory" in result.failed["a"]


def test_a_reply_whose_own_end_has_no_verdict_is_scanned() -> None:
    class Unsure(Simulated):
        async def drawn(self, trace: TokenTrace, t: Any, numbers: range, purpose: str) -> list[ForkEnd]:
            return [ForkEnd(None)] * len(numbers) if t == 3 else await super().drawn(trace, t, numbers, purpose)

    (one,) = run([of("a", 3)], Unsure({"a": np.full(4, 0.5)}, None), screen="none").scanned
    assert one.trace.potentials[3] == Counts(0, 0, missing=64)


def test_controls_are_sampled_once_a_trace() -> None:
    forks = Simulated({"a": np.array([0.9, 0.9, 0.5, 0.5, 0.1, 0.1])}, None)
    scanned = run([of("a", 5)], forks, screen="none").scanned
    forks = Simulated(forks.v, None)
    records = asyncio.run(ablate(scanned, forks, which="all"))
    assert [record.t for record in records] == [2, 4]
    assert ["random" in record.counts for record in records] == [True, False]
    assert forks.spent().forks == 64 * (4 + sum(records[0].counts[arm] is not None for arm in ("random", "critical", "tangent")))
    table = ablation_table(records, [1])
    assert {row.arm: row.cliffs for row in table.arms} == {"del": 2, "keep": 2, "random": 1, "critical": 1, "tangent": 1}
    assert table.gap_interval == (table.gap, table.gap)  # one trace: its cliffs are sampled anew together


def test_an_ablation_with_ungraded_forks() -> None:
    """Every arm is of the same cliffs, and nothing is lost after all forks were sampled."""
    records = [
        ablated("a", Counts(64, 64), Counts(0, 64), None),
        ablated("b", Counts(0, 64), Counts(63, 63), Counts(64, 64)),
        ablated("c", Counts(9, 9), Counts(0, 0), Counts(64, 64)),
    ]
    table = ablation_table(records, [1, 64])
    rows = {row.arm: row for row in table.arms}
    assert rows["del"].passes == rows["keep"].passes == rows["random"].passes == {1: 0.5, 64: 0.5}
    assert [row.cliffs for row in rows.values()] == [2, 2, 2]
    assert (table.left_out, table.short) == (1, {1: 0, 64: 1})
    nothing = ablation_table(records[2:], [64])
    assert (nothing.arms[0].passes, nothing.arms[0].intervals, nothing.gap) == ({64: None}, {64: None}, None)
    assert ablation_table([], [1]).gap is None


def ablated(trace: str, before: Counts, after: Counts, control: Counts | None) -> AblatedCliff:
    return AblatedCliff(trace, 1, None, {}, {"del": before, "keep": after, "random": control})


def test_traces_without_a_verdict_are_judged() -> None:
    forks = ReplyForks(model(), Digits(), starts_low)
    unjudged = [TokenTrace(name, name, (1, 2), ids, Sampling()) for name, ids in (("a", (2, END)), ("b", (1, END)))]
    known = TokenTrace("c", "c", (1, 2), (1, END), Sampling(), correct=False)
    assert [trace.correct for trace in asyncio.run(forks.judged([*unjudged, known]))] == [False, True, False]
