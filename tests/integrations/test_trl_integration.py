from __future__ import annotations

import asyncio
import json
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from trainer_cases import hf_agent, household_run, token_tree

from ramify.base.errors import NeedsError, RamifyError, UserError
from ramify.engine.checkpoints import load_model, model_folder
from ramify.env.builtin.household import Household, HouseholdEnvironment
from ramify.integrations.trainers import trl_trainer
from ramify.integrations.trainers.trl import read_steps, read_trl, write_sft, write_steps
from ramify.model.protocol import Sampling
from ramify.rollout.agent import Agent
from ramify.rollout.compact import DropOldest
from ramify.score.match import ExactMatch
from ramify.trace.db import Run
from ramify.trace.formats import pick_reader
from ramify.trace.node import AttemptRecord, Context, Score, Span, TokenValues, make_node


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return household_run(tmp_path_factory.mktemp("played") / "run", tasks=8)


@pytest.fixture
def hand(tmp_path: Path) -> Iterator[tuple[Run, str, str]]:
    with Run.create(tmp_path / "hand", {}) as run:
        _, reply, fork = token_tree(run)
        run.add(
            TokenValues(reply, "credit", "me", np.array([0, 2, -3], np.float32)),
            TokenValues(fork, "credit", "me", np.array([7.0])),
        )
        yield run, reply, fork


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- out: conversations


def test_conversations_are_the_paths_messages_up_to_the_last_reply(played: Path, tmp_path: Path) -> None:
    with Run.open(played) as run:
        assert write_sft(run, tmp_path / "a.jsonl") == 32
        rows = lines(tmp_path / "a.jsonl")
        leaf = min(v.node for v in run.scores(tree=min(info.name for info in run.trees())))
        messages = [{"role": m.role, "content": m.text} for m in run.path(leaf).messages()]
        good = write_sft(run, tmp_path / "good.parquet", successful="true")
        wins = sum(v.value > 0 for v in run.scores(scorer="env"))
        replies = sum(m["role"] == "assistant" for row in rows for m in row["messages"])
        assert write_sft(run, tmp_path / "p.jsonl", form="prompt-completion") == replies
    assert rows[0]["messages"] == messages[:-1]
    assert {row["messages"][-1]["role"] for row in rows} == {"assistant"}
    assert 0 < good == wins < 32
    table = pq.read_table(tmp_path / "good.parquet").to_pylist()
    assert all(row in rows for row in table)
    for row in lines(tmp_path / "p.jsonl")[:2]:
        assert row["prompt"][-1]["role"] == "user"
        assert [m["role"] for m in row["completion"]] == ["assistant"]


