"""One result, five forms: the terminal's text, JSON, Markdown, a page and a notebook's cell; and what a run keeps of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest

from ramify import kit
from ramify.base.config import Config
from ramify.base.errors import UserError
from ramify.base.progress import Progress
from ramify.render.numbers import cell, interval, number, p_value, percent, percent_interval, points, points_interval
from ramify.render.result import (
    Bar,
    CurveLine,
    Curves,
    Folded,
    Planned,
    Result,
    Section,
    Verbatim,
    from_data,
    shortened,
    table,
    to_data,
    to_html,
    to_markdown,
    to_text,
)
from ramify.render.sections import sections_of
from ramify.trace.db import Run
from ramify.trace.jsonl import read_exported, write_lines
from ramify.web.pages import report_html

HOSTILE = "<script>alert(1)</script>"
SECTIONS = (
    Section.of(
        "Doors",
        "Two were tried: see `ramify show X`.",
        table(("door", "success", "n"), [("left", "41.2%", 17), (HOSTILE, None, 3)], "by door"),
        table(("none",), []),
        None,
        "",
    ),
    Section.of(
        "",
        Verbatim("def f():\n    return 1", "python"),
        Folded("the prompt", HOSTILE),
        Curves("Success", "turn", "share", (CurveLine("a", (0, 1), (0.5, None)),)),
        Bar("Budget", (("sampling", 3.0, "3 tokens"), ("training", 1.0, "1 token"))),
    ),
)


@dataclass(frozen=True)
class Doors(Result):
    left: float
    names: tuple[str, ...]

    def sections(self) -> Iterable[Section]:
        return SECTIONS


def test_the_terminals_text_has_tables_and_code_and_leaves_out_what_unfolds_and_pictures() -> None:
    text = to_text(SECTIONS)
    assert "Doors\nTwo were tried" in text
    assert "by door" in text
    assert "def f():" in text
    assert "the prompt" not in text
    assert "none" not in text
    long = Section.of("", table(("n", "text"), [(i, "x" * 20) for i in range(5)]))
    assert to_text(shortened([long], 2, 10)).endswith("and 3 more")
    assert "xxxxxxx...\n" in to_text(shortened([long], 2, 10))


def test_a_page_escapes_every_text_and_draws_the_pictures() -> None:
    page = to_html(SECTIONS, "doors open")
    assert HOSTILE not in page
    assert page.count("&lt;script&gt;") == 2
    assert "<h2>Doors</h2>" in page
    assert "<h2>doors open</h2>" in page
    assert "<code>ramify show X</code>" in page
    assert page.count("<svg") == 2
    assert "<details><summary>the prompt</summary>" in page


def test_markdown_has_headings_tables_and_fences() -> None:
    text = to_markdown(SECTIONS)
    assert "## Doors" in text
    assert "| left | 41.2% | 17 |" in text
    assert "```python\ndef f():" in text


def test_sections_come_back_as_they_were() -> None:
    assert from_data(json.loads(json.dumps(to_data(SECTIONS))), "here") == SECTIONS


def test_a_row_of_another_length_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="every row needs 2 cells"):
        table(("a", "b"), [(1,)])


def test_numbers_are_written_in_one_way() -> None:
    assert [number(None), number(float("nan")), number(1 / 3), number(12)] == ["-", "-", "0.3333", "12"]
    assert [percent(0.4117), percent(None), percent(1, 0)] == ["41.2%", "-", "100%"]
    assert [points(-0.021), points_interval((0, 0.5))] == ["-2.1", "[+0.0, +50.0]"]
    assert [interval((0.1, 0.25)), interval(None), percent_interval((0.1, 0.25))] == ["[0.1, 0.25]", "-", "[10.0%, 25.0%]"]
    assert [p_value(0.04321), cell(True), cell(None), cell(0.5)] == ["0.043", "yes", "-", "0.5"]


class Pace(Config):
    steps: int = 3


app = kit.Verbs("doors")


@app.verb(keeps="run")
def look(run: Annotated[Path, kit.argument()]) -> Doors:
    """Look at the doors."""
    return Doors(0.5, ("left",), caveats=("only one was tried",))


@app.study("open", settings=Pace, plan=lambda options, n: {"steps": options.steps * n}, unit="steps")
def open_(options: Pace, out: Annotated[Path, kit.option()], bar: Progress, n: int = 2) -> Doors:
    """Open the doors."""
    with Run.begin(out, "doors open", {"steps": options.steps}):
        bar.begin(options.steps)
        if options.steps == 13:
            raise KeyboardInterrupt
    return Doors(1.0, ("left", "right"))


@dataclass(frozen=True)
class Tried(Planned):
    steps: int


def tried(options: Pace, bar: Progress) -> Tried:
    bar.begin(options.steps)
    return Tried(options.to_json(), {"steps": options.steps}, options.steps, caveats=("nothing opens",))


itself = kit.Verbs("hall")


@itself.study(settings=Pace, plan=tried, unit="steps", itself=True, folder="hall", resumed=True, keeps=False)
def hall(options: Pace, bar: Progress, out: Annotated[Path | None, kit.option()] = None) -> Doors:
    """Walk through the hall."""
    assert out is not None
    with Run.begin(out, "hall", {"steps": options.steps}):
        bar.begin(options.steps)
        if options.steps == 13:
            raise KeyboardInterrupt
    return Doors(1.0, ())


def _price(run: Path, file: str) -> Planned:
    return Planned({"steps": len(file)}, {"steps": 2 * len(file)}, caveats=("it is far",))


@app.study("paint", plan=_price, unit="steps", run="run")
def paint(run: Annotated[Path, kit.argument()], bar: Progress, file: str = "abc") -> Doors:
    """Paint the doors of a run."""
    raise KeyboardInterrupt


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = kit.call(app, words)
    return code, *capsys.readouterr()


def test_a_verb_prints_its_result_says_its_caveats_and_its_run_keeps_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Run.create(tmp_path / "run", {}):
        pass
    code, out, err = call(capsys, "look", str(tmp_path / "run"), "--json")
    assert code == 0
    assert json.loads(out) == {"caveats": ["only one was tried"], "left": 0.5, "names": ["left"]}
    assert err == "warning: only one was tried\n"
    assert "by door" in call(capsys, "look", str(tmp_path / "run"))[1]
    with Run.open(tmp_path / "run") as run:
        (kept,) = run.results()
        assert (kept.maker, kept.result["left"]) == ("doors look", 0.5)
        assert sections_of(run)["doors look"][:-1] == SECTIONS
        assert sections_of(run)["doors look"][-1] == Section.of("Before you trust doors look", "only one was tried")
        page = report_html(run)
        write_lines(run, tmp_path / "run.jsonl")
    assert "<h2>Doors</h2>" in page
    assert HOSTILE not in page
    read_exported(tmp_path / "run.jsonl", tmp_path / "again")
    with Run.open(tmp_path / "again") as run:
        assert run.results() == [kept]


def test_a_result_of_what_is_no_run_is_printed_and_kept_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "look", str(tmp_path / "log.jsonl"))
    assert code == 0
    assert "by door" in out
    assert list(tmp_path.iterdir()) == []


UNTIMED = {"seconds": "not known: no such call was made on this machine yet"}


def test_a_study_plans_runs_keeps_and_says_how_to_continue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ramify.base.errors import InterruptedRunError

    run = str(tmp_path / "run")
    code, out, _ = call(capsys, "open", "--out", run, "--dry-run", "--json")
    assert code == 0
    assert json.loads(out) == {"caveats": [], "settings": {"steps": 3}, "cost_estimate": {"steps": 6, **UNTIMED}}
    assert not (tmp_path / "run").exists()
    assert "cost estimate" in call(capsys, "open", "--out", run, "--steps", "5", "--dry-run")[1]
    with pytest.raises(InterruptedRunError, match=r"interrupted; what is done is kept in .*: the same command continues"):
        call(capsys, "open", "--out", run, "--steps", "13")
    run = str(tmp_path / "other")
    assert call(capsys, "open", "--out", run)[0] == 0
    with Run.open(Path(run)) as opened:
        assert [kept.maker for kept in opened.results()] == ["doors open"]


def test_a_study_names_its_own_run_and_may_plan_by_trying(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ramify.base.errors import InterruptedRunError

    monkeypatch.chdir(tmp_path)
    assert kit.call(itself, ["--dry-run", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "caveats": ["nothing opens"],
        "settings": {"steps": 3},
        "cost_estimate": {"steps": 3, **UNTIMED},
        "steps": 3,
    }
    assert err == "warning: nothing opens\n"
    assert list(tmp_path.iterdir()) == []
    for run in ("hall-1", "hall-2"):
        assert kit.call(itself, []) == 0
        with Run.open(Path("runs") / run) as opened:
            assert opened.results() == []
    with pytest.raises(InterruptedRunError, match=r"finished work is kept: continue with `ramify resume runs.hall-3`"):
        kit.call(itself, ["--steps", "13"])
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot make a run in file: it is a file"):
        kit.call(itself, ["--out", "file"])
    capsys.readouterr()
    assert kit.call(itself, ["--help"]) == 0
    assert "`ramify resume RUN` continues what was interrupted." in capsys.readouterr().out


def test_a_study_that_was_interrupted_before_its_run_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ramify.base.errors import InterruptedRunError

    verbs = kit.Verbs("late")

    @verbs.study()
    def wait(out: Annotated[Path, kit.option()], bar: Progress) -> Doors:
        """Wait."""
        raise KeyboardInterrupt

    with pytest.raises(InterruptedRunError, match="interrupted; nothing was done yet"):
        kit.call(verbs, ["wait", "--out", str(tmp_path / "run")])


def test_a_study_of_a_run_says_its_own_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ramify.base.errors import InterruptedRunError

    code, out, err = call(capsys, "paint", str(tmp_path), "--dry-run", "--json")
    untimed = {"seconds": UNTIMED["seconds"].replace("call", "call of this run")}
    assert json.loads(out) == {"caveats": ["it is far"], "settings": {"steps": 3}, "cost_estimate": {"steps": 6, **untimed}}
    assert (code, err) == (0, "warning: it is far\n")
    with Run.create(tmp_path, {}):
        pass
    with pytest.raises(InterruptedRunError, match=f"kept in {tmp_path}: the same command continues"):
        call(capsys, "paint", str(tmp_path))


def test_a_notebook_shows_a_result() -> None:
    shown = Doors(0.5, (), caveats=("only one was tried",))._repr_html_()
    assert "<h2>Doors</h2>" in shown
    assert "<p>only one was tried</p>" in shown
    assert HOSTILE not in shown
