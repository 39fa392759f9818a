"""A pretrained model, two adapters of it with a skill each, and a rule, as a pool: is routing between them worth it, does a
router find it, and is nothing found among workers that are equal?

The one adapter is what ``ramify improve`` made of the model on sums; the other was shown the digits of numbers in reverse.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.files import folder_aside
from ramify.base.ids import json_hash
from ramify.base.seeds import generator
from ramify.methods.orchestrator.table import headroom, read_table, subset
from ramify.stats.checks import Check
from ramify_experiments.lab import Checks, ResultCache, cache, call_verb
from ramify_experiments.models import place
from ramify_experiments.real import improved, pretrained_name, sums

STEPS, ROWS = 30, 8
"""Of the second adapter's training: steps, and rows in each."""
TRIED = 4
LONGEST = 24
"""Tokens of a reply, as in the training of the first adapter: at 8 all of its replies were cut before their number."""
EACH, REPEATS, HOLDOUT = 8, 5, 0.4
"""Tasks of each of three kinds, repeats of every worker on a task, and the share of tasks on which the router is measured."""
EQUAL = 5
"""Sums that equal workers answer."""


def reversal(number: int) -> tuple[str, str]:
    """What is asked of a number of three digits, and the answer."""
    return f"Write the digits of {number} in reverse order. Answer with the number only.", str(number)[::-1]


def _numbers() -> list[int]:
    """All numbers of three different digits but 0, in an order that looks random: four to try things with, those that the
    adapter is taught, and at the end those of the tasks."""
    fit = [n for n in range(123, 988) if "0" not in str(n) and len(set(str(n))) == 3]
    return [fit[i] for i in generator(0, "orchestrator digits").permutation(len(fit))]


def tasks() -> list[dict[str, str]]:
    """Tasks of three kinds, as ``collect`` takes them."""
    asked = [(str(task.data["prompt"]), str(task.data["want"]), "sum") for task in sums.task_set("eval", EACH)]
    asked += [(*reversal(number), "digits") for number in _numbers()[-EACH:]]
    for a, b in generator(0, "orchestrator products").integers(10, 100, (EACH, 2)).tolist():
        asked.append((f"Compute {a} * {b}. Answer with the number only.", str(a * b), "product"))
    rows = enumerate(asked)
    return [{"id": f"{group}-{i}", "prompt": prompt, "answer": answer, "group": group} for i, (prompt, answer, group) in rows]


def multiplier(messages: Sequence[dict[str, Any]]) -> str:
    """A worker that multiplies, and answers 0 to anything else."""
    words = str(messages[-1]["content"]).replace(".", " ").split()
    return str(int(words[1]) * int(words[3])) if words[2] == "*" else "0"


def taught(model: str, seed: int = 0) -> str:
    """``model`` after some steps on digits in reverse, an adapter: ``hf:FOLDER``. Made once a machine, and kept."""
    decided = {"model": pretrained_name(model), "seed": seed, "steps": STEPS, "rows": ROWS}
    kept = cache() / "recipes" / f"{pretrained_name(model)}-digits-{json_hash(decided)}"
    if not (kept / "adapter_config.json").is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with folder_aside(kept.parent) as aside:
            _teach(model, aside / "agent", seed)
            with suppress(OSError):  # another process was first, and its copy is the same
                (aside / "agent").rename(kept)
    return f"hf:{kept}"


def _teach(model: str, out: Path, seed: int) -> None:
    from ramify.engine.checkpoints import adapter_of, load_model, model_folder, save_model
    from ramify.jobs.settings import RANK, pretrained_rate
    from ramify.model.rendered import laid_out
    from ramify.train.batch import Row
    from ramify.train.loop import Trainer
    from ramify.train.settings import TrainConfig

    base = model_folder(model)
    agent, template = load_model(base)
    rows = []
    for number in _numbers()[TRIED : TRIED + STEPS * ROWS]:
        prompt, answer = reversal(number)
        asked = list(laid_out(template, [("user", prompt)]))
        tokens = [*asked, *template.tokenizer.encode(answer), template.stop_tokens[0]]
        rows.append(Row(np.array(tokens, np.int32), np.arange(len(tokens)) >= len(asked)))
    rate = pretrained_rate(sum(weight.numel() for weight in agent.module.parameters()), adapter=True)
    trainer = Trainer(agent.module, TrainConfig(lr=rate), seed, adapter_of(agent, base, RANK, seed))
    for step in range(STEPS):
        trainer.update([rows[i % len(rows)] for i in range(ROWS * step, ROWS * (step + 1))], {"cross_entropy": 1.0})
    save_model(agent, base, out, trainer.adapter)


