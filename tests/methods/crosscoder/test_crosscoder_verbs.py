"""The verbs on two checkpoints of one's own, from the command line; what is refused, in one sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from printed import said
from safetensors.numpy import load_file

from ramify.cli.main import main
from ramify.engine.hidden import collect
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.methods.crosscoder.dictionary import Dictionary, encode_rows
from ramify.methods.crosscoder.run import Checkpoints, States, capture
from ramify.model.tokenizer import HfTokenizer
from ramify.rollout.token_traces import TokenTrace
from ramify.trace.db import Run

WORDS = ["red", "green", "blue", "call", "tool", "plain", "<end>"]


def make_verifier() -> Any:
    """Right where the reply begins with red or call."""
    return begins


def make_other() -> Any:
    """Right where the reply is empty: what ended it is not a part of it."""
    return lambda text, trace: not text


def begins(text: str, trace: TokenTrace) -> bool:
    return text.split()[:1] in (["red"], ["call"])


SCORE = f"factory:{__name__}:make_verifier"


def tokenizer(words: list[str]) -> HfTokenizer:
    from tokenizers import Tokenizer, models, pre_tokenizers

    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<end>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    return HfTokenizer(raw)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    shapes = {"tuned": (16, WORDS), "base": (16, WORDS), "wide": (24, WORDS), "foreign": (16, WORDS[::-1])}
    for seed, (name, (width, words)) in enumerate(shapes.items()):
        module = TinyLM(TinyConfig(7, width, 3, 2, 1, 8, 16, 32, eos=(6,)), seed=1)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)))
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
        module.save(root / name, tokenizer(words))
    rng = np.random.default_rng(0)

    def lines(first: str, n: int) -> str:
        texts = [" ".join([first, *(WORDS[i] for i in rng.integers(0, 4, rng.integers(1, 6)))]) for _ in range(n)]
        return "".join(json.dumps({"id": f"{first}{i}", "prompt": text}) + "\n" for i, text in enumerate(texts))

    (root / "tool.jsonl").write_text(lines("tool", 60))
    (root / "plain.jsonl").write_text(lines("plain", 60))
    (root / "test.jsonl").write_text(lines("tool", 12))
    return root


def run(*args: Any) -> tuple[int, list[str]]:
    return main([str(arg) for arg in args]), [str(arg) for arg in args]


def pair(folder: Path, tuned: str = "tuned", base: str = "base") -> list[Any]:
    return ["--tuned", f"hf:{folder / tuned}", "--base", f"hf:{folder / base}"]


def do_capture(folder: Path, out: Path, *more: Any) -> int:
    corpora = ["--tool", folder / "tool.jsonl", "--plain", folder / "plain.jsonl"]
    return run("crosscoder", "capture", *pair(folder), "--layer", 2, *corpora, "--raw", "--out", out, *more)[0]


def test_states_are_those_that_decide_each_token_of_the_tuned_models_replies(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert do_capture(folder, tmp_path / "states", "--reply", 3, "--plain-text", "--dtype", "float32", "--json") == 0
    found, kept = said(capsys), States.load(tmp_path / "states")
    assert found["texts"] == 120
    assert (found["tool"], found["plain"]) == (int(kept.tool.sum()), int((~kept.tool).sum()))
    assert len(kept.text) == found["rows"] > 120
    prompts = [
        json.loads(line)["prompt"] for name in ("tool", "plain") for line in (folder / f"{name}.jsonl").read_text().splitlines()
    ]
    models = Checkpoints.open(f"hf:{folder / 'tuned'}", f"hf:{folder / 'base'}", 2)
    ids = [models.tuned.tokenizer.encode(text) for text in prompts]  # type: ignore[union-attr]
    at = kept.text == 0
    assert kept.values[at][0] == pytest.approx(capture(models, [ids[0]])[0], abs=1e-5)  # what decides the first token of a reply
    assert 1 <= at.sum() <= 3
    last = kept.text == 119
    assert last.sum() == len(ids[119]) - 1  # every token of a text but the first
    assert kept.values[last][-1] == pytest.approx(capture(models, [ids[119]])[0], abs=1e-5)


def test_from_two_checkpoints_to_a_report(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    states, made, study = tmp_path / "states", tmp_path / "dictionary", tmp_path / "study"
    assert do_capture(folder, states, "--json") == 0
    assert said(capsys)["rows"] == 120
    kept = States.load(states)
    assert kept.values.shape == (120, 2, 16)
    assert kept.values.dtype == np.float16
    assert int(kept.tool.sum()) == 60
    train = ["--features", 40, "--k", 6, "--steps", 60, "--batch", 32, "--lr", 0.01]
    assert run("crosscoder", "train", states, "--out", made, *train, "--json")[0] == 0
    found = said(capsys)
    assert set(found) >= {"fve", "l0", "dead"}
    d, about = Dictionary.load(made)
    assert about.layer == 2
    assert d.own == 4
    assert run("crosscoder", "show", made, states, "--partition", "all", "--out", tmp_path / "rank.csv", "--json")[0] == 0
    ranked = said(capsys)["features"]
    assert [row["d"] for row in ranked] == sorted((row["d"] for row in ranked), reverse=True)
    assert len((tmp_path / "rank.csv").read_text().splitlines()) == len(ranked) + 1
    steer = ["steer", made, states, "--prompts", folder / "test.jsonl", "--out", study, "--raw", "--score", SCORE]
    options = ["--features", "0,9", "--gains", "1,8", "--clamps", "4", "--budgets", "1,3", "--randoms", 2, "--json"]
    assert run("crosscoder", *steer, *options)[0] == 0
    result = said(capsys)
    assert result.pop("spent")["judge"]["judged"] > 0
    assert [row["n"] for row in result["search"]] == [4] * 6
    assert result["search"][0]["lift"] == 0.0  # a gain of 1
    assert {row["n"] for row in result["confirmed"]} == {8}
    names = [row["name"] for row in result["confirmed"]]
    assert names == [result["chosen"], "random 0", "random 1", "tool - plain", "tuned - base", "reconstruction"]
    assert len(result["windows"]["scores"]["base, reconstructed"]) == 2
    lines = scores(study)
    assert run("crosscoder", *steer[:5], "--out", tmp_path / "none", *steer[7:], *options, "--dry-run")[0] == 0
    # 4 prompts choose among 6 cells, 8 confirm the best beside 5 controls; both models are scored clean and reconstructed
    wanted = {"prompts": 12, "cells": 6, "replies": 4 * 7 + 8 * 11, "tokens to sample": 3 * 116}
    assert said(capsys)["cost_estimate"].items() >= wanted.items()
    assert not (tmp_path / "none").exists()
    assert run("crosscoder", *steer, *options)[0] == 0
    assert said(capsys) == result | {"spent": {}, "caveats": []}  # nothing was judged in this call
    assert scores(study) == lines  # nothing ran again
    with Run.open(study) as kept:
        (found,) = kept.findings()
        (held,) = kept.results("crosscoder steer")
        assert "spent" not in held.result
        assert (kept.kind, found.why) == ("crosscoder steer", result["verdict"])
    assert run("crosscoder", "show", study, "--out", tmp_path / "report.md")[0] == 0
    text = (tmp_path / "report.md").read_text()
    assert result["chosen"] in text
    assert "random directions of the same length do as well" in text
    assert result["verdict"].startswith("Nothing stands out")  # two random directions refute nothing
    assert result["verdict"] in text
    assert "| base, reconstructed |" in text
    capsys.readouterr()
    assert run("crosscoder", *steer[:-1], f"factory:{__name__}:make_other", *options)[0] == 0
    assert len(scores(study)) > len(lines)  # another judge's scores are its own
    capsys.readouterr()
    assert run("crosscoder", *steer, *options, "--target", "b", "--features", "0", "--gains", "64")[0] == 0
    assert "features 0 belong to the other model alone: their effect on this one is exactly zero" in capsys.readouterr().err

    capsys.readouterr()
    sets = "--features 0,9,3 --sizes 1,2 --sets 3+9+1 --gains 0,8 --budgets 1 --randoms 2 --json".split()
    assert run("crosscoder", *steer[:5], "--out", tmp_path / "sets", *steer[7:], *sets)[0] == 0
    result = said(capsys)
    assert [(one["name"], len(one["cell"]["features"])) for one in result["sets"]] == [
        ("1 feature", 1),
        ("2 features", 2),
        ("3+9+1", 3),
    ]
    assert len(result["search"]) == 2 * (3 + 1 + 1)
    assert result["verdict"] == (
        "Nothing stands out: of 3 sets, none raises the score by more than chance and by more than random sets of its size and "
        "norms, corrected over them."
    )
    assert run("crosscoder", "show", tmp_path / "sets", "--out", tmp_path / "sets.md")[0] == 0
    shown = capsys.readouterr().out
    assert "| 3+9+1 | scale" in (tmp_path / "sets.md").read_text()
    assert re.search(r"^3\+9\+1 +scale", shown, re.MULTILINE)
    assert "random sets of the same length do as well" in shown
    assert run("crosscoder", *steer[:5], "--out", tmp_path / "no", *steer[7:], "--sizes", "50", "--top", 4)[0] == 2
    assert "are tried (--top, --features)" in capsys.readouterr().err


def scores(study: Path) -> list[Any]:
    with Run.open(study) as run:
        return run.journal("scores")


def test_a_model_against_itself_has_nothing_of_its_own(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    states, made = tmp_path / "states", tmp_path / "dictionary"
    corpora = ["--tool", folder / "tool.jsonl", "--plain", folder / "plain.jsonl"]
    assert run("crosscoder", "capture", *pair(folder, "base"), "--layer", 2, *corpora, "--raw", "--out", states)[0] == 0
    options = ["--features", 40, "--k", 6, "--exclusive", 0.3, "--steps", 60, "--batch", 32, "--lr", 0.01]
    assert run("crosscoder", "train", states, "--out", made, *options)[0] == 0
    assert "Nothing stands out: no feature is the tuned model's own" in capsys.readouterr().out
    assert run("crosscoder", "show", made, states, "--json")[0] == 0
    found = said(capsys)
    assert found["own"] == []
    assert found["verdict"].startswith("Nothing stands out")
    fire = [one for one in found["features"] if one["latent_scaling"] is not None]
    assert fire
    assert [one["latent_scaling"] for one in fire] == pytest.approx([1.0] * len(fire), abs=1e-3)


@pytest.mark.slow
def test_directions_of_one_model_are_called_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 14 directions 2 are in the tuned model alone; the control says that of the base against itself there is none."""
    rng = np.random.default_rng(0)
    directions = np.linalg.qr(rng.normal(size=(16, 16)))[0][:14]
    fires = (rng.random((2000, 14)) < 0.1) * rng.uniform(0.5, 1.5, (2000, 14))
    values = np.stack([fires @ directions, fires[:, :12] @ directions[:12]], axis=1) + 0.02 * rng.normal(size=(2000, 2, 16))
    States(values.astype(np.float32), np.arange(2000) < 1000).save(tmp_path / "states")
    options = ["--features", 32, "--k", 3, "--exclusive", 0.2, "--steps", 400, "--batch", 64, "--lr", 0.005, "--json"]
    assert run("crosscoder", "train", tmp_path / "states", "--out", tmp_path / "made", *options)[0] == 0
    found = said(capsys)
    assert found["own"]
    assert found["base_against_base"]["own"] == []
    assert found["verdict"].endswith("Of the base against itself: 0.")
    own = Dictionary.load(tmp_path / "made")[0].directions(0)[found["own"]].numpy()
    cosine = directions @ (own / np.linalg.norm(own, axis=1, keepdims=True)).T
    assert set(cosine.argmax(axis=0)) <= {12, 13}
    assert cosine.max(axis=0).min() > 0.9


