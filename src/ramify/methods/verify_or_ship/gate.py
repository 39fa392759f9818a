"""The controller where others call it: as a judge whose slow verifier runs only where the belief is uncertain, and around a model
as best of n.

Both are named with a TOML file:

    tables = "tables.json"            # or a run in which `calibrate` left them
    verifier = "cmd:./full_tests.sh"
    [critics]
    tests = "cmd:./public_tests.sh"
    [control]
    c_ver = 30
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ramify.base.config import Config, load
from ramify.base.errors import UserError
from ramify.base.ids import json_hash, stable_hash
from ramify.base.registry import register
from ramify.base.seeds import derive_key
from ramify.methods.verify_or_ship.algorithm import ControlConfig, Kernel, Tables
from ramify.methods.verify_or_ship.control import Controller, Critic, TaskOutcome
from ramify.methods.verify_or_ship.records import read_tables
from ramify.model.middleware import Middleware
from ramify.model.protocol import Completion, Model, Prefix, Sampling
from ramify.score.judge import Each, Item, Judge, Judgement, find_judge
from ramify.score.replies import scored
from ramify.trace.node import Score


class GateConfig(Config):
    """What the file of a gate says."""

    tables: str
    """file of tables, or run that holds them; beside the file where the path is relative"""
    verifier: str
    """judge that tells the truth, such as cmd:./full_tests.sh"""
    critics: dict[str, str]
    """judges by the names that the tables know them by"""
    control: ControlConfig = ControlConfig()
    """prices and horizon"""


def read_gate(path: Path) -> tuple[GateConfig, Tables, dict[str, Judge], Judge]:
    """Settings, tables, critics and verifier of a gate's file. Raises UserError naming the file and the key."""
    config = load(GateConfig, [path])
    tables = read_tables(path.parent / config.tables)
    judges = {name: find_judge(_relative(spec, path), what="critic") for name, spec in config.critics.items()}
    if missing := [name for name in judges if name not in tables.names]:
        raise UserError(f"{path}: the tables know no critic '{missing[0]}'; they know {', '.join(tables.names)}")
    return config, tables.only(list(judges)), judges, find_judge(_relative(config.verifier, path), what="verifier")


def _relative(spec: str, path: Path) -> str:
    """A judge's name, a script or file of it taken from the folder of ``path`` where it lies there."""
    kind, colon, rest = spec.partition(":")
    if kind == "cmd" and (path.parent / rest).is_file():
        return f"cmd:{path.parent / rest}"
    return f"{path.parent / kind}:{rest}" if colon and kind.endswith(".py") and (path.parent / kind).is_file() else spec


@register("judge", "verify-or-ship")
class Gated(Each):
    """Critics first; the verifier only where it pays. What is not verified is worth its belief.

    One candidate is planned for: it may be verified, or taken for what the belief says, which costs ``loss`` where it is wrong.
    Without a file there are no critics and nothing to verify with, and it cannot say.
    """

    def __init__(self, argument: str = "") -> None:
        """Raises UserError as :func:`read_gate`."""
        self.name = f"verify-or-ship:{Path(argument).name}" if argument else "verify-or-ship"
        self.controller: Controller | None = None
        self._hash = "nothing"
        if argument:
            config, tables, judges, verifier = read_gate(Path(argument))
            self._set(config.control, tables, judges, verifier)

    @classmethod
    def of(cls, config: ControlConfig, tables: Tables, critics: dict[str, Judge], verifier: Judge) -> Gated:
        """A gate made in Python."""
        made = cls()
        made._set(config, tables.only(list(critics)), critics, verifier)
        return made

    def _set(self, config: ControlConfig, tables: Tables, judges: dict[str, Judge], verifier: Judge) -> None:
        own = config.model_copy(update={"horizon": 1, "stop": "ship"})
        critics = [Critic(name, judge) for name, judge in judges.items()]
        self.controller = Controller(critics, verifier, lambda item, last, answers: last or "", own, tables)
        parts = [own.to_json(), tables.to_json(), verifier.identity, {name: judge.identity for name, judge in judges.items()}]
        self._hash = json_hash(parts)

    @property
    def identity(self) -> str:
        """Hash of tables, prices, critics and verifier."""
        return stable_hash("judge", "verify-or-ship", 1, self._hash)

    async def one(self, item: Item) -> Judgement:
        """The truth where it was verified, else the belief."""
        if self.controller is None:
            return Judgement()
        found = await self.controller.run(item, first=item.text)
        value = found.belief if found.verified is None else float(found.verified)
        evidence: dict[str, Any] = {"belief": found.belief, "verified": found.verified is not None, "actions": found.actions}
        if found.failures:
            evidence["failures"] = found.failures
        return Judgement(value, evidence=evidence, confidence=max(value, 1 - value), cost={"utility": found.cost})


@register("middleware", "verify-or-ship")
class BestOf(Middleware):
    """Samples another reply where the critics doubt the last one, verifies where that pays,
    and returns what is delivered, else what is believed most.

    A further sample is a fresh one, so the kernel is that of independent samples. Without a file it does nothing.
    """

    name = "verify-or-ship"

    def __init__(self, inner: Model, argument: str = "") -> None:
        super().__init__(inner, argument)
        self.parts: tuple[ControlConfig, Tables, dict[str, Judge], Judge] | None = None
        if argument:
            config, tables, judges, verifier = read_gate(Path(argument))
            fresh = Kernel(fix=tables.prior, broken=1 - tables.prior)
            self.parts = config.control, tables.plain().model_copy(update={"kernel": fresh}), judges, verifier
        self.rewrites = self.parts is not None

    @property
    def settings(self) -> Any:
        """Tables, prices, critics and verifier."""
        if self.parts is None:
            return None
        config, tables, judges, verifier = self.parts
        return [config.to_json(), tables.to_json(), {name: judge.identity for name, judge in judges.items()}, verifier.identity]

    async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Completion]:
        """See :class:`ramify.model.protocol.Model`. Samples after the first are keyed by the first's key and their number."""
        if self.parts is None:
            return await super().sample(prefix, n, settings, keys)
        return [await self._one(prefix, settings, key) for key in keys]

    async def _one(self, prefix: Prefix, settings: Sampling, key: int) -> Completion:
        assert self.parts is not None
        config, tables, judges, verifier = self.parts
        sampled: list[Completion] = []

        async def another(item: Item, last: str | None, answers: Any) -> str:
            own = key if last is None else derive_key(key, "verify-or-ship", len(sampled))
            sampled.extend(await self.inner.sample(prefix, 1, settings, [own]))
            return sampled[-1].text

        critics = [Critic(name, judge) for name, judge in judges.items()]
        request = prefix.messages[-1].text if prefix.messages else ""
        found: TaskOutcome = await Controller(critics, verifier, another, config, tables).run(Item(id="served", prompt=request))
        evidence = {"delivered": found.delivered, "actions": found.actions, "samples": len(sampled)}
        judged = {self.name: stable_hash("verify-or-ship", json_hash(self.settings))}
        best = len(sampled) - 1 if found.delivered else max(range(len(sampled)), key=lambda i: found.tried[i][1])
        return scored(
            sampled[best], [Score("", self.name, found.tried[best][1], "probability", evidence=evidence, judges=judged)]
        )
