"""The pytest plug-in as a user has it: in a pytest of its own, loaded by name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ramify.base import registry
from ramify.base.errors import UserError
from ramify.env.builtin.chain import ChainEnvironment
from ramify.integrations.pytest.assertions import assert_conforms, assert_judge_agrees, assert_same_tree, assert_success_rate
from ramify.jobs.play import play
from ramify.model.scripted import ScriptedModel
from ramify.score.judge import Each, Item
from ramify.score.match import ExactMatch
from ramify.trace.db import Run

PLUGIN = "ramify.integrations.pytest.plugin"

USERS_TEST = '''
import os
import pytest
from ramify.base.errors import NeedsError
from ramify.base.registry import register
from ramify.integrations.pytest.plugin import assert_conforms

@register("assertion", "answers")
def assert_answers(text):
    """An assertion that a later method brings."""
    assert "42" in text, f"no answer in {text!r}"

def test_conforms(ramify):
    ramify.assert_conforms("judge", "exact")
    assert_conforms("searcher", "greedy")

def test_later_methods_offer_more(ramify):
    ramify.assert_answers("it is 42")
    assert "assert_answers" in dir(ramify)
    with pytest.raises(AssertionError, match="no answer"):
        ramify.assert_answers("it is")
    with pytest.raises(AttributeError, match="did you mean 'assert_conforms'"):
        ramify.assert_conform

def real_call():
    from ramify.model.scripted import refuse_real_calls
    refuse_real_calls("the engine")

def test_forbidden_by_the_fixture(forbid_real_calls):
    with pytest.raises(NeedsError, match="would call a real model"):
        real_call()

def test_allowed_or_not():
    if os.environ.get("EXPECT") == "refused":
        with pytest.raises(NeedsError):
            real_call()
    else:
        real_call()
'''


def user(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_users.py").write_text(USERS_TEST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, "-p", "no:cacheprovider", *args]
    environ = {key: value for key, value in os.environ.items() if key != "RAMIFY_NO_REAL_CALLS"}
    environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | env  # the plug-in comes by name, whether it is installed or not
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("refused", [False, True], ids=["allowed", "refused"])
def test_a_users_tests(tmp_path: Path, refused: bool) -> None:
    done = user(tmp_path, *["--ramify-no-real-calls"] * refused, EXPECT="refused" * refused)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


def test_a_failed_assertion_fails_the_test_with_its_sentence(tmp_path: Path) -> None:
    (tmp_path / "test_more.py").write_text("def test_it(ramify):\n    ramify.assert_conforms('judge', object())\n")
    done = user(tmp_path)
    assert done.returncode == 1
    assert "this judge does not conform" in done.stdout
    assert "1 failed, 4 passed" in done.stdout


def test_loading_it_imports_nothing_heavy() -> None:
    code = (
        f"import sys, pytest; before = set(sys.modules); import {PLUGIN}; "
        "print(*sorted({n for n in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    own = {"ramify", "ramify.base", "ramify.base.lazy", "ramify.base.version", "ramify.integrations"}
    assert set(done.stdout.split()) == own | {PLUGIN, PLUGIN.rpartition(".")[0]}


def test_assertions_are_registered_with_a_line_of_help() -> None:
    assert {"conforms", "same-tree", "success-rate"} <= set(registry.names("assertion"))


def test_conforms_names_what_is_wrong() -> None:
    assert_conforms("judge", ExactMatch())
    assert_conforms("env", "chain", tasks=1)
    with pytest.raises(AssertionError, match=r"does not conform \(\d+ problems\): .*protocol: it lacks a name"):
        assert_conforms("compactor", ExactMatch())
    with pytest.raises(UserError, match="did you mean 'exact'"):
        assert_conforms("judge", "exat")
    with pytest.raises(UserError, match="no checks for kind"):
        assert_conforms("judges", "exact")


def test_same_tree(tmp_path: Path) -> None:
    replies = {"a": "answer 1", "b": "answer 2"}
    tasks = ChainEnvironment().task_set("train", 2)
    for name, folder in (("a", "one"), ("a", "two"), ("b", "other")):
        play(ScriptedModel([replies[name]], name="same"), "chain", tasks, out=tmp_path / folder)
    play(ScriptedModel(["answer 1"], name="same"), "chain", list(tasks)[:1], out=tmp_path / "fewer")
    assert_same_tree(tmp_path / "one", tmp_path / "two")
    with pytest.raises(AssertionError, match=r"differs: only the left run has node [0-9a-f]+ \(assistant: 'answer 1'\)"):
        assert_same_tree(tmp_path / "one", tmp_path / "other")
    with pytest.raises(AssertionError, match="in one run only: 1 tree"):
        assert_same_tree(tmp_path / "one", tmp_path / "fewer")


def test_success_rate_is_exact() -> None:
    # the lower end for 59 of 59 at 95 % is 0.05 ** (1 / 59) = 0.9505 (Clopper and Pearson 1934); for 58 of 58 it is 0.9497
    assert_success_rate([True] * 59, at_least=0.95)
    with pytest.raises(
        AssertionError, match=r"58 of 58 attempts succeeded: with 95% confidence that is at least 95.0%, not 95.0%"
    ):
        assert_success_rate([True] * 58, at_least=0.95)
    assert_success_rate([True] * 58, at_least=0.95, confidence=0.94)
    assert_success_rate([False, None], at_least=0.0)
    with pytest.raises(AssertionError, match="2 unscored attempts left out"):
        assert_success_rate([True, None, None], at_least=0.5)
    with pytest.raises(AssertionError, match="none of 0 attempts was scored"):
        assert_success_rate([], at_least=0.0)
    for wrong in ({"at_least": 1.1}, {"at_least": float("nan")}, {"at_least": 0.5, "confidence": 1.0}):
        with pytest.raises(UserError, match="must lie"):
            assert_success_rate([True], **wrong)


JUDGED = """
import pytest

