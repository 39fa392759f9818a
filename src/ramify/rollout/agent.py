"""The agent: a model, its chat template, sampling settings, and compactor."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ramify.base.errors import UserError
from ramify.env.protocol import Environment, close, tools_of
from ramify.model.chat import ChatTemplate, JinjaTemplate
from ramify.model.protocol import Model, Sampling
from ramify.rollout.compact import Compactor


@dataclass(frozen=True)
class Agent:
    """A model with chat template and sampling settings. ``template`` is None for a model that takes messages."""

    model: Model
    template: ChatTemplate | None = None
    sampling: Sampling = field(default_factory=Sampling)
    compactor: Compactor | None = None
    """Shortens prompts that would be longer than ``window``."""
    window: int = 0
    """Most tokens of a prompt (characters for a model that takes messages); 0: no limit, and no compactor."""
    follows: bool = True
    """Whether temperature, top-p and top-k that an agent's program asks for count: not where the model is trained on what it
    samples."""

    def __post_init__(self) -> None:
        if self.window < 0 or (self.window == 0) != (self.compactor is None):
            raise UserError(f"a compactor and a window of at least 1 go together; the window is {self.window}")
        if isinstance(self.template, JinjaTemplate):  # what it makes of the whole history is requested at every turn
            object.__setattr__(self, "template", self.template.lenient)

    def check(self, environment: Environment) -> None:
        """Raises NeedsError where the chat template refuses what ``environment`` needs: a system message, a tool's result."""
        if isinstance(self.template, JinjaTemplate):
            try:
                env = environment.make()
                system, tools = bool(env.system), bool(tools_of(environment))
                close(env)
            except (
                Exception
            ):  # a third party's environment may raise anything: the attempts will show it, where failures are data
                return
            self.template.check(system, tools)

    def settings(self, sampling: Sampling) -> dict[str, Any]:
        """What determines a sample besides model and prompt, as stored with the provenance."""
        record = sampling.to_json()
        return record if self.compactor is None else record | {"compactor": self.compactor.identity, "window": self.window}
