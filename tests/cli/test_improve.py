"""ramify improve: settings, the dry run, where a run may be made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from chat_templates import checkpoint
from test_chat_templates import ADDS

from ramify.base.config import load
from ramify.jobs.improve import ARMS, ImproveConfig, resolved
from ramify.jobs.results import UpdateReport
from ramify.trace.db import Run
from ramify.trace.sources import next_run


@pytest.mark.slow
def test_dry_run_prints_settings_and_cost_estimate_and_makes_nothing(verb: Any, here: Path) -> None:
    record = verb("improve", "--dry-run", "--json", "--tokens", "500", "--tree.rule", "flat").json
    assert record["settings"]["tokens"] == 500
    assert record["settings"]["tree"]["rule"] == "flat"
    assert record["settings"]["tree"]["unit"] == ImproveConfig().tree.unit
    assert record["cost_estimate"]
    text = verb("improve", "--dry-run").out
    assert "tree.rule" in text
    assert list(here.iterdir()) == []


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint of random weights."""
    return checkpoint(tmp_path_factory.mktemp("models") / "llama", ADDS)


def small(model: Path, env: str) -> list[str]:
    sizes = [
        "--updates", "1", "--tokens", "200", "--eval-episodes", "4", "--tasks-per-update", "2", "--train-tasks", "4",
        "--max-reply", "8", "--tree.roots", "2",
    ]  # fmt: skip
    return ["improve", "--model", f"hf:{model}", "--env", f"factory:chat_templates:{env}", *sizes]


