"""Precedence, and one clear sentence for every mistake in a file or a flag."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ramify.base.config import Config, check, describe, load
from ramify.base.errors import UserError
from ramify.base.secrets import redact
from tests.settings import Job, Train


class Nested(Config):
    """A job whose nested default differs from its class's."""

    job: Job = Job(env="garden", train=Train(steps=9))
    """The job."""


class Required(Config):
    """Has no default."""

    name: str
    """A name."""


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_flags_win_over_later_files_over_earlier_files_over_defaults(tmp_path: Path) -> None:
    first = write(tmp_path / "a.toml", 'env = "a"\nmode = "slow"\n[train]\nlr = 0.5\nsteps = 7\n')
    second = write(tmp_path / "b.toml", 'env = "b"\n[train]\nlr = 0.25\n')
    job = load(Job, [first, second], {"train.lr": "0.125"})
    assert (job.env, job.mode, job.train.lr, job.train.steps, job.seeds) == ("b", "slow", 0.125, 7, (0, 1))


def test_setting_one_nested_key_keeps_the_other_nested_defaults(tmp_path: Path) -> None:
    assert load(Nested) == Nested()
    nested = load(Nested, [write(tmp_path / "a.toml", "[job.train]\nlr = 0.5\n")], {"job.mode": "slow"})
    assert nested.job == Job(env="garden", mode="slow", train=Train(steps=9, lr=0.5))
    shown = {setting.name: setting.default for setting in describe(Nested)}
    assert (shown["job.env"], shown["job.train.steps"], shown["job.train.lr"]) == ("garden", "9", "0.1")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[train]\nlrr = 3\n", "unknown key 'train.lrr' in FILE (did you mean 'train.lr'?)"),
        ('[train]\nlr = "x"\n', "'train.lr' in FILE: must be a valid number, not 'x'"),
        ("train = 3\n", "'train' in FILE: must be a table, not 3"),
        ("env = 3\n", "'env' in FILE: must be text, not 3"),
        ("env = \n", "FILE is not TOML: Invalid value (at line 1, column 7)"),
        ("compare = true\ncap = 0\n", "compare needs a cap above 0"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    file = write(tmp_path / "job.toml", text)
    with pytest.raises(UserError) as caught:
        load(Job, [file])
    assert str(caught.value) == sentence.replace("FILE", str(file))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    latin = tmp_path / "latin.toml"
    latin.write_bytes("env = 'é'\n".encode("latin-1"))
    for path, reason in ((tmp_path / "no.toml", "No such file"), (tmp_path, "Is a directory"), (latin, "not UTF-8")):
        with pytest.raises(UserError, match=reason):
            load(Job, [path])
    assert load(Job, [write(tmp_path / "empty.toml", "")]) == Job()


def test_plain_data_round_trips_and_names_its_source() -> None:
    job = load(Job, [], {"train.lr": "0.3", "seeds": "5"})
    assert check(Job, job.to_json()) == job
    with pytest.raises(UserError, match=r"unknown key 'modes' in run\.sqlite \(did you mean 'mode'\?\)"):
        check(Job, {"modes": "fast"}, "run.sqlite")
    with pytest.raises(UserError, match="--name is missing: a name; set it here or in a --config file"):
        load(Required)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Train(lr="fast"), "'lr' in Train: must be a valid number, not 'fast'"),
        (lambda: Train(lr=float("nan")), "'lr' in Train: must be a finite number, not nan"),
        (lambda: Job(train={"steps": 1.5, "lr": "x"}), "'train.lr' in Job: must be a valid number, not 'x'"),
        (lambda: Job(mod="slow"), "unknown key 'mod' in Job (did you mean 'mode'?)"),
        (lambda: Job(compare=True, cap=0), "Job: compare needs a cap above 0"),
        (lambda: Required(), "the configuration Required lacks 'name'"),
    ],
)  # fmt: skip
def test_a_bad_value_in_python_is_one_sentence(make: Callable[[], Config], sentence: str) -> None:
    with pytest.raises(UserError) as found:
        make()
    assert str(found.value) == sentence
    assert isinstance(found.value, ValueError)


def test_describe_lists_nested_settings_with_help() -> None:
    settings = {setting.name: setting for setting in describe(Job)}
    assert settings["train.lr"] == ("train.lr", "number", "0.1", "Learning rate.", False)
    assert settings["env"].help == "Environment to act in."
    assert settings["mode"].type == "fast|slow"
    assert settings["seeds"].default == "0,1"
    assert describe(Required)[0][2:] == ("", "A name.", True)


def test_secrets_are_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "canary-123456")
    record = {
        "api_key": "k",
        "headers": {"Authorization": "Bearer z"},
        "url": "https://me:pw@host/v1",
        "note": "sent canary-123456 there",
        "hf_token": "t",
        "tokens": 5,
        "max_tokens": 7,
        "stop_token": "</s>",
        "list": [{"password": "p"}],
    }
    assert redact(record) == {
        "api_key": "[redacted]",
        "headers": {"Authorization": "[redacted]"},
        "url": "https://[redacted]@host/v1",
        "note": "sent [redacted] there",
        "hf_token": "[redacted]",
        "tokens": 5,
        "max_tokens": 7,
        "stop_token": "</s>",
        "list": [{"password": "[redacted]"}],
    }