def test_a_reply_from_another_context_shows_that_context(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        prompt, reply, _ = token_tree(run)
        context = Context((Span(prompt, 0, 2),))
        run.add(context)
        seen = make_node("t", reply, 3, "user", "more", tokens=[9])
        sampled: dict[str, Any] = {"sampled": [1, 1], "logprobs": [-1, -2], "ends": [1, 2]}
        late = make_node("t", seen.id, 1, "assistant", "zz", tokens=[7, 7], context=context.hash, index=0, **sampled)
        run.add(seen, late, Score(late.id, "env", 3.0))
        run.add(TokenValues(late.id, "credit", "me", np.array([1, 2], np.float32)))
        write_steps(run, tmp_path / "s.jsonl")
        write_sft(run, tmp_path / "p.jsonl", form="prompt-completion", min_reward="3")
    (row,) = lines(tmp_path / "s.jsonl")
    assert (row["prompt_ids"], row["completion_ids"], row["advantages"]) == ([1, 2], [7, 7], [1, 2])
    first, second = lines(tmp_path / "p.jsonl")
    assert first["prompt"] == second["prompt"] == [{"role": "user", "content": "do"}]
    assert second["completion"] == [{"role": "assistant", "content": "zz"}]


# --- out: tokens


def test_rows_of_tokens_are_the_trees_own_and_train_shared_ones_once(hand: tuple[Run, str, str], tmp_path: Path) -> None:
    run, _, fork = hand
    write_steps(run, tmp_path / "once.parquet")
    write_steps(run, tmp_path / "every.jsonl", shared="every", clip="2.5")
    once = {row["leaf"]: row for row in read_steps(tmp_path / "once.parquet")}
    every = {row["leaf"]: row for row in read_steps(tmp_path / "every.jsonl")}
    forked = every[fork]
    assert (forked["prompt_ids"], forked["completion_ids"]) == ([1, 2, 3], [4, 6])
    assert (forked["env_mask"], forked["advantages"], forked["logprobs"]) == ([1, 1], [2, 2.5], [-0.5, -1.0])
    (other,) = every.keys() - {fork}
    assert (every[other]["completion_ids"], every[other]["advantages"]) == ([4, 5], [2, -2.5])
    assert every[other]["prompt"] == [{"role": "user", "content": "do"}]
    trained = {leaf: sum(row["env_mask"]) for leaf, row in once.items()}
    assert sum(trained.values()) == 3  # tokens 4, 5 and 6, once each, whichever row came first
    assert once[fork]["advantages"][-1] == 7
    assert [row["reward"] for row in (once[fork], once[other])] == [0, 1]


def test_credit_made_now_is_that_of_graph_credit(played: Path, tmp_path: Path) -> None:
    from ramify.methods.graph_credit.run import StateGraph, node_credit

    with Run.open(played) as run:
        write_steps(run, tmp_path / "s.jsonl", rule="g2po")
        graph = StateGraph.from_run(run)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = node_credit(graph.columns, graph.advantages())
        rows = read_steps(tmp_path / "s.jsonl")
        for row in rows:
            path = run.path(row["leaf"])
            start, end = len(row["prompt_ids"]), len(row["prompt_ids"]) + len(row["completion_ids"])
            assert row["prompt_ids"] + row["completion_ids"] == path.tokens[:end].tolist()
            whole = path.along({n.id: n.sampled * np.float32(found[n.id].A) for n, _ in path.segments if n.id in found})
            assert row["advantages"] == pytest.approx(whole[start:end].tolist())
            assert row["env_mask"] == path.sampled[start:end].astype(int).tolist()
            assert row["env_mask"][-1] == 1
    assert rows


@pytest.mark.parametrize(
    ("settings", "message"),
    [({}, "ramify improve"), ({"token_values": "credti"}, "no per-token values 'credti'"),
     ({"rule": "g2poo"}, "did you mean 'g2po'"),
     ({"min_reward": "much"}, "min_reward"), ({"rule": "g2po", "min_reward": "99"}, "no attempt of the run fits"),
     ({"scorer": "evn", "rule": "g2po"}, "did you mean 'env'"), ({"group": "x", "rule": "g2po"}, "in group 'x'"),
     ({"max_rows": "0"}, "max_rows"), ({"tokn_values": "x"}, "did you mean 'token_values'")],
)  # fmt: skip
def test_what_cannot_be_written_is_one_sentence_and_no_file(
    played: Path, tmp_path: Path, settings: dict[str, str], message: str
) -> None:
    with Run.open(played) as run, pytest.raises(UserError, match=message):
        write_steps(run, tmp_path / "s.jsonl", **settings)
    assert not list(tmp_path.iterdir())


def test_text_only_runs_and_bad_credit_are_refused(hand: tuple[Run, str, str], tmp_path: Path) -> None:
    run, reply, _ = hand
    run.add(TokenValues(reply, "credit", "me", np.array([0, np.nan, 1], np.float32)))
    with pytest.raises(UserError, match=f"node {reply} holds a value that is not a finite number"):
        write_steps(run, tmp_path / "s.jsonl")
    run.add(TokenValues(reply, "credit", "you", np.array([0, 1, 1], np.float32)))
    with pytest.raises(UserError, match="several makers: choose one with --maker \\(me, you\\)"):
        write_steps(run, tmp_path / "s.jsonl")
    with pytest.raises(UserError, match=r"ends in \.jsonl or \.parquet"):
        write_steps(run, tmp_path / "s.csv", maker="you")
    (tmp_path / "c.jsonl").write_text(json.dumps({"prompt": "p", "completion": "c", "reward": 1}))
    read_trl(tmp_path / "c.jsonl", tmp_path / "text")
    with Run.open(tmp_path / "text") as text, pytest.raises(NeedsError, match="text only"):
        write_steps(text, tmp_path / "s.jsonl", rule="g2po")
    assert not (tmp_path / "s.jsonl").exists()


GOOD = {"prompt_ids": [1], "completion_ids": [2, 3], "env_mask": [1, 0], "logprobs": [-1.0, 0.0], "advantages": [0.5, 0.0]}


@pytest.mark.parametrize(
    ("change", "message"),
    [({"advantages": [0.5]}, "'advantages' has 1 entry for 2"), ({"advantages": [float("nan"), 0]}, r"'advantages'\[0\]"),
     ({"advantages": None}, "'advantages' must be a list"), ({"completion_ids": ["x", 1]}, "'completion_ids'"),
     ({"completion_ids": []}, "'completion_ids' is empty"), ({"prompt_ids": []}, "'prompt_ids' is empty"),
     ({"env_mask": [1, 2]}, "'env_mask'"), ({"env_mask": [True, False]}, "'env_mask'"),
     ({"logprobs": [0, "a"]}, r"'logprobs'\[1\]"),
     ({"prompt_ids": [-1]}, "'prompt_ids'"), ({"logprobs": [None, 0]}, r"'logprobs'\[0\]"),
     ({"advantages": [1e39, 0]}, r"'advantages'\[0\] is infinite in 32 bits")],
)  # fmt: skip
def test_rows_of_tokens_that_do_not_fit_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    (tmp_path / "s.jsonl").write_text(json.dumps(GOOD) + "\n" + json.dumps(GOOD | change))
    with pytest.raises(UserError, match=f"s.jsonl:2: {message}"):
        read_steps(tmp_path / "s.jsonl")


# --- in


def test_completions_with_rewards_become_siblings_under_their_prompt(tmp_path: Path) -> None:
    rows = [
        {"prompt": "2+2", "completion": "4", "reward": 1.0, "source": "math"},
        {"prompt": "2+2", "completion": "4", "rewards": {"exact": 1, "style": None}},
        {"prompt": [{"role": "user", "content": "2+2"}], "completion": [{"role": "assistant", "content": "5"}], "label": False},
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]},
    ]
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert pick_reader(tmp_path / "r.jsonl").name == "trl"
    assert read_trl(tmp_path / "r.jsonl", tmp_path / "run") == 4
    with Run.open(tmp_path / "run") as run:
        first, second = run.trees()
        leaves = run.tree(first.name).leaves()
        assert [leaf.text for leaf in leaves] == ["4", "4", "5"]
        assert leaves[0].data["record"] == {"source": "math"}
        scores = {(v.node, v.scorer): v.value for v in run.scores()}
        ids = [leaf.id for leaf in leaves]
        assert scores == {(ids[0], "imported"): 1, (ids[1], "exact"): 1, (ids[1], "style"): None, (ids[2], "label"): 0}
        assert [m.text for m in run.path(run.tree(second.name).leaves()[0].id).messages()] == ["hi", "ho"]


