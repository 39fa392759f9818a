"""Draw the pictures of docs/methods/crosscoder.md: python docs/crosscoder_pictures.py (from repro/crosscoder-cpu.json)."""

from __future__ import annotations

from picture_files import Checks, bars, read_checks, save

from ramify.render.charts import COLOURS

MARKS = (0.0, 0.25, 0.5, 0.75, 1.0)


def steering(checks: Checks) -> str:
    """What the best single feature adds to right calls, beside everything as long."""
    wanted = (
        ("best single feature, held-out lift", "best single feature"),
        ("average feature under the same clamp, lift", "average feature, same clamp"),
        ("random directions of the same length, mean lift", "random directions, mean of 20"),
        ("random directions of the same length, best lift", "random directions, best of 20"),
        ("tool - plain at the same length, lift", "tool - plain, same length"),
        ("tuned - base at the same length, lift", "tuned - base, same length"),
    )
    rows = [
        (f"{kind}: {name}", checks[f"{kind}: {check}"], COLOURS[i])
        for i, kind in enumerate(("partitioned", "plain"))
        for check, name in wanted
    ]
    title, about = "Right calls, points above the clean tuned model", "Mean and 95 % interval over five pairs, held-out prompts"
    return bars(title, "right calls above the clean model's", about, rows, MARKS, "{:.0%}")


def reconstruction(checks: Checks) -> str:
    """Right calls of the tuned model after reconstruction by a dictionary with either normaliser."""
    rows = [
        (f"{kind}, within {window} tokens", checks[f"tuned, {kind}: right tool within {window} tokens"], COLOURS[i])
        for window in (2, 4, 8)
        for i, kind in enumerate(("clean", "matched", "mismatched"))
    ]
    about = "Clean, and reconstructed with the normaliser matched or not"
    return bars("Right tool named by the tuned model", "right tool named", about, rows, MARKS, "{:.0%}")


if __name__ == "__main__":
    checks = read_checks("crosscoder")
    save("crosscoder", {"steering": steering(checks), "reconstruction": reconstruction(checks)})
