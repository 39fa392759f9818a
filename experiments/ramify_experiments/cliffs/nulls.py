"""What is known of made replies, and what a scan makes of them.

A reply is eight moves and a tail of four letters that nobody measures: each move, up or down, changes the chance V that the tail
decides for right. So the potential of every position is known exactly, and the forks are sampled as from any model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ramify.base.seeds import generator, uniforms
from ramify.methods.cliffs import read_scan
from ramify.model.protocol import Completion, Identity, Prefix, Sampling, TokenScores
from ramify.rollout.token_traces import TokenTrace
from ramify.score.steps import write_rows
from ramify_experiments.cases import KnownCase, Repetition

LETTERS = "du0123456789abcdef."
MOVES, TAIL, REPLIES = 8, 4, 8
DOWN = 0.5
"""Chance of the move down."""


class LetterWalk:
    """Model and tokenizer: moves down and up, then letters, each as likely as any other."""

    identity, capabilities = (
        Identity("walk", "walk", "walk"),
        frozenset({"tokens", "continue", "logprobs", "prompt_logprobs", "seeds"}),
    )
    hash, eos = "walk", ()

    @property
    def tokenizer(self) -> LetterWalk:
        """Itself."""
        return self

    def encode(self, text: str) -> list[int]:
        """A letter, a token; others are left out."""
        return [LETTERS.index(letter) for letter in text if letter in LETTERS]

    def decode(self, tokens: Sequence[int]) -> str:
        """The letters."""
        return "".join(LETTERS[token] for token in tokens)

    def ends(self, tokens: Sequence[int]) -> np.ndarray:
        """Where each letter ends."""
        return np.arange(1, len(tokens) + 1, dtype=np.int32)

    async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Completion]:
        """The rest of the reply after the one token of the prompt."""
        assert prefix.tokens is not None
        done, out = len(prefix.tokens) - 1, []
        for key in keys:
            u = uniforms(np.full(MOVES + TAIL, key), np.arange(MOVES + TAIL))[done:]
            moves = max(0, MOVES - done)
            tokens = np.where(np.arange(len(u)) < moves, u >= DOWN, 2 + np.floor(16 * u)).astype(np.int32)
            out.append(Completion(self.decode(tokens.tolist()), "stop", tokens))
        return out

    async def logprobs(self, tokens: Sequence[np.ndarray], top_k: int = 0) -> list[TokenScores]:
        """All moves alike, all letters alike."""
        return [TokenScores(np.log([DOWN if token < 2 else 1 / 16 for token in row]).astype(np.float32)) for row in tokens]


def make_walk() -> LetterWalk:
    """The model."""
    return LetterWalk()


def make_verifier() -> Callable[[str, TokenTrace], bool]:
    """Whether the tail, a number below 1, is below V; ``answer`` says what each move down loses, and a move up gains as much."""

    def right(text: str, trace: TokenTrace) -> bool:
        v = float(trace.data["answer"]["start"])
        for move, loss in zip(text[:MOVES], trace.data["answer"]["losses"], strict=True):
            loss = min(loss, v, 1 - v)
            v += loss if move == "u" else -loss
        return bool(int(text[MOVES:], 16) < v * 16**TAIL)

    return right


def _confirmed(rep: Repetition, losses: Sequence[Sequence[float]], moves: Sequence[str]) -> list[tuple[str, int]]:
    """Confirmed cliffs (trace, token) of a scan of a reply for each of ``moves``, as the run of the scan has them."""
    rows = [
        {
            "id": str(i),
            "prompt_ids": [len(LETTERS) - 1],
            "response_ids": LetterWalk().encode(moves[i]),
            "stop": "length",
            "sampler": {"max_tokens": MOVES + TAIL},
            "correct": False,
            "data": {"answer": {"start": 0.5, "losses": list(loss)}},
        }
        for i, loss in enumerate(losses)
    ]
    traces, out = rep.folder / "traces.jsonl", rep.folder / "scan"
    write_rows(traces, rows)
    model, verifier = (f"factory:{__name__}:{name}" for name in ("make_walk", "make_verifier"))
    rep.verb("cliffs", "scan", "--model", model, "--verifier", verifier, "--traces", traces, "--out", out, "--seed", rep.seed)
    return [(cliff.trace_id, cliff.t) for one in read_scan(out)[2] for cliff in one.of("confirmed")]


def _moves(rep: Repetition) -> list[str]:
    rng = generator(rep.seed, "moves")
    return ["".join("du"[up] for up in rng.integers(0, 2, MOVES)) for _ in range(REPLIES)]


def _nothing(rep: Repetition) -> bool:
    """Every potential is one half."""
    return bool(_confirmed(rep, [[0.0] * MOVES] * REPLIES, _moves(rep)))


def _tenths(rep: Repetition) -> bool:
    """Down and up in turn, so that every second token loses exactly a tenth, the most that is no cliff."""
    return bool(_confirmed(rep, [[0.1] * MOVES] * REPLIES, ["du" * (MOVES // 2)] * REPLIES))


def _one(rep: Repetition) -> bool:
    """One reply falls from .5 to .15 at one token; in the others nothing moves."""
    at = int(generator(rep.seed, "planted").integers(0, MOVES))
    moves, planted = _moves(rep), [0.35 * (t == at) for t in range(MOVES)]
    moves[0] = moves[0][:at] + "d" + moves[0][at + 1 :]
    return ("0", at + 1) in _confirmed(rep, [planted, *[[0.0] * MOVES] * (REPLIES - 1)], moves)


CASES = (
    KnownCase(
        "drops of exactly a tenth",
        "nothing",
        "In eight replies every second token loses exactly 0.1, the most that is no cliff; a finding is any confirmed cliff.",
        _tenths,
        wanted=0.05,
        quick=10,
    ),
    KnownCase(
        "no token moves the potential",
        "nothing",
        "The potential of every position of eight replies is one half; a finding is any confirmed cliff.",
        _nothing,
        wanted=0.05,
        quick=10,
    ),
    KnownCase(
        "one fall from .5 to .15",
        "planted",
        "One token of one reply in eight loses 0.35 and no other token anything; it must be among the confirmed cliffs.",
        _one,
        wanted=0.8,
        quick=10,
    ),
)
