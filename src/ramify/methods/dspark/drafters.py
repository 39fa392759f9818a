"""What the drafters of DSpark's paper share: their configuration, their weights' beginnings and the shape of a block.

DSpark (spec 3.2 to 3.4) drafts a block in one pass and lets a light sequential head condition each token on the one sampled
before it; DFlash is DSpark without that head and without confidences (both :mod:`ramify.methods.dspark.dspark_drafter`); Eagle3
(:mod:`ramify.methods.dspark.eagle`) samples token by token.

Axis legend: R rows, D width, V vocabulary, E head size, C = 2GE, G key/value heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ramify.base.errors import UserError
from ramify.engine.batch import ForwardBatch
from ramify.engine.cache import KVCache
from ramify.engine.drafters import Drafter
from ramify.engine.tiny import TinyConfig, rotary_tables

HEADS = ("vanilla", "gated", "rnn")
NEVER = -1e4
"""Logit of a token that is not drafted."""


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """Shape of a drafter; widths, heads and vocabulary are the target's."""

    kind: str
    """Name of the registered drafter: dspark, dflash, eagle3 or a plug-in's."""
    vocab: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    target_depth: int
    """Decoder layers of the target."""
    target_layers: tuple[int, ...]
    """Target layers whose outputs are the features: 0-based, rising, never the last."""
    mask_token: int
    """Fills the slots of a block after its anchor; occurs in no training data."""
    layers: int = 5
    block: int = 7
    """Most tokens of one draft (gamma)."""
    rank: int = 256
    """Of the sequential head; 0: none."""
    head: str = "vanilla"
    """Sequential head: vanilla (first-order Markov), gated or rnn."""
    confidence: bool = True
    """Whether there is a head that estimates each token's acceptance."""
    confidence_markov: bool = True
    """Whether it reads the previous token's embedding in addition to the hidden state."""
    context: int = 2048
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6
    anchors: int = 512
    """Blocks trained per sequence (recorded in the saved config)."""
    drafted: int = 0
    """Tokens that can be drafted, some of the target's (FR-Spec, arXiv 2502.14856); 0: all."""

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem:
            raise UserError(f"drafter: {problem}")

    def _problem(self) -> str:
        if self.head not in HEADS:
            return f"head is '{self.head}'; known: {', '.join(HEADS)}"
        for name in ("block", "layers", "width", "vocab", "heads", "kv_heads", "head_size", "ffn"):
            if getattr(self, name) < 1:
                return f"{name} is {getattr(self, name)}; it must be at least 1"
        if not 0 <= self.drafted <= self.vocab:
            return f"{self.drafted} tokens are drafted of {self.vocab}"
        if self.rank < 0:
            return f"rank is {self.rank}; it must be 0 (no sequential head) or more"
        if self.heads % self.kv_heads or self.head_size % 2:
            return (
                f"{self.heads} heads of size {self.head_size} do not go with {self.kv_heads} key/value heads and rotary positions"
            )
        if not 0 <= self.mask_token < self.vocab:
            return f"mask_token is {self.mask_token}; the vocabulary is 0 to {self.vocab - 1}"
        if not self.target_layers or list(self.target_layers) != sorted(set(self.target_layers)):
            return f"target_layers are {list(self.target_layers)}; they must be rising layer numbers, at least one"
        last = self.target_depth - 1
        if self.target_layers[0] < 0 or self.target_layers[-1] > last:
            return f"target_layers are {list(self.target_layers)}; the target has layers 0 to {last}"
        if self.target_layers[-1] == last:
            return f"target layer {last} is the last, whose output some libraries give after the final norm; use earlier ones"
        if self.confidence and self.confidence_markov and self.rank == 0 and self.kind == "dspark":
            return (
                "the confidence head reads the sequential head's embedding, which rank 0 has not; set confidence_markov to false"
            )
        if self.kind == "dflash" and (self.rank or self.confidence):
            return "dflash has neither a sequential nor a confidence head; use rank 0 and confidence false, or kind dspark"
        if self.kind == "eagle3" and (self.rank or self.confidence or self.layers != 1):
            return "eagle3 has one layer, no sequential and no confidence head"
        return ""

    @property
    def logits(self) -> int:
        """Numbers that the drafter's output layer gives."""
        return self.drafted or self.vocab

    @property
    def kv_size(self) -> int:
        """C: numbers a position keeps in one layer."""
        return 2 * self.kv_heads * self.head_size

    def block_shape(self) -> TinyConfig:
        """The shape of one draft layer: a Qwen3 block."""
        return TinyConfig(
            vocab=self.vocab,
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_size=self.head_size,
            ffn=self.ffn,
            context=self.context,
            rope_theta=self.rope_theta,
            norm_eps=self.norm_eps,
        )


