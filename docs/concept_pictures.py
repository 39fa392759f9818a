"""Draw the pictures of docs/concepts.md: python docs/concept_pictures.py.
Boxes and arrows only; real results are in docs/pictures.py."""

from __future__ import annotations

from pathlib import Path

from ramify.render.svg import frame, label, tag

IMAGES = Path(__file__).with_name("images")
WIDTH, HIGH = 720, 34


def box(x: float, y: float, width: float, text: str, fill: str = "#e8ecf4", ink: str = "#1b2333", dash: bool = False) -> str:
    """A box with one line of text."""
    rect = tag(
        "rect", x=x, y=y, width=width, height=HIGH, rx=5, fill=fill, stroke="#5b6785", stroke_dasharray="4 3" if dash else None
    )
    return rect + tag("text", text, x=x + width / 2, y=y + 21, text_anchor="middle", font_size=13, fill=ink)


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    """A line with a head at its second end."""
    import math

    angle = math.atan2(y2 - y1, x2 - x1)
    wings = [(x2 - 8 * math.cos(angle + turn), y2 - 8 * math.sin(angle + turn)) for turn in (0.4, -0.4)]
    head = f"M{wings[0][0]:.1f} {wings[0][1]:.1f}L{x2:.1f} {y2:.1f}L{wings[1][0]:.1f} {wings[1][1]:.1f}"
    line = tag("path", d=f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}", stroke="#5b6785", fill="none", stroke_width=1.4)
    return line + tag("path", d=head, stroke="#5b6785", fill="none", stroke_width=1.4)


def note(x: float, y: float, text: str) -> str:
    """A line of explanation."""
    return label(x, y, text, font_size=12)


BLUE, ORANGE, GREEN, PALE = "#cfe0fb", "#fbdcc0", "#d3efd6", "#f6f7fa"


def tree() -> str:
    """One task as a tree: messages, a reply continued at an offset, two samples at one position."""
    body = box(10, 60, 90, "task") + arrow(100, 77, 130, 77) + box(130, 60, 150, "you are in the hall")
    body += arrow(280, 77, 312, 77) + box(312, 60, 150, "go | to | the | attic", BLUE)
    body += arrow(462, 77, 500, 40) + box(500, 20, 200, "attic: dark. (reward 0)")
    body += arrow(362, 94, 400, 140) + box(400, 132, 110, "cellar", BLUE) + arrow(510, 149, 540, 149)
    body += box(540, 132, 160, "cellar: locked in")
    body += arrow(205, 94, 225, 190) + box(225, 190, 130, "go | kitchen", BLUE)
    body += note(250, 52, "sampled by the agent, token by token") + note(
        404, 124, "offset 2: another sample continues after “go to”"
    )
    body += note(
        10,
        240,
        "Blue: sampled by the model. Grey: said by the environment. A node knows its parent and the offset at which it starts.",
    )
    return frame(WIDTH, 252, "A run of one task is a tree", "Messages as boxes; one reply is branched at its third token", body)


def context() -> str:
    """History and what the model saw."""
    body = note(10, 20, "history: whole, on the tree")
    for i, (text, fill) in enumerate([("rules", GREEN), ("turn 1", PALE), ("turn 2", PALE), ("turn 3", PALE), ("turn 4", PALE)]):
        body += box(10 + 110 * i, 32, 96, text, fill)
    body += note(10, 110, "context of the next sample: what was shown")
    for x, (text, fill, width) in zip(
        (10, 120, 310, 420),
        [("rules", GREEN, 96), ("summary of 1 to 2", ORANGE, 176), ("turn 3", PALE, 96), ("turn 4", PALE, 96)],
        strict=True,
    ):
        body += box(x, 122, width, text, fill)
    body += arrow(516, 139, 560, 139) + box(560, 122, 130, "reply", BLUE)
    body += note(
        10,
        180,
        "Green and white: spans of nodes. Orange: inserted text that is on no node. The list is hashed into the reply's id.",
    )
    return frame(WIDTH, 192, "Context and history", "History above, the shorter context below", body)


