"""What the verbs do: open a target, sample its text, train a drafter on it, calibrate its confidences, estimate the cost."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ramify.base.errors import NeedsError, UserError
from ramify.base.files import write_whole
from ramify.base.processor import resident
from ramify.base.progress import SILENT, Progress
from ramify.engine.checkpoints import chat_template, model_folder
from ramify.engine.local import LocalModel
from ramify.engine.profile import FILE, Profile
from ramify.methods.dspark import lossless, prompts, speculators
from ramify.methods.dspark.algorithm import scaled
from ramify.methods.dspark.drafter_files import for_target, layout, load_drafter, save_drafter, unserved
from ramify.methods.dspark.drafters import Qwen3Drafter
from ramify.methods.dspark.record import CalibratedDrafter, LosslessReport, TrainedDrafter
from ramify.methods.dspark.recorder import record
from ramify.methods.dspark.rounds import accepted_length, conditional_acceptance
from ramify.methods.dspark.settings import TrainOptions
from ramify.methods.dspark.training import CACHE_BYTES, kept_text, most_frequent, train_drafter, unused_token
from ramify.model.chat import ChatTemplate
from ramify.model.protocol import Grammar, Sampling
from ramify.render.result import Cell
from ramify.train.batch import Row
from ramify.train.large import FLOAT

LOGITS = 5
"""Copies of the drafter's logits that a step holds at once."""
ROWS = 64
"""Rows that a model samples at once."""
CALIBRATION = "calibration.json"
"""File in a drafter's folder: how well its confidences are calibrated."""


@dataclass
class Target:
    """A model that drafters are made for, and where its prompts come from."""

    name: str
    model: LocalModel
    template: ChatTemplate | None

    @classmethod
    def open(cls, name: str, weights: bool = True) -> Target:
        """``builtin``, ``hf:FOLDER`` or a folder; ``weights`` as in :meth:`ramify.engine.local.LocalModel.load`. Raises UserError
        on an unknown model, NeedsError for a model on an endpoint."""
        spec = f"hf:{name}" if Path(name).is_dir() else name
        folder = model_folder(spec)
        template: ChatTemplate | None = None
        if (folder / "tokenizer.json").is_file():
            with suppress(NeedsError):  # texts stay as they are where there is no template
                template = chat_template(folder)
        return cls(spec, LocalModel.load(folder, weights=weights), template)

    @property
    def folder(self) -> Path:
        """Its checkpoint."""
        return model_folder(self.name)

    def prompts(self, file: Path | None, n: int, raw: bool, seed: int, part: str) -> list[np.ndarray]:
        """``n`` prompts, those of ``file`` in turns, or what :func:`ramify.methods.dspark.prompts.of_target` makes; all fit the
        context."""
        if file is None:
            return prompts.of_target(self.name, n, seed, part)
        read = prompts.from_file(file, self.model, self.template, raw)
        for i, one in enumerate(read):
            if len(one) + 2 > self.model.context:
                raise UserError(f"{file}: prompt {i + 1} has {len(one)} tokens; the model's context is {self.model.context}")
        return [read[i % len(read)] for i in range(n)]


def cost_estimate(target: Target, options: TrainOptions) -> dict[str, Cell]:
    """What a training costs: tokens the target samples at most, positions that are supervised, weights that are trained, memory.
    ``target`` needs no weights.

    Memory is the larger of what sampling takes and what a step takes: four times the weights to train, the features of the target
    that are kept, its distributions over the row, and :data:`LOGITS` times those of the drafter at the supervised positions."""
    made = make(target, options, mask_token=0)
    slots = options.length if options.kind == "eagle3" else options.anchors
    trained = sum(w.numel() for w in made.parameters() if w.requires_grad)
    tokens, model = options.sequences * options.length, target.model
    drafted = options.vocabulary or model.forward.vocab
    features = min(CACHE_BYTES, FLOAT * tokens * len(made.config.target_layers) * model.forward.width)
    logits = FLOAT * options.rows * (LOGITS * slots * options.block * drafted + 2 * options.length * model.forward.vocab)
    sampled, weights = (model.sampling_bytes(rows, options.length, rows and tokens) for rows in (ROWS, 0))
    memory = resident() + max(sampled, weights + 4 * FLOAT * trained + features + logits)
    return {
        "tokens to sample, at most": tokens,
        "weights to train": trained,
        "steps": options.steps,
        "GiB of memory, about": round(memory / 2**30, 1),
        "supervised positions, at most": options.steps * options.rows * slots * options.block,
        "target layers read": ", ".join(map(str, made.config.target_layers)),
    }


