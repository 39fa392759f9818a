"""What is known of made traces, of which the hidden states are a small network's, and of made models,
of which every chance is written here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.seeds import generator
from ramify.model.protocol import Completion, Identity, Prefix, Sampling, TokenScores
from ramify.model.scripted import CharTokenizer
from ramify.score.steps import write_rows
from ramify_experiments.cases import KnownCase, Repetition

WORDS = tuple(f"word{i}" for i in range(16))
LINES = 10
"""Lines of a made model's thinking."""
LINE = {1: "This speaks for it, so far as I see", -1: "This speaks against, so far as I see"}
PROMPTS = 12


# -- states of a network, outcomes that are sampled here


def _states(rep: Repetition, outcome: Callable[[np.ndarray, np.ndarray, np.random.Generator], Any], pools: bool = False) -> Path:
    """A study of 48 prompts, two traces of six words each, whose outcomes are 1 with probability ``outcome`` (96,).

    It is given each trace's prompt int (96,), its words int (96, 6), and what to sample from.
    The network's weights are sampled as well.
    """
    from ramify.engine.tiny import TinyConfig, TinyLM
    from ramify_experiments.models import word_tokenizer

    rng = generator(rep.seed, "states")
    words = ("<think>", "</think>", *WORDS, "yes", "no", "<end>")
    TinyLM(TinyConfig(len(words), 24, 2, 2, 1, 12, 24, 64), seed=rep.seed).save(
        rep.folder / "model", word_tokenizer(words, words[-1])
    )
    prompt, thoughts = np.repeat(np.arange(48), 2), rng.integers(0, len(WORDS), (96, 6))
    prompts = rng.integers(0, len(WORDS), (48, 4))
    prompts[:, 0] = np.arange(48) % 2 * 8 + rng.integers(0, 8, 48)  # the first word identifies the pool
    ends = rng.random(96) < outcome(prompt, thoughts, rng)
    rows = [
        {"id": f"p{i}", "prompt_ids": (2 + row).tolist(), "prompt": " ".join(WORDS[w] for w in row)}
        | ({"pool": ("benign", "harmful")[i % 2]} if pools else {})
        for i, row in enumerate(prompts)
    ]
    traces = [
        {"prompt_id": f"p{i}", "thinking": " ".join(WORDS[w] for w in row), "response": "yes" if end else "no"}
        for i, row, end in zip(prompt.tolist(), thoughts, ends.tolist(), strict=True)
    ]
    flags: list[Any] = []
    for name, given in (("prompts", rows), ("traces", traces)):
        write_rows(rep.folder / f"{name}.jsonl", given)
        flags += [f"--{name}", rep.folder / f"{name}.jsonl"]
    out = rep.folder / "run"
    rep.verb("early-decision", "run", "--model", f"hf:{rep.folder / 'model'}", "--label", "regex:yes", "--out", out, *flags)
    return out


def _by_prompt(prompt: np.ndarray, thoughts: np.ndarray, rng: np.random.Generator) -> Any:
    """Every prompt has a chance of its own, and neither its words nor the thinking's have anything to do with it."""
    return rng.beta(2, 2, 48)[prompt]


def _by_ends(prompt: np.ndarray, thoughts: np.ndarray, rng: np.random.Generator) -> Any:
    """Both ends of the thinking show an outcome that was sampled first, and the middle does not."""
    end = rng.random(96) < 0.5
    thoughts[:, [0, -1]] = rng.integers(0, 2, (96, 2)) + 2 * end[:, None]
    return end.astype(float)


# -- models whose chances are known


