"""The command itself: help, version, exit codes, and one sentence for a user's mistake."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ramify
from ramify.base.errors import BudgetSpentError, NeedsError
from ramify.cli import main as cli

RAMIFY = [sys.executable, "-m", "ramify.cli.main"]


def run(capsys: pytest.CaptureFixture, *args: str) -> tuple[int, str, str]:
    code = cli.main(args)
    out, err = capsys.readouterr()
    return code, out, err


def test_help_lists_every_verb_and_method_without_importing_them() -> None:
    code = (
        "import sys; from ramify.cli.main import main; main(['--help']);"
        "print(sorted(n for n in sys.modules if n.startswith(('ramify.methods.', 'ramify.jobs.')) or n in ('torch', 'numpy')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    for word in (*cli.VERBS, "graph-credit"):
        assert f" {word} " in done.stdout


def test_no_arguments_show_the_help(capsys: pytest.CaptureFixture) -> None:
    assert run(capsys)[1] == run(capsys, "--help")[1] == run(capsys, "-h")[1]


def test_version(capsys: pytest.CaptureFixture) -> None:
    assert run(capsys, "--version")[:2] == (0, f"ramify {ramify.__version__}\n")


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_has_help_and_json(capsys: pytest.CaptureFixture, verb: str) -> None:
    code, out, err = run(capsys, verb, "--help")
    assert (code, err) == (0, "")
    assert "--json" in out


def test_help_lists_the_settings_of_a_verb_and_of_a_method(capsys: pytest.CaptureFixture) -> None:
    for words, flag in ((("rollout",), "--model text"), (("graph-credit", "build"), "--anchor text\n        Field of a step")):
        assert flag in run(capsys, *words, "--help")[1].partition("Settings (--NAME VALUE):\n")[2]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["imporve"], "unknown verb or method 'imporve' (did you mean 'improve'?)"),
        (["graph-credits", "why"], "unknown verb or method 'graph-credits' (did you mean 'graph-credit'?)"),
        (["graph-credit", "nosuchverb"], "No such command 'nosuchverb'."),
        (["--jsn"], "No such option: --jsn"),
        (["list", "--jsn"], "No such option: --jsn"),
        (["list", "a", "b"], "Got unexpected extra argument"),
        (["show"], "Missing argument 'RUN'."),
        (["list", "houshold"], "nothing is called 'houshold' (did you mean 'household'?)"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(capsys: pytest.CaptureFixture, args: list[str], sentence: str) -> None:
    code, out, err = run(capsys, *args)
    assert (code, out) == (2, "")
    assert err.startswith("ramify: " + sentence)
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["improve", "--out", ""],
        ["rollout", "--out="],
        ["new", "env", "mine", "--out", ""],
        ["cliffs", "scan", "--out", ""],
        ["import", "x.jsonl", "--run", ""],
        ["serve", "--record", ""],
    ],
)
def test_an_empty_name_of_what_is_written_is_a_sentence(
    capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    flag = next(word.rstrip("=") for word in words if word.startswith("--"))
    assert run(capsys, *words) == (2, "", f"ramify: {flag} takes a name, and the one given is empty\n")
    assert list(tmp_path.iterdir()) == []


def raising(error: BaseException) -> type:
    class Raises:
        @staticmethod
        def main(**_: object) -> None:
            raise error

    return Raises


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (BudgetSpentError("the budget of tokens is spent"), 3, "the budget of tokens is spent"),
        (NeedsError("graph-credit needs a model with taps"), 4, "graph-credit needs a model with taps"),
        (FileNotFoundError(2, "No such file or directory", "x.json"), 2, "x.json: No such file or directory"),
        (OSError(28, "No space left on device", "run.sqlite"), 1, "run.sqlite: No space left on device"),
    ],
)
def test_exit_codes(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, sentence: str
) -> None:
    monkeypatch.setattr(cli.typer.main, "get_group", lambda _: raising(error))
    assert run(capsys, "list") == (code, "", f"ramify: {sentence}\n")


def test_a_bug_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.typer.main, "get_group", lambda _: raising(ZeroDivisionError("ours")))
    with pytest.raises(ZeroDivisionError):
        cli.main(["list"])


def test_a_reader_that_leaves_is_met_with_silence() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*RAMIFY, "list"], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_escape_sequences_of_an_argument_do_not_reach_the_terminal(capsys: pytest.CaptureFixture) -> None:
    code, _, err = run(capsys, "list", "\x1b]0;owned\x07x\x1b[31m")
    assert code == 2
    assert "\x1b" not in err
    assert "\x07" not in err


def test_an_unwritable_place_is_a_sentence(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    code, _, err = run(capsys, "repro", "improve", "--out", str(tmp_path / "no" / "x.json"))
    assert code == 2
    assert "there is no folder" in err


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "ramify", "--version"], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("ramify ")
