"""Prompts of a run: what its agent was shown before each reply, token for token."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ramify.base.errors import UserError
from ramify.cli.main import main
from ramify.engine.named import find_model
from ramify.methods.dspark.prompts import of_run
from ramify.trace.db import Run


def test_prompts_of_a_run_are_what_its_agent_was_shown(tmp_path: Path) -> None:
    assert main(["rollout", "--model", "builtin", "--count", "1", "--out", str(tmp_path / "run")]) == 0
    _, template = find_model("builtin")
    assert template is not None
    rows = {tuple(row.tolist()) for row in of_run(tmp_path / "run")}
    with Run.open(tmp_path / "run") as run:
        replies = [node for info in run.trees() for node in run.nodes(info.name) if node.role == "assistant"]
        wanted = set()
        for node in replies:
            before = run.path(str(node.parent))
            head = template.open("assistant", before.messages()[-1].role)
            wanted.add((*before.tokens.tolist(), *head))
    assert rows == wanted
    log = tmp_path / "chat.jsonl"
    log.write_text(json.dumps({"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}) + "\n")
    assert main(["import", str(log), "--run", str(tmp_path / "texts")]) == 0
    with pytest.raises(UserError, match="holds no reply with token ids"):
        of_run(tmp_path / "texts")
