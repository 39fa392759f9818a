"""The verbs on a small target of one's own: train, calibrate, profile, bench, verify; and what each refuses."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ramify.cli.main import main
from ramify.engine.local import LocalModel
from ramify.model.protocol import Prefix, Sampling
from ramify_experiments.dspark.domains import DOMAINS, TargetRecipe, prompts

Call = Callable[..., tuple[int, str]]

SMALL = ["--sequences", "18", "--length", "20", "--steps", "4", "--rows", "4", "--anchors", "4", "--layers", "1", "--block", "3"]

#: In an environment with vLLM: greedy replies to the prompts with three drafts a pass; what was drafted and what accepted.
VLLM = """
import json, sys
from vllm import LLM, SamplingParams

target, drafter, prompts, layout = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4]
settings = {"dtype": "float32", "enforce_eager": True, "max_model_len": 256, "disable_log_stats": False}
if layout == "speculators":  # names its target itself
    llm = LLM(drafter, **settings)
else:
    llm = LLM(target, speculative_config={"method": "eagle3", "model": drafter, "num_speculative_tokens": 3}, **settings)
llm.generate([{"prompt_token_ids": one} for one in prompts], SamplingParams(temperature=0, max_tokens=40))
found = {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics()}
names = {"drafted": "vllm:spec_decode_num_draft_tokens", "accepted": "vllm:spec_decode_num_accepted_tokens"}
print(json.dumps({short: found[name] for short, name in names.items()}))
"""


def given(target: str) -> list[str]:
    """The prompts of a target that :func:`pair` made."""
    return ["--prompts", str(Path(target.removeprefix("hf:")).with_name("prompts.jsonl"))]


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A target that hardly learned anything, and a drafter trained on its text for a moment."""
    folder = tmp_path_factory.mktemp("dspark")
    made, words = TargetRecipe(layers=2, width=48, steps=2, rows=2, length=16).make()
    made.save(folder / "target", words)
    each = [prompts(domain, 18, 16, 0, "train") for domain in DOMAINS]
    starts = [list(map(int, one)) for some in zip(*each, strict=True) for one in some]
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt_ids": one}) + "\n" for one in starts))
    target, out = f"hf:{folder / 'target'}", folder / "drafter"
    assert main(["dspark", "train", target, *given(target), "--out", str(out), *SMALL, "--json"]) == 0
    return target, out


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*arguments: str) -> tuple[int, str]:
        code = main(["dspark", *arguments])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def test_training_again_continues_and_changes_nothing(pair: tuple[str, Path], call: Call) -> None:
    target, out = pair
    before = (out / "model.safetensors").read_bytes()
    code, text = call("train", target, *given(target), "--out", str(out), *SMALL, "--json")
    assert code == 0
    assert json.loads(text)["step"] == 4
    assert (out / "model.safetensors").read_bytes() == before
    code, text = call("train", target, *given(target), "--out", str(out), *SMALL, "--seed", "7")
    assert code == 2
    assert "text of another target or other prompts" in text


def test_what_lies_beside_the_drafter_is_the_drafter_alone(pair: tuple[str, Path], call: Call) -> None:
    """Servers load every ``*.safetensors`` of a folder."""
    target, out = pair
    assert [file.name for file in out.glob("*.safetensors")] == ["model.safetensors"]
    drafter = (out / "model.safetensors").read_bytes()
    (out / "model.safetensors").unlink()  # a training that stopped just before its end
    (out / "config.json").unlink()
    code, text = call("calibrate", target, *given(target), str(out), "--n", "12")
    assert (code, "its training has not ended" in text) == (2, True)
    code, text = call("train", target, *given(target), "--out", str(out), *SMALL, "--json")
    assert code == 0, text
    assert (out / "model.safetensors").read_bytes() == drafter, "it continued from what was there"
    assert [file.name for file in out.glob("*.safetensors")] == ["model.safetensors"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "served"), [(["--kind", "eagle3"], True), (["--kind", "dflash"], False), (["--head", "gated"], False), ([], True)]
)
def test_a_drafter_that_no_server_loads_is_said_to_be_one(
    options: list[str], served: bool, pair: tuple[str, Path], tmp_path: Path, call: Call
) -> None:
    code, text = call("train", pair[0], *given(pair[0]), "--out", str(tmp_path / "drafter"), *SMALL, "--steps", "1", *options)
    assert code == 0, text
    assert ("warning: neither vLLM nor SGLang loads a drafter of kind" in text) != served


