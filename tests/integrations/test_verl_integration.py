from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from trainer_cases import household_run, token_tree

from ramify.base.errors import NeedsError, UserError
from ramify.integrations.trainers import verl
from ramify.methods.graph_credit.algorithm import credit
from ramify.trace.db import Run
from ramify.trace.formats import pick_reader
from ramify.trace.node import TokenValues

REASON = "verl is not installed: THE verl DOOR IS NOT TESTED AGAINST ITS REGISTRY"


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return household_run(tmp_path_factory.mktemp("played") / "run")


# --- out


def test_prompts_are_one_row_a_task(played: Path, tmp_path: Path) -> None:
    with Run.open(played) as run:
        assert verl.write_prompts(run, tmp_path / "p.parquet", data_source="house", max_rows="2") == 2
        tree = run.tree(min(info.name for info in run.trees()))
        with pytest.raises(UserError, match=r"ends in \.parquet"):
            verl.write_prompts(run, tmp_path / "p.jsonl")
        with pytest.raises(UserError, match="nothing to write"):
            verl.write_prompts(run, tmp_path / "q.parquet", group="none")
    rows = pq.read_table(tmp_path / "p.parquet").to_pylist()
    assert list(rows[0]) == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    assert rows[0]["prompt"] == [{"role": "user", "content": tree.children(tree.root.id)[0].text}]
    assert (rows[0]["data_source"], rows[0]["extra_info"]["index"], rows[1]["extra_info"]["index"]) == ("house", 0, 1)
    assert json.loads(rows[0]["reward_model"]["ground_truth"])
    assert not (tmp_path / "q.parquet").exists()


