"""Dictionaries: the partition is exact, units belong to the dictionary,
and closed forms of section 8 of the specification hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base.errors import UserError
from ramify.methods.crosscoder.dictionary import (
    Dictionary,
    DictionaryConfig,
    FitConfig,
    encode_rows,
    fit,
    latent_scaling,
    moments,
    quality,
)
from ramify.methods.crosscoder.record import CapturedFrom, DictionaryAbout

SHAPE: dict[str, Any] = {"width": 8, "features": 20, "k": 4, "exclusive": 0.2}


def make(seed: int = 0, **changes: Any) -> Dictionary:
    """A dictionary with weights, biases and a normaliser that are nothing special."""
    made = Dictionary(DictionaryConfig(**{**SHAPE, **changes}), seed)
    completions = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=completions))
        made.mean.copy_(torch.randn(made.mean.shape, generator=completions))
        made.scale.copy_(torch.rand(made.scale.shape, generator=completions) + 0.5)
        made.enforce()
    return made


def states(n: int = 64, seed: int = 0, models: int = 2, width: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, models, width)).astype(np.float32)


def blank(d: Dictionary) -> bool:
    a, b = d.partition("a"), d.partition("b")
    return all(not w[a, 1].any() and not w[b, 0].any() for w in (d.encoder.detach(), d.decoder.detach()))


def test_forbidden_weights_are_zero_always(tmp_path: Path) -> None:
    d = Dictionary(DictionaryConfig(**SHAPE))
    assert blank(d)
    for steps in (1, 2, 5):
        for options in ({}, {"l1_exclusive": 0.1, "l1_exclusive_covers_shared": True}, {"l1_reduction": "norm", "auxk": 0.1}):
            fit(d, states(), FitConfig(steps=steps, batch=16, lr=0.1, dead_after=1, **options))
            assert blank(d)
    d.save(tmp_path, CapturedFrom(layer=3))
    loaded, about = Dictionary.load(tmp_path)
    assert blank(loaded)
    assert about == DictionaryAbout(layer=3)
    assert blank(loaded.half())
    loaded.save(tmp_path / "half")
    assert blank(Dictionary.load(tmp_path / "half")[0])


@given(st.floats(-1000, 1000), st.integers(0, 5))
@settings(max_examples=20, deadline=None)
def test_codes_of_one_model_do_not_reach_the_other_by_a_bit(alpha: float, seed: int) -> None:
    d, x = make(seed), torch.from_numpy(states(seed=seed))
    codes = d.encode(x)
    before = d.decode(codes)
    for partition, other in (("a", 1), ("b", 0)):
        scaled = codes.clone()
        scaled[:, d.partition(partition)] *= alpha
        assert torch.equal(d.decode(scaled)[:, other], before[:, other])


def test_a_code_needs_both_models() -> None:
    d, x = make(), torch.from_numpy(states())
    other = x.clone()
    other[:, 1] += 1
    assert not torch.equal(d.encode(x), d.encode(other))


@given(st.integers(1, 20), st.integers(0, 5))
@settings(max_examples=20, deadline=None)
def test_at_most_k_fire_and_fewer_only_for_want_of_positive_ones(k: int, seed: int) -> None:
    d, x = make(seed, k=k, topk="row"), torch.from_numpy(states(seed=seed))
    active = (d.encode(x) > 0).sum(dim=1)
    positive = (d._before_top(d.normalised(x)) > 0).sum(dim=1)
    assert torch.equal(active, positive.clamp(max=k))


def test_k_of_all_features_is_a_plain_relu() -> None:
    d, x = make(k=20, topk="row"), torch.from_numpy(states())
    assert torch.equal(d.encode(x), d._before_top(d.normalised(x)))


def test_no_exclusive_share_is_the_plain_crosscoder() -> None:
    plain, parted = make(exclusive=0.0), make()
    plain.load_state_dict(parted.state_dict())
    x = torch.from_numpy(states())
    assert torch.equal(plain(x), parted(x))
    assert torch.equal(plain.encode(x), parted.encode(x))
    assert len(plain.partition("a")) == 0
    assert len(plain.partition("shared")) == 20


@pytest.mark.parametrize(("features", "share", "own"), [(8192, 0.10, 819), (16384, 0.03, 491), (256, 0.1, 25), (100, 0.29, 29)])
def test_sizes_of_the_partition(features: int, share: float, own: int) -> None:
    d = Dictionary(DictionaryConfig(width=1, features=features, k=1, exclusive=share))
    assert d.own == own
    assert (d.partition("b")[0], d.partition("shared")[0]) == (own, 2 * own)
    assert [d.partition_of(i) for i in (own - 1, own, 2 * own)] == ["a", "b", "shared"]


def test_training_and_use_see_the_same_units(tmp_path: Path) -> None:
    x = states(400) * np.linspace(0.2, 9, 8, dtype=np.float32) + 5
    d = Dictionary(DictionaryConfig(**{**SHAPE, "k": 12}))
    found = fit(d, x, FitConfig(steps=300, batch=64, lr=0.01, l1_shared=0.0))
    d.save(tmp_path)
    loaded, _ = Dictionary.load(tmp_path)
    again = quality(loaded, x)
    assert again.cosine == pytest.approx(found.cosine, abs=1e-6)
    assert again.fve == pytest.approx(found.fve, abs=1e-6)
    assert min(again.fve) > 0.5
    assert np.array_equal(encode_rows(loaded, x), encode_rows(d, x))
    # the mismatch of the paper's code: weights for normalised states, fed raw ones
    loaded.mean.zero_()
    loaded.scale.fill_(1)
    assert max(quality(loaded, x).fve) < min(again.fve) - 0.2


def test_one_normaliser_for_all_rows() -> None:
    x = states(50) + np.arange(8)
    mean, scale = moments(x)
    assert mean == pytest.approx(x.mean(axis=0), abs=1e-5)
    assert np.allclose(scale, scale[:, :1])
    assert scale[:, 0] ** 2 == pytest.approx(x.var(axis=0).mean(axis=1), rel=1e-4)
    assert moments(x, "channel")[1] == pytest.approx(x.std(axis=0), rel=1e-4)
    assert moments(x, "none")[1].max() == 1
    assert moments(np.zeros((3, 2, 4)))[1].min() == 1  # a constant channel is left as it is


def test_a_mean_of_l1_over_features_is_next_to_nothing() -> None:
    from ramify.methods.crosscoder.dictionary import _l1

    d = Dictionary(DictionaryConfig(width=1, features=16384, k=90))
    values, where = torch.full((360,), 2.0), (torch.arange(90) + 16384 * torch.arange(4)[:, None]).flatten()
    mean = float(_l1(d, values, where, 4, FitConfig(l1_reduction="mean")))
    assert mean == pytest.approx(1e-3 * 180 / 16384)
    assert mean == pytest.approx(1.1e-5, rel=0.01)
    assert float(_l1(d, values, where, 4, FitConfig())) == pytest.approx(1e-3 * 180)


def test_l1_terms_by_hand() -> None:
    from ramify.methods.crosscoder.dictionary import _l1

    d = Dictionary(DictionaryConfig(width=2, features=10, k=3, exclusive=0.2))  # a: 0, 1; b: 2, 3; shared: 4 to 9
    values, where = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 2, 5])

    def of(**options: Any) -> float:
        return _l1(d, values, where, 1, FitConfig(**{"l1_shared": 1.0, "l1_exclusive": 1.0, **options})).item()

    assert of() == pytest.approx(4 + 0.5 * (1 + 2))
    assert of(l1_exclusive=None) == pytest.approx(4 + 1 + 2)  # all features pay alike
    assert of(l1_exclusive_covers_shared=True) == pytest.approx(4 + 0.5 * ((1 + 4) + (2 + 4)))
    # the paper's code: means over shared, and over A-exclusive with shared and B-exclusive with shared
    assert of(l1_reduction="mean", l1_exclusive_covers_shared=True) == pytest.approx(4 / 6 + 0.5 * ((1 + 4) / 8 + (2 + 4) / 8))
    assert of(l1_reduction="mean") == pytest.approx(4 / 6 + 0.5 * (1 / 2 + 2 / 2))
    a, b, both = (d.decoder[i].norm(dim=1).sum().item() for i in (0, 2, 5))
    assert of(l1_reduction="norm") == pytest.approx(4 * both + 0.5 * (a + 2 * b), rel=1e-5)


def test_dead_features_are_counted_and_revived() -> None:
    x = states(512)
    dead, live = (Dictionary(DictionaryConfig(width=8, features=64, k=4)) for _ in range(2))
    for d in (dead, live):
        with torch.no_grad():
            d.encoder[:40] *= 0.1  # positive now and then, never among the k largest
    options = {"steps": 150, "batch": 64, "lr": 0.01, "dead_after": 256, "l1_shared": 0.0}
    before = fit(dead, x, FitConfig(**options))
    after = fit(live, x, FitConfig(**options, auxk=1 / 32))
    assert before.dead > 0.3
    assert before.never > 0.3
    assert after.dead < before.dead - 0.2


def test_the_same_seed_trains_the_same_weights() -> None:
    made = [Dictionary(DictionaryConfig(**SHAPE), seed=4) for _ in range(2)]
    for d in made:
        fit(d, states(), FitConfig(steps=20, batch=16), seed=7)
    assert torch.equal(made[0].encoder, made[1].encoder)


def test_latent_scaling_tells_own_from_shared() -> None:
    """Feature 0 is in model a alone; feature 1 is called a's own, but b has the same direction with the same activation, and
    feature 3 of its own for it."""
    rng = np.random.default_rng(0)
    own, both = (np.abs(rng.normal(size=500)).astype(np.float32) + 0.5 for _ in range(2))
    x = 0.01 * rng.normal(size=(500, 2, 4)).astype(np.float32)
    x[:, 0, 0] += own
    x[:, 0, 1] += both
    x[:, 1, 1] += both
    d = Dictionary(DictionaryConfig(width=4, features=10, k=2, exclusive=0.2, centred=False))
    with torch.no_grad():
        for weight in (d.encoder, d.decoder):
            weight.zero_()
            weight[0, 0, 0] = weight[1, 0, 1] = weight[3, 1, 1] = 1
    d.threshold.fill_(0.1)
    ratio, p = latent_scaling(d, x, [0, 1, 5])
    assert ratio == pytest.approx([0, 1, np.nan], abs=0.01, nan_ok=True)
    assert p[0] < 1e-6
    assert p[1:] == pytest.approx([1, 1])
    # of two equal models it is 1, whatever the dictionary is
    any_ = make()
    any_.mean.zero_()
    any_.scale.fill_(1)
    assert latent_scaling(any_, states()[:, [0, 0]], range(4))[0] == pytest.approx(np.ones(4))
    assert d.relative_norm()[[0, 1]].tolist() == [1, 1]


def test_rows_of_one_text_are_no_evidence_of_their_own() -> None:
    """The same rows, each 20 times: as rows of their own they refute with 20 times the evidence, as rows of one text with that of
    the text."""
    rng = np.random.default_rng(1)
    own = np.abs(rng.normal(size=12)).astype(np.float32) + 0.5
    x = 0.3 * rng.normal(size=(12, 2, 4)).astype(np.float32)
    x[:, 0, 0] += own
    x[:, 1, 0] += 0.2 * own
    d = Dictionary(DictionaryConfig(width=4, features=10, k=2, exclusive=0.2, centred=False))
    with torch.no_grad():
        for weight in (d.encoder, d.decoder):
            weight.zero_()
            weight[0, 0, 0] = 1
    d.threshold.fill_(0.1)
    often, text = np.repeat(x, 20, axis=0), np.repeat(np.arange(12), 20)
    alone, together = (latent_scaling(d, often, [0], given, share=0.5)[1][0] for given in (None, text))
    assert alone < together / 10
    assert latent_scaling(d, often, [0], text, share=0.5)[0] == pytest.approx(latent_scaling(d, x, [0])[0], rel=1e-3)


def test_a_small_difference_is_learned_where_it_has_weight() -> None:
    """What the tuned model does on its own is little of the variance, and the dictionary has half of the features it needs."""
    rng = np.random.default_rng(2)
    shared = (rng.random((2000, 40)) < 0.2) * rng.uniform(0.5, 1.5, (2000, 40)) @ rng.normal(size=(40, 32)) / 32**0.5
    own = (rng.random(2000) < 0.3)[:, None] * np.eye(32)[0]
    x = np.stack([shared + own, shared], axis=1).astype(np.float32)
    cosines = []
    for weight in (0.0, 20.0):
        d = Dictionary(DictionaryConfig(width=32, features=20, k=4, exclusive=0.1))
        fit(d, x, FitConfig(steps=300, batch=128, lr=0.01, difference=weight))
        cosines.append(float(torch.nn.functional.normalize(d.directions(0)[: d.own], dim=1)[:, 0].max()))
    assert cosines[1] > 0.9 > cosines[0]


def test_relative_norm() -> None:
    d = Dictionary(DictionaryConfig(width=2, features=3, k=1))
    with torch.no_grad():
        d.decoder.copy_(torch.tensor([[[1.0, 0], [0, 1]], [[2.0, 0], [0, 1]], [[0.0, 0], [0, 1]]]))
    assert d.relative_norm().tolist() == pytest.approx([0.5, 0.75, 0.0])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"k": 21}, "k is 21, but the dictionary has 20 features"),
        ({"exclusive": 0.04}, "of 20 features that is less than one"),
        ({"models": 1}, "need two models"),
    ],
)
def test_shapes_that_cannot_be(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Dictionary(DictionaryConfig(**{**SHAPE, **changes}))


def test_bad_states() -> None:
    x = states(10)
    x[7, 1, 2] = np.nan
    with pytest.raises(UserError, match=r"row 7 .* not a number"):
        fit(make(), x)
    with pytest.raises(UserError, match="at least one row"):
        fit(make(), states(0))
    with pytest.raises(UserError, match=r"takes rows of \(2, 8\)"):
        make().encode(torch.zeros(3, 2, 9))
    with pytest.raises(UserError, match="did you mean 'shared'"):
        make().partition("share")


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read the dictionary"):
        Dictionary.load(tmp_path)
    d = make()
    with torch.no_grad():
        d.decoder[0, 1, 0] = 1.0
    d.save(tmp_path)
    with pytest.raises(UserError, match="'decoder' lets features of one model reach the other"):
        Dictionary.load(tmp_path)
    record = json.loads((tmp_path / "dictionary.json").read_text())
    record["shape"]["features"] = 21
    (tmp_path / "dictionary.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match="does not fit the shape"):
        Dictionary.load(tmp_path)
    record["shape"]["kk"] = 1
    (tmp_path / "dictionary.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match="kk"):
        Dictionary.load(tmp_path)


def test_one_model_is_an_ordinary_autoencoder() -> None:
    d = Dictionary(DictionaryConfig(width=8, features=16, k=3, models=1))
    found = fit(d, states(200, models=1), FitConfig(steps=200, batch=64, lr=0.01, l1_shared=0.0))
    assert len(found.fve) == 1
    assert found.fve[0] > 0.4
    assert found.l0["all"] <= 3


def test_a_sum_over_active_features_is_the_product_with_all() -> None:
    from ramify.methods.crosscoder.dictionary import SPARSE, _mix

    d = Dictionary(DictionaryConfig(width=4, features=2 * SPARSE, k=2))
    seeded = torch.Generator().manual_seed(0)
    values = torch.rand(10, generator=seeded)
    where = torch.cat([row * 2 * SPARSE + torch.randperm(2 * SPARSE, generator=seeded)[:2] for row in range(5)])
    dense = torch.zeros(5 * 2 * SPARSE).scatter(0, where, values).view(5, -1)
    assert torch.allclose(_mix(d, values, where, 5), dense @ d.decoder.flatten(1) + d.decoder_bias.flatten(), atol=1e-6)


def test_a_kept_threshold_lets_k_fire_on_average(tmp_path: Path) -> None:
    """A code is a row's alone, in training's amount, after a load, and after the features' units change."""
    x = np.maximum(states(800, models=2), 0)
    d = Dictionary(DictionaryConfig(**SHAPE))
    found = fit(d, x, FitConfig(steps=100, batch=64, lr=0.01))
    assert found.l0["all"] == pytest.approx(4, abs=0.1)
    codes = encode_rows(d, x)
    counts = (codes > 0).sum(axis=1)
    assert counts.min() < 4 < counts.max()
    assert encode_rows(d, x[5:6])[0] == pytest.approx(codes[5], abs=1e-6)
    d.save(tmp_path)
    assert np.array_equal(encode_rows(Dictionary.load(tmp_path)[0], x), codes)


def test_clipping_does_not_depend_on_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient that is clipped is of the error summed over channels: of the mean over many channels it would never be."""
    made = [Dictionary(DictionaryConfig(**SHAPE)) for _ in range(2)]
    for d, norm in zip(made, (1.0, 1e9), strict=True):
        monkeypatch.setattr("ramify.methods.crosscoder.dictionary.CLIP_NORM", norm)
        fit(d, states(), FitConfig(steps=30, batch=16))
    assert not torch.allclose(made[0].decoder, made[1].decoder, atol=1e-6)
