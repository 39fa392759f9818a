"""The potential over a text, in a terminal and as SVG."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.render.potential import Estimate, Potential, Spot, potential_svg, potential_text

SHOWN = Potential(
    ["ab ", "cd\n", "ef"],
    [Estimate(0, 0.9, 0.8, 1.0), Estimate(1, 1.0, 0.9, 1.0), Estimate(3, 0.0, 0.0, 0.1)],
    [Spot(3, "cliff", "down"), Spot(1, "rebound", "up"), Spot(2, "doubtful", "perhaps")],
    "a trace",
)


def test_terminal() -> None:
    assert potential_text(SHOWN, 40).splitlines() == [
        "█ before the first token: 0.90", "  █  ·", "ab cd↵", "+++???", " ▁", "ef", "^^",
    ]  # fmt: skip


def test_svg_says_what_it_shows() -> None:
    svg = potential_svg(SHOWN)
    ElementTree.fromstring(svg)
    for text in ("after token 1: 1.00 [0.90, 1.00]", "after token 3: 0.00", "token 3: down", "token 2: perhaps", "a rebound"):
        assert text in svg
    assert "after token 2" not in svg  # not measured, so not drawn
    assert "An empty reply" in potential_svg(Potential([], []))
    assert potential_svg(SHOWN) == svg
    rows = Potential(["a\n"] * 4, [Estimate(0, 1.0, 1, 1), Estimate(3, 0.5, 0, 1)])
    assert potential_svg(rows).count("after token 3") == 2  # at the end of its line, and where the next begins


@given(st.lists(st.text(max_size=12), max_size=12), st.integers(20, 60))
@settings(max_examples=40, deadline=None)
def test_any_text(tokens: list[str], width: int) -> None:
    estimates = [Estimate(t, 0.5, 0.4, 0.6) for t in range(0, len(tokens) + 1, 2)]
    shown = Potential(tokens, estimates, [Spot(t, "cliff", "x") for t in range(1, len(tokens) + 1, 3)])
    ElementTree.fromstring(potential_svg(shown, 400))
    assert all(len(line) <= max(width, 40) for line in potential_text(shown, width).splitlines())
