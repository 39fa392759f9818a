"""Simple routers, and ramify's, on answers that nobody here collected: GPT-4 or Mixtral 8x7B, by RouteLLM's responses.

    python -m ramify_experiments.orchestrator.outside DIR [--count N] [--backbone builtin] [--out FILE]

DIR is a checkout of lm-sys/RouteLLM (``routellm/evals/{gsm8k,mmlu}``: who was right on each question). RouterBench's data are not
in its repository. On a random half of the questions routers are fitted and tuned, on the other they are measured, by the measures
of RouteLLM: the share of the gap between the two models that is recovered, averaged over all shares of questions that the strong
model gets (APGR; .5 is a router that guesses), with an interval over questions (bootstrap); and by what a choice of the better
worker gets. Where questions have subjects (MMLU's), a table of these stands beside the routers. The null: the same, with the
rewards shuffled over the questions before. (Shuffled among those that are fitted alone they are no null: what the fit then
prefers by chance, such as long questions, does tell hard questions from easy ones.)
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ramify.base.errors import UserError
from ramify.base.seeds import generator
from ramify.methods.orchestrator.algorithm import gain
from ramify.methods.orchestrator.baselines import BaselineRouter, fit_baselines
from ramify.methods.orchestrator.table import RewardTable, subset
from ramify.stats.intervals import clopper_pearson
from ramify_experiments.outside import tell_rows

STRONG, WEAK = "gpt-4-1106-preview", "mistralai/Mixtral-8x7B-Instruct-v0.1"
PRICES = {STRONG: 24.7, WEAK: 0.24}
"""USD a million tokens, as in RouteLLM's paper (appendix D); a token is counted as four characters of the question."""
SAMPLES, SHUFFLES = 1000, 40


