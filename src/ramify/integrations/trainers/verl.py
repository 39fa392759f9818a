"""verl's files in and out, and advantage functions for its registry.

Read in verl 0.9.1 and verl-agent: ``core_algos.register_adv_est`` and the call in ``ray_trainer.compute_advantage``, which hands
an estimator ``token_level_rewards``, ``response_mask``, ``config`` and ``index`` (the prompts' uids) by name; the layout of
``DataProto`` (prompts padded on the left, responses on the right);
the JSON lines of ``trainer.rollout_data_dir``; ``compute_gigpo_outcome_advantage``.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from ramify.base.config import Config, check
from ramify.base.errors import InfrastructureError, NeedsError, UserError
from ramify.base.files import whole_file
from ramify.base.registry import register
from ramify.base.waiting import wait_for
from ramify.base.words import plural
from ramify.integrations.trainers.reading import Forest, add_records, messages
from ramify.integrations.trainers.rows import StepSelection, credited_rows, settings_of, spoken_by, write_table
from ramify.methods.graph_credit.algorithm import CreditConfig, credit
from ramify.score.judge import Item, Judge, judged
from ramify.trace.aliases import IMPORTED, KNOWN
from ramify.trace.chats import form_of
from ramify.trace.db import Run
from ramify.trace.formats import Reader, Writer
from ramify.trace.graph import factorize
from ramify.trace.jsonl import new_run
from ramify.trace.lines import field

# --- out: prompts ------------------------------------------------------------------------------------------------------

ABILITY = "agent"
"""verl's column of that name: it sorts metrics, and all rows here are attempts of one agent."""


class PromptSettings(Config):
    """Settings of ``verl``."""

    group: str | None = None
    """Only trees of this group."""
    data_source: str = "ramify"
    """Names the reward function in verl."""
    max_rows: int | None = Field(None, ge=1)
    """Stop after this many rows."""


def write_prompts(run: Run, out: Path, **settings: Any) -> int:
    """Write verl's Parquet dataset of prompts, one row a task; returns how many.
    ``settings`` are those of :class:`PromptSettings`.

    ``prompt`` holds the messages before the first reply, ``reward_model.ground_truth`` the task's answer where it has one (else
    its whole data, as JSON), ``extra_info`` the task's id and index. Raises UserError on a run without tasks.
    """
    chosen = check(PromptSettings, settings, "verl")
    if out.suffix.lower() != ".parquet":
        raise UserError(f"cannot write {out}: verl reads its prompts from a file that ends in .parquet")
    columns = {"data_source": "text", "prompt": "messages", "ability": "text", "reward_model": "truth", "extra_info": "task"}
    return write_table(out, _prompts(run, chosen), columns, chosen.max_rows)


def _prompts(run: Run, chosen: PromptSettings) -> Iterator[dict[str, Any]]:
    seen: set[str] = set()
    for info in sorted(run.trees(chosen.group), key=lambda info: info.name):
        task = str(info.task.get("id", info.name))
        tree = run.tree(info.name)
        if task in seen or not len(tree):
            continue
        node = tree.root
        while (below := tree.children(node.id)) and below[0].role != "assistant":
            node = below[0]
        prompt = spoken_by(tree.path(node.id).messages())
        if not prompt:
            continue
        seen.add(task)
        data = info.task.get("data", {})
        truth = data.get("answer", data) if isinstance(data, Mapping) else data
        yield {
            "data_source": chosen.data_source,
            "prompt": prompt,
            "ability": ABILITY,
            "reward_model": {"style": "rule", "ground_truth": truth if isinstance(truth, str) else json.dumps(truth)},
            "extra_info": {"task": task, "index": len(seen) - 1},
        }


# --- out: batches ------------------------------------------------------------------------------------------------------


class BatchSettings(StepSelection):
    """Settings of ``verl-batch``."""

    pad: int = Field(0, ge=0)
    """Token id that pads prompts and responses."""


