"""``ramify repro why --real``: which step ``ramify why`` names in attempts of a real pretrained model that failed.

At the doors (:mod:`ramify_experiments.real`) the step that lost an attempt is known, the first wrong door, and nobody chose the
agent's chances. Where a coin decides instead, nothing it did matters, and nothing may stand out. Of a step that is named,
``why --tokens`` is asked where its reply parts from the other door: that is in the colour it says.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ramify.rollout.components import find_environment
from ramify.stats.intervals import clopper_pearson, paired_proportions
from ramify.trace.db import Run
from ramify.trace.node import Node
from ramify_experiments.lab import Checks, ResultCache, call_verb
from ramify_experiments.real import COIN_DOORS, COLOURS, DOORS, DOORS_SAMPLING, first_wrong

TASKS = {DOORS: 8, COIN_DOORS: 6}
"""Environment -> tasks; one failed attempt of each is asked about."""
ATTEMPTS, FORKS, TOKEN_SAMPLES = 2, 16, 200


def asked(model: str, env: str, seed: int) -> dict[str, Any]:
    """Play, ask why one attempt of each task failed, and fork where a step was named.

    Of each attempt: ``named`` (step from 0, None where none stands out), ``truth`` (the first wrong door), ``unlikely`` (the step
    whose tokens were the least likely), ``steps``, and of the named step ``won``, ``forks`` and ``tokens``
    (:func:`_in_colour`). Where a coin decides, ``forking``: how many tokens of the first step are named."""
    sampling = ("--temperature", DOORS_SAMPLING["temperature"], "--max-reply", DOORS_SAMPLING["max_reply"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        played = ("--count", TASKS[env], "--attempts", ATTEMPTS, "--seed", seed, "--out", path)
        rollout = call_verb("rollout", "--model", model, "--env", env, *sampling, *played)
        found = call_verb("why", path, "--all", "--describe", 0)["all"]
        tasks = {task.id: task for task in find_environment(env).task_set("train", TASKS[env], seed)}
        rows = []
        for one in found:
            with Run.open(path) as run:
                steps = [run.node(step["node"]) for step in one["steps"]]
            ids = [step.id for step in steps]
            row: dict[str, Any] = {
                "named": None if one["node"] is None else ids.index(one["node"]),
                "truth": first_wrong(tasks[one["tree"]], [step.text for step in steps]),
                "unlikely": _unlikeliest([step.logprobs for step in steps]),
                "steps": len(steps),
                "samples": one["samples"],
            }
            if one["node"] is not None and env == DOORS:
                forked = call_verb("fork", path, one["node"], "--n", FORKS)["fork"]
                row |= {"won": forked["successes"], "forks": forked["n"], "tokens": _in_colour(path, steps[row["named"]])}
            elif env == COIN_DOORS:
                found_tokens = call_verb("why", path, steps[0].id, "--tokens", "--outcome", "--samples", TOKEN_SAMPLES)
                row["forking"] = sum(other["named"] for other in found_tokens["tried"])
            rows.append(row)
    return {"rows": rows, "rollout": rollout}


def _in_colour(path: Path, step: Node) -> dict[str, Any] | None:
    """``named``: of each token of the step's reply at which ``why --tokens`` finds that another one leads away from the colour it
    says, whether it stands in that colour's word; ``share``: how many of all its tokens do. None where the reply says not one
    colour but none or several."""
    said = [match for match in re.finditer("[a-z]+", step.text.lower()) if match[0] in COLOURS]
    if len({match[0] for match in said}) != 1 or step.ends is None or step.sampled is None:
        return None
    ends = [0, *step.ends.tolist()]
    inside = [any(one.start() < ends[t + 1] and ends[t] < one.end() for one in said) for t in range(len(step))]
    found = call_verb("why", path, step.id, "--tokens", "--target", f"says:{said[0][0]}", "--samples", TOKEN_SAMPLES)
    sampled = [hit for hit, its_own in zip(inside, step.sampled.tolist(), strict=True) if its_own]
    named = sorted({other["offset"] for other in found["tried"] if other["named"]})
    return {"named": [inside[t] for t in named], "share": sum(sampled) / len(sampled)}


def _unlikeliest(logprobs: Sequence[Any]) -> int:
    """The step with the least mean log-probability of a token."""
    means = [float(sum(each) / len(each)) for each in logprobs]
    return means.index(min(means))


def real(model: str, cells: ResultCache, first: int = 0) -> Checks:
    """Named steps against the truth and two simple rules; coins as the null."""
    checks = Checks((first,))
    done = cells.map(asked, {env.rpartition(":")[2]: {"model": model, "env": env, "seed": first} for env in TASKS})
    rows, null = done["doors"]["rows"], done["coin_doors"]["rows"]
    known = [row for row in rows if row["truth"] is not None]
    right = [row["named"] == row["truth"] for row in known]
    checks.share("doors: the step named is the first wrong door", sum(right), len(known))
    named = [hit for hit, row in zip(right, known, strict=True) if row["named"] is not None]
    checks.share("doors: attempts in which a step is named", len(named), len(known))
    checks.share("doors: of the named steps, the first wrong door", sum(named), len(named), ">=", 0.8, exact=True)
    rules = {
        "the last step": [row["steps"] - 1 == row["truth"] for row in known],
        "the least likely step": [row["unlikely"] == row["truth"] for row in known],
    }
    for rule, hits in rules.items():
        checks.share(f"doors: {rule} is the first wrong door", sum(hits), len(hits))
    best = max(rules.values(), key=sum)
    ends = paired_proportions(list(map(float, right)), list(map(float, best)))
    checks.value("doors: why - best simple rule", (sum(right) - sum(best)) / len(known), len(known), ">=", 0.0, ends)
    checks.mean("doors: continuations an attempt", [row["samples"] for row in known])
    forked = [row for row in known if "won" in row]
    won, forks = (sum(row[name] for row in forked) for name in ("won", "forks"))
    checks.share("doors: forks of the named step that win", won, forks)
    tokens = [row["tokens"] for row in forked if row["tokens"] is not None]
    checks.share("doors: named steps with a forking token", sum(bool(one["named"]) for one in tokens), len(tokens))
    inside = [hit for one in tokens for hit in one["named"]]
    checks.share("doors: forking tokens that stand in the colour that was said", sum(inside), len(inside), exact=True)
    checks.mean("doors: of all tokens of these replies", [one["share"] for one in tokens])
    false = sum(row["named"] is not None for row in null)
    checks.share("coins: attempts in which a step is named", false, len(null), exact=True)
    low = clopper_pearson(false, len(null))[0]
    checks.value("coins: lower bound of its false namings", low, len(null), "<=", 0.05)
    checks.mean("coins: continuations an attempt", [row["samples"] for row in null])
    forking = sum(row["forking"] > 0 for row in null)
    checks.share("coins: first steps with a forking token of success", forking, len(null), exact=True)
    return checks
