"""The command itself: help, version, exit codes, and one sentence for a user's mistake."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command import Verb

import ramify
from ramify.base import registry
from ramify.base.errors import BudgetSpentError, NeedsError
from ramify.cli import main as cli

RAMIFY = [sys.executable, "-m", "ramify.cli.main"]


def test_help_lists_every_verb_and_method_without_importing_them() -> None:
    code = (
        "import sys; from ramify.cli.main import main; main(['--help']);"
        "print(sorted(n for n in sys.modules if n.startswith(('ramify.methods.', 'ramify.jobs.')) or n in ('torch', 'numpy')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    lines = done.stdout.splitlines()[:-1]
    assert 24 <= len(lines) <= 32  # one screen
    assert max(map(len, lines)) <= 80
    body = "\n".join(lines[5:])
    for name in (*cli.VERBS, *registry.builtin_methods()):
        pattern = rf" {name} {{2,}}[a-z]" if name in cli.VERBS else rf"(?<![\w-]){name}(?=[,:\n]|$)"
        assert len(re.findall(pattern, body)) == 1, name


def test_no_arguments_show_the_help(verb: Verb) -> None:
    assert verb()[1] == verb("--help")[1] == verb("-h")[1] == cli.FRONT


def test_help_may_come_first(verb: Verb) -> None:
    assert verb("--help", "graph-credit", "why") == verb("graph-credit", "why", "--help")
    assert verb("--help", "nonsense")[0] == 2


def test_version(verb: Verb) -> None:
    assert verb("--version")[:2] == (0, f"ramify {ramify.__version__}\n")


@pytest.mark.parametrize("name", sorted({*cli.VERBS} - {"mcp"}))  # whose output is its protocol
def test_every_verb_has_help_and_json(verb: Verb, name: str) -> None:
    code, out, err = verb(name, "--help")
    assert (code, err) == (0, "")
    assert "--json" in out


def test_help_lists_the_settings_of_a_verb_and_of_a_method(verb: Verb) -> None:
    for words, flag in ((("rollout",), "--model text"), (("graph-credit", "show"), "--anchor text")):
        assert flag in verb(*words, "--help")[1].partition(" Settings ")[2]


def test_help_shows_basic_settings_and_all_of_them_when_asked(verb: Verb) -> None:
    code, basic, _ = verb("improve", "--help")
    assert (code, "--tokens int" in basic, "--train.beta1" in basic) == (0, True, False)
    assert "--help-all lists " in basic
    code, everything, _ = verb("improve", "--help-all")
    assert code == 0
    assert "--train.beta1 number" in everything.partition("Advanced settings")[2]
    assert "--train.beta1" not in verb("improve", "--help")[1]  # one call does not change the next


def test_settings_of_a_verb_are_defaults_then_files_then_options(
    verb: Verb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.toml").write_text('count = 3\ntop_k = 5\nmax_reply = 7\n[tree]\nrule = "random"\n')
    Path("b.toml").write_text("count = 4\ntop_k = 6\n")
    files = ["--config", "a.toml", "--config=b.toml"]
    # spelled as people do: an underscore, a value with "=", one of a switch, an option given twice
    words = ["--max_reply", "9", "--count=5", "--allocate", "true", "--seed", "1", "--seed", "2"]
    code, out, _ = verb("rollout", *files, *words, "--tree", "--tree-budget", "64", "--dry-run", "--json")
    config = json.loads(out)["settings"]
    assert code == 0
    assert (config["count"], config["top_k"], config["max_reply"], config["seed"]) == (5, 6, 9, 2)
    assert (config["tree"]["rule"], config["allocate"]) == ("random", True)
    assert verb("rollout", "--config", "a.toml", "--cuont", "3")[2] == (
        "ramify: unknown option --cuont (did you mean '--count'?)\n"
    )
    Path("c.toml").write_text("cuont = 3\n")
    assert "unknown key 'cuont' in c.toml (did you mean 'count'?)" in verb("rollout", "--config", "c.toml")[2]


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_names_verbs_and_settings(verb: Verb, shell: str) -> None:
    code, out, err = verb("completion", shell)
    assert (code, err) == (0, "")
    for word in ("improve", "graph-credit", "verify-lossless", "train.lr"):
        assert word in out


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["imporve"], "unknown verb or method 'imporve' (did you mean 'improve'?)"),
        (["graph-credits", "why"], "unknown verb or method 'graph-credits' (did you mean 'graph-credit'?)"),
        (["graph-credit", "nosuchverb"], "unknown verb 'nosuchverb' of graph-credit (known: advantages, mark, "),
        (["--vrsion"], "unknown option --vrsion"),
        (["list", "--jsn"], "unknown option --jsn (did you mean '--json'?)"),
        (["list", "a", "b"], "unexpected argument 'b'"),
        (["show"], "RUN is missing: folder of a run"),
        (["fork", "a", "b", "--n", "0"], "--n: must be >= 1, not 0"),
        (["fork", "a", "b", "--n", "1.5"], "--n: must be a whole number, not '1.5'"),
        (["check", "env"], "NAME is missing"),
        (["import", "a.jsonl"], "--run is missing: folder of the run to make"),
        (["fork", "a", "b", "--env", "--json"], "--env needs a value (ENV)"),
        (["completion", "tcsh"], "SHELL: must be one of bash, zsh, fish, not 'tcsh'"),
        (["list", "houshold"], "there is no component 'houshold' (did you mean 'household'?)"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(verb: Verb, args: list[str], sentence: str) -> None:
    code, out, err = verb(*args)
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
    verb: Verb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    flag = next(word.rstrip("=") for word in words if word.startswith("--"))
    assert verb(*words) == (2, "", f"ramify: {flag} takes a name, and the one given is empty\n")
    assert list(tmp_path.iterdir()) == []


def raising(error: BaseException) -> Callable[[object], int]:
    def run(_: object) -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (BudgetSpentError("the budget of tokens is spent"), 3, "the budget of tokens is spent"),
        (NeedsError("graph-credit needs a model with taps"), 4, "graph-credit needs a model with taps"),
        (FileNotFoundError(2, "No such file or directory", "x.json"), 2, "x.json: No such file or directory"),
        (OSError(28, "No space left on device", "run.sqlite"), 1, "run.sqlite: No space left on device"),
    ],
)
def test_exit_codes(verb: Verb, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, sentence: str) -> None:
    monkeypatch.setattr(cli, "run", raising(error))
    assert verb("list") == (code, "", f"ramify: {sentence}\n")


def test_a_bug_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "run", raising(ZeroDivisionError("ours")))
    with pytest.raises(ZeroDivisionError):
        cli.main(["list"])


def test_a_reader_that_leaves_is_met_with_silence() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*RAMIFY, "list"], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_escape_sequences_of_an_argument_do_not_reach_the_terminal(verb: Verb) -> None:
    code, _, err = verb("list", "\x1b]0;owned\x07x\x1b[31m")
    assert code == 2
    assert "\x1b" not in err
    assert "\x07" not in err


def test_an_unwritable_place_is_a_sentence(verb: Verb, tmp_path: Path) -> None:
    code, _, err = verb("repro", "improve", "--out", str(tmp_path / "no" / "x.json"))
    assert code == 2
    assert "there is no folder" in err


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "ramify", "--version"], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("ramify ")
