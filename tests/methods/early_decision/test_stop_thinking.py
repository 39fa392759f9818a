"""Ending the thinking: what a calibration certifies, what the middleware does with it, and all that it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramify.base.errors import NeedsError, UserError
from ramify.cli.main import main
from ramify.methods.early_decision.middleware import StopThinking
from ramify.methods.early_decision.stopping import (
    Probe,
    ProbedThought,
    StopRule,
    answer_in,
    certified,
    exceeds_p,
    least_thoughts,
    measured,
)
from ramify.model.chat import TagTemplate
from ramify.model.laid import Layout
from ramify.model.middleware import unwrapped, wrap
from ramify.model.protocol import Completion, Identity, Prefix, Sampling, TokenScores
from ramify.model.scripted import CharTokenizer, ScriptedModel
from ramify.model.streaming import Piece, Pieces, stream
from ramify.testing import check_middleware
from ramify.trace.message import Message

SETTINGS = Sampling(0.6, 0.95, 0, 200)


class Thinker:
    """Thinks in eight words that a coin makes plus or minus, and answers with the sign of the first three; ``late``: of all."""

    capabilities = frozenset({"tokens", "continue", "logprobs"})

    def __init__(self, late: bool = False) -> None:
        self.late, self.tokenizer = late, CharTokenizer()
        self.identity = Identity("thinker", f"late {late}", self.tokenizer.hash)
        self.eos = (self.tokenizer.encode("<|end|>")[0],)
        self.made = 0

    async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Completion]:
        text = self.tokenizer.decode(np.asarray(prefix.tokens).tolist())
        thought = text.rpartition("<think>\n")[2]
        return [self._sample(thought, settings, key) for key in keys]

    def _sample(self, thought: str, settings: Sampling, key: int) -> Completion:
        words, closed, _ = thought.partition("</think>")
        signs = [1 if word == "plus" else -1 for word in words.split()]
        if closed:
            said = sum(signs if self.late else signs[:3])
            text = ("yes" if said > 0 else "no") + "<|end|>"
        else:
            coins = np.random.default_rng(key).integers(0, 2, 8)
            text = " ".join(np.where(coins, "plus", "less").tolist()) + "</think>"
        tokens = self.tokenizer.encode(text)[: settings.max_tokens]
        self.made += len(tokens)
        logprobs = np.full(len(tokens), -0.001, np.float32)
        stop = "length" if len(tokens) == settings.max_tokens else "stop"
        return Completion(self.tokenizer.decode(tokens), stop, np.array(tokens, np.int32), logprobs, logprobs)

    async def stream(self, prefix: Prefix, settings: Sampling, key: int) -> Pieces:
        (whole,) = await self.sample(prefix, 1, settings, [key])
        tokens = whole.tokens
        assert tokens is not None
        self.made -= len(tokens)
        for at in range(0, len(tokens), 3):
            part = tokens[at : at + 3]
            self.made += len(part)
            yield Piece(self.tokenizer.decode(part.tolist()), part)
            await asyncio.sleep(0)
        yield Piece("", completion=whole)

    async def logprobs(self, tokens: Sequence[np.ndarray], top_k: int = 0) -> list[TokenScores]:
        raise NotImplementedError


def early() -> Thinker:
    return Thinker()


def late() -> Thinker:
    return Thinker(late=True)


def study(folder: Path, model: str = "early", n: int = 80, calibrate: Sequence[object] = ()) -> Path:
    """A study of a thinker, calibrated where ``calibrate`` holds options."""
    rows = [{"id": f"p{i}", "prompt": f"{i}", "prompt_ids": CharTokenizer().encode(f"q{i}")} for i in range(n)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    out = folder / "run"
    told = ["--model", f"factory:{__name__}:{model}", "--label", "regex:yes", "--k", 1, "--modes", "thinking"]
    run(0, "early-decision", "run", "--prompts", folder / "prompts.jsonl", "--out", out, *told)
    if calibrate:
        run(0, "early-decision", "calibrate", out, "--every", 5, "--probe-tokens", 4, *calibrate)
    return out


def run(code: int, *words: object) -> None:
    assert main([str(word) for word in words]) == code


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return study(tmp_path_factory.mktemp("stop"), "early", 80, ("--alpha", 0.1, "--rule", "consistency", "--held-out", 0.2))


def sampled(model: Any, prefix: Prefix, settings: Sampling = SETTINGS, keys: Sequence[int] = (1, 2, 3)) -> list[Completion]:
    async def go() -> list[Completion]:
        found: list[Completion] = await model.sample(prefix, len(keys), settings, keys)
        return found

    return asyncio.run(go())


def prompt(text: str = "q1") -> Prefix:
    return Prefix(np.array(CharTokenizer().encode(text), np.int32))


# -- rules and what is certified of them


def thought(answers: str, final: str, sure: Sequence[float] = ()) -> ProbedThought:
    """A thought that is probed every ten tokens, whose answer after a stop is that of the probe."""
    probes = tuple(Probe(10 * i, one.strip(), sure[i - 1] if sure else None, 2) for i, one in enumerate(answers, 1))
    return ProbedThought(10 * len(answers) + 5, final, 1, probes, tuple(answers), (1,) * len(answers))


def test_rules_stop_where_they_say() -> None:
    one = thought("ab bbb", "b", (0.1, 0.2, 1.0, 0.99, 0.3, 0.9))
    assert StopRule("consistency", 2).first(one.probes) == 4  # the third probe had no answer, which agrees with nothing
    assert StopRule("consistency", 4).first(one.probes) is None
    assert StopRule("confidence", 0.95).first(one.probes) == 3  # so it is sure of nothing
    assert StopRule("budget", 30).first(one.probes) == 2
    assert one.wrong(StopRule("budget", 10))
    assert not one.wrong(StopRule("consistency", 2))
    assert not one.wrong(StopRule("consistency", 9))


def test_tokens_count_what_probes_cost() -> None:
    one = thought("bbbb", "b")
    assert one.tokens(StopRule("budget", 20)) == (20, 0, 1)
    assert one.tokens(StopRule("consistency", 2)) == (20, 6, 1)  # two probes, and what was thought on during the second
    assert one.tokens(StopRule("consistency", 9)) == (45, 8, 1)
    found = measured(StopRule("consistency", 2), [one] * 30)
    assert found.thinking_saved == pytest.approx(25 / 45)
    assert found.saved == pytest.approx(1 - 27 / 46)
    assert found.wrong is not None
    assert found.upper == pytest.approx(1 - 0.05 ** (1 / 30))


def test_the_least_thoughts_are_those_of_the_exact_test() -> None:
    for alpha, level in ((0.05, 0.95), (0.1, 0.95), (0.02, 0.9)):
        n = least_thoughts(alpha, level)
        assert exceeds_p(0, n, alpha) <= 1 - level < exceeds_p(0, n - 1, alpha)
    assert least_thoughts(0.05, 0.95) == 59
    assert certified("consistency", [thought("bbbb", "b")] * 58, 0.05, 0.95) is None
    assert certified("consistency", [thought("bbbb", "b")] * 59, 0.05, 0.95) == StopRule("consistency", 2)


def test_the_sequence_ends_at_the_first_setting_that_is_not_certified() -> None:
    good, bad = thought("aabbbbbb", "b"), thought("aaabbbbb", "b")
    assert certified("consistency", [good] * 60 + [bad] * 40, 0.1, 0.95) == StopRule("consistency", 4)
    assert certified("budget", [good] * 60 + [bad] * 40, 0.1, 0.95) == StopRule("budget", 40)
    assert certified("budget", [thought("aaaa", "b")] * 100, 0.1, 0.95) is None


def test_wrong_stops_stay_below_the_bound_in_most_calibrations() -> None:
    """Thoughts settle after a geometric number of probes; the true rate of what is certified exceeds alpha in 5 % at most."""
    rng, alpha, bad, runs = np.random.default_rng(0), 0.1, 0, 200
    for _ in range(runs):
        at = rng.geometric(0.35, 60)
        rule = certified("budget", [thought("a" * min(9, k) + "b" * max(0, 9 - k), "b") for k in at], alpha, 0.95)
        if rule is not None:
            bad += 0.65 ** (rule.setting / 10 - 1) > alpha  # not settled by then
    assert bad <= 0.05 * runs + 3 * (0.05 * 0.95 * runs) ** 0.5


def test_answers_are_compared_as_told() -> None:
    assert answer_in(" The  Answer.\n", "text") == answer_in("the answer", "text") == "the answer"
    assert answer_in("3 and then 42", r"regex:\d+") == "42"
    assert answer_in("x=7;", r"regex:x=(\d)") == "7"
    assert answer_in("none", r"regex:\d") == ""
    for how in ("words", "regex:("):
        with pytest.raises(UserError):
            answer_in("", how)


# -- the verb


def test_what_settles_early_is_certified_and_stored(calibrated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(
        0,
        "early-decision",
        "calibrate",
        calibrated,
        "--every",
        5,
        "--probe-tokens",
        4,
        "--alpha",
        0.1,
        "--held-out",
        0.2,
        "--json",
    )
    found = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    (row,) = (one for one in found["rules"] if one["name"] == "consistency")
    assert found["stands_out"]
    assert (found["prompts"], found["held"]) == (64, 16)
    assert row["held_out"]["thinking_saved"] > 0.1
    assert row["calibration"]["wrong"]["k"] <= 2
    assert found["anew"]["k"] == 0


def test_what_settles_at_the_end_is_not_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = study(tmp_path, "late", 64, ("--alpha", 0.05, "--held-out", 0))
    run(0, "early-decision", "calibrate", out, "--every", 5, "--probe-tokens", 4, "--held-out", 0, "--json")
    found = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    for row in found["rules"]:
        assert row["calibration"] is None or row["calibration"]["thinking_saved"] < 0.1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--every", 500), "no thought can be probed: the longest has 39 tokens; lower --every, which is 500"),
        (("--answer", "meaning"), "--answer is text, outcome or regex:PATTERN, not 'meaning'"),
    ],
)
def test_mistakes_are_one_sentence(
    calibrated: Path, options: Sequence[object], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(2, "early-decision", "calibrate", calibrated, *options)
    assert says in capsys.readouterr().err


# -- the middleware


def test_it_refuses_what_was_not_calibrated(tmp_path: Path, calibrated: Path) -> None:
    with pytest.raises(UserError, match="is named stop-thinking:RUN"):
        wrap(early(), ["stop-thinking"])
    with pytest.raises(UserError, match="other weights"):
        wrap(late(), [f"stop-thinking:{calibrated}"])
    with pytest.raises(UserError, match="holds no study"):
        wrap(early(), [f"stop-thinking:{tmp_path}"])
    few = study(tmp_path, "early", 20)
    with pytest.raises(UserError, match="was not calibrated"):
        wrap(early(), [f"stop-thinking:{few}"])
    run(0, "early-decision", "calibrate", few, "--every", 5)
    with pytest.raises(UserError, match="14 prompts calibrate, and it takes 59 at least"):
        wrap(early(), [f"stop-thinking:{few}"])


def test_it_is_middleware() -> None:
    assert check_middleware(StopThinking) == []


def test_it_ends_the_thinking_and_answers_as_the_whole_thought_does(calibrated: Path) -> None:
    stops, whole = (StopThinking(early(), str(calibrated)) for _ in range(2))
    assert whole.plan is not None
    whole.plan = replace(whole.plan, rule=StopRule("budget", 1e9))
    keys = range(20)
    short, long = (sampled(model, prompt(), keys=keys) for model in (stops, whole))
    notes = [(one.data or {})["stop_thinking"] for one in short]
    assert sum(note["stopped"] for note in notes) >= 15
    assert sum(len(one.text) for one in short) < sum(len(one.text) for one in long)
    assert stops.inner.made < whole.inner.made  # type: ignore[attr-defined]  # what is not needed is not sampled
    for a, b, note in zip(short, long, notes, strict=True):
        assert a.text.startswith("<think>\n")
        assert b.text.startswith(a.text.partition("</think>")[0])
        assert a.text.endswith(("yes<|end|>", "no<|end|>"))
        assert note["thinking"] == len(a.text.partition("</think>")[0]) - len("<think>\n")
    wrong = sum(a.text.partition("</think>")[2] != b.text.partition("</think>")[2] for a, b in zip(short, long, strict=True))
    assert wrong <= 4


def test_a_stream_is_its_sample(calibrated: Path) -> None:
    model = StopThinking(early(), str(calibrated))

    async def read(key: int) -> list[Piece]:
        async with aclosing(stream(model, prompt(), SETTINGS, key)) as pieces:
            return [piece async for piece in pieces]

    for key in range(4):
        pieces = asyncio.run(read(key))
        (whole,) = sampled(model, prompt(), keys=[key])
        assert "".join(piece.text for piece in pieces) == whole.text
        assert np.concatenate([piece.tokens for piece in pieces if piece.tokens is not None]).tolist() == list(whole.tokens)  # type: ignore[arg-type]
        assert len(pieces) > 4


@pytest.mark.parametrize("limit", [1, 9, 12, 20, 49, 50, 53])
def test_a_reply_is_no_longer_than_asked(calibrated: Path, limit: int) -> None:
    for reply in sampled(StopThinking(early(), str(calibrated)), prompt(), replace(SETTINGS, max_tokens=limit)):
        assert reply.tokens is not None
        assert len(reply.tokens) <= limit


def test_requests_that_were_not_calibrated_pass_and_say_so(calibrated: Path) -> None:
    model = StopThinking(early(), str(calibrated))
    for settings, why in ((replace(SETTINGS, temperature=0.2), "temperature is 0.2"), (replace(SETTINGS, ban=(7,)), "bans")):
        plain, reply = (sampled(one, prompt(), settings, [5])[0] for one in (early(), model))
        assert reply.text == plain.text
        note = (reply.data or {})["stop_thinking"]
        assert not note["stopped"]
        assert why in note["why"]
    assert model.defaults == {"temperature": 0.6, "top_p": 0.95, "top_k": 0}
    assert "logprobs" not in model.capabilities


def test_chats_are_rendered_stopped_and_remembered(calibrated: Path) -> None:
    inner = Layout(early(), TagTemplate(CharTokenizer()))
    model = wrap(inner, [f"stop-thinking:{calibrated}"])
    chat = Prefix(messages=(Message("user", "q1"),))
    (reply,) = sampled(model, chat, keys=[2])
    assert (reply.data or {})["stop_thinking"]["stopped"]
    assert [one.message.text for one in reply.shown] == ["q1"]
    later = Prefix(messages=(*chat.messages, Message("assistant", reply.text.removesuffix("<|end|>")), Message("user", "again")))
    tokens = inner.rendered(later).tokens
    assert reply.tokens is not None
    assert tokens is not None
    assert reply.tokens.tobytes() in tokens.tobytes()


def test_a_model_of_messages_is_refused(calibrated: Path) -> None:
    model = ScriptedModel(tokens=False)
    with pytest.raises((UserError, NeedsError)):
        wrap(model, [f"stop-thinking:{calibrated}"])
    assert unwrapped(wrap(early(), [f"stop-thinking:{calibrated}"]))[0] == ()
