"""What import and export say of formats and their settings."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ramify.trace import formats


def test_help_lists_every_format_and_setting(verb: Any) -> None:
    shown = verb("import", "--help").out
    assert all(f"\n  {reader.name}\n        {reader.help}" in shown for reader in formats.readers().values())
    shown = verb("export", "--help").out
    assert "\n  html (.html, .htm)\n" in shown
    for writer in formats.writers().values():
        assert f"\n  {writer.name}" in shown
        for name, text in writer.settings.items():
            assert f"--{name.replace('_', '-')}: {text}" in shown


def test_settings_of_a_format(verb: Any, chats: Path) -> None:
    assert verb("export", "chats", "a.parquet", "--records=trees", "--json").json["rows"] == 2
    assert verb("export", "chats", "b.parquet", "--records", "trees", "--json").json["rows"] == 2
    assert verb("export", "chats", "c", "--to", "jsonl", "--json").json["rows"] == 12
    assert (
        verb.refused("export", "chats", "d.parquet", "--recods", "trees") == "unknown option --recods (did you mean '--records'?)"
    )
    assert "--records needs a value: parquet: the kind of record" in verb.refused("export", "chats", "d.parquet", "--records")
    assert "--records needs a value" in verb.refused("export", "chats", "d.parquet", "--records", "--json")
    assert verb.refused("export", "chats", "d.parquet", "--records", "nodes", "--records", "trees") == "--records is given twice"
    assert "unexpected argument 'more'" in verb.refused("export", "chats", "d.parquet", "more")
    assert "--tree goes with --to dot" in verb.refused("export", "chats", "d.parquet", "--tree", "x")
    assert not Path("d.parquet").exists()


def test_import_of_a_named_format(verb: Any, chats: Path) -> None:
    assert verb("import", "chats.jsonl", "--run", "a", "--from", "chats", "--json").json["records"] == 2
    assert "unknown format 'chat' (did you mean 'chats'?)" in verb.refused(
        "import", "chats.jsonl", "--run", "b", "--from", "chat"
    )
    assert "chats.jsonl:1: 'task_id' must be" in verb.refused("import", "chats.jsonl", "--run", "b", "--from", "steps")
    Path("odd.jsonl").write_text(json.dumps({"a": 1}))
    assert "an object with the keys 'a', which is of no format" in verb.refused("import", "odd.jsonl", "--run", "b")
    assert not Path("b").exists()


def test_what_a_format_needs_is_said(verb: Any, chats: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "inspect_ai.log", None)  # as where the extra is not installed
    Path("log.eval").write_bytes(b"PK")
    for words in (("import", "log.eval", "--run", "b"), ("export", "chats", "out.eval")):
        outcome = verb(*words)
        assert (outcome.code, outcome.out) == (4, "")
        assert outcome.err == "ramify: inspect logs need inspect_ai: pip install 'ramify[serve]'\n"
    assert sorted(path.name for path in Path().iterdir()) == ["chats.jsonl", "log.eval", "runs"]
