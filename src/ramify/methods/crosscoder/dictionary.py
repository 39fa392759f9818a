"""Sparse dictionaries of hidden states: one model's (a TopK autoencoder) or a pair's (a crosscoder),
with features of one model alone.

Paper: Localizing RL-Induced Tool Use to a Single Crosscoder Feature, arXiv 2606.26474 (sections of the specification are named
where a formula is). A feature has one activation for all models and a direction in each; the first ``exclusive * F`` features may
write to and read from model 0 only, the next as many from model 1 only. The normaliser belongs to the dictionary: inputs and
outputs are in the models' own units, so training and use cannot diverge.

Axis legend: N rows, B rows of a batch, M models, D width, F features.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from scipy.stats import t as student
from torch import Tensor, nn

from ramify.base import codec
from ramify.base.config import check
from ramify.base.errors import UserError, nearest
from ramify.base.files import read_record, refusal, write_whole
from ramify.base.seeds import derive_key, generator
from ramify.methods.crosscoder.record import CapturedFrom, DictionaryAbout, FitQuality, Quality
from ramify.methods.crosscoder.settings import OWN, PARTITIONS, DictionaryConfig, FitConfig, Normalise

SPARSE = 32
"""From so many features for each active one on, training sums the k directions of a row instead of multiplying with mostly
zeros."""

CLIP_NORM = 1.0
"""Largest gradient norm of a step in training: one batch of outliers moves the dictionary no further than others do."""


@dataclass(frozen=True)
class _Kept:
    """A dictionary's ``dictionary.json``."""

    shape: dict[str, Any]
    about: DictionaryAbout