def test_a_batch_is_padded_as_verl_pads(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        _, reply, fork = token_tree(run)
        run.add(
            TokenValues(reply, "credit", "me", np.array([0, 2, -3], np.float32)),
            TokenValues(fork, "credit", "me", np.array([7.0])),
        )
        assert verl.write_batch(run, tmp_path / "b.safetensors", shared="every", pad="9") == 2
        (leaf,) = {node.id for node in run.tree("t").leaves()} - {fork}
    tensors, named = verl.load_batch(tmp_path / "b.safetensors")
    at = named["traj_uid"].tolist().index(leaf)
    assert named["uid"].tolist() == ["t", "t"]
    assert tensors["prompts"].tolist() == [[1, 2, 3]] * 2
    assert tensors["responses"][at].tolist() == [4, 5]
    assert tensors["input_ids"][at].tolist() == [1, 2, 3, 4, 5]
    assert tensors["position_ids"][at].tolist() == [0, 1, 2, 3, 4]
    assert tensors["response_mask"][at].tolist() == [1, 1]
    assert tensors["advantages"][at].tolist() == tensors["returns"][at].tolist() == [2, -3]
    assert tensors["old_log_probs"][at].tolist() == tensors["rollout_log_probs"][at].tolist() == [-0.5, -0.25]
    assert tensors["token_level_rewards"][at].tolist() == tensors["token_level_scores"][at].tolist() == [0, 1]
    assert {name: t.dtype for name, t in tensors.items() if name in ("prompts", "advantages")} == {
        "prompts": torch.int64,
        "advantages": torch.float32,
    }


def test_prompts_pad_on_the_left_and_responses_on_the_right() -> None:
    rows = [
        {"prompt_ids": [1], "completion_ids": [2, 3, 4], "env_mask": [1, 0, 1], "logprobs": [-1, 0, -2], "advantages": [5, 0, 6]},
        {"prompt_ids": [1, 1, 1], "completion_ids": [2], "env_mask": [1], "logprobs": [-3], "advantages": [7], "reward": 2.0},
    ]
    made = verl._padded([{"reward": None} | row for row in rows], 8)
    assert made["input_ids"].tolist() == [[8, 8, 1, 2, 3, 4], [1, 1, 1, 2, 8, 8]]
    assert made["attention_mask"].tolist() == [[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]
    assert made["position_ids"].tolist() == [[0, 0, 0, 1, 2, 3], [0, 1, 2, 3, 3, 3]]
    assert made["response_mask"].tolist() == [[1, 0, 1], [1, 0, 0]]
    assert made["token_level_rewards"].tolist() == [[0, 0, 0], [2, 0, 0]]


def test_a_file_that_is_no_batch_and_a_run_without_credit_are_refused(played: Path, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"\xff" * 64)
    for name in ("x.safetensors", "none.safetensors"):
        with pytest.raises(UserError, match="is not a batch"):
            verl.load_batch(tmp_path / name)
    with Run.open(played) as run:
        with pytest.raises(UserError, match="--rule g2po"):
            verl.write_batch(run, tmp_path / "b.safetensors")
        with pytest.raises(UserError, match="nothing to write"):
            verl.write_batch(run, tmp_path / "b.safetensors", rule="g2po", min_reward="9")
    assert not (tmp_path / "b.safetensors").exists()


# --- advantage functions


def test_step_credit_lands_on_every_token_of_its_step() -> None:
    mask = torch.tensor([[1, 1, 0, 0, 1, 0], [0, 1, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0]])
    paid = torch.tensor([[0, 2.0, 0.5, 0, -1, 0], [0, 0, 0, 3.0, 0, 0], [0, 0, 0, 0, 0, 0]])
    advantages, returns = verl.step_advantage(token_level_rewards=paid, response_mask=mask, index=None, config={})
    assert advantages.tolist() == [[2.5, 2.5, 0, 0, -1, 0], [0, 3, 3, 3, 0, 0], [0] * 6]
    assert returns.tolist() == advantages.tolist()


def test_exported_credit_comes_back_through_the_estimator(played: Path, tmp_path: Path) -> None:
    with Run.open(played) as run:
        verl.write_batch(run, tmp_path / "b.safetensors", rule="g2po")
    tensors, named = verl.load_batch(tmp_path / "b.safetensors")
    mask, wanted = tensors["response_mask"], tensors["advantages"]
    last_of_step = (mask == 1) & (torch.nn.functional.pad(mask, (0, 1))[:, 1:] == 0)
    found, _ = verl.step_advantage(wanted * last_of_step, mask, named["uid"], None)
    assert wanted.abs().sum() > 0
    torch.testing.assert_close(found, wanted)


def steps() -> dict[str, Any]:
    """Rows as verl-agent makes them: one step each, the attempts of two prompts interleaved."""
    return {
        "token_level_rewards": torch.tensor([[0, 1.0], [0, 0], [1, 0], [0, 0], [0, 1], [0, 0], [0, 1], [0, 0]]),
        "response_mask": torch.tensor([[1, 1], [1, 1], [1, 0], [1, 1], [1, 1], [1, 1], [0, 1], [1, 1]]),
        "index": np.array(["p", "p", "p", "p", "p", "q", "q", "p"], dtype=object),
        "traj_index": np.array(["a", "b", "a", "b", "a", "a", "b", "c"], dtype=object),
        "anchor_obs": np.array(["room", "room", np.array([1, 2]), "hall", "end", {"x": 1}, {"x": 1}, "room"], dtype=object),
    }


def test_graph_credit_of_step_rows_is_that_of_the_method() -> None:
    rows = steps()
    config = types.SimpleNamespace(gamma=0.9)
    advantages, returns = verl.graph_advantage(**rows, config=config)
    keys: list[Any] = ["room", "room", [1, 2], "hall", "end", {"x": 1}, {"x": 1}, "room"]
    attempts = ["pa", "pb", "pa", "pb", "pa", "qa", "qb", "pc"]
    paid = [0, 0, 0, 0, 1, 0, 1, 0]
    from ramify.methods.graph_credit.algorithm import CreditConfig

    wanted = credit(list("pppppqqp"), attempts, [0, 0, 1, 1, 2, 0, 0, 0], keys, paid, config=CreditConfig(gamma=0.9))["A"]
    torch.testing.assert_close(advantages, torch.as_tensor(wanted[:, None] * rows["response_mask"].numpy(), dtype=torch.float32))
    assert advantages.tolist() == returns.tolist()
    assert advantages[0, 0] > 0 > advantages[1, 0]
    invalid = verl.graph_advantage(**rows, config={"gamma": 0.9}, valid=np.array([1, 0, 1, 1, 1, 1, 1, 1]), step_rewards=None)[0]
    assert invalid[1, 0] < advantages[1, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [({"anchor_obs": None}, "needs 'anchor_obs', which verl's own trainer does not hand"),
     ({"index": np.array(["p"])}, "'index' has 1"),
     ({"token_level_rewards": torch.full((8, 2), float("nan"))}, "not a finite number"), ({"rule": "gipo"}, "rule"),
     ({"response_mask": torch.ones(8, 3)}, r"\[8, 2\] and response_mask \[8, 3\]"), ({"config": {"gamma": 2.0}}, "gamma")],
)  # fmt: skip
def test_what_an_estimator_cannot_use_is_one_sentence(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        verl.graph_advantage(**{**steps(), **change})


def test_registering_without_verl_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verl.trainer.ppo.core_algos", None)
    with pytest.raises(NeedsError, match="verl, which is not installed"):
        verl.register_estimators()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # verl's own imports warn
def test_verl_finds_the_estimators_in_its_registry_and_calls_them(played: Path, tmp_path: Path) -> None:
    pytest.importorskip("verl", reason=REASON)
    core = importlib.import_module("verl.trainer.ppo.core_algos")
    verl.register_estimators()
    verl.register_estimators()  # twice is fine
    assert core.get_adv_estimator_fn(verl.GRAPH_CREDIT) is verl.graph_advantage
    with Run.open(played) as run:
        verl.write_batch(run, tmp_path / "b.safetensors", rule="g2po")
    tensors, named = verl.load_batch(tmp_path / "b.safetensors")
    trainer = importlib.import_module("verl.trainer.ppo.ray_trainer")
    data = importlib.import_module("verl").DataProto.from_dict(tensors, non_tensors=named)
    wanted = verl.step_advantage(tensors["token_level_rewards"], tensors["response_mask"])[0]
    out = trainer.compute_advantage(data, verl.STEP_CREDIT, config={"gamma": 1.0})
    torch.testing.assert_close(out.batch["advantages"], wanted)
    assert wanted.abs().sum() > 0


# --- in


def dumped(folder: Path) -> Path:
    folder.mkdir()
    for step in (2, 10):
        rows = [
            {"input": "q", "output": f"a{i}", "gts": None, "score": i / 2, "step": step, "acc": True, "uid": f"u_{i}"}
            for i in range(2)
        ]
        (folder / f"{step}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def test_dumped_generations_become_trees_by_step_and_input(tmp_path: Path) -> None:
    folder = dumped(tmp_path / "dump")
    assert pick_reader(folder / "2.jsonl").name == "verl"
    assert verl.read_verl(folder / "2.jsonl", tmp_path / "one") == 2
    assert verl.read_verl(folder, tmp_path / "all") == 4
    with Run.open(tmp_path / "all") as run:
        assert [info.group for info in run.trees()] == ["step-000002", "step-000010"]
        tree = run.tree(run.trees()[1].name)
        assert [(m.role, m.text) for m in run.path(tree.leaves()[1].id).messages()] == [("user", "q"), ("assistant", "a1")]
        assert {tree.node(v.node).text: v.value for v in run.scores(tree=tree.name)} == {"a0": 0.0, "a1": 0.5}
        assert tree.leaves()[0].data["record"] == {"acc": True, "uid": "u_0"}


@pytest.mark.parametrize(
    ("row", "message"),
    [({"input": "q", "output": "a"}, "'score' must be an integer or a number"),
     ({"input": 1, "output": "a", "score": 1}, "'input' must be text"),
     ({"input": "q", "score": 1}, "'output' must be text"), ({"input": "q", "output": "a", "score": "1"}, "'score'"),
     ({"input": "q", "output": "a", "score": 1, "step": 1.5}, "'step'")],
)  # fmt: skip
def test_bad_dumps_name_file_and_line_and_leave_nothing(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    (tmp_path / "3.jsonl").write_text(json.dumps(row))
    with pytest.raises(UserError, match=f"3.jsonl:1: {message}"):
        verl.read_verl(tmp_path / "3.jsonl", tmp_path / "run")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"holds no \.jsonl file"):
        verl.read_verl(tmp_path / "empty", tmp_path / "run")
    assert not (tmp_path / "run").exists()
