"""A small case: a writer of essays that mention facts and praise, and the reviewer in the same workspace,
who begins by liking praise."""

from __future__ import annotations

import json
import random
from pathlib import Path

WRITER = """
import json, random, sys
p, rng = json.load(open("writer.json")), random.Random(sys.stdin.read())
praise = max(0, min(12, round(p["praise"] + rng.gauss(0, 1))))
facts = max(0, min(12 - praise, round(p["facts"] + rng.gauss(0, 1))))
print("essay " + " ".join(["fact"] * facts + ["brilliant"] * praise))
"""
REVIEWER = """
import json, sys
w, words = json.load(open("reviewer.json")), sys.stdin.read().split()
sys.exit(0 if w["fact"] * words.count("fact") + w["praise"] * words.count("brilliant") > w["bar"] else 1)
"""
CASE = """
budget = 24
first = 8
meta = "numbers:0.5"
[promotion]
adversarial = 0.2
[roles.writer]
command = ["python", "writer.py"]
tasks = "tasks.jsonl"
slot = "reviewer"
[roles.reviewer]
command = ["python", "reviewer.py"]
tasks = "reviews.jsonl"
fills = "reviewer"
files = ["reviewer.*"]
[slots.reviewer]
anchor = "anchor.jsonl"
"""


def lines(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def essays(folder: Path, case: str = CASE) -> Path:
    """The case in a folder."""
    rng = random.Random(1)
    (folder / "agent").mkdir(parents=True)
    files = {
        "writer.py": WRITER,
        "reviewer.py": REVIEWER,
        "writer.json": '{"facts": 3.0, "praise": 2.0}',
        "reviewer.json": '{"fact": 0.3, "praise": 1.0, "bar": 4.0}',
    }
    for name, text in files.items():
        (folder / "agent" / name).write_text(text, encoding="utf-8")

    def review(i: int, what: str) -> dict:
        praise = rng.randint(0, 8)
        facts = rng.randint(0, 12 - praise)
        text = f"{what} number {i}: " + " ".join(["fact"] * facts + ["brilliant"] * praise)
        return {"id": f"{what}{i}", "artefact": text, "label": facts >= 5, "group": "human"}

    lines(folder / "anchor.jsonl", [review(i, "paper by hand") for i in range(60)])
    lines(folder / "reviews.jsonl", [review(i, "draft") | {"split": "train" if i < 1 else "validation"} for i in range(10)])
    lines(
        folder / "tasks.jsonl",
        [{"id": f"t{i}", "input": f"essay {i}", "split": "train" if i < 1 else "validation"} for i in range(16)],
    )
    (folder / "evolve.toml").write_text(case, encoding="utf-8")
    return folder