def fork() -> str:
    """Two arms from one position."""
    body = box(10, 90, 170, "prefix, computed once") + arrow(180, 107, 200, 57) + arrow(180, 107, 200, 158)
    body += box(200, 38, 130, "edit: “wait”", ORANGE) + box(200, 143, 130, "as it was", PALE)
    for row, (y, marks) in enumerate([(55, "✓ ✓ ✗ ✓ ✓ ✗ ✓ ✓"), (160, "✗ ✓ ✗ ✗ ✓ ✗ ✗ ✗")]):
        for k in range(3):
            body += arrow(330, y, 372, y - 14 + 14 * k)
        body += box(376, y - 17, 150, marks, BLUE) + note(536, y + 4, ("6 of 8", "2 of 8")[row])
    body += note(376, 112, "difference 0.50, with its interval")
    body += note(10, 210, "Same position, same state of the environment, n continuations each.")
    body += note(10, 228, "Samples are keyed by position, so both arms can be repeated.")
    return frame(WIDTH, 240, "Fork", "An edited arm and a control arm from one prefix", body)


def scores() -> str:
    """Records that point at nodes."""
    body = "".join(
        box(10 + 120 * i, 70, 104, text, fill)
        for i, (text, fill) in enumerate([("ask", PALE), ("look", BLUE), ("dark", PALE), ("go north", BLUE), ("door", PALE)])
    )
    body += "".join(arrow(114 + 120 * i, 87, 130 + 120 * i, 87) for i in range(4))
    body += (
        box(120, 10, 130, "credit −0.3", ORANGE)
        + arrow(185, 44, 185, 68)
        + box(360, 10, 130, "credit +0.6", GREEN)
        + arrow(425, 44, 425, 68)
    )
    body += box(470, 130, 230, "score: success, judge 4f1c…", GREEN) + arrow(540, 130, 540, 106)
    body += note(
        10,
        195,
        "Token values: one per token. Annotations: at a point. Scores: of a path. Erasing a judge removes only its scores.",
    )
    return frame(
        WIDTH, 208, "Token values, annotations and scores point at nodes", "Credits above two steps, a score below the last", body
    )


def budget() -> str:
    """A budget ends a run cleanly."""
    body = "".join(box(10 + 96 * i, 30, 84, f"attempt {i + 1}", GREEN) for i in range(5)) + box(
        490, 30, 84, "attempt 6", PALE, dash=True
    )
    body += tag("path", d="M482 14V86", stroke="#b0413e", stroke_width=2, fill="none") + note(
        466, 100, "budget spent: exit code 3, results kept"
    )
    body += note(10, 100, "spent so far: the ledger, by category") + note(
        10, 128, "Limits: calls, tokens, turns, seconds, money, sandbox seconds."
    )
    return frame(WIDTH, 142, "Budgets", "Five attempts are kept, the sixth is not begun", body)


def determinism() -> str:
    """A sample depends on its position only."""
    body = (
        box(10, 20, 290, "run seed · parent node · offset · index 3") + arrow(300, 37, 350, 37) + box(350, 20, 110, "sample key")
    )
    body += arrow(460, 37, 510, 37) + box(510, 20, 190, "one stream of random bits")
    for i, text in enumerate(("1 worker", "8 workers", "killed and resumed")):
        body += box(10 + 236 * i, 90, 200, text, PALE) + arrow(110 + 236 * i, 124, 355, 160)
    body += box(255, 162, 200, "the same tree", GREEN)
    body += note(10, 222, "Never the time, the order of arrival, or what else is in the batch.")
    return frame(WIDTH, 234, "Determinism by position", "The key of a sample, and three ways to run that end in one tree", body)


if __name__ == "__main__":
    for picture in (tree, context, fork, scores, budget, determinism):
        (IMAGES / f"concept-{picture.__name__}.svg").write_text(picture(), encoding="utf-8")
    print(f"wrote six pictures to {IMAGES}")
