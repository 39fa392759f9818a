"""detours: what a detour is, golden numbers, and a run with its marks, its continuations and its findings."""

from __future__ import annotations

from pathlib import Path

import pytest
from lights.detours.algorithm import Detour, DetoursConfig, first_return, weigh
from lights.detours.verbs import MAKER, attempts_of, mark, play
from lights.environment import LightsEnvironment
from lights.model import Expert

from ramify.base.progress import SILENT
from ramify.jobs.play import play as play_tasks
from ramify.rollout.stored import WhoPlays
from ramify.stats.drops import Counts
from ramify.trace.db import Run


@pytest.mark.parametrize(
    ("states", "back"),
    [("", None), ("a", None), ("abc", None), ("aab", (0, 0)), ("abcb", (2, 1)), ("abab", (1, 0)), ("abcc", (2, 2))],
)
def test_the_first_step_back_is_found(states: str, back: tuple[int, int] | None) -> None:
    assert first_return(states) == back


def test_golden_numbers() -> None:
    """2 of 10 against 7 of 10: the interval is Newcombe's (1998, method 10); 3 of 4 continuations from one state: Wilson's."""
    detours = [Detour("task", "before", f"reply {i}", 1, 0, i < 2) for i in range(10)]
    found = weigh(detours, [i < 7 for i in range(10)], {"before": Counts(3, 4)})
    assert found.difference is not None
    assert found.difference.success == pytest.approx(-0.5)
    assert found.difference.interval == pytest.approx((-0.7398, -0.0665), abs=1e-4)
    assert found.costly
    forks = found.detours[0].forks
    assert forks is not None
    assert forks.interval == pytest.approx((0.3006, 0.9544), abs=1e-4)
    alike = weigh(detours, [i < 2 for i in range(10)], {})
    assert (alike.costly, weigh(detours, [], {}).difference) == (False, None)


def test_a_run_is_marked_and_continued_from_before_its_detours(tmp_path: Path, forbid_real_calls: None) -> None:
    play_tasks(Expert(), LightsEnvironment(), attempts=4, out=tmp_path / "run", seed=1)
    who, config = WhoPlays(Expert(), LightsEnvironment()), DetoursConfig(fork=3)
    with Run.open(tmp_path / "run", write=True) as run:
        attempts = attempts_of(run, config)
        detours = [detour for _, detour in attempts if detour]
        played = play(run, detours, config.fork, who, SILENT)
        assert {attempt.start for attempt in played} == {detour.before for detour in detours}
        nodes = len(run)
        again = play(run, detours, config.fork, who, SILENT)
        assert ([attempt.leaf for attempt in again], len(run)) == ([attempt.leaf for attempt in played], nodes)
        assert len(attempts_of(run, config)) == len(attempts)  # forks are none
        mark(run, weigh(detours, [], {}), config)
        assert {note.node for note in run.annotations(name="detour", maker=MAKER)} == {detour.reply for detour in detours}
        assert {finding.node for finding in run.findings(maker=MAKER)} == {detour.reply for detour in detours}
        for view, detour in attempts:
            keys = [step.state_key for step in view.steps] + [view.end.state_key]
            assert (detour is None) == (len(set(keys)) == len(keys))
