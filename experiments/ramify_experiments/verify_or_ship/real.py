"""verify-or-ship on a pretrained model: sums by its improved copy, a test that errs as planned, and the model itself as reviewer.

A rewrite is a fresh sample. The verifier is exact. Everything is asked through the method's verbs.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.seeds import generator
from ramify.methods.verify_or_ship.records import candidates
from ramify.methods.verify_or_ship.replay import ALWAYS
from ramify.trace.db import Run
from ramify_experiments.cases import call_verb
from ramify_experiments.lab import Checks, ResultCache
from ramify_experiments.real import copy_of_attempts, is_right

TASKS, SAMPLES = 60, 3
PRICES = (5.0, 15.0, 30.0, 50.0)
"""Of the verifier; a right delivery pays 100."""
COSTS = ("tests=2", "review=5", "coin=2", "other coin=2")
TEST = (0.95, 0.25)
"""What the planted test passes of right and of wrong candidates."""
SHIP = ("--stop", "ship", "--loss", 100)


_FEW = (
    "from 60 tasks, and a fifth of the candidates cut, the tables are too uncertain: the plan expects 11 to 21 more than it "
    "gets: docs/methods/verify-or-ship.md, on a real model"
)
KNOWN = {
    "bayes - best fixed rule, worst price": _FEW,
    "bayes - the better of always verifying and always shipping, worst price": _FEW,
    "null: prices at which the plan asks a critic that knows nothing": "a coin's gap of .22 is chance in 60 tasks, and a "
    "plan takes tables for the truth: docs/methods/verify-or-ship.md, on a real model",
}


def _tossed(text: str, data: Any, name: str) -> float:
    return float(generator(0, "verify-or-ship real", name, text, str(data["prompt"])).random())


def tests(text: str, data: Any) -> bool:
    """The exact check with planted errors, the same ones for equal texts of a task."""
    return _tossed(text, data, "tests") < TEST[0 if is_right(text, data) else 1]


def coin(text: str, data: Any) -> bool:
    """A critic that knows nothing."""
    return _tossed(text, data, "coin") < 0.5


def other_coin(text: str, data: Any) -> bool:
    """Another one."""
    return _tossed(text, data, "other coin") < 0.5


def attempts(model: str, tasks: int, seed: int) -> list[dict[str, Any]]:
    """Records of ``SAMPLES`` fresh samples a task, with what every critic and the verifier say of each."""
    here = f"python:{__name__}"
    critics = {"tests": f"{here}:tests", "review": f"judge:{model}", "coin": f"{here}:coin", "other coin": f"{here}:other_coin"}
    with tempfile.TemporaryDirectory() as folder:
        run = copy_of_attempts(model, tasks, SAMPLES, Path(folder), seed)
        asked = [word for name, spec in critics.items() for word in ("--judge", f"{name}={spec}")]
        call_verb("verify-or-ship", "calibrate", run, *asked, "--verify", "python:ramify_experiments.real:is_right")
        with Run.open(run) as opened:
            found = candidates(opened)
    steps: dict[str, int] = defaultdict(int)
    records = []
    for one in found:
        (candidate,) = one.candidates
        record = {"instance_id": one.instance, "step": steps[one.instance], "payload": candidate.payload}
        records.append({**record, "Y": candidate.right, "critics": dict(candidate.checks)})
        steps[one.instance] += 1
    return records


def replayed(records: Sequence[dict[str, Any]], critics: Collection[str]) -> dict[str, Any]:
    """What the verbs say of ``records`` where these ``critics`` can be asked."""
    with tempfile.TemporaryDirectory() as folder:
        path, tables = Path(folder) / "records.jsonl", Path(folder) / "tables.json"
        kept = [{**record, "critics": {name: record["critics"][name] for name in critics}} for record in records]
        path.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")
        costs = [word for cost in COSTS if cost.partition("=")[0] in critics for word in ("--costs", cost)]
        found = {"tables": call_verb("verify-or-ship", "calibrate", path, "--out", tables)}
        found["beliefs"] = call_verb("verify-or-ship", "score", path, *costs)
        for price in PRICES:
            priced = (*costs, *SHIP, "--c-ver", price)
            found[f"plan {price:g}"] = call_verb("verify-or-ship", "plan", tables, *priced)
            found[f"replay {price:g}"] = call_verb("verify-or-ship", "replay", path, *priced)
    return found


def real(model: str, cells: ResultCache, first: int = 0) -> Checks:
    """Planning against always shipping, always verifying, the test as gate and the best fixed rule; and with critics that know
    nothing."""
    checks = Checks([first], KNOWN)
    records = cells.get("attempts", attempts, model=model, tasks=TASKS, seed=first)
    found, null = replayed(records, ("tests", "review")), replayed(records, ("coin", "other coin"))
    known = [bool(one["Y"]) for one in records if one["Y"] is not None]
    checks.share("sums: candidates right, of those that ended", sum(known), len(known))
    checks.share("sums: candidates that their limit of tokens cut", len(records) - len(known), len(records))
    tables = found["tables"]
    for one in tables["critics"]:
        if one["history"] == "first":
            for truth in ("right", "wrong"):
                value, n, interval = (one[name.format(truth)] for name in ("pass_{}", "n_{}", "interval_{}"))
                checks.value(f"{one['critic']} passes {truth} first candidates", value, n, interval=tuple(interval))
    checks.value("a fresh sample repairs, of those that differ", tables["kernel"]["fix"], tables["kernel"]["n"])
    beliefs = [one for one in found["beliefs"]["candidates"] if one["right"] is not None]
    belief, right = (np.array([float(one[name]) for one in beliefs]) for name in ("belief", "right"))
    checks.paired("Brier score, belief - prior alone", (belief - right) ** 2, (right.mean() - right) ** 2, "<", 0.0)
    for name, value in found["beliefs"]["prr"].items():
        checks.value(f"PRR, {name}", value, len(beliefs))
    gains = []
    for price in PRICES:
        told = found[f"replay {price:g}"]
        worth = {one["policy"]: one for one in told["policies"]}
        for policy in (ALWAYS, "always ship", "gate(tests)", "gate(review)", "bayes greedy", "bayes"):
            interval = tuple(worth[policy]["interval"])
            checks.value(f"c_v {price:g}: utility, {policy}", worth[policy]["utility"], told["attempts"], interval=interval)
        gain, _, over = (worth["bayes"]["gain_over_best_fixed"][name] for name in ("value", "interval", "over"))
        gains.append(gain)
        interval = tuple(worth["bayes"]["gain_over_best_fixed"]["interval"])
        checks.value(f"c_v {price:g}: bayes - best fixed rule ({over})", gain, told["attempts"], interval=interval)
        planned = worth["bayes"]["planned"] - worth["bayes"]["utility"]
        checks.value(f"c_v {price:g}: bayes, planned - realised", planned, told["attempts"])
    checks.worst("bayes - best fixed rule, worst price", gains, ">=", -1.0)
    ahead = [
        min(worth["bayes"]["utility"] - worth[rule]["utility"] for rule in (ALWAYS, "always ship"))
        for worth in ({one["policy"]: one for one in found[f"replay {price:g}"]["policies"]} for price in PRICES)
    ]
    checks.worst("bayes - the better of always verifying and always shipping, worst price", ahead, ">=", 0.0)
    checks.value("prices at which the plan asks the reviewer", _asking(found, {"review"}), len(PRICES))
    checks.value("null: prices at which planning gains with critics that know nothing",
                 sum(null[f"replay {price:g}"]["pays"] for price in PRICES), len(PRICES), "<=", 0)  # fmt: skip
    checks.value("null: prices at which the plan asks a critic that knows nothing",
                 _asking(null, {"coin", "other coin"}), len(PRICES), "<=", 0)  # fmt: skip
    return checks


def _asking(found: dict[str, Any], critics: Collection[str]) -> int:
    """Prices at which a plan asks one of ``critics``."""
    return sum(any(one["action"] in critics for one in found[f"plan {price:g}"]["policy"]) for price in PRICES)