class Dictionary(nn.Module):
    """TopK dictionary of M models. ``encoder`` and ``decoder`` are [F, M, D], ``encoder_bias`` [F], ``decoder_bias`` [M, D].

    ``encode`` and ``decode`` take and give the models' own units; weights live in normalised units. Raises UserError where k
    exceeds F, or where the exclusive share of F is not a feature.
    """

    encoder: nn.Parameter
    decoder: nn.Parameter
    threshold: Tensor
    """[F]: with ``topk`` batch a feature fires above it; measured when training ends, 0 before."""
    mean: Tensor
    scale: Tensor

    def __init__(self, config: DictionaryConfig, seed: int = 0) -> None:
        super().__init__()
        c = self.config = config
        if c.k > c.features:
            raise UserError(f"k is {c.k}, but the dictionary has {c.features} features")
        self.own = int(c.features * c.exclusive + 1e-9)
        """Features of each model alone, n_A = n_B = floor(F p)."""
        if c.exclusive and not self.own:
            raise UserError(f"exclusive is {c.exclusive:g}: of {c.features} features that is less than one")
        if c.exclusive and c.models != 2:
            raise UserError("exclusive features need two models")
        samples = torch.Generator().manual_seed(derive_key(seed, "dictionary"))
        shape = (c.features, c.models, c.width)
        decoder, encoder = (torch.randn(shape, generator=samples) for _ in range(2))
        if c.start == "tied":
            self._blank(decoder)
            decoder *= 0.5 / decoder.flatten(1).norm(dim=1)[:, None, None]
            encoder = decoder.clone()
        else:
            encoder, decoder = encoder * c.width**-0.5, decoder * c.features**-0.5
            decoder[: 2 * self.own] *= (
                0.5  # short directions turn faster: what one model has alone is theirs before it is a shared one's
            )
        self.encoder, self.decoder = nn.Parameter(encoder), nn.Parameter(decoder)
        self.encoder_bias = nn.Parameter(torch.zeros(c.features))
        self.decoder_bias = nn.Parameter(torch.zeros(c.models, c.width))
        self.register_buffer("threshold", torch.zeros(c.features))
        self.register_buffer("mean", torch.zeros(c.models, c.width))
        self.register_buffer("scale", torch.ones(c.models, c.width))
        self.enforce()

    # -- the partition

    def partition(self, name: str) -> np.ndarray:
        """Numbers of the features of one of :data:`PARTITIONS`, int64 (n,). Raises UserError on another name."""
        ends = {"a": (0, self.own), "b": (self.own, 2 * self.own), "shared": (2 * self.own, self.config.features)}
        if name not in PARTITIONS:
            raise UserError(f"unknown partition '{name}': {nearest(name, PARTITIONS)}")
        return np.arange(*ends.get(name, (0, self.config.features)))

    def partition_of(self, feature: int) -> str:
        """``a``, ``b`` or ``shared``."""
        return "a" if feature < self.own else "b" if feature < 2 * self.own else "shared"

    def enforce(self) -> None:
        """Put exact zeros where a feature of one model would read or write the other (after a step, a load, an edit)."""
        with torch.no_grad():
            self._blank(self.encoder)
            self._blank(self.decoder)

    def _blank(self, weight: Tensor | None) -> None:
        if self.own and weight is not None:
            weight[: self.own, 1] = 0
            weight[self.own : 2 * self.own, 0] = 0

    # -- the code

    def encode(self, x: Tensor) -> Tensor:
        """Activations [B, F] of hidden states [B, M, D]; with ``topk`` row at most k are above 0 in a row. (3.2, steps 1 and
        2)"""
        before = self._before_top(self.normalised(x))
        if self.config.topk == "batch":
            return before * (before > self.threshold)
        values, where = before.topk(self.config.k, dim=1)
        return torch.zeros_like(before).scatter_(1, where, values)

    def decode(self, f: Tensor) -> Tensor:
        """Hidden states [B, M, D] of activations [B, F]. (3.2, step 3)"""
        flat = f @ self.decoder.flatten(1) + self.decoder_bias.flatten()
        return flat.view(len(f), self.config.models, self.config.width) * self.scale + self.mean

    def forward(self, x: Tensor) -> Tensor:
        """Reconstruction [B, M, D] of [B, M, D]."""
        return self.decode(self.encode(x))

    def normalised(self, x: Tensor) -> Tensor:
        """(x - mean) / scale. Raises UserError where the shape is not [B, M, D]."""
        if x.dim() != 3 or x.shape[1:] != self.mean.shape:
            raise UserError(f"hidden states are {tuple(x.shape)}; this dictionary takes rows of {tuple(self.mean.shape)}")
        return (x.to(self.mean.dtype) - self.mean) / self.scale

    def _before_top(self, x: Tensor) -> Tensor:
        inner = x - self.decoder_bias if self.config.centred else x
        return F.linear(inner.flatten(1), self.encoder.flatten(1), self.encoder_bias).relu()

    # -- what a feature is

    def directions(self, model: int) -> Tensor:
        """What one unit of each feature adds to ``model``'s hidden state, in its own units: [F, D]."""
        return self.decoder[:, model].detach() * self.scale[model]

    def relative_norm(self) -> Tensor:
        """Where each feature writes, (F,): 1 to model 0 alone, 0 to model 1 alone, 0.5 to both alike (Lindsey et al. 2024)."""
        a, b = self.decoder.detach().norm(dim=2).unbind(1)
        share: Tensor = 0.5 * (1 + (a - b) / torch.maximum(a, b).clamp_min(1e-12))
        return share

    # -- files

    def save(self, folder: Path | str, about: CapturedFrom | None = None) -> None:
        """Write ``dictionary.safetensors`` (weights and normaliser) and ``dictionary.json`` (shape and ``about``), each whole or
        not at all."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: value.detach().cpu().contiguous() for name, value in self.state_dict().items()}
        write_whole(folder / "dictionary.safetensors", save(tensors))
        record = {"shape": self.config.to_json(), "about": codec.to_json(about or CapturedFrom())}
        write_whole(folder / "dictionary.json", json.dumps(record, indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path | str) -> tuple[Dictionary, DictionaryAbout]:
        """The dictionary in ``folder`` and what was said ``about`` it.
        Raises UserError where it is none, or breaks its own partition."""
        folder = Path(folder)
        file = folder / "dictionary.json"
        kept = codec.from_json(_Kept, read_record(file, "the dictionary"), str(file))
        try:
            tensors = load_file(folder / "dictionary.safetensors")
        except OSError as error:
            raise refusal(f"{folder} holds no dictionary", error) from error
        except (ValueError, SafetensorError) as error:
            raise UserError(f"{folder} holds no dictionary: {type(error).__name__} {error}") from error
        made = cls(check(DictionaryConfig, kept.shape, str(file)))
        own = made.state_dict()
        for name in own.keys() | tensors.keys():
            if name not in own or name not in tensors or own[name].shape != tensors[name].shape:
                raise UserError(f"{folder / 'dictionary.safetensors'}: tensor '{name}' does not fit the shape in dictionary.json")
        made.to(tensors["encoder"].dtype).load_state_dict(tensors)
        for name in ("encoder", "decoder"):
            weight = getattr(made, name)
            if weight[: made.own, 1:].any() or weight[made.own : 2 * made.own, 0].any():
                raise UserError(f"{folder / 'dictionary.safetensors'}: '{name}' lets features of one model reach the other")
        return made, kept.about


def moments(x: np.ndarray, kind: Normalise = "joint", chunk: int = 4096) -> tuple[np.ndarray, np.ndarray]:
    """Mean and scale, each [M, D], over all rows of ``x`` [N, M, D]: the normaliser that a dictionary keeps.

    ``joint`` gives every channel of a model one scale, so that the mean square of a channel is 1 and directions keep their
    angles. Raises UserError naming the row where a state is not a number, and where there is none.
    """
    if x.ndim != 3 or not len(x):
        raise UserError(f"hidden states are {x.shape}: at least one row of [models, width] is needed")
    total, squares = np.zeros(x.shape[1:]), np.zeros(x.shape[1:])
    for start in range(0, len(x), chunk):
        part = np.asarray(x[start : start + chunk], dtype=np.float64)
        wrong = ~np.isfinite(part).all(axis=(1, 2))
        if wrong.any():
            raise UserError(f"row {start + int(wrong.argmax())} of the hidden states holds a value that is not a number")
        total += part.sum(axis=0)
        squares += (part**2).sum(axis=0)
    if kind == "none":
        return np.zeros(x.shape[1:]), np.ones(x.shape[1:])
    mean = total / len(x)
    variance = np.maximum(squares / len(x) - mean**2, 0)
    if kind == "joint":
        variance = np.broadcast_to(variance.mean(axis=1, keepdims=True), variance.shape)
    return mean, np.sqrt(np.where(variance > 1e-12, variance, 1.0))


def fit(
    dictionary: Dictionary,
    x: np.ndarray,
    config: FitConfig | None = None,
    seed: int = 0,
    progress: Callable[[int, float], None] | None = None,
) -> FitQuality:
    """Train ``dictionary`` on hidden states [N, M, D] (a memory-mapped file will do) and return :func:`quality` on a sample of
    them.

    The normaliser is measured on ``x`` and kept with the weights. The loss is the mean square error over rows, models and
    channels plus L1 (3.3); forbidden weights get no gradient and stay exactly 0. ``progress(step, loss)`` is called at
    a hundred steps. Raises UserError like :func:`moments`.
    """
    c = config or FitConfig()
    device = dictionary.encoder.device
    mean, scale = moments(x, c.normalise)
    dictionary.mean.copy_(torch.from_numpy(mean))
    dictionary.scale.copy_(torch.from_numpy(scale))
    optimizer = torch.optim.Adam(dictionary.parameters(), lr=c.lr, fused=True)
    silent = torch.zeros(dictionary.config.features, dtype=torch.long, device=device)  # rows since each feature last fired
    size, losses = min(c.batch, len(x)), []
    per_epoch = len(x) // size
    for step in range(c.steps):
        epoch, batch = divmod(step, per_epoch)
        if batch == 0:
            order = generator(seed, "rows", epoch).permutation(len(x))
        rows = np.sort(order[batch * size : (batch + 1) * size])  # a file is read forwards
        inputs = dictionary.normalised(torch.from_numpy(np.asarray(x[rows], dtype=np.float32)).to(device))
        loss = _step(dictionary, inputs, silent, optimizer, c)
        if step % max(1, c.steps // 100) == 0 or step == c.steps - 1:
            losses.append((step, float(loss)))
            if progress is not None:
                progress(*losses[-1])
    chosen = generator(seed, "quality").permutation(len(x))[:8192]
    sample = x[np.sort(chosen)]
    if dictionary.config.topk == "batch":
        dictionary.threshold.fill_(
            _threshold(dictionary, sample[np.argsort(np.argsort(chosen))])
        )  # batches as mixed as in training
    dead = float((silent >= min(c.dead_after, c.steps * size)).float().mean())
    return FitQuality(**vars(quality(dictionary, sample)), dead=dead, loss=tuple(losses))


@torch.no_grad()
def _threshold(d: Dictionary, x: np.ndarray, batch: int = 1024) -> float:
    """The activation that k features of a row are above on average over hidden states [N, M, D]:
    between the last kept and the next."""
    if d.config.k == d.config.features:
        return 0.0
    total = 0.0
    for i in range(0, len(x), batch):
        part = torch.from_numpy(np.array(x[i : i + batch], dtype=np.float32)).to(d.encoder.device)
        top = d._before_top(d.normalised(part)).flatten().topk(len(part) * d.config.k + 1).values
        total += len(part) * float(top[-2:].mean())
    return total / len(x)


def _step(d: Dictionary, x: Tensor, silent: Tensor, optimizer: torch.optim.Optimizer, c: FitConfig) -> Tensor:
    before = d._before_top(x)
    values, where = _top(before, d.config)
    error = x.flatten(1) - _mix(d, values, where, len(x))
    loss = error.square().mean() + _l1(d, values, where, len(x), c)
    if c.difference and d.config.models == 2:
        apart = error.view(x.shape)
        loss = loss + c.difference * (apart[:, 0] - apart[:, 1]).square().mean()
    fired = torch.zeros_like(silent).index_fill_(0, (where % d.config.features)[values > 0], 1)
    silent.add_(len(x)).mul_(1 - fired)
    if c.auxk and (gone := (silent >= c.dead_after).nonzero()[:, 0]).numel():
        most = min(len(gone), max(1, d.config.width // 2))
        weak, index = before[:, gone].topk(most, dim=1)
        rest = error.detach()
        rows = torch.arange(len(x), device=x.device)[:, None] * d.config.features
        left = rest - (_mix(d, weak.flatten(), (rows + gone[index]).flatten(), len(x)) - d.decoder_bias.flatten())
        loss = loss + c.auxk * left.square().mean() / rest.var().clamp_min(1e-12)
    optimizer.zero_grad(set_to_none=True)
    (loss * x[0].numel()).backward()  # summed over channels, as others train: the mean's gradients are never long enough to clip
    d._blank(d.encoder.grad)
    d._blank(d.decoder.grad)
    nn.utils.clip_grad_norm_(d.parameters(), CLIP_NORM)
    optimizer.step()
    return loss.detach()


def _top(before: Tensor, c: DictionaryConfig) -> tuple[Tensor, Tensor]:
    """The B k activations [B k] that training keeps of [B, F], and their indices in the flattened batch, by row."""
    if c.topk == "row":
        values, where = before.topk(c.k, dim=1)
        return values.flatten(), (where + torch.arange(len(before), device=before.device)[:, None] * c.features).flatten()
    where = before.detach().flatten().topk(len(before) * c.k, sorted=False).indices.sort().values
    return before.flatten()[where], where


def _mix(d: Dictionary, values: Tensor, where: Tensor, rows: int) -> Tensor:
    """Normalised reconstructions [B, MD] of the activations ``values`` at the indices ``where`` of the flattened batch, by
    row."""
    features = d.config.features
    if SPARSE * len(values) <= rows * features:
        each = torch.bincount(where // features, minlength=rows)
        starts = each.cumsum(0) - each
        mixed = F.embedding_bag(where % features, d.decoder.flatten(1), starts, per_sample_weights=values, mode="sum")
        return mixed + d.decoder_bias.flatten()
    dense = torch.zeros(rows * features, dtype=values.dtype, device=values.device).scatter(0, where, values)
    return dense.view(rows, features) @ d.decoder.flatten(1) + d.decoder_bias.flatten()


def _l1(d: Dictionary, values: Tensor, where: Tensor, rows: int, c: FitConfig) -> Tensor:
    """The L1 terms of 3.3, of the activations ``values`` at the indices ``where``.
    Means run over every feature, zeros included."""
    exclusive = 2 * c.l1_shared if c.l1_exclusive is None else c.l1_exclusive
    if not c.l1_shared and not exclusive:
        return values.new_zeros(())
    own, shared, where = d.own, d.config.features - 2 * d.own, where % d.config.features
    if c.l1_reduction == "norm":
        values = values * d.decoder.norm(dim=2).sum(dim=1)[where]
    both = (where >= 2 * own).float()
    over = (own + shared if c.l1_exclusive_covers_shared else max(own, 1)) if c.l1_reduction == "mean" else 1
    common = (values * both).sum() / rows / (max(shared, 1) if c.l1_reduction == "mean" else 1)
    alone = (values * (1 - both + (2 * both if c.l1_exclusive_covers_shared else 0))).sum() / rows / over
    return c.l1_shared * common + exclusive * 0.5 * alone


@torch.no_grad()
def encode_rows(dictionary: Dictionary, x: np.ndarray, batch: int = 1024) -> np.ndarray:
    """Activations float32 [N, F] of hidden states [N, M, D]."""
    device = dictionary.encoder.device
    parts = [
        dictionary.encode(torch.from_numpy(np.array(x[i : i + batch], dtype=np.float32)).to(device)).float().cpu().numpy()
        for i in range(0, len(x), batch)
    ]
    return np.concatenate(parts) if parts else np.zeros((0, dictionary.config.features), np.float32)


@torch.no_grad()
def quality(dictionary: Dictionary, x: np.ndarray, batch: int = 1024) -> Quality:
    """How well hidden states [N, M, D] come back, in the models' own units."""
    device = dictionary.encoder.device
    centre = np.asarray(x, dtype=np.float64).mean(axis=0)
    lost, spread, cosine = (np.zeros(dictionary.config.models) for _ in range(3))
    counts = np.zeros(dictionary.config.features)
    for i in range(0, len(x), batch):
        part = torch.from_numpy(np.array(x[i : i + batch], dtype=np.float32)).to(device)
        f = dictionary.encode(part)
        back = dictionary.decode(f)
        lost += (part - back).double().square().sum(dim=(0, 2)).cpu().numpy()
        spread += (part.cpu().double().numpy() - centre).__pow__(2).sum(axis=(0, 2))
        cosine += F.cosine_similarity(part, back.to(part.dtype), dim=2).double().sum(dim=0).cpu().numpy()
        counts += (f > 0).sum(dim=0).cpu().numpy()
    n = max(1, len(x))
    return Quality(
        fve=tuple((1 - lost / np.maximum(spread, 1e-12)).tolist()),
        cosine=tuple((cosine / n).tolist()),
        l0={name: float(counts[dictionary.partition(name)].sum() / n) for name in PARTITIONS},
        never=float((counts == 0).mean()),
    )