class Made:
    """Thinks in lines that a coin turns for or against, and answers yes with a chance that is ``follows`` lines' (0: the prompt's
    alone)."""

    capabilities = frozenset({"tokens", "continue"})

    def __init__(self, follows: str) -> None:
        self.follows, self.tokenizer = follows, CharTokenizer()
        self.identity = Identity(f"made, {follows}", follows, self.tokenizer.hash)

    async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Completion]:
        """Samples, each by its key."""
        text = self.tokenizer.decode(np.asarray(prefix.tokens).tolist())
        request, _, thinking = text.partition("<think>\n")
        thinking, closed, _ = thinking.partition("</think>")
        return [self._sample(request, thinking, bool(closed), np.random.default_rng(key)) for key in keys]

    async def logprobs(self, tokens: Sequence[np.ndarray], top_k: int = 0) -> list[TokenScores]:
        """They are not needed."""
        raise NotImplementedError

    def _sample(self, request: str, thinking: str, closed: bool, rng: np.random.Generator) -> Completion:
        stances = [1 if line == LINE[1] else -1 for line in thinking.split("\n") if line in LINE.values()]
        if closed:
            chance = {
                "prompt": float(request),
                "turn": 0.1 + 0.8 * (sum(stances[-1:]) > 0),
                "sum": (np.sign(sum(stances)) + 1) / 2,
                "start": float(sum(stances[:5]) > 0),
            }
            text, stop = "yes" if rng.random() < chance[self.follows] else "no", "eos"
        else:
            begun = "" if not thinking or thinking.endswith("\n") else "\n"
            more = max(0, LINES - len(stances))
            lines = [LINE[sign] for sign in (2 * rng.integers(0, 2, more) - 1).tolist()]
            text, stop = begun + "\n".join(lines) + "</think>", "stop"
        return Completion(text, stop, np.array(self.tokenizer.encode(text), np.int32))


def follows_prompt() -> Made:
    """Answers as the prompt has it, whatever it thought."""
    return Made("prompt")


def follows_turn() -> Made:
    """Answers as its last line has it, nine times of ten."""
    return Made("turn")


def follows_sum() -> Made:
    """Answers as most of its lines have it."""
    return Made("sum")


def follows_start() -> Made:
    """Answers as most of its first five lines have it."""
    return Made("start")


def make_reader() -> Callable[[str, Sequence[str]], list[int]]:
    """Reads the stance off a chunk's last line."""
    return lambda prompt, chunks: [1 if chunk.endswith(LINE[1]) else -1 for chunk in chunks]


def _made(rep: Repetition, model: Callable[[], Made], k: int, chances: Sequence[float] = ()) -> Path:
    """A study of a made model: prompts, each with a chance that it says, by default twelve with one of its own."""
    chances = chances or generator(rep.seed, "prompts").uniform(0.2, 0.8, PROMPTS).round(3).tolist()
    ids = CharTokenizer().encode
    rows = [{"id": f"p{i}", "prompt_ids": ids(f"{chance}"), "prompt": str(chance)} for i, chance in enumerate(chances)]
    prompts, out = rep.folder / "prompts.jsonl", rep.folder / "run"
    write_rows(prompts, rows)
    flags = ["--prompts", prompts, "--out", out, "--label", "regex:yes", "--k", k, "--seed", rep.seed]
    rep.verb("early-decision", "run", "--model", f"factory:{__name__}:{model.__name__}", *flags)
    return out


def _probed(outcome: Callable[..., Any], pools: bool = False) -> Callable[[Repetition], bool]:
    return lambda rep: bool(rep.verb("early-decision", "probe", _states(rep, outcome, pools))["stands_out"])


def _dips(outcome: Callable[..., Any]) -> Callable[[Repetition], bool]:
    return lambda rep: bool(rep.verb("early-decision", "probe", _states(rep, outcome), "valley", "--points", 6)["stands_out"])


def _turns(model: Callable[[], Made]) -> Callable[[Repetition], bool]:
    def found(rep: Repetition) -> bool:
        flags = ["--judges", f"factory:{__name__}:make_reader", "--limit", 60, "--traces", 1]
        return bool(rep.verb("early-decision", "continue", _made(rep, model, 1), "turns", *flags)["stands_out"])

    return found


def _settles(model: Callable[[], Made]) -> Callable[[Repetition], bool]:
    def found(rep: Repetition) -> bool:
        flags = ["--shares", "0,0.8", "--ways", "open", "--m", 4]
        return bool(rep.verb("early-decision", "continue", _made(rep, model, 8), *flags)["stands_out"])

    return found


CHANGED = 0.1
"""The share of answers that may change, and in the null at its edge does."""
EDGE = (1 - (1 - 2 * CHANGED) ** 0.5) / 2
"""Of yes: two answers then differ in ``CHANGED`` of the cases."""


def _ended(
    rep: Repetition, model: Callable[[], Made], rule: str, n: int, every: int = 32, chance: float = 0.5
) -> dict[str, Any] | None:
    """The rule that is certified for a made model, on the thoughts that calibrate it."""
    flags = ["--rule", rule, "--alpha", CHANGED, "--every", every, "--probe-tokens", 3, "--held-out", 0]
    found = rep.verb("early-decision", "calibrate", _made(rep, model, 1, [chance] * n), *flags)
    certified: dict[str, Any] | None = next(row["calibration"] for row in found["rules"] if row["name"] == rule)
    return certified