@pytest.mark.skipif(
    not os.environ.get("RAMIFY_TEST_VLLM_PYTHON"),
    reason="RAMIFY_TEST_VLLM_PYTHON names no Python with vLLM: NO DRAFTER IS LOADED BY A SERVER",
)
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("layout", ["deepspec", "speculators"])
def test_vllm_loads_the_folder_as_it_is_and_accepts_as_many_drafts(tmp_path: Path, layout: str) -> None:
    """``RAMIFY_TEST_VLLM_PYTHON=/path/to/python`` of an environment with vLLM (its CPU build will do)."""
    made, words = TargetRecipe(layers=3, steps=150).make()
    target, out = tmp_path / "target", tmp_path / "drafter"
    made.save(target, words)
    starts = [list(map(int, one)) for domain in DOMAINS for one in prompts(domain, 40, 8, 0, "train")]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt_ids": one}) + "\n" for one in starts))
    options = ["--kind", "eagle3", "--sequences", "120", "--length", "48", "--steps", "150", "--rows", "8"]
    options += ["--layout", layout, "--block", "3"] if layout == "speculators" else []  # the block is what it proposes by itself
    assert (
        main(["dspark", "train", f"hf:{target}", "--prompts", str(tmp_path / "prompts.jsonl"), "--out", str(out), *options]) == 0
    )
    asked = [list(map(int, one)) for domain in DOMAINS for one in prompts(domain, 8, 24, 0, "test")]
    model = LocalModel.load(target, drafter=out, schedule="fixed:3", verify="rejection")

    async def ours() -> None:
        greedy = Sampling(temperature=0, max_tokens=40)
        await asyncio.gather(*(model.sample(Prefix(np.array(one, np.int32)), 1, greedy, [0]) for one in asked))

    asyncio.run(ours())
    env = os.environ | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    command = [os.environ["RAMIFY_TEST_VLLM_PYTHON"], "-c", VLLM, str(target), str(out), json.dumps(asked), layout]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1000, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    theirs = json.loads(done.stdout.splitlines()[-1])
    assert model.speculation is not None
    rate = model.speculation.accepted / model.speculation.proposed
    assert rate > 0.2, "the drafter has learned something"
    assert theirs["accepted"] / theirs["drafted"] == pytest.approx(rate, abs=0.1)


def test_a_dry_run_prints_the_bill_and_writes_nothing(pair: tuple[str, Path], tmp_path: Path, call: Call) -> None:
    code, text = call("train", pair[0], *given(pair[0]), "--out", str(tmp_path / "none"), "--dry-run", "--json")
    assert code == 0
    assert json.loads(text)["cost_estimate"]["tokens to sample, at most"] == 1200 * 96
    assert not (tmp_path / "none").exists()


def test_a_dry_run_of_a_bench_loads_nothing_and_reckons_with_the_profile(tmp_path: Path, call: Call) -> None:
    from ramify.engine.profile import Profile

    words = ("bench", "hf:nowhere", str(tmp_path), "--loads", "1,2", "--turns", "1", "--tokens", "10", "--dry-run", "--json")
    code, text = call(*words)
    found = json.loads(text)["cost_estimate"]
    assert (code, found["tokens to sample"]) == (0, 10 * found["replies"])
    assert "ramify dspark profile" in found["seconds"]
    Profile(1, (1, 2), (1.0, 2.0), ((0.1, 0.1), (0.1, 0.1)), ((1.0, 1.1), (2.0, 2.1))).save(tmp_path)
    found = json.loads(call(*words)[1])["cost_estimate"]
    assert found["seconds, about"] == found["tokens to sample"]  # a second a token at either load


