"""Training a world model on recorded turns: next-token loss on observations (cpt), its own best predictions (sft), GSPO (rl).

The checkpoint, and the world that uses it (``world.toml``), lie in the run that trained it.
A call that was stopped continues there.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ramify.base import codec
from ramify.base.errors import NeedsError, UserError
from ramify.base.files import write_whole
from ramify.base.ids import canonical_json, json_hash, stable_hash
from ramify.base.processor import resident
from ramify.base.progress import SILENT, Progress
from ramify.base.seeds import generator
from ramify.base.waiting import wait_for
from ramify.base.words import plural
from ramify.methods.world_model.algorithm import KEEP, group_advantages, keeps, reward, same, turn_class, turn_statistics
from ramify.methods.world_model.environment import FILE
from ramify.methods.world_model.judging import prediction_item, rubric_judge
from ramify.methods.world_model.predict import initial_state
from ramify.methods.world_model.results import TrainedWorld
from ramify.methods.world_model.settings import Mask, WorldTraining
from ramify.methods.world_model.trajectories import EnvTrajectory, first_seen, read_trajectories, tasks_of
from ramify.model.chat import ChatTemplate, TagTemplate, train_tokenizer
from ramify.model.protocol import Completion, Prefix, Sampling
from ramify.model.rendered import laid_out
from ramify.rollout.sampler import Sampler
from ramify.score.judge import Judge, judged
from ramify.trace.db import Run
from ramify.train.batch import Row

if TYPE_CHECKING:
    from ramify.engine.adapters import Adapter
    from ramify.engine.local import LocalModel

TRAIN = "world-model train"
MODEL, TASKS = "model", "tasks.jsonl"
PIECES = r" ?\w+|\s|[^\w\s]"
"""Of a new tokenizer: punctuation stands alone, so that JSON's is not a part of a word."""
EVERY = 50
"""Steps between two kept states of a training."""


@dataclass
class WorldStart:
    """The model a training begins with."""

    model: LocalModel
    template: ChatTemplate
    folder: Path | None = None
    """Where it came from; None of a new one."""

    def adapter(self, settings: WorldTraining) -> Adapter | None:
        """What is trained instead of all weights. Raises UserError on a new model, which has nothing to adapt."""
        if self.folder is None:
            if settings.lora:
                raise UserError(f"--lora {settings.lora} adapts a model that is there: name one with --model")
            return None
        from ramify.engine.checkpoints import adapter_of

        return adapter_of(self.model, self.folder, settings.lora, settings.seed)


def read_sources(sources: Iterable[Path | str], form: str | None = None) -> list[EnvTrajectory]:
    """The trajectories of several runs and logs, in the order given."""
    return [one for source in sources for one in read_trajectories(source, form)]


def mask_of(trajectories: Sequence[EnvTrajectory], mask: Mask, seed: int) -> list[list[bool]]:
    """Of every turn whether it is trained on: seen first here, and kept by its class."""
    found = []
    for one, new in zip(trajectories, first_seen(trajectories), strict=True):
        kinds = [turn_class(turn_statistics(turn.action, turn.observation)) for turn in one.turns]
        table = KEEP if mask == "info" else {}
        found.append([n and keeps(k, seed, one.id, i, keep=table) for i, (n, k) in enumerate(zip(new, kinds, strict=True))])
    return found


def opening_text(one: EnvTrajectory) -> str:
    """What stands before the turns: the task's data and the first observation."""
    return "\n".join(filter(None, [initial_state(one.data), one.opening]))


# -- rows


def world_rows(
    trajectories: Sequence[EnvTrajectory], kept: Sequence[Sequence[bool]], template: ChatTemplate, context: int
) -> list[Row]:
    """Rows of whole trajectories: observations of kept turns are trained on (with the token that ends them), all else is shown.

    A trajectory longer than ``context`` gives several rows; each begins with its opening and two turns of context, and no turn is
    trained on twice. A turn that does not fit alone is left out.
    """
    rows = []
    for one, wanted in zip(trajectories, kept, strict=True):
        head = list(template.render("system", opening_text(one), "")[0])
        turns = [_turn_tokens(template, turn.action, turn.whole, i) for i, turn in enumerate(one.turns)]
        start = 0
        while start < len(turns):
            first = max(0, start - 2) if start else 0
            while first < start and _size(head, turns[first : start + 1]) > context:
                first += 1
            end = start
            while end < len(turns) and _size(head, turns[first : end + 1]) <= context:
                end += 1
            if end == start:  # one turn alone is too long
                start += 1
                continue
            tokens, mask = list(head), [False] * len(head)
            for i in range(first, end):
                given, said = turns[i]
                tokens += given + said
                mask += [False] * len(given) + [i >= start and wanted[i]] * len(said)
            if any(mask):
                rows.append(Row(np.asarray(tokens, np.int32), np.asarray(mask, np.bool_)))
            start = end
    return rows


