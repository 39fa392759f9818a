"""``ramify why`` through a server of its own process: what its continuations share is computed once, counted by the server."""

from __future__ import annotations

from pathlib import Path

import pytest
from serve_process import serve

from ramify.engine.checkpoints import model_folder
from ramify.env.builtin.household import HouseholdEnvironment
from ramify.model.endpoint import HttpModel
from ramify_experiments.why.served import Sent, in_blocks, measure, once

TASKS = list(HouseholdEnvironment().task_set("eval", 2))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_prefixes_that_continuations_share_are_computed_once(tmp_path: Path) -> None:
    with serve(tmp_path, "builtin") as served:
        url = f"http://127.0.0.1:{served.port}/v1"
        model = HttpModel(url, "builtin", "completions", tokenizer=model_folder("builtin"))
        found = measure(model, tmp_path / "tokens", TASKS[:1], attempts=2, samples=12)
        assert (found["continuations"], found["failed"]) == (12, 0)
        assert found["once"] <= found["computed"] <= found["once"] + found["prompts"]
        assert found["computed"] + found["cached"] == found["prompt_tokens"]
        assert found["computed"] < 0.2 * found["prompt_tokens"]
        # an agent that is continued by messages, at the ends of its steps
        chat = measure(HttpModel(url, "builtin"), tmp_path / "messages", TASKS[1:], attempts=2, samples=6)
        assert (chat["continuations"], chat["failed"]) == (6, 0)
        assert chat["cached"] > chat["computed"]


def test_the_fewest_that_a_cache_of_blocks_leaves_to_compute() -> None:
    attempt = Sent((1, 2, 3, 4, 5), (6, 7), False, {})
    again = [Sent((1, 2, 3, 4, 5, 6, 7, 8), (9,), True, {}), Sent((1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13), (9,), True, {})]
    assert once([attempt, *again]) == 5  # 8 and 10 to 13
    # the block 5 to 8 is the end of the first prompt, which computes it though it is in no cache; then 10 to 13 is the end of the
    # second
    assert in_blocks([attempt, *again], 4) == 8
    assert in_blocks([attempt, again[1]], 4) == 8
    assert in_blocks([attempt, *again, again[1]], 4) == 12  # without its last block there is nothing to sample from
