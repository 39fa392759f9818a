from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.engine.sampling import distributions, pick
from ramify.engine.verify import coupled, rejection, residual
from ramify.model.protocol import Sampling

from .toy_pairs import acceptance, left_over

PLAIN = Sampling()


def test_acceptance_and_residual_closed_forms():
    p, q = np.array([0.7, 0.3]), np.array([0.5, 0.5])
    assert (q * acceptance(p, q)).sum() == pytest.approx(0.8)
    assert np.minimum(p, q).sum() == pytest.approx(1 - 0.5 * np.abs(p - q).sum())
    assert left_over(p, q).tolist() == [1.0, 0.0]


def test_residual_without_mass_is_the_target():
    p = torch.tensor([[0.25, 0.75]], dtype=torch.float64)
    assert torch.equal(residual(p, p.clone()), p)


@given(st.integers(0, 10_000), st.integers(2, 7))
@settings(max_examples=60, deadline=None)
def test_one_step_has_the_targets_distribution(seed: int, vocab: int):
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.full(vocab, 0.3)), rng.dirichlet(np.full(vocab, 0.3))
    p[rng.integers(vocab)] = 0.0
    q[rng.integers(vocab)] = 0.0
    p, q = p / p.sum(), q / q.sum()
    stays = acceptance(p, q)
    out = q * stays + (q * (1 - stays)).sum() * left_over(p, q)
    assert np.abs(out - p).sum() / 2 < 1e-12


@pytest.mark.parametrize(("alpha", "tau"), [(0.8, 4.16114), (1.0, 8.0), (0.0, 1.0)])
def test_tau_of_constant_acceptance(alpha: float, tau: float):
    rows, gamma = 4000, 7
    logits = torch.tensor([alpha, 1 - alpha]).log().expand(rows * (gamma + 1), 2)
    q = torch.tensor([1.0, 0.0]).expand(rows, gamma, 2)
    rng = np.random.default_rng(0)
    emitted = rejection(
        logits,
        [PLAIN] * rows,
        [False] * rows,
        list(rng.random((rows, gamma + 1))),
        [[0] * gamma] * rows,
        q,
        rng.random((rows, gamma)),
    )
    lengths = np.array([len(row.tokens) for row in emitted])
    assert lengths.mean() == pytest.approx(tau, abs=5 * lengths.std() / rows**0.5 + 1e-9)


def test_bonus_comes_from_the_target_after_the_last_admitted_draft():
    """After a truncation with everything accepted the next token is the target's own sample, not a residual's."""
    logits = torch.tensor([[0.0, -50.0, -50.0], [-50.0, 0.0, 0.0]])
    q = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])  # the second draft, token 1, was cut off
    for u, token in ((0.25, 1), (0.75, 2)):
        (out,) = rejection(logits, [PLAIN], [False], [np.array([0.5, u])], [[0]], q, np.array([[0.5, 0.5]]))
        assert out.tokens == [0, token]


@pytest.mark.parametrize("at", [0, 1])
def test_a_refused_draft_is_replaced_from_the_residual(at: int):
    """Whatever uniform samples it, the token after is one of which the target has more than the drafter."""
    logits = torch.zeros(at + 2, 4)
    q = torch.tensor([0.5, 0.5, 0.0, 0.0]).expand(1, at + 1, 4)
    accept = np.full((1, at + 1), 0.1)
    accept[0, at] = 0.9
    for u, token in ((0.1, 2), (0.49, 2), (0.51, 3), (0.9, 3)):
        (out,) = rejection(logits, [PLAIN], [False], [np.full(at + 2, u)], [[0] * (at + 1)], q, accept)
        assert out.tokens == [*[0] * at, token]


def test_ragged_rows_do_not_see_each_other():
    torch.manual_seed(0)
    rng = np.random.default_rng(1)
    lengths, V = [3, 0, 1, 2], 11
    drafts = [rng.integers(0, V, n).tolist() for n in lengths]
    logits, q = torch.randn(sum(lengths) + 4, V), torch.rand(4, 3, V)
    u, accept = [rng.random(n + 1) for n in lengths], rng.random((4, 3))
    rows = [PLAIN, Sampling(temperature=0.0), Sampling(top_p=0.8, temperature=0.7), Sampling(top_k=3, ban=(2,))]
    for distribution in ("rejection", "coupled"):

        def run(which: list[int], distribution: str = distribution) -> list:
            starts = np.cumsum([0, *[n + 1 for n in lengths]])
            part = torch.cat([logits[starts[i] : starts[i + 1]] for i in which])
            given = ([rows[i] for i in which], [i == 3 for i in which], [u[i] for i in which], [drafts[i] for i in which])
            return coupled(part, *given) if distribution == "coupled" else rejection(part, *given, q[which], accept[which])

        together = run([0, 1, 2, 3])
        assert [run([i])[0] for i in range(4)] == together
        assert all(1 <= len(row.tokens) <= n + 1 for row, n in zip(together, lengths, strict=True))


def test_what_is_reported_is_the_targets():
    """Log-probabilities and entropies are those ``pick`` gives for the tokens that came out."""
    torch.manual_seed(1)
    logits, settings_of = torch.randn(4, 9), Sampling(temperature=0.8, top_p=0.9)
    q = torch.softmax(torch.randn(1, 3, 9), -1)
    (out,) = rejection(logits, [settings_of], [False], [np.full(4, 0.5)], [[1, 2, 3]], q, np.array([[0.0, 0.0, 1 - 1e-9]]))
    model, sampler = distributions(logits, [settings_of] * 4, [False] * 4)
    for k, token in enumerate(out.tokens):
        assert out.logprobs[k] == sampler[k, token].item()
        assert out.model_logprobs[k] == model[k, token].item()
    plain = pick(logits, [settings_of] * 4, [False] * 4, [0.5] * 4)
    assert out.entropy == plain.entropy[: len(out.tokens)]


def test_temperature_zero_accepts_the_most_likely_tokens_only():
    logits = torch.tensor([[0.0, 3.0, 1.0], [2.0, 0.0, 1.0], [0.0, 0.0, 5.0]])
    greedy = Sampling(temperature=0.0)
    best = [1, 0, 2]
    for draft in ([1, 0], [1, 2], [0, 0]):
        q = torch.nn.functional.one_hot(torch.tensor([draft]), 3).float()
        (by_rejection,) = rejection(logits, [greedy], [False], [np.full(3, 0.9)], [draft], q, np.full((1, 2), 0.9))
        (by_coupling,) = coupled(logits, [greedy], [False], [np.full(3, 0.9)], [draft])
        same = next((i for i, (a, b) in enumerate(zip(draft, best, strict=False)) if a != b), 2)
        assert by_rejection.tokens == by_coupling.tokens == best[: same + 1]


def test_coupled_tokens_are_those_of_plain_sampling():
    torch.manual_seed(2)
    logits, u = torch.randn(5, 13), np.linspace(0.05, 0.95, 5)
    wanted = pick(logits, [PLAIN] * 5, [False] * 5, u.tolist())
    wrong = (wanted.tokens[2] + 1) % 13
    for draft, n in ((wanted.tokens[:4], 5), ([*wanted.tokens[:2], wrong, wanted.tokens[3]], 3), ([wrong] * 4, 1)):
        (out,) = coupled(logits, [PLAIN], [False], [u], [draft])
        n = next((i for i, (a, b) in enumerate(zip(draft, wanted.tokens, strict=False)) if a != b), 4) + 1
        assert (out.tokens, out.logprobs, out.entropy) == (wanted.tokens[:n], wanted.logprobs[:n], wanted.entropy[:n])