def _turn_tokens(template: ChatTemplate, action: str, observation: str, number: int) -> tuple[list[int], list[int]]:
    after = "assistant" if number else "system"
    given = list(template.render("user", action, after)[0])
    header = list(template.open("assistant", "user"))
    said = list(template.render("assistant", observation, "user")[0])
    return given + header, said[len(header) :]


def _size(head: list[int], turns: Sequence[tuple[list[int], list[int]]]) -> int:
    return len(head) + sum(len(given) + len(said) for given, said in turns)


def prompt_tokens(template: ChatTemplate, one: EnvTrajectory, turn: int, context: int) -> np.ndarray | None:
    """The prompt of one prediction on true history, int32 (T,); as many oldest turns left out as do not fit. None where the turn
    alone is longer than ``context``."""
    for dropped in range(turn + 1):
        messages = [("system", opening_text(one))]
        for earlier in one.turns[dropped:turn]:
            messages += [("user", earlier.action), ("assistant", earlier.whole)]
        tokens = np.array(laid_out(template, [*messages, ("user", one.turns[turn].action)]), np.int32)
        if len(tokens) < context:
            return tokens
    return None


# -- models


def new_start(trajectories: Sequence[EnvTrajectory], settings: WorldTraining) -> WorldStart:
    """A new model, its tokenizer learnt from the data."""
    texts = (
        text for one in trajectories for text in (opening_text(one), *(word for t in one.turns for word in (t.action, t.whole)))
    )
    tokenizer = train_tokenizer(texts, settings.vocab, PIECES)
    heads = max(1, settings.width // 32)
    size = settings.width // heads
    from ramify.engine.local import LocalModel
    from ramify.engine.tiny import TinyConfig, TinyLM

    shape = TinyConfig(
        tokenizer.size, settings.width, settings.layers, heads, heads, size - size % 2, 3 * settings.width,
        context=settings.context, eos=(tokenizer.token_id("<|end|>"),),
    )  # fmt: skip
    template = TagTemplate(tokenizer)
    return WorldStart(LocalModel(TinyLM(shape, settings.seed), tokenizer, template=template, name="world"), template)


def open_start(spec: str, weights: bool = True) -> WorldStart:
    """A checkpoint to train on: hf:FOLDER, a folder, or a run that ``train`` made; ``weights`` as in
    :meth:`ramify.engine.local.LocalModel.load`.
    Raises NeedsError where its template cannot be used."""
    path = Path(spec)
    if any((path / MODEL / name).is_file() for name in ("config.json", "adapter_config.json")):
        spec = f"hf:{path / MODEL}"
    elif path.is_dir():
        spec = f"hf:{spec}"
    from ramify.engine.checkpoints import load_model, model_folder

    folder = model_folder(spec)
    model, template = load_model(folder, weights=weights)
    if "train" not in model.capabilities:
        raise NeedsError(f"'{spec}' cannot be trained here: float32 on the local engine is needed")
    said = [("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c")]
    end_to_end: list[int] = []
    for (role, text), after in zip(said, ("", "system", "user", "assistant"), strict=True):
        end_to_end += list(template.render(role, text, after)[0])
    if list(laid_out(template, said)) != [*end_to_end, *template.open("assistant", "user")]:
        raise NeedsError(
            f"the chat template of '{spec}' rewrites earlier messages, so a trajectory is not a single row: use one that does not"
        )
    return WorldStart(model, template, folder)


# -- the three stages


@dataclass(frozen=True)
class KeptTraining:
    """A state of a training: the blob with weights and optimiser, and the losses of the step before."""

    blob: str
    last: Mapping[str, float]


@dataclass(frozen=True)
class BestPrediction:
    """The best of several predictions of a turn; no tokens where the model gives none."""

    score: float
    tokens: tuple[int, ...]


class WorldTrainer:
    """One training, in a run of its own: what is kept of it is the optimiser's state, each fifty steps, and what was sampled."""

    def __init__(self, run: Run, start: WorldStart, trajectories: Sequence[EnvTrajectory], settings: WorldTraining) -> None:
        self.run, self.start, self.trajectories, self.settings = run, start, trajectories, settings
        from ramify.train.loop import Trainer
        from ramify.train.settings import LossConfig, TrainConfig

        loss = LossConfig(clip_low=3e-4, clip_high=4e-4)
        config = TrainConfig(lr=settings.lr, weight_decay=0.01, loss=loss)
        self.adapter = start.adapter(settings)
        self.trainer = Trainer(start.model.module, config, settings.seed, self.adapter)
        self.context = min(settings.context, start.model.context)
        self.last: dict[str, float] = {}
        self.skipped = 0
        """Groups with equal rewards, which teach nothing."""

    def train(self, progress: Progress = SILENT) -> list[Row]:
        """All steps of the stage; the rows that were trained on, none of stage rl.
        Raises UserError where nothing can be trained on."""
        rows = self._rows(progress)
        self._continue()
        s = self.settings
        progress.begin(s.steps, self.trainer.steps, s.stage, "steps")
        for step in range(self.trainer.steps, s.steps):
            warm, left = max(1, s.steps // 10), 0.55 + 0.45 * float(np.cos(np.pi * step / s.steps))
            self.trainer.set_rate(s.lr * min(1.0, (step + 1) / warm) * left)
            if s.stage == "rl":
                self.last = wait_for(self._reinforce(step))
            else:
                picks = generator(s.seed, "world-model rows", step).integers(0, len(rows), s.rows)
                self.last = self.trainer.update([rows[i] for i in picks], {"cross_entropy": 1.0})
            progress.at(step + 1, ", ".join(f"{name} {value:.3g}" for name, value in self.last.items() if name != "tokens"))
            if (step + 1) % EVERY == 0 or step + 1 == s.steps:
                self._keep()
        self.start.model.refresh()
        return rows

    def _rows(self, progress: Progress) -> list[Row]:
        if self.settings.stage == "rl":
            return []
        if self.settings.stage == "cpt":
            kept = mask_of(self.trajectories, self.settings.mask, self.settings.seed)
            rows = world_rows(self.trajectories, kept, self.start.template, self.context)
        else:
            rows = wait_for(self._chosen(progress))
        if not rows:
            raise UserError("no turn is left to train on: every one was masked, refused, or longer than the model's context")
        return rows

    # what is kept

    def _keep(self) -> None:
        tensors, record = self.trainer.state()
        before = [state.blob for state in self._kept().values()]
        from ramify.train.checkpoint import pack

        name = self.run.put_blob(pack(tensors, {**record, "skipped": self.skipped}))
        self.run.log("state", f"{self.trainer.steps:07d}", codec.to_json(KeptTraining(name, self.last)))
        self.run.commit()
        for blob in {*before} - {name}:
            self.run.drop_blob(blob)

    def _continue(self) -> None:
        kept = self._kept()
        if kept:
            newest = kept[max(kept)]
            from ramify.train.checkpoint import unpack

            tensors, record = unpack(self.run.get_blob(newest.blob))
            self.trainer.restore(tensors, record)
            self.last, self.skipped = dict(newest.last), int(record["skipped"])
            self.start.model.refresh()

    def _kept(self) -> dict[str, KeptTraining]:
        """By the step after which each was kept, written with leading zeros."""
        return {
            entry.key: codec.from_json(KeptTraining, entry.payload, f"{self.run.folder}, state {entry.key}")
            for entry in self.run.journal("state")
        }

    # sft: the best of several predictions, where it is good enough

    async def _chosen(self, progress: Progress) -> list[Row]:
        s, judge = self.settings, rubric_judge(self.settings.judge)
        turns = self._turns(s.prompts, "sft")
        progress.begin(len(turns), len(self.run.journal("sampled")), "sample and judge", "prompts")
        rows = []
        for number, (one, turn, prompt) in enumerate(turns):
            make = partial(self._best, judge, one, turn, prompt, number)
            best = await self.run.once_awaited("sampled", f"{number:06d}", BestPrediction, make)
            progress.at(number + 1)
            if best.score >= s.threshold and best.tokens:
                said = np.asarray(best.tokens, np.int32)
                rows.append(Row(np.concatenate((prompt, said)), np.arange(len(prompt) + len(said)) >= len(prompt)))
        return rows

    async def _best(
        self, judge: Judge, one: EnvTrajectory, turn: int, prompt: np.ndarray, number: int
    ) -> tuple[BestPrediction, tuple[()]]:
        completions = await self._sampled(prompt, self.settings.samples, ("sft", number))
        scores = await self._scores(judge, one, turn, completions)
        best = int(np.argmax(scores))
        tokens = completions[best].tokens
        return BestPrediction(scores[best], () if tokens is None else tuple(tokens.tolist())), ()

    # rl: one turn of a trajectory at a time, so that rows do not share long prefixes

    async def _reinforce(self, step: int) -> dict[str, float]:
        s, judge = self.settings, rubric_judge(self.settings.judge)
        self.start.model.refresh()
        turns = self._turns(s.rows, f"rl {step}")
        groups = await asyncio.gather(*(self._sampled(p, s.samples, ("rl", step, i)) for i, (*_, p) in enumerate(turns)))
        rows: list[Row] = []
        rewards: list[float] = []
        for (one, turn, prompt), group in zip(turns, groups, strict=True):
            scores = await self._scores(judge, one, turn, group)
            truth = one.turns[turn].whole
            each = [reward([score], same(self._text(c), truth)) for score, c in zip(scores, group, strict=True)]
            rewards += each
            advantages = group_advantages(each)
            if not advantages.any():
                self.skipped += 1
                continue
            rows += [sampled_row(prompt, c, float(a)) for c, a in zip(group, advantages, strict=True) if c.tokens is not None]
        found = self.trainer.update(rows, {"gspo": 1.0}) if rows else {"gspo": 0.0}
        return {"reward": float(np.mean(rewards)), **found}

    def _turns(self, n: int, purpose: str) -> list[tuple[EnvTrajectory, int, np.ndarray]]:
        """``n`` turns with their prompts, each of another trajectory while there are enough. Where one does not fit the context,
        the first of its trajectory that does; a trajectory without such a turn is passed over.
        Raises UserError where all of them are."""
        rng = generator(self.settings.seed, "world-model turns", purpose)
        order = rng.permutation(len(self.trajectories))
        found: list[tuple[EnvTrajectory, int, np.ndarray]] = []
        for i in range(n + len(order)):
            one = self.trajectories[int(order[i % len(order)])]
            for turn in (int(rng.integers(0, len(one.turns))), *range(len(one.turns))):
                prompt = prompt_tokens(self.start.template, one, turn, self.context)
                if prompt is not None:
                    found.append((one, turn, prompt))
                    break
            if len(found) == n:
                return found
        if not found:
            raise UserError(f"every recorded turn is longer than the model's context of {self.context} tokens")
        return found

    async def _sampled(self, prompt: np.ndarray, n: int, position: tuple[str | int, ...]) -> list[Completion]:
        stops = tuple(self.start.template.stop_tokens)
        room = max(1, min(self.settings.max_tokens, self.start.model.context - len(prompt)))
        sampler = Sampler(self.start.model, self.settings.seed)
        made = await sampler.sample(
            Prefix(prompt), n, Sampling(max_tokens=room, stop_tokens=stops), position, purpose="world model"
        )
        return [one for one in made if one is not None]

    async def _scores(self, judge: Judge, one: EnvTrajectory, turn: int, completions: Sequence[Completion]) -> list[float]:
        truth, action = one.turns[turn].whole, one.turns[turn].action
        history = "\n".join([opening_text(one), *(f"{t.action}\n{t.observation}" for t in one.turns[:turn])])
        items = [
            prediction_item(f"{one.id}:{turn}:{i}", self._text(c), truth, action, history) for i, c in enumerate(completions)
        ]
        found = await judged(judge, items)
        return [1.0 if f.value is None or c.stop == "length" else float(f.value) for f, c in zip(found, completions, strict=True)]

    def _text(self, completion: Completion) -> str:
        end = (
            self.start.template.tokenizer.decode([self.start.template.stop_tokens[0]]) if self.start.template.stop_tokens else ""
        )
        return completion.text.removesuffix(end)


def sampled_row(prompt: np.ndarray, completion: Completion, advantage: float) -> Row:
    """A sampled prediction as a training row with its advantage at each token."""
    assert completion.tokens is not None
    tokens = np.concatenate((prompt, completion.tokens)).astype(np.int32)
    mask = np.arange(len(tokens)) >= len(prompt)
    logprobs = np.zeros(len(tokens), np.float32)
    if completion.logprobs is not None:
        logprobs[len(prompt) :] = completion.logprobs
    return Row(tokens, mask, {"advantage": (mask * advantage).astype(np.float32), "logprobs": logprobs})


# -- the verb's work


def train_world(
    sources: Sequence[Path | str],
    model: str,
    settings: WorldTraining,
    out: Path,
    progress: Progress = SILENT,
    form: str | None = None,
) -> TrainedWorld:
    """Train ``model`` (``new``, or a checkpoint) on recorded turns in the run ``out``, and write the world that uses it.

    Raises UserError where nothing can be trained on, and where ``out`` began otherwise.
    """
    trajectories = read_sources(sources, form)
    start = new_start(trajectories, settings) if model == "new" else open_start(model)
    parts = {"turns": data_hash(trajectories), "weights": start.model.identity.weights}
    decides = {**settings.to_json(), "model": model}
    with Run.begin(out, TRAIN, decides, {"data": [str(source) for source in sources]}, parts) as run:
        trainer = WorldTrainer(run, start, trajectories, settings)
        rows = trainer.train(progress)
        from ramify.engine.checkpoints import save_model

        save_model(start.model, start.folder, out / MODEL, trainer.adapter)
        write_world(out, trajectories, settings)
    return TrainedWorld(
        stage=settings.stage,
        steps=settings.steps,
        rows=len(rows),
        observation_tokens=sum(int(row.mask.sum()) for row in rows),
        last=trainer.last,
        weights=sum(w.numel() for w in start.model.module.parameters()),
        trained_weights=sum(w.numel() for group in trainer.trainer.optimizer.param_groups for w in group["params"]),
        world=f"simulated:{out}",
        peak_memory=peak_memory(),
        groups_without_a_difference=trainer.skipped if settings.stage == "rl" else None,
    )


def peak_memory() -> int:
    """Bytes that this process had in memory at most, so far."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def data_hash(trajectories: Sequence[EnvTrajectory]) -> str:
    """Hash of all recorded turns."""
    return stable_hash(
        "turns", json_hash([[one.task, opening_text(one), [[t.action, t.whole] for t in one.turns]] for one in trajectories])
    )


def write_world(out: Path, trajectories: Sequence[EnvTrajectory], settings: WorldTraining) -> None:
    """``world.toml`` and the recorded tasks, with which ``simulated:OUT`` is an environment."""
    write_whole(out / TASKS, "".join(canonical_json(task) + "\n" for task in tasks_of(trajectories)))
    decided = any(turn.ended not in ("", "[over]") for one in trajectories for turn in one.turns)
    turns = max(len(one.turns) for one in trajectories)
    record = {
        "model": f"hf:{MODEL}",
        "layout": "plain",
        "tasks": TASKS,
        "verify": "model" if decided else "",
        "system": trajectories[0].system,
        "role": trajectories[0].role if trajectories[0].role in ("user", "tool") else "user",
        "max_turns": turns,
        "max_tokens": settings.max_tokens,
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in record.items()]
    text = f"# Written by `ramify world-model train` from {plural(len(trajectories), 'trajectory')}.\n"
    text += (
        '# verify = "model" believes the model\'s own mark of success: `ramify world-model audit` compares it with the real '
        "one.\n"
    )
    write_whole(out / FILE, text + "\n".join(lines) + "\n")


def cost_estimate(start: WorldStart, rows: Sequence[Row], settings: WorldTraining) -> dict[str, float]:
    """What a training on ``rows`` costs; ``start`` needs no weights."""
    from ramify.engine.adapters import numbers_of_adapter
    from ramify.train.large import FLOAT, most_tokens, pass_bytes
    from ramify.train.settings import TrainConfig

    module, n = start.model.module, max(1, len(rows))
    shown, observed = sum(len(row.tokens) for row in rows) / n, sum(int(row.mask.sum()) for row in rows)
    weights = sum(weight.numel() for weight in module.parameters())
    tokens = min(most_tokens(module, TrainConfig().micro_tokens), int(settings.rows * shown))
    step = pass_bytes(module, tokens, settings.rows * observed / n, start.model.forward.vocab)
    if settings.lora:
        base, parts = numbers_of_adapter(module, settings.lora)
        held = base + 4 * parts
    else:
        held, step = 2 * weights, max(step + FLOAT * weights, 3 * FLOAT * weights)  # gradients, or a checkpoint that is packed
    memory = resident() + FLOAT * (weights + held) + step
    return {
        "weights": weights,
        "steps": settings.steps,
        "rows": len(rows),
        "observation tokens": observed,
        "tokens to run": int(settings.steps * settings.rows * shown),
        "GiB of memory, about": round(memory / 2**30, 1),
    }


def trained_characters(trajectories: Sequence[EnvTrajectory], kept: Sequence[Sequence[bool]]) -> tuple[int, int]:
    """Characters of observations: all of them, and those that are trained on."""
    sizes = [
        (len(t.observation), keep)
        for one, each in zip(trajectories, kept, strict=True)
        for t, keep in zip(one.turns, each, strict=True)
    ]
    return sum(size for size, _ in sizes), sum(size for size, keep in sizes if keep)
