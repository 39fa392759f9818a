"""The pytest plug-in under attack, in a pytest of its own: hostile run folders and files,
wrong types, kills, workers, secrets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

KEY = "sk-canary-51f2c7d09ab34e68"
PLUGIN = "ramify.integrations.pytest.plugin"
MADE = """
import os, sqlite3
from pathlib import Path
import pytest
from ramify.trace.db import Run
from ramify.trace.node import make_node

@pytest.fixture
def made(tmp_path):
    def make(name, text="hello", tree="t", file=None):
        folder = tmp_path / name
        if file:
            folder.mkdir()
            file(folder / "run.sqlite")
            return folder
        with Run.create(folder, {"model": "factory:evil_module:make", "env": "mcp:touch ran"}) as run:
            run.add_tree(tree, {})
            root = make_node(tree, None, 0, "root", "")
            run.add(root, make_node(tree, root.id, 0, "user", text))
        return folder
    return make
"""
HOSTILE = r"""
def change(folder, statement):
    db = sqlite3.connect(folder / "run.sqlite")
    with db: db.execute(statement)
    db.close()
    return folder

LIE = "t\x1b[31m\x1b]0;owned\x07\u202e\nramify: all is well"
CASES = {
    "no folder": lambda made: (made("a"), "nowhere"),
    "no database": lambda made: (made("a"), made("b", file=lambda path: path.write_text("SELECT 1"))),
    "a pipe": lambda made: (made("a"), made("b", file=os.mkfifo)),
    "a link": lambda made: (made("a"), made("b", file=lambda path: path.symlink_to("/etc/passwd"))),
    "a device": lambda made: (made("a"), made("b", file=lambda path: path.symlink_to("/dev/zero"))),
    "changed between": lambda made: (made("a"), change(made("b"), "UPDATE nodes SET text = 'evil' WHERE role = 'user'")),
    "a table gone": lambda made: (made("a"), change(made("b"), "DROP TABLE nodes")),
    "another text": lambda made: (made("a"), made("b", LIE)),
    "a name that lies": lambda made: (made("a", tree=LIE), made("b", "x", tree=LIE)),
    "a lie in one only": lambda made: (made("a", tree=LIE), made("b")),
    "a name no folder has": lambda made: (made("a"), "x" * 100_000),
    "NUL": lambda made: (made("a"), "a\0b"),
    "a number": lambda made: (3, made("a")),
    "nothing": lambda made: (None, None),
    "secret text": lambda made: (made("a"), made("b", "it is " + os.environ["OPENAI_API_KEY"])),
}

@pytest.mark.parametrize("case", CASES)
def test_run(ramify, made, case):
    ramify.assert_same_tree(*CASES[case](made))

def wild(name, text):
    Path(name).write_text(text)
    return name

def broken(messages): raise RuntimeError("\x1b[31mbroken " + os.environ["OPENAI_API_KEY"])

CALLS = {
    "rate of text": lambda r: r.assert_success_rate(["x", 3], at_least=0.5),
    "rate of nothing": lambda r: r.assert_success_rate(None, at_least=0.5),
    "rate above text": lambda r: r.assert_success_rate([True], at_least="0.5"),
    "no confidence": lambda r: r.assert_success_rate([True], at_least=0.5, confidence=None),
    "a kind that is a number": lambda r: r.assert_conforms(3, 4),
    "a kind unheard of": lambda r: r.assert_conforms("\x1b[31mevil", 4),
    "a part that is nothing": lambda r: r.assert_conforms("env", None),
    "code that is not there": lambda r: r.assert_conforms("env", "python:evil_module:make"),
    "an option unheard of": lambda r: r.assert_conforms("env", "chain", nonsense=3),
    "an option of another type": lambda r: r.assert_conforms("env", "chain", tasks="many"),
    "rules that are a number": lambda r: r.assert_survives(lambda messages: messages, 3),
    "rules that are numbers": lambda r: r.assert_survives(lambda messages: messages, [3]),
    "rounds that are text": lambda r: r.assert_survives(lambda messages: messages, "rule", rounds="x"),
    "a compactor of garbage": lambda r: r.assert_survives(lambda messages: 3, "rule"),
    "a compactor that raises": lambda r: r.assert_survives(broken, "rule"),
    "an endless device": lambda r: r.assert_no_step_below("/dev/zero", 0),
    "no file": lambda r: r.assert_no_step_below("nofile", 0),
    "no score record": lambda r: r.assert_no_step_below([{"a": 1}], 0),
    "a grade that is a number": lambda r: r.assert_no_step_below([3], 0),
    "a grade that is text": lambda r: r.assert_no_step_below([{"steps": [{"truncated": False, "A_sum": "q"}]}], 0),
    "no grades": lambda r: r.assert_no_step_below(None, 0),
    "no JSON": lambda r: r.assert_no_step_below(wild("g", "__import__('os').system('touch ran')"), 0),
    "deep JSON": lambda r: r.assert_no_step_below(wild("g", "[" * 100_000), 0),
    "an aggregator unheard of": lambda r: r.assert_no_step_below([], 0, token=[]),
    "a floor that is text": lambda r: r.assert_no_step_below([], "x"),
}

