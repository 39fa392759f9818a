from __future__ import annotations

import asyncio

import numpy as np
import pytest

from ramify.base.errors import UserError
from ramify.engine.local import LocalModel
from ramify.engine.profile import Profile
from ramify.engine.taps import Read, Taps
from ramify.methods.dspark.drafter_files import for_target
from ramify.model.protocol import Completion, Prefix, Sampling

from .helpers import tiny, tokens
from .speculating import Shadow, prompts, sample_all, shadowed

FLAT = Profile(4, (1, 64), (1.0, 1.0), ((0.1, 0.1), (0.1, 0.1)), ((1.0, 1.1, 1.2, 1.3, 1.4), (1.0, 1.1, 1.2, 1.3, 1.4)))
SCHEDULES = ["fixed:4", "fixed:1", "threshold:0.3", "greedy", "stale2"]


def same(
    a: list[Completion], b: list[Completion], what: tuple[str, ...] = ("tokens", "logprobs", "model_logprobs", "entropy")
) -> bool:
    """Bit for bit."""
    return len(a) == len(b) and all(
        x.stop == y.stop and all(np.array_equal(getattr(x, name), getattr(y, name)) for name in what)
        for x, y in zip(a, b, strict=True)
    )


@pytest.fixture(scope="module")
def plain() -> dict[float, list[Completion]]:
    model = LocalModel(tiny(layers=2), eos=())
    return {t: sample_all(model, prompts(6), 6, n=2, max_tokens=10, temperature=t) for t in (0.0, 1.0)}


@pytest.mark.parametrize(("schedule", "at_once"), [*((name, 8) for name in SCHEDULES), ("stale2", 1)])
def test_coupled_samples_are_those_without_speculation(plain: dict[float, list[Completion]], schedule: str, at_once: int):
    model = shadowed(schedule, profile=FLAT)
    assert same(sample_all(model, prompts(6), at_once, n=2, max_tokens=10), plain[1.0])
    stats = model.speculation
    assert stats is not None
    assert stats.accepted > 5
    assert stats.emitted == stats.accepted + stats.rounds  # no sample ended inside its drafts
    assert stats.tau > 1.2


@pytest.mark.parametrize("verify", ["coupled", "rejection"])
def test_greedy_samples_are_those_of_plain_greedy_decoding(plain: dict[float, list[Completion]], verify: str):
    model = shadowed("fixed:4", verify)
    assert same(sample_all(model, prompts(6), 6, n=2, max_tokens=10, temperature=0.0), plain[0.0])
    assert model.speculation is not None
    assert model.speculation.tau > 1.5


def test_processors_hold_under_both_distributions():
    settings = {"temperature": 0.8, "top_k": 6, "top_p": 0.9, "ban": (3, 4), "ban_first": (5,), "max_tokens": 10}
    wanted = sample_all(LocalModel(tiny(layers=2), eos=()), prompts(6), 6, **settings)
    assert same(sample_all(shadowed(), prompts(6), 6, **settings), wanted)
    for completion in sample_all(shadowed(verify="rejection"), prompts(6), 6, n=4, **settings):
        assert not {3, 4} & set(completion.tokens.tolist())
        assert completion.tokens[0] != 5
        assert np.isfinite(completion.logprobs).all()


def test_reported_scores_are_the_targets():
    model = shadowed(verify="rejection")
    completions = sample_all(model, prompts(3), 3, max_tokens=14, temperature=0.7)
    rows = [np.concatenate((p, d.tokens)) for p, d in zip(prompts(3), completions, strict=True)]
    scores = asyncio.run(model.logprobs(rows, settings=Sampling(temperature=0.7)))
    for prompt, completion, score in zip(prompts(3), completions, scores, strict=True):
        assert completion.model_logprobs == pytest.approx(score.logprobs[len(prompt) :], abs=2e-4)
        assert completion.logprobs == pytest.approx(score.sampler_logprobs[len(prompt) :], abs=2e-4)
        assert completion.entropy == pytest.approx(score.entropy[len(prompt) :], abs=2e-4)


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7])
def test_no_sample_is_longer_than_asked(max_tokens: int):
    wanted = sample_all(LocalModel(tiny(layers=2), eos=()), prompts(5), 5, max_tokens=max_tokens)
    for verify in ("coupled", "rejection"):
        completions = sample_all(shadowed(verify=verify), prompts(5), 5, max_tokens=max_tokens)
        assert {len(completion.tokens) for completion in completions} == {max_tokens}
        assert {completion.stop for completion in completions} == {"length"}
        if verify == "coupled":
            assert same(completions, wanted)


def test_drafts_end_with_the_context():
    long = [tokens(250 + i, seed=i) for i in range(4)]  # the context is 256
    wanted = sample_all(LocalModel(tiny(layers=2), eos=()), long, 4, max_tokens=50)
    assert same(sample_all(shadowed(), long, 4, max_tokens=50), wanted)
    assert [len(completion.tokens) for completion in wanted] == [6, 5, 4, 3]


