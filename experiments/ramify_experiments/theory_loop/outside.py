"""theory-loop on choices of real people that its paper's authors published.

    python -m ramify_experiments.theory_loop.outside DATA [--seeds 20] [--out repro/theory-loop-outside.json]

DATA is the folder of those files (`binary-*.jsonl`, `cardinal-*.jsonl`, `h2_participants.csv`, `h3_participants.csv`). The loop
revises theories on four rounds of given experiments; its survivors predict the two of the last round, which it never saw. Beside
them stand the seeds, every family of the grammar with its whole range, and a coin; and the same with each person's choices
shuffled over the trials, where nothing is to be found. Families have the ranges that ramify declares, which are the paper's, or
wide ones.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtr

from ramify.base.seeds import generator
from ramify.base.waiting import wait_for
from ramify.methods.theory_loop.algorithm import LoopConfig, mse_pb
from ramify.methods.theory_loop.bench import TheoryBench
from ramify.methods.theory_loop.canonical import CANONICAL
from ramify.methods.theory_loop.confirmation import t_test
from ramify.methods.theory_loop.domain import Data
from ramify.methods.theory_loop.loop import loop_of, pool_of
from ramify.methods.theory_loop.participants import People
from ramify.methods.theory_loop.proposer import BINARY, CARDINAL, TheoryGrammar
from ramify.methods.theory_loop.theories import Theory
from ramify.stats.intervals import clopper_pearson
from ramify.trace.db import Run

ROUNDS, SUBJECTS = 4, 400
SEEDS = {"binary": ("ttb", "wadd"), "cardinal": ("ttb", "tallying")}
"""As the paper began with people."""
WIDE = {
    "beta": "[0.01, 100]", "gamma": "[0, 50]", "decay": "[0, 2]", "theta": "[0, 20]", "discount": "[0, 1]", "share": "[0, 1]",
    "alpha": "[0.01, 3]", "s": "[0.01, 50]", "epsilon": "[0, 1]",
}  # fmt: skip


def widened(theory: Theory) -> Theory:
    """A theory with the wide ranges."""
    return replace(theory, parameters={name: WIDE.get(name, text) for name, text in theory.parameters.items()})


def family(theory: Theory) -> str:
    """Its name in the grammar, by its program."""
    return next((name for name, known in CANONICAL.items() if known.code == theory.code), "?")


def shuffled(study: Data, seed: int) -> Data:
    """The same people, each one's choices in another order: what they chose says nothing of what they saw."""
    return replace(study, response=generator(seed, "shuffled", study.design.hash).permuted(study.response, axis=1))


def recovered(people: People, ratings: str, seed: int, wide: bool) -> dict[str, Any]:
    """One loop on all experiments but the last two, and how far each theory is from the choices in those."""
    config = LoopConfig(ratings=ratings, rating_max=10, rounds=ROUNDS, seed=seed, participants=people.name)
    families = BINARY + (CARDINAL if ratings == "cardinal" else ())
    theories = {name: widened(CANONICAL[name]) for name in families} if wide else CANONICAL
    grammar = TheoryGrammar(config, None)  # type: ignore[arg-type]  # of given experiments it simulates nothing
    grammar.theories = theories
    with tempfile.TemporaryDirectory() as folder:
        loop_of(config, SEEDS[ratings], Path(folder) / "run", participants=people, proposer=grammar)
        with Run.open(Path(folder) / "run") as run:
            pool = pool_of(run)
    survivors = {f"survivor {label}": pool.theories[label] for label in pool.slots}
    rivals = {name: CANONICAL[name] for name in SEEDS[ratings]} | {name: theories[name] for name in families}
    far = wait_for(errors({**survivors, **rivals}, people.studies[2 * ROUNDS :], seed))
    return {
        "families": [family(theory) for theory in survivors.values()],
        "survivors": float(np.mean([far[name] for name in survivors])),
        "best": min(far[name] for name in survivors),
        "others": {name: far[name] for name in (*rivals, "coin")},
    }


async def errors(theories: Mapping[str, Theory], held_out: Sequence[Data], seed: int) -> dict[str, float]:
    """Mean squared error of the proportion of B choices, mean over experiments, by theory."""
    found: dict[str, list[float]] = {name: [] for name in (*theories, "coin")}
    async with TheoryBench() as bench:
        for study in held_out:
            order = study.order[np.arange(SUBJECTS) % len(study.order)]
            for name, theory in theories.items():
                data = await bench.simulate(theory, study.design, SUBJECTS, seed, "held out", theory.hash, order=order)
                found[name].append(mse_pb(data.p_b, study.p_b))
            found["coin"].append(mse_pb(np.full(study.design.pairs, 0.5), study.p_b))
    return {name: float(np.mean(values)) for name, values in found.items()}