@pytest.mark.parametrize("case", CALLS)
def test_call(ramify, case):
    CALLS[case](ramify)
"""


def pytest_run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A user's pytest in ``folder``, with the plug-in and a secret in the environment; ``test_*.py`` are there."""
    (folder / "conftest.py").write_text(MADE)
    command = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "--basetemp", str(folder / "tmp"), *words]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OPENAI_API_KEY": KEY, "OMP_NUM_THREADS": "1"} | variables
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_hostile_runs_and_values_are_one_sentence_each(tmp_path: Path) -> None:
    (tmp_path / "evil_module_that_is_found.py").write_text("open('ran', 'w')")
    (tmp_path / "test_hostile.py").write_text("import os, sqlite3\nfrom pathlib import Path\nimport pytest\n" + HOSTILE)
    done = pytest_run(tmp_path, "-q", "--tb=line", "-rN")
    assert "40 failed" in done.stdout.splitlines()[-1], done.stdout + done.stderr
    # a failure is one line of its own: what a test is allowed to fail with, and the sentence
    told = [line for line in done.stdout.splitlines() if re.match(r"(E  |/.*:\d+: )", line)]
    kinds = {found[1] for line in told if (found := re.match(r".*?(?:ramify\.base\.errors\.)?(\w+(?:Error|Exception)): ", line))}
    assert kinds == {"AssertionError", "UserError", "RamifyError"}, done.stdout
    assert "ramify: all is well" not in [line.strip() for line in done.stdout.splitlines()], "a text began a line of its own"
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", done.stdout)
    assert "INTERNALERROR" not in done.stdout + done.stderr
    assert KEY not in done.stdout + done.stderr
    assert not (tmp_path / "ran").exists()


KILLED = """
import os, signal

def test_that_is_killed(made):
    made("kept")
    os.kill(os.getpid(), signal.SIGKILL)
"""
FOUND = """
def test_after(ramify):
    from pathlib import Path
    (kept,) = {path.resolve() for path in Path("first").glob("tmp/*/kept")}
    ramify.assert_same_tree(kept, kept)
"""


@pytest.mark.slow
def test_a_test_that_is_killed_leaves_a_run_that_opens_and_no_word_of_the_environment(tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.mkdir()
    (first / "test_killed.py").write_text(KILLED)
    assert pytest_run(first, "-q").returncode == -9
    (tmp_path / "test_found.py").write_text(FOUND)
    done = pytest_run(tmp_path, "-q", "test_found.py")
    assert done.returncode == 0, done.stdout
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


XDIST = """
import os, signal
import pytest

def test_that_is_killed():
    os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.parametrize("number", range(6))
def test_forbidden_in_workers(ramify, number):
    from ramify.base.errors import NeedsError
    from ramify.model.scripted import refuse_real_calls
    with pytest.raises(NeedsError):
        refuse_real_calls("the engine")
    ramify.assert_success_rate([True], at_least=0.0)
"""


@pytest.mark.slow
def test_workers_of_xdist_refuse_real_calls_also_those_that_take_a_killed_ones_place(tmp_path: Path) -> None:
    (tmp_path / "test_workers.py").write_text(XDIST)
    done = pytest_run(tmp_path, "-q", "-p", "xdist", "-n", "1", "--ramify-no-real-calls")
    assert "1 failed, 6 passed" in done.stdout, done.stdout + done.stderr
    assert "crashed while running" in done.stdout
    assert KEY not in done.stdout


DISK = """
def test_disk(made):
    made("run", "x" * 3_000_000)
"""


def test_a_disk_without_room_is_one_sentence_and_leaves_no_half_a_run(tmp_path: Path) -> None:
    """The folder where a test would put its run is full, or cannot be written."""
    (tmp_path / "test_disk.py").write_text(DISK.replace("def test_disk(made)", "def test_disk(made, tmp_path)"))
    # the largest file this process may write: what a full disk is to everyone
    code = "import resource, signal, sys, pytest\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    code += "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
    code += f"sys.exit(pytest.main(['-q', '--tb=line', '-p', '{PLUGIN}', '-p', 'no:cacheprovider', '--basetemp', 'tmp']))"
    (tmp_path / "conftest.py").write_text(MADE)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OPENAI_API_KEY": KEY},
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"errors\.\w+Error: [^\n]*(full|I/O|too large|space)", done.stdout), done.stdout
    assert "INTERNALERROR" not in done.stdout