def test_what_other_tools_read(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    states, made, out = tmp_path / "states", tmp_path / "dictionary", tmp_path / "out"
    assert do_capture(folder, states, "--dtype", "float32") == 0
    assert run("crosscoder", "train", states, "--out", made, "--features", 40, "--k", 6, "--steps", 20)[0] == 0
    assert run("crosscoder", "export", made, states, "--features", "0,9", "--gain", 16, "--out", out)[0] == 0
    d, x = Dictionary.load(made)[0], States.load(states)
    tensors = load_file(out / "directions.safetensors")
    codes = encode_rows(d, np.asarray(x.values))
    assert tensors["directions"].shape == (40, 16)
    wanted = 15 * codes[x.tool][:, 9].mean() * d.directions(0)[9].numpy()
    assert tensors["steering"][1] == pytest.approx(wanted, rel=1e-4, abs=1e-5)
    # the files of sae-lens: the same code and the same reconstruction from both models' raw states side by side
    w = load_file(out / "sae_weights.safetensors")
    flat = np.asarray(x.values).reshape(120, -1)
    pre = np.maximum(flat @ w["W_enc"] + w["b_enc"], 0)
    pre[pre <= w["threshold"]] = 0
    assert pre == pytest.approx(codes, abs=1e-4)
    with torch.no_grad():
        back = d(torch.from_numpy(np.array(x.values))).flatten(1).numpy()
    assert pre @ w["W_dec"] + w["b_dec"] == pytest.approx(back, abs=1e-4)
    cfg = json.loads((out / "cfg.json").read_text())
    assert (cfg["architecture"], cfg["d_in"]) == ("jumprelu", 32)


def test_padding_and_company_change_no_captured_state(folder: Path) -> None:
    models = Checkpoints.open(f"hf:{folder / 'tuned'}", f"hf:{folder / 'base'}", 2)
    rows = [[4, 0, 1], [5, 2], [4, 1, 1, 1, 3, 0]]
    together = capture(models, rows)
    for i, row in enumerate(rows):
        assert capture(models, [row])[0] == pytest.approx(together[i], abs=1e-5)
    assert capture(models, rows[::-1])[::-1] == pytest.approx(together, abs=1e-5)
    for model, side in zip(models.models, (0, 1), strict=True):
        left = collect(model, rows, [-1], [2], pad="left")[:, 0, 0]
        assert left == pytest.approx(together[:, side], abs=1e-5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--base", "wide"], "differ in width (16 and 24)"),
        (["--base", "foreign"], "tokenizer"),
        (["--layer", "4"], "layer 4 does not exist; the models' blocks are 1 to 3"),
        (["--tool", "empty.jsonl"], "holds no problem"),
        (["--tool", "long.jsonl"], "more than the model's context of 32"),
        (["--colour", "red"], "colour"),
    ],
)
def test_refused(folder: Path, tmp_path: Path, change: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "long.jsonl").write_text(json.dumps({"id": "x", "prompt": "red " * 40}) + "\n")
    name, value = change
    full = f"hf:{folder / value}" if name == "--base" else str(tmp_path / value) if name == "--tool" else value
    assert do_capture(folder, tmp_path / "states", name, full) in (2, 3)
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_refused_later(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    states = tmp_path / "states"
    assert do_capture(folder, states) == 0
    for options, words in (
        (["--features", 40, "--k", 41], "k is 41, but the dictionary has 40 features"),
        (["--features", 40, "--k", 4, "--exclusive", 0.01], "of 40 features that is less than one"),
        (["--feature", 40], "did you mean"),
    ):
        assert run("crosscoder", "train", states, "--out", tmp_path / "d", *options)[0] == 2
        assert words in capsys.readouterr().err
    assert run("crosscoder", "train", tmp_path, "--out", tmp_path / "d")[0] == 2
    assert "holds no captured states" in capsys.readouterr().err
    assert run("crosscoder", "show", tmp_path)[0] == 2
    assert "holds no study" in capsys.readouterr().err
    assert run("crosscoder", "show", tmp_path, "--top", 3)[0] == 2
    assert "takes no --top" in capsys.readouterr().err
    assert run("crosscoder", "train", states, "--out", tmp_path / "d", "--features", 20, "--k", 4, "--steps", 2)[0] == 0
    export = ["crosscoder", "export", tmp_path / "d", states, "--out", tmp_path / "e"]
    for options, words in (
        (["--features", "20"], "feature 20 does not exist"),
        (["--features", "1", "--gain", "nan"], "--gain must be a finite number"),
    ):
        assert run(*export, *options)[0] == 2
        assert words in capsys.readouterr().err
        assert not (tmp_path / "e").exists()
    rank = ["crosscoder", "show", tmp_path / "d", states, "--out"]
    assert run(*rank, tmp_path / "no" / "rank.csv")[0] == 2
    assert "there is no folder" in capsys.readouterr().err
    assert run("crosscoder", "show", tmp_path / "none", states)[0] == 2
    assert (
        capsys.readouterr().err
        == f"ramify: cannot read the dictionary {tmp_path / 'none' / 'dictionary.json'}: No such file or directory\n"
    )
    steer = ["crosscoder", "steer", tmp_path / "d", states, "--prompts", folder / "test.jsonl", "--raw", "--out", tmp_path / "s"]
    for options, words in (
        (["--features", "20"], "feature 20 does not exist"),
        (["--score", "calls"], "did you mean 'call'"),
        (["--features", "1", "--score", "call", "--budgets", "1"], "lists no tools"),
        (["--tuned", "chat:x@http://localhost:1"], "chat"),
    ):
        assert run(*steer, *options)[0] in (2, 3, 4)
        assert words in capsys.readouterr().err