def test_parts_that_are_no_text_and_calls_are_kept(tmp_path: Path) -> None:
    def row(url: str) -> dict[str, Any]:
        shown = [{"type": "text", "text": "what is "}, {"type": "image_url", "image_url": {"url": url}}]
        call = {"name": "look", "arguments": {"at": 1}}
        reply = {"role": "gpt", "content": None, "tool_calls": [call]}
        return {"prompt": [{"role": "human", "content": shown}], "completion": [reply]}

    (tmp_path / "r.jsonl").write_text("\n".join(json.dumps(row(url)) for url in ("a.png", "b.png")))
    read_trl(tmp_path / "r.jsonl", tmp_path / "run")
    with Run.open(tmp_path / "run") as run:
        assert len(run.trees()) == 2, "two pictures are two prompts"
        user, reply = (node for node, _ in run.path(run.tree(run.trees()[0].name).leaves()[0].id).segments[1:])
        assert user.text == "what is "
        assert user.data["content"][1]["image_url"] == {"url": "a.png"}
        assert reply.data["tool_calls"] == [{"type": "function", "function": {"name": "look", "arguments": '{"at":1}'}}]


def test_a_column_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "p.parquet"
    pq.write_table(pa.table({"zzzz": ["a"], "prompt": ["b"]}), file)
    file.write_bytes(file.read_bytes().replace(b"zzzz", b"\xec\xff\xfe\xff"))
    for read in (lambda: read_trl(file, tmp_path / "run"), lambda: read_steps(file)):
        with pytest.raises(UserError, match=r"cannot read .*p\.parquet"):
            read()


