"""Whole samples of the running engine, with drafts, against the target's distribution."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from engine.helpers import WORDS, sample, speller, tiny, tokens
from engine.speculating import Shadow, prompts, sample_all
from engine.toy_pairs import Biased, Linear
from torch import Tensor

from ramify.engine import verify as engine_verify
from ramify.engine.local import LocalModel
from ramify.engine.sampling import distributions
from ramify.engine.schedules import schedule_of
from ramify.engine.speculate import Speculator
from ramify.engine.tiny import TinyLM
from ramify.methods.dspark import lossless
from ramify.methods.dspark.drafter_files import for_target
from ramify.methods.dspark.lossless import control, distance, output_distribution, verify
from ramify.model.grammar import one_of, regex
from ramify.model.protocol import Sampling
from ramify.stats.tests import chi_square

SCHEDULES = ("fixed:3", "threshold:0.65", "greedy", "stale2")


def small() -> TinyLM:
    return tiny(vocab=5, layers=2)


def speculating(target: TinyLM, name: str, distribution: str = "rejection", max_sequences: int = 64) -> LocalModel:
    drafter = Shadow(target, block=3, blur=1.0)
    schedule = Biased(Linear(30, 1), 3, np.full(3, 0.6)) if name == "biased" else schedule_of(name, 3, Linear(30, 1))
    model = LocalModel(target, eos=(), max_sequences=max_sequences)
    return model.speculating(Speculator(drafter, schedule, model.forward.layers, distribution))


def outputs(name: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Counts of three-token outputs (the first is sampled without a draft), and their distribution."""
    target, prompt, settings = small(), tokens(6, vocab=5), Sampling(max_tokens=5)
    where, distribution = output_distribution(LocalModel(target, eos=()), prompt, settings, 3)
    made = sample(speculating(target, name), prompt, range(count), max_tokens=5)
    found = np.bincount([where[tuple(d.tokens[:3].tolist())] for d in made], minlength=len(distribution))
    return found, distribution


def test_outputs_follow_the_targets_distribution():
    found, distribution = outputs("stale2", 1000)
    assert len(distribution) == 125
    assert chi_square(found, distribution)[1] > 0.001


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SCHEDULES)
def test_many_outputs_follow_the_targets_distribution(name: str):
    found, distribution = outputs(name, 40_000)
    assert chi_square(found, distribution)[1] > 0.001


@pytest.mark.parametrize("schedule", ["greedy", "stale2"])
@pytest.mark.parametrize("at_once", [1, 32])
def test_the_same_tree_with_and_without_speculation(schedule: str, at_once: int):
    """Coupled samples of forks of forks: every node of the tree has the same tokens and log-probabilities, so the same hash."""
    target = small()

    def tree(model: LocalModel) -> list[bytes]:
        roots = sample_all(model, prompts_of(8), at_once, n=2, max_tokens=6)
        starts = [
            np.concatenate((p, d.tokens))
            for p, pair in zip(prompts_of(8), zip(roots[::2], roots[1::2], strict=True), strict=True)
            for d in pair
        ]
        leaves = sample_all(model, starts, at_once, n=2, max_tokens=6)
        return [d.tokens.tobytes() + d.logprobs.tobytes() for d in (*roots, *leaves)]

    assert tree(speculating(target, schedule, "coupled", max_sequences=at_once)) == tree(
        LocalModel(target, eos=(), max_sequences=at_once)
    )


def prompts_of(count: int) -> list[np.ndarray]:
    return [prompt % 5 for prompt in prompts(count)]


def two_distributions() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(6, 9), torch.softmax(torch.randn(6, 9), -1)


def test_the_engines_verification_has_the_targets_distribution():
    logits, q = two_distributions()
    cut = Sampling(top_k=4, temperature=0.8)
    drafted = distributions(q.log(), [cut] * 6, [False] * 6)[1].exp()
    assert distance(logits, drafted, [cut] * 6).max() < 1e-12
    assert distance(logits[:, :7], q[:, :7], [Sampling()] * 6).max() < 1e-12


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        ("residual", lambda p, q: p),
        ("accepted", lambda p, q, u: u < p),
        ("accepted", lambda p, q, u: u * q < p * 1.000001),
    ],
)
def test_a_wrong_verification_is_seen(monkeypatch: pytest.MonkeyPatch, part: str, wrong: Callable[..., object]):
    logits, q = two_distributions()
    monkeypatch.setattr(engine_verify, part, wrong)
    assert distance(logits[:, :7], q[:, :7], [Sampling()] * 6).max() > 1e-8


@pytest.mark.slow
def test_a_schedule_that_anticipates_is_caught():
    biased, causal = control(1000, 0)
    assert (biased.status, causal.status) == ("pass", "pass")
    assert biased.value < 1e-3 < causal.value


class Lying(Shadow):
    """Drafts from another distribution than the one it hands to the engine: what a wrong temperature on one side amounts to."""

    def draft(self, *args: object, **kwargs: object) -> object:
        *rest, pick, depth = args

        def sharper(k: int, logits: Tensor) -> Tensor:
            pick(k, logits)
            return (logits + 0.1 * self.noise[0]).argmax(-1)

        return super().draft(*rest, sharper, depth)


