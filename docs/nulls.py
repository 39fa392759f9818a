"""Write docs/nulls.md from repro/nulls.json, which `ramify check method all --out repro/nulls.json` makes, and the nulls among
repro/*-outside.json: python docs/nulls.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "nulls.md"
JOBS = {"why": "why.md", "fix": "howto/fix.md", "test": "howto/reliability.md"}
"""Pages of those that are no methods."""
OUTSIDE = (
    ("diagnose", "The code is accused where the failing test is wrong"),
    ("governance", "Sessions without /compact"),
    ("orchestrator", "RouteLLM's GSM8K: kNN and matrix factorisation on shuffled rewards"),
    ("orchestrator", "RouteLLM's MMLU: kNN, matrix factorisation and the table on shuffled rewards"),
    ("theory-loop", "Theories revised on eight published experiments with binary ratings predict two others, ranges declared"),
    ("theory-loop", "Theories revised on eight published experiments with cardinal ratings predict two others, ranges declared"),
    ("why", "A rule names a step in logs of successful attempts"),
    ("why", "`why --judge smollm2 --way answer` on labelled failures (Who&When), each with the answer of another"),
    ("why", "`why --judge smollm2 --way answer` names a step in logs of an agent on HotpotQA"),
)
"""Method and beginning of a row of its `repro/METHOD-outside.json` that is, or holds, a null."""
HEAD = """# False positives and power

How often does a method report a finding where there is none, and how often does it miss a real one? Every method has two kinds of
case: a **null**, whose truth is "nothing" (two equal checkpoints, an agent that nothing moves, rewards sampled at random), and a
**planted** one, whose truth is known and must be found. Both run through the method's own verbs, with the levels that they have
by default.

```sh
ramify check method cliffs --quick    # some seconds: fewer repetitions
ramify check method all --out nulls.json
```

A null fails where the 95 % interval of its share of false findings (exact, Clopper-Pearson) lies wholly above the nominal level:
the share of false findings that the verb's default level allows. A planted case fails where the interval lies wholly below the
wanted share. The share found is the power on that case, at its size; weaker effects are found less often.

{what}
"""
BEYOND = """
## On data that nobody here made

The cases above are ours. These nulls are logs, sessions, ratings and faults of others; each stands in
[claims](claims.md), too, and is explained on the page of its method.

| method | null | found |
|---|---|---|
{rows}
"""
OWN = """
## A method of your own

Write a tuple of cases and name it under the entry point `ramify.cases` ([plug-ins](howto/plugins.md)). Each repetition gets a
seed, an empty folder, and `verb(...)`, which runs a command of `ramify` with `--json` and returns what it prints last:

```py
from ramify_experiments.cases import KnownCase, Repetition


def sampled_at_random(rep: Repetition) -> bool:
    make_a_run(rep.folder / "run", rep.seed)  # yours: rewards that no step decides
    return rep.verb("graph-credit", "report", rep.folder / "run")["decisive"] > 0


CASES = (
    KnownCase(
        "random rewards",
        "nothing",
        "No step decides the reward; a decisive step is a false finding.",
        sampled_at_random,
        0.05,
        full=200,
        quick=20,
    ),
    # ... and at least one planted case
)
```

`ramify check method NAME` then runs them, and exits with 1 where one fails.
"""


def row(slug: str, case: dict[str, Any]) -> str:
    """One Markdown row: method, truth, case, findings, share with its interval, what was wanted, status."""
    planted = case["truth"] == "planted"
    low, high = case["interval"]
    k, wanted = (case["found"], f">= {case['wanted']:g}") if planted else (case["false"], f"<= {case['level']:g}")
    status = case["status"].replace("_", " ")
    says = f"**{case['name']}**: {case['says']}"
    page = JOBS.get(slug, f"methods/{slug}.md")
    return (
        f"| [{slug}]({page}) | {case['truth']} | {says} | {k} of {case['n']} | {case['rate']:.3f} [{low:.3f}, "
        f"{high:.3f}] | {wanted} | {status} |"
    )


def beyond() -> str:
    """The nulls on others' data; StopIteration where a row that is named is not there any more."""
    lines = []
    for slug, begins in OUTSIDE:
        kept = json.loads((ROOT / "repro" / f"{slug}-outside.json").read_text(encoding="utf-8"))["rows"]
        what, found = next(row for row in kept if row[0].startswith(begins))
        lines.append(f"| [{slug}]({JOBS.get(slug, f'methods/{slug}.md')}) | {what} | {found} |")
    return BEYOND.format(rows="\n".join(lines))


def page() -> str:
    """The whole page."""
    found = json.loads((ROOT / "repro" / "nulls.json").read_text(encoding="utf-8"))
    seconds = sum(report["seconds"] for report in found["methods"])
    what = (
        "Written by `python docs/nulls.py` from `repro/nulls.json` (`ramify check method all --out repro/nulls.json`, seed "
        f"{found['seed']}, "
        f"{seconds / 60:.0f} minutes on {found['machine']['cores']} cores)."
    )
    table = ["| method | truth | case | found | share | wanted | status |", "|---|---|---|---|---|---|---|"]
    table += [row(report["method"], case) for report in found["methods"] for case in report["cases"]]
    missed = [
        f"- {report['method']}, {case['name']}: {case['known_failure']}"
        for report in found["methods"]
        for case in report["cases"]
        if case["status"] == "known_failure"
    ]
    return (
        HEAD.format(what=what)
        + "\n"
        + "\n".join([*table, *(["", "Known failures:", "", *missed] if missed else [])])
        + "\n"
        + beyond()
        + OWN
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
