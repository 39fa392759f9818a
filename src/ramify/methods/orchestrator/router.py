"""The turn router: one forward pass of a small language model, one hidden state,
a linear head (section 3.2); its two stages of training.

Axis legend: B texts, T tokens, D width, L workers, N parameters (head, then the scales of singular values).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ramify.base import codec
from ramify.base.budget import Budget
from ramify.base.errors import RamifyError, UserError, nearest
from ramify.base.files import folder_aside, read_record, read_regular, refusal
from ramify.base.progress import SILENT, Progress
from ramify.base.seeds import derive_key, generator
from ramify.engine.local import LocalModel
from ramify.engine.tiny import TinyLM, weights_hash
from ramify.methods.orchestrator.algorithm import informative, probabilities, soft_targets
from ramify.methods.orchestrator.conversation import TOOL_TURNS, Orchestrated, Orchestration, ToolUse
from ramify.methods.orchestrator.pool import ModelPool
from ramify.methods.orchestrator.settings import POSITION, RouterFit, RouterFitConfig, RouterRecord
from ramify.methods.orchestrator.table import RewardTable
from ramify.methods.orchestrator.turns import ROLES, answer_with, route
from ramify.model.protocol import Sampling, Tokenizer
from ramify.trace.db import Run
from ramify.trace.message import Message

KNOWN = 20_000
"""Most texts whose states are remembered."""
FILES = ("router.json", "router.safetensors")

TAU = 0.3
"""Temperature of the targets softmax(reward / TAU): a worker that is always right against one that is never so has 28 times its
weight, and one of nearly the same rate nearly the same."""
WEIGHT_DECAY = 0.01
"""Decoupled weight decay of the fit, AdamW's usual one."""


