"""ramify check and ramify new: every kind, right and wrong names, and skeletons that pass untouched."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from ramify.base import registry
from ramify.base.errors import UserError
from ramify.cli.main import main
from ramify.cli.new import LONGEST, check_name, skeleton
from ramify.sandbox.process import ProcessSandbox
from ramify.testing import conformance

KINDS = list(conformance.BATTERIES)
QUICK = [("env", "chain"), ("judge", "exact"), ("searcher", "greedy"), ("loss", "reference_kl"), ("compactor", "drop-oldest"),
         ("model", "scripted"), ("model", "builtin")]  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), QUICK)
def test_built_in_parts_conform(verb, kind: str, name: str) -> None:
    done = verb("check", kind, name, "--json")
    assert done.code == 0
    assert done.json["conforms"]
    assert [check["check"] for check in done.json["checks"]] == conformance.checks(kind)
    assert len(done.json["checks"]) >= 5


BROKEN = """
from ramify.score.match import ExactMatch

class Loud(ExactMatch):
    name = "loud"
    async def judge(self, items):
        return [1.0] * len(items)

loud = Loud()
class Needy:
    def __init__(self, x): ...
class Cracked:
    def __init__(self): raise OSError("no disk")
"""


def test_a_part_of_ones_own_is_checked_by_file_and_by_module(verb, here: Path) -> None:
    (here / "mine_of_check.py").write_text(BROKEN)
    for name in ("mine_of_check.py:Loud", "mine_of_check:Loud", "mine_of_check:loud"):
        done = verb("check", "judge", name)
        assert done.code == 1
        assert "does not conform" in done.out
        assert "which is not a Judgement" in done.out
    assert "cannot be made without an argument" in verb.refused("check", "judge", "mine_of_check:Needy")
    assert "cannot be made without an argument: OSError: no disk" in verb.refused("check", "judge", "mine_of_check:Cracked")
    assert "did you mean 'Loud'?" in verb.refused("check", "judge", "mine_of_check:Lout")


def test_leaving_the_process_is_no_way_to_pass(verb, here: Path) -> None:
    (here / "leaves.py").write_text("class Leaves:\n    name = 'x'\n    def task_set(self, *args): raise SystemExit(0)\n")
    done = verb("check", "env", "leaves.py:Leaves")
    assert done.code == 1
    assert "it is no env: SystemExit: 0" in done.out
    assert "does not conform: 1 problem\n" in done.out
    assert "pass" not in done.out  # which checks were done by then is not known


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("judges", "exact"), "did you mean 'judge'?"),
        (("backend", "local"), "there are no checks for kind 'backend'"),
        (("judge", "exat"), "did you mean 'exact'?"),
        (("model", "bultin"), "did you mean 'builtin'?"),
        (("model", "hf:/no/such"), "there is no folder"),
        (("loss", "no_such_module_here:x"), "no module of that name"),
        (("env", "nowhere.py:X"), "there is no file nowhere.py"),
        (("judge", "broken_syntax:x"), "can be imported: SyntaxError"),
        (("judge", "exits:x"), "can be imported: SystemExit"),
        (("judge", "exits:"), "names no attribute"),
        (("judge", "exact:5"), "takes no argument, and was given '5'"),
        (("env", "household:x"), "takes no argument, and was given 'x'"),
        (("judge", ""), "unknown judge ''"),
    ],
)
def test_wrong_names_are_one_sentence(verb, here: Path, args: tuple[str, str], sentence: str) -> None:
    (here / "broken_syntax.py").write_text("def f(:\n")
    (here / "exits.py").write_text("import sys; sys.exit(3)\n")
    assert sentence in verb.refused("check", *args)


def test_something_that_is_not_installed_is_exit_code_4(verb, here: Path) -> None:
    (here / "needs_more.py").write_text("import no_such_package_at_all\n")
    done = verb("check", "env", "needs_more:World")
    assert (done.code, done.err) == (4, "ramify: needs_more needs 'no_such_package_at_all', which is not installed\n")


@pytest.mark.parametrize("kind", KINDS)
def test_something_of_another_kind_does_not_conform(kind: str) -> None:
    class Thing:
        name = "thing"

    assert conformance.check(kind, Thing())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_skeleton_passes_untouched_and_is_clean(verb, here: Path, kind: str) -> None:
    if kind == "sandbox" and not ProcessSandbox().isolates:
        pytest.skip("nothing isolates code here: THE SANDBOX SKELETON IS NOT TESTED")
    name = f"fresh-{kind}-of-" + "x" * (LONGEST - len(f"fresh-{kind}-of-"))
    done = verb("new", kind, name, "--json")
    assert done.code == 0, done.err
    folder = here / name
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == sorted(done.json["files"])
    module = name.replace("-", "_")
    part = module if kind in ("loss", "reader") else "".join(word.capitalize() for word in name.split("-"))
    text = (folder / "src" / f"{module}.py").read_text()
    assert "@" not in text.replace("@register", "").replace("@dataclass", "").replace("@property", "")
    for command in (
        ["check"],
        ["format", "--check"],
        ["check", "--select", "E,F,W,I,UP,B,SIM,RUF,PT,C4,PIE,RET,TID,N,D1", "--ignore", "D105,D107"],
    ):
        clean = subprocess.run([sys.executable, "-m", "ruff", *command, "."], cwd=folder, capture_output=True, text=True)
        assert clean.returncode == 0, clean.stdout + clean.stderr
    done = verb("check", kind, f"{name}/src/{module}.py:{part}", "--json")
    for known, registered in list(registry._parts):
        if registered == name:
            del registry._parts[known, registered]
    assert done.code == 0, done
    assert done.json["conforms"]


@pytest.mark.slow
def test_skeletons_are_typed_and_their_own_tests_pass(here: Path, mypy: Callable[..., list[str]]) -> None:
    for kind in KINDS:
        assert main(["new", kind, f"fresh-{kind}"]) == 0
    kinds = [kind for kind in KINDS if kind != "sandbox" or ProcessSandbox().isolates]
    sources, tests = ([f"fresh-{kind}/{part}" for kind in kinds] for part in ("src", "tests"))
    files = [file for folder in (*sources, *tests) for file in Path(folder).iterdir()]
    types = [*mypy(*(file.stem for file in files)), *map(str, files)]
    own = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "ramify.integrations.pytest.plugin"]
    environ = dict(os.environ) | {"MYPYPATH": ":".join(sources), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for command in (types, [*own, "-o", "pythonpath=" + " ".join(str(here / source) for source in sources), *tests]):
        done = subprocess.run(command, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Big", "lower-case"),
        ("a b", "lower-case"),
        ("../up", "lower-case"),
        ("-x", "lower-case"),
        ("9a", "lower-case"),
        ("a--b", "lower-case"),
        ("a_b", "lower-case"),
        ("\u0430bc", "lower-case"),
        ("x" * (LONGEST + 1), "at most"),
        ("", "lower-case"),
        ("class", "is taken"),
        ("match", "is taken"),
        ("json", "is taken"),
        ("numpy", "is taken"),
        ("exact", "the judge 'exact' exists already"),
    ],
)
def test_names_that_cannot_be(name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        check_name("judge", name)


def test_nothing_is_overwritten_and_nothing_is_left_behind(verb, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "mine").mkdir()
    (here / "mine" / "kept").write_text("x")
    assert "exists already" in verb.refused("new", "judge", "my-scorer", "--out", "mine")
    assert "there is no folder" in verb.refused("new", "judge", "my-scorer", "--out", "no/where")
    (here / "link").symlink_to("nowhere")
    assert "exists already" in verb.refused("new", "judge", "my-scorer", "--out", "link")
    assert "no checks for kind 'worlds'" in verb.refused("new", "worlds", "my-scorer")
    monkeypatch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert verb("new", "judge", "my-scorer")[::2] == (1, "ramify: cannot make my-scorer: No space left on device\n")
    full = OSError(30, "Read-only file system", "/somewhere/.my-scorer-x")
    monkeypatch.setattr("tempfile.mkdtemp", lambda **_: (_ for _ in ()).throw(full))
    assert verb.refused("new", "judge", "my-scorer") == "cannot make my-scorer: Read-only file system"
    assert sorted(path.name for path in here.iterdir()) == ["link", "mine"]


def test_every_kind_has_a_skeleton_that_says_how_to_continue() -> None:
    for kind in KINDS:
        files = skeleton(kind, "mine")
        assert set(files) == {"pyproject.toml", "README.md", "src/mine.py", "tests/test_mine.py"}
        assert 'mine = "mine"' in files["pyproject.toml"]
        assert f"ramify check {kind} mine" in files["README.md"]
        assert f'register("{kind}", "mine")' in files["src/mine.py"]
        assert json.dumps(files)


SLOW = """
import itertools
import time

from ramify.env.builtin.chain import ChainEnvironment

MADE = itertools.count()


class Slow(ChainEnvironment):
    def make(self):
        time.sleep(0.1 if next(MADE) < 12 else 0)  # longer than a terminal waits between two pictures
        return super().make()
"""


@pytest.mark.slow
def test_a_check_of_a_slow_environment_shows_what_it_is_at_in_a_terminal(here: Path) -> None:
    (here / "slow.py").write_text(SLOW)
    host_end, terminal_end = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "ramify", "check", "env", "slow.py:Slow"],
        stdin=terminal_end, stdout=subprocess.PIPE, stderr=terminal_end, env=os.environ | {"TERM": "xterm", "COLUMNS": "120"},
    )  # fmt: skip
    os.close(terminal_end)
    screen = b""
    with suppress(OSError):  # how a terminal says that nobody writes to it any more
        while piece := os.read(host_end, 1 << 16):
            screen += piece
    os.close(host_end)
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    assert b"conforms" in out
    assert re.search(rb"check env slow.py:Slow.*episode \d+", screen, re.DOTALL)
