"""Draw the pictures of docs/methods/dspark.md: python docs/dspark_pictures.py.

From repro/dspark-cpu.json, the load from benchmarks/results/speculation_load.json.
"""

from __future__ import annotations

import json
import re
from math import log2
from typing import Any

from picture_files import ROOT, Checks, curve, read_checks, save

from ramify.render.charts import Curve, curves_svg


def acceptance(checks: Checks, domain: str) -> str:
    """Conditional acceptance by position of three drafters."""
    at = [float(k) for k in range(1, 8)]
    drawn = [
        curve(name, at, [checks[f"{name}: acceptance at position {k}, {domain}"] for k in range(1, 8)])
        for name in ("DSpark", "DFlash", "Eagle3")
    ]
    return curves_svg(drawn, f"Acceptance given that all before were accepted: {domain}", "position in the block", "accepted")


def calibration(checks: Checks) -> str:
    """Calibration error by position with doubled logits, before and after scaling, and of a perfect predictor."""
    at = [float(k) for k in range(1, 8)]
    shown = {"before scaling": "before", "after scaling": "after", "of a perfect predictor": "a perfect predictor"}
    drawn = [
        curve(name, at, [checks[f"calibration, logits doubled: error {key}, position {k}"] for k in range(1, 8)])
        for key, name in shown.items()
    ]
    return curves_svg(
        drawn, "Calibration error after doubling the confidence logits", "position in the block", "error", percent=False
    )


def schedules(checks: Checks, kind: str, title: str) -> str:
    """Throughput over that of the best fixed length, by load, on a logarithmic axis."""
    loads = (1, 4, 16, 64, 256)
    at = [float(load.bit_length() - 1) for load in loads]
    best = [checks[f"{kind}, {load} requests: best fixed length"]["value"] for load in loads]
    drawn = []
    for name in ("fixed:7", "threshold:0.5", "greedy", "stale2"):
        values = [checks[f"{kind}, {load} requests: {name}"]["value"] for load in loads]
        drawn.append(Curve(name, at, [value / top for value, top in zip(values, best, strict=True)]))
    return curves_svg(
        drawn, title, "requests at once", "times the best fixed length", percent=False, x_text=lambda k: f"{2**k:g}"
    )


def load(table: dict[str, Any]) -> str:
    """Measured throughput over that of plain decoding at the same load, with quartiles over pairs, a curve a schedule."""
    found: dict[str, list[tuple[float, ...]]] = {}
    for requests, schedule, _, _, ratio, *_ in table["rows"]:
        found.setdefault(schedule, []).append((log2(float(requests)), *map(float, re.findall(r"[\d.]+", ratio))))
    drawn = [Curve(name, *(list(axis) for axis in zip(*found[name], strict=True))) for name in ("fixed:7", "greedy", "stale2")]
    title = "Measured throughput over plain decoding's"
    return curves_svg(drawn, title, "requests at once", "times plain", False, x_text=lambda x: f"{2**x:g}")


if __name__ == "__main__":
    checks = read_checks("dspark")
    pictures = {f"acceptance-{domain}": acceptance(checks, domain) for domain in ("math", "code", "chat")}
    pictures["calibration"] = calibration(checks)
    pictures["schedules"] = schedules(checks, "T = 64 + B", "Simulated throughput over the best fixed length")
    pictures["staircase"] = schedules(checks, "staircase of 16", "The same where a step's time rises every 16 tokens")
    table = ROOT / "benchmarks" / "results" / "speculation_load.json"
    pictures["load"] = load(json.loads(table.read_text(encoding="utf-8")))
    save("dspark", pictures)