def test_preferences_become_two_siblings(tmp_path: Path) -> None:
    shared = [{"role": "user", "content": "q"}]
    rows = [
        {"prompt": "q", "chosen": "a", "rejected": "b", "score_chosen": 9},
        {
            "chosen": [*shared, {"role": "assistant", "content": "a"}],
            "rejected": [*shared, {"role": "assistant", "content": "b"}],
        },
    ]
    pq.write_table(pa.Table.from_pylist(rows[1:] * 2), tmp_path / "p.parquet")
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name, count in (("p.jsonl", 2), ("p.parquet", 2)):
        assert pick_reader(tmp_path / name).name == "trl"
        assert read_trl(tmp_path / name, tmp_path / f"run-{name}") == count
        with Run.open(tmp_path / f"run-{name}") as run:
            (tree,) = run.trees()
            by_text = {leaf.id: leaf.text for leaf in run.tree(tree.name).leaves()}
            found = [(by_text[v.node], v.value) for v in run.scores(scorer="preference")]
            assert sorted(found) == [("a", 1.0), ("a", 1.0), ("b", 0.0), ("b", 0.0)]
            assert all(run.tree(tree.name).node(leaf).parent == run.path(leaf).segments[1][0].id for leaf in by_text)


def test_logged_completions_keep_step_rewards_and_advantage(tmp_path: Path) -> None:
    log = [
        {"step": 7, "prompt": "p", "completion": "a", "exact": 1.0, "length": 3.5, "advantage": 0.7},
        {"step": 7, "prompt": "p", "completion": "b", "exact": float("nan"), "length": 1.0, "advantage": -0.7},
    ]
    pq.write_table(pa.Table.from_pylist(log), tmp_path / "completions_00007.parquet")
    assert read_trl(tmp_path / "completions_00007.parquet", tmp_path / "run") == 2
    with Run.open(tmp_path / "run") as run:
        assert [tree.group for tree in run.trees()] == ["step-000007"]
        assert [s.values.tolist() for s in run.token_values(name="advantage")] == [[pytest.approx(0.7)], [pytest.approx(-0.7)]]
        assert sorted(v.value for v in run.scores(scorer="length")) == [1.0, 3.5]
        assert {v.value for v in run.scores(scorer="exact")} == {1.0, None}
        with pytest.raises(UserError, match="choose one with --scorer \\(exact, length\\)"):
            write_sft(run, tmp_path / "x.jsonl")
        assert write_sft(run, tmp_path / "x.jsonl", scorer="length", min_reward="2") == 1