def latent_scaling(
    dictionary: Dictionary,
    x: np.ndarray,
    features: Sequence[int] | np.ndarray,
    text: np.ndarray | None = None,
    share: float = OWN,
) -> tuple[np.ndarray, np.ndarray]:
    """How much of each of model 0's ``features`` is in model 1 after all,
    and whether it is next to nothing; each (n,), x is [N, 2, D].

    The first is the ratio of two least-squares coefficients, 0 none, 1 as much as in model 0, NaN where the feature never fires:
    that of the feature's activation in what model 1's states, and in what model 0's, have along the feature's direction in model
    0, given the activations of all shared features and model 0's own. Model 1's own take nothing away: a dictionary can split
    what is shared into twins, one exclusive feature for each model. Nor do decoders, which can be wrong alike: of two equal
    models the ratio is 1, whatever the dictionary is. (After latent scaling, arXiv 2504.02922,
    which regresses on what the decoded features leave.)

    The second is the p-value of "at least a ``share`` of it is in model 1", one-sided, with White's errors; 1 where the states
    have no more rows than features that fire. ``text`` int [N]: rows of one text err together (Liang and Zeger's errors).
    """
    chosen = np.asarray(features, dtype=np.int64).reshape(-1)
    codes = encode_rows(dictionary, x)
    fires = np.asarray((codes > 0).any(axis=0))
    fires[dictionary.partition("b")] = False
    ratio, p = np.full(len(chosen), np.nan), np.ones(len(chosen))
    live, at = np.flatnonzero(fires), np.flatnonzero(fires[chosen])
    if not len(at):
        return ratio, p
    own = np.searchsorted(live, chosen[at])
    f = codes[:, live].astype(np.float64)
    f -= f.mean(axis=0)
    gram = f.T @ f
    gram[np.diag_indices(len(gram))] *= 1 + 1e-3  # features that always fire together share what they explain
    inverse = np.linalg.inv(gram)
    weights = f @ inverse[:, own]  # a coefficient is the product of these with what is explained
    mean, scale = (part.detach().cpu().numpy() for part in (dictionary.mean, dictionary.scale))
    along = dictionary.decoder[chosen[at], 0].detach().cpu().numpy().astype(np.float64)
    spare = len(x) - len(live) - 1
    found, variance = np.zeros((2, len(at))), np.zeros((2, len(at)))
    for model in (0, 1):
        states = (np.asarray(x[:, model], np.float64) - mean[model]) / scale[model]
        seen = (states - states.mean(axis=0)) @ along.T
        found[model] = (weights * seen).sum(axis=0)
        left = seen - f @ (inverse @ (f.T @ seen))
        errs = weights * left
        if text is not None:
            errs = _summed(errs, text)
        variance[model] = (errs**2).sum(axis=0) * len(x) / max(spare, 1)
    ratio[at] = found[1] / np.where(found[0] == 0, np.nan, found[0])
    if spare > 0:
        error = np.sqrt(np.maximum(variance[1] + share**2 * variance[0], 1e-300))
        apart = (share * found[0] - np.abs(found[1])) / error
        texts = len(x) if text is None else len(np.unique(text))
        p[at] = np.where(found[0] > 0, student.sf(apart, max(1, texts - 1)), 1.0)
    return ratio, p


def _summed(values: np.ndarray, text: np.ndarray) -> np.ndarray:
    """The sum over each text's rows of ``values`` [N, n], as :func:`latent_scaling` takes them: [texts, n]."""
    names, of = np.unique(text, return_inverse=True)
    out = np.zeros((len(names), values.shape[1]))
    np.add.at(out, of, values)
    return np.asarray(out * np.sqrt(len(names) / max(1, len(names) - 1)))