def test_a_dry_run_says_what_came_of_its_trial(verb: Any, here: Path, agent: Path) -> None:
    command = [*small(agent, "LookEnvironment"), "--dry-run"]
    record = verb(*command, "--json").json
    trial = record["trial"]
    low, high = trial["interval"]
    assert low <= trial["success"] <= high
    assert (trial["n"], trial["failed"]) == (4, 0)
    assert min(trial["training_rows"], trial["checkpoint"], trial["weights"], trial["agent"]) > 0
    assert bool(record["caveats"]) == (trial["success"] in (0, 1))
    assert f"Trial: {round(4 * trial['success'])} of 4 episodes succeeded ({trial['success']:.1%}" in verb(*command).out
    assert list(here.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(("env", "words"), [("SureEnvironment", "every one of 4"), ("HopelessEnvironment", "none of 4")])
def test_a_dry_run_warns_where_there_is_nothing_to_learn_from(verb: Any, here: Path, agent: Path, env: str, words: str) -> None:
    command = [*small(agent, env), "--dry-run"]
    (warning,) = verb(*command, "--json").json["caveats"]
    assert warning.startswith(f"{words} trial episodes succeeded")
    assert verb(*command).err == f"warning: {warning}\n"


def test_a_dry_run_fails_where_the_run_would(verb: Any, here: Path, agent: Path) -> None:
    for out in ("/proc/nowhere/run", here / "file" / "run"):
        (here / "file").write_text("")
        code, printed, err = verb(*small(agent, "LookEnvironment"), "--dry-run", "--out", out)
        assert (code in (1, 2), printed) == (True, "")
        assert err.startswith(f"ramify: cannot make a run in {out}: ")
        assert err.count("\n") == 1


@pytest.mark.slow
def test_a_dry_run_and_the_run_agree_about_a_tied_checkpoint(verb: Any, here: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = checkpoint(here / "gpt2", ADDS)
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    end = json.loads((folder / "config.json").read_text())["eos_token_id"]
    config = GPT2Config(vocab_size=size, n_positions=2048, n_embd=32, n_layer=1, n_head=2, eos_token_id=end, bos_token_id=end)
    GPT2LMHeadModel(config).save_pretrained(folder)
    tried = verb(*small(folder, "LookEnvironment"), "--dry-run", "--json")
    assert tried.code == 0, tried.err
    done = verb(*small(folder, "LookEnvironment"), "--json", "--out", "run")
    assert done.code == 0, done.err


@pytest.mark.slow
def test_splitting_works_with_any_template_and_environment(verb: Any, here: Path, agent: Path) -> None:
    """A checkpoint of transformers' with a template of its own; an environment that is not built in;
    the critic asked from the first win."""
    split = ["--sampling", "splitting", "--credit", "self-imitate", "--splitting.turns", "1", "--critic.wins", "1"]
    done = verb(*small(agent, "LookEnvironment"), *split, "--updates", "2", "--json", "--out", "run")
    assert done.code == 0, done.err
    assert done.json["updates"] == 2
    assert done.json["attempts"] > 0 <= done.json["forks"]
    with Run.open(here / "run") as run:
        assert all(update.split for update in run.memo("update", UpdateReport).values())
    assert f"{done.json['attempts']} attempt" in verb("resume", "run").out
    assert "unknown sampling 'flatt' (did you mean 'flat'?)" in verb.refused("improve", "--sampling", "flatt")


@pytest.mark.slow
def test_the_printed_settings_load_again(verb: Any, here: Path) -> None:
    record = verb("improve", "--dry-run", "--json").json
    assert record["settings"]["train"]["lr"] == ARMS["imitate"].lr  # what will be used, not the 0 that stands for it
    assert ImproveConfig.model_validate(record["settings"]) == resolved(load(ImproveConfig))


def test_help_lists_every_setting(verb: Any) -> None:
    text = verb("improve", "--help-all").out
    for name in ("--tree.rule", "--tasks-per-update", "--train.lr", "--model", "--env"):
        assert f"│ {name} " in text


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--tokenz", "5"], "unknown option --tokenz (did you mean '--tokens'?)"),
        (["--tokens", "many"], "--tokens: must be a valid integer"),
        (["--tokens", "-5"], "--tokens"),
        (["--tokens", "0"], "--tokens"),
        (["--tokens"], "--tokens needs a value"),
        (["--tree.roots", "0"], "--tree.roots: must be greater than or equal to 1"),
        (["--tree.selector.actions", "1"], "--tree.selector.actions: must be greater than or equal to 2"),
        (["--allocation.width", "0"], "--allocation.width: must be greater than or equal to 1"),
        (["--train.lr", "-1"], "--train.lr: must be greater than or equal to 0"),
        (["--train.beta1", "1"], "--train.beta1: must be less than 1"),
        (["--train.micro-tokens", "0"], "--train.micro-tokens: must be greater than or equal to 1"),
        (["--train.loss.clip-low", "5"], "--train.loss.clip-low: must be less than or equal to 1"),
        (["stray"], "unexpected argument 'stray'"),
        (["--config", "no.toml"], "cannot read the configuration no.toml"),
        (["--config", "bad.toml"], "bad.toml is not TOML"),
        (["--config", "typo.toml"], "unknown key 'tokenz' in typo.toml (did you mean 'tokens'?)"),
        (["--env", "houshold"], "unknown env 'houshold' (did you mean 'household'?)"),
        (["--model", "gpt"], "model 'gpt'"),
        (["--model", "hf:nowhere"], "nowhere"),
        (["--model", "hf:."], "."),
        (["--tasks", "nosuch.jsonl"], "nosuch.jsonl"),
        (["--tasks", "empty.jsonl"], "empty.jsonl"),
        (["--tasks", "one.jsonl"], "one.jsonl"),
        (["--tasks", "twice.jsonl"], "'a' occurs twice"),
        (["--out", "file"], "it is a file"),
    ],
)
def test_bad_input_is_a_sentence_and_makes_nothing(verb: Any, here: Path, args: list[str], words: str) -> None:
    files = {"bad.toml": "tokens = ", "typo.toml": "tokenz = 5", "empty.jsonl": "", "one.jsonl": '{"id": "a"}\n',
             "twice.jsonl": '{"id": "a"}\n{"id": "a"}\n', "file": ""}  # fmt: skip
    for name, text in files.items():
        (here / name).write_text(text)
    assert words in verb.refused("improve", *args)
    assert {path.name for path in here.iterdir()} == set(files)


@pytest.mark.slow
def test_a_folder_that_holds_a_run_is_refused(verb: Any, improved: Path) -> None:
    assert "holds a run already: continue with `ramify resume" in verb.refused("improve", "--out", improved)


def test_runs_are_numbered(here: Path) -> None:
    assert next_run("improve") == Path("runs/improve-1")
    for name in ("improve-2", "improve-10", "improve-x", "other-99"):
        (here / "runs" / name).mkdir(parents=True)
    assert next_run("improve") == Path("runs/improve-11")
