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
from ramify.base.progress import SILENT, Progress
from ramify.engine.hidden import FINAL, collect, hop
from ramify.engine.local import LocalModel
from ramify.methods.early_decision.probe import (
    SHUFFLES,
    STATE_A,
    TABLE,
    Probed,
    Ranked,
    corrected,
    folds_of,
    near_duplicates,
    out_of_fold,
    probe,
    shuffled_labels,
    too_few,
)
from ramify.methods.early_decision.record import PROBE, VALLEY, Study, StudyTrace
from ramify.methods.early_decision.results import ProbeAlong, ProbedState, ProbedStates, ValleyFound
from ramify.methods.early_decision.separability import LogitDistances, logit_measures, mahalanobis, valley
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

    rows: list[StudyTrace]
    states: np.ndarray
    skipped: int

    @property
    def y(self) -> np.ndarray:
        """Outcomes bool (N,)."""
        return np.array([row.outcome for row in self.rows], bool)


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
    rows = [row for row in every if len(row.thinking) >= SHORTEST]
    if not rows:
        raise UserError(f"{study.folder} holds no labelled trace with {SHORTEST} thinking tokens")
    ids, where = list[Any](), list[list[int]]()
    for row in rows:
        prompt = study.prompts[row.prompt].prompt_ids
        start = len(thinking.marks.start(prompt))
        ids.append(thinking.closed(prompt, row.thinking, row.closed).tokens)
        spread = {"h0": [start], "state_a": [start - 1], "prompt": [*hop(len(prompt), ANCHORS), start]}
        where.append(spread[at] if at != "hop" else (start + hop(len(row.thinking), points)).tolist())
    file = study.folder / f"states-{at}.safetensors"
    made = {"traces": [row.key for row in rows], "layers": list(layers), "points": len(where[0])}
    made |= {"model": model.identity.weights, "dtype": dtype}
    if file.is_file():
        with safe_open(file, "np") as kept:
            if json.loads((kept.metadata() or {}).get("made", "{}")) == made:
                return Captured(rows, kept.get_tensor("states"), len(every) - len(rows))
    states = collect(model, ids, where, layers, dtype=dtype)
    with whole_file(file) as temporary:
        save_file({"states": states}, temporary, {"made": json.dumps(made)})
    return Captured(rows, states, len(every) - len(rows))


def probe_stage(study: Study, model: Model, thinking: Thinking, config: ProbeConfig, progress: Progress = SILENT) -> ProbedStates:
    """Probes at each position and layer with every control, which the run keeps.
    Raises UserError where ``shuffles`` are too few."""
    if 0 < config.shuffles < SHUFFLES:
        raise UserError(f"--shuffles {config.shuffles} is too few for a null: take at least {SHUFFLES}, or 0 for none")
    places: list[tuple[At, int, int, int]] = []
    results: list[Probed] = []
    for at in config.at:
        got = capture(study, model, thinking, at, config.layers, dtype=KEPT)
        prompts = [study.prompts[row.prompt] for row in got.rows]
        texts = {"prompt_words": [one.text for one in prompts]}
        if at == "h0":
            texts["first_token"] = [thinking.text(row.thinking[:1]) for row in got.rows]
        pools = [one.pool for one in prompts]
        others: dict[str, Sequence[Any]] = {"near_duplicate_prompts": near_duplicates(texts["prompt_words"]).tolist()}
        given = [one.source for one in prompts]
        sources = None if None in given else given
        if sources is not None:
            others["prompt_sources"] = sources
        progress.begin(len(results) + got.states.shape[1] * got.states.shape[2], len(results), f"probe {at}", "probes")
        for position, k in np.ndindex(got.states.shape[1:3]):
            found = probe(
                got.states[:, position, k].astype(np.float32),
                got.y,
                [one.id for one in prompts],
                recipe=STATE_A if at == "state_a" else TABLE,
                pools=pools if any(pools) else None,
                sources=sources,
                texts=texts,
                other_groups=others,
                shuffles=config.shuffles,
            )
            results.append(found)
            places.append((at, position, config.layers[k], got.skipped))
            progress.at(len(results))
    probed = [ProbedState.of(*place, one) for place, one in zip(places, corrected(results), strict=True)]
    result = ProbedStates.of(probed)
    least = [min((pool for pool in one.pools if pool.p_corrected is not None), key=_corrected, default=None) for one in probed]
    study.conclude(PROBE, result, [one for one in least if one is not None], config.to_json())
    return result


def _corrected(pool: Ranked) -> float:
    return 1.0 if pool.p_corrected is None else pool.p_corrected


def valley_stage(
    study: Study, model: Model, thinking: Thinking, config: ValleyConfig, progress: Progress = SILENT
) -> ValleyFound:
    """J and a probe at every position, with the floor of the one and shuffled labels for the other, which the run keeps."""
    got = capture(study, model, thinking, "hop", (FINAL,), config.points, "float16")
    names, y, x = [row.prompt for row in got.rows], got.y, got.states[:, :, 0]
    about = got.skipped, len(y), config.textbook
    result = ValleyFound.of(*about, too_few(y))
    if not result.reason:
        found = valley(x.astype(np.float32), y, names, samples=config.samples)
        folds = folds_of(y, names)
        pools = [study.prompts[name].pool for name in names]
        both = np.stack([y, *shuffled_labels(y, names, folds, pools, 1, study.config.seed)])
        progress.begin(config.points, 0, "probe", "positions")
        areas: list[tuple[float | None, float | None, float]] = []
        distances: list[LogitDistances] = []
        for p in range(config.points):
            here = x[:, p].astype(np.float32)
            scores, shuffled = out_of_fold(here, both, folds, TABLE)
            areas.append((auroc(scores, y), auroc(shuffled, both[1]), mahalanobis(here, y)))
            distances.append(logit_measures(scores, y, config.textbook))
            progress.at(p + 1)
        finite = [[value if np.isfinite(value) else None for value in one] for one in distances]
        result = ValleyFound.of(*about, "", found, ProbeAlong(*zip(*areas, strict=True), *zip(*finite, strict=True)))
    evidence = result.valley and {"depth": result.valley.depth, "depth_interval": result.valley.depth_interval}
    study.conclude(VALLEY, result, evidence, config.to_json())
    return result
