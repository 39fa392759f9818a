"""What decides that a result is still of this code: what its function reaches by imports, and the data beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramify_experiments import code

FILES = {
    "__init__.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from toy_lab.lazy import thing as thing\n"
    "    from toy_lab.deferring import deferred as deferred\n    from toy_lab.unused import nothing as nothing\n",
    "cell.py": "from .near import x\nfrom toy_lab import thing\nTABLE = {'x': 'toy_lab.table'}\n\n"
    "def f():\n    import toy_lab.late\n    import toy_lab as lab\n    lab.deferred()\n"
    "    start('-m', 'toy_lab.started')\n    load('toy_lab.loaded:thing')\n",
    "near.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import toy_lab.types\nelse:\n    import toy_lab.other\n",
    "data.json": "{}",
    "inside/program.py": "",
    **{
        f"{name}.py": ""
        for name in ("deferring", "late", "lazy", "loaded", "other", "started", "stranger", "table", "types", "unused")
    },
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(code, "OWN", (*code.OWN, "toy_lab"))
    folder = tmp_path / "toy_lab"
    (folder / "inside").mkdir(parents=True)
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
    assert [name for name, unchanged in same.items() if unchanged] == ["stranger.py", "table.py", "types.py", "unused.py"]
    forget()
    assert code.code_of("toy_lab.cell") == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "within", "without"),
    [
        ("ramify_experiments.governance.repro", "ramify.base.seeds", "ramify.methods.governance.run"),
        ("ramify_experiments.early_decision.organisms", "ramify.train.losses", "ramify.methods.early_decision.verbs"),  # a lookup
        ("ramify_experiments.cliffs.repro", "ramify.env.builtin.chain", "ramify.web.server"),
        ("ramify_experiments.improve", "ramify.env.builtin.household", "ramify.web.server"),
    ],
)
def test_what_experiments_reach(module: str, within: str, without: str) -> None:
    found = code.reached((module,), frozenset(code.OWN))
    assert module in found
    assert within in found
    assert without not in found


@pytest.mark.parametrize(
    ("module", "within"),
    [
        ("ramify.engine.checkpoints", {"model.safetensors", "checkpoints.py"}),
        ("ramify.sandbox", {"worker.py"}),  # programs that run in it
        ("ramify.web", {"page.js", "report.html"}),
    ],
)
def test_weights_programs_and_pages_decide(module: str, within: set[str]) -> None:
    assert within <= {file.name for file in code.files(module)}
