"""The verbs on a small target of one's own: train, calibrate, profile, bench, verify; and what each refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ramify.cli.main import main
from ramify.methods.dspark.domains import TargetRecipe, make_target

Call = Callable[..., tuple[int, str]]

SMALL = ["--sequences", "18", "--length", "20", "--steps", "4", "--rows", "4", "--anchors", "4", "--layers", "1", "--block", "3"]


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A target that hardly learned anything, and a drafter trained on its text for a moment."""
    folder = tmp_path_factory.mktemp("dspark")
    made, words = make_target(TargetRecipe(layers=2, width=48, steps=2, rows=2, length=16), lambda line: None)
    made.save(folder / "target", words)
    target, out = f"hf:{folder / 'target'}", folder / "drafter"
    assert main(["dspark", "train", target, "--out", str(out), *SMALL, "--json"]) == 0
    return target, out


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*arguments: str) -> tuple[int, str]:
        code = main(["dspark", *arguments])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def test_training_again_goes_on_and_changes_nothing(pair: tuple[str, Path], call: Call) -> None:
    target, out = pair
    before = (out / "model.safetensors").read_bytes()
    code, text = call("train", target, "--out", str(out), *SMALL, "--json")
    assert code == 0
    assert json.loads(text)["step"] == 4
    assert (out / "model.safetensors").read_bytes() == before
    code, text = call("train", target, "--out", str(out), *SMALL, "--seed", "7")
    assert code == 2
    assert "text of another target or other prompts" in text


def test_a_dry_run_prints_the_bill_and_writes_nothing(pair: tuple[str, Path], tmp_path: Path, call: Call) -> None:
    code, text = call("train", pair[0], "--out", str(tmp_path / "none"), "--dry-run", "--json")
    assert code == 0
    assert json.loads(text)["bill"]["tokens to draw, at most"] == 1200 * 96
    assert not (tmp_path / "none").exists()


def test_calibration_is_saved_with_the_drafter(pair: tuple[str, Path], call: Call) -> None:
    target, out = pair
    code, text = call("calibrate", target, str(out), "--n", "12", "--tokens", "16", "--json")
    assert code == 0
    found = json.loads(text)
    assert len(found["temperatures"]) == 3
    assert 0 < found["after"][0]["n"] < found["rounds"]
    assert json.loads((out / "calibration.json").read_text())["temperatures"] == found["temperatures"]
    from ramify.engine.drafter_files import load_drafter
    from ramify.engine.tiny import TinyLM

    loaded = load_drafter(out, TinyLM.load(target.removeprefix("hf:")))
    assert loaded.temperatures.tolist() == pytest.approx(found["temperatures"])


def test_a_profile_is_saved_and_says_where_drafting_pays(pair: tuple[str, Path], call: Call) -> None:
    target, out = pair
    code, text = call("profile", target, str(out), "--loads", "2,1", "--repeats", "3", "--json")
    assert code == 0
    assert [row["requests"] for row in json.loads(text)["loads"]] == [1, 2]
    assert (out / "profile.json").is_file()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_bench_and_verification_run_on_the_pair(pair: tuple[str, Path], call: Call) -> None:
    target, out = pair
    code, text = call("bench", target, str(out), "--loads", "1", "--turns", "3", "--tokens", "8", "--n", "6", "--json")
    assert code == 0
    assert {row["name"] for row in json.loads(text)["domains"]} == {"plain", "drafter"}
    code, text = call("verify-lossless", target, str(out), "--n", "3", "--draws", "1000", "--json")
    assert code == 0
    assert json.loads(text)["passed"]


def test_prompts_of_a_file(pair: tuple[str, Path], tmp_path: Path, call: Call) -> None:
    target, out = pair
    lines = tmp_path / "prompts.txt"
    lines.write_text("<math> 1 2 + 3 1 =\n\n<chat> topic1\n", encoding="utf-8")
    assert call("calibrate", target, str(out), "--prompts", str(lines), "--n", "8", "--tokens", "12")[0] == 0
    ids = tmp_path / "prompts.jsonl"
    ids.write_text(json.dumps({"prompt_ids": [2, 5, 6]}) + "\n" + json.dumps({"prompt": "<code> def"}) + "\n", encoding="utf-8")
    assert call("calibrate", target, str(out), "--prompts", str(ids), "--n", "8", "--tokens", "12")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["calibrate", "{target}", "{out}", "--prompts", "nowhere.txt"], 2, "cannot read nowhere.txt"),
        (["calibrate", "{target}", "{empty}"], 2, "holds no drafter"),
        (["calibrate", "{target}", "{out}", "--n", "2", "--tokens", "2"], 2, "give longer replies"),
        (["profile", "{target}", "{out}", "--loads", "one"], 2, "no list of numbers"),
        (["profile", "{target}", "{out}", "--loads", "0"], 2, "at least one request"),
        (["train", "chat:gpt@http://localhost:1", "--out", "x"], 4, "behind an endpoint"),
        (["train", "nothing", "--out", "x"], 2, "neither 'builtin' nor 'hf:PATH'"),
        (["train", "{target}", "--out", "x", "--blok", "3"], 2, "block"),
        (["train", "{target}", "--out", "x", "--block", "0"], 2, "block"),
        (["train", "{target}", "--out", "x", "--rows", "0"], 2, "rows"),
        (["train", "{target}", "--out", "x", "--lr", "nan"], 2, "lr"),
        (["bench", "{target}", "{out}", "{out}"], 2, "same name"),
    ],
)
def test_mistakes_are_one_sentence(
    pair: tuple[str, Path], tmp_path: Path, call: Call, arguments: list[str], code: int, said: str
) -> None:
    places = {"target": pair[0], "out": str(pair[1]), "empty": str(tmp_path)}
    found, text = call(*(one.format(**places) for one in arguments))
    assert found == code
    assert said in text
    assert len(text.strip().splitlines()) == 1


def test_a_drafter_without_confidences_is_not_calibrated(pair: tuple[str, Path], tmp_path: Path, call: Call) -> None:
    from ramify.engine.drafter_files import for_target, save_drafter
    from ramify.engine.tiny import TinyLM

    made = for_target(TinyLM.load(pair[0].removeprefix("hf:")), "dflash", layers=1, block=3, mask_token=1)
    save_drafter(made, tmp_path / "flash")
    code, text = call("calibrate", pair[0], str(tmp_path / "flash"))
    assert code == 2
    assert "no confidence head" in text


def test_a_model_of_its_own_needs_prompts(tmp_path: Path, call: Call) -> None:
    from ramify.engine.tiny import TinyConfig, TinyLM

    TinyLM(TinyConfig(vocab=32, width=16, layers=2, heads=2, kv_heads=1, head_size=8, ffn=16)).save(tmp_path / "other")
    code, text = call("train", f"hf:{tmp_path / 'other'}", "--out", str(tmp_path / "d"), "--layers", "1")
    assert code == 2
    assert "--prompts FILE" in text
