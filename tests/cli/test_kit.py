"""How a verb's words become options and settings, and one clear sentence for every mistake in them."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify import kit
from ramify.base.errors import EXIT_USAGE, InterruptedRunError, UserError
from ramify.kit import Verbs, argument, option
from tests.settings import Job, Train


class Called(Exception):  # noqa: N818
    """What a verb was called with."""


app = Verbs("tool")


@app.verb(settings=lambda: Job)
def work(
    job: Job,
    place: Annotated[str, argument("PLACE", help="Where.")] = "",
    others: Annotated[list[Path] | None, argument("OTHER...", help="More.")] = None,
    n: Annotated[int, option(min=1, max=9, help="How many.")] = 2,
    share: Annotated[float | None, option(help="How much.")] = None,
    kind: Annotated[Literal["a", "b"], option(help="Which.")] = "a",
    tag: Annotated[list[str] | None, option(help="May be repeated.")] = None,
    quiet: Annotated[bool, option("--quiet", help="Say less.")] = False,
    shuffle: Annotated[bool, option(help="Mix.")] = True,
    as_json: kit.Json = False,
) -> None:
    """Do some work."""
    raise Called(locals())


@app.verb("stop")
def stop_() -> None:
    """Be stopped."""
    raise KeyboardInterrupt


@app.verb()
def fail() -> int:
    """Fail."""
    return 1


def called(*words: str) -> dict[str, Any]:
    with pytest.raises(Called) as caught:
        kit.call(app, ["work", *words])
    found: dict[str, Any] = caught.value.args[0]
    return found


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["--seeds", "4,5"], "seeds", (4, 5)),
        (["--seeds=[4, 5]"], "seeds", (4, 5)),
        (["--compare"], "compare", True),
        (["--compare", "--mode", "slow"], "compare", True),
        (["--compare", "here"], "compare", True),
        (["--compare", "false"], "compare", False),
        (["--compare=no"], "compare", False),
        (["--compare", "--no-compare"], "compare", False),
        (["--cap", "none"], "cap", None),
        (["--cap", "9", "--cap", "10"], "cap", 10),
        (["--env", "-"], "env", "-"),
        (["--env", "-x"], "env", "-x"),
        (["--env=--x"], "env", "--x"),
        (["--env", "none"], "env", "none"),
        (["--env", "[a"], "env", "[a"),
        (["--train.lr", "3e-4", "--train.steps=7"], "train", Train(lr=3e-4, steps=7)),
    ],
)
def test_settings_are_read(words: list[str], field: str, value: object) -> None:
    assert getattr(called(*words)["job"], field) == value


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["here"], "place", "here"),
        (["--n", "3", "here"], "place", "here"),
        (["here", "--n", "3"], "n", 3),
        (["--n=3", "--n", "4"], "n", 4),
        (["here", "b", "c"], "others", [Path("b"), Path("c")]),
        (["--", "--n", "b"], "place", "--n"),
        (["--share", "-1.5"], "share", -1.5),
        (["--share", "1e-3"], "share", 1e-3),
        (["--kind", "b"], "kind", "b"),
        (["--tag", "x", "--tag=y"], "tag", ["x", "y"]),
        (["--tag", '["x"]'], "tag", ['["x"]']),
        (["--quiet"], "quiet", True),
        (["--no-shuffle"], "shuffle", False),
        (["--shuffle", "false"], "shuffle", False),
        (["--json"], "as_json", True),
        ([], "tag", None),
    ],
)
def test_options_are_read(words: list[str], name: str, value: object) -> None:
    assert called(*words)[name] == value


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--lr", "3"], "unknown option --lr (did you mean '--train.lr'?)"),
        (["--train.lrr", "3"], "unknown option --train.lrr (did you mean '--train.lr'?)"),
        (["--comapre"], "unknown option --comapre (did you mean '--compare'?)"),
        (["--env.x", "3"], "unknown option --env.x (did you mean '--env'?)"),
        (["--no-quiet"], "unknown option --no-quiet (did you mean '--quiet'?)"),
        (["--train.lr", "x"], "--train.lr: must be a valid number, not 'x'"),
        (["--train.lr", "nan"], "--train.lr: must be a finite number, not 'nan'"),
        (["--train.steps", "1.5"], "--train.steps: must be a valid integer, not '1.5'"),
        (["--mode", "c"], "--mode: must be 'fast' or 'slow', not 'c'"),
        (["--seeds", "1,x"], "--seeds: must be a valid integer, not 'x'"),
        (["--cap"], "--cap needs a value (int|none)"),
        (["--cap", "--compare"], "--cap needs a value (int|none)"),
        (["--compare", "--cap", "0"], "compare needs a cap above 0"),
        (["--n", "0"], "--n: must be >= 1, not 0"),
        (["--n", "10"], "--n: must be <= 9, not 10"),
        (["--n", "1.5"], "--n: must be a whole number, not '1.5'"),
        (["--share", "x"], "--share: must be a number, not 'x'"),
        (["--kind", "c"], "--kind: must be one of a, b, not 'c'"),
        (["--quiet=perhaps"], "--quiet: must be true or false, not 'perhaps'"),
        (["--n"], "--n needs a value: how many"),
        (["-x"], "unknown option -x (known: --cap, --compare, --config, --env, --json, --kind, --mode, --n, --no-compare, "
                 "--no-shuffle, --quiet, --seeds, ...)"),
        (["--config", "none.toml"], "cannot read the configuration none.toml: No such file or directory"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(words: list[str], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        kit.call(app, ["work", *words])
    assert str(caught.value) == sentence


def test_exit_codes_and_ctrl_c(capsys: pytest.CaptureFixture) -> None:
    assert kit.call(app, ["fail"]) == 1
    with pytest.raises(InterruptedRunError):
        kit.call(app, ["stop"])
    assert kit.call(app, []) == EXIT_USAGE
    assert "Do some work." in capsys.readouterr().out
    with pytest.raises(UserError, match="unknown verb 'wrok' of tool"):
        kit.call(app, ["wrok"])


def test_help_shows_what_a_verb_takes(capsys: pytest.CaptureFixture) -> None:
    assert kit.call(app, ["work", "--help"]) == kit.call(app, ["work", "-h"]) == 0
    shown = capsys.readouterr().out
    for text in (
        "PLACE",
        "--n INT",
        "[default: 2]",
        "--kind CHOICE",
        "--seeds list",
        "[default: 0,1]",
        "--help-all lists 4 more.",
    ):
        assert text in shown
    assert "--train.lr" not in shown
    assert kit.call(app, ["work", "--help-all"]) == 0
    assert "--train.lr number" in capsys.readouterr().out


def test_an_option_of_another_choice_is_refused() -> None:
    kit.only_for("copy", out=None, force=False)
    with pytest.raises(UserError, match="copy takes no --dry-run"):
        kit.only_for("copy", out=None, dry_run=True)
    with pytest.raises(UserError, match="copy takes no --count"):
        kit.only_for("copy", count=0)


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.text(max_size=12), max_size=4))
def test_no_words_lead_to_anything_but_a_call_or_a_sentence(words: list[str]) -> None:
    with contextlib.suppress(UserError, Called), contextlib.redirect_stdout(io.StringIO()):
        assert kit.call(app, ["work", *words]) == 0  # help, or nothing