@pytest.mark.slow
def test_the_checks_of_a_pair_find_a_drafter_that_lies(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lossless, "MEASURED", 8)
    target = small()
    model, given = LocalModel(target, eos=()), prompts_of(2)
    checks = verify(model, Shadow(target, block=2, blur=1.0), given, samples=250, loads=(2,))
    assert [c.status for c in checks] == [*["pass"] * 25, "reported", *["pass"] * 3], checks
    checks = verify(model, Lying(target, block=2, blur=1.0), given, samples=250, loads=(2,), schedules=("fixed:2", "stale2"))
    failed = [c.name for c in checks if c.status == "miss"]
    assert any("outputs, chi-square" in name for name in failed)
    assert sum("p of drafts" in name for name in failed) == 2
    assert not any("coupled" in name or "greedy tokens" in name for name in failed)


@pytest.mark.slow
def test_a_verifier_that_is_handed_small_uniforms_is_seen_by_what_it_accepts(monkeypatch: pytest.MonkeyPatch):
    """The verification itself is right, so that measuring it shows nothing: only the number of accepted drafts tells."""
    monkeypatch.setattr(lossless, "MEASURED", 8)
    honest = Speculator._keyed

    def lax(self: Speculator, sequences: object, depth: int) -> tuple[np.ndarray, np.ndarray]:
        drafts, chances = honest(self, sequences, depth)  # type: ignore[arg-type]
        return drafts, 0.8 * chances

    target = small()
    model, given = LocalModel(target, eos=()), prompts_of(2)

    def checks() -> dict[str, str]:
        made = verify(model, Shadow(target, block=2, blur=1.0), given, samples=800, loads=(2,), schedules=("fixed:2",))
        return {check.name.split(": ", 1)[1]: check.status for check in made}

    told = "p of accepted drafts, against their chances"
    assert checks()[told] == "pass"
    monkeypatch.setattr(Speculator, "_keyed", lax)
    found = checks()
    assert found[told] == "miss"
    assert found["distance of the distribution of a verified token"] == "pass"


def test_the_checks_of_a_pair_are_made_under_a_grammar_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lossless, "MEASURED", 8)
    model, grammar = speller(), one_of(WORDS)
    drafter = Shadow(model.module, block=2, blur=1.0)
    checks = verify(model, drafter, prompts_of(2), samples=250, loads=(2,), schedules=("fixed:2",), grammar=grammar)
    found = {check.name: check.status for check in checks}
    for what in ("coupled samples", "greedy tokens"):
        assert found[f"fixed:2: {what} that differ"] == found[f"fixed:2: {what} under the grammar that differ"] == "pass"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_checks_of_a_pair_at_their_own_size():
    target = small()
    checks = verify(LocalModel(target, eos=()), Shadow(target, block=3, blur=1.0), prompts_of(4), samples=3000)
    assert [c.status for c in checks] == [*["pass"] * 25, "reported", *["pass"] * 3], checks


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dspark", "dflash", "eagle3"])
@pytest.mark.parametrize("distribution", ["coupled", "rejection"])
def test_every_drafter_keeps_a_reply_under_a_grammar(kind: str, distribution: str):
    """Drafter and target are cut alike: greedy and coupled samples are those without drafts, others are texts of the grammar."""
    plain = speller()
    drafter = for_target(plain.module, kind, layers=1, block=3, rank=4)
    model = plain.speculating(Speculator(drafter, schedule_of("fixed:3", 3, Linear(30, 1)), plain.forward.layers, distribution))
    for settings in ({"grammar": one_of(WORDS)}, {"grammar": regex("(ab|c)+d"), "frequency_penalty": 0.5}):
        for temperature in (0.0, 1.0):
            options = {**settings, "max_tokens": 10, "temperature": temperature}
            wanted, made = (sample_all(one, prompts_of(6), 3, n=2, **options) for one in (plain, model))
            if distribution == "coupled" or not temperature:
                assert [(d.tokens.tolist(), d.stop) for d in made] == [(d.tokens.tolist(), d.stop) for d in wanted]
            for one in made:
                text = one.text.removesuffix("<end>")
                whole = text in WORDS if settings["grammar"] == one_of(WORDS) else re.fullmatch("(ab|c)+d", text)
                assert whole or one.stop == "length"
    assert model.speculation is not None
    assert model.speculation.proposed > 0


@pytest.mark.parametrize(("samples", "seen"), [(200, 0.146), (1000, 0.065), (4000, 0.033)])
def test_the_shift_that_so_many_outputs_show_is_told_and_shown(samples: int, seen: float) -> None:
    """Drawn: a share of one half that is off by as much is found in four of five, by the same test of counts."""
    shift = lossless.shift_seen(samples)
    assert shift == pytest.approx(seen, rel=0.02)
    rng = np.random.default_rng(1)
    k = rng.binomial(samples, 0.5 + shift, 400)
    found = [chi_square([one, samples - one], [0.5, 0.5])[1] < lossless.LEAST_P for one in k]
    assert 0.72 < np.mean(found) < 0.95
