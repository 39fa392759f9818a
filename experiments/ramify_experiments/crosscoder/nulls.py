"""Cases whose truth is known: checkpoints with nothing of their own, and planted directions;
``ramify check method crosscoder`` runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.seeds import generator
from ramify.methods.crosscoder.dictionary import Dictionary
from ramify.methods.crosscoder.run import States
from ramify.methods.crosscoder.settings import DictionaryConfig
from ramify.score.steps import write_rows
from ramify_experiments.cases import KnownCase, Repetition

WIDTH, SHARED, OWN, ROWS = 24, 32, 3, 4000
TRAIN = ("--features", 64, "--k", 5, "--exclusive", 0.2, "--steps", 400, "--batch", 128, "--lr", 0.004, "--no-control")


def _states(seed: int, own: int) -> tuple[np.ndarray, States]:
    """The tuned model's own directions [own, D], and states of both: 32 shared directions, the base's turned a little."""
    rng = generator(seed, "crosscoder nulls")
    directions = rng.normal(size=(SHARED + own, WIDTH))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    q, r = np.linalg.qr(np.eye(WIDTH) + 0.02 * rng.normal(size=(WIDTH, WIDTH)))
    tool = np.arange(ROWS) < ROWS // 2
    chance = np.where(rng.random((2, SHARED + own)) < 0.5, 0.04, 0.16)  # each corpus has its own mixture
    fires = rng.random((ROWS, SHARED + own)) < chance[tool.astype(int)]
    activations = fires * rng.uniform(0.5, 1.5, fires.shape)
    both = activations[:, :SHARED] @ directions[:SHARED]
    pair = [activations @ directions, both @ (q * np.sign(np.diag(r)))]
    values = np.stack(pair, axis=1) + 0.02 * rng.normal(size=(ROWS, 2, WIDTH))
    return directions[SHARED:], States(values.astype(np.float32), tool)


def _called_own(rep: Repetition, states: Path) -> list[int]:
    """The features that ``rank`` calls the tuned model's own, of the dictionary that ``train`` makes of ``states``."""
    made = rep.folder / "dictionary"
    rep.verb("crosscoder", "train", states, "--out", made, "--seed", rep.seed, *TRAIN)
    return list(rep.verb("crosscoder", "show", made, states)["own"])


def _captured(rep: Repetition, words: int = 20, width: int = WIDTH, rows_each: int = 400) -> dict[str, Path]:
    """A checkpoint and the states of it as tuned and as base on two corpora; the corpora's files."""
    model, prompts = rep.folder / "model", {}
    _checkpoint(model, rep.seed, words, width)
    rng = generator(rep.seed, "crosscoder prompts")
    for corpus, first in (("tool", 1), ("plain", 2)):
        rows: list[dict[str, Any]] = [
            {"id": f"{corpus}{i}", "prompt_ids": [first, *map(int, rng.integers(3, words, 5))]} for i in range(rows_each)
        ]
        prompts[corpus] = rep.folder / f"{corpus}.jsonl"
        write_rows(prompts[corpus], rows)
    twice = ("--tuned", f"hf:{model}", "--base", f"hf:{model}", "--layer", 2, "--raw")
    corpora = ("--tool", prompts["tool"], "--plain", prompts["plain"])
    rep.verb("crosscoder", "capture", *twice, *corpora, "--out", rep.folder / "states")
    return prompts


def _same_checkpoint(rep: Repetition) -> bool:
    _captured(rep)
    return bool(_called_own(rep, rep.folder / "states"))


def _checkpoint(folder: Path, seed: int, words: int = 20, width: int = WIDTH) -> None:
    """A small model of random weights, as transformers loads it."""
    from ramify.engine.tiny import TinyConfig, TinyLM
    from ramify_experiments.models import word_tokenizer

    known = word_tokenizer([f"w{i}" for i in range(words)], "w0")
    TinyLM(TinyConfig(words, width, 2, 2, 1, 12, 48, 32, eos=(0,)), seed=seed).save(folder, known)


def _turned(rep: Repetition) -> bool:
    _states(rep.seed, 0)[1].save(rep.folder / "states")
    return bool(_called_own(rep, rep.folder / "states"))