@pytest.mark.judge_slot("reviewer")
def test_agreed():
    pass

@pytest.mark.judge_slot("other")
def test_other():
    pass
"""


@pytest.mark.slow
def test_tests_of_a_judge_run_again_where_it_changed(tmp_path: Path) -> None:
    (tmp_path / "test_judged.py").write_text(JUDGED)

    def judged(*args: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", PLUGIN, "-rs", *args]
        environ = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
        return done.stdout + done.stderr

    assert "2 passed" in judged()
    assert "2 passed" in judged("--judge-slot", "reviewer=regex:yes")
    second = judged("--judge-slot", "reviewer=regex:yes")
    assert "1 passed, 1 skipped" in second
    assert "passed with this judge already: reviewer" in second
    assert "2 passed" in judged("--judge-slot", "reviewer=regex:no")
    with Run.create(tmp_path / "run", {}) as run:
        run.replace_judge("reviewer", "version-1")
    assert "2 passed" in judged("--judge-slot", "reviewer=run")
    assert "1 skipped" in judged("--judge-slot", "reviewer=run")
    with Run.open(tmp_path / "run", write=True) as run:
        run.replace_judge("reviewer", "version-2")
    assert "2 passed" in judged("--judge-slot", "reviewer=run")
    (tmp_path / "test_judged.py").write_text(
        JUDGED.replace("def test_agreed():\n    pass", "def test_agreed():\n    assert False")
    )
    assert "1 failed" in judged("--judge-slot", "reviewer=regex:new")
    assert "1 failed" in judged("--judge-slot", "reviewer=regex:new"), "what failed is not passed by"
    assert "did you mean 'reviewer'" in judged("--judge-slot", "reviwer=run")
    assert "unknown judge" in judged("--judge-slot", "reviewer=nobody")


class Silent(Each):
    """Never answers."""

    name, identity = "silent", "0"

    async def one(self, item: Item) -> None:
        return None


def test_a_judge_is_held_to_an_anchor(tmp_path: Path) -> None:
    anchor = tmp_path / "anchor.jsonl"
    anchor.write_text(
        "".join(f'{{"id": {i}, "artefact": "{"good" if i % 2 else "bad"}", "label": {i % 2}}}\n' for i in range(60))
    )
    assert_judge_agrees("regex:good", anchor, at_least=0.9)
    with pytest.raises(AssertionError, match=r"'regex:.' is right on 30 of 60 items .* not 60\.0%"):
        assert_judge_agrees("regex:.", anchor, at_least=0.6)
    with pytest.raises(AssertionError, match="did not answer 60 of 60 items"):
        assert_judge_agrees(Silent(), anchor, at_least=0.6)
    with pytest.raises(UserError, match="at_least must lie"):
        assert_judge_agrees("regex:good", anchor, at_least=2)
