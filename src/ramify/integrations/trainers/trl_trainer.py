"""Training with TRL on ramify's credit: its GRPOTrainer with an advantage for each token,
live rollouts in an environment, scorers as rewards.

TRL's extension points used here (read in trl 1.16): ``rollout_func`` returns prompt_ids, completion_ids, logprobs and env_mask,
and its other fields are merged into the rows that ``_generate_and_score_completions`` got; ``_compute_loss`` takes advantages of
shape (B, T). :func:`step_trainer` checks that they are still there and says so in one sentence when they are not."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ramify.base.errors import NeedsError, UserError
from ramify.base.ids import canonical_json
from ramify.base.seeds import generator
from ramify.base.waiting import wait_for
from ramify.env.protocol import Environment, Task, TaskSet, close
from ramify.integrations.trainers.reading import messages
from ramify.integrations.trainers.rows import StepSelection, credited_rows
from ramify.integrations.trainers.trl import check_steps
from ramify.rollout.agent import Agent
from ramify.rollout.attempts import Attempt
from ramify.rollout.run import Episodes
from ramify.score.judge import Item, Judge, judged
from ramify.trace.message import plain, read_message
from ramify.trace.node import make_node
from ramify.trace.path import Path

if TYPE_CHECKING:
    from ramify.model.chat import ChatTemplate
    from ramify.trace.db import Run

TOKEN_FIELDS = ("prompt_ids", "completion_ids", "logprobs", "env_mask", "advantages")
RolloutFunc = Callable[[list[Any], Any], dict[str, Any]]


def step_trainer(
    model: Any,
    rows: Sequence[Mapping[str, Any]] | None = None,
    *,
    rollout_func: RolloutFunc | None = None,
    train_dataset: Any = None,
    **options: Any,
) -> Any:
    """A TRL GRPOTrainer that trains every sampled token with its own advantage, and its ratio against the sampler's log-probs.

    Either ``rows`` of ``trl-steps`` (:func:`ramify.integrations.trainers.trl.read_steps`), each used once an epoch, or a
    ``rollout_func`` that also returns ``advantages`` (:class:`TreeRollouts`) with its ``train_dataset``. ``options`` go to the
    trainer: ``args`` (a ``GRPOConfig``; its temperature must be the one the rows were sampled at), ``processing_class``,
    ``peft_config``, ``reward_funcs`` (for the log only: the advantages are given).

    Raises NeedsError where TRL is missing or its seams have moved, UserError on rows that do not fit or are fewer than one batch.
    """
    trainer_class = _trainer_class(repeat=rows is None)
    if (rows is None) == (rollout_func is None):
        raise UserError("a step trainer takes either rows or a rollout_func")
    if rows is not None:
        for i, row in enumerate(rows):
            check_steps(row, f"row {i}")
        kept = ("prompt", "reward", *TOKEN_FIELDS)
        table = [{"prompt": "", "reward": None} | {k: v for k, v in row.items() if k in kept} for row in rows]
        train_dataset = _dataset(table)
        rollout_func = _stored
    options.setdefault("reward_funcs", _logged_reward)
    trainer = trainer_class(model=model, train_dataset=train_dataset, rollout_func=rollout_func, **options)
    if rows is not None and len(rows) < trainer.args.generation_batch_size:
        raise UserError(
            f"{len(rows)} rows do not fill one generation batch of {trainer.args.generation_batch_size}: "
            "lower per_device_train_batch_size, gradient_accumulation_steps or generation_batch_size"
        )
    return trainer


def _trl() -> Any:
    try:
        return importlib.import_module("trl")
    except ImportError as error:
        raise NeedsError(f"training with TRL needs trl: pip install 'ramify[rl]' ({error})") from error


def _dataset(rows: list[dict[str, Any]]) -> Any:
    _trl()
    return importlib.import_module("datasets").Dataset.from_list(rows)


def _trainer_class(repeat: bool) -> Any:
    trl = _trl()
    base: Any = trl.GRPOTrainer
    moved = [
        name for name in ("_generate_and_score_completions", "_compute_loss", "_get_train_sampler") if not hasattr(base, name)
    ]
    if not moved and "rollout_func" not in inspect.signature(base.__init__).parameters:
        moved = ["rollout_func"]
    if not moved and "advantages.dim()" not in inspect.getsource(base._compute_loss):
        moved = ["advantages of shape (B, T) in _compute_loss"]
    if moved:
        raise NeedsError(
            f"trl {trl.__version__} no longer has the seam '{moved[0]}' that per-token advantages need: use trl 1.16"
        )

    class StepTrainer(base):  # type: ignore[misc]
        """GRPOTrainer with an advantage for each token; TRL's own, one for each completion, goes into its log only."""

        def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
            self.rollout_inputs = inputs  # what a rollout_func may look up beyond the prompts
            out: dict[str, Any] = super()._generate_and_score_completions(inputs)
            if "advantages" not in inputs[0] or out.get("sampling_per_token_logps") is None:
                raise NeedsError(f"trl {trl.__version__} handed the advantages of the rollout_func on to nobody: use trl 1.16")
            logprobs = out["sampling_per_token_logps"]
            advantages = logprobs.new_zeros(logprobs.shape)
            for i, row in enumerate(inputs):
                advantages[i, : len(row["advantages"])] = logprobs.new_tensor(row["advantages"])
            return out | {"advantages": advantages, "old_per_token_logps": logprobs}

        def _get_train_sampler(self, dataset: Any = None) -> Any:
            sampler = super()._get_train_sampler(dataset)
            if not repeat:  # stored rows are completions already: each is wanted once, not once a generation
                sampler.mini_repeat_count, sampler.batch_size = 1, self.args.generation_batch_size
            return sampler

    return StepTrainer