def floor(study: Data) -> float:
    """The error that as many other people of the same kind would have: twice the variance of a mean over people."""
    return float(2 * np.mean(np.var(study.proportions, axis=0, ddof=1) / len(study.proportions)))


def registered(data: Path) -> dict[str, Any]:
    """H2 and H3 of the authors, one-sided as ramify registers them and two-sided as the paper reports them."""
    found = {}
    for name, file, column, above in (
        ("H2", "h2_participants.csv", "steep_rate", 0.5),
        ("H3", "h3_participants.csv", "offset_effect", 0.0),
    ):
        with (data / file).open(encoding="utf-8", newline="") as lines:
            values = np.array([float(row[column]) for row in csv.DictReader(lines)]) - above
        t, p = t_test(values)
        two = float(2 * stdtr(len(values) - 1, -abs(t)))
        found[name] = {"people": len(values), "mean": float(values.mean()), "t": t, "one_sided": p, "two_sided": two}
    return found


def study(data: Path, ratings: str, seeds: int) -> dict[str, Any]:
    """All seeds, both kinds of ranges, and the null."""
    people = People(f"{data}/{ratings}-*")
    null = People(f"{data}/{ratings}-*")
    null.studies = [shuffled(one, 0) for one in null.studies]
    told: dict[str, Any] = {
        "people": sum(len(one.order) for one in people.studies),
        "left_out": sum(len(one.extra.dropped) for one in people.studies),
        "floor": float(np.mean([floor(one) for one in people.studies[2 * ROUNDS :]])),
    }
    for name, given, wide in (("declared", people, False), ("wide", people, True), ("shuffled", null, False)):
        rows = [recovered(given, ratings, seed, wide) for seed in range(seeds)]
        others = {key: float(np.mean([row["others"][key] for row in rows])) for key in rows[0]["others"]}
        won = sum(row["best"] < min(row["others"][key] for key in (*SEEDS[ratings], "coin")) for row in rows)
        told[name] = {
            "families": dict(Counter(one for row in rows for one in row["families"]).most_common()),
            "survivors": _spread([row["survivors"] for row in rows]),
            "best": _spread([row["best"] for row in rows]),
            "best nearer than both seeds and a coin": [won, seeds, *clopper_pearson(won, seeds)],
            "others": others,
        }
        print(ratings, name, json.dumps(told[name]), flush=True)
    return told


def _spread(values: Sequence[float]) -> dict[str, float]:
    low, high = np.quantile(values, [0.025, 0.975])
    return {"mean": float(np.mean(values)), "low": float(low), "high": float(high)}


def rows(told: Mapping[str, Any]) -> list[list[str]]:
    """What `docs/claims.md` says of it: what was tried, and what was found."""
    found = []
    for ratings in SEEDS:
        one = told[ratings]
        for name in ("declared", "wide"):
            won, of, low, high = one[name]["best nearer than both seeds and a coin"]
            best = min(one[name]["others"].items(), key=lambda row: row[1])
            null = one["shuffled"]["best nearer than both seeds and a coin"]
            found.append(
                [
                    f"Theories revised on eight published experiments with {ratings} ratings predict two others, ranges {name}",
                    f"better survivor nearer than both seeds and a coin in {won} of {of} [{low:.2f}, {high:.2f}] (choices "
                    f"shuffled: {null[0]} of {null[1]}); its error {one[name]['best']['mean']:.4f}, of {best[0]} without any "
                    f"revision {best[1]:.4f}, of as many other people {one['floor']:.4f}",
                ]
            )
    for name, test in told["registered"].items():
        found.append(
            [
                f"{name} on the authors' own data, {test['people']} people",
                f"{test['mean']:.4f}, p {test['one_sided']:.2g} one-sided, {test['two_sided']:.2g} two-sided",
            ]
        )
    return found


def main() -> None:
    """Run all and write the file."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("repro/theory-loop-outside.json"))
    given = parser.parse_args()
    told = {"registered": registered(given.data), "rounds": ROUNDS, "seeds": given.seeds}
    told |= {ratings: study(given.data, ratings, given.seeds) for ratings in SEEDS}
    told["rows"] = rows(told)
    given.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(told["registered"]), f"wrote {given.out}")


if __name__ == "__main__":
    main()
