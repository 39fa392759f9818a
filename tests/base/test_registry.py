"""The registry of components: built-in ones, plug-ins, and what happens when either is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from ramify.base import registry
from ramify.base.errors import UserError
from ramify.trace.formats import Reader, Writer


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> dict:
    fresh: dict = {}
    monkeypatch.setattr(registry, "_parts", fresh)
    return fresh


def one() -> int:
    return 1


def two() -> int:
    return 2


def test_register_and_get(parts: dict) -> None:
    assert registry.register("judge", "one")(one) is one
    registry.register("judge", "one")(one)
    assert registry.get("judge", "one") is one
    with pytest.raises(UserError, match=r"judge 'one' is registered twice: by .*one and by .*two"):
        registry.register("judge", "one")(two)


def test_two_records_of_one_name_are_refused(parts: dict) -> None:
    def reader(read: Any) -> Reader:
        return Reader("mine", "Reads.", lambda path, first: False, read)

    def writer(write: Any) -> Writer:
        return Writer("mine", "writes", write)

    for kind, record in (("reader", reader), ("writer", writer)):
        first = registry.register(kind, "mine")(record(one))
        registry.register(kind, "mine")(record(one))  # a module that is loaded again
        with pytest.raises(UserError, match=rf"{kind} 'mine' is registered twice: by .*\.one and by .*\.two"):
            registry.register(kind, "mine")(record(two))
        assert parts[kind, "mine"].help == first.help


def test_two_objects_of_one_class_and_name_are_refused_where_two_modules_register_them(parts: dict) -> None:
    registry.register("backend", "mine")(object())
    registry.register("backend", "mine")(object())
    stranger: dict[str, Any] = {"__name__": "stranger", "registry": registry}
    register = types.FunctionType(
        (lambda: registry.register("backend", "mine")(object())).__code__, stranger | {"object": object}
    )
    with pytest.raises(UserError, match=r"registered twice: by .*test_registry\.object and by stranger\.object"):
        register()


def test_unknown_names_and_kinds_suggest_the_nearest() -> None:
    with pytest.raises(UserError, match=r"unknown env 'houshold' \(did you mean 'household'\?\)"):
        registry.get("env", "houshold")
    with pytest.raises(UserError, match=r"unknown kind of component 'envs' \(did you mean 'env'\?\)"):
        registry.names("envs")
    with pytest.raises(UserError, match="unknown kind of component"):
        registry.register("worlds", "x")


def test_methods_are_found_by_folder() -> None:
    assert "graph-credit" in registry.names("method")
    assert registry.get("method", "graph-credit").__name__ == "ramify.methods.graph_credit"


PLUGIN = """
from ramify.base.registry import register

@register("judge", "from-a-plugin")
def judge():
    "A stranger's judge."
"""


def run_with_plugins(folder: Path, code: str, **env: str) -> str:
    """Run ``code`` in a fresh interpreter in which a good and a broken plug-in are installed."""
    (folder / "stranger.py").write_text(PLUGIN)
    (folder / "broken.py").write_text("import no_such_module\n")
    meta = folder / "stranger-1.0.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text("[ramify]\nbroken = broken\nstranger = stranger\n")
    environ = {key: value for key, value in os.environ.items() if key != "RAMIFY_PLUGINS"} | {"PYTHONPATH": str(folder)} | env
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_plugins_come_through_the_same_door_and_failures_are_kept(tmp_path: Path) -> None:
    code = "from ramify.base import plugins, registry; print('from-a-plugin' in registry.names('judge'), plugins.load())"
    out = run_with_plugins(tmp_path, code)
    assert out.startswith("True [PluginFailure(name='broken'")
    assert "No module named 'no_such_module'" in out


@pytest.mark.slow
def test_plugins_are_off_when_the_variable_is_set_and_empty(tmp_path: Path) -> None:
    code = "from ramify.base import plugins, registry; print('from-a-plugin' in registry.names('judge'), plugins.load())"
    assert run_with_plugins(tmp_path, code, RAMIFY_PLUGINS="") == "False []"