def test_calibration_is_saved_with_the_drafter(pair: tuple[str, Path], call: Call) -> None:
    target, out = pair
    code, text = call("calibrate", target, *given(target), str(out), "--n", "12", "--tokens", "16", "--json")
    assert code == 0
    found = json.loads(text)
    assert len(found["temperatures"]) == 3
    assert 0 < found["after"][0]["n"] < found["rounds"]
    assert json.loads((out / "calibration.json").read_text())["temperatures"] == found["temperatures"]
    from ramify.engine.tiny import TinyLM
    from ramify.methods.dspark.drafter_files import load_drafter

    loaded = load_drafter(out, TinyLM.load(target.removeprefix("hf:")))
    assert loaded.temperatures.tolist() == pytest.approx(found["temperatures"])


def test_a_profile_is_saved_and_says_where_drafting_pays(pair: tuple[str, Path], call: Call) -> None:
    target, out = pair
    code, text = call("profile", target, *given(target), str(out), "--loads", "2,1", "--repeats", "3", "--json")
    assert code == 0
    assert [row["requests"] for row in json.loads(text)["loads"]] == [1, 2]
    assert (out / "profile.json").is_file()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_bench_and_verification_run_on_the_pair(pair: tuple[str, Path], call: Call) -> None:
    target, out = pair
    code, text = call(
        "bench", target, *given(target), str(out), "--loads", "1", "--turns", "3", "--tokens", "8", "--n", "6", "--json"
    )
    assert code == 0
    assert {row["name"] for row in json.loads(text.splitlines()[0])["domains"]} == {"plain", "drafter"}
    code, text = call(
        "verify-lossless", target, *given(target), str(out), "--n", "3", "--samples", "1000", "--schedule", "fixed:2", "--json"
    )
    assert code == 0
    found = json.loads(text.splitlines()[0])  # its caveats follow, as warnings
    assert found["passed"]
    names = [check["name"].split(": ")[0] for check in found["checks"]]
    assert set(names[:5]) == {"fixed:2"}
    assert names[5:7] == ["all schedules"] * 2


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
        (["profile", "{target}", "{out}", "--loads", "one"], 2, "not a list of numbers"),
        (["verify-lossless", "{target}", "{out}", "--schedule", "gredy"], 2, "unknown schedule 'gredy' (did you mean 'greedy'?)"),
        (["verify-lossless", "{target}", "{out}", "--schema", "nowhere.json"], 2, "cannot read the JSON schema nowhere.json"),
        (["profile", "{target}", "{out}", "--loads", "0"], 2, "at least one request"),
        (["train", "chat:gpt@http://localhost:1", "--out", "x"], 4, "at an endpoint"),
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
    own = given(pair[0]) if "{target}" in arguments and "--prompts" not in arguments else []
    found, text = call(*(one.format(**places) for one in arguments), *own)
    assert found == code
    assert said in text
    assert len(text.strip().splitlines()) == 1


def test_a_drafter_without_confidences_is_not_calibrated(pair: tuple[str, Path], tmp_path: Path, call: Call) -> None:
    from ramify.engine.tiny import TinyLM
    from ramify.methods.dspark.drafter_files import for_target, save_drafter

    made = for_target(TinyLM.load(pair[0].removeprefix("hf:")), "dflash", layers=1, block=3, mask_token=1)
    save_drafter(made, tmp_path / "flash")
    code, text = call("calibrate", pair[0], *given(pair[0]), str(tmp_path / "flash"))
    assert code == 2
    assert "no confidence head" in text


def test_a_model_of_its_own_needs_prompts(tmp_path: Path, call: Call) -> None:
    from ramify.engine.tiny import TinyConfig, TinyLM

    TinyLM(TinyConfig(vocab=32, width=16, layers=2, heads=2, kv_heads=1, head_size=8, ffn=16)).save(tmp_path / "other")
    code, text = call("train", f"hf:{tmp_path / 'other'}", "--out", str(tmp_path / "d"), "--layers", "1")
    assert code == 2
    assert "--prompts FILE" in text
