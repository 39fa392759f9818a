"""The examples run as they stand: a first look each under 15 lines of code, the worked ones,
of methods and of a person's own agents, under 60."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from forked import Forks

pytestmark = pytest.mark.slow

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
WORKED = sorted(path for kind in ("methods", "agents") for path in (Path(__file__).parents[1] / "examples" / kind).glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example: Path, tmp_path: Path, forks: Forks) -> None:
    check_runs(example, tmp_path, 15, forks)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("example", WORKED, ids=lambda path: path.stem)
def test_a_worked_example_runs(example: Path, tmp_path: Path, forks: Forks) -> None:
    if "needs the extra" in example.read_text(encoding="utf-8"):
        pytest.importorskip("reasoning_gym", reason=f"the extras are not installed: {example.name} IS NOT TESTED")
    said = check_runs(example, tmp_path, 60, forks)
    assert example.stem != "make_a_loop_faster" or "MathCall at softmax.c:" in said


def check_runs(example: Path, folder: Path, limit: int, forks: Forks) -> str:
    code = example.read_text(encoding="utf-8")
    tree = ast.parse(code)
    lines = {line for node in ast.walk(tree) if (line := getattr(node, "lineno", None))}
    assert len(lines) < limit, "an example is a few lines"
    done = forks.run(code, folder, example)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    return done.stdout


def test_the_worked_case_of_the_paper_comes_out(tmp_path: Path, forks: Forks) -> None:
    (example,) = [path for path in EXAMPLES if path.stem == "credit_a_trace"]
    out = forks.run(example.read_text(encoding="utf-8"), tmp_path, example).stdout
    assert "attempt 2 step 0, go B: +0.4774" in out
    assert "attempt 3 step 2, go out: +2.4170" in out
