"""The potential on the pages: inside a reply, along an attempt; hostile texts stay texts."""

from __future__ import annotations

from pathlib import Path

from ramify.methods.cliffs.traces import store_trace
from ramify.model.protocol import Sampling
from ramify.model.scripted import CharTokenizer
from ramify.rollout.potential import RunCounts
from ramify.rollout.steps import step_trace
from ramify.rollout.token_traces import TokenTrace
from ramify.stats.drops import Counts
from ramify.trace.db import Run
from ramify.trace.node import Annotation
from ramify.web.pages import tree_html
from ramify.web.potentials import potential_pictures
from tests.rollout.test_steps import played


def test_a_reply_with_hostile_text(tmp_path: Path) -> None:
    tokenizer = CharTokenizer()
    text = "so <script>alert(1)</script> \x1b[31m \u202e and\nthen"
    trace = TokenTrace("t", "p", tuple(tokenizer.encode("?")), tuple(tokenizer.encode(text)), Sampling(), correct=False)
    measured = trace.with_potentials({0: Counts(60, 64), 3: Counts(50, 64), 4: Counts(2, 64)})
    with Run.create(tmp_path / "run", {}) as run:
        reply = store_trace(run, measured, tokenizer)
        run.add(Annotation(reply, 4, "cliff", "me", {"kind": "cliff", "note": "<b>down</b>"}))
        for odd in ({"k": 9, "n": 2}, {"k": "x", "n": 4}, 7, {"k": True, "n": 1}):
            run.add(Annotation(reply, 5, "potential", "me", odd))
        run.commit()
        (picture,) = potential_pictures(run, "t")
        page = tree_html(run, "t")
    assert page.count("<script") == 2  # the page's own, see test_hostile.py
    assert "<b>" not in picture
    assert "\u202e" not in page
    assert "\x1b" not in page
    assert "after token 4: 0.03" in picture
    assert "after token 5" not in picture
    assert "&lt;b&gt;down" in picture


def test_an_attempt_step_by_step(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        made, attempt = played(run, False)
        run.commit()
        assert potential_pictures(run, "t") == []
        assert "Potential" not in tree_html(run, "t")
        trace = step_trace(made, attempt)
        RunCounts(run).keep(trace, "scan", {0: Counts(7, 10), 1: Counts(7, 10), 2: Counts(0, 10)})
        run.commit()
        (picture,) = potential_pictures(run, "t")
    assert "Potential after each step" in picture
    assert "after token 2: 0.00" in picture
