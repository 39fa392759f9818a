"""KernelBench problems as tasks: parsed here, run in the sandbox only; candidates are judged as every other kernel's are."""

from __future__ import annotations

from pathlib import Path

import pytest
from printed import said

from ramify.base.errors import UserError
from ramify.cli.main import main
from ramify.methods.kernel_search.kernelbench import find_problem, from_kernelbench, is_problem, resized
from ramify.methods.kernel_search.named import read_task

PROBLEM = """import pathlib
import torch
import torch.nn as nn

pathlib.Path("was-run").touch()


class Model(nn.Module):
    def __init__(self, features, scale):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.scale = scale

    def forward(self, x, weights, mask, power):
        y = self.linear(x) * self.scale
        y = torch.where(mask, y, y * weights) ** power
        return y, y.argmax(1)


batch_size = 4096
features = 64  # and a remark


def get_inputs():
    return [torch.rand(batch_size, features), torch.randn(batch_size, features), torch.rand(batch_size, features) > 0.5, 2]


def get_init_inputs():
    return [features, 0.5]
"""
NEW = PROBLEM.replace("class Model(", "class ModelNew(")
STEP = "        y = self.linear(x) * self.scale\n"


def run(*words: object) -> int:
    return main(["kernel-search", *map(str, words)])


@pytest.fixture
def problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "level1"
    folder.mkdir()
    (folder / "7_Masked.py").write_text(PROBLEM, encoding="utf-8")
    return folder / "7_Masked.py"


def test_a_problem_is_known_by_its_definitions_and_its_constants_are_replaced(problem: Path) -> None:
    assert is_problem(PROBLEM)
    assert not is_problem(PROBLEM.replace("get_init_inputs", "inputs"))
    assert not is_problem("def (")
    assert find_problem(str(problem.parent / "7")) == problem
    assert find_problem(str(problem.parent / "8")) is None
    small = resized(PROBLEM, {"batch_size": 32, "features": 48}, "p.py")
    assert "batch_size = 32\nfeatures = 48  # and a remark\n" in small
    with pytest.raises(UserError, match="sets no number 'batchsize' at its top level"):
        resized(PROBLEM, {"batchsize": 1}, "p.py")
    many = "height = width = 64\na, b = 3, 4.5\nM = 16 * 4\nname = 'x'\n"
    assert resized(many, {"width": 8, "b": 2, "M": 5}, "p.py") == "height = width = 8\na, b = 3, 2\nM = 5\nname = 'x'\n"
    with pytest.raises(UserError, match="to one number"):
        resized(many, {"height": 8, "width": 9}, "p.py")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("diagnose", "{problem}", "--size", "batch_size"), "--size batch_size is not a size"),
        (("diagnose", "{problem}", "--size", "rows=2"), "sets no number 'rows'"),
        (("diagnose", "{problem}", "--ref", "os:getcwd"), "its own reference"),
        (("diagnose", "sum.c", "--size", "n=2"), "--size: sum.c is not a KernelBench problem"),
        (("diagnose", "level1/8"), "there is no kernel level1/8"),
    ],
)
def test_a_mistake_is_one_sentence(words: tuple[str, ...], part: str, problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*(word.replace("{problem}", str(problem)) for word in words)) == 2
    text = capsys.readouterr().err
    assert part in text
    assert "Traceback" not in text


def test_what_is_no_problem_is_said(problem: Path) -> None:
    problem.write_text("x = 1\n", encoding="utf-8")
    with pytest.raises(UserError, match="is not a KernelBench problem"):
        from_kernelbench(problem)
    problem.write_text(PROBLEM + "# ramify: hurry\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"7_Masked.py:30: the clause 'hurry'"):
        from_kernelbench(problem)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_problem_is_run_in_the_sandbox_only_and_its_candidates_are_judged(
    problem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = read_task(str(problem), sizes={"batch_size": 32})
    assert [(one.name, one.type, one.role, one.count, one.fixed) for one in task.arrays] == [
        ("x", "f", 1, "32,64", False),
        ("weights", "f", 1, "32,64", False),
        ("mask", "b", 1, "32,64", True),
        ("result", "f", 2, "32,64", False),
        ("result2", "l", 2, "32", False),
    ]
    flops, moved = task.work()
    assert flops is not None
    assert flops >= 2 * 32 * 64 * 64
    assert moved == 4 * (64 * 64 + 64 + 3 * 32 * 64) + 32 * 64 + 8 * 32
    assert not Path("was-run").exists()

    small = ("--size", "batch_size=32", "--pairs", 4, "--json")
    Path("same.py").write_text(NEW.replace(STEP, STEP.replace("y = ", "y = self.scale * ").replace(" * self.scale\n", "\n")))
    run("bench", problem, "same.py", *small)
    assert (found := said(capsys))["refused"] == ""
    assert found["checked"] > 10
    Path("off.py").write_text(NEW.replace(STEP, STEP.replace("self.scale", "(self.scale + 1e-2)")))
    assert run("bench", problem, "off.py", *small) == 1
    assert said(capsys)["stage"] == "wrong"
    cached = NEW.replace(STEP, "        if hasattr(self, 'kept'):\n            return self.kept\n" + STEP)
    Path("cached.py").write_text(cached.replace("return y, y.argmax(1)", "self.kept = y, y.argmax(1)\n        return self.kept"))
    assert run("bench", problem, "cached.py", *small) == 1
    assert said(capsys)["stage"] == "wrong"
    assert not Path("was-run").exists()


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_what_a_processor_cannot_judge_is_refused_in_one_sentence(problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("diagnose", problem, "--size", "batch_size=1000000") == 2
    assert (
        "more than 32 MiB: make it smaller, as --size batch_size=16 (its sizes are batch_size = 1000000"
        in capsys.readouterr().err
    )
    for changed, part in (
        (PROBLEM.replace("* self.scale\n", "* torch.rand(1)\n"), "two calls on the same inputs give different outputs"),
        (PROBLEM.replace("[features, 0.5]", "[features, nn.ReLU()]"), "get_init_inputs gives a ReLU"),
        (
            PROBLEM.replace("import torch\n", "import torch\nimport nothing_of_the_kind\n"),
            "No module named 'nothing_of_the_kind'",
        ),
    ):
        problem.write_text(changed.replace("4096", "16"), encoding="utf-8")
        assert run("diagnose", problem) == 2
        text = capsys.readouterr().err
        assert part in text
        assert "Traceback" not in text


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_its_operators_are_diagnosed(problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("diagnose", problem, "--size", "batch_size=512", "--pairs", 4, "--json") == 0
    found = said(capsys)
    (one,) = [one for one in found["findings"] if one["tool"] == "UnfusedOperators"]
    assert one["evidence"]["moved / compulsory"]["value"] > 1.5
    assert found["kind"] == "kernelbench"