@pytest.mark.parametrize(
    ("row", "message"),
    [({"prompt": "p"}, "this one has 'prompt'"), ({"prompt": 3, "completion": "c"}, "'prompt' must be text or a list"),
     ({"prompt": "p", "completion": []}, "holds no message"), ({"prompt": "p", "completion": None}, "'completion' must be"),
     ({"prompt": "p", "completion": [{"role": "robot", "content": ""}]}, "role 'robot'"), ({"chosen": "a"}, "'rejected' must be"),
     ({"prompt": "p", "completion": "c", "reward": "high"}, "'reward' must be a number"), ({}, "this one has nothing"),
     ({"prompt": "p", "completion": "c", "reward": float("inf")}, "infinite"), ({"completion": [7]}, "not an object"),
     ({"prompt": "p", "completion": "c", "reward": 10**400}, "infinite"), ({"messages": []}, "holds no message"),
     ({"prompt": [{"role": "user", "content": 5}], "completion": "c"}, "neither text nor"),
     ({"completion": "c", "step": "x"}, "'step'"),
     ({"chosen": [], "rejected": []}, "holds no message"), ({"completion": "c", "label": 1}, "'label'"),
     ({"completion": "c", "advantage": -1e39}, "'advantage' is infinite")],
)  # fmt: skip
def test_bad_rows_name_their_line_and_leave_nothing(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    (tmp_path / "r.jsonl").write_text(json.dumps({"prompt": "p", "completion": "c"}) + "\n" + json.dumps(row))
    with pytest.raises(UserError, match=f"r.jsonl:2.*({message})"):
        read_trl(tmp_path / "r.jsonl", tmp_path / "run")
    assert [p.name for p in tmp_path.iterdir()] == ["r.jsonl"]


def test_a_parquet_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no such thing PAR1")
    with pytest.raises(UserError, match=r"cannot read .*x.parquet"):
        read_trl(tmp_path / "x.parquet", tmp_path / "run")
    with pytest.raises(RamifyError):
        pick_reader(tmp_path / "x.parquet")


# --- rewards, and trainers that cannot be made


def test_a_scorer_is_a_reward_function_and_its_failures_are_none() -> None:
    class Broken(ExactMatch):
        def agrees(self, said: str, task: Any) -> bool:
            raise RuntimeError("no judge")

    reward = trl_trainer.reward_function(ExactMatch())
    prompts: list[Any] = ["2+2", [{"role": "user", "content": "1+1"}]]
    completions: list[Any] = ["4", [{"role": "assistant", "content": "3"}]]
    rows: dict[str, Any] = {"prompts": prompts, "completions": completions, "answer": ["4", "2"], "trainer_state": object()}
    assert asyncio.run(reward(**rows)) == [1.0, 0.0]
    assert reward.__name__ == "exact"
    assert asyncio.run(trl_trainer.reward_function(Broken())(**rows)) == [None, None]
    with pytest.raises(UserError, match="no 'answer'"):
        asyncio.run(reward(prompts=["a"], completions=["b"]))


class _ClosedEnvironment(HouseholdEnvironment):
    opened = closed = 0

    def make(self) -> Any:
        env: Any = super().make()
        self.opened += 1
        env.close = self._close
        return env

    def _close(self) -> None:
        self.closed += 1


def test_tree_rollouts_give_environments_back_and_train_a_shared_end_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, template = load_model(model_folder("builtin"))
    sampling = Sampling(max_tokens=24, stop_tokens=template.stop_tokens)
    environment = _ClosedEnvironment()
    monkeypatch.setattr(trl_trainer, "_dataset", list)
    with Run.create(tmp_path / "run", {}) as run:
        with pytest.raises(UserError, match="take no compactor"):
            trl_trainer.TreeRollouts(Agent(model, template, sampling, DropOldest(), 200), environment, run)
        rollouts = trl_trainer.TreeRollouts(Agent(model, template, sampling), environment, run, roots=2)
        rows: Any = rollouts.dataset(environment.task_set("train", 2, 0))
        assert environment.opened == environment.closed == 2

        def no_way_back(env: Any, snapshot: Any) -> None:
            raise OSError("lost")

        monkeypatch.setattr(Household, "restore", no_way_back)  # every branch fails where it would have started
        monkeypatch.setattr(type(model), "refresh", lambda self: None, raising=False)
        trainer: Any = types.SimpleNamespace(
            rollout_inputs=[row for row in rows for _ in range(32)],
            accelerator=types.SimpleNamespace(num_processes=1),
            model=types.SimpleNamespace(eval=lambda: None, train=lambda: None),
        )
        out = rollouts([], trainer)
        assert environment.opened == environment.closed
        assert out["reward"].count(None) == 60
        trained = [
            (tuple(p), tuple(c))
            for p, c, m in zip(out["prompt_ids"], out["completion_ids"], out["env_mask"], strict=True)
            if any(m)
        ]
        assert len(trained) == len(set(trained)), "a row is trained twice"


def test_an_attempt_that_a_boundary_cut_off_is_no_conversation(hand: tuple[Run, str, str], tmp_path: Path) -> None:
    run, reply, _ = hand
    assert write_sft(run, tmp_path / "a.jsonl") == 2
    run.add(AttemptRecord(reply, "t", index=99, failure="provider: no answer"))
    assert write_sft(run, tmp_path / "b.jsonl") == 2, "what it sampled belongs to the attempt that continued from there"
    assert (tmp_path / "a.jsonl").read_text() == (tmp_path / "b.jsonl").read_text()
    before = write_steps(run, tmp_path / "s.jsonl")
    assert sorted(row["reward"] for row in read_steps(tmp_path / "s.jsonl")) == [0.0, 1.0][:before]


def test_a_missing_trl_and_a_moved_seam_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(NeedsError, match=r"pip install 'ramify\[rl\]'"):
        trl_trainer.step_trainer(None, [GOOD])
    moved = types.SimpleNamespace(__version__="9.0", GRPOTrainer=type("GRPOTrainer", (), {}))
    monkeypatch.setitem(sys.modules, "trl", moved)
    with pytest.raises(NeedsError, match=r"trl 9\.0 no longer has the seam '_generate_and_score_completions'"):
        trl_trainer.step_trainer(None, [GOOD])


# --- training, with TRL itself


def needs_trl() -> Any:
    return pytest.importorskip("trl", reason="trl is not installed: THE trl DOOR IS NOT TESTED")


def grpo_config(out: Path, **options: Any) -> Any:
    plain: dict[str, Any] = {"report_to": [], "use_cpu": True, "save_strategy": "no", "disable_tqdm": True, "bf16": False}
    plain |= {"lr_scheduler_type": "constant", "max_grad_norm": 0.0, "max_steps": 1, "num_generations": 2, "learning_rate": 1e-3}
    return needs_trl().GRPOConfig(output_dir=str(out), logging_steps=1, **plain | options)


def one_step(rows: list[dict[str, Any]], out: Path, **options: Any) -> tuple[float, dict[str, Any], float]:
    """Loss, gradient, and the largest change of a weight, of one step of TRL's GRPOTrainer on ``rows``."""
    from transformers import TrainerCallback

    model, tokenizer = hf_agent()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    gradient: dict[str, Any] = {}

    class Keep(TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            gradient.update({name: weight.grad.detach().clone() for name, weight in model.named_parameters()})

    args = grpo_config(out, per_device_train_batch_size=len(rows), **options)
    trainer = trl_trainer.step_trainer(model, rows, args=args, processing_class=tokenizer, callbacks=[Keep()])
    loss = trainer.train().training_loss
    moved = max(float((model.get_parameter(name) - weight).abs().max()) for name, weight in before.items())
    return loss, gradient, moved


@pytest.fixture(scope="module")
def step_rows(played: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("rows") / "s.parquet"
    with Run.open(played) as run:
        write_steps(run, out, rule="g2po", shared="every")
    rows = read_steps(out)[:8]
    assert len(rows) == 8
    rng = np.random.default_rng(0)
    for row in rows:  # as if the policy had moved on since: ratios on both sides of the clip
        row["logprobs"] = (np.array(row["logprobs"]) + 0.4 * rng.standard_normal(len(row["logprobs"]))).tolist()
        row["env_mask"] = [int(m and rng.random() < 0.9) for m in row["env_mask"]]
    return rows


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_grpo_step_of_trl_has_our_loss_and_gradient(step_rows: list[dict[str, Any]], tmp_path: Path) -> None:
    needs_trl()
    import torch

    from ramify.train.batch import Row, collate
    from ramify.train.loop import token_logprobs
    from ramify.train.losses import LossConfig, Scores, policy_gradient

    loss, gradient, moved = one_step(step_rows, tmp_path / "out", loss_type="bnpo")
    batch_rows = []
    for row in step_rows:
        ahead = len(row["prompt_ids"])
        advantage, logprobs, mask = (np.pad(np.float32(row[k]), (ahead, 0)) for k in ("advantages", "logprobs", "env_mask"))
        tokens = np.int32(row["prompt_ids"] + row["completion_ids"])
        batch_rows.append(Row(tokens, mask > 0, {"advantage": advantage, "logprobs": logprobs}))
    model, _ = hf_agent()
    batch = collate(batch_rows)
    scores = Scores(token_logprobs(model, batch))
    mine = policy_gradient(batch, scores, LossConfig())[batch.mask].sum() / batch.mask.sum()
    mine.backward()
    ratio = (scores.logprobs - batch.token_values["logprobs"])[batch.mask].exp()
    assert (ratio > 1.2).any()
    assert (ratio < 0.8).any()
    assert loss == pytest.approx(float(mine), abs=1e-5)
    assert moved > 1e-4
    assert gradient
    for name, weight in model.named_parameters():
        torch.testing.assert_close(gradient[name], weight.grad, atol=1e-5, rtol=0)
    assert max(float(g.abs().max()) for g in gradient.values()) > 0.01


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_tokens_that_are_masked_have_no_gradient_at_all(step_rows: list[dict[str, Any]], tmp_path: Path) -> None:
    needs_trl()
    loss, gradient, _ = one_step(step_rows, tmp_path / "a")
    wild = [
        row
        | {
            "advantages": [a if m else 1000.0 for a, m in zip(row["advantages"], row["env_mask"], strict=True)],
            "logprobs": [p if m else -9.0 for p, m in zip(row["logprobs"], row["env_mask"], strict=True)],
        }
        for row in step_rows
    ]
    assert wild != step_rows
    other, same, _ = one_step(wild, tmp_path / "b")
    assert other == loss
    assert all(bool((same[name] == gradient[name]).all()) for name in gradient)
    model, tokenizer = hf_agent()
    args = grpo_config(tmp_path / "c", per_device_train_batch_size=8)
    with pytest.raises(UserError, match="2 rows do not fill one generation batch of 8"):
        trl_trainer.step_trainer(model, step_rows[:2], args=args, processing_class=tokenizer)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_stored_rows_are_each_used_once_an_epoch(step_rows: list[dict[str, Any]], tmp_path: Path) -> None:
    needs_trl()
    model, tokenizer = hf_agent()
    args = grpo_config(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=-1, num_train_epochs=1)
    trainer = trl_trainer.step_trainer(model, step_rows, args=args, processing_class=tokenizer)
    batches: list[list[int]] = []
    compute = trainer._compute_loss

    def counted(model: Any, inputs: dict[str, Any]) -> Any:
        batches.append((inputs["completion_mask"] * inputs["tool_mask"]).sum(dim=1).tolist())
        return compute(model, inputs)

    trainer._compute_loss = counted
    trainer.train()
    assert trainer.state.global_step == 2
    used = [mask for batch in batches for mask in batch]
    assert sorted(used) == sorted(sum(row["env_mask"]) for row in step_rows)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_supervised_training_of_trl_learns_exported_conversations(played: Path, tmp_path: Path) -> None:
    trl = needs_trl()
    datasets = pytest.importorskip("datasets")
    import torch

    with Run.open(played) as run:
        write_sft(run, tmp_path / "sft.parquet", successful="true")
    data = datasets.Dataset.from_parquet(str(tmp_path / "sft.parquet"), cache_dir=str(tmp_path / "cache"))
    model, tokenizer = hf_agent()
    with torch.no_grad():  # an agent that has to learn again
        for weight in model.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    tokenizer.chat_template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    args = trl.SFTConfig(
        output_dir=str(tmp_path / "out"), max_steps=12, per_device_train_batch_size=4, learning_rate=3e-3, logging_steps=1,
        report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True, bf16=False,
    )  # fmt: skip
    trainer = trl.SFTTrainer(model=model, args=args, train_dataset=data, processing_class=tokenizer)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 12
    assert np.mean(losses[-3:]) < 0.7 * np.mean(losses[:3])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_live_trees_train_the_very_model_that_samples_them(tmp_path: Path) -> None:
    needs_trl()
    from ramify.engine.checkpoints import model_folder
    from ramify.engine.local import LocalModel
    from ramify.env.builtin.household import HouseholdEnvironment
    from ramify.model.chat import TagTemplate
    from ramify.model.protocol import Sampling
    from ramify.model.tokenizer import HfTokenizer
    from ramify.rollout.agent import Agent

    model, tokenizer = hf_agent()
    words = HfTokenizer.load(model_folder("builtin"))
    template = TagTemplate(words)
    agent = Agent(LocalModel(model, words), template, Sampling(max_tokens=24, stop_tokens=template.stop_tokens))
    environment = HouseholdEnvironment()
    args = grpo_config(tmp_path / "out", per_device_train_batch_size=12, num_generations=6, max_steps=2, loss_type="bnpo")
    with Run.create(tmp_path / "run", {}) as run:
        rollouts = trl_trainer.TreeRollouts(agent, environment, run, roots=3)
        data = rollouts.dataset(environment.task_set("train", 8, 0))
        trainer = trl_trainer.step_trainer(
            model, rollout_func=rollouts, train_dataset=data, args=args, processing_class=tokenizer
        )
        wanted: list[float] = []
        compute = trainer._compute_loss

        def mean_advantage(model: Any, inputs: dict[str, Any]) -> Any:
            mask = inputs["completion_mask"] * inputs["tool_mask"]
            wanted.append(-float((inputs["advantages"] * mask).sum() / mask.sum()))
            return compute(model, inputs)

        trainer._compute_loss = mean_advantage
        trainer.train()
        assert [info.group for info in run.trees()] == ["call-000000"] * 2 + ["call-000001"] * 2
        for info in run.trees():
            starts = [one.start for one in run.attempts(tree=info.name)]
            assert len(starts) == 6
            assert starts.count(None) >= 3
            assert any(starts)
        weights = {
            run.provenance(node.provenance).weights for info in run.trees() for node in run.nodes(info.name) if node.provenance
        }
        assert len(weights) == 2  # the second call sampled with what the first step made
    # sampled by the weights that are trained: every ratio is 1, so the loss is minus the mean advantage of the trained tokens
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses == pytest.approx(wanted, abs=1e-4)
    assert trainer.state.log_history[0]["grad_norm"] > 0
    with pytest.raises(UserError, match="either rows or a rollout_func"):
        trl_trainer.step_trainer(model, [GOOD], rollout_func=rollouts)
