"""What the engine promises on processors whose matrix kernels treat few rows in ways of their own,
simulated and, where there are, real."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from ramify.engine import local
from ramify.engine.batch import ForwardBatch
from ramify.engine.forward import Exactness, TinyForward, exactness, probe
from ramify.engine.local import LocalModel
from ramify.jobs.play import play
from ramify.model.protocol import Completion, Prefix, Sampling
from ramify.trace.db import Run

from .helpers import tiny, tokens
from .kernels import Kernels, needs_tiles
from .speculating import shadowed
from .test_determinism import bits
from .test_generic import module_of

REQUESTS = ((1, [0, 1]), (3, [2]), (5, [3, 4, 5]), (17, [6]), (70, [7, 8]))
"""Lengths of prompts, and the keys of their samples."""


def ask(model: LocalModel, company: bool) -> list[tuple[bytes, ...]]:
    """All samples of REQUESTS, in the company of each other or one after the other."""

    def one(length: int, keys: Sequence[int]) -> Any:
        return model.sample(Prefix(tokens(length)), len(keys), Sampling(max_tokens=7), keys)

    async def run() -> list[list[Completion]]:
        if company:
            return await asyncio.gather(*(one(*request) for request in REQUESTS))
        return [await one(length, [key]) for length, keys in REQUESTS for key in keys]

    return [bits(d) for completions in asyncio.run(run()) for d in completions]


SHAPES = {
    "one query head a key": lambda: tiny(kv_heads=4),
    "two query heads a key": tiny,
    "three query heads a key": lambda: tiny(heads=6, kv_heads=2, qk_norm=False),
    "four query heads a key": lambda: tiny(kv_heads=1),
    "transformers": lambda: module_of("llama", num_key_value_heads=2),
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_products_of_few_rows_round_differently_and_no_sample_knows(shape: str) -> None:
    needs_tiles(LocalModel(tiny()).exactness)
    with Kernels() as kernels:
        model = LocalModel(SHAPES[shape](), cache_bytes=0)
        assert "batch_invariant" in model.capabilities
        assert model.exactness is Exactness.TOGETHER
        kernels.fewest = 1 << 30
        together = ask(model, company=True)
        assert together == ask(LocalModel(SHAPES[shape](), max_sequences=1, cache_bytes=0), company=False)
        assert together == ask(LocalModel(SHAPES[shape]()), company=True)
        assert kernels.fewest >= 4
    assert {"linear", "scaled_dot_product_attention"} <= kernels.products.keys()


def test_drafts_are_verified_with_the_bits_of_plain_samples() -> None:
    needs_tiles(LocalModel(tiny()).exactness)
    with Kernels():
        model = shadowed("fixed:4")
        assert ask(model, company=True) == ask(LocalModel(model.module, eos=model.eos), company=False)
        assert model.speculation is not None
        assert model.speculation.accepted > 0


class Careless(TinyForward):
    """Its output layer takes the rows that are wanted and no more: 1, 2 or 3 of them where so few sample."""

    def hidden(self, batch: ForwardBatch, tap: Any = None) -> torch.Tensor:
        return super().hidden(batch, tap)[: batch.used]


@pytest.mark.slow
def test_the_probe_finds_a_product_of_few_rows_and_rows_then_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_tiles(LocalModel(tiny()).exactness)
    monkeypatch.setattr(local, "TinyForward", Careless)
    assert probe(TinyForward(tiny()))  # on real kernels, where it depends on the processor what the careless one comes to
    with Kernels():
        assert not probe(Careless(tiny()))
        model = LocalModel(tiny(), cache_bytes=0)
        assert model.exactness is Exactness.ALONE
        assert "batch_invariant" in model.capabilities
        together = ask(model, company=True)
        assert together == ask(LocalModel(tiny(), max_sequences=1, cache_bytes=0), company=False)
        assert together == ask(LocalModel(tiny()), company=True)


def test_kernels_that_never_repeat_themselves_are_no_promise() -> None:
    with Kernels(repeats=False):
        model = LocalModel(tiny())
        assert model.exactness is Exactness.UNPROVEN
        assert "batch_invariant" not in model.capabilities
        assert len(ask(model, company=True)) == 9


def test_a_run_says_how_its_rows_ran(tmp_path: Path) -> None:
    play("builtin", "household", attempts=1, out=tmp_path / "run", sampling=Sampling(max_tokens=4))
    with Run.open(tmp_path / "run") as run:
        (noted,) = [entry.payload for entry in run.journal("environment")]
    assert noted["rows"] in [str(way) for way in Exactness]
    assert "MKL_CBWR" in noted["kernels"]


PROGRAM = """
import json
from engine.helpers import tiny
from engine.test_kernels import ask
from ramify.engine.devices import exactness_here, kernels
from ramify.engine.local import LocalModel
model = LocalModel(tiny(), cache_bytes=0)
same = ask(model, company=True) == ask(LocalModel(tiny(), max_sequences=1, cache_bytes=0), company=False)
print(json.dumps([kernels(), str(model.exactness), "batch_invariant" in model.capabilities, same]))
"""
CHOICES = (
    {"MKL_CBWR": "COMPATIBLE"},
    {"MKL_CBWR": "AVX2", "ATEN_CPU_CAPABILITY": "default"},
    {"MKL_CBWR": "AUTO", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
)


@pytest.mark.slow
@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: " ".join(choice.values()))
def test_other_kernels_of_this_processor_keep_the_promise(choice: dict[str, str]) -> None:
    """Read when torch is loaded, hence a process each. ``.ci/run`` runs whole files of tests under such choices."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=Path(__file__).parents[1],
        env=os.environ | choice,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kernels, way, promised, same = json.loads(done.stdout)
    assert kernels.endswith(choice["MKL_CBWR"])
    assert (way != Exactness.UNPROVEN) == promised
    assert promised == same or same  # a promise that is not given may hold by chance
    assert promised, "on a CPU rows can run alone, which only an operation that never repeats itself would defeat"


def test_the_cheapest_way_that_is_exact_is_taken() -> None:
    needs_tiles(exactness(TinyForward(tiny())))
    assert probe(TinyForward(tiny()), alone=True)
