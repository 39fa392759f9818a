"""Training a drafter on text that its target wrote (spec 3.5): one call for DSpark, DFlash and Eagle3.

Axis legend: B sequences, T tokens, A anchors, K slots of a block, D width, m target layers, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.base.files import write_whole
from ramify.base.ids import json_hash, stable_hash
from ramify.base.progress import SILENT, Progress, gathered
from ramify.base.seeds import generator
from ramify.base.waiting import wait_for
from ramify.engine.local import LocalModel
from ramify.methods.dspark.drafter_files import TRAINING
from ramify.methods.dspark.drafters import Qwen3Drafter
from ramify.methods.dspark.dspark_drafter import DSpark
from ramify.methods.dspark.eagle import Eagle3
from ramify.methods.dspark.record import Losses, TrainStep
from ramify.methods.dspark.settings import DrafterTraining
from ramify.model.protocol import Prefix, Sampling
from ramify.rollout.sampler import Sampler
from ramify.trace.lines import at_place
from ramify.train.batch import Row
from ramify.train.checkpoint import pack, unpack
from ramify.train.loop import TrainConfig, Trainer
from ramify.train.muon import matrices_of

CHECKPOINT, TEXT = f"{TRAINING}/state.safetensors", f"{TRAINING}/text.safetensors"
"""Files in the output folder: the state from which a stopped training continues, and the target's text."""
CACHE_BYTES = 1 << 30
"""Most memory for features of the target kept between steps; those of further sequences are computed again."""

WARMUP = 0.04
"""Share of the steps that warm up, as in the paper."""
SLOT_DECAY = 4.0
"""Slot k has weight exp(-(k-1)/SLOT_DECAY), as in the paper: a slot counts only where those before it were right."""
STEP_DECAY = 0.8
"""Eagle3: weight of each unrolled step relative to the one before, as in its paper."""
CROSS_ENTROPY, DISTANCE = 0.1, 0.9
"""Weights of the cross-entropy on the next token (DFlash has this loss alone) and of the distance between the drafter's and the
target's distribution, ||p - q||_1, as in the paper: the distance is what decides how many tokens are accepted."""
VOCABULARY = ("markov_w1", "markov_w2")
"""Matrices of which a row is a token's: not for Muon."""
CLIP_NORM = 1.0
"""Largest gradient norm of a step, as in the paper."""


async def regenerate(
    target: LocalModel,
    prompts: Sequence[np.ndarray],
    settings: Sampling,
    seed: int,
    length: int | None = None,
    progress: Progress = SILENT,
) -> list[Row]:
    """What the target itself says after each prompt (token ids), as rows whose sampled tokens count.

    ``length``: tokens of a row with its prompt; ``settings.max_tokens`` bounds the sample either way. Raises UserError on a
    prompt that leaves no room for two sampled tokens, which a drafter needs.
    """

    sampler = Sampler(target, seed)

    async def row(i: int, prompt: np.ndarray) -> Row:
        room = target.context - len(prompt) if length is None else min(length, target.context) - len(prompt)
        if room < 2:
            raise UserError(f"prompt {i} has {len(prompt)} tokens; two sampled ones do not fit after it")
        limited = replace(settings, max_tokens=min(room, settings.max_tokens))
        completion = await sampler.one(Prefix(prompt), limited, ("dspark", "regenerate"), i, "regenerate")
        sampled = np.asarray(completion.tokens, np.int32)
        mask = np.arange(len(prompt) + len(sampled)) >= len(prompt)
        return Row(np.concatenate((np.asarray(prompt, np.int32), sampled)), mask)

    progress.begin(len(prompts), 0, "sample text", "replies")
    return await gathered((row(i, prompt) for i, prompt in enumerate(prompts)), progress)


def kept_text(
    target: LocalModel,
    prompts: Sequence[np.ndarray],
    settings: Sampling,
    seed: int,
    folder: Path,
    length: int | None = None,
    progress: Progress = SILENT,
) -> list[Row]:
    """What :func:`regenerate` samples, kept in ``folder`` so that it is sampled once.
    Raises UserError where another text is kept there."""
    file = folder / TEXT
    what = json_hash([target.identity.weights, settings.to_json(), length, seed, [one.tolist() for one in prompts]])
    if file.is_file():
        tensors, record = _read(file)
        if record.get("what") != what:
            raise UserError(f"{file} is text of another target or other prompts; remove it or choose another folder")
        ends = np.cumsum(tensors["lengths"].numpy())
        rows = np.split(tensors["tokens"].numpy(), ends[:-1])
        return [Row(row, np.arange(len(row)) >= len(prompt)) for row, prompt in zip(rows, prompts, strict=True)]
    made = wait_for(regenerate(target, prompts, settings, seed, length, progress))
    tokens = torch.from_numpy(np.concatenate([row.tokens for row in made]))
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, pack({"tokens": tokens, "lengths": torch.tensor([len(row.tokens) for row in made])}, {"what": what}))
    return made