def answers(folder: Path, benchmark: str, count: int) -> RewardTable:
    """The table of at most ``count`` questions, chosen at random. Raises UserError where the files are not there."""
    place = folder / "routellm" / "evals" / benchmark
    files = sorted(place.glob("responses/*.csv")) or sorted(place.glob("*_responses.csv"))
    if not files:
        raise UserError(f"{place} holds no responses: {folder} should be a checkout of lm-sys/RouteLLM")
    rows: list[tuple[str, str, float, float]] = []
    for file in files:
        with file.open(newline="", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                rows.append((row["prompt"], file.stem, float(row[STRONG] == "True"), float(row[WEAK] == "True")))
    picked = generator(0, "questions", benchmark).permutation(len(rows))[:count]
    prompts = [rows[i][0] for i in picked]
    rewards = np.array([rows[i][2:] for i in picked])[:, :, None]
    usd = np.array([[len(prompt) / 4e6 * PRICES[name] for name in (STRONG, WEAK)] for prompt in prompts])[:, :, None]
    names = [f"{benchmark} {i}" for i in picked]
    return RewardTable(names, [STRONG, WEAK], rewards, usd, [Counter(), Counter()], prompts, [rows[i][1] for i in picked])


def recovered(scores: np.ndarray, means: np.ndarray, order: np.ndarray) -> float:
    """APGR of scores (Q, 2) on rewards (Q, 2) of the strong and the weak worker: questions go to the strong one by how much more
    it is preferred, ``order`` (Q,) deciding between equals."""
    first = np.lexsort((order, scores[:, 1] - scores[:, 0]))
    over = np.concatenate([[0.0], (means[first, 0] - means[first, 1]).cumsum()])
    whole = over[-1]
    return float(over.mean() / whole) if whole else float("nan")


def interval(scores: np.ndarray, means: np.ndarray, *key: str) -> tuple[float, float, float]:
    """APGR with its bootstrap interval of 95 % over questions."""
    rng = generator(0, "bootstrap", *key)
    order = rng.permutation(len(means))
    found = []
    for _ in range(SAMPLES):
        at = rng.integers(0, len(means), len(means))
        found.append(recovered(scores[at], means[at], order[at]))
    low, high = np.nanquantile(found, [0.025, 0.975])
    return recovered(scores, means, order), float(low), float(high)


def learned(table: RewardTable, backbone: str) -> Callable[[Sequence[str]], np.ndarray]:
    """ramify's own router, fitted to a table as ``ramify orchestrator train router`` does."""
    from ramify.methods.orchestrator.router import TurnRouter, render
    from ramify.trace.message import Message

    router = TurnRouter.from_backbone(backbone, table.workers)
    router.fit(table)
    return lambda prompts: router.choices([render([Message("user", prompt)]) for prompt in prompts])


def halves(table: RewardTable) -> tuple[RewardTable, RewardTable]:
    """What routers are fitted to, and what they are measured on."""
    half = len(table.tasks) // 2
    return subset(table, range(half)), subset(table, range(half, len(table.tasks)))


def by_group(fit: RewardTable, test: RewardTable) -> np.ndarray:
    """(Q, L): what the workers got on the fitted questions of each question's subject; of all where there are none."""
    means = fit.means()
    of = {group: means[[one == group for one in fit.groups]].mean(axis=0) for group in set(fit.groups)}
    return np.array([of.get(group, means.mean(axis=0)) for group in test.groups])


def shuffled(table: RewardTable, seed: int) -> RewardTable:
    """The table with the rewards of another question at each."""
    order = generator(seed, "shuffle").permutation(len(table.tasks))
    return RewardTable(table.tasks, table.workers, table.rewards[order], table.usd, table.failures, table.prompts, table.groups)


def false_findings(table: RewardTable) -> tuple[int, int]:
    """How many routers differ from guessing at 95 % where rewards were shuffled, and how many were fitted."""
    found = tried = 0
    for seed in range(SHUFFLES):
        fit, test = halves(shuffled(table, seed))
        of = {
            one.name: one.scores(test.prompts) for one in fit_baselines(fit, seed) if one.name in ("kNN", "matrix factorisation")
        }
        if len(set(fit.groups)) > 1:
            of["table"] = by_group(fit, test)
        for name, scores in of.items():
            _, low, high = interval(scores, test.means(), name, str(seed))
            found, tried = found + (not low <= 0.5 <= high), tried + 1
    return found, tried


def measured(table: RewardTable, backbone: str, name: str) -> list[list[str]]:
    """Rows of what was tried and what came of it."""
    fit, test = halves(table)
    means = test.means()
    simple = fit_baselines(fit)
    routers: list[tuple[str, str, Callable[[Sequence[str]], np.ndarray], BaselineRouter | None]] = [
        (one.name, one.setting, one.scores, one) for one in simple
    ]
    routers.append((f"ramify's router on {backbone}", "", learned(fit, backbone), None))
    what = "kNN and matrix factorisation"
    if len(set(fit.groups)) > 1:
        routers.append(("a table of the subjects", "", lambda _: by_group(fit, test), None))
        what = "kNN, matrix factorisation and the table"
    single, rows = means[:, means.mean(axis=0).argmax()], []
    for router, setting, scores, one in routers:
        given = scores(test.prompts)
        chosen = given.argmax(axis=1) if one is None else one.choices(test.prompts)
        own = means[np.arange(len(means)), chosen]
        spent = float(test.usd[np.arange(len(means)), chosen, 0].mean())
        says = f"{own.mean():.3f} right, {gain(own, single)} over the best single, {spent * 1e6:.0f} USD a million questions"
        if len({tuple(row) for row in given}) > 1:
            share, low, high = interval(given, means, name, router)
            says = f"APGR {share:.3f} [{low:.3f}, {high:.3f}]; {says}"
        rows.append([f"{name}, {len(means)} questions: {router}{f' ({setting})' if setting else ''}", says])
    false, tried = false_findings(table)
    low, high = clopper_pearson(false, tried)
    null = f"{false} of {tried} differ from guessing at 95 % [{low:.3f}, {high:.3f}]"
    return [*rows, [f"{name}: {what} on shuffled rewards (null)", null]]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--backbone", default="builtin")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = []
    for benchmark, name in (("gsm8k", "RouteLLM's GSM8K"), ("mmlu", "RouteLLM's MMLU")):
        rows += measured(answers(given.folder, benchmark, given.count), given.backbone, name)
    tell_rows(rows, given.out)


if __name__ == "__main__":
    main()