class SingularScale(nn.Module):
    """W = U diag(S * s) V^T * (sum S / sum (S * s)) with s = sigmoid(1 + delta): only ``delta`` is trained, 0 is the matrix it
    was, and the sum of singular values stays (singular-value fine-tuning as released, section 3.2)."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        u, s, v = torch.linalg.svd(weight.detach(), full_matrices=False)
        self.register_buffer("u", u)
        self.register_buffer("s", s)
        self.register_buffer("v", v)
        self.delta = nn.Parameter(torch.zeros_like(s))

    def forward(self, weight: Tensor) -> Tensor:
        """The tuned matrix; ``weight`` itself is not read."""
        u, s, v = self.u, self.s, self.v
        assert isinstance(u, Tensor)
        assert isinstance(s, Tensor)
        assert isinstance(v, Tensor)
        scaled = s * torch.sigmoid(1 + self.delta)
        return (u * (scaled * (s.sum() / scaled.sum()))) @ v


def render(messages: Sequence[Message]) -> str:
    """A transcript as raw text, one ``role: content`` line a message:
    no chat template (95 % against 5 % of a released router's choices)."""
    return "".join(f"{one.role}: {one.spoken()}\n" for one in messages)


class TurnRouter:
    """Chooses a worker (and with ``roles`` a role) for the next turn. The backbone is copied; only head and scales change.

    ``svf`` names the matrices whose singular values are tuned: every parameter with two axes whose name holds one of these texts.
    Raises UserError where one names nothing.
    """

    def __init__(
        self,
        backbone: nn.Module,
        tokenizer: Tokenizer,
        workers: Sequence[str],
        *,
        hidden_pos: int = POSITION,
        svf: Sequence[str] = (),
        roles: bool = False,
        context: int = 2048,
        spec: str = "",
    ) -> None:
        if not workers:
            raise UserError("a router needs a worker")
        self.module, self.tokenizer, self.workers = copy.deepcopy(backbone).eval(), tokenizer, tuple(workers)
        self.hidden_pos, self.svf, self.roles, self.context, self.spec = hidden_pos, tuple(svf), roles, context, spec
        self.backbone_hash = weights_hash(backbone)
        self.module.requires_grad_(False)
        self.scales = [self._tune(name) for name in self._named()]
        with torch.no_grad():
            width = self._states([self.tokens("user: hi\n")]).shape[1]
        self.head = torch.zeros(len(self.workers) + len(ROLES) * roles, width)
        self.history: list[str] = []
        """What trained it, in order."""
        self._known: dict[str, Tensor] = {}
        """States of texts, where no scale of the backbone can change them."""

    @classmethod
    def from_backbone(cls, spec: str, workers: Sequence[str], **options: Any) -> TurnRouter:
        """A router on the checkpoint that ``builtin`` or ``hf:PATH`` names; ``options`` as in the constructor."""
        from ramify.engine.checkpoints import model_folder

        model = LocalModel.load(model_folder(spec))
        return cls.of(model, workers, spec=spec, **options)

    @classmethod
    def of(cls, model: LocalModel, workers: Sequence[str], **options: Any) -> TurnRouter:
        """A router on a copy of a local model. Raises UserError where it has no tokenizer."""
        if model.tokenizer is None:
            raise UserError(f"the backbone '{model.name}' has no tokenizer")
        return cls(model.module, model.tokenizer, workers, context=model.context, **options)

    def _named(self) -> list[str]:
        matrices = [name for name, weight in self.module.named_parameters() if weight.dim() == 2]
        for text in self.svf:
            if not any(text in name for name in matrices):
                raise UserError(
                    f"--router.svf '{text}': no matrix of the backbone has it in its name ({nearest(text, matrices)})"
                )
        return [name for name in matrices if any(text in name for text in self.svf)]

    def _tune(self, name: str) -> SingularScale:
        owner, _, leaf = name.rpartition(".")
        module = self.module.get_submodule(owner)
        scale = SingularScale(getattr(module, leaf))
        parametrize.register_parametrization(module, leaf, scale)
        return scale

    # -- what it reads

    def tokens(self, text: str) -> list[int]:
        """Tokens of a rendered transcript, the newest that fit the backbone; at least one."""
        return (self.tokenizer.encode(text) or self.tokenizer.encode(" ") or [0])[-self.context :]

    def _states(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """(B, D): the final hidden state of each row at ``hidden_pos``, of length sqrt(D)."""
        length = max(map(len, rows))
        padded = torch.tensor([[*row, *[row[-1]] * (length - len(row))] for row in rows])
        if isinstance(self.module, TinyLM):
            hidden = self.module.hidden(padded)
        else:
            hidden = self.module(input_ids=padded, output_hidden_states=True, use_cache=False).hidden_states[-1].float()
        at = [max(0, len(row) + self.hidden_pos) if self.hidden_pos < 0 else min(self.hidden_pos, len(row) - 1) for row in rows]
        state = hidden[torch.arange(len(rows)), torch.tensor(at)]
        found: Tensor = nn.functional.normalize(state, dim=1) * state.shape[1] ** 0.5
        return found

    @torch.no_grad()
    def features(self, texts: Sequence[str]) -> Tensor:
        """(B, D) float32 of rendered transcripts."""
        left = sorted({text for text in texts if text not in self._known}, key=len)
        found = dict(self._known)
        with parametrize.cached():
            for at in range(0, len(left), 32):
                part = left[at : at + 32]
                found |= zip(part, self._states([self.tokens(text) for text in part]), strict=True)
        if not self.scales and len(found) < KNOWN:
            self._known = found
        return torch.stack([found[text] for text in texts])

    def logits(self, messages: Sequence[Message]) -> tuple[np.ndarray, np.ndarray]:
        """Scores of the workers (L,), and of the roles, (3,) or empty."""
        row = (self.features([render(messages)]) @ self.head.T)[0].numpy().astype(np.float64)
        return row[: len(self.workers)], row[len(self.workers) :]

    def choices(self, texts: Sequence[str], available: Sequence[bool] | None = None) -> np.ndarray:
        """(B, L) probabilities of the workers for rendered transcripts."""
        rows = (self.features(texts) @ self.head.T).numpy()[:, : len(self.workers)]
        allowed = [True] * len(self.workers) if available is None else available
        return np.array([probabilities(row, allowed) for row in rows])

    async def run(
        self,
        pool: ModelPool,
        query: str | Sequence[Message],
        *,
        key: str = "query",
        exclude: Collection[str] = (),
        budget: Budget | None = None,
        run: Run | None = None,
        tools: ToolUse | None = None,
        settings: Sampling | None = None,
    ) -> Orchestrated:
        """Answer with the worker that is chosen, or in turns of roles. With ``tools`` the choice is made anew after each result,
        at most :data:`TOOL_TURNS` times. Raises UserError where the pool has other workers,
        BudgetSpentError, and InfrastructureError where all failed.
        """
        pool.check_router(self.workers)
        given = [Message("user", query)] if isinstance(query, str) else list(query)
        chat = Orchestration(pool, given, key, settings=settings, exclude=exclude, budget=budget, run=run, tools=tools)
        return await chat.concluded(answer_with(chat, self) if tools is None else self._with_tools(chat, tools))

    async def _with_tools(self, chat: Orchestration, tools: ToolUse) -> Orchestrated:
        for turn in range(TOOL_TURNS + 1):
            made = await route(chat, self, turn)
            assert made.completion is not None
            if turn == TOOL_TURNS or not (message := made.completion.message).calls:
                break
            chat.extend(message, chat.calls[-1].node, await tools.run(message))
        return made

    # -- what is trained

    @property
    def size(self) -> int:
        """Parameters: head and scales."""
        return self.head.numel() + sum(one.delta.numel() for one in self.scales)

    def vector(self) -> np.ndarray:
        """All parameters, (N,)."""
        parts = [self.head.flatten(), *(one.delta.detach() for one in self.scales)]
        return torch.cat(parts).numpy().astype(np.float64)

    def set_vector(self, values: np.ndarray) -> None:
        """Inverse of :meth:`vector`. Raises UserError on another length, or on what is not finite."""
        if values.shape != (self.size,) or not np.isfinite(values).all():
            raise UserError(f"a router of {self.size} parameters takes as many finite numbers, not {values.shape}")
        left = torch.from_numpy(np.asarray(values, np.float32))
        self.head, at = left[: self.head.numel()].reshape(self.head.shape).clone(), self.head.numel()
        for one in self.scales:
            one.delta.data = left[at : at + one.delta.numel()].clone()
            at += one.delta.numel()

    @property
    def identity(self) -> str:
        """Hash of backbone and parameters."""
        from ramify.base.ids import json_hash, stable_hash

        record = json_hash(codec.to_json(self.record()))
        return stable_hash("router", self.backbone_hash, record, self.vector().tobytes().hex())

    def fit(
        self, table: RewardTable, config: RouterFitConfig | None = None, seed: int = 0, progress: Progress = SILENT
    ) -> RouterFit:
        """Stage one: KL(softmax(r / TAU) || router) over the table's tasks, by gradient. Tasks on which all workers are equal
        teach nothing and are left out. Raises UserError where no task tells workers apart,
        and where the table's workers are others.
        """
        config = config or RouterFitConfig()
        means = self.means_of(table)
        rows = np.flatnonzero(np.isfinite(means).all(axis=1) & informative(np.nan_to_num(means)))
        if not len(rows):
            raise UserError("no task of the table tells workers apart: there is nothing to learn")
        texts = [render([Message("user", table.prompts[i])]) for i in rows]
        target = torch.from_numpy(soft_targets(means[rows], TAU).astype(np.float32))
        head = nn.Parameter(self.head.clone())
        weights = [head, *(one.delta for one in self.scales)]
        optimizer = torch.optim.AdamW(weights, config.lr, weight_decay=WEIGHT_DECAY)
        fixed = None if self.scales else self.features(texts)
        encoded, losses = [self.tokens(text) for text in texts], []
        progress.begin(config.steps, 0, "fit", "steps")
        for step in range(config.steps):
            picked = (
                np.arange(len(rows)) if fixed is not None else generator(seed, "fit", step).permutation(len(rows))[: config.batch]
            )
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(derive_key(seed, "fit", step))
                states = fixed if fixed is not None else self._states([encoded[i] for i in picked])
                logp = torch.log_softmax((states @ head.T)[:, : len(self.workers)], dim=1)
                loss = nn.functional.kl_div(logp, target[picked], reduction="batchmean")
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            losses.append(float(loss.detach()))
            progress.at(step + 1, f"divergence {losses[-1]:.3f}")
        self.head = head.detach().clone()
        self.history.append("fit")
        return RouterFit(len(rows), len(table.tasks) - len(rows), losses[-1], losses[0])

    def means_of(self, table: RewardTable) -> np.ndarray:
        """Mean rewards (I, L) of the router's workers, in its order. Raises UserError where the table knows one not."""
        missing = [name for name in self.workers if name not in table.workers]
        if missing:
            raise UserError(f"the table knows no worker '{missing[0]}' ({nearest(missing[0], table.workers)})")
        return table.means()[:, [table.workers.index(name) for name in self.workers]]

    def step_size(self) -> float:
        """Where evolution should begin: .03 from zero; 5 times the head's root mean square after training, else it does not
        move."""
        rms = float(self.head.square().mean().sqrt())
        return 0.03 if rms == 0 else 5 * rms

    # -- files

    def record(self) -> RouterRecord:
        """What the router is besides its numbers."""
        shape = (self.workers, self.hidden_pos, self.svf, self.roles)
        return RouterRecord(*shape, self.spec, self.backbone_hash, tuple(self.history))

    def save(self, folder: Path) -> None:
        """Write router.json and router.safetensors, both or none. Raises UserError where the folder is there already, RamifyError
        where the disk refuses."""
        if folder.exists() or folder.is_symlink():
            raise UserError(f"{folder} is there already: choose another folder")
        held = {"head": self.head, **{f"scale.{at}": one.delta.detach() for at, one in enumerate(self.scales)}}
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with folder_aside(folder.parent) as aside:
                made = aside / "router"
                made.mkdir()
                (made / FILES[1]).write_bytes(
                    save({name: one.contiguous() for name, one in held.items()}, metadata={"format": "pt"})
                )
                (made / FILES[0]).write_text(json.dumps(codec.to_json(self.record()), indent=1) + "\n", encoding="utf-8")
                made.rename(folder)
        except OSError as error:
            raise refusal(f"cannot write the router {folder}", error) from error

    @classmethod
    def load(cls, folder: Path, backbone: LocalModel | None = None) -> TurnRouter:
        """The router in ``folder``, on the backbone it names or on ``backbone``.
        Raises UserError where it cannot be read or does not fit."""
        if not all((folder / name).is_file() for name in FILES):
            raise UserError(f"{folder} holds no router: `ramify orchestrator train router` makes one")
        path = folder / FILES[0]
        record = codec.from_json(RouterRecord, read_record(path, "the router"), f"{path} is not a router's record")
        options = {"hidden_pos": record.hidden_pos, "svf": record.svf, "roles": record.roles}
        spec, workers = record.backbone, record.workers
        made = (
            cls.from_backbone(spec, workers, **options) if backbone is None else cls.of(backbone, workers, spec=spec, **options)
        )
        if made.backbone_hash != record.backbone_hash:
            raise UserError(f"{folder}: its backbone '{spec}' has other weights than it was trained on")
        try:
            held = load(read_regular(folder / FILES[1], "the router", 1 << 30))
            parts = [held.pop("head"), *(held.pop(f"scale.{at}") for at in range(len(made.scales)))]
            made.set_vector(torch.cat([one.flatten().double() for one in parts]).numpy())
        except RamifyError:
            raise
        except Exception as error:  # safetensors raises its own error type, not exported
            raise UserError(f"cannot read the router {folder / FILES[1]}: {error}") from None
        made.history = list(record.history)
        return made