def _ends_at_the_edge(rep: Repetition) -> bool:
    found = _ended(rep, follows_prompt, "budget", 90, 64, EDGE)
    return found is not None and found["stopped"]["value"] == 1


def _saves(model: Callable[[], Made], share: float) -> Callable[[Repetition], bool]:
    def found(rep: Repetition) -> bool:
        row = _ended(rep, model, "consistency", 60)
        return row is not None and row["thinking_saved"] > share

    return found


def _moves(rep: Repetition) -> bool:
    low, high = rep.verb("early-decision", "report", _made(rep, follows_prompt, 8))["thinking"]["all"]["change_interval"]
    return not low <= 0 <= high


COIN: dict[str, Any] = {"wanted": 0.05, "quick": 16}
FEWER: dict[str, Any] = {"full": 100, "quick": 10}
"""Repetitions of a case that takes seconds each."""
SUN: dict[str, Any] = {"wanted": 0.8, "full": 50, "quick": 6}

CASES = (
    KnownCase(
        "probe: the outcome is a coin",
        "nothing",
        "Outcomes are sampled, two for each of 48 prompts with a chance of its own; a finding is a state, of two that are"
        " looked at, said to tell them.",
        _probed(_by_prompt),
        **COIN,
    ),
    KnownCase(
        "probe: the first word decides",
        "planted",
        "The first thinking token decides the outcome nine times of ten; a finding is a state said to tell it.",
        _probed(lambda prompt, thoughts, rng: np.where(thoughts[:, 0] < len(WORDS) // 2, 0.9, 0.1)),
        **SUN,
    ),
    KnownCase(
        "probe: the pool decides",
        "nothing",
        "The outcome is a coin whose chance is the pool's, .7 or .3, and the prompt's first word tells the pool; a "
        "finding is a state said to tell more than the pool does.",
        _probed(lambda prompt, thoughts, rng: np.where(prompt % 2, 0.7, 0.3), True),
        **COIN,
    ),
    KnownCase(
        "valley: the outcome is a coin",
        "nothing",
        "As in the probe's; a finding is a dip of J.",
        _dips(_by_prompt),
        **COIN,
    ),
    KnownCase(
        "valley: both ends show it",
        "planted",
        "The first and the last word show the outcome, the others nothing; a finding is a dip of J.",
        _dips(_by_ends),
        **SUN,
    ),
    KnownCase(
        "continue: thinking settles nothing",
        "nothing",
        "The chance of each answer is the prompt's, whatever was thought; a finding is open variance that falls or "
        "rises with what is kept.",
        _settles(follows_prompt),
        **COIN,
    ),
    KnownCase(
        "continue: lines add up",
        "planted",
        "The answer is what most of ten lines say; a finding is open variance that falls.",
        _settles(follows_sum),
        **SUN,
    ),
    KnownCase(
        "oscillate: the stance turns, the answer does not",
        "nothing",
        "The same model; a finding is any turn of stance said to move the answer.",
        _turns(follows_prompt),
        **COIN,
    ),
    KnownCase(
        "oscillate: the answer follows the stance",
        "planted",
        "The answer is the last line's nine times of ten; a finding is any turn said to move it.",
        _turns(follows_turn),
        **SUN,
    ),
    KnownCase(
        "calibrate: one answer in ten changes",
        "nothing",
        "Wherever the thinking ends, the answer changes in exactly the share that may; a finding is a budget said to change less "
        "(--alpha 0.1), at which all thoughts end.",
        _ends_at_the_edge,
        0.05,
        **FEWER,
    ),
    KnownCase(
        "calibrate: the last line decides",
        "nothing",
        "The answer follows the last of ten lines nine times of ten, so nothing is settled before the end; a finding is a rule "
        "that saves more than a twentieth of the thinking.",
        _saves(follows_turn, 0.05),
        0.05,
        **FEWER,
    ),
    KnownCase(
        "calibrate: the first half decides",
        "planted",
        "The answer is what most of the first five of ten lines say; a finding is a rule that saves a fifth of the thinking.",
        _saves(follows_start, 0.2),
        **SUN,
    ),
    KnownCase(
        "report: thinking moves nothing",
        "nothing",
        "The same answers with thinking and without; a finding is an interval of the change, over twelve prompts, without 0.",
        _moves,
        **COIN,
    ),
)
