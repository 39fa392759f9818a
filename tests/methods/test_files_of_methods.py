"""What a method finds is in the run: the only files that methods write are exports, reports, pictures,
weights and what the user edits.

The table names every function of a method that writes a file and what it is; one more, or one that is gone, fails.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

METHODS = Path(__file__).parents[2] / "src" / "ramify" / "methods"
WRITERS = {
    "write_whole",
    "whole_file",
    "write_rows",
    "write_lines",
    "write_text",
    "write_bytes",
    "save_file",
    "copyfile",
    "touch",
}
WRITERS |= {"np.save", "np.savez", "json.dump"}
FILES = {
    "export": {
        *(
            "cliffs/verbs.py:pairs_",
            "diagnose/verbs.py:run",
            "crosscoder/run.py:export",
            "graph_credit/verbs.py:advantages",
        ),
        *("graph_credit/verbs.py:show", "implicit_advantage/verbs.py:select"),
        *("earned_code_memory/report.py:export", "earned_code_memory/skills.py:export"),
        *("maze_recovery/theory_verbs.py:train", "maze_recovery/verbs.py:audit", "maze_recovery/verbs.py:build"),
        *("verify_or_ship/verbs.py:calibrate", "verify_or_ship/verbs.py:regimes_"),
        *("theory_loop/verbs.py:_export", "theory_loop/verbs.py:_register", "theory_loop/verbs.py:_simulate"),
        "world_model/preparing.py:prepare",
    },
    "report": {
        *("crosscoder/verbs.py:show", "crosscoder/verbs.py:_ranking", "forensics/verbs.py:report_"),
        *("governance/verbs.py:report_", "governance/verbs.py:audit", "verify_or_ship/verbs.py:score"),
        "kernel_search/verbs.py:explain",
    },
    "picture": {"cliffs/verbs.py:show"},
    "weights, states, and what a checkpoint's folder says of itself": {
        *(
            "crosscoder/dictionary.py:save",
            "crosscoder/run.py:save",
            "dspark/drafter_files.py:save_drafter",
            "dspark/run.py:calibrate",
        ),
        "orchestrator/router.py:save",
        *("dspark/training.py:kept_text", "dspark/training.py:train_drafter", "early_decision/states.py:capture"),
        "world_model/training.py:write_world",
    },
    "what outlasts runs: measured roofs of a machine, a memory or library that the user names": {
        *("kernel_search/diagnosis.py:measured_roofs", "kernel_search/library.py:keep", "kernel_search/proposers.py:add"),
    },
    "a case.toml, which the user edits": {"forensics/verbs.py:_begun"},
}
"""What is written -> the functions that write it."""


def named(call: ast.expr) -> str:
    """A called name with what it is of: ``np.save``, ``file.write_text``."""
    if isinstance(call, ast.Attribute):
        return f"{named(call.value)}.{call.attr}"
    return call.id if isinstance(call, ast.Name) else "?"


def writes(call: ast.Call) -> bool:
    """Whether a call writes a file."""
    name = named(call.func)
    if name.split(".")[-1] == "open" and not name.startswith("tarfile."):  # of bytes in memory
        modes = [arg.value for arg in (*call.args, *(k.value for k in call.keywords)) if isinstance(arg, ast.Constant)]
        return any(isinstance(mode, str) and set(mode) <= set("rwaxbt+") and set(mode) & set("wax+") for mode in modes)
    return name in WRITERS or name.split(".")[-1] in WRITERS


def writers(source: str) -> Iterator[str]:
    """The functions that write a file themselves, functions in them aside."""

    def within(node: ast.AST, function: str) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call) and function and writes(child):
                yield function
            named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from within(child, child.name if named else function)

    yield from dict.fromkeys(within(ast.parse(source), ""))


@pytest.mark.slow
def test_methods_write_no_results_beside_the_run() -> None:
    found = {
        f"{file.relative_to(METHODS)}:{name}"
        for file in METHODS.rglob("*.py")
        if "inside" not in file.parts  # that runs in the sandbox
        for name in writers(file.read_text(encoding="utf-8"))
    }
    known = set.union(*FILES.values())
    assert (found - known, known - found) == (set(), set())


def test_the_check_sees_a_file_of_results() -> None:
    assert list(writers("def keep(x):\n    write_whole(folder / 'results.json', x)\n")) == ["keep"]
    assert list(writers("def keep(x):\n    with path.open('a') as file:\n        file.write(x)\n")) == ["keep"]
    assert list(writers("async def keep(x):\n    (folder / 'rows').write_text(x)\n")) == ["keep"]
    assert list(writers("def keep(x):\n    run.log('row', 'a', x)\n    template.open('assistant')\n    path.open('rb')\n")) == []
