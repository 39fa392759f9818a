"""What decides that a result is still of this code: what its function reaches by imports, and the data beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ramify_experiments import code

FILES = {
    "__init__.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from toy_lab.lazy import thing as thing\n",
    "cell.py": "from .near import x\nfrom toy_lab import thing\n\ndef f():\n    import toy_lab.late\n",
    "near.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import toy_lab.types\nelse:\n    import toy_lab.other\n",
    "data.json": "{}",
    **{f"{name}.py": "" for name in ("late", "lazy", "other", "types", "stranger")},
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(code, "OWN", (*code.OWN, "toy_lab"))
    folder = tmp_path / "toy_lab"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


def forget() -> None:
    for cached in (code.code_of, code.source, code._tree, code._leads_to, code._lazily):
        cached.cache_clear()


def test_what_a_function_reaches_decides_and_nothing_else(package: Path) -> None:
    forget()
    before = code.code_of("toy_lab.cell")
    same = {}
    for name in FILES:
        file = package / name
        file.write_text(FILES[name] + " ")
        forget()
        same[name] = code.code_of("toy_lab.cell") == before
        file.write_text(FILES[name])
    assert [name for name, unchanged in same.items() if unchanged] == ["types.py", "stranger.py"]
    forget()
    assert code.code_of("toy_lab.cell") == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "within", "without"),
    [
        ("ramify_experiments.governance.repro", "ramify.base.seeds", "ramify.methods.governance.run"),
        ("ramify_experiments.early_decision.organisms", "ramify.train.losses", "ramify.methods.early_decision.run"),  # a lookup
        ("ramify_experiments.cliffs.repro", "ramify.env.builtin.chain", "ramify.web.server"),
        ("ramify_experiments.improve", "ramify.env.builtin.household", "ramify.web.server"),
    ],
)
def test_what_experiments_reach(module: str, within: str, without: str) -> None:
    found = code.reached((module,), frozenset(code.OWN))
    assert module in found
    assert within in found
    assert without not in found


def test_weights_of_the_built_in_agent_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    files: Callable[[str], list[Path]] = lambda module: list(code._files(module))  # noqa: E731
    assert {"model.safetensors", "checkpoints.py"} <= {file.name for file in files("ramify.engine.checkpoints")}