def real(model: str, cells: ResultCache, first: int = 0) -> Sequence[Check]:
    """The table of all workers on all tasks, what it promises, a router fitted to it, and a table of equal workers."""
    own = {"model": model, "seed": first}
    copies = cells.get("copies", skilled, **own)
    table = cells.get("table", collected, **own, **copies)
    routed = cells.get("router", fitted, model=model, seed=first, table=table["run"])
    equal = cells.get("equal workers", alike, seed=first, worker=copies["adder"])
    checks = Checks((first,))
    for worker, means in table["means"].items():
        for group, values in means.items():
            checks.mean(f"{worker} on {group}", values)
    promised = table["headroom"]
    gains = promised["gain"]["value"]
    checks.value("perfect choice over the best single worker", gains, promised["tasks"], ">=", 0.15, _ends(promised))
    checks.value("routing is said to be worth it", promised["worth"], promised["tasks"], ">=", 1)
    held = routed["held_out"]
    checks.value("router, tasks kept back", held["routed"], held["tasks"])
    checks.value("best single worker, tasks kept back", held["single"], held["tasks"])
    checks.value("random choice, tasks kept back", held["random"], held["tasks"])
    checks.value("cheapest worker, tasks kept back", routed["cheapest"], held["tasks"])
    checks.value("perfect choice, cross-fitted, tasks kept back", routed["oracle"], held["tasks"])
    checks.paired("router - best single worker", routed["routed"], routed["single"], ">=", 0.15)
    checks.value("router - perfect choice, tasks kept back", held["routed"] - routed["oracle"], held["tasks"], ">=", -0.05)
    checks.value("within groups, a perfect choice adds", promised["within_groups"]["value"], promised["tasks"])
    checks.value("null: equal workers, routing is said to be worth it", equal["worth"], equal["tasks"], "<=", 0)
    gains = equal["gain"]["value"]
    checks.value("null: equal workers, perfect choice over the best", gains, equal["tasks"], interval=_ends(equal))
    checks.value("processor seconds without the two copies", table["seconds"] + routed["seconds"] + equal["seconds"], 1)
    return checks


def _ends(found: dict[str, Any]) -> tuple[float, float]:
    low, high = found["gain"]["interval"]
    return low, high


def skilled(model: str, seed: int) -> dict[str, str]:
    """The names of the two adapters: one cell."""
    return {"adder": improved(model), "reverser": taught(model, seed)}


def _pool(folder: Path, workers: Sequence[tuple[str, str, float]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pool = folder / "pool.toml"
    rows = (f'[[workers]]\nname = "{name}"\nmodel = "{model}"\nprice = [{usd}, {usd}]\n' for name, model, usd in workers)
    pool.write_text("\n".join(rows), encoding="utf-8")
    return pool


def _collected(folder: Path, pool: Path, asked: Sequence[dict[str, str]], seed: int) -> dict[str, Any]:
    """What ``show headroom`` says of a collection in ``folder``."""
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in asked), encoding="utf-8")
    words = ("--judge", "number", "--n", REPEATS, "--max-tokens", LONGEST, "--seed", seed)
    call_verb("orchestrator", "collect", pool, "--tasks", folder / "tasks.jsonl", *words, "--out", folder / "table")
    return call_verb("orchestrator", "show", "headroom", folder / "table")


def collected(model: str, seed: int, adder: str, reverser: str) -> dict[str, Any]:
    """Every worker on every task, five times, and what that promises: one cell."""
    began = _processor()
    folder = place("pool", {"model": model, "seed": seed, "adder": adder, "reverser": reverser}, __name__)
    rule = f"python:{__name__}:multiplier"
    workers = [("model", model, 1.0), ("adder", adder, 1.0), ("reverser", reverser, 1.0), ("rule", rule, 0.01)]
    said = _collected(folder, _pool(folder, workers), tasks(), seed)
    table = read_table(folder / "table")
    groups, means = np.array(table.groups), table.means()
    by = {
        worker: {group: means[groups == group, at].tolist() for group in sorted(set(table.groups))}
        for at, worker in enumerate(table.workers)
    }
    return {"run": str(folder / "table"), "headroom": said, "means": by, "seconds": _processor() - began}


def fitted(model: str, seed: int, table: str) -> dict[str, Any]:
    """A router on the model's own states, on tasks that were kept back: one cell."""
    from ramify.methods.orchestrator.router import TurnRouter, render
    from ramify.trace.message import Message

    began, out = _processor(), Path(table).parent / "router"
    settings = ("--router.backbone", model, "--router.holdout", HOLDOUT, "--seed", seed)
    if out.exists():
        raise FileExistsError(f"{out} is left of a call that was stopped: `ramify repro orchestrator --real --fresh`")
    found = call_verb("orchestrator", "train", "router", table, *settings, "--out", out, "--run", out.parent / "fit")
    held, router = read_table(Path(table)), TurnRouter.load(out)
    order = generator(seed, "holdout").permutation(len(held.tasks)).tolist()
    rows = sorted(order[: round(HOLDOUT * len(order))])
    means = router.means_of(held)[rows]
    chosen = router.choices([render([Message("user", held.prompts[i])]) for i in rows]).argmax(axis=1)
    oracle = headroom(subset(held, rows), seed).oracle
    best, cheapest = router.workers.index(found["held_out"]["best_single"]), router.workers.index("rule")
    return {
        "held_out": found["held_out"],
        "routed": means[np.arange(len(rows)), chosen].tolist(),
        "single": means[:, best].tolist(),
        "oracle": oracle,
        "cheapest": float(means[:, cheapest].mean()),
        "seconds": _processor() - began,
    }


def alike(seed: int, worker: str) -> dict[str, Any]:
    """What is said of three workers that are one model: one cell."""
    began = _processor()
    folder = place("alike", {"seed": seed, "worker": worker}, __name__)
    pool = _pool(folder, [(name, worker, 1.0) for name in ("first", "second", "third")])
    return _collected(folder, pool, tasks()[:EQUAL], seed) | {"seconds": _processor() - began}


def _processor() -> float:
    times = os.times()
    return times.user + times.system