def unused_token(rows: Sequence[Row], vocab: int) -> int:
    """The highest token id that occurs in no row: a mask token. Raises UserError where every one occurs."""
    used = {int(token) for row in rows for token in np.unique(row.tokens)}
    for token in range(vocab - 1, -1, -1):
        if token not in used:
            return token
    raise UserError(f"all {vocab} tokens occur in the data, so none can be the mask token")


def most_frequent(rows: Sequence[Row], count: int, vocab: int) -> list[int]:
    """The ``count`` tokens that the target writes most in ``rows``; of equals, and past those that it wrote, the lowest ids. None
    where these are all of ``vocab`` or ``count`` is 0: then every token is drafted."""
    if not 0 < count < vocab:
        return []
    written = np.bincount(np.concatenate([row.tokens[row.mask] for row in rows]), minlength=vocab)
    return [int(token) for token in np.argsort(-written, kind="stable")[:count]]


def train_drafter(
    drafter: Qwen3Drafter,
    target: LocalModel,
    rows: Sequence[Row],
    config: DrafterTraining,
    out: Path | None = None,
    progress: Progress = SILENT,
    stop_at: int | None = None,
) -> list[TrainStep]:
    """Train ``drafter``, attached to ``target``, on ``rows`` (see :func:`regenerate`); the record of each reported step.

    With ``out`` the state is written into ``training`` there every so many steps, and a training that was stopped continues from
    it to the same weights. ``stop_at`` stops after so many steps.
    Raises UserError on rows that cannot be used, and on a state of another training.
    """
    c = drafter.config
    rows = _usable(rows, c.mask_token, isinstance(drafter, Eagle3))
    if target.forward.vocab != c.vocab:
        raise UserError(f"the drafter knows {c.vocab} tokens, the target '{target.name}' {target.forward.vocab}")
    settings = TrainConfig(lr=config.lr, beta2=0.999, clip_norm=CLIP_NORM)
    matrices = matrices_of(drafter, VOCABULARY) if config.optimizer == "muon" else ()
    trainer = Trainer(drafter, settings, config.seed, matrices=matrices)
    what = _hash(drafter, target, rows, config)
    records = _resume(trainer, out, what) if out is not None else []
    features = _Features(target, c.target_layers, rows, drafter.tokens)
    every = max(1, config.steps // 50)
    progress.begin(config.steps, trainer.steps, "train", "steps")
    last = config.steps if stop_at is None else min(stop_at, config.steps)
    for step in range(trainer.steps, last):
        trainer.set_rate(config.lr * _rate(step, config))
        record = _step(trainer, drafter, features, config, step)
        if (step + 1) % every == 0 or step + 1 == config.steps:
            records.append(TrainStep(**vars(record), step=step + 1))
            progress.at(step + 1, str(record))
        if out is not None and ((step + 1) % (5 * every) == 0 or step + 1 == last):
            tensors, state = trainer.state()
            file = out / CHECKPOINT
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, pack(tensors, {**state, "what": what, "records": codec.to_json(records)}))
    drafter.eval()
    return records


def _step(trainer: Trainer, drafter: Qwen3Drafter, features: _Features, config: DrafterTraining, step: int) -> Losses:
    """One optimiser step; its losses and what the drafter would get accepted, under teacher forcing."""
    count = len(features.rows)
    picks = generator(config.seed, "drafter-batch", step).choice(count, min(config.rows, count), replace=False)
    tokens, mask, states, distribution = features.batch(picks.tolist())
    drafter.train()
    if isinstance(drafter, Eagle3):
        loss, record = eagle_loss(drafter, tokens, mask, states, distribution)
    elif isinstance(drafter, DSpark):
        anchors, keep = sample_anchors(mask, config.anchors, config.seed, step)
        loss, record = block_loss(drafter, tokens, mask, states, distribution, anchors, keep, config)
    else:
        raise UserError(f"there is no training for a drafter of kind '{drafter.config.kind}'")
    trainer.descend(loss)
    return record