def test_a_stop_inside_accepted_drafts_ends_the_sample_there():
    free = sample_all(LocalModel(tiny(layers=2), eos=()), prompts(6), 6, max_tokens=16)
    stop = tuple(sorted({int(completion.tokens[6]) for completion in free}))
    wanted = sample_all(LocalModel(tiny(layers=2), eos=()), prompts(6), 6, max_tokens=16, stop_tokens=stop)
    model = shadowed()
    assert same(sample_all(model, prompts(6), 6, max_tokens=16, stop_tokens=stop), wanted)
    stats = model.speculation
    assert stats is not None
    assert stats.accepted <= stats.proposed <= stats.drafted
    assert stats.emitted + stats.plain == sum(len(completion.tokens) for completion in wanted)
    assert stats.emitted <= stats.accepted + stats.rounds  # a stop among the drafts leaves the bonus token out
    assert all(a <= r for a, r in zip(stats.accepted_at, stats.reached_at, strict=True))


def test_rows_under_different_distributions_share_a_step():
    model, plain_model = shadowed(verify="rejection"), LocalModel(tiny(layers=2), eos=())
    given = prompts(6)

    async def both() -> list[Completion]:
        made = await asyncio.gather(
            *(model.sample(Prefix(p), 1, Sampling(max_tokens=12, seeded=i % 2 == 0), [1000 * i]) for i, p in enumerate(given))
        )
        return [completions[0] for completions in made]

    wanted = sample_all(plain_model, given, 6, max_tokens=12)
    mixed = asyncio.run(both())
    assert same(mixed[::2], wanted[::2])
    assert not same(mixed[1::2], wanted[1::2])


def test_shared_prefixes_are_absorbed_once():
    """Samples that fork from one prompt share what the drafter made of it; a second round finds its features in the store."""
    model = shadowed()
    drafter = model._speculator.drafter
    prompt = tokens(40, seed=1)
    sample_all(model, [prompt], 1, n=6, max_tokens=8)
    first = drafter.absorbed
    assert 40 <= first <= 40 + 6 * 8 + 6
    sample_all(model, [prompt], 1, n=6, max_tokens=8)
    assert drafter.absorbed - first <= 40 + 8 + 6 * 8 + 6  # the store has the features; what is made of them is made once a group


def test_rows_under_taps_are_not_drafted_for():
    model, settings = shadowed(), Sampling(max_tokens=10)
    taps = Taps(reads=(Read(1, 4),))
    (tapped,) = asyncio.run(model.sample_tapped(Prefix(tokens(9)), 1, settings, [7], taps))
    assert model.speculation is not None
    assert model.speculation.rounds == 0
    (free,) = asyncio.run(LocalModel(tiny(layers=2), eos=()).sample(Prefix(tokens(9)), 1, settings, [7]))
    assert same([tapped.completion], [free])


def test_cancelled_samples_leave_the_others_alone():
    model, given = shadowed(), prompts(6)

    async def some() -> list[Completion]:
        tasks = [
            asyncio.create_task(model.sample(Prefix(p), 1, Sampling(max_tokens=24), [1000 * i])) for i, p in enumerate(given)
        ]
        await asyncio.sleep(0.02)
        for task in tasks[::2]:
            task.cancel()
        return [
            completion
            for completions in await asyncio.gather(*tasks, return_exceptions=True)
            if isinstance(completions, list)
            for completion in completions
        ]

    wanted = sample_all(LocalModel(tiny(layers=2), eos=()), given, 6, max_tokens=24)
    kept = asyncio.run(some())
    assert same([d for d in kept if any(np.array_equal(d.tokens, w.tokens) for w in wanted)], kept)
    assert same(kept[-1:], wanted[-1:])


def test_trained_kinds_run_in_the_loop():
    """Untrained, so hardly ever right: the samples are the target's all the same."""
    target = tiny(layers=3)
    wanted = sample_all(LocalModel(target, eos=()), prompts(3), 3, max_tokens=6)
    for kind in ("dspark", "dflash", "eagle3"):
        drafter = for_target(target, kind, layers=2, block=3, rank=4, seed=1)
        model = LocalModel(target, drafter=drafter, schedule="fixed:3", eos=())
        assert same(sample_all(model, prompts(3), 3, max_tokens=6), wanted), kind
        assert model.speculation is not None
        assert model.speculation.rounds > 0


def test_wrong_distributions_and_schedules_are_refused():
    target = tiny(layers=2)
    for options in ({"verify": "hope"}, {"schedule": "greedy"}, {"schedule": "fixed:5"}):
        with pytest.raises(UserError):
            LocalModel(target, drafter=Shadow(target), **options)