def check_layout(options: TrainOptions, target: Target) -> None:
    """Raises NeedsError where no drafter of these options has a form in the layout that they name."""
    if options.layout == "speculators" and (why := speculators.unwritable(make(target, options, mask_token=0).config)):
        raise NeedsError(why)


def make(target: Target, options: TrainOptions, mask_token: int, drafted: Sequence[int] | None = None) -> Qwen3Drafter:
    """A new drafter as the options describe it. ``drafted``: the tokens it can draft; None takes the first ones, for costs."""
    return for_target(
        target.model.module,
        options.kind,
        layers=options.layers,
        block=options.block,
        rank=options.rank,
        head=options.head,
        mask_token=mask_token,
        anchors=options.anchors,
        drafted=range(min(options.vocabulary, target.model.forward.vocab)) if drafted is None else drafted,
        seed=options.seed,
    )


def text(
    target: Target, given: Sequence[np.ndarray], options: TrainOptions, folder: Path, progress: Progress = SILENT
) -> list[Row]:
    """What the target writes after each of ``given``, kept in ``folder`` so that it is sampled once.
    Raises UserError on another one's text."""
    settings = Sampling(temperature=options.temperature, max_tokens=options.length)
    return kept_text(target.model, given, settings, options.seed, folder, progress=progress)


def train(
    target: Target,
    rows: Sequence[Row],
    options: TrainOptions,
    out: Path,
    progress: Progress = SILENT,
    mask: int | None = None,
) -> TrainedDrafter:
    """Train a drafter on ``rows`` and save it in ``out``; a call that was stopped continues. The last losses, and what was made.

    ``mask``: the mask token; None takes one that occurs in no row.
    """
    if mask is None:
        mask = unused_token(rows, target.model.forward.vocab)
    drafter = make(target, options, mask, most_frequent(rows, options.vocabulary, target.model.forward.vocab))
    records = train_drafter(drafter, target.model, rows, options.training(), out, progress)
    save_drafter(drafter, out, target.folder if options.layout == "speculators" else None)
    caveats = tuple(filter(None, [unserved(drafter.config)]))
    return TrainedDrafter(str(out), options.kind, len(rows), mask, **vars(records[-1]), caveats=caveats)


def calibrate(
    target: Target, folder: Path, given: Sequence[np.ndarray], settings: Sampling, seed: int, progress: Progress = SILENT
) -> CalibratedDrafter:
    """Fit the temperatures of the drafter in ``folder`` on the rounds of half of the prompts, save them,
    and test them on the other half.

    Raises UserError where the drafter has no confidences, or a half has no rounds.
    """
    drafter = load_drafter(folder, target.model.module)
    if not drafter.config.confidence:
        raise UserError(f"the drafter in {folder} has no confidence head, so there is nothing to calibrate")
    import torch

    drafter.temperatures = torch.ones_like(drafter.temperatures)
    rounds = record(target.model, drafter, given, settings, seed, progress)
    found, before, after = scaled(rounds)
    drafter.temperatures = torch.tensor(found, dtype=torch.float32)
    save_drafter(drafter, folder, target.folder if layout(folder) == "speculators" else None)
    acceptance = tuple(None if math.isnan(share) else share for share in conditional_acceptance(rounds).tolist())
    temperatures = tuple(found.tolist())
    made = CalibratedDrafter(len(rounds), accepted_length(rounds), acceptance, temperatures, tuple(before), tuple(after))
    write_whole(folder / CALIBRATION, json.dumps(made.to_json(), indent=1) + "\n")
    return made


def verify(
    target: Target,
    folder: Path,
    given: Sequence[np.ndarray],
    seed: int,
    samples: int,
    schedules: Sequence[str] = (),
    grammar: Grammar | None = None,
    progress: Progress = SILENT,
) -> LosslessReport:
    """What :func:`ramify.methods.dspark.lossless.verify` says of the drafter in ``folder``, with its profile if it has one."""
    costs = Profile.load(folder) if (folder / FILE).is_file() else None
    drafter = load_drafter(folder, target.model.module)
    checks = lossless.verify(
        target.model, drafter, given, seed, samples, costs=costs, schedules=schedules, grammar=grammar, progress=progress
    )
    passed = all(one.status in ("pass", "reported") for one in checks)
    shift = lossless.shift_seen(samples)
    few = f"{samples} outputs a schedule show a shift of {shift:.0%} of the probability or more, where the default shows 3 %"
    return LosslessReport(passed, samples, costs is not None, tuple(checks), caveats=() if shift < 0.04 else (few,))
