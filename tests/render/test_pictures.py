from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.render.charts import Curve, Slice, bar_svg, curves_svg
from ramify.render.escape import escape
from ramify.render.graphs import State, StateMove, graph_svg
from ramify.render.svg import clip, credit_colour, flow, number, signed, text_width
from ramify.render.trees import TreeStep, tree_svg

SVG = "{http://www.w3.org/2000/svg}"
TREE = [
    TreeStep("r", None, "the task"),
    TreeStep("a", "r", "go left", 0.5),
    TreeStep("b", "a", "take key", 1.0, "success", 1.0, "#step-b"),
    TreeStep("c", "a", "wait", -1.0, "failure", 0.0),
    TreeStep("d", "r", "look", None, "cut"),
]


def read(svg: str) -> ET.Element:
    """Parse a picture; it must be well-formed, named, described, without script, and without a reference to anything outside."""
    root = ET.fromstring(svg)
    assert root.get("role") == "img"
    title, desc = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert desc is not None
    assert title.text
    assert desc.text
    assert root.get("aria-labelledby") == f"{title.get('id')} {desc.get('id')}"
    for element in root.iter():
        assert element.tag.removeprefix(SVG) not in {"script", "image", "foreignObject", "use", "iframe"}
        assert not any(name.lower().startswith("on") for name in element.attrib)
        assert all("url(" not in value and "nan" not in value for value in element.attrib.values() if value != element.text)
    return root


def texts(root: ET.Element, tag: str = "text") -> list[str]:
    return ["".join(element.itertext()) for element in root.iter(f"{SVG}{tag}")]


@given(st.text(alphabet=st.characters(), max_size=40))
def test_escape_is_inert_and_valid_xml(text: str) -> None:
    safe = escape(text)
    assert not set("<>\"'") & set(safe)
    element = ET.fromstring(f"<t a='{safe}'>{safe}</t>")
    if all(c.isprintable() and c not in "\r\x85" for c in text):
        assert element.text == (text or None)


@pytest.mark.parametrize(
    ("raw", "safe"),
    [
        ("<b>&\"'", "&lt;b&gt;&amp;&quot;&#x27;"),
        ("a\u202eb", "a[U+202E]b"),
        ("\x00\x1b\ud800", "[U+0000][U+001B][U+D800]"),
        ("line\n\ttab", "line\n\ttab"),
        ("é日😀", "é日😀"),
        (3.5, "3.5"),
    ],
)
def test_escape(raw: object, safe: str) -> None:
    assert escape(raw) == safe


def test_tree_picture_shows_every_step_once() -> None:
    root = read(tree_svg(TREE, "Tree of task 1"))
    hovers = texts(root, "title")[1:]
    assert hovers == ["task: the task", "credit +0.5: go left", "credit +1: take key", "credit −1: wait", "no credit: look"]
    assert {"1", "0", "branch point", "success", "failure", "cut off"} <= set(texts(root))
    links = [a.get("href") for a in root.iter(f"{SVG}a")]
    assert links == ["#step-b"]
    assert "3 attempts from one task: 1 succeed, 1 fail, 1 are cut off. 4 steps, 2 branch points" in texts(root, "desc")[0]


def test_tree_layout_is_tidy() -> None:
    circles = [c for c in read(tree_svg(TREE, "t")).iter(f"{SVG}circle") if c.get("r") == "5.4"][:4]
    positions = [(float(c.get("cx", 0)), float(c.get("cy", 0))) for c in circles]
    (ax, ay), (bx, by), (cx, cy), (dx, dy) = positions
    assert ax == dx < bx == cx
    assert by < cy < dy
    assert ay == (by + cy) / 2