def _planted(rep: Repetition) -> bool:
    own, states = _states(rep.seed, OWN)
    states.save(rep.folder / "states")
    called = _called_own(rep, rep.folder / "states")
    if not called:
        return False
    found = Dictionary.load(rep.folder / "dictionary")[0].directions(0)[called].numpy()
    cosine = own @ (found / np.linalg.norm(found, axis=1, keepdims=True)).T
    return bool(cosine.max(axis=0).min() >= 0.9 and (cosine.max(axis=1) >= 0.9).sum() >= 2)


SETS, SIZE, WORDS, BROAD = 2, 4, 200, 64
FIRST_WORD = "w7"
CLAMPS = "0.06,0.12"


def names_it(text: str, trace: Any) -> bool:
    """Whether a reply begins with :data:`FIRST_WORD`."""
    return text.split()[:1] == [FIRST_WORD]


def names_even(text: str, trace: Any) -> bool:
    """Whether a reply begins with a word of an even number."""
    return (text.split() or ["w1"])[0] in {f"w{i}" for i in range(0, WORDS, 2)}


def _steered(rep: Repetition, planted: bool) -> list[str]:
    """The sets that ``steer`` says stand out: of two sets of four features, whose directions are random, but that with
    ``planted`` those of the first lie about the word's own and sum to it."""
    from ramify.engine.tiny import TinyLM

    prompts = _captured(rep, WORDS, BROAD, 36)
    made = Dictionary(DictionaryConfig(width=BROAD, features=SETS * SIZE + 8, k=4, exclusive=0.0), seed=rep.seed)
    if planted:
        module = TinyLM.load(rep.folder / "model")
        word = module.state_dict()["model.embed_tokens.weight"][int(FIRST_WORD[1:])]
        rng = generator(rep.seed, "crosscoder planted")
        aside = rng.normal(size=(SIZE, BROAD))
        aside -= aside.mean(axis=0)  # what the four directions have in addition to the word's cancels in the sum
        for i in range(SIZE):
            own = word / word.norm() + aside[i] / BROAD**0.5
            made.decoder.data[i, 0] = own / own.norm() * made.decoder.data[i, 0].norm()
    made.save(rep.folder / "dictionary", States.load(rep.folder / "states").about)
    named = ["+".join(str(SIZE * j + i) for i in range(SIZE)) for j in range(SETS)]
    score = f"python:{__name__}:{'names_it' if planted else 'names_even'}"
    options = ("--sets", ",".join(named), "--gains", "", "--clamps", CLAMPS, "--budgets", 1, "--raw", "--seed", rep.seed)
    files = (rep.folder / "dictionary", rep.folder / "states", "--prompts", prompts["tool"], "--out", rep.folder / "study")
    found = rep.verb("crosscoder", "steer", *files, *options, "--score", score)
    return [str(one["name"]) for one in found["sets"] if one["stands_out"]]


CASES = (
    KnownCase(
        "one checkpoint twice",
        "nothing",
        "Tuned and base are the same checkpoint; any feature that `rank` calls the tuned model's own is a false finding.",
        _same_checkpoint,
        wanted=0.05,
        full=60,
        quick=4,
    ),
    KnownCase(
        "every direction in both models",
        "nothing",
        "Both models hold the same 32 directions, the base's turned a little; any feature called the tuned model's own is a "
        "false finding.",
        _turned,
        wanted=0.05,
        full=60,
        quick=4,
    ),
    KnownCase(
        "three directions of the tuned model alone",
        "planted",
        "3 of 35 directions are in the tuned model alone; found where `rank` calls features along at least two of them its own, "
        "and no other.",
        _planted,
        wanted=0.8,
        full=60,
        quick=4,
    ),
    KnownCase(
        "sets of random directions",
        "nothing",
        "Two sets of four features whose directions are random; any set that `steer` says stands out is a false finding.",
        lambda rep: bool(_steered(rep, False)),
        wanted=0.05,
        full=60,
        quick=2,
    ),
    KnownCase(
        "a set that sums to a word",
        "planted",
        "Four features whose directions sum to that of the word that is scored, and four random ones; found where only the "
        "first set stands out.",
        lambda rep: _steered(rep, True) == ["0+1+2+3"],
        wanted=0.8,
        full=60,
        quick=2,
    ),
)
