"""Localizer L2 of section 7 with an encoder of two million parameters: a transformer reads the issue, a function and the
function's nearest sibling, and corrects what the conditional logit of :mod:`ramify_experiments.diagnose.ranker` says of the
likeliest functions.

It is trained from scratch on the same conversations. What a localizer looks at is decided by the corrected belief as well.

Axis legend: N texts, T tokens, D width, K functions that compete.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ramify.base.ids import stable_hash
from ramify.base.seeds import derive_key, generator
from ramify.methods.diagnose.code import words
from ramify.methods.diagnose.policy import (
    CAUSES,
    FEATURES,
    Gathered,
    RulePolicy,
    Seen,
    Weights,
    cause_features,
    difference,
    features,
)
from ramify_experiments.diagnose.ranker import LabelledSearch

VOCAB, TOKENS, WIDTH, LAYERS = 4096, 64, 160, 4
COMPETE = 6
"""Functions whose scores are corrected: the likeliest by the logit."""


class FunctionEncoder(nn.Module):
    """Scores of functions and of causes, from texts and from the features that the logit has."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH, padding_idx=0)
        self.position = nn.Parameter(torch.zeros(TOKENS, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, WIDTH // 32, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.place = nn.Sequential(nn.Linear(3 * WIDTH + len(FEATURES), WIDTH), nn.GELU(), nn.Linear(WIDTH, 1))
        self.cause = nn.Sequential(nn.Linear(3 * WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, len(CAUSES)))
        for head in (self.place, self.cause):  # it begins as the logit
            for own in head[2].parameters():
                nn.init.zeros_(own)

    def read(self, texts: Sequence[str]) -> Tensor:
        """(N, D) of texts: the mean over tokens of what the layers make of them."""
        rows = [coded(text) for text in texts]
        tokens = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
        for at, row in enumerate(rows):
            tokens[at, : len(row)] = torch.tensor(row)
        empty = tokens == 0
        x = self.encoder(self.embedding(tokens) + self.position[: tokens.shape[1]], src_key_padding_mask=empty)
        held: Tensor = (x * ~empty[..., None]).sum(dim=1) / (~empty).sum(dim=1, keepdim=True)
        return held

    def corrections(self, issue: Tensor, own: Tensor, sibling: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(K,) for places and (K, causes) for causes. ``issue`` (D,), ``own`` and ``sibling`` (K, D), ``rows`` (K, F)."""
        both = torch.cat([own, own - sibling, own * issue], dim=-1)
        return self.place(torch.cat([both, rows], dim=-1))[..., 0], self.cause(both)


@lru_cache(maxsize=100_000)
def coded(text: str) -> tuple[int, ...]:
    """Hashed tokens of a text, from 1: the words of its names, numbers and signs."""
    found = [word for piece in re.findall(r"\w+|[<>=!]=|[^\s\w\"'.:,`]", text) for word in (words(piece) or [piece])]
    return tuple(1 + int(stable_hash("token", word), 16) % (VOCAB - 1) for word in found[:TOKENS]) or (1,)


def nearest(functions: Sequence[Seen], at: int) -> str:
    """The text of a function's nearest sibling, its own where none was seen."""
    mine = set(words(functions[at].name))
    near = [one.text for i, one in enumerate(functions) if i != at and len(mine & set(words(one.name))) >= 2]
    best = min(near, key=lambda text: difference(functions[at].text, text)[0], default="")
    return best if best and difference(functions[at].text, best)[0] < 99 else functions[at].text


def train(
    labelled: Sequence[LabelledSearch], weights: Weights, seed: int, epochs: int = 3, batch: int = 8, lr: float = 4e-4
) -> FunctionEncoder:
    """An encoder trained on what was seen of faulty repositories; ``weights``: the logit that it corrects."""
    torch.set_num_threads(1)
    torch.manual_seed(derive_key(seed, "encoder"))
    model, rng = FunctionEncoder(), generator(seed, "encoder rows")
    optimizer = torch.optim.AdamW(model.parameters(), lr)
    steps = epochs * (len(labelled) // batch)
    for step in range(steps):
        if step % (len(labelled) // batch) == 0:
            order = rng.permutation(len(labelled))
        chosen = [labelled[i] for i in order[step % (len(labelled) // batch) * batch :][:batch]]
        loss = torch.stack([_loss(model, one, weights) for one in chosen]).mean()
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / 20) * (1 - step / steps)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


def _loss(model: FunctionEncoder, one: LabelledSearch, weights: Weights) -> Tensor:
    """Cross-entropy of the true function among those that compete, and of its cause."""
    score = one.rows @ np.array(weights.functions)
    best = [int(i) for i in np.argsort(-score, kind="stable") if i != one.right][: COMPETE - 1]
    chosen = [one.right, *best]
    texts = [one.issue, *(one.functions[i].text for i in chosen), *(nearest(one.functions, i) for i in chosen)]
    read, k = model.read(texts), len(chosen)
    place, cause = model.corrections(read[0], read[1 : k + 1], read[k + 1 :], torch.tensor(one.rows[chosen], dtype=torch.float32))
    base = torch.tensor(score[chosen], dtype=torch.float32)
    told = torch.tensor(np.array(weights.causes) @ one.cause_row, dtype=torch.float32)
    target = torch.tensor([0])
    return F.cross_entropy((base + place)[None], target) + F.cross_entropy((told + cause[0])[None], torch.tensor([one.cause]))


class EncoderPolicy(RulePolicy):
    """The rule policy with the encoder's beliefs and causes."""

    def __init__(self, weights: Weights, model: FunctionEncoder) -> None:
        super().__init__(weights)
        self.model = model
        self._read: dict[str, Tensor] = {}

    @torch.no_grad()
    def _corrections(
        self, issue: str, functions: Sequence[Seen], chosen: Sequence[int], rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        own, near = [functions[i].text for i in chosen], [nearest(functions, i) for i in chosen]
        if new := [text for text in dict.fromkeys([issue, *own, *near]) if text not in self._read]:
            self._read.update(zip(new, self.model.read(new), strict=True))
        one, other = (torch.stack([self._read[text] for text in texts]) for texts in (own, near))
        place, cause = self.model.corrections(self._read[issue], one, other, torch.tensor(rows, dtype=torch.float32))
        return place.double().numpy(), cause.double().numpy()

    def belief(self, functions: Sequence[Seen], found: Gathered) -> np.ndarray:
        """(functions,): shares of belief, those of the likeliest functions corrected."""
        rows = features(functions, found)
        if not len(rows):
            return np.zeros(0)
        score = rows @ np.array(self.weights.functions)
        chosen = [int(i) for i in np.argsort(-score, kind="stable")[:COMPETE]]
        score[chosen] += self._corrections(found.issue, functions, chosen, rows[chosen])[0]
        share = np.exp(score - score.max())
        out: np.ndarray = share / share.sum()
        return out

    def causes(self, one: Seen, functions: Sequence[Seen], issue: str) -> tuple[str, str]:
        """The two likeliest causes."""
        at = functions.index(one)
        told = np.array(self.weights.causes) @ cause_features(one, functions, issue)
        told = told + self._corrections(issue, functions, [at], np.zeros((1, len(FEATURES))))[1][0]
        first, second = np.argsort(-told, kind="stable")[:2]
        return list(CAUSES)[first], list(CAUSES)[second]