@given(st.lists(st.integers(0, 200), min_size=1, max_size=60), st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_no_two_steps_of_any_tree_overlap(parents: list[int], rng: object) -> None:
    steps = [TreeStep("0", None, "root")]
    steps += [TreeStep(str(i + 1), str(p % (i + 1)), "x", (-1.0) ** i * i) for i, p in enumerate(parents)]
    svg = tree_svg(steps, "t")
    assert svg == tree_svg(steps, "t")
    centres = [(c.get("cx"), c.get("cy")) for c in read(svg).iter(f"{SVG}circle") if c.get("r") == "5.4" and c.get("cx") != "8.2"]
    assert len(set(centres)) == len(centres) == len(parents)


def test_a_long_path_does_not_recurse() -> None:
    steps = [TreeStep("0", None, "root")] + [TreeStep(str(i), str(i - 1), "x", 0.1) for i in range(1, 3000)]
    assert tree_svg(steps, "long").count("<circle") == 3000 + 1  # and the legend's ring and dot, and no root circle


@pytest.mark.parametrize("steps", [[], TREE[1:2], [TREE[0], TREE[0]], [TREE[0], TREE[2]]])
def test_impossible_trees_are_refused(steps: list[TreeStep]) -> None:
    with pytest.raises(ValueError, match=r"root|parent"):
        tree_svg(steps, "t")


STATES = [State("s", 0, 4, "start"), State("m", 1, 3, "middle", 0.5), State("win", 2, 1, "goal", None, "success")]
MOVES = [
    StateMove("s", "m", 3, 0.2, "go"),
    StateMove("m", "win", 1, 1.0, "open"),
    StateMove("m", "s", 1, -0.4, "back"),
    StateMove("m", "m", 1, None, "look"),
]


def test_graph_picture() -> None:
    root = read(graph_svg(STATES, MOVES, "States"))
    hovers = texts(root, "title")
    assert "3 times, mean credit +0.2: go" in hovers
    assert "1 time, no credit: look" in hovers
    assert "3 visits, value 0.5: middle" in hovers
    assert {"start", "step 1", "end", "0.50"} <= set(texts(root))
    widths = {h: float(p.get("stroke-width", 0)) for p in root.iter(f"{SVG}path") for h in ["".join(p.itertext())] if h}
    assert widths["3 times, mean credit +0.2: go"] == 8 > widths["1 time, mean credit +1: open"]


def test_graph_refuses_unknown_states() -> None:
    with pytest.raises(ValueError, match="unknown state"):
        graph_svg(STATES[:1], MOVES, "t")
    with pytest.raises(ValueError, match="at least one"):
        graph_svg([], [], "t")


def test_curves() -> None:
    curve = Curve("success", [1, 2, 3], [0.1, float("nan"), 0.3], [0.0, 0.1, 0.2], [0.2, 0.3, 0.4])
    root = read(curves_svg([curve, Curve("mixed", [1, 3], [0.5, 0.6])], "Curves", "update", "share"))
    assert {"0 %", "100 %", "update", "share", "success", "mixed"} <= set(texts(root))
    assert len(list(root.iter(f"{SVG}circle"))) == 4
    assert "1.5" not in texts(root)  # updates are whole numbers
    assert "No data yet." in texts(read(curves_svg([], "Curves", "x", "y")))
    single = read(curves_svg([Curve("one", [5], [7.0])], "One", "x", "y", percent=False))
    assert "7" in texts(single)


def test_bar_parts_fill_the_width() -> None:
    root = read(bar_svg([Slice("a", 3, "3k"), Slice("b", 1, "1k"), Slice("none", 0, "0")], "Budget", width=400))
    rects = [r for r in root.iter(f"{SVG}rect") if r.get("height") == "26"]
    assert [float(r.get("width", 0)) for r in rects] == [298.5, 98.5]
    assert texts(root) == ["a · 3k · 75 %", "b · 1k · 25 %"]
    assert "Nothing was spent." in texts(read(bar_svg([], "Budget")))


def test_colours_diverge_and_saturate() -> None:
    assert credit_colour(0.0, 1) == "#d6d9de"
    assert credit_colour(2.0, 1) == credit_colour(1.0, 1) == "#0072b2"
    assert credit_colour(-9, 1) == "#d55e00"
    assert credit_colour(None, 1) == credit_colour(float("nan"), 1) == "none"
    assert credit_colour(0.3, 0) == "#d6d9de"


def test_small_helpers() -> None:
    assert [number(v) for v in (1.0, 0.5, -0.001, 12.345)] == ["1", "0.5", "0", "12.35"]
    assert [signed(v) for v in (0.5234, -1.3, 0, 250.7, 0.0)] == ["+0.52", "−1.3", "0", "+251", "0"]
    assert (clip("a  b\nc", 10), clip("abcdef", 4)) == ("a b c", "abc…")
    assert text_width("日") > text_width("a") > text_width("i")
    body, last = flow([("<a/>", 60), ("<b/>", 60), ("<c/>", 60)], 0, 10, 150)
    assert last == 30
    assert "translate(0 30)" in body
