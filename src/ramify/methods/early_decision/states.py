"""Hidden states of a study's traces, probes of them, and separability along the thinking. Needs the model in this process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from ramify.base.errors import UserError
from ramify.base.files import whole_file
from ramify.engine.hidden import FINAL, collect, hop
from ramify.engine.local import LocalModel
from ramify.methods.early_decision.probe import (
    SHUFFLES,
    STATE_A,
    TABLE,
    corrected,
    folds_of,
    near_duplicates,
    out_of_fold,
    probe,
    shuffled_labels,
    too_few,
)
from ramify.methods.early_decision.record import Study
from ramify.methods.early_decision.report import probe_verdict, valley_verdict
from ramify.methods.early_decision.separability import logit_measures, mahalanobis, valley
from ramify.methods.early_decision.settings import At, ProbeConfig, ValleyConfig
from ramify.methods.early_decision.thinking import Thinking
from ramify.model.protocol import Model
from ramify.stats.ranking import auroc

SHORTEST = 3
"""Traces with less thinking are left out, and counted."""
ANCHORS = 20
KEPT: Literal["float16"] = "float16"
"""Of the probed states on the disk: they are read by a linear probe, and take half the space."""


@dataclass(frozen=True, eq=False)
class Captured:
    """States (N, P, K, D) of the labelled traces that are long enough, in the study's order, and their rows."""

    rows: list[dict[str, Any]]
    states: np.ndarray
    skipped: int

    @property
    def y(self) -> np.ndarray:
        """Outcomes bool (N,)."""
        return np.array([row["outcome"] for row in self.rows], bool)


def capture(
    study: Study,
    model: Model,
    thinking: Thinking,
    at: At,
    layers: Sequence[int] = (FINAL,),
    points: int = 100,
    dtype: Literal["float16", "float32"] = "float32",
) -> Captured:
    """Teacher-force prompt, thinking and close of every labelled trace once and keep the states at the requested positions (3.3).

    They are stored in the study's folder and read back where traces and positions are the same. Raises UserError where no trace
    is left, or where the model is not in this process.
    """
    if not isinstance(model, LocalModel):
        raise UserError(f"hidden states need a model in this process; '{model.identity.name}' is on an endpoint")
    every = study.labelled()
    rows = [row for row in every if len(row["thinking"]) >= SHORTEST]
    if not rows:
        raise UserError(f"{study.folder} holds no labelled trace with {SHORTEST} thinking tokens")
    ids, where = list[Any](), list[list[int]]()
    for row in rows:
        prompt = study.prompts[row["prompt"]]["prompt_ids"]
        start = len(thinking.marks.start(prompt))
        ids.append(thinking.closed(prompt, row["thinking"], row["closed"]).tokens)
        spread = {"h0": [start], "state_a": [start - 1], "prompt": [*hop(len(prompt), ANCHORS), start]}
        where.append(spread[at] if at != "hop" else (start + hop(len(row["thinking"]), points)).tolist())
    file = study.folder / f"states-{at}.safetensors"
    made = {"traces": [row["key"] for row in rows], "layers": list(layers), "points": len(where[0])}
    made |= {"model": model.identity.weights, "dtype": dtype}
    if file.is_file():
        with safe_open(file, "np") as kept:
            if json.loads((kept.metadata() or {}).get("made", "{}")) == made:
                return Captured(rows, kept.get_tensor("states"), len(every) - len(rows))
    states = collect(model, ids, where, layers, dtype=dtype)
    with whole_file(file) as temporary:
        save_file({"states": states}, temporary, {"made": json.dumps(made)})
    return Captured(rows, states, len(every) - len(rows))


def probe_stage(study: Study, model: Model, thinking: Thinking, config: ProbeConfig) -> dict[str, Any]:
    """Probes at each position and layer with every control; stored as the run's finding.
    Raises UserError where ``shuffles`` are too few."""
    if 0 < config.shuffles < SHUFFLES:
        raise UserError(f"--shuffles {config.shuffles} is too few for a null: take at least {SHUFFLES}, or 0 for none")
    found: list[dict[str, Any]] = []
    results = []
    for at in config.at:
        got = capture(study, model, thinking, at, config.layers, dtype=KEPT)
        names = [row["prompt"] for row in got.rows]
        prompts = [study.prompt_text(name) for name in names]
        texts = {"prompt words": prompts}
        if at == "h0":
            texts["first token"] = [thinking.text(row["thinking"][:1]) for row in got.rows]
        pools = [study.pool(name) for name in names]
        others: dict[str, Sequence[Any]] = {"near-duplicate prompts": near_duplicates(prompts).tolist()}
        given = [study.prompts[name]["data"].get("source") for name in names]
        sources = None if None in given else given
        if sources is not None:
            others["prompt sources"] = sources
        for position, k in np.ndindex(got.states.shape[1:3]):
            result = probe(
                got.states[:, position, k].astype(np.float32),
                got.y,
                names,
                recipe=STATE_A if at == "state_a" else TABLE,
                pools=pools if any(pools) else None,
                sources=sources,
                texts=texts,
                other_groups=others,
                shuffles=config.shuffles,
            )
            results.append(result)
            found.append({"at": at, "place": position, "layer": config.layers[k], "skipped": got.skipped, **result.to_json()})
    for one, ps in zip(found, corrected(results), strict=True):
        for pool in one["pools"]:
            pool["p_corrected"] = ps.get(pool["pool"])
    study.conclude("probe", probe_verdict(found)["verdict"], found, config.to_json())
    return {"probes": found}


def valley_stage(study: Study, model: Model, thinking: Thinking, config: ValleyConfig) -> dict[str, Any]:
    """J and a probe at every position, with the floor of the one and shuffled labels for the other; stored as the run's
    finding."""
    got = capture(study, model, thinking, "hop", (FINAL,), config.points, "float16")
    names, y, x = [row["prompt"] for row in got.rows], got.y, got.states[:, :, 0]
    record: dict[str, Any] = {"skipped": got.skipped, "n": len(y), "textbook": config.textbook, "reason": too_few(y)}
    if not record["reason"]:
        record |= {"valley": valley(x.astype(np.float32), y, names, samples=config.samples).to_json()}
        folds = folds_of(y, names)
        pools = [study.pool(name) for name in names]
        both = np.stack([y, *shuffled_labels(y, names, folds, pools, 1, study.config.seed)])
        probes: dict[str, list[Any]] = {"auroc": [], "shuffled": [], "mahalanobis": []}
        for p in range(config.points):
            here = x[:, p].astype(np.float32)
            scores, shuffled = out_of_fold(here, both, folds, TABLE)
            probes["auroc"].append(auroc(scores, y))
            probes["shuffled"].append(auroc(shuffled, both[1]))
            probes["mahalanobis"].append(mahalanobis(here, y))
            for name, value in logit_measures(scores, y, config.textbook).items():
                probes.setdefault(name, []).append(value if np.isfinite(value) else None)
        record["probe"] = probes
    study.conclude("valley", valley_verdict(record)["verdict"], record, config.to_json())
    return record