def _rate(step: int, config: DrafterTraining) -> float:
    """Share of the peak learning rate at ``step``: linear warm-up, then cosine to 0."""
    warm = max(1.0, WARMUP * config.steps)
    if step < warm:
        return (step + 1) / math.ceil(warm)
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1.0, config.steps - warm)))


# --- losses --------------------------------------------------------------------------------------------------------------------


def sample_anchors(mask: Tensor, count: int, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """Anchors int64 [B, A], rising, and which of them are real, bool [B, A].

    An anchor and its successor both count in ``mask`` bool [B, T].
    Sampled without replacement, as many as there are up to ``count``.
    """
    able = (mask[:, :-1] & mask[:, 1:]).cpu().numpy()
    order = generator(seed, "drafter-anchors", step).random(able.shape)
    order[~able] = 2.0
    chosen = np.argsort(order, axis=1, kind="stable")[:, :count]
    keep = np.take_along_axis(able, chosen, axis=1)
    chosen = np.sort(np.where(keep, chosen, mask.shape[1]), axis=1)
    keep = chosen < mask.shape[1]
    return torch.from_numpy(np.where(keep, chosen, 0)).to(mask.device), torch.from_numpy(keep).to(mask.device)


def block_loss(
    drafter: DSpark,
    tokens: Tensor,
    mask: Tensor,
    features: Tensor,
    distribution: Tensor,
    anchors: Tensor,
    keep: Tensor,
    config: DrafterTraining,
) -> tuple[Tensor, Losses]:
    """The three losses of spec 3.5 over all supervised slots, each a weighted mean; DFlash has the cross-entropy alone.

    ``tokens`` int64 and ``mask`` bool [B, T], ``features`` [B, T, m*D], ``distribution`` [B, T, V] the target's probabilities of
    the token after each (V: the tokens that are drafted), ``anchors`` and ``keep`` [B, A]. A slot counts while it and those
    before it in its block lie in the mask.
    """
    T, K = tokens.shape[1], drafter.config.block
    logits, scores = drafter(tokens, features, anchors)
    where = anchors[..., None] + torch.arange(1, K + 1, device=tokens.device)
    inside = where.clamp(max=T - 1)
    rows = torch.arange(len(tokens), device=tokens.device)[:, None, None]
    counted = (keep[..., None] & (where < T) & mask[rows, inside]).cumprod(-1)
    weights = counted * torch.exp(-torch.arange(K, device=tokens.device) / SLOT_DECAY)
    total = weights.sum().clamp(min=1e-6)
    log_q = logits.log_softmax(-1)
    label, known = drafter.places(tokens[rows, inside])
    entropy = -(log_q.gather(-1, label[..., None])[..., 0] * weights * known).sum() / total
    wanted = distribution[rows, inside - 1]
    apart = (log_q.exp() - wanted).abs().sum(-1) + (1 - wanted.sum(-1) if drafter.config.drafted else 0.0)
    accepted = (1 - 0.5 * apart.detach()).clamp(0, 1)
    loss = entropy
    if drafter.config.kind != "dflash":
        loss = CROSS_ENTROPY * entropy + DISTANCE * (apart * weights).sum() / total
    if drafter.confidence_head is not None:
        sure = F.binary_cross_entropy_with_logits(scores, accepted, reduction="none")
        loss = loss + config.confidence * (sure * weights).sum() / total
    tau = 1 + (accepted * counted).cumprod(-1).sum(-1)[keep].mean()
    return loss, Losses(float(loss.detach()), float(tau), float(entropy.detach()))


def eagle_loss(drafter: Eagle3, tokens: Tensor, mask: Tensor, features: Tensor, distribution: Tensor) -> tuple[Tensor, Losses]:
    """Soft cross-entropy to the target's distribution at every unrolled step,
    a mean per sequence, step j weighted :data:`STEP_DECAY`^j.

    Arguments as in :func:`block_loss`.
    """
    T = tokens.shape[1]
    columns = torch.arange(T, device=tokens.device)
    loss = torch.zeros((), device=tokens.device)
    tau, chance = torch.ones((), device=tokens.device), torch.ones(tokens.shape, device=tokens.device)
    for j, logits in enumerate(drafter(tokens, features)):
        label = columns + 2 + j
        counted = (label < T) & mask[:, label.clamp(max=T - 1)] & mask[:, (label - 1).clamp(max=T - 1)]
        wanted = distribution[:, (columns + 1 + j).clamp(max=T - 1)]
        log_q = logits.log_softmax(-1)
        entropy = -(wanted * log_q).sum(-1)
        each = (entropy * counted).sum(1) / counted.sum(1).clamp(min=1)
        loss = loss + STEP_DECAY**j * each.mean()
        with torch.no_grad():
            chance = chance * torch.minimum(wanted, log_q.exp()).sum(-1)
            tau = tau + (chance * counted).sum() / counted.sum().clamp(min=1)
    return loss, Losses(float(loss.detach()), float(tau))


# --- data ----------------------------------------------------------------------------------------------------------------------


class _Features:
    """The target's features and distributions of rows, computed row by row (so that no bit depends on a batch) and kept as
    float16."""

    def __init__(self, target: LocalModel, layers: Sequence[int], rows: Sequence[Row], drafted: Tensor) -> None:
        self.drafted = drafted
        self.forward, self.layers, self.rows = target.forward, [layer + 1 for layer in layers], rows
        self._kept: dict[int, Tensor] = {}
        self._bytes = 0

    def batch(self, picks: Sequence[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """tokens int64 [B, T], mask bool [B, T], features [B, T, m*D] and distributions [B, T, V] (V: the tokens that are
        drafted); rows padded on the right with zeros."""
        states = [self._states(i) for i in picks]
        T, B, device = max(len(one) for one in states), len(states), self.forward.device
        tokens = torch.zeros((B, T), dtype=torch.long)
        mask = torch.zeros((B, T), dtype=torch.bool)
        padded = torch.zeros((B, T, states[0].shape[1]), device=device)
        for b, (i, one) in enumerate(zip(picks, states, strict=True)):
            padded[b, : len(one)] = one
            tokens[b, : len(one)] = torch.from_numpy(self.rows[i].tokens)
            mask[b, : len(one)] = torch.from_numpy(self.rows[i].mask)
        features, last = padded.split((padded.shape[2] - self.forward.width, self.forward.width), 2)
        with torch.no_grad():
            if len(self.drafted):  # row by row: whole distributions of a batch over a large vocabulary are what memory goes to
                parts = [self.forward.logits(row).float().softmax(-1).index_select(-1, self.drafted) for row in last]
                distribution = torch.stack(parts)
            else:
                distribution = self.forward.logits(last).float().softmax(-1)
        return tokens.to(device), mask.to(device), features, distribution

    def _states(self, i: int) -> Tensor:
        if i in self._kept:
            return self._kept[i]
        found: dict[int, Tensor] = {}

        def tap(layer: int, x: Tensor) -> Tensor:
            if layer in self.layers:
                found[layer] = x[0]
            return x

        tokens = torch.from_numpy(self.rows[i].tokens.astype(np.int64))[None].to(self.forward.device)
        with torch.no_grad():
            last = self.forward.full(tokens, tap)[0]
            states = torch.cat([*(found[layer] for layer in self.layers), last], -1).half()
        if self._bytes + states.nbytes <= CACHE_BYTES:
            self._kept[i] = states
            self._bytes += states.nbytes
        return states


def _usable(rows: Sequence[Row], mask_token: int, eagle: bool) -> list[Row]:
    """The rows with something to learn from. Raises UserError on the mask token in the data, or where no row is left."""
    for i, row in enumerate(rows):
        if not eagle and (row.tokens == mask_token).any():
            raise UserError(
                f"row {i} holds token {mask_token}, the drafter's mask token; choose one that does not occur in the data"
            )
    able = [row for row in rows if (row.mask[1:] & row.mask[:-1]).any() and len(row.tokens) > 2]
    if not able:
        raise UserError(f"none of the {len(rows)} rows has two tokens in succession that the target wrote")
    return able


def _hash(drafter: Qwen3Drafter, target: LocalModel, rows: Sequence[Row], config: DrafterTraining) -> str:
    """What decides a training: a state of another one must not be taken up."""
    parts: list[str | bytes] = [json_hash(config.model_dump()), repr(drafter.config), target.identity.weights]
    for row in rows:
        parts += [row.tokens.astype(np.int32).tobytes(), row.mask.tobytes()]
    return stable_hash(*parts)


def _resume(trainer: Trainer, out: Path, what: str) -> list[TrainStep]:
    file = out / CHECKPOINT
    if not file.is_file():
        return []
    tensors, state = _read(file)
    if state.get("what") != what:
        raise UserError(
            f"{file} is the state of another training (other data, target or settings); remove it or choose another folder"
        )
    trainer.restore(tensors, state)
    return codec.from_json(list[TrainStep], state.get("records"), str(file))


def _read(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with at_place(str(file)):
        return unpack(file.read_bytes())
