"""The audit against mazes whose dead ends are known, and against traces that lack what it needs."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from maze_cases import DETOUR, GOLDEN, K, W, base_walks, trace, way

from ramify.base.errors import UserError
from ramify.methods.maze_recovery import audit_traces
from ramify.methods.maze_recovery.attempts import Source, Traces, from_records, load
from ramify.methods.maze_recovery.audit import DeadEnd
from ramify.methods.maze_recovery.traces import Marked, StepLabel, against_keys, audit_texts
from ramify.trace.keys import scrub


def test_golden_traces_cover_nothing():
    found = audit_traces(GOLDEN)
    assert found.recovery_coverage == 0
    assert found.families == found.recoveries == found.dead_ends == 0
    assert found.loop_free.value == found.success_share.value == 1
    assert found.mean_depth is found.efficiency is None
    assert found.caveats == ("every trace is a straight success: nothing here shows how to get out of a wrong turn",)


def test_raw_walks_cover_wrong_branches_whatever_their_order():
    walks = base_walks(30)
    found = audit_traces(walks, min_examples=2)
    assert found.recovery_coverage > 0
    assert found.recovery_coverage == found.families_covered / found.families
    assert found.families == W * (2 * K + 1)  # every state of a branch is wrong for some task
    assert found.dead_ends == W * (W - 1)  # the other leaves of each task
    assert found.off_way_states == W * (W - 1) * (2 * K + 1)
    same = ("recovery_coverage", "families", "dead_ends", "recoveries", "mean_depth", "efficiency")
    turned = audit_traces(walks[::-1], min_examples=2)
    assert {k: getattr(turned, k) for k in same} == pytest.approx({k: getattr(found, k) for k in same})
    twice = audit_traces(walks + walks, min_examples=1)
    once = audit_traces(walks, min_examples=1)
    assert twice.recovery_coverage == once.recovery_coverage


def test_one_detour_in_closed_form():
    found = audit_traces([trace(DETOUR, "b0 leaf"), trace(way(0), "b0 leaf")], min_examples=1)
    deep = 2 * K + 1
    assert found.recoveries == 1
    assert found.mean_depth == deep
    assert found.efficiency == 1
    assert found.recovery_traces.k == 1
    assert (found.dead_ends, found.off_way_states, found.recovery_coverage) == (1, deep, 1.0)
    assert found.dead_end_list == (DeadEnd("b0 leaf", "b1 leaf", 1, None, 1.0, None),)
    first, second = found.per_trace
    assert (first.steps, first.steps_in_loops, first.dead_ends) == (2 * deep + 2 * K + 2, 2 * deep, 1)
    assert (second.loop_free, second.recoveries, second.mean_depth) == (True, 0, None)
    assert not found.caveats
    assert audit_traces([trace(DETOUR, "b0 leaf")]).lacking[0].examples == 1


def test_families_put_states_together():
    tied = audit_traces(base_walks(30), family=lambda keys: [key[2:] for key in keys])  # branches share their families
    assert tied.families == 2 * K + 1
    renamed = [trace([s.replace("b", "branch ") for s in ["source", *states]], "t") for states in (DETOUR, way(0))]
    assert audit_traces(renamed, family=lambda keys: ["any"] * len(keys)).families == 1


def test_what_could_have_been_done_at_a_dead_end():
    stuck = trace(way(1), "b0 leaf", success=False)
    stuck["steps"][-1]["actions"] = [stuck["steps"][-1]["action"], "look under the mat"]
    found = audit_traces([stuck, trace(way(0), "b0 leaf")])
    assert found.dead_end_list[0].untried == ("look under the mat",)
    assert found.recovery_coverage == 0
    assert found.families == 2 * K
    cut = audit_traces([stuck | {"truncated": True}, trace(way(0), "b0 leaf")])
    assert cut.dead_ends == 0  # a limit is not a dead end


def test_failures_alone_and_unknown_success():
    found = audit_traces([trace(DETOUR, "b0 leaf", success=False)])
    assert found.caveats[0].startswith("no trace is known to have succeeded")
    assert found.recoveries == 1
    assert found.families == found.dead_ends == 0
    unknown = trace(way(0), "b0 leaf")
    del unknown["success"]
    assert audit_traces([unknown, *GOLDEN]).success_unknown == 1
    paid = unknown | {"steps": [step | {"reward": 0.5} for step in unknown["steps"]]}
    assert audit_traces([paid]).success_share.k == 1


def test_keys_too_fine_and_too_coarse():
    fine = [trace([f"{at}: {s}" for at, s in enumerate(DETOUR)], "b0 leaf")]
    assert "no state occurs twice" in audit_traces(fine).caveats[-1]
    assert audit_traces(fine, keys=scrub("numbers")).recoveries == 1
    coarse = audit_traces([{**t, "steps": [s | {"state": s["state"][-2:-1]} for s in t["steps"]]} for t in base_walks(20)])
    assert coarse.ambiguity.value == 0  # an action names the place it leads to
    for walk in (blind := base_walks(20)):
        for step, nxt in pairwise(walk["steps"]):
            step["action"] = "on" if len(nxt["state"]) >= len(step["state"]) else "back"
    found = audit_traces(blind)
    assert found.ambiguity.value > 0.05
    assert any("led elsewhere" in warning for warning in found.caveats)


def test_state_and_task_may_be_functions():
    walks = [
        {"id": n, "steps": [{"at": [s["state"], n], "action": s["action"]} for s in w["steps"]], "success": True}
        for n, w in enumerate(base_walks(6))
    ]
    found = audit_traces(walks, state_key=lambda step: step["at"][0], task_key=lambda record: record["id"] % W)
    assert found.recoveries == audit_traces(base_walks(6)).recoveries
    assert found.tasks == W


DEEP: list[Any] = []
for _ in range(5000):
    DEEP = [DEEP]

BAD = [
    ({"steps": [{"state": 1, "action": "a"}]}, r"trace 1: a trace has no field 'task_id' \(known: steps\)"),
    ({"task_id": 1, "steps": []}, "trace 1: 'steps' must be a list with at least one step"),
    ({"task_id": 1, "steps": [3]}, "trace 1: step 0 is not an object"),
    ({"task_id": 1, "steps": [{"state": 1}]}, "trace 1: step 0 has no field 'action'"),
    ({"task_id": 1, "steps": [{"sate": 1, "action": "a"}]}, r"step 0 has no field 'state or obs' \(did you mean 'sate'\?\)"),
    ({"task_id": 1, "steps": [{"state": 1, "action": "a"}], "success": 1}, "'success' must be true or false, not '1'"),
    ({"task_id": 1, "steps": [{"state": 1, "action": "a", "reward": "x"}]}, "step 0: 'reward' must be a finite number, not 'x'"),
    ({"task_id": 1, "steps": [{"state": 1, "action": "a", "reward": 10**400}]}, "step 0: 'reward' must be a finite number"),
    (
        {"task_id": 1, "steps": [{"state": 1, "action": "a", "reward": float("inf")}]},
        "'reward' must be a finite number, not 'inf'",
    ),
    ({"task_id": 1, "steps": [{"state": 1, "action": "a", "tokens": 10**400}]}, "step 0: 'tokens' must be how many"),
    ({"task_id": 1, "steps": [{"state": DEEP, "action": "a"}]}, "trace 1: maximum recursion depth"),
    ({"task_id": 1, "steps": [{"state": DEEP, "obs": "x", "action": "a"}]}, "no canonical key"),
    ({"task_id": 1, "steps": [{"state": 1, "action": "a", "tokens": -1}]}, "step 0: 'tokens' must be how many"),
    ({"task_id": 1, "steps": [{"state": 1, "action": "a", "actions": "x"}]}, "step 0: 'actions' must be a list of texts"),
    (
        {"task_id": 1, "steps": [{"state": {1, "a"}, "action": "a"}, {"state": object(), "action": "a"}]},
        "no canonical key|not JSON|no JSON",
    ),
]


@pytest.mark.parametrize(("record", "fault"), BAD)
def test_a_bad_record_is_named(record: dict[str, Any], fault: str):
    with pytest.raises(UserError, match=fault):
        audit_traces([record])


def test_nothing_to_audit():
    with pytest.raises(UserError, match="no trace with a step"):
        audit_traces([])
    with pytest.raises(UserError, match="min_examples must be at least 1"):
        audit_traces(GOLDEN, min_examples=0)


def test_files_of_whole_traces(tmp_path: Path):
    file = tmp_path / "walks.jsonl"
    file.write_text("".join(json.dumps(walk) + "\n" for walk in base_walks(6)), encoding="utf-8")
    assert audit_traces(load(file)).recoveries == audit_traces(base_walks(6)).recoveries
    with pytest.raises(UserError, match=rf"{file}:1: step 0 has no field 'obs'"):
        load(file, Source(state_field="obs"))
    file.write_text(json.dumps(GOLDEN[0]) + "\n{}\n", encoding="utf-8")
    with pytest.raises(UserError, match=rf"{file}:2: a trace has no field 'task_id'"):
        load(file)
    with pytest.raises(UserError, match=r"missing\.jsonl"):
        load(tmp_path / "missing.jsonl")


def test_texts_and_their_agreement_with_keys():
    t = Traces(from_records([trace(["a", "b", "a", "c"], "t"), trace(["a", "c"], "t")]))
    straight, back = Marked([(0, 4)], [StepLabel("advance")]), Marked([(0, 4)], [StepLabel("retract", 0)])
    marks = [[straight, back, straight], [straight]]
    found = audit_texts(t, marks, "phrases")
    assert found.states_from == "detector phrases"
    assert found.kinds["retract"].k == found.recoveries == 1
    assert (found.loop_free.k, found.recovery_rate) == (1, 0.5)
    assert not hasattr(found, "recovery_coverage")
    measured = against_keys(t, marks)
    assert measured is not None  # by the key step 1 goes back and step 2 does something else
    assert (measured.recall.k, measured.recall.n) == (1, 2)
    assert measured.precision.value == 1


def test_samples_of_one_prompt_are_no_states_to_measure_on():
    """Each is one reply to the same text: nothing is returned to, so keys cannot tell what takes something back."""
    t = Traces(from_records([{"task_id": 1, "steps": [{"obs": "7*8?", "action": "56"}], "success": True}] * 3))
    assert len(t.graph.keys) < len(t.graph.visit_group)
    assert against_keys(t, [[Marked([(0, 2)], [StepLabel("retract")])]] * 3) is None


def test_a_dead_end_stands_out_where_attempts_elsewhere_succeed() -> None:
    def attempts(way: str, success: bool) -> list[dict[str, Any]]:
        steps = [{"state": "door", "action": way}, {"state": way, "action": "look"}]
        return [{"task_id": "t", "steps": steps, "success": success} for _ in range(10)]

    (end,) = audit_traces(attempts("cellar", False) + attempts("hall", True)).dead_end_list
    assert (end.state, end.visits) == ("cellar", 10)
    assert end.p == pytest.approx(3 * 2 / math.comb(20, 10))  # three states, both sides
    unlucky = audit_traces(attempts("cellar", False)[:1] + attempts("hall", True)).dead_end_list
    assert unlucky[0].p > 0.05