def _stored(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    """The rollout_func of stored rows: the rows of the batch as they are."""
    return {name: [row[name] for row in trainer.rollout_inputs] for name in TOKEN_FIELDS}


def _logged_reward(reward: Sequence[float | None] = (), **columns: Any) -> list[float | None]:
    return list(reward) or [None] * len(columns["prompts"])


# --- live rollouts ----------------------------------------------------------------------------------------------------


class TreeRollouts:
    """A ``rollout_func`` whose completions are attempts in an environment, stored as trees,
    with graph-credit as their advantages.

    Of the ``num_generations`` attempts at a task the first ``roots`` start at the beginning; each other one continues from a step
    of an earlier attempt, taken in turn, where the environment can be put back (else from the beginning). All attempts end up in
    ``run``, one tree a task and call. A message that attempts share is trained once.
    """

    def __init__(
        self, agent: Agent, environment: Environment, run: Run, *, roots: int | None = None, rule: str = "g2po", seed: int = 0
    ) -> None:
        """``agent`` samples with the very module that is trained (``LocalModel(trainer_model, tokenizer)``). Raises UserError."""
        if agent.template is None:
            raise UserError("tree rollouts for a trainer need an agent with tokens and a chat template")
        if agent.compactor is not None:
            raise UserError(
                "tree rollouts for a trainer take no compactor: TRL wants one row an attempt, and compaction makes several"
            )
        self.agent, self.environment, self.run, self.roots, self.rule, self.seed = agent, environment, run, roots, rule, seed
        self.calls = 0

    def dataset(self, task_set: TaskSet) -> Any:
        """The tasks as a dataset of TRL: the first observation as prompt, and the task."""
        rows = []
        for task in task_set:
            env = self.environment.make()
            try:
                first = env.reset(task, self.seed)
            finally:
                close(env)
            data = dict(task.data)
            rows.append(
                {"prompt": [{"role": first.role, "content": first.text}], "task_id": task.id, "task_data": canonical_json(data)}
            )
        return _dataset(rows)

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Play the batch's tasks and credit every step. Raises UserError where the dataset is not one of :meth:`dataset`."""
        inputs = trainer.rollout_inputs
        if "task_id" not in inputs[0]:
            raise UserError("the train_dataset of tree rollouts is made by their dataset(task set)")
        if trainer.accelerator.num_processes > 1:
            raise NeedsError(
                "tree rollouts train in one process: several would each credit a part of a group, and write to one run"
            )
        tasks = [Task(row["task_id"], json.loads(row["task_data"])) for row in inputs]
        self.agent.model.refresh()  # type: ignore[attr-defined]  # the trainer has changed the weights since the last call
        group = f"call-{self.calls:06d}"
        self.calls += 1
        module = trainer.model
        module.eval()  # what is sampled with dropout is not the policy
        try:
            attempts = wait_for(self._play(group, tasks))
        finally:
            module.train()
        self.run.commit()
        chosen = StepSelection.model_validate({"group": group, "rule": self.rule, "zeros": True})
        scored = any(attempt.outcome is not None for attempt in attempts)
        credited = {row["leaf"]: row for row in credited_rows(self.run, chosen)} if scored else {}
        rows = [credited.get(attempt.leaf) or self._row(attempt) for attempt in attempts]
        out: dict[str, Any] = {name: [row[name] for row in rows] for name in TOKEN_FIELDS}
        return out | {"reward": [None if attempt.outcome is None else attempt.reward for attempt in attempts]}

    async def _play(self, group: str, tasks: Sequence[Task]) -> list[Attempt]:
        episodes = Episodes(self.agent, self.environment, self.run, self.seed, group)
        indices: dict[str, list[int]] = {}
        for i, task in enumerate(tasks):
            indices.setdefault(task.id, []).append(i)
        found: dict[int, Attempt] = {}

        async def grow(rows: list[int]) -> None:
            task, tree = tasks[rows[0]], f"{group}/{tasks[rows[0]].id}"
            roots = max(1, len(rows) // 2 if self.roots is None else self.roots)
            first = await asyncio.gather(*(episodes.attempt(tree, task, n) for n in range(min(roots, len(rows)))))
            forks = [turn.answer.id for attempt in first for turn in attempt.turns if turn.forkable]
            order = generator(self.seed, "branches", tree).permutation(len(forks))
            rest = range(len(first), len(rows))
            later = await asyncio.gather(
                *(
                    episodes.branch(tree, task, forks[order[n % len(forks)]], n) if forks else episodes.attempt(tree, task, n)
                    for n in rest
                )
            )
            found.update(zip(rows, [*first, *later], strict=True))

        await asyncio.gather(*(grow(rows) for rows in indices.values()))
        return [found[i] for i in range(len(tasks))]

    def _row(self, attempt: Attempt) -> dict[str, Any]:
        """The row of an attempt that has nothing to train: TRL wants one completion a prompt."""
        path = self.run.path(attempt.leaf)
        tokens, start = path.tokens, max(1, int(np.argmax(path.sampled)))
        if start >= len(tokens):
            raise UserError(
                f"the attempt that ends at node {attempt.leaf} sampled no token ({attempt.failure or 'it had no turn'})"
            )
        none = [0.0] * (len(tokens) - start)
        row: dict[str, Any] = {"prompt_ids": tokens[:start].tolist(), "completion_ids": tokens[start:].tolist()}
        return row | {"env_mask": [0] * len(none), "logprobs": none, "advantages": none}


# --- judges as reward functions ---------------------------------------------------------------------------------------


def reward_function(scorer: Judge) -> Callable[..., Awaitable[list[float | None]]]:
    """A judge of ramify as a reward function of TRL, to pass in ``reward_funcs``.

    The other columns of the dataset are the task's data (``answer`` for the graders). A judge with a ``template`` (one that reads
    tokens) gets the very ids that were sampled, end of turn included, after the prompt as the template lays it out; ``env_mask``
    says where they are not the agent's. A completion that could not be scored gets None,
    which TRL leaves out; it is never counted as failed.
    """
    template = getattr(scorer, "template", None)

    async def reward(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float | None]:
        lists = {k: v for k, v in columns.items() if isinstance(v, list) and len(v) == len(prompts)}
        ids, masks = lists.pop("completion_ids", None), lists.get("env_mask")
        paths, tasks = [], []
        for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            alone = all(m.get("role") == "assistant" for m in messages(completion, "assistant", f"completion {i}"))
            if template is not None and ids is not None and ids[i] is not None and (masks is not None or alone):
                sampled = [1] * len(ids[i]) if masks is None else masks[i]
                paths.append(_sampled_path(prompt, ids[i], sampled, template, f"completion {i}"))
            else:
                paths.append(path_of(prompt, completion, f"completion {i}"))
            tasks.append(Task(str(i), {name: plain(values[i]) for name, values in lists.items()}))
        found = await judged(scorer, [Item.of(path, task) for path, task in zip(paths, tasks, strict=True)])
        return [None if one.value is None else float(one.value) for one in found]

    reward.__name__ = scorer.name
    return reward


def _sampled_path(prompt: Any, ids: Sequence[int], sampled: Sequence[int], template: ChatTemplate, where: str) -> Path:
    """A path of the ids of a completion after its prompt: each stretch the agent sampled (1 in ``sampled``) ends a node."""
    nodes = [make_node("trl", None, 0, "root", "")]
    after, head = "", list[int]()
    if isinstance(prompt, str):  # TRL reads it as it is
        pieces = [("user", template.tokenizer.encode(prompt), prompt)]
    else:
        pieces = []
        for value in messages(prompt, "user", where):
            message = read_message(value, where)
            pieces.append((message.role, template.render(message.role, message.text, after)[0], message.text))
            after = message.role
        head = template.open("assistant", after)
    for role, tokens, text in pieces:
        nodes.append(make_node("trl", nodes[-1].id, len(nodes[-1]), role, text, tokens=tokens))
    row, mask = np.array([*head, *ids], np.int32), np.array([*[0] * len(head), *sampled], np.bool_)
    cuts = np.flatnonzero(mask[:-1] & ~mask[1:]) + 1
    for part, own in zip(np.split(row, cuts), np.split(mask, cuts), strict=True):
        role, text = "assistant" if own.any() else "tool", template.tokenizer.decode(part.tolist())
        nodes.append(make_node("trl", nodes[-1].id, len(nodes[-1]), role, text, tokens=part, sampled=own))
    return Path.of(nodes)


def path_of(prompt: Any, completion: Any, where: str) -> Path:
    """A path of text, from texts or lists of messages. Raises UserError naming ``where`` on what is not a message."""
    nodes = [make_node("trl", None, 0, "root", "")]
    for value in [*messages(prompt, "user", where), *messages(completion, "assistant", where)]:
        message = read_message(value, where)
        nodes.append(make_node("trl", nodes[-1].id, len(nodes[-1]), message.role, message.text, data=message.data))
    return Path.of(nodes)
