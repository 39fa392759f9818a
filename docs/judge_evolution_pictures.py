"""Draw the pictures and write the tables of docs/methods/judge-evolution-evidence.md from repro/judge-evolution-cpu.json: python
docs/judge_evolution_pictures.py."""

from __future__ import annotations

from picture_files import METHODS, Checks, alike, dots, table, write

PAGE = METHODS / "judge-evolution-evidence.md"
TABLES = {
    "arms": ("arms: ",),
    "gaming": ("gaming: quality",),
    "judges": ("gaming: anchor", "gaming: judges", "gaming: outcomes", "gaming: rank", "gaming: acceptance"),
    "promotions": ("false promotions",),
    "learned": ("learned: ",),
}
CAPS = ("none", ".10", ".15", ".20", ".25", ".50", "no cap")
ARMS = ("fixed", "no-erasure", "labelled from the start", "full")


def learned(checks: Checks) -> str:
    """Acceptance by the judge and true correctness, by arm."""
    rows = [
        (arm, [checks[f"learned: true correctness, {arm}"], checks[f"learned: acceptance by its own judge, {arm}"]])
        for arm in ARMS
    ]
    return dots(
        "What the judge says and what is true",
        "share of derivations",
        rows,
        ["truly correct", "accepted by its judge"],
        (0, 0.25, 0.5, 0.75, 1),
    )


def bias(checks: Checks) -> str:
    """Parity by the pool's share, for two rules."""
    rows = [
        (f"pool {cap}", [checks[f"bias: machine / human, pool {cap}{more}"] for more in ("", ", paired test")]) for cap in CAPS
    ]
    return dots(
        "How much the pool may weigh",
        "acceptance of machines / of people",
        rows,
        ["best belief", "paired test"],
        (0, 0.5, 1, 1.5, 2),
    )


def gaming(checks: Checks) -> str:
    """Quality of the writer at the end, by arm."""
    names = [
        name.removeprefix("gaming: quality at the end, ") for name in checks if name.startswith("gaming: quality at the end, ")
    ]
    rows = [
        (
            name.replace("hill climbing and the judge with most items right", "climbing, judge replaced")
            .replace("outcomes a child", "a child")
            .replace("nodes chosen by their own outcomes", "by own outcomes"),
            [checks[f"gaming: quality at the end, {name}"]],
        )
        for name in names
    ]
    return dots(
        "What a writer becomes under a judge that pays for gloss",
        "true quality at the end (the seed has 0)",
        rows,
        [],
        (-1.5, -1, -0.5, 0, 0.5, 1, 1.5),
    )


def bias_table(checks: Checks) -> str:
    """Parity and accuracy by the pool's share."""
    rows = [
        "| pool's share of the anchor | machine / human | accuracy | machine / human, paired test | accuracy, paired test |",
        "|---|---|---|---|---|",
    ]
    for cap in CAPS:
        values = [
            checks[f"bias: {what}, pool {cap}{more}"]["value"]
            for more in ("", ", paired test")
            for what in ("machine / human", "accuracy")
        ]
        rows.append(f"| {cap} | " + " | ".join(f"{value:.3f}" for value in values) + " |")
    judged = [check for name, check in checks.items() if name.startswith("bias: ") and check["op"] != "report"]
    return "\n".join([*rows, "", table(judged)])


def pictures(checks: Checks) -> dict[str, str]:
    """The pictures by name."""
    return {"learned": learned(checks), "bias": bias(checks), "gaming": gaming(checks)}


def tables(checks: Checks) -> dict[str, str]:
    """The tables by name: the figures whose names begin alike, and the pool's share."""
    return alike(checks, TABLES) | {"bias": bias_table(checks)}


if __name__ == "__main__":
    write("judge-evolution", PAGE, pictures, tables)
