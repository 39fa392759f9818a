"""Any words and any settings file: the command does what it says or refuses in one sentence; never a traceback."""

from __future__ import annotations

import contextlib
import io
import json
import sqlite3
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ramify.base.errors import UserError
from ramify.cli.fork import read_edit
from ramify.cli.main import VERBS, main
from ramify.trace.db import Run
from ramify.trace.node import make_node

FUZZ = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
#: Verbs that start work, and what keeps them from it: a cost estimate in place of the work, or a name that is none.
BILL = {
    "improve": ["--dry-run"],
    "rollout": ["--dry-run"],
    "repro": ["nothing"],
    "doctor": ["--nothing"],
    "record": ["--repo", "nowhere"],
}
OPTIONS = [
    "--json", "--out", "--run", "--to", "--from", "--n", "--at", "--config", "--seed", "--html", "--tree", "--model",
    "--env", "--tasks", "--train.lr", "--budget.tokens", "--records", "--replace", "--append", "--count", "--attempts",
    "--help", "--", "-", "-x", "--=", "--\x00", "---", "-h",
]  # fmt: skip
VALUES = [
    "", " ", "0", "-1", "1e999", "nan", "9" * 400, "run", "nowhere", "a/b", "..", "/dev/null", "\x1b[31m", "\u202e",
    "\udcff", "'", "{}", "[", "x" * 500, "%s%n", "true", "ab12", "chat", "builtin", "chat:m@http://127.0.0.1:1/v1", "hf:.",
    "factory:os:getcwd", "python::", "jsonl", "env",
]  # fmt: skip
words = st.lists(st.sampled_from(OPTIONS) | st.sampled_from(VALUES) | st.text(max_size=8), max_size=5)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run in it."""
    folder = tmp_path_factory.mktemp("fuzz")
    with Run.create(folder / "run", {}) as run:
        run.add_tree("chat", {})
        root = make_node("chat", None, 0, "root", "")
        run.add(root, make_node("chat", root.id, 0, "user", "hello"))
    return folder


def call(folder: Path, *args: str) -> tuple[int, str]:
    """Exit code and standard error; the check that holds for any arguments."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(args)
    said = err.getvalue()
    assert code in (0, 1, 2, 4), (args, code, said)
    assert not set("\x1b\u202e\x00") & set(out.getvalue() + said)
    if code:
        assert said.startswith("ramify: "), (args, said)
        assert said.count("\n") == 1, (args, said)
    return code, said


@pytest.mark.slow
@FUZZ
@given(verb=st.sampled_from(sorted(VERBS)), rest=words)
@example("show", ["run", "--json", "--json"])
@example("export", ["run", "\x00"])
@example("import", ["\udcff", "--run", "x\x00"])
@example("fork", ["run", "", "--n", "-1"])
def test_any_words(here: Path, verb: str, rest: list[str]) -> None:
    code, _ = call(here, verb, *BILL.get(verb, ()), *rest)
    assert code in (0, 1, 2, 4)


@FUZZ
@given(args=st.lists(st.sampled_from(OPTIONS) | st.text(max_size=12), min_size=1, max_size=4))
def test_words_in_the_place_of_a_verb(here: Path, args: list[str]) -> None:
    code, _ = call(here, *args)
    assert code in (0, 2)


@pytest.mark.parametrize(
    "words", [["a\rramify: all is well"], ["show", "a\nramify: all is well"], ["improve", "--lr", "1\x85\u2028ramify: x"]]
)
def test_what_a_sentence_quotes_cannot_look_like_another(here: Path, words: list[str]) -> None:
    code, said = call(here, *words)
    assert code == 2
    assert len(said.splitlines()) == 1


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.sampled_from(VALUES) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
KEYS = [
    "model", "env", "seed", "updates", "train", "train.lr", "lr", "credit", "tokens", "budget", "tasks", "count", "attempts",
    "backend", "out", "\u202e", "", "a.b",
]  # fmt: skip


def toml(value: object) -> str:
    """A value as TOML writes it; dates and the like come from the raw texts."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return "1979-05-27" if value is None else json.dumps(value).replace("Infinity", "inf").replace("NaN", "nan")


@pytest.mark.slow
@FUZZ
@given(
    verb=st.sampled_from(["improve", "rollout"]), record=st.dictionaries(st.sampled_from(KEYS), values, min_size=1, max_size=3)
)
def test_any_settings(here: Path, verb: str, record: dict[str, object]) -> None:
    text = "".join(f"{json.dumps(key)} = {toml(value)}\n" for key, value in record.items())
    (here / "any.toml").write_bytes(text.encode("utf-8", "surrogatepass"))
    code, _ = call(here, verb, "--dry-run", "--config", "any.toml")
    assert code in (0, 2, 4)


@pytest.mark.slow
@FUZZ
@given(data=st.binary(max_size=60) | st.text(alphabet='[]{}="\n.#\\x1aé', max_size=30).map(str.encode))
@example(b"[" * 5000)
@example(b"a" * 5000 + b"=1")
@example(b"a=" + b"[" * 3000)
@example(b"\xef\xbb\xbfseed = 1")
@example(b"seed = " + b"9" * 5000)
@example(b"a." * 3000 + b"b = 1")
def test_any_bytes_as_settings(here: Path, data: bytes) -> None:
    (here / "any.toml").write_bytes(data)
    code, _ = call(here, "rollout", "--dry-run", "--config", "any.toml")
    assert code in (0, 2)


def test_the_run_is_what_it_was(here: Path) -> None:
    """None of the words above changed it; defined last, so run last."""
    with Run.open(here / "run") as run:
        assert len(run) == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["cliffs", "scan", "--model", "builtin", "--verifier", "exact", "--out", "x", "--alpha", "1e-320"],
            "--alpha: must be between 1e-300 and",
        ),
        (["dspark", "train", "builtin", "--out", "x", "--layers", "999999999"], "--layers: must be less than or equal to 64"),
        (["governance", "bench", "--out", "x", "--turns", "9" * 20], "--turns: must be"),
        (["governance", "bench", "--out", "x", "--turns", "999999999"], "--turns: must be less than or equal to 10000"),
        (["early-decision", "run", "--out", "x", "--prompts", "p", "--open", "\udcff\udcfe"], "--open: must be text"),
        (["rollout", "--dry-run", "--config", "/dev/zero"], "cannot read the configuration /dev/zero: it is larger than 16 MiB"),
    ],
)
def test_words_that_once_ended_in_a_traceback_or_never(here: Path, words: list[str], says: str) -> None:
    code, said = call(here, *words)
    assert code == 2
    assert says in said
    assert not (here / "x").exists()


def test_an_edit_without_an_end_is_refused() -> None:
    with pytest.raises(UserError, match="cannot read the edit /dev/full: it is larger than 16 MiB"):
        read_edit(Path("/dev/full"))


def test_another_schema_is_refused(here: Path) -> None:
    for schema in (0, 99):
        with Run.create(here / f"schema-{schema}", {}):
            pass
        with contextlib.closing(sqlite3.connect(here / f"schema-{schema}" / "run.sqlite")) as db:
            db.execute(f"PRAGMA user_version = {schema}")
        code, said = call(here, "show", f"schema-{schema}")
        assert code == 2
        assert f"has schema {schema}, and this ramify reads schema 1" in said
