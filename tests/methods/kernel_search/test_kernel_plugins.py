"""Candidates that come from elsewhere: the wall as a judge and as an assertion, and a library of kept kernels."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramify.base.errors import UserError
from ramify.engine.sampling import key_uniforms
from ramify.integrations.pytest.plugin import Assertions
from ramify.methods.kernel_search import search
from ramify.methods.kernel_search.library import CodeLibrary, signature
from ramify.methods.kernel_search.plugins import KernelJudge
from ramify.methods.kernel_search.proposers import LLMProposer, ScriptedProposer, find_proposer
from ramify.methods.kernel_search.task import from_c
from ramify.methods.kernel_search.wall import Code
from ramify.model.function import FunctionModel
from ramify.score.judge import Item, find_judge, judged
from ramify_experiments.kernel_search.engine_uniforms import versions
from tests.methods.kernel_search.kernels import EXP, SUM

needs_gcc = pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is needed")
SIMD = SUM.replace("  for", "#pragma omp simd reduction(+:s)\n  for")
FLAGS = ("-O3", "-march=native", "-fopenmp-simd")
OTHER = """// ramify: count = 15000, 77
float total(int count, const float *values) {
  float sum = 0;
  for (int k = 0; k < count; k++)
    sum += values[k];
  return sum;
}
"""


INSPECT = """
import sys
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from ramify.integrations.inspect.scorer import inspect_scorer
from ramify.score.judge import find_judge
reply = ModelOutput.from_content("mockllm/model", sys.argv[2])
reply.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
model = get_model("mockllm/model", custom_outputs=[reply])
task = Task([Sample(input="faster", target="")], scorer=inspect_scorer(find_judge("kernel-search:" + sys.argv[1])))
(log,) = eval(task, model=model, log_dir=sys.argv[3], display="none")
assert log.status == "success", log.error
(score,) = log.samples[0].scores.values()
print(score.value)
"""


def fenced(source: str) -> str:
    return f"Here it is:\n```c\n// flags: {' '.join(FLAGS)}\n{source}```\n"


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    path = tmp_path / "sum.c"
    path.write_text(SUM, encoding="utf-8")
    return path


@pytest.mark.slow
@needs_gcc
def test_a_reply_is_worth_the_reward_of_its_candidate(kernel: Path) -> None:
    judge = find_judge(f"kernel-search:{kernel}:sum")
    assert isinstance(judge, KernelJudge)
    assert judge.identity != find_judge("kernel-search").identity
    replies = [fenced(SIMD), fenced(SUM.replace("i < n", "i < n - 1")), "It cannot be made faster."]
    right, wrong, none = asyncio.run(judged(judge, [Item(text, str(i)) for i, text in enumerate(replies)]))
    assert right.evidence["refused"] == ""
    assert right.value is not None
    assert right.value >= 0.05
    assert (wrong.value, wrong.evidence["stage"]) == (0.0, "wrong")
    assert (none.value, none.evidence["stage"]) == (0.0, "reply")
    assert asyncio.run(judged(find_judge("kernel-search"), [Item(replies[0])]))[0].value is None
    with pytest.raises(UserError, match="there is no kernel none"):
        find_judge("kernel-search:none.c:f")


@pytest.mark.slow
@needs_gcc
def test_it_is_a_reward_of_trl_and_a_scorer_of_inspect(kernel: Path) -> None:
    from ramify.integrations.trainers.trl_trainer import reward_function

    judge: Any = find_judge(f"kernel-search:{kernel}:sum")
    given = reward_function(judge)(
        [[{"role": "user", "content": "faster"}]] * 2, [[{"role": "assistant", "content": text}] for text in (fenced(SIMD), "no")]
    )
    rewards = asyncio.run(given)  # type: ignore[arg-type]
    assert rewards[0] is not None
    assert rewards[0] > rewards[1] == 0.0
    pytest.importorskip("inspect_ai")
    words = [sys.executable, "-c", INSPECT, f"{kernel}:sum", fenced(SIMD), str(kernel.parent / "logs")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout.splitlines()[-1]) > 0.05


@pytest.mark.slow
@needs_gcc
def test_a_test_asserts_that_a_kernel_is_right(kernel: Path, tmp_path: Path) -> None:
    assertion = Assertions().assert_right_kernel
    wrong = tmp_path / "wrong.c"
    wrong.write_text(SUM.replace("i < n", "i < n - 1"), encoding="utf-8")
    assertion(f"{kernel}:sum", kernel)
    with pytest.raises(AssertionError, match=r"refused \(wrong\)"):
        assertion(f"{kernel}:sum", wrong)


@pytest.mark.slow
@needs_gcc
def test_a_speed_that_is_not_reached_fails_a_test(kernel: Path) -> None:
    with pytest.raises(AssertionError, match="not 1000"):
        Assertions().assert_right_kernel(f"{kernel}:sum", kernel, at_least=1000, pairs=4)


def test_a_kept_kernel_is_found_for_a_like_task_only(tmp_path: Path) -> None:
    library = CodeLibrary(tmp_path / "kept")
    assert library.like(from_c(OTHER)) == []
    path = library.keep(from_c(SUM), Code(SIMD, FLAGS, {"T": "2"}), 12.3456)
    assert library.keep(from_c(SUM), Code(SIMD, FLAGS, {"T": "2"}), 12.0) == path
    (found,) = library.like(from_c(OTHER))
    assert "float total(int n" in found.source
    assert (found.flags, found.macros) == (FLAGS, {"T": "2"})
    product = OTHER.replace("float sum = 0", "float sum = 1").replace("+=", "*=")
    assert signature(from_c(product)) == signature(from_c(SUM))
    assert library.like(from_c(EXP)) == []  # another signature
    long = (
        "// ramify: n = 10\nfloat other(int n, const float *x) {\n  float best = x[0], worst = x[0];\n  for (int i = 0; i < n; "
        "i++) {\n    if (x[i] > best) best = x[i];\n    if (x[i] < worst) worst = x[i];\n  }\n  return best / worst;\n}\n"
    )
    assert library.like(from_c(long)) == []  # the same signature, another operation
    path.write_text('// ramify kernel: {"symbol": 1}\n' + SIMD, encoding="utf-8")
    with pytest.raises(UserError, match=r"sum-\w+\.c:1 is not a line of a kept kernel"):
        library.like(from_c(OTHER))
    with pytest.raises(UserError, match="is not a folder"):
        CodeLibrary(path)


@pytest.mark.slow
@needs_gcc
def test_a_search_keeps_its_best_and_the_next_begins_with_it(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"pairs": 4, "batch": 0.002, "roofs": False, "library": str(tmp_path / "kept")}
    first = search(from_c(SUM), evals=1, proposer=ScriptedProposer([Code(SIMD, FLAGS)]), **settings)
    library = CodeLibrary(tmp_path / "kept")
    assert len(list((tmp_path / "kept").iterdir())) == (1 if first.gain else 0)
    if not first.gain:  # a busy machine: nothing is ranked, so nothing is kept
        library.keep(from_c(SUM), Code(SIMD, FLAGS), 2.0)
    found = search(from_c(OTHER), evals=1, **settings)
    assert [how for how, _ in found.tools[1:]] == ["library"]
    assert found.trials[1].ok, found.trials[1].refused


def test_a_model_is_shown_like_code(tmp_path: Path) -> None:
    folder = tmp_path / "blas"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "asum.h").write_text(
        "/* sums */\n\nfloat asum(int n, const float *x) {\n  float s = 0;\n  return s;\n}\n\nint unlike;\n"
    )
    (folder / "notes.txt").write_text("float sum(int n, const float *x)")
    library = CodeLibrary(folder)
    (best, *_) = library.excerpts(SUM)
    assert (Path(best.path).name, best.line) == ("asum.h", 2)
    assert "float asum" in best.text
    made = LLMProposer(from_c(SUM), FunctionModel(lambda messages: "no", name="writer"), None, library=library)
    assert "asum.h:2:\n\n```\nfloat asum(int n" in made.prompt(Code(SUM), [], "")
    assert find_proposer("transforms", from_c(SUM), 0, made.memory, library).name == "transforms"


def test_the_versions_of_the_engines_uniforms_give_the_same_bits() -> None:
    made = {}
    for name, (_, source) in versions().items():
        space: dict[str, Any] = {}
        exec(source, space)
        made[name] = space["key_uniforms"](300, np.array([2**62 - 57]))
    assert list(made) == ["engine", "inplace", "once", "row"]
    assert all(np.array_equal(one, made["engine"]) for one in made.values())
    assert np.array_equal(made["row"], key_uniforms(2**62 - 57, 300))