class Qwen3Drafter(Drafter):
    """What drafters made of Qwen3 blocks share. The target's embedding and output matrix are shared,
    not copied, and never trained.

    After a change of weights in place call ``eval()``: it forgets what was made from the old ones.
    """

    config: DrafterConfig

    embedding: Tensor
    """[V, D], the target's."""
    head: Tensor
    """[V, D], the target's, or its rows of the tokens that are drafted."""
    tokens: Tensor
    """int64 [drafted]: those tokens, rising; empty where all are."""
    temperatures: Tensor
    """float32 [block]: sequential temperature scaling of the confidence logits; 1 before calibration."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        empty = torch.zeros((config.vocab, config.width))
        ones, tokens = torch.ones(config.block), torch.arange(config.drafted)
        for name, value in (("embedding", empty), ("head", empty), ("temperatures", ones), ("tokens", tokens)):
            self.register_buffer(name, value, persistent=False)
        cos, sin = rotary_tables(64, config.head_size, config.rope_theta)
        self._tables = torch.stack((cos, sin))

    @property
    def layers(self) -> int:
        """KVCache layers the drafter needs."""
        return self.config.layers

    def attach(self, embedding: Tensor, head: Tensor) -> None:
        """Take the target's embedding and output matrix, both [V, D]. Raises UserError where the shapes are not the drafter's."""
        c = self.config
        for name, value in (("vocabulary", embedding), ("output layer", head)):
            if tuple(value.shape) != (c.vocab, c.width):
                rows, width = value.shape
                raise UserError(
                    f"drafter: the target's {name} has {rows} tokens of width {width}; the drafter's has {c.vocab} of width "
                    f"{c.width}"
                )
        self.embedding, self.head = embedding.detach(), head.detach()
        if c.drafted:
            self.head = self.head.index_select(0, self.tokens)
        self.eval()

    def places(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Where the drafter's logits have each of ``tokens`` int64 [...], and whether they have it, bool [...]."""
        if not self.config.drafted:
            return tokens, torch.ones_like(tokens, dtype=torch.bool)
        found = torch.searchsorted(self.tokens, tokens).clamp(max=self.config.drafted - 1)
        return found, self.tokens[found] == tokens

    def spread(self, logits: Tensor) -> Tensor:
        """Logits [..., V] of the whole vocabulary from those of the tokens that are drafted: the others are next to impossible,
        and no less likely than one another where a grammar leaves nothing else."""
        if not self.config.drafted:
            return logits
        return logits.new_full((*logits.shape[:-1], self.config.vocab), NEVER).index_copy_(-1, self.tokens, logits)

    @classmethod
    def load(cls, folder: Path, module: nn.Module) -> Drafter | None:
        """See :func:`ramify.methods.dspark.drafter_files.load_drafter`;
        None where ``folder`` holds neither a drafter nor its training."""
        # a folder says which drafter it holds, so its reader knows all of them: the one circle of imports that is meant
        from ramify.methods.dspark.drafter_files import load_drafter, reads

        return load_drafter(folder, module) if reads(folder) else None

    def rotary(self, length: int, device: torch.device) -> Tensor:
        """cos and sin of the first positions, at least ``length``: [2, positions, E]."""
        if self._tables.shape[1] < length or self._tables.device != device:
            with torch.inference_mode(False):
                tables = rotary_tables(max(length, 2 * self._tables.shape[1]), self.config.head_size, self.config.rope_theta)
                self._tables = torch.stack(tables).to(device)
        return self._tables

    def confidences(self, scores: Tensor) -> Tensor:
        """Calibrated conditional acceptance probabilities of confidence logits [..., up to block]."""
        return torch.sigmoid(scores / self.temperatures[: scores.shape[-1]])

    def init_weights(self, seed: int) -> None:
        """Normal weights of deviation 0.02, residual outputs scaled by 1/sqrt(2 layers); vectors of norms are 1, biases 0.

        The recurrent head and the embedding it reads start at 1/sqrt(inputs): from 0.02 a memory of two tokens is not learned.
        """
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if weight.dim() == 2:
                    residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                    spread = 0.02 / (2 * self.config.layers) ** 0.5 if residual else 0.02
                    if self.config.head == "rnn" and name.endswith(("joint_proj.weight", "markov_w1.weight")):
                        spread = weight.shape[1] ** -0.5
                    weight.copy_(torch.empty(weight.shape).normal_(0.0, spread, generator=generator))
                elif name.endswith("bias"):
                    weight.zero_()


def unit(x: Tensor, eps: float) -> Tensor:
    """x / rms(x) over the last axis: the layer norm of (x, -x) has mean 0 and variance mean(x^2),
    and is one kernel instead of six."""
    size = x.shape[-1]
    return torch.layer_norm(torch.cat((x, -x), -1), (2 * size,), None, None, eps).narrow(-1, 0, size)


def block_batch(cache: KVCache, c: DrafterConfig, slots: Tensor, tokens: Tensor, positions: Tensor, count: int) -> ForwardBatch:
    """``count`` consecutive positions of each of R cache slots, which see their row's context and each other in both directions.

    ``slots`` int64 [R] ascend; the first position of each row, ``positions`` int64 [R],
    holds ``tokens`` int64 [R], the others the mask.
    """
    rows, starts = slots.tolist(), positions.tolist()
    steps, masks = range(count), [c.mask_token] * (count - 1)
    ids = [token for anchor in tokens.tolist() for token in (anchor, *masks)]
    where = [start + k for start in starts for k in steps]
    sees = [start + count - 1 for start in starts for _ in steps]
    return ForwardBatch(cache, c.kv_heads, ids, where, [row for row in rows for _ in steps], sees)
