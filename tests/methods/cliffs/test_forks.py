"""Forks of token traces on the real engine, against exact potentials; trace files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.base.errors import InfrastructureError, NeedsError, UserError
from ramify.engine.checkpoints import load_model, model_folder
from ramify.engine.local import LocalModel
from ramify.methods.cliffs.forks import ReplyForks, at_least, sampler_logprobs
from ramify.methods.cliffs.run import ScanConfig, scan
from ramify.methods.cliffs.traces import read_traces, trace_of
from ramify.model.endpoint import HttpModel
from ramify.model.protocol import Completion, Prefix, Sampling
from ramify.model.scripted import CharTokenizer, ScriptedModel
from ramify.rollout.token_traces import TokenProblem, TokenTrace
from ramify.stats.drops import Counts
from tests.methods.cliffs.digits import END, Digits, model
from tests.model.model_server import NAME, ModelServer, serving

LENGTH = 3


def right(text: str, trace: TokenTrace) -> bool:
    """Right where the digits sum to an even number."""
    return sum(map(int, text)) % 2 == 0


SAMPLING = Sampling(max_tokens=LENGTH)
TRACE = TokenTrace("a", "p", (1, 2), (0, 3, 2), SAMPLING, stop="length")


def forks(engine: Any = None, **options: Any) -> ReplyForks:
    return ReplyForks(engine or model(), Digits(), right, truncated="graded", **options)


def exact(engine: LocalModel, prefix: list[int], left: int) -> float:
    """V by enumeration of every continuation; here the limit of tokens ends a reply as <end> does."""
    if left == 0 or prefix[-1] == END:
        return float(right("".join(str(t) for t in prefix[2:] if t != END), TRACE))
    scores = asyncio.run(engine.logprobs([np.array([*prefix, 0], np.int32)], top_k=5))[0]
    assert scores.top_tokens is not None
    assert scores.top_logprobs is not None
    chances = zip(scores.top_tokens[-1].tolist(), np.exp(scores.top_logprobs[-1]).tolist(), strict=True)
    return sum(q * exact(engine, [*prefix, token], left - 1) for token, q in chances)


def test_counts_agree_with_the_exact_potential() -> None:
    engine = model()
    counter = forks(engine)
    for t in range(LENGTH):
        truth = exact(engine, [1, 2, *TRACE.response_ids[:t]], LENGTH - t)
        counts = asyncio.run(counter.count(TRACE, t, 600, "scan"))
        assert counts.n == 600
        assert abs(counts.rate - truth) < 4 * (truth * (1 - truth) / 600) ** 0.5 + 1e-9


def test_the_potential_is_a_martingale() -> None:
    """sum_a pi(a) V(a) = V: the consistency test of section 8, with every candidate measured."""
    engine = model()
    counter = forks(engine)
    scores = asyncio.run(engine.logprobs([TRACE.prefix(1, (0,))], top_k=5))[0]
    assert scores.top_tokens is not None
    assert scores.top_logprobs is not None

    async def behind(token: int) -> Counts:
        return await counter.count(TRACE, (1, token), 400, "candidate")

    async def all_of_them() -> list[Counts]:
        return [await behind(token) for token in range(5)]

    rates = [counts.rate for counts in asyncio.run(all_of_them())]
    summed = sum(
        q * rates[a] for a, q in zip(scores.top_tokens[-1].tolist(), np.exp(scores.top_logprobs[-1]).tolist(), strict=True)
    )
    assert summed == pytest.approx(asyncio.run(counter.count(TRACE, 1, 800, "scan")).rate, abs=0.08)


def test_counts_do_not_depend_on_order_or_batches() -> None:
    async def together() -> list[Counts]:
        counter = forks()
        return list(await asyncio.gather(*(counter.count(TRACE, t, 24, "scan") for t in (0, 1, 2))))

    async def apart() -> list[Counts]:
        counter, out = forks(), {}
        for t in (2, 0, 1):
            first = await counter.count(TRACE, t, 16, "scan")
            out[t] = first + await counter.count(TRACE, t, 8, "scan", start=16)
        return [out[t] for t in (0, 1, 2)]

    assert asyncio.run(together()) == asyncio.run(apart())
    assert asyncio.run(forks(seed=1).count(TRACE, 0, 64, "scan")) != asyncio.run(forks(seed=2).count(TRACE, 0, 64, "scan"))
    assert asyncio.run(forks().count(TRACE, 0, 300, "scan")) != asyncio.run(forks().count(TRACE, 0, 300, "confirm"))


def test_prefixes_are_computed_once() -> None:
    counter = forks()
    asyncio.run(counter.count(TRACE, 2, 50, "scan"))
    spent = counter.spent()
    assert spent.forks == 50
    assert spent.given_tokens == 50 * 4
    assert spent.sampled_tokens == 50
    assert spent.forward_tokens == 50 + 4  # the prefix once
    assert spent.shared is True
    assert spent.by_purpose["scan"]["forks"] == 50


def test_an_ended_reply_is_not_sampled_from() -> None:
    counter = forks()
    ended = replace(TRACE, stop="eos", response_ids=(1, 1, END))
    assert asyncio.run(counter.count(ended, 3, 64, "scan")) == Counts(64, 64)
    assert asyncio.run(counter.count(TRACE, (1, END), 64, "scan")) == Counts(64, 64)
    assert asyncio.run(counter.count(TRACE, (1, 1, END), 64, "scan")) == Counts(0, 64)
    assert counter.spent().forks == 0


def test_truncated_forks_are_counted_apart() -> None:
    counter = ReplyForks(model(), Digits(), right)
    counts = asyncio.run(counter.count(TRACE, 2, 40, "scan"))
    assert counts.n + counts.truncated == 40
    assert counts.truncated > 0
    assert asyncio.run(counter.count(TRACE, 3, 40, "scan")) == Counts(0, 0, truncated=40)


def test_failures_are_missing_not_wrong() -> None:
    def unsure(text: str, trace: TokenTrace) -> bool | None:
        return None if text.startswith("00") else True

    async def broken(text: str, trace: TokenTrace) -> bool | None:
        raise ZeroDivisionError("in the verifier")

    counts = asyncio.run(ReplyForks(model(), Digits(), unsure, truncated="graded").count(TRACE, 1, 200, "scan"))
    assert counts.missing > 0
    assert counts.k == counts.n == 200 - counts.missing
    counter = ReplyForks(model(), Digits(), broken, truncated="graded")
    assert asyncio.run(counter.count(TRACE, 1, 8, "scan")) == Counts(0, 0, missing=8)
    assert counter.first_failure == "ZeroDivisionError: in the verifier"

    class Failing(ScriptedModel):
        async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Completion]:
            if keys[0] % 2:
                raise InfrastructureError("engine", "no memory")
            return await super().sample(prefix, n, settings, keys)

    scripted = Failing(["yes"])
    trace = TokenTrace("a", "p", tuple(scripted.tokenizer.encode("<|assistant|>")), (5 + ord("y"),), Sampling())
    counter = ReplyForks(scripted, scripted.tokenizer, lambda text, trace: "yes" in text)
    counts = asyncio.run(counter.count(trace, 0, 40, "scan"))
    assert counts.k == counts.n == 40 - counts.missing
    assert 5 < counts.missing < 35
    assert "no memory" in counter.first_failure
    assert counter.spent().shared is False


def test_verdicts_are_truth_values() -> None:
    for value, k, n in ((np.bool_(True), 2, 2), (np.bool_(False), 0, 2), (1, 2, 2), (0, 0, 2), (None, 0, 0)):
        known = ReplyForks(model(), Digits(), lambda text, trace, value=value: value, truncated="graded")  # type: ignore[misc]
        counts = asyncio.run(known.count(TRACE, 1, 2, "scan"))
        assert (counts.k, counts.n) == (k, n)
    for value in ("False", 0.7, 2, [False]):
        counter = ReplyForks(model(), Digits(), lambda text, trace, value=value: value, truncated="graded")  # type: ignore[misc]
        with pytest.raises(UserError, match=r"where only yes and no count|a judge returns True"):
            asyncio.run(counter.count(TRACE, 1, 2, "scan"))


def test_what_cannot_fork_is_refused() -> None:
    chat = ScriptedModel(["yes"], tokens=False)
    with pytest.raises(NeedsError, match="a fork inside a reply needs a model with continue"):
        ReplyForks(chat, CharTokenizer(), right)
    with pytest.raises(NeedsError, match="another tokenizer"):
        asyncio.run(forks().count(replace(TRACE, tokenizer="other"), 0, 1, "scan"))
    with pytest.raises(UserError, match="positions 0 to 3, not 4"):
        asyncio.run(forks().count(TRACE, 4, 1, "scan"))
    with pytest.raises(UserError, match="at least one"):
        asyncio.run(forks().count(TRACE, 0, 0, "scan"))


def test_stems_are_sampled_and_judged(tmp_path: Path) -> None:
    counter = forks(sampling=SAMPLING)
    traces = asyncio.run(counter.sample([TokenProblem("p", (1, 2), {"answer": "0"}), TokenProblem("q", (2, 1))], per_problem=2))
    assert [t.id for t in traces] == ["p#0", "p#1", "q#0", "q#1"]
    assert all(t.correct == right(Digits().decode(t.response_ids), t) for t in traces)
    assert all(t.logprobs is not None and len(t.logprobs) == t.length for t in traces)
    assert traces[0].verifier == "right"
    assert asyncio.run(counter.sample([TokenProblem("p", (1, 2), {"answer": "0"})], 3, {"p#0", "p#2"})) == [traces[1]]
    measured = traces[0].with_potentials({0: Counts(3, 4, 1, 2)}, early_stopped_at=0)
    file = tmp_path / "traces.jsonl"
    file.write_text("".join(json.dumps(trace.to_json()) + "\n" for trace in [measured, *traces[1:]]))
    assert read_traces(file) == [measured, *traces[1:]]


def test_bad_trace_files(tmp_path: Path) -> None:
    good = TRACE.to_json()

    def refusal(*records: Any) -> str:
        file = tmp_path / "t.jsonl"
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
        with pytest.raises(UserError) as caught:
            read_traces(file)
        assert "\n" not in str(caught.value)
        return str(caught.value).removeprefix(str(file))

    assert refusal(good, good) == ":2: trace 'a' is there twice"
    assert refusal(good | {"respons_ids": []}) == ":1: unknown field 'respons_ids' (did you mean 'response_ids'?)"
    assert "'prompt_ids' must be a list of token ids, at least one" in refusal(good | {"prompt_ids": []})
    assert "'response_ids' must be a list" in refusal(good | {"response_ids": [1.5]})
    assert "'sampler' has the unknown setting 'temp'" in refusal(good | {"sampler": {"temp": 1}})
    assert "'sampler' setting 'top_k' cannot be 'x'" in refusal(good | {"sampler": {"top_k": "x"}})
    assert "potentials have 1 positions" in refusal(good | {"k": [3], "n": 4})
    assert "5 right of 4" in refusal(good | {"k": [5, None, None, None], "n": 4})
    assert "'n' has 1 entry" in refusal(good | {"k": [1, 1, 1, 1], "n": [4]})
    assert "none above 0" in refusal(good | {"logprobs": [0.5, 0, 0]})
    assert "'logprobs' has 1 entry for 3 tokens" in refusal(good | {"logprobs": [-0.5]})
    assert "a trace of text only" in refusal({"id": "a", "prompt": "0", "response": "1"})
    assert "'id' must be text" in refusal({"prompt_ids": [1], "response_ids": [1]})
    assert refusal() == " holds no trace"
    assert "'sampler' must be an object, and it is missing" in refusal({name: good[name] for name in good if name != "sampler"})
    assert "the reply has 3 tokens and 'sampler' allows 2" in refusal(good | {"sampler": {"max_tokens": 2}})
    assert trace_of({"id": "a", "prompt": "01", "response": "12", "sampler": {}}, Digits()).response_ids == (1, 2)
    spec = trace_of(good | {"k": [1, None, 2, 0], "n": 4})
    assert spec.potentials == (Counts(1, 4), None, Counts(2, 4), Counts(0, 4))


def test_chances_of_tokens() -> None:
    engine = model()
    settings = Sampling(temperature=0.5, top_k=2, max_tokens=LENGTH)
    counter = forks(engine, sampling=settings)
    trace = next(t for t in asyncio.run(counter.sample([TokenProblem("p", (1, 2))])))
    found = asyncio.run(counter.chances(trace))
    assert found.pi is not None
    assert found.q is not None
    assert found.entropy is not None
    assert found.greedy is not None
    assert np.allclose(found.pi, np.exp(trace.logprobs or ()), atol=1e-5)
    assert found.gap < 1e-4
    assert found.pi.shape == found.q.shape == found.entropy.shape == found.greedy.shape == (trace.length,)
    others = asyncio.run(counter.alternatives(trace, 0, 5))
    assert sum(others.values()) == pytest.approx(1)
    assert others[trace.response_ids[0]] == pytest.approx(found.q[0])
    assert found.greedy[0] == (found.q[0] == pytest.approx(max(others.values())))
    assert asyncio.run(counter.chances(replace(trace, logprobs=(-9.0,) * trace.length))).gap > 1
    scripted = ScriptedModel(["yes"])
    chances = asyncio.run(
        ReplyForks(scripted, scripted.tokenizer, right).chances(replace(trace, tokenizer="", sampler=Sampling()))
    )
    assert chances.pi is not None
    assert chances.greedy is None
    with pytest.raises(NeedsError):
        asyncio.run(ReplyForks(scripted, scripted.tokenizer, right).alternatives(replace(trace, tokenizer=""), 0, 3))


@pytest.mark.parametrize(
    "settings",
    [{"temperature": 0.5, "top_k": 3}, {"top_p": 0.7}, {"temperature": 0.7, "top_k": 4, "top_p": 0.6}, {"temperature": 0.0}],
)
def test_sampler_probabilities_from_the_likeliest_tokens(settings: dict[str, Any]) -> None:
    row, chosen = np.array([1, 2, 0, 3, 2, 1], np.int32), Sampling(**settings)
    (scores,) = asyncio.run(model().logprobs([row], top_k=5, settings=chosen))
    assert scores.top_tokens is not None
    assert scores.top_logprobs is not None
    assert scores.sampler_logprobs is not None
    found = sampler_logprobs(row[1:], scores.top_tokens[1:], scores.top_logprobs[1:].astype(np.float64), chosen)
    assert found is not None
    assert np.allclose(np.exp(found), np.exp(scores.sampler_logprobs[1:]), atol=1e-5)
    assert sampler_logprobs(row[1:], scores.top_tokens[1:, :1], scores.top_logprobs[1:, :1], Sampling(top_p=0.99)) is None
    assert sampler_logprobs(row[1:], scores.top_tokens[1:], scores.top_logprobs[1:], Sampling(temperature=0.5)) is None


def test_odds_of_every_position_are_the_alternatives_there() -> None:
    counter = forks()
    rows = asyncio.run(counter.odds(TRACE, 3))
    assert len(rows) == TRACE.length
    for t, row in enumerate(rows):
        alternatives = asyncio.run(counter.alternatives(TRACE, t, 3))
        assert list(row) == list(alternatives)
        assert np.allclose([*row.values()], [*alternatives.values()], atol=1e-5)


@pytest.mark.slow
def test_an_endpoint_that_takes_token_ids(tmp_path: Path) -> None:
    """Over real sockets: forks, chances of tokens and the likeliest others, as the engine gives them."""
    builtin = model_folder("builtin")
    local, template = load_model(builtin)
    prompt = (*template.render("user", "Goal: take the red-key.", "")[0], *template.open("assistant"))
    sampling = Sampling(temperature=0.9, top_k=10, max_tokens=6, stop_tokens=template.stop_tokens)

    def ends_well(text: str, trace: TokenTrace) -> bool:
        return len(text) % 2 == 0

    with serving(ModelServer(tokens=load_model(builtin)[0]).app) as url:
        remote = HttpModel(url, NAME, "completions", tokenizer=builtin)
        both = [ReplyForks(m, local.tokenizer, ends_well, sampling, eos=template.stop_tokens) for m in (local, remote)]
        (trace,) = asyncio.run(both[0].sample([TokenProblem("p", prompt)]))
        near, far = (asyncio.run(forks.chances(trace)) for forks in both)
        assert near.pi is not None
        assert far.pi is not None
        assert near.greedy is not None
        assert far.greedy is not None
        assert np.allclose(near.pi, far.pi, atol=1e-4)
        assert near.greedy.tolist() == far.greedy.tolist()
        assert (near.entropy_of, far.entropy_of) == (0, 20)
        assert near.entropy is not None
        assert far.entropy is not None
        assert (far.entropy <= near.entropy + 1e-4).all()
        one, other = (asyncio.run(forks.alternatives(trace, 0, 4)) for forks in both)
        assert list(one) == list(other)
        counts = asyncio.run(both[1].count(trace, 0, 12, "scan"))
        assert counts.forks == 12
        assert counts.n > 0
        assert both[1].spent().shared is False


class NamingServer:
    """A completions endpoint without log-probs of given tokens: it names the likeliest tokens beside one that it samples."""

    def __init__(self, engine: LocalModel) -> None:
        self.engine, self.asked = engine, 0
        self.identity, self.eos = engine.identity, engine.eos
        self.capabilities = frozenset(("tokens", "continue", "logprobs", "seeds"))

    async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Completion]:
        made = await self.engine.sample(prefix, n, settings, keys)
        return made if settings.plain() else [replace(one, logprobs=None) for one in made]

    async def logprobs(self, tokens: Sequence[np.ndarray], top_k: int = 0) -> list[Any]:
        raise NeedsError("it does not give log-probs of given tokens")

    async def next_tokens(self, given: Sequence[int], top: int) -> dict[int, float]:
        self.asked += 1
        (scores,) = await self.engine.logprobs([np.array([*given, 0], np.int32)], top_k=min(top, 5))
        assert scores.top_tokens is not None
        assert scores.top_logprobs is not None
        return dict(zip(scores.top_tokens[-1].tolist(), np.exp(scores.top_logprobs[-1]).tolist(), strict=True))


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.5, "top_k": 3}, {"top_p": 0.7}, {"temperature": 0.0}])
def test_a_server_that_names_the_likeliest_tokens_gives_the_same_chances(settings: dict[str, Any]) -> None:
    chosen, engine = Sampling(max_tokens=LENGTH, **settings), model()
    server = NamingServer(engine)
    trace = replace(TRACE, sampler=chosen)
    ours, theirs = (asyncio.run(forks(one, sampling=chosen).chances(trace)) for one in (server, engine))
    for name in ("pi", "q", "entropy", "greedy"):
        assert np.allclose(getattr(ours, name), getattr(theirs, name), atol=1e-5), name
    assert server.asked == trace.length
    assert (ours.entropy_of, theirs.entropy_of, ours.least) == (5, 0, None)


def test_below_temperature_one_the_screen_goes_by_what_a_probability_is_at_least() -> None:
    chosen, engine = Sampling(temperature=0.7, max_tokens=LENGTH), model()
    trace = replace(TRACE, sampler=chosen)
    ours, theirs = (asyncio.run(forks(one, sampling=chosen).chances(trace)) for one in (NamingServer(engine), engine))
    assert ours.pi is None
    assert ours.least is not None
    assert theirs.pi is not None
    assert (ours.least <= theirs.pi + 1e-9).all()
    found = asyncio.run(scan([trace], forks(NamingServer(engine), sampling=chosen), ScanConfig(n=8, first=4, confirm=0)))
    assert [one.trace.id for one in found.scanned] == ["a"]
    hot = replace(trace, sampler=Sampling(temperature=1.5, max_tokens=LENGTH))
    with pytest.raises(NeedsError, match="say nothing of these sampling settings; scan with --screen none"):
        asyncio.run(scan([hot], forks(NamingServer(engine), sampling=hot.sampler), ScanConfig(n=8)))
    recorded = replace(trace, logprobs=(-0.1,) * trace.length)
    server = NamingServer(engine)
    assert np.allclose(asyncio.run(forks(server, sampling=chosen).chances(recorded)).pi, np.exp(-0.1))  # type: ignore[arg-type]
    assert server.asked == 0, "what was recorded is not asked again"


@given(
    logits=st.lists(st.floats(-8, 8), min_size=2, max_size=8),
    temperature=st.floats(0.05, 1),
    top_p=st.floats(0.05, 1),
    top_k=st.integers(0, 8),
)
def test_no_probability_is_below_what_it_is_at_least(logits: list[float], temperature: float, top_p: float, top_k: int) -> None:
    values = np.array(logits)
    q = np.exp(values - values.max())
    q /= q.sum()
    order = np.argsort(-q, kind="stable")
    kept = q[order] ** (1 / temperature)
    kept[top_k or len(kept) :] = 0
    kept /= kept.sum()
    kept[kept.cumsum() - kept >= top_p] = 0
    pi = np.zeros(len(q))
    pi[order] = kept / kept.sum()
    least = at_least(q, Sampling(temperature=temperature, top_p=top_p, top_k=top_k))
    assert least is not None
    assert (least <= pi + 1e-12).all()
    for settings in (Sampling(temperature=1.1), Sampling(ban=(0,)), Sampling(min_p=0.1)):
        assert at_least(q, settings) is None
