"""``ramify why`` through a server of its own process: what its continuations share is computed once, counted by the server."""

from __future__ import annotations

from pathlib import Path

import pytest
from serve_process import serve

from ramify.engine.checkpoints import model_folder
from ramify.model.endpoint import HttpModel
from ramify_experiments.why.served import measure

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_prefixes_that_continuations_share_are_computed_once(tmp_path: Path) -> None:
    with serve(tmp_path, "builtin") as served:
        url = f"http://127.0.0.1:{served.port}/v1"
        model = HttpModel(url, "builtin", "completions", tokenizer=model_folder("builtin"))
        found = measure(model, tmp_path / "tokens", tasks=1, attempts=2, samples=12)
        assert (found["continuations"], found["failed"]) == (12, 0)
        assert found["once"] <= found["computed"] <= found["once"] + found["prompts"]
        assert found["computed"] + found["cached"] == found["prompt_tokens"]
        assert found["computed"] < 0.2 * found["prompt_tokens"]
        # an agent that is continued by messages, at the ends of its steps
        chat = measure(HttpModel(url, "builtin"), tmp_path / "messages", tasks=1, attempts=2, samples=6)
        assert (chat["continuations"], chat["failed"]) == (6, 0)
        assert chat["cached"] > chat["computed"]
