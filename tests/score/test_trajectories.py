"""Attempts from files and runs become token rows with the right actions marked; what is wrong is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramify.base.errors import UserError
from ramify.engine.checkpoints import model_folder
from ramify.model.chat import JinjaTemplate, TagTemplate
from ramify.model.tokenizer import HfTokenizer
from ramify.score.trajectories import chat_layout, plain_layout, read_trajectories, run_trajectories
from ramify.trace.db import Run
from ramify.trace.node import Score, make_node


def write(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    return path


def steps(*pieces: tuple[list[int], bool]) -> list[dict[str, Any]]:
    return [{"role": "assistant" if a else "user", "token_ids": ids, "is_action": a} for ids, a in pieces]


def test_steps_keep_their_ids(tmp_path: Path) -> None:
    record = {"task_id": "t", "steps": steps(([1, 2], False), ([3], True), ([4], False), ([], True), ([5, 6], True))}
    file = write(tmp_path / "t.jsonl", record | {"outcome": {"reward": 0.5}}, record | {"outcome": {"success": False}})
    one, two = read_trajectories(file)
    assert one.tokens.tolist() == [1, 2, 3, 4, 5, 6]
    assert one.step.tolist() == [-1, -1, 0, -1, 2, 2]
    assert (one.n, one.id, one.success, two.id, two.success) == (3, "t/0", True, "t/1", False)


def test_a_trainers_row_has_a_step_for_each_stretch_of_its_mask(tmp_path: Path) -> None:
    record = {
        "task_id": 7,
        "prompt_ids": [1, 2],
        "completion_ids": [3, 4, 5, 6],
        "env_mask": [1, 0, 1, 1],
        "old_log_probs": [-1, 0, -2, -3],
        "ref_log_prob": [-2, 0, -2, -1],
        "reward": 1,
    }
    (found,) = read_trajectories(write(tmp_path / "t.jsonl", record))
    assert found.step.tolist() == [-1, -1, 0, -1, 1, 1]
    assert found.policy_logprobs is not None
    assert found.reference_logprobs is not None
    assert (found.policy_logprobs - found.reference_logprobs).tolist() == [0, 0, 1, 0, 0, -2]
    assert found.success is True


@pytest.fixture(scope="module")
def tokenizer() -> HfTokenizer:
    return HfTokenizer.load(model_folder("builtin"))


SAID = [
    {"role": "system", "content": "help"},
    {"role": "user", "content": "go to the kitchen"},
    {"role": "assistant", "content": "look", "tool_calls": [{"function": {"name": "open", "arguments": '{"what": "door"}'}}]},
    {"role": "tool", "content": "it is open"},
    {"role": "assistant", "content": ""},
]


def test_messages_are_laid_out_and_only_replies_are_actions(tmp_path: Path, tokenizer: HfTokenizer) -> None:
    file = write(tmp_path / "t.jsonl", {"task_id": "t", "messages": SAID})
    (found,) = read_trajectories(file, chat_layout(TagTemplate(tokenizer)))
    assert found.n == 2
    call = '{"name": "open", "arguments": {"what": "door"}}'
    action = tokenizer.decode(found.tokens[found.step == 0].tolist())
    assert action == f"look\n<tool_call>\n{call}\n</tool_call>"  # no header, no end of turn
    assert not (found.step == 1).any()  # an empty reply is a step without tokens
    (plain,) = read_trajectories(file, plain_layout(tokenizer))
    assert tokenizer.decode(plain.tokens[plain.step == 1].tolist()) == "\n[assistant]: "
    with pytest.raises(UserError, match="no model was named"):
        read_trajectories(file)


def test_a_character_of_several_tokens_is_graded_whole(tmp_path: Path, tokenizer: HfTokenizer) -> None:
    for text in ("😀 go", "go 😀", "é", "\ufffd go", "go"):
        messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": text}]
        (found,) = read_trajectories(
            write(tmp_path / "t.jsonl", {"task_id": "t", "messages": messages}), chat_layout(TagTemplate(tokenizer))
        )
        assert tokenizer.decode(found.tokens[found.step == 0].tolist()) == text
        assert found.tokens[found.step == 0].tolist() == tokenizer.encode(text)


def test_the_papers_codes_rendering(tmp_path: Path, tokenizer: HfTokenizer) -> None:
    (plain,) = read_trajectories(write(tmp_path / "t.jsonl", {"task_id": "t", "messages": SAID}), plain_layout(tokenizer))
    assert tokenizer.decode(plain.tokens.tolist()) == (
        '\n[user]: go to the kitchen\n[assistant]: look\ntool_call(open, {"what": "door"})\n[tool]: it is open\n[assistant]: '
    )
    with pytest.raises(UserError, match="brings no tokenizer"):
        plain_layout(None)


def test_a_template_that_drops_past_thinking_skips_attempts_not_files(tmp_path: Path, tokenizer: HfTokenizer) -> None:
    source = (
        "{%- for m in messages %}{{'<|' + m.role + '|>'}}{%- if m.role == 'assistant' and not loop.last %}"
        "{{ m.content.split('</think>')[-1].lstrip('\n') }}{%- else %}{{ m.content }}{%- endif %}{{'<|end|>'}}{%- endfor %}"
        "{%- if add_generation_prompt %}{{'<|assistant|>'}}{%- endif %}"
    )
    messages = [{"role": r, "content": r} for r in ("user", "assistant", "user", "assistant")]
    file = write(tmp_path / "t.jsonl", {"task_id": "t", "messages": messages}, {"task_id": "u", "messages": messages[:2]})
    layout, skipped = chat_layout(JinjaTemplate(tokenizer, source)), list[str]()
    assert [one.id for one in read_trajectories(file, layout, skipped)] == ["u/0"]
    assert skipped[0].startswith(f"attempt 't/0' ({file}:1): the chat template")
    with pytest.raises(UserError, match=f"{file}:1"):
        read_trajectories(file, layout)


def test_a_runs_sampled_tokens_are_its_actions(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        run.add_tree("t", {"id": "task"})
        root = make_node("t", None, 0, "user", "ab", tokens=[1, 2])
        given = make_node("t", root.id, 2, "assistant", "x", tokens=[3])
        reply = make_node("t", given.id, 1, "assistant", "yz", tokens=[4, 5, 6], sampled=[0, 1, 1], ends=[0, 1, 2], index=0)
        seen = make_node("t", reply.id, 3, "user", "c", tokens=[7])
        forked = make_node("t", reply.id, 2, "assistant", "w", tokens=[8], sampled=[1], index=1, opens=False)
        run.add(root, given, reply, seen, forked)
        run.add(Score(seen.id, "env", 1.0), Score(forked.id, "env", 0.0))
        run.add_tree("u", {"id": "text"})
        remark = make_node("u", None, 0, "assistant", "hm")
        run.add(remark, Score(remark.id, "env", 0.0))
        run.commit()
        found, skipped = run_trajectories(run)
    by_leaf = {t.id: t for t in found}
    whole, fork = by_leaf[seen.id], by_leaf[forked.id]
    assert whole.step.tolist() == [-1, -1, -1, -1, 0, 0, -1]
    assert (whole.task, whole.success, whole.nodes) == ("task", True, (reply.id,))
    assert fork.tokens.tolist() == [1, 2, 3, 4, 5, 8]
    assert fork.step.tolist() == [-1, -1, -1, -1, 0, 0]  # one reply, whose second half was sampled anew
    assert (fork.actions, fork.nodes, fork.success) == (("yw",), (forked.id,), False)
    assert len(skipped) == 1
    assert "no model was named" in skipped[0]


GOOD = {"task_id": "t", "prompt_ids": [1], "completion_ids": [2, 3], "env_mask": [1, 1]}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"steps": steps(([1], True))}, "'task_id' must be"),
        ({"task_id": "t"}, "an attempt has 'steps'"),
        ({"task_id": "t", "steps": [{"token_ids": [1]}]}, "step 0 has no 'is_action'"),
        ({"task_id": "t", "steps": steps(([1], False))}, "marks no step as an action"),
        ({"task_id": "t", "steps": []}, "marks no step"),
        ({"task_id": "t", "steps": steps(([-1], True))}, "not a token id"),
        ({"task_id": "t", "steps": [7]}, "step 0 is not an object"),
        ({k: v for k, v in GOOD.items() if k != "env_mask"}, "mask of actions is missing"),
        (GOOD | {"env_mask": [1]}, "1 entry for 2"),
        (GOOD | {"env_mask": [2, 1]}, "something else than 0 and 1"),
        (GOOD | {"env_mask": [0, 0]}, "marks no token"),
        (GOOD | {"old_log_probs": [0.0, "x"]}, r"'old_log_probs'\[1\] is not a number"),
        (GOOD | {"outcome": {"reward": float("inf")}}, "not a finite number"),
        (GOOD | {"outcome": {"success": "yes"}}, "'success' must be true or false"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, record: dict[str, Any], message: str) -> None:
    file = write(tmp_path / "bad.jsonl", GOOD, record | {"trial": 1})
    with pytest.raises(UserError, match=message) as caught:
        read_trajectories(file)
    assert str(caught.value).startswith(f"{file}:2")


def test_an_attempt_may_not_come_twice_and_a_file_not_be_empty(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'t/1' is there twice"):
        read_trajectories(write(tmp_path / "a.jsonl", GOOD | {"trial": 1}, GOOD | {"trial": 1}))
    with pytest.raises(UserError, match="holds no attempt"):
        read_trajectories(write(tmp_path / "b.jsonl"))
    assert np.all(read_trajectories(write(tmp_path / "c.jsonl", GOOD))[0].tokens == [1, 2, 3])