def write_batch(run: Run, out: Path, **settings: Any) -> int:
    """Write the arrays of a verl batch as safetensors; returns how many rows. ``settings`` are those of :class:`BatchSettings`.

    B rows, P the longest prompt, R the longest response: ``prompts`` [B, P] padded on the left, ``responses`` [B, R] on the
    right, ``input_ids``, ``attention_mask`` and ``position_ids`` [B, P + R], ``response_mask`` [B, R] (1: trained), and float32
    [B, R] ``rollout_log_probs``, ``old_log_probs`` (the same), ``token_level_scores`` and ``token_level_rewards`` (the attempt's
    reward on its last trained token), ``advantages`` and ``returns`` (the same, as verl's estimators without a critic do).
    ``uid`` (the tree), ``traj_uid`` (the leaf) and ``data_source`` of each row are JSON in the file's metadata.
    :func:`load_batch` reads it. Raises as ``trl-steps`` does.
    """
    from safetensors.numpy import save

    chosen = check(BatchSettings, settings, "verl-batch")
    rows = list(islice(credited_rows(run, chosen), chosen.max_rows))
    if not rows:
        raise UserError("nothing to write: no attempt of the run fits the selection, or none has any credit to give")
    named = {
        "uid": [row["tree"] for row in rows],
        "traj_uid": [row["leaf"] for row in rows],
        "data_source": ["ramify"] * len(rows),
    }
    data = save(_padded(rows, chosen.pad), {"non_tensor_batch": json.dumps(named)})
    with whole_file(out) as part:
        part.write_bytes(data)
    return len(rows)


def _padded(rows: Sequence[Mapping[str, Any]], pad: int) -> dict[str, np.ndarray]:
    prompt = max(len(row["prompt_ids"]) for row in rows)
    width = max(len(row["completion_ids"]) for row in rows)
    names = ("rollout_log_probs", "token_level_rewards", "advantages")
    floats = {name: np.zeros((len(rows), width), np.float32) for name in names}
    ids = np.full((len(rows), prompt + width), pad, np.int64)
    attention, trained = np.zeros_like(ids), np.zeros((len(rows), width), np.int64)
    for i, row in enumerate(rows):
        start, length = prompt - len(row["prompt_ids"]), len(row["completion_ids"])
        ids[i, start : prompt + length] = [*row["prompt_ids"], *row["completion_ids"]]
        attention[i, start : prompt + length] = 1
        trained[i, :length] = row["env_mask"]
        floats["rollout_log_probs"][i, :length] = row["logprobs"]
        floats["advantages"][i, :length] = row["advantages"]
        floats["token_level_rewards"][i, length - 1] = row["reward"] or 0.0
    return {
        "input_ids": ids,
        "attention_mask": attention,
        "position_ids": np.maximum(attention.cumsum(axis=1) - 1, 0),
        "prompts": ids[:, :prompt].copy(),
        "responses": ids[:, prompt:].copy(),
        "response_mask": trained,
        "old_log_probs": floats["rollout_log_probs"].copy(),
        "token_level_scores": floats["token_level_rewards"].copy(),
        "returns": floats["advantages"].copy(),
        **floats,
    }


