"""diagnose on a pretrained model: faults planted in small files, the model beside the rules and beside naming files at random."""

from __future__ import annotations

import gc
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ramify_experiments.cases import call_verb
from ramify_experiments.lab import Checks, ResultCache

LOOK = ("--turns", 2, "--max-tokens", 64, "--temperature", 0.2)
"""Two looks and the answer: with 64 tokens each there is room for every call and for one location."""


class PlantedFault(NamedTuple):
    """A repository of two files with one fault, its issue, and the lines that are at fault."""

    files: Mapping[str, str]
    issue: str
    gold: tuple[str, int, int]


FAULTS = {
    "mean": PlantedFault(
        {
            "stats.py": "def total(values):\n    return sum(values)\n\n\ndef mean(values):\n    return total(values) / "
            "(len(values) - 1)\n",
            "report.py": "from stats import mean\n\n\ndef line(name, values):\n    return f'{name}: {mean(values)}'\n",
        },
        "`mean([2, 4])` returns 6.0, expected 3.0.\n",
        ("stats.py", 5, 6),
    ),
    "price": PlantedFault(
        {
            "shop.py": "from tax import tax\n\n\ndef price(net):\n    return net + tax(net)\n",
            "tax.py": "RATE = 7\n\n\ndef tax(net):\n    return net * RATE // 10\n",
        },
        'The price of 100 is 170, expected 107.\n  File "shop.py", line 5, in price\n  File "tax.py", line 5, in tax\n',
        ("tax.py", 4, 5),
    ),
    "last": PlantedFault(
        {
            "lists.py": "def first(items):\n    return items[0]\n\n\ndef last(items):\n    return items[len(items)]\n",
            "queue.py": "from lists import first, last\n\n\ndef ends(queue):\n    return first(queue), last(queue)\n",
        },
        '`ends([1, 2])` fails.\n  File "queue.py", line 5, in ends\n  File "lists.py", line 6, in last\nIndexError\n',
        ("lists.py", 5, 6),
    ),
    "greeting": PlantedFault(
        {
            "words.py": "def capital(word):\n    return word[:1].upper() + word[1:]\n\n\ndef plural(word):\n    return word + "
            "'x'\n",
            "greet.py": "from words import capital, plural\n\n\ndef greet(word):\n    return 'Hello ' + capital(plural(word))\n",
        },
        "Greeting friends says 'Hello Friendx' where it should say 'Hello Friends'.\n",
        ("words.py", 5, 6),
    ),
}
ELSEWHERE = "The socket cursor drops a cookie when the canvas session is closed.\n"
"""An issue about another program: nothing is to be found."""


def looked(name: str, model: str, seed: int) -> dict[str, Any]:
    """What the model (the rules for "") makes of one issue, and of the one about another program."""
    fault = FAULTS[name]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "repo").mkdir()
        for file, text in fault.files.items():
            (place / "repo" / file).write_text(text, encoding="utf-8")
        (place / f"{name}.md").write_text(fault.issue, encoding="utf-8")
        (place / "elsewhere.md").write_text(ELSEWHERE, encoding="utf-8")
        gold = {"issue_id": name, "spans": [list(fault.gold)]}
        (place / "gold.jsonl").write_text(json.dumps(gold) + "\n", encoding="utf-8")
        who = ("--model", model) if model else ()
        shared = ("--repo", place / "repo", *who, *LOOK, "--seed", seed)
        case = call_verb("diagnose", "run", "--issue", place / f"{name}.md", "--out", place / "run", *shared)
        told: list[Any] = []
        if name == next(iter(FAULTS)):
            call_verb("diagnose", "run", "--issue", place / "elsewhere.md", "--out", place / "none", *shared)
            told = call_verb("diagnose", "inject", place / "none", "--agent", "strong")["prompts"]
        found = {
            "case": case,
            "scores": call_verb("diagnose", "eval", place / "run", place / "gold.jsonl"),
            "told": sum(one["told"] for one in told),
        }
    gc.collect()  # the model of this issue before that of the next
    return found


def real(model: str, cells: ResultCache, first: int = 0) -> Checks:
    """Files and lines that the model and the rules name, and what of it a strong agent would be told without a reason."""
    checks = Checks([first])
    who = {"the model": model, "the rules": ""}
    plan = {f"{text}, {name}": {"name": name, "model": spec, "seed": first} for text, spec in who.items() for name in FAULTS}
    done = cells.map(looked, plan, workers=1)
    for text in who:
        rows = [done[f"{text}, {name}"] for name in FAULTS]
        for metric, says in {"hit@1": "first file right", "coverage recall": "faulty lines named"}.items():
            hits = sum(row["scores"]["metrics"][metric]["value"] == 1 for row in rows)
            op, threshold = (">=", 0.5) if (text, metric) == ("the rules", "hit@1") else ("report", None)
            checks.share(f"{text}: {says}", hits, len(rows), op, threshold)
        checks.share(f"{text}: issues with no location", sum(not row["case"]["findings"] for row in rows), len(rows))
    checks.value("a file at random: first file right", 0.5, len(FAULTS))
    told = done[f"the model, {next(iter(FAULTS))}"]["told"]
    checks.value("null: findings of the model told to a strong agent, issue of another program", told, 1, "<=", 0)
    return checks
