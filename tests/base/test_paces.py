"""Seconds in dry runs, by what earlier calls took."""

from __future__ import annotations

import gc
from pathlib import Path
from types import SimpleNamespace

import pytest

from ramify.base import paces
from ramify.base.progress import REPLIES, SILENT, RunningReplies
from ramify.kit import _model_of


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Clock:
    monkeypatch.setenv("RAMIFY_CACHE", str(tmp_path))
    monkeypatch.setattr(paces, "time", Clock())
    monkeypatch.setattr(paces, "LEAST", 1.0)
    moved: Clock = paces.time  # type: ignore[assignment]
    return moved


def work(clock: Clock, verb: str, units: int, tokens: int = 0, seconds: float = 20.0) -> None:
    with paces.measured(verb, "m", SILENT, "episodes") as bar:
        bar.begin(100, 5, "load", "weights")
        bar.at(50)  # of another unit: not counted
        bar.begin(100, 10, unit="episodes")
        bar.at(10 + units)
        with REPLIES.begun(1, object()) as count:
            count(tokens)
        clock.now += seconds


def test_a_call_is_told_by_the_units_of_the_last_one_like_it(clock: Clock) -> None:
    work(clock, "play", 4)
    assert paces.seconds("play", "m", "episodes", {"episodes": 40}) == {
        "seconds, at most about": 200,
        "seconds from": "4 episodes of its last call here",
    }
    work(clock, "play", 8)
    assert paces.seconds("play", "m", "episodes", {"episodes": 40})["seconds, at most about"] == 100
    assert len(paces.known()) == 1


def test_another_verb_is_told_by_the_tokens_of_its_model(clock: Clock) -> None:
    work(clock, "play", 4, tokens=50)
    told = paces.seconds("judge", "m", "texts", {"texts": 3, "tokens to sample": 500})
    assert told == {"seconds, at most about": 200, "seconds from": "50 tokens of the last `ramify play` here"}


def test_what_ends_mostly_before_its_bound_is_told_by_the_same_units(clock: Clock) -> None:
    work(clock, "play", 4)
    for estimate in ({"episodes": 40}, {"attempts": 1, "samples": 40}):
        told = paces.seconds("play", "m", "episodes at most", estimate)
        assert told == {"seconds, at most about": 200, "seconds from": "4 episodes of its last call here"}


def test_what_is_not_known_is_said(clock: Clock) -> None:
    work(clock, "play", 4, tokens=50)
    work(clock, "instant", 4, seconds=0.5)
    assert paces.seconds("play", "n", "episodes", {"episodes": 40}) == {
        "seconds": "not known: no such call with n was made on this machine yet"
    }
    assert "call of this run was" in str(paces.seconds("play", f"{paces.RUN}other", "episodes", {"episodes": 40}))
    assert "not known" in str(paces.seconds("instant", "m", "episodes", {"episodes": 40}))
    assert "not known" in str(paces.seconds("judge", "m", "texts", {"texts": 3}))
    assert paces.seconds("play", "m", "episodes", {"episodes": 40, "seconds, about": 3}) == {}
    (Path(paces.cache_folder()) / "paces.json").write_text("[1")
    assert paces.known() == []


def test_tokens_of_a_model_that_is_gone_stay_counted() -> None:
    class Counting:
        tokens = 0

        @property
        def stats(self) -> SimpleNamespace:
            return SimpleNamespace(sampled_tokens=self.tokens)

    replies, model = RunningReplies(), Counting()
    with replies.begun(2, model):
        model.tokens = 7
        assert replies.sampled == 7
    del model
    gc.collect()
    assert replies.sampled == 7
    with replies.begun(1, object()) as count:
        count(3)
    assert replies.sampled == 10


def test_what_is_kept_of_a_models_name_holds_no_login() -> None:
    assert _model_of([], {"model": "chat:m@https://me:secret@host/v1"}) == "chat:m@https://[redacted]@host/v1"
    assert _model_of([], {"model": None, "run": "runs/one"}) == "run runs/one"
