"""A study as Markdown."""

from __future__ import annotations

from typing import Any

from ramify.base.words import plural


def verdict(confirmed: list[dict[str, Any]]) -> str:
    """What the confirmation comes to, in a sentence: the chosen cell stands out where it raises the score (sign test, p at most
    0.05) and does more than random directions of its length (p = (1 + those that do as well) / (1 + all),
    at most 0.05, so 19 are needed)."""
    chosen, randoms = confirmed[0], [row for row in confirmed if row["name"].startswith("random ")]
    p = (1 + sum(row["score"] >= chosen["score"] for row in randoms)) / (1 + len(randoms))
    if chosen["lift"] > 0 and chosen["p"] <= 0.05 and p <= 0.05:
        return f"{chosen['name']} raises the score, and does more than random directions of its length (p = {p:.2g})."
    return (
        f"Nothing stands out: {chosen['name']} does not raise the score by more than chance (p = {chosen['p']:.2g}) and by more "
        "than "
        f"random directions of its length (p = {p:.2g})."
    )


def sets_verdict(sets: list[dict[str, Any]]) -> str:
    """What the confirmation of several sets comes to, in a sentence: a set stands out where it raises the score (sign test,
    Holm's over the sets) and does more than the best of the random sets that were searched alike, both at 5 %."""
    found = [one for one in sets if one["stands_out"]]
    if found:
        named = "; ".join(f"{one['chosen']} (p = {max(one['p_holm'], one['p_random']):.2g})" for one in found)
        return f"{len(found)} of {len(sets)} sets raise the score, and do more than random sets of their size and norms: {named}."
    rule = "raises the score by more than chance and by more than random sets of its size and norms"
    return f"Nothing stands out: of {plural(len(sets), 'set')}, none {rule}, corrected over them."


def study_verdict(study: dict[str, Any]) -> str:
    """:func:`sets_verdict` of a study of sets, else :func:`verdict`."""
    return sets_verdict(study["sets"]) if study.get("sets") else verdict(study["confirmed"])


def markdown(study: dict[str, Any]) -> str:
    """The report of what ``ramify crosscoder steer`` kept: the search, the confirmation with its controls, the windows."""
    about = study["about"]
    options = about["options"]
    confirmed, sets = study["confirmed"], study.get("sets") or []
    chosen, randoms = confirmed[0], [row for row in confirmed if row["name"].startswith("random ")]
    lines = [
        f"# Steering {about['tuned']} (a) and {about['base']} (b) after block {about['layer']}",
        "",
        f"**{study_verdict(study)}**",
        "",
        f"Chosen on {plural(study['search'][0]['n'], 'prompt')} out of {plural(len(study['search']), 'cell')}: "
        f"**{study['chosen']}** of model {options['target']}.",
        f"On {plural(chosen['n'], 'other prompt')}, scored by `{options['score']}`, the score goes from "
        f"{_percent(chosen['score'] - chosen['lift'])} "
        f"to {_percent(chosen['score'])} ({_lift(chosen)}; {chosen['rescued']} rescued, {chosen['broken']} broken, p = "
        f"{chosen['p']:.2g}).",
        f"{'A feature' if len(sets) else 'The feature'} fires on {_percent(chosen['coverage'])} of them; the change is "
        f"{chosen['size']:.2f} times as long as the state.",
    ]
    if randoms:
        above = sum(row["score"] >= chosen["score"] for row in randoms)
        lines.append(f"{above} of {len(randoms)} random {'sets' if sets else 'directions'} of the same length do as well.")
    if study.get("warning"):
        lines += ["", f"**Warning:** {study['warning']}."]
    if sets:
        lines += ["", "## Sets, each by its best cell, on the other prompts", "", *_sets(sets)]
    lines += ["", "## Confirmed on the other prompts", "", *_table(confirmed)]
    windows = study["windows"]
    lines += [
        "",
        "## After so many tokens",
        "",
        "| | " + " | ".join(map(str, windows["budgets"])) + " |",
        "|---" * (1 + len(windows["budgets"])) + "|",
    ]
    named = sorted(windows.keys() - {"budgets"}, key=lambda name: (name.startswith("base"), name))
    lines += [f"| {name} | " + " | ".join(map(_percent, windows[name])) + " |" for name in named]
    lines += ["", "What a score gains at few tokens and not at many is an answer that comes sooner, not a new one. Spillover is "
                  "the base's",
              "reconstructed score over its clean one."]  # fmt: skip
    best = sorted(study["search"], key=lambda row: -row["score"])[:20]
    lines += ["", "## The search (the best 20 cells; p corrected for all of them)", "", *_table(best)]
    return "\n".join(lines)


def _sets(sets: list[dict[str, Any]]) -> list[str]:
    head = "| set | change | score | lift [95 %] | p (Holm) | best random set | p (random sets) |\n|---|---|---|---|---|---|---|"
    rows = []
    for one in sets:
        own = one["confirmed"][0]
        randoms = [row["score"] for row in one["confirmed"] if row["name"].startswith("random ")]
        rows.append(
            f"| {one['name']} | {one['chosen']} | {_percent(own['score'])} | {_lift(own)} | {one['p_holm']:.2g} | "
            f"{_percent(max(randoms)) if randoms else ''} | {one['p_random']:.2g} |"
        )
    return [head, *rows]


def _table(rows: list[dict[str, Any]]) -> list[str]:
    head = "| change | score | lift [95 %] | rescued | broken | p | fires | length |\n|---|---|---|---|---|---|---|---|"
    return [
        head,
        *(
            f"| {row['name']} | {_percent(row['score'])} | {_lift(row)} | {row['rescued']} | {row['broken']} | "
            f"{row.get('p_holm', row['p']):.2g} | {_percent(row['coverage'])} | {row['size']:.2f} |"
            for row in rows
        ),
    ]


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _lift(row: dict[str, Any]) -> str:
    ends = "" if row["interval"] is None else " [{:+.1f}, {:+.1f}]".format(*(100 * end for end in row["interval"]))
    return f"{100 * row['lift']:+.1f} points{ends}"
