"""How right locations are (section 3.6): files as sets, spans by containment, engagement, and the share of a trace that localisation takes.

Gold spans are of the version before the repair; lines count from 1, both ends included.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ramify.base.errors import UserError
from ramify.stats.intervals import bootstrap, mean_t, paired_t

Span = tuple[str, int, int]
METRICS = (
    "file precision",
    "file recall",
    "file F1",
    "exact set",
    "Jaccard",
    "hit@1",
    "recall@1",
    "coverage recall",
    "span precision",
    "tightness",
)


def scores(predicted: Sequence[Span], gold: Sequence[Span]) -> dict[str, float | None]:
    """Every metric of one issue; ``predicted`` best first. Tightness is None where no gold span is covered.

    Raises ValueError without gold spans.
    """
    if not gold:
        raise ValueError("an issue without a gold span has no score")
    files, wanted = list(dict.fromkeys(one[0] for one in predicted)), {one[0] for one in gold}
    right = len(wanted & set(files))
    precision, recall = right / len(files) if files else 0.0, right / len(wanted)
    spans, golden = list(dict.fromkeys(predicted)), list(dict.fromkeys(gold))
    covering = [[p for p in spans if _contains(p, g)] for g in golden]
    tight = [max((g[2] - g[1] + 1) / (p[2] - p[1] + 1) for p in ps) for g, ps in zip(golden, covering, strict=True) if ps]
    useful = sum(any(_contains(p, g) for g in golden) for p in spans)
    return {
        "file precision": precision,
        "file recall": recall,
        "file F1": 2 * precision * recall / (precision + recall) if right else 0.0,
        "exact set": float(set(files) == wanted),
        "Jaccard": right / len(wanted | set(files)),
        "hit@1": float(bool(files) and files[0] in wanted),
        "recall@1": float(bool(files) and files[0] in wanted) / len(wanted),
        "coverage recall": len(tight) / len(golden),
        "span precision": useful / len(spans) if spans else 0.0,
        "tightness": float(np.mean(tight)) if tight else None,
    }


def _contains(outer: Span, inner: Span) -> bool:
    return outer[0] == inner[0] and outer[1] <= inner[1] and inner[2] <= outer[2]


def summary(
    rows: Sequence[Mapping[str, float | None]], metas: Sequence[Mapping[str, Any]] = (), repos: Sequence[str] = ()
) -> dict[str, Any]:
    """Means over issues with 95 % bootstrap intervals, how many had a tightness, engagement, and a table by repository.

    Raises UserError without rows.
    """
    if not rows:
        raise UserError("there is no issue to score")
    out: dict[str, Any] = {"n": len(rows), "metrics": {}}
    for name in METRICS:
        values = np.array([row[name] for row in rows if row[name] is not None], float)
        interval = bootstrap(values, seed=0) if len(values) > 1 else None
        out["metrics"][name] = {"value": float(values.mean()) if len(values) else None, "interval": interval, "n": len(values)}
    known = [meta for meta in metas if "turns" in meta]
    if known:
        out["turns"] = float(np.mean([meta["turns"] for meta in known]))
        out["zero_tool"] = float(np.mean([bool(meta.get("zero_tool")) for meta in known]))
        out["tokens"] = float(np.mean([meta.get("tokens_in", 0) + meta.get("tokens_out", 0) for meta in known]))
    if len(set(repos)) > 1:
        by = {repo: [row for row, own in zip(rows, repos, strict=True) if own == repo] for repo in sorted(set(repos))}
        out["by_repository"] = {
            repo: {name: _mean([row[name] for row in own]) for name in METRICS} | {"n": len(own)} for repo, own in by.items()
        }
    return out


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")


def gold_spans(patch: str) -> list[Span]:
    """The lines that a unified diff changes, in the version before it; a pure insertion is the line it follows (line 1 at the top).

    A new file has no line before the patch, so it is none. Raises UserError on a text that is no diff.
    """
    spans: list[Span] = []
    file, at, left = "", 0, 0
    open_span: list[int] | None = None
    seen = inserted = False

    def close() -> None:
        nonlocal open_span
        if open_span is not None and file:
            spans.append((file, open_span[0], open_span[1]))
        open_span = None

    for line in patch.replace("\r\n", "\n").split("\n"):
        if (left > 0 and line[:1] in " -+\\") or (left > 0 and line == ""):
            if line[:1] == "-":
                open_span = [at, at] if open_span is None or inserted else [open_span[0], at]
                at, left, inserted = at + 1, left - 1, False
            elif line[:1] == "+":
                if open_span is None:
                    open_span, inserted = [max(1, at - 1)] * 2, True
            elif line[:1] != "\\":
                close()
                at, left = at + 1, left - 1
            continue
        if line[:1] == "+" and not line.startswith("+++"):  # the last lines of a hunk
            if open_span is None and seen:
                open_span = [max(1, at - 1)] * 2
            continue
        if line.startswith("\\"):
            continue
        close()
        if line.startswith("--- "):
            name = line[4:].split("\t")[0].strip().strip('"')
            file = "" if name == "/dev/null" else name.removeprefix("a/")
        elif found := _HUNK.match(line):
            seen = True
            count = 1 if found[2] is None else int(found[2])
            at, left = (int(found[1]) + 1 if count == 0 else int(found[1])), count
    close()
    if not seen:
        raise UserError("the patch holds no hunk: a unified diff is needed")
    return list(dict.fromkeys(spans))


# -- tables of published results, and their aggregation ------------------------------------------------------------------------

CONDITIONS = ("Baseline", "Shuffled", "All", "Filtered", "Oracle")
PAPER = {
    "Qwen3-Coder-30B SA": (44.7, 40.2, 54.0, 52.2, 76.0), "Qwen3-Coder-30B OH": (49.4, 40.2, 53.0, 52.4, 73.4),
    "Qwen3-Coder-Next SA": (45.2, 43.2, 53.2, 52.0, 64.6), "Qwen3-Coder-Next OH": (44.6, 39.2, 53.2, 54.6, 68.4),
    "Qwen3-Next-80B SA": (38.8, 33.8, 49.4, 50.6, 71.0), "Qwen3-Next-80B OH": (38.6, 39.2, 50.4, 47.8, 68.4),
    "MiniMax-M2.5 SA": (74.4, 61.0, 70.4, 76.6, 89.2), "MiniMax-M2.5 OH": (72.2, 64.0, 67.2, 72.8, 87.8),
    "Qwen3-Coder-480B SA": (63.0, 58.6, 63.0, 64.0, 86.2), "Qwen3-Coder-480B OH": (61.6, 57.8, 62.6, 62.8, 82.6),
}  # fmt: skip
"""Resolved issues in per cent by agent, under each of :data:`CONDITIONS` (section 4)."""


def gains(cells: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Mean gain over Baseline of All, of Filtered, and of the better of the two in each cell, which no one can choose beforehand."""
    base, everything, filtered = (
        np.array([row[CONDITIONS.index(name)] for row in cells.values()]) for name in ("Baseline", "All", "Filtered")
    )
    return {
        "All": float((everything - base).mean()),
        "Filtered": float((filtered - base).mean()),
        "max(All, Filtered)": float((np.maximum(everything, filtered) - base).mean()),
    }


def compared(solved: Mapping[str, Sequence[bool]], base: str = "baseline") -> dict[str, dict[str, Any]]:
    """Share solved under each condition, and its paired difference from ``base`` with Student's 95 % interval."""
    out = {}
    for name, values in solved.items():
        row = np.asarray(values, float)
        out[name] = {"value": float(row.mean()), "n": len(row), "interval": mean_t(row)}
        if name != base:
            zero = np.asarray(solved[base], float)
            out[name] |= {"gain": float((row - zero).mean()), "gain_interval": paired_t(row, zero)}
    return out