def load_batch(path: Path | str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Tensors and object arrays of a file of ``verl-batch``: what ``DataProto.from_dict(tensors, non_tensors)`` takes.

    Raises UserError on a file that is none.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            named = json.loads((file.metadata() or {})["non_tensor_batch"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise UserError(f"{path} is not a batch of verl-batch: {error}") from error
    return tensors, {k: np.array(v, dtype=object) for k, v in named.items()}


# --- advantage functions -----------------------------------------------------------------------------------------------

STEP_CREDIT = "ramify-steps"
"""Estimator: the credit of each step, carried in verl's token-level rewards, on every token of that step."""
GRAPH_CREDIT = "ramify-graph"
"""Estimator: graph-credit on rows that are one step each, as verl-agent makes them."""


def register_estimators() -> None:
    """Make ``algorithm.adv_estimator=ramify-steps`` and ``ramify-graph`` known to verl.
    Raises NeedsError where verl is not installed."""
    try:
        core = importlib.import_module("verl.trainer.ppo.core_algos")
    except ImportError as error:
        raise NeedsError(f"registering advantage functions needs verl, which is not installed here ({error})") from error
    if not hasattr(core, "register_adv_est"):
        raise NeedsError("this verl has no core_algos.register_adv_est: use verl 0.5 or newer")
    core.register_adv_est(STEP_CREDIT)(step_advantage)
    core.register_adv_est(GRAPH_CREDIT)(graph_advantage)


def step_advantage(
    token_level_rewards: Any, response_mask: Any, index: Any = None, config: Any = None, **_: Any
) -> tuple[Any, Any]:
    """Advantages and returns [B, R]: what a step's tokens were paid, on each of its tokens. Nothing is normalised again.

    A step is a run of 1s in ``response_mask`` with what follows up to the next one (the environment's answer). For rows that
    carry whole attempts: the agent loop or reward function puts each step's credit on any token of the step, the last as a rule.
    Raises UserError on rewards that are not finite numbers and on shapes that differ.
    """
    rewards, mask = _arrays(token_level_rewards, response_mask)
    starts = mask & ~np.pad(mask, ((0, 0), (1, 0)))[:, :-1]
    step = np.maximum(starts.cumsum(axis=1) - 1, 0)
    flat = step + np.arange(len(mask))[:, None] * (mask.shape[1] + 1)
    total = np.bincount(flat.ravel(), rewards.ravel(), minlength=int(flat.max(initial=0)) + 1)
    found = token_level_rewards.new_tensor(total[flat] * mask)
    return found, found.clone()


def graph_advantage(
    token_level_rewards: Any,
    response_mask: Any,
    index: Any = None,
    traj_index: Any = None,
    anchor_obs: Any = None,
    config: Any = None,
    *,
    valid: Any = None,
    step_rewards: Any = None,
    rule: Literal["g2po", "ep+nc", "ep+ec", "gigpo", "grpo"] = "g2po",
    **_: Any,
) -> tuple[Any, Any]:
    """Advantages and returns [B, R] by graph-credit, for rows that are one step each (verl-agent).

    ``index`` (uid), ``traj_index`` (traj_uid) and ``anchor_obs`` are object arrays of shape (B,); the rows of an attempt are in
    the order of its steps. As in verl-agent every row's ``token_level_rewards`` add up to the whole attempt's reward; where
    single rows carry a penalty, the attempt's reward is their mean. ``valid`` (is_action_valid) tells refused actions;
    ``step_rewards``, which GiGPO's function is also handed, are not needed.
    ``gamma`` is taken from ``config`` (0.95 where there is none).

    Raises UserError where an array is missing or has another length.
    """
    rewards, mask = _arrays(token_level_rewards, response_mask)
    valid = None if valid is None else np.asarray(valid, dtype=bool)
    given = {"index": index, "traj_index": traj_index, "anchor_obs": anchor_obs} | ({} if valid is None else {"valid": valid})
    for name, array in given.items():
        if array is None:
            raise UserError(
                f"'{GRAPH_CREDIT}' needs '{name}', which verl's own trainer does not hand to estimators: "
                f"call graph_advantage from verl-agent's compute_advantage, or use '{STEP_CREDIT}'"
            )
        if len(array) != len(mask):
            raise UserError(f"'{name}' has {plural(len(array), 'entry')} for {len(mask)} rows")
    keys = [_plain(key) for key in anchor_obs]
    tasks = [str(uid) for uid in index]
    attempt = factorize([[task, str(trajectory)] for task, trajectory in zip(tasks, traj_index, strict=True)])[0]
    count, order = np.bincount(attempt), np.argsort(attempt, kind="stable")
    ends = count.cumsum()
    step, last = np.zeros(len(attempt), np.int64), np.zeros(len(attempt), np.bool_)
    step[order] = np.arange(len(attempt)) - np.repeat(ends - count, count)
    last[order[ends - 1]] = True
    total = np.bincount(attempt, rewards.sum(axis=1)) / count
    gamma = getattr(config, "gamma", None) if not isinstance(config, Mapping) else config.get("gamma")
    settings = check(CreditConfig, {"rule": rule} | ({} if gamma is None else {"gamma": gamma}), GRAPH_CREDIT)
    paid = np.where(last, total[attempt], 0.0)
    found = credit(tasks, attempt, step, keys, paid, config=settings, valid=valid)["A"]
    advantages = token_level_rewards.new_tensor(found[:, None] * mask)
    return advantages, advantages.clone()


def _arrays(rewards: Any, mask: Any) -> tuple[np.ndarray, np.ndarray]:
    """float64 [B, R] and bool [B, R] on the host."""
    paid = rewards.detach().cpu().double().numpy()
    trained = mask.detach().cpu().numpy() != 0
    if paid.ndim != 2 or paid.shape != trained.shape:
        raise UserError(
            f"token_level_rewards have shape {list(paid.shape)} and response_mask {list(trained.shape)}; both are [B, R]"
        )
    if not np.isfinite(paid).all():
        raise UserError("token_level_rewards hold a value that is not a finite number")
    return paid, trained


def _plain(key: Any) -> Any:
    """An anchor observation as JSON: arrays become lists."""
    if isinstance(key, np.ndarray):
        return key.tolist()
    if isinstance(key, np.generic):
        return key.item()
    if isinstance(key, Mapping):
        return {str(k): _plain(v) for k, v in key.items()}
    return [_plain(v) for v in key] if isinstance(key, (list, tuple)) else key


# --- judges as reward functions -----------------------------------------------------------------------------------------------


def reward_function(judge: Judge) -> Callable[..., float]:
    """A judge of ramify as verl's ``custom_reward_function``:
    ``compute_score(data_source, solution_str, ground_truth, extra_info)``.

    The judge's data are ``extra_info`` with ``ground_truth`` as ``answer``. verl has no word for a missing score: a judge that
    could not run raises InfrastructureError("scorer"), and is never counted as a failed answer.
    """

    def compute_score(
        data_source: str = "",
        solution_str: str = "",
        ground_truth: Any = None,
        extra_info: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> float:
        item = Item(str(solution_str), str(data_source), data={**(extra_info or {}), "answer": ground_truth})
        (found,) = wait_for(judged(judge, [item]))
        if found.value is None:
            raise InfrastructureError("scorer", found.failure or f"{judge.name} cannot say")
        return float(found.value)

    return compute_score


# --- in ----------------------------------------------------------------------------------------------------------------


def read_verl(path: Path, folder: Path) -> int:
    """Make a run in ``folder`` from verl's dumped generations: one file of ``trainer.rollout_data_dir``, or that folder.

    ``input`` becomes one user message (verl dumps it decoded, without its special tokens), ``output`` the reply, ``score`` its
    score; what else a record holds (``gts``, extra infos of the reward function) is kept with the reply. Completions of one input
    and step share a tree. Raises UserError naming file and line.
    """
    files = [path]
    if path.is_dir():
        files = sorted(path.glob("*.jsonl"), key=lambda file: (len(file.stem), file.stem))
        if not files:
            raise UserError(f"{path} holds no .jsonl file")
    with new_run(folder, {"imported": {"form": "verl", "file": path.name}}) as run:
        forest = Forest(run, "verl")
        return add_records(run, files, lambda record, where: _add(forest, record, where))


def _add(forest: Forest, record: dict[str, Any], where: str) -> None:
    forest.add(
        messages(record.get("input"), "user", f"{where}: 'input'"),
        messages(record.get("output"), "assistant", f"{where}: 'output'"),
        where,
        step=field(record, "step", int, where, None),
        scores={IMPORTED: field(record, "score", (int, float), where)},
        judged=KNOWN.judged(record, where),
        record={k: v for k, v in record.items() if k not in ("input", "output", "score", "step") and v is not None},
    )


def _is_verl(path: Path, first: Mapping[str, Any] | None) -> bool:
    if path.is_dir():
        numbered = sorted(path.glob("*.jsonl"))[:1]
        if not numbered:
            return False
        from ramify.trace.lines import first_record

        first = first_record(numbered[0])[1]
    return first is not None and {"input", "output", "score"} <= first.keys() and form_of(first) is None


register("reader", "verl")(
    Reader(
        "verl",
        "Generations that verl dumped (trainer.rollout_data_dir): one JSON lines file, or the folder.",
        _is_verl,
        read_verl,
        example='{"input": "1+2?", "output": "3", "score": 1.0, "step": 1}\n',
    )
)
register("writer", "verl")(
    Writer("verl", "the tasks as verl's dataset of prompts (.parquet)", write_prompts, (), settings_of(PromptSettings))
)
register("writer", "verl-batch")(
    Writer(
        "verl-batch",
        "the tree's own tokens and their credit as the arrays of a verl batch (.safetensors)",
        write_batch,
        (".safetensors",),
        settings_of(BatchSettings),
    )
)
