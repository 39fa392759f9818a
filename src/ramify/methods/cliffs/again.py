"""A scan's replies sampled again by ``ramify fork``: an episode is one reply to the prompt,
and the scan's verifier says whether it is right."""

from __future__ import annotations

from typing import Any

from ramify.base.errors import InfrastructureError, NeedsError, UserError
from ramify.base.registry import register
from ramify.engine.named import find_sampled
from ramify.env.protocol import Observation, Task, TaskSet
from ramify.methods.cliffs.forks import TAKES
from ramify.methods.cliffs.record import ENTRY, KIND, stem_of
from ramify.model.chat import RawTemplate
from ramify.model.protocol import eos_of
from ramify.rollout.agent import Agent
from ramify.rollout.stored import placed_in
from ramify.rollout.token_traces import TokenTrace
from ramify.score.judge import Item, Judge, find_judge, judged, truth
from ramify.trace.db import Run
from ramify.trace.node import Node


class OneReply:
    """One reply to the prompt of a stem, judged when it is there."""

    system, max_turns = "", 1

    def __init__(self, prompt: str, stem: TokenTrace, verifier: Judge) -> None:
        self.prompt, self.stem, self.verifier = prompt, stem, verifier

    def reset(self, task: Task, seed: int) -> Observation:
        """The prompt, as it is rendered in the run."""
        return Observation(self.prompt)

    def step(self, action: str) -> Any:
        """Awaitable: what the verifier says. Raises InfrastructureError("scorer") where it says nothing."""
        return self._judged(action)

    async def _judged(self, reply: str) -> Observation:
        stem = self.stem
        (found,) = await judged(self.verifier, [Item(reply, stem.id, data=stem.data, trace=stem)])
        right = truth(self.verifier, found)
        if right is None:
            raise InfrastructureError("scorer", found.failure or f"'{self.verifier.name}' cannot tell")
        cost = {"cost": dict(found.cost)} if found.cost else {}
        return Observation("right" if right else "wrong", float(right), terminated=True, outcome=right, data=cost)

    def snapshot(self) -> None:
        """None: there is nothing to go back to."""

    def restore(self, snapshot: Any) -> None:
        """Nothing: the start is the only state."""

    def key(self) -> None:
        """None."""


class Replies:
    """The environment of one stem."""

    def __init__(self, prompt: str, stem: TokenTrace, verifier: Judge) -> None:
        self.name, self._episode = f"one reply, judged by {verifier.name}", (prompt, stem, verifier)

    def make(self) -> OneReply:
        """One episode."""
        return OneReply(*self._episode)

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        """Raises UserError: the tasks are those of the scan."""
        raise UserError(f"{self.name}: it has no tasks but that of the scan")


@register("player", KIND)
def play_on(run: Run, node: Node, model: str | None = None) -> tuple[Agent, Replies]:
    """Who continues a stem of a scan, and the environment that judges the reply.

    ``model`` stands in for the scan's own. Raises UserError where the scan does not say how its verifier is found, NeedsError
    where the model has another tokenizer.
    """
    verifier, named = run.config.get("judge"), model or run.config.get("model")
    if not isinstance(verifier, str) or not isinstance(named, str):
        raise UserError(
            f"{run.folder} does not say by which names its model and verifier are found: the same `ramify {KIND}` again notes it"
        )
    if not run.journal(ENTRY, node.tree):
        raise UserError(f"node {node.id} belongs to no trace that was scanned")
    prompt, stem = stem_of(run, node.tree)
    found, tokenizer, template = find_sampled(named, *(("", "") if model else placed_in(run, named)))
    if stem.tokenizer and stem.tokenizer != tokenizer.hash:
        raise NeedsError(f"the token ids of trace '{stem.id}' belong to another tokenizer than that of '{found.identity.name}'")
    whole = RawTemplate(tokenizer)  # prompts are in the run as they were rendered
    whole.stop_tokens = tuple(sorted({*eos_of(found), *(() if template is None else template.stop_tokens)}))
    judge = find_judge(verifier, takes=TAKES, seconds=float(run.config.get("seconds", 10.0)), what="verifier")
    return Agent(found, whole, stem.sampler), Replies(prompt.text, stem, judge)
