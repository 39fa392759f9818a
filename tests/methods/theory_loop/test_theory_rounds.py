"""The loop in its run: what it recovers, what it does with proposers and theories that fail,
and that a stop anywhere changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ramify.base.errors import UserError
from ramify.methods.theory_loop.algorithm import LoopConfig
from ramify.methods.theory_loop.bench import Metric, TheoryBench, simulate
from ramify.methods.theory_loop.canonical import CANONICAL
from ramify.methods.theory_loop.domain import Data, Design, TheoryError, hilbig
from ramify.methods.theory_loop.loop import (
    KIND,
    TheoryLoop,
    TheoryLoopReport,
    begin,
    data_of_run,
    loop_of,
    pool_of,
    seeds_of,
    theories_of,
)
from ramify.methods.theory_loop.proposer import AdvocateTurn, TheoryGrammar, TheoryPool, TriedTheory, Verdict, narrowed
from ramify.methods.theory_loop.theories import Theory
from ramify.trace.db import Run
from ramify.trace.node import Finding, Score

SMALL: dict[str, Any] = {
    "rounds": 2,
    "iterations": 3,
    "people": 6,
    "runs": 10,
    "searched": 4,
    "participants": "simulated:tallying",
}
SEEDS = ("ttb", "wadd")


class Broken(TheoryGrammar):
    """A grammar whose replies can be spoiled."""

    name, tries = "broken", None

    async def design(self, pool: TheoryPool, at: AdvocateTurn) -> Design:
        if "design" in SPOILED:
            raise TheoryError("design range", "a rating of 7")
        return await super().design(pool, at)

    async def metric(self, pool: TheoryPool, at: AdvocateTurn, design: Design, own: Data, rival: Data) -> Metric:
        if "metric" in SPOILED:
            return Metric("def metric(data):\n    return data['subject_id'].nunique() / (data['subject_id'].nunique() - 1)\n")
        return await super().metric(pool, at, design, own, rival)

    async def verdict(self, pool: TheoryPool, round: int) -> Verdict:
        if "verdict" in SPOILED:
            raise TheoryError("reply", "no JSON")
        return await super().verdict(pool, round)

    async def theory(
        self,
        pool: TheoryPool,
        round: int,
        iteration: int,
        verdict: Verdict,
        best: Theory | None,
        tried: Sequence[TriedTheory],
        failures: Sequence[str],
    ) -> Theory:
        if "theory" in SPOILED:
            return Theory("broken", {}, "def predict(p, s, h):\n    return [0.9, 0.9]\n")
        if "source" in SPOILED:
            return Theory("broken", {}, "def predict(p, s, h) return 1")
        return await super().theory(pool, round, iteration, verdict, best, tried, failures)

    async def critique(
        self, pool: TheoryPool, round: int, verdict: Verdict, trial: TriedTheory, tried: Sequence[TriedTheory]
    ) -> tuple[bool, str]:
        if "critic" in SPOILED:
            return False, "good enough"
        return await super().critique(pool, round, verdict, trial, tried)


SPOILED: set[str] = set()


def played(folder: Path, spoiled: str = "", **more: Any) -> tuple[TheoryLoopReport, dict[tuple[str, str], Any]]:
    config = LoopConfig(**{**SMALL, **more})

    async def main() -> TheoryLoopReport:
        async with TheoryBench() as bench:
            with begin(config, seeds_of(SEEDS), SEEDS, folder, {}) as run:
                return await TheoryLoop(config, seeds_of(SEEDS), run, bench, proposer=Broken(config, bench)).go()

    SPOILED.clear()
    SPOILED.update(spoiled.split())
    try:
        found = asyncio.run(main())
    finally:
        SPOILED.clear()
    with Run.open(folder) as run:
        return found, {(one.kind, one.key): one.payload for one in run.journal()}


def test_a_loop_and_what_it_leaves_in_the_run(tmp_path: Path) -> None:
    found = loop_of(LoopConfig(**SMALL), SEEDS, tmp_path / "run")
    assert found.rounds == 2
    assert len(found.experiments) == 4
    assert len(found.leaderboard) == 4
    assert found.leaderboard[-1].score == 0 or all(row.score == 1 for row in found.leaderboard)
    with Run.open(tmp_path / "run") as run:
        assert run.kind == KIND
        journal = {(one.kind, one.key): one.payload for one in run.journal()}
        predictions = [key for kind, key in journal if kind == "prediction"]
        assert len(predictions) == 4 * 4  # every admitted theory on every observation
        assert len([one for one in run.each(Score) if one.scorer == "theory-loop loss"]) == 6
        assert {one.name for one in run.each(Finding)} == {"surviving theory"}
        for number in (1, 2):
            losses = [journal["candidate", f"{number}.{i}"] for i in range(3)]
            kept = [one["loss"] for one in losses if one["accepted"]]
            assert losses[0]["accepted"]
            assert kept == sorted(kept, reverse=True)
            assert len(set(kept)) == len(kept)
    assert loop_of(LoopConfig(**SMALL), SEEDS, tmp_path / "run") == found


class Stopped(BaseException):
    """A kill, as the process that is killed sees it: nothing after it runs."""


@pytest.mark.parametrize("after", [0, 4, 12, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 7, 9))])
def test_a_stop_after_any_write_changes_nothing(tmp_path: Path, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _finished(tmp_path_whole(tmp_path))
    writes, log = [0], Run.log

    def counted(self: Run, kind: str, key: str, payload: Any = None) -> bool:
        if writes[0] == after:
            raise Stopped
        writes[0] += 1
        return log(self, kind, key, payload)

    with monkeypatch.context() as patched:
        patched.setattr(Run, "log", counted)
        with pytest.raises(Stopped):
            loop_of(LoopConfig(**{**SMALL, "rounds": 1}), SEEDS, tmp_path / "cut")
    loop_of(LoopConfig(**{**SMALL, "rounds": 1}), SEEDS, tmp_path / "cut")
    assert _journal(tmp_path / "cut") == whole


_KEPT: dict[str, Any] = {}


def tmp_path_whole(tmp_path: Path) -> Path:
    return tmp_path / "whole"


def _finished(folder: Path) -> Any:
    """The journal of the undisturbed loop, made once."""
    if "journal" not in _KEPT:
        loop_of(LoopConfig(**{**SMALL, "rounds": 1}), SEEDS, folder)
        _KEPT["journal"] = _journal(folder)
    return _KEPT["journal"]


def _journal(folder: Path) -> Any:
    with Run.open(folder) as run:
        return sorted((one.kind, one.key, repr(one.payload)) for one in run.journal())


@pytest.mark.slow
def test_more_rounds_continue_and_other_settings_do_not(tmp_path: Path) -> None:
    loop_of(LoopConfig(**{**SMALL, "rounds": 1}), SEEDS, tmp_path / "run")
    found = loop_of(LoopConfig(**SMALL), SEEDS, tmp_path / "run")
    assert found == replace(loop_of(LoopConfig(**SMALL), SEEDS, tmp_path / "at once"), folder=found.folder)
    with pytest.raises(UserError, match="people"):
        loop_of(LoopConfig(**{**SMALL, "people": 7}), SEEDS, tmp_path / "run")
    with pytest.raises(UserError, match="seeds"):
        loop_of(LoopConfig(**SMALL), ("ttb", "tallying"), tmp_path / "run")
    with pytest.raises(UserError, match="two theories"):
        loop_of(LoopConfig(**SMALL), ("ttb",), tmp_path / "other")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoiled", "problem"),
    [
        ("design", "design range"),
        ("metric", "metric per subject"),
        ("verdict", "reply"),
        ("theory", "probabilities"),
        ("source", "code"),
    ],
)
def test_what_fails_is_recorded_and_the_loop_goes_to_its_end(
    tmp_path: Path, spoiled: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, few in (("RETRIES", 2), ("DESIGNS", 1), ("METRICS", 2)):
        monkeypatch.setattr(f"ramify.methods.theory_loop.loop.{name}", few)
    found, journal = played(tmp_path / "run", spoiled)
    assert found.rounds == 2
    assert found.problems[problem] > 0
    recorded = [payload for (kind, _), payload in journal.items() if kind == "problem"]
    assert all(one["where"] and one["why"] for one in recorded)
    if spoiled == "metric":
        assert found.problems["no metric passed"] == 4
        assert not any(one.passed for one in found.experiments)
    if spoiled == "theory":  # the first candidate is accepted whatever it is, and counts 1 everywhere
        assert all(journal["candidate", f"1.{i}"]["loss"] == 1.0 for i in range(3))
        assert [journal["candidate", f"1.{i}"]["accepted"] for i in range(3)] == [True, False, False]
    if spoiled == "source":
        assert found.survivors == ("pi_1", "pi_2")


@pytest.mark.slow
def test_a_critic_ends_a_revision_only_on_an_accepted_candidate(tmp_path: Path) -> None:
    _, journal = played(tmp_path / "run", "critic")
    assert ("candidate", "1.0") in journal
    assert ("candidate", "1.1") not in journal


@pytest.mark.slow
def test_fewer_participants_than_were_asked_for(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("def half(design, orders, seed):\n    return [[t % 2 for t in row] for row in orders]\n")
    found = loop_of(LoopConfig(**{**SMALL, "participants": f"{own}:half", "rounds": 1}), SEEDS, tmp_path / "run")
    assert [one.people for one in found.experiments] == [6, 6]
    own.write_text("def half(design, orders, seed):\n    return [[2 for t in row] for row in orders]\n")
    with pytest.raises(UserError, match="subject 0 chose 2 in trial 0"):
        loop_of(LoopConfig(**{**SMALL, "participants": f"{own}:half", "rounds": 1}), SEEDS, tmp_path / "other")


@pytest.mark.slow
def test_a_program_gives_its_own_participants(tmp_path: Path) -> None:
    """A function takes part as a file's does; the run's settings name it, and another one does not continue the run."""

    def alternate(design: dict[str, Any], orders: list[list[int]], seed: int) -> list[list[int]]:
        return [[t % 2 for t in range(len(row))] for row in orders]

    def repeat(design: dict[str, Any], orders: list[list[int]], seed: int) -> list[list[int]]:
        return [[0 for _ in row] for row in orders]

    config = LoopConfig(**{**SMALL, "rounds": 1, "iterations": 1})
    found = loop_of(config, SEEDS, tmp_path / "run", participants=alternate)
    assert loop_of(config, SEEDS, tmp_path / "run", participants=alternate) == found
    with Run.open(tmp_path / "run") as run:
        assert run.config["participants"].endswith("alternate")
        assert all(data_of_run(run, one).response[0].tolist()[:4] == [0, 1, 0, 1] for one in pool_of(run).observations)
    with pytest.raises(UserError, match="participants"):
        loop_of(config, SEEDS, tmp_path / "run", participants=repeat)
    with pytest.raises(UserError, match="this is a str"):
        loop_of(config, SEEDS, tmp_path / "other", participants="tallying")  # type: ignore[arg-type]
    theories = theories_of(tmp_path / "run")
    assert list(theories) == ["pi_1", "pi_2", "pi_3"]
    data = simulate(theories["pi_1"], hilbig(), n=5, seed=3)
    assert data.response.shape == (5, 96)
    assert (data.response == simulate(theories["pi_1"], hilbig(), n=5, seed=3).response).all()


def test_ranges_only_narrow() -> None:
    import ast

    import numpy as np

    rng, theory = np.random.default_rng(0), CANONICAL["mixture"]
    for _ in range(200):
        smaller = narrowed(theory, rng)
        changed = [name for name in theory.parameters if smaller.parameters[name] != theory.parameters[name]]
        assert len(changed) <= 1
        for name in changed:
            (low, high), (a, b) = (ast.literal_eval(one.parameters[name]) for one in (theory, smaller))
            assert low - 1e-6 <= a <= b <= high + 1e-6
            assert 0.39 * (high - low) <= b - a <= 0.91 * (high - low)
    assert replace(theory, parameters=theory.parameters).hash == theory.hash


@pytest.mark.slow
def test_no_prompt_or_pool_holds_the_hidden_theory(tmp_path: Path) -> None:
    """What every role is shown is the pool: the truth of simulated participants is in none of its texts."""
    seen: list[Any] = []

    class Spy(TheoryGrammar):
        async def verdict(self, pool: TheoryPool, round: int) -> Verdict:
            seen.append(repr(pool))
            return await super().verdict(pool, round)

    config = LoopConfig(**{**SMALL, "participants": "simulated:cue-parity"})

    async def main() -> None:
        async with TheoryBench() as bench:
            with begin(config, seeds_of(SEEDS), SEEDS, tmp_path / "run", {}) as run:
                await TheoryLoop(config, seeds_of(SEEDS), run, bench, proposer=Spy(config, bench)).go()

    asyncio.run(main())
    assert len(seen) == 2
    for line in ("cue-parity", "% 2)", CANONICAL["cue-parity"].description):
        assert not any(line in text for text in seen)
