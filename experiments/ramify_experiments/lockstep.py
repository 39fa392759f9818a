"""Many short episodes at once on one small model: every row of a batch is an episode, given tokens and sampled ones alike.

What `rollout` does with trees, stores and failures, this does not: it is for experiments that need a hundred thousand episodes of
a small environment in minutes. Samples are keyed by the episode's key and the token's position, so an episode does not depend on
its neighbours (where :func:`ramify.engine.forward.probe` holds).

Axis legend: R rows (episodes under way), T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from ramify.base.errors import UserError
from ramify.base.seeds import uniforms
from ramify.engine.batch import UNIT, ForwardBatch, padded
from ramify.engine.cache import KVCache
from ramify.engine.forward import Forward
from ramify.env.protocol import Env, Environment, Task, close
from ramify.model.chat import ChatTemplate
from ramify.train.batch import Row


@dataclass(eq=False)
class Episode:
    """One finished episode. ``tokens`` is what the model was shown and sampled;
    ``turn`` is -1 on given tokens, else the action's index."""

    task: Task
    key: int
    tokens: list[int] = field(default_factory=list)
    turn: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """Of sampled tokens under the model that sampled them at temperature 1; 0 on given ones."""
    replies: list[str] = field(default_factory=list)
    reward: float = 0.0
    success: bool = False

    def row(self, **streams: np.ndarray) -> Row:
        """A training row: sampled tokens are trained on, their log-probs are the token values ``logprobs``."""
        mask = np.asarray(self.turn) >= 0
        return Row(np.asarray(self.tokens, np.int32), mask, {"logprobs": np.asarray(self.logprobs, np.float32), **streams})


class _Live:
    """An episode under way: the first ``computed`` tokens are in the cache."""

    def __init__(self, env: Env, task: Task, key: int, template: ChatTemplate, max_reply: int) -> None:
        self.env, self.template, self.max_reply = env, template, max_reply
        self.episode, self.computed, self.actions = Episode(task, key), 0, 0
        self._sampled: list[int] = []
        # the environment's luck is its own, whatever the model samples
        self._show(env.reset(task, key).text, "")

    def _show(self, text: str, after: str) -> None:
        given = [*self.template.render("user", text, after)[0], *self.template.open("assistant")]
        self._give(given)

    def _give(self, given: list[int]) -> None:
        e = self.episode
        e.tokens += given
        e.turn += [-1] * len(given)
        e.logprobs += [0.0] * len(given)

    def add_token(self, token: int, logprob: float) -> bool:
        """Take a sampled token in; True when the episode is over."""
        e = self.episode
        e.tokens.append(token)
        e.turn.append(self.actions)
        e.logprobs.append(logprob)
        self._sampled.append(token)
        stopped = token in self.template.stop_tokens
        if not stopped and len(self._sampled) < self.max_reply:
            return False
        text = self.template.tokenizer.decode(self._sampled[:-1] if stopped else self._sampled)
        footer = self.template.close("assistant")
        seen = self.env.step(text)
        e.replies.append(text)
        e.reward += seen.reward
        e.success = bool(seen.outcome)
        self.actions += 1
        self._sampled = []
        if seen.terminated or seen.truncated or self.actions >= self.env.max_turns:
            return True
        self._give(footer[1:] if stopped else footer)
        self._show(seen.text, "assistant")
        return False


def play(
    forward: Forward,
    template: ChatTemplate,
    environment: Environment,
    tasks: Sequence[Task],
    keys: Sequence[int],
    *,
    max_reply: int = 16,
    rows: int = 256,
) -> list[Episode]:
    """Play ``tasks`` to the end, at temperature 1, ``rows`` at a time;
    episode i samples by ``keys[i]``, which also seeds its environment.

    Raises UserError where an episode outgrows the model's context, or the keys are not one a task.
    """
    if len(keys) != len(tasks):
        raise UserError(f"{len(tasks)} episodes need as many keys; {len(keys)} were given")
    episodes: list[Episode] = []
    for start in range(0, len(tasks), rows):
        part = slice(start, start + rows)
        live = [_Live(environment.make(), t, k, template, max_reply) for t, k in zip(tasks[part], keys[part], strict=True)]
        episodes += [one.episode for one in live]
        with torch.inference_mode():
            _run(forward, live)
    return episodes


def _run(forward: Forward, live: list[_Live]) -> None:
    cache = KVCache(forward.layers, forward.kv_size, forward.device)
    cache.reserve(padded(len(live)), 64)
    while live:
        where = [one.computed for one in live]
        longest = max(where)
        if longest >= forward.context:
            raise UserError(f"an episode is longer than the model's context of {forward.context} tokens")
        cache.reserve(padded(len(live)), longest + 1 + UNIT)
        batch = ForwardBatch(cache, forward.kv_heads, [one.episode.tokens[one.computed] for one in live], where)
        hidden = forward.hidden(batch)
        ready = []
        for slot, one in enumerate(live):
            one.computed += 1
            if one.computed == len(one.episode.tokens):
                ready.append(slot)
        if not ready:
            continue
        rows = ready + [0] * (padded(len(ready)) - len(ready))  # or the product of a few rows would have bits of its own
        scores = torch.log_softmax(forward.logits(hidden[rows])[: len(ready)].double(), dim=-1).numpy(force=True)
        u = uniforms(np.array([live[slot].episode.key for slot in ready]), np.array([where[slot] for slot in ready]))
        cumulative = np.exp(scores).cumsum(axis=1)
        sampled = (cumulative < u[:, None] * cumulative[:, -1:]).sum(axis=1)
        over = [s for i, s in enumerate(ready) if live[s].add_token(int(sampled[i]), float(scores[i, sampled[i]]))]
        for slot in reversed(over):
            close(live[slot].env)
            last = live.pop()
            if slot < len(live):
                cache.copy(len(live), slot, slot + 1, last.computed)
                live[slot] = last
