"""Pairs whose truth is known, given to ``verify-lossless``:
a drafter equal to its target, an honest verifier, one that accepts too often.

The target's next token depends on the last one alone, and the drafter's sequential head knows the same table, times ``sharp``: at
1 its distribution is the target's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ramify.base.seeds import generator
from ramify_experiments.cases import KnownCase, Repetition

TOKENS = ("a", "b", "c", "d", "e", "mask")
TOO_OFTEN = 0.02
ALL = 0.9995
"""Share of drafts that is all of them: the two distributions are equal up to float32, so one in millions is rejected."""
LEVEL = 0.004
"""Four p-values of one schedule, each of which misses at .001."""


def _write_pair(rep: Repetition, sharp: float) -> None:
    """Target, drafter and prompts in the repetition's folder."""
    import torch

    from ramify.engine.tiny import TinyConfig, TinyLM
    from ramify.methods.dspark.drafter_files import for_target, save_drafter
    from ramify_experiments.models import word_tokenizer

    vocab, rng = len(TOKENS), generator(rep.seed, "dspark", "nulls")
    table = rng.normal(size=(vocab, vocab))
    table[:, -1] = -30.0  # the mask is never sampled
    table[-1, :-1] = 0.0
    width = 8
    shape = TinyConfig(vocab, width=width, layers=2, heads=1, kv_heads=1, head_size=8, ffn=8, context=64, tied=False)
    target = TinyLM(shape)
    drafter: Any = for_target(target, layers=1, block=7, rank=vocab, mask_token=vocab - 1)
    with torch.no_grad():
        for weight in target.parameters():
            weight.fill_(float(weight.dim() == 1))
        target.model.embed_tokens.weight.copy_(torch.eye(vocab, width))
        target.head[:, :vocab].copy_(torch.from_numpy(table.T) / width**0.5)  # the final norm scales a unit vector by this root
        for weight in drafter.parameters():
            weight.zero_()
        drafter.markov_head.markov_w1.weight.copy_(torch.eye(vocab))
        drafter.markov_head.markov_w2.weight.copy_(torch.from_numpy(sharp * table.T))
        drafter.markov_head.markov_w2.weight[-1] = -30.0
    target.save(rep.folder / "target", word_tokenizer(TOKENS, TOKENS[-1]))
    save_drafter(drafter, rep.folder / "drafter")
    prompts = [{"prompt_ids": rng.integers(0, vocab - 1, 4).tolist()} for _ in range(8)]
    (rep.folder / "prompts.jsonl").write_text("".join(json.dumps(one) + "\n" for one in prompts), encoding="utf-8")


def _verify(rep: Repetition, sharp: float, outputs: int) -> dict[str, Any]:
    """What the verb says of the pair under one schedule: whether it passed, and its checks by name."""
    _write_pair(rep, sharp)
    words = (rep.folder / "target", rep.folder / "drafter", "--prompts", rep.folder / "prompts.jsonl", "--schedule", "fixed:7")
    found = rep.verb("dspark", "verify-lossless", *words, "--samples", outputs, "--seed", rep.seed)
    return {"passed": found["passed"]} | {check["name"]: check for check in found["checks"]}


@contextmanager
def _instead(owner: Any, name: str, other: Callable[..., Any]) -> Iterator[None]:
    kept = getattr(owner, name)
    setattr(owner, name, other)
    try:
        yield
    finally:
        setattr(owner, name, kept)


def _equal(rep: Repetition) -> bool:
    found = _verify(rep, 1.0, 4000)
    return not found["passed"] or bool(found["all schedules: drafts accepted"]["value"] < ALL)


def _measured(rep: Repetition) -> bool:
    from ramify.engine import verify

    def lax(p: np.ndarray, q: np.ndarray, u: np.ndarray) -> np.ndarray:
        return np.asarray(u * q < p * (1 + TOO_OFTEN))

    with _instead(verify, "accepted", lax):
        found = _verify(rep, 0.5, 1000)
    return bool(found["fixed:7: distance of the distribution of a verified token"]["status"] == "miss")


def _counted(rep: Repetition) -> bool:
    from ramify.engine.speculate import Speculator

    honest = Speculator._keyed

    def lax(self: Speculator, sequences: Any, depth: int) -> tuple[np.ndarray, np.ndarray]:
        drafts, chances = honest(self, sequences, depth)
        return drafts, chances / (1 + TOO_OFTEN)

    with _instead(Speculator, "_keyed", lax):
        found = _verify(rep, 0.5, 10_000)
    return bool(found["all schedules: p of accepted drafts, against their chances"]["status"] == "miss")


CASES = (
    KnownCase(
        "a drafter equal to the target",
        "nothing",
        "Every draft must be accepted, and no check may report another distribution than the target's.",
        _equal,
        wanted=LEVEL,
        full=24,
        quick=1,
    ),
    KnownCase(
        "another drafter, an honest verifier",
        "nothing",
        "About one draft in ten is rejected and corrected; a check that reports another distribution is false.",
        lambda rep: not _verify(rep, 0.5, 4000)["passed"],
        wanted=LEVEL,
        full=16,
        quick=1,
    ),
    KnownCase(
        "a verifier that accepts 2 % too often",
        "planted",
        "It accepts with 1.02 times the right probability: the distribution of a verified token, measured, must be seen to "
        "differ.",
        _measured,
        wanted=0.8,
        full=16,
        quick=1,
    ),
    KnownCase(
        "the same, seen in samples alone",
        "planted",
        "The engine hands the verifier uniforms that are 2 % too small: about 30,000 drafts must show that too many are "
        "accepted.",
        _counted,
        wanted=0.8,
        full=10,
        quick=1,
    ),
)
