"""The reproduction's parts on small cases; the figures themselves come from `ramify repro cliffs`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.methods.cliffs.run import TokenPair
from ramify.stats.drops import Counts
from ramify_experiments.cliffs import repro
from ramify_experiments.lab import Checks, ResultCache

#: learns nothing in its single look: the shape of a cell is what is tested
RECIPE: dict[str, Any] = {
    "mod": 5, "operand": 2, "hops": 1, "width": 32, "layers": 1, "rows": 8, "demonstrations": 7, "held_out": 7, "below": 2.5,
    "accuracy": 0.0, "lr": 1e-2,
}  # fmt: skip


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    patch = pytest.MonkeyPatch()
    patch.setenv("RAMIFY_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.mark.slow
def test_the_exact_process_shows_what_the_paper_does_not() -> None:
    cell = repro.process_cell(200, 0)
    observed, true, held = map(np.array, cell["classes"]["deterministic"])
    assert (observed > 0.1).all()
    assert abs(true).max() < 0.01
    assert not held.any()
    assert np.mean(np.array(cell["del"]) > 0) == 1.0
    assert cell == repro.process_cell(200, 0)


def test_a_ratio_without_a_cliff_in_right_replies_is_cut_off() -> None:
    right = np.array([False, False, True, True])
    checks = Checks((0,))
    repro._ratio(checks, "ratio", np.array([1, 3, 1, 0]), right, 2.0)
    repro._ratio(checks, "ratio", np.array([1, 3, 0, 0]), right, 2.0)
    assert [check.value for check in checks] == pytest.approx([4.0, 1000.0])


def test_an_undefined_control_scores_zero() -> None:
    assert repro._pass(None, 64) == 0.0
    assert repro._pass(Counts(1, 64), 64) == 1.0
    assert repro._pass(Counts(0, 0), 1) == 0.0
    assert repro._pass(Counts(16, 64), 1) == pytest.approx(0.25)


def test_a_size_there_is_none_of() -> None:
    with pytest.raises(UserError, match="no size 'gpu'"):
        repro.reproduce("gpu", ResultCache())


@pytest.mark.slow
def test_scan_cells_repeat_and_measure_everything(cache: None) -> None:
    cell = repro.scan_cell(RECIPE, 0, 2, 0, 2)
    assert cell == repro.scan_cell(RECIPE, 0, 2, 0, 2)
    tokens = [trace["tokens"] for trace in cell["traces"]]
    assert [len(trace["k"]) - 1 for trace in cell["traces"]] == tokens
    assert all(0 <= k <= 64 for trace in cell["traces"] for k in trace["k"] if k is not None)
    assert cell["spent"]["faithful"]["scan"] >= 64 * max(tokens)
    assert 0 < cell["spent"]["budgeted"]["scan"] < cell["spent"]["faithful"]["scan"]


@pytest.mark.slow
def test_training_cells_move_the_model(cache: None) -> None:
    lab = repro.ForkLab(RECIPE, 0)
    row = codec.to_json(TokenPair("a", 1, lab.problems("demo", 1)[0].prompt_ids, 1, 2))
    one, again = (repro.training_cell(RECIPE, 0, [row], 20, 1e-2, 5) for _ in range(2))
    assert one == again
    assert set(one) == {"greedy", "sampled"}
    found = repro.pairs_cell(RECIPE, 0, 2, 0, 2)["dense"]  # the replies with what each tested token changed
    assert [len(reply["logprobs"]) for reply in found] == [len(reply["reply"]) for reply in found]
    assert all(reply["moved"] for reply in found)
    assert set(repro.dense_cell(RECIPE, 0, found, 2, 1e-2, 5)) == {"greedy", "sampled"}
    untrained = repro.dense_cell(RECIPE, 0, [], 2, 1e-2, 5)
    assert untrained == repro.dense_cell(RECIPE, 0, [found[0] | {"moved": [[1, 0.0]]}], 2, 1e-2, 5)
    found = repro.policy_cell(RECIPE, 0, 1.0, 1e-3, 5, 5)
    assert found["updates"] == 1
    assert found["tokens"] == pytest.approx(300, abs=180)


def test_a_pair_is_one_row_with_one_trained_token() -> None:
    (row,) = repro.pair_rows([TokenPair("a", 1, (1, 1, 2), 3, 16_777_215, "uncertain")])
    assert row.tokens.tolist() == [1, 1, 2, 3]  # a doubled first token stays, nothing is appended
    assert row.mask.tolist() == [False, False, False, True]
    assert row.token_values["rival"].tolist() == [0, 0, 0, 16_777_215]
