"""Sets for training: what is in each mode, what has a loss, and that a budget of tokens holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from maze_cases import DETOUR, GOLDEN, K, W, base_walks, trace, way

from ramify.base.errors import UserError
from ramify.engine.checkpoints import chat_template, model_folder
from ramify.methods.maze_recovery import audit_traces, build_sft
from ramify.methods.maze_recovery.attempts import Traces, from_records, load
from ramify.methods.maze_recovery.build import Example
from ramify.methods.maze_recovery.conversations import whole
from ramify.methods.maze_recovery.traces import Agreement, Marked, StepLabel
from ramify.stats.intervals import ClusteredShare

WALKS = base_walks(30)
TRACES = Traces(from_records(WALKS))


def states(example: Example) -> list[str]:
    return [turn.text for turn in example.conversation.turns if turn.role == "user"]


def replies(example: Example, trained: bool = True) -> list[str]:
    pairs = zip(example.conversation.turns, example.conversation.trained, strict=True)
    return [turn.text for turn, spans in pairs if turn.role == "assistant" and bool(spans) == trained]


def again(examples: list[Example]) -> list[dict[str, Any]]:
    """The examples as traces."""
    return [
        {
            "task_id": e.task,
            "steps": [{"state": s, "action": a} for s, a in zip(states(e), replies(e) + replies(e, False), strict=True)],
            "success": True,
        }
        for e in examples
    ]


def test_golden_is_the_shortest_recorded_way_once_a_task():
    made = build_sft(TRACES, mode="golden")
    assert sorted(states(e) for e in made.examples) == [way(w)[:-1] for w in range(W)]
    assert made.summary.tasks == made.summary.examples == W
    assert made.summary.with_recovery == 0
    assert audit_traces(again(made.examples)).recovery_coverage == 0


def test_golden_puts_attempts_together_with_the_prompt_of_the_first_step():
    steps = [
        {"state": "s", "obs": "Task: out. s", "action": "a"},
        {"state": "x", "action": "b"},
        {"state": "s", "obs": "s again", "action": "c"},
        {"state": "y", "action": "d"},
    ]
    [example] = build_sft([{"task_id": 1, "system": "Play.", "steps": steps, "success": True}], mode="golden").examples
    assert [turn.text for turn in example.conversation.turns] == ["Play.", "Task: out. s", "c", "y", "d"]
    [erased] = build_sft(
        [{"task_id": 1, "system": "Play.", "steps": steps, "success": True}], mode="success_loop_erased"
    ).examples
    assert [turn.text for turn in erased.conversation.turns] == ["Play.", "Task: out. s", "c", "y", "d"]


def test_raw_and_loop_erased():
    raw = build_sft(TRACES, mode="success_raw")
    assert sorted(len(states(e)) for e in raw.examples) == sorted(len(walk["steps"]) for walk in WALKS)
    assert raw.summary.with_recovery == audit_traces(TRACES).recovery_traces.k
    erased = build_sft(TRACES, mode="success_loop_erased")
    assert len(erased.examples) == len(WALKS)
    for example in erased.examples:
        assert states(example) == way(int(example.task[1]))[:-1]  # in a tree of branches only the straight way is left
        assert replies(example) == [f"go {s}" for s in way(int(example.task[1]))[1:]]
    golden = build_sft(GOLDEN, mode="success_loop_erased")
    assert [states(e) for e in golden.examples] == [states(e) for e in build_sft(GOLDEN, mode="success_raw").examples]


def test_mistakes_are_masked_and_the_way_back_is_not():
    [example] = build_sft([trace(DETOUR, "b0 leaf")], mode="success_raw", mask_mistakes=True).examples
    assert replies(example, trained=False) == [f"go {s}" for s in way(1)[2:]]  # the wrong choice and the way in
    back = [f"go {s}" for s in [*way(1)[1:-1][::-1]]]
    assert replies(example) == ["go fork", *back, *(f"go {s}" for s in way(0)[2:])]
    [suffix] = build_sft([trace(DETOUR, "b0 leaf")], mode="recovery_only_suffix").examples
    assert replies(suffix) == [*back, *(f"go {s}" for s in way(0)[2:])]
    assert states(suffix) == states(example)


def test_turning_back_on_the_right_way_is_a_mistake_too():
    dither = ["source", "fork", "b0 l0", "fork", "b0 l0", "b0 r0", *way(0)[4:]]
    [example] = build_sft([trace(dither, "b0 leaf")], mode="success_raw", mask_mistakes=True).examples
    assert replies(example, trained=False) == ["go b0 l0", "go fork"]


@settings(max_examples=15, deadline=None)
@given(st.floats(0, 1), st.integers(2000, 8000), st.integers(0, 3), st.booleans())
def test_a_mix_holds_its_share_and_its_budget(rho: float, budget: int, seed: int, mask: bool):
    made = build_sft(TRACES, mode="recovery_mix", rho=rho, token_budget=budget, seed=seed, mask_mistakes=mask)
    n = len(made.examples)
    assert abs(sum(e.recovery for e in made.examples) - rho * n) <= 1
    assert made.summary.tokens == sum(e.cost for e in made.examples) <= budget
    assert all(e.cost == e.conversation.cost() for e in made.examples)
    again_made = build_sft(TRACES, mode="recovery_mix", rho=rho, token_budget=budget, seed=seed, mask_mistakes=mask)
    assert [e.attempt for e in again_made.examples] == [e.attempt for e in made.examples]


def test_a_share_that_cannot_be_held_is_said():
    made = build_sft([*GOLDEN, trace(DETOUR, "b0 leaf", "lost")], mode="recovery_mix", rho=0.5)
    assert made.summary.stopped == "no more traces with a recovery"
    assert made.summary.share_with_recovery == pytest.approx(0.5, abs=0.2)
    assert build_sft(GOLDEN, mode="recovery_mix", rho=0).summary.examples == len(GOLDEN)
    assert build_sft(TRACES, mode="success_raw").summary.stopped == "all taken"


def test_nothing_is_ordered_by_length():
    lengths = [len(states(e)) for e in build_sft(TRACES, mode="success_raw").examples]
    assert lengths not in (sorted(lengths), sorted(lengths, reverse=True))
    other = [e.attempt for e in build_sft(TRACES, mode="success_raw", seed=1).examples]
    assert other != [e.attempt for e in build_sft(TRACES, mode="success_raw").examples]


def test_tokens_are_counted_and_laid_out_by_the_template():
    template = chat_template(model_folder("builtin"))
    made = build_sft(TRACES, template=template, mode="recovery_mix", token_budget=600, mask_mistakes=True)
    assert made.summary.counted_by == "tokens"
    trained = sum(np.sum(np.asarray(e.conversation.to_tokens(template)["labels"]) >= 0) for e in made.examples)
    assert trained == made.summary.tokens <= 600
    counted = [{**walk, "steps": [step | {"tokens": [1, 2, 3]} for step in walk["steps"]]} for walk in WALKS]
    made = build_sft(counted, mode="success_loop_erased", token_budget=100)
    assert made.summary.counted_by == "the traces"
    assert all(e.cost == 3 * (2 * K + 2) for e in made.examples)


def test_what_a_detector_saw_decides_where_there_are_no_states():
    text = "Take x. No, take y. So y."
    spans = [(0, 8), (8, 20), (20, 25)]
    asked = [{"task_id": n, "steps": [{"obs": f"{n}?", "action": text}], "success": True} for n in range(2)]
    marks = [
        [Marked(spans, [StepLabel("advance"), StepLabel("retract", 0), StepLabel("advance")])],
        [Marked([(0, 25)], [StepLabel("advance")])],
    ]
    t = Traces(from_records(asked))
    raw = {e.task: e for e in build_sft(t, marks=marks, mode="success_raw").examples}
    assert [e.recovery for e in (raw[0], raw[1])] == [True, False]
    assert raw[0].conversation.trained[1] == whole(raw[0].conversation.turns[1])
    exact = Agreement(20, None, None, None, None, None, masks=ClusteredShare(1.0, (0.84, 1.0), 20, 20, 20))
    made = build_sft(t, marks=marks, measured=exact, mode="success_raw", mask_mistakes=True)
    masked = {e.task: e for e in made.examples}
    assert masked[0].conversation.trained[1] == ((8, 25),)
    [suffix] = build_sft(t, marks=marks, mode="recovery_only_suffix").examples
    assert (suffix.task, suffix.conversation.trained[1]) == (0, ((8, 25),))
    mixed = build_sft([*asked], marks=marks, mode="recovery_mix", rho=0.5)
    assert mixed.summary.with_recovery == 1
    with pytest.raises(UserError, match="cannot be cut out of it without states"):
        build_sft(t, marks=marks, mode="success_loop_erased")


def test_a_mix_of_texts_uses_up_those_without_a_retraction():
    """By default; what a text takes back cannot be cut out of it, so the others are none of the clean ones."""
    asked = [{"task_id": n, "steps": [{"obs": f"{n}?", "action": "x"}], "success": True} for n in range(9)]
    marks = [[Marked([(0, 1)], [StepLabel("advance" if n < 2 else "retract")])] for n in range(9)]
    made = build_sft(asked, marks=marks)
    assert made.summary.stopped == "no more traces without a recovery"
    assert made.summary.examples in (4, 5)
    assert made.summary.examples - made.summary.with_recovery == 2
    with pytest.raises(UserError, match="every success takes something back"):
        build_sft(asked[2:], marks=marks[2:])
    assert build_sft(asked[2:], marks=marks[2:], rho=1).summary.examples == 7


def test_a_budget_ends_at_the_first_trace_that_does_not_fit():
    """Else the shortest of all traces would be searched for what is left of the budget, and those are the straight ones."""
    order = build_sft(TRACES, mode="success_raw").examples
    budget = sum(e.cost for e in order[:8]) + order[8].cost - 1
    assert any(e.cost < order[8].cost for e in order[9:])
    made = build_sft(TRACES, mode="success_raw", token_budget=budget)
    assert [e.attempt for e in made.examples] == [e.attempt for e in order[:8]]
    assert made.summary.stopped == "budget spent"


def test_what_cannot_be_built():
    with pytest.raises(UserError, match="no trace is known to have succeeded"):
        build_sft([trace(DETOUR, "b0 leaf", success=False)])
    with pytest.raises(UserError, match="the set is empty: no success shows a recovery"):
        build_sft(GOLDEN, mode="recovery_only_suffix")
    with pytest.raises(UserError, match=r"the first trace has \d+ tokens, and the budget is 1$"):
        build_sft(GOLDEN, mode="success_raw", token_budget=1)
    with pytest.raises(UserError, match="'rho'"):
        build_sft(GOLDEN, rho=1.5)
    with pytest.raises(UserError, match=r"unknown key 'mod' .*did you mean 'mode'"):
        build_sft(GOLDEN, mod="golden")
    with pytest.raises(UserError, match="'mode'"):
        build_sft(GOLDEN, mode="clean")


def test_calls_and_their_answers_stay_together(tmp_path: Path):
    """A chat with calls that goes into a room and comes back: what is left without the loop is a valid chat, prompt first."""
    talk: list[dict[str, Any]] = [{"role": "user", "content": "hall"}]
    for at, (where, seen) in enumerate((("up", "attic"), ("down", "hall"), ("east", "cellar"))):
        call = {"id": f"c{at}", "type": "function", "function": {"name": "go", "arguments": json.dumps({"way": where})}}
        talk += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{at}", "content": seen},
        ]
    talk.append({"role": "assistant", "content": "Here is the lamp."})
    file = tmp_path / "chat.jsonl"
    file.write_text(json.dumps({"task": "lamp", "reward": 1, "messages": talk}) + "\n")
    [example] = build_sft(load(file), mode="success_loop_erased").examples
    said = example.conversation.to_messages()["messages"]
    assert [m["content"] for m in said] == ["hall", "", "cellar", "Here is the lamp."]
    assert said[1]["tool_calls"][0]["id"] == said[2]["tool_call_id"] == "c2"
    [mixed] = build_sft(load(file), mode="success_raw", mask_mistakes=True).examples
    assert [bool(spans) for spans in mixed.conversation.trained] == [False, False, False, True, False, True, False, True]
    assert mixed.recovery
