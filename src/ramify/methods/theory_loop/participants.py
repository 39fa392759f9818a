"""Who chooses: simulated subjects, agents that are models, a function of your own, or people, whose data comes later."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from glob import glob
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from ramify.base.errors import InfrastructureError, UserError
from ramify.base.ids import stable_hash
from ramify.base.plugins import own_function, own_path, source_of
from ramify.base.seeds import derive_key
from ramify.methods.theory_loop.bench import TheoryBench
from ramify.methods.theory_loop.canonical import find_theory
from ramify.methods.theory_loop.domain import Attendance, Data, Design, TheoryError, check_choices
from ramify.model.protocol import Sampling
from ramify.rollout.sampler import FailurePolicy, Sampler
from ramify.score.judge import reply_to
from ramify.trace.message import Message


@dataclass(frozen=True)
class SubjectChoices:
    """What an agent chose, trial by trial, until a reply was no choice."""

    choices: tuple[int, ...]
    failed: str = ""
    """Why it ended early; empty where it did not."""


Kept = Callable[[str, Callable[[], Awaitable[SubjectChoices]]], Awaitable[SubjectChoices]]
"""``kept(key, make)`` is what is stored of an earlier subject, else what ``make`` returns, which is stored."""
AT_ONCE = 8
"""Agents that are asked at a time."""
INSTRUCTIONS = """You choose between two options, A and B, again and again. {cues} experts rated both options{scale}. An \
expert's validity is how often the option that it rates higher is in truth the better one: {validities}. Each time, choose the \
option that you think is the better one. There is no feedback. Reply with one letter, A or B, and nothing else."""


class Participants(Protocol):
    """Whoever takes part."""

    name: str
    identity: str
    # `given`, a list of designs, where the experiments were run already: two for each round, instead of proposed ones

    async def collect(self, design: Design, n: int, seed: int, key: str, kept: Kept) -> Data | None:
        """Choices of ``n`` subjects, or of fewer; None where their data is to come by hand. Raises UserError,
        InfrastructureError."""
        ...


class SimulatedPeople:
    """``simulated:THEORY``: a hidden theory chooses, with a share of uniform choices."""

    def __init__(self, spec: str, noise: float, bench: TheoryBench) -> None:
        self.theory, self.noise, self._bench = find_theory(spec), noise, bench
        self.name, self.identity = f"simulated:{spec}", stable_hash("participants", self.theory.hash, repr(noise))

    async def collect(self, design: Design, n: int, seed: int, key: str, kept: Kept) -> Data | None:
        """See :class:`Participants`. Raises UserError where the hidden theory itself fails."""
        try:
            return await self._bench.simulate(self.theory, design, n, seed, "participants", key, noise=self.noise)
        except TheoryError as error:
            raise UserError(f"the theory of {self.name} failed ({error.kind}): {error}") from None


class OwnParticipants:
    """``FILE.py:FUNCTION``: ``function(design, orders, seed)`` returns choices,
    a list of 0 and 1 for each subject; with your rights."""

    def __init__(self, spec: str, function: Callable[..., Any] | None = None) -> None:
        """``function`` is the function itself, where ``spec`` only names it."""
        self._function = function or own_function(spec, "design", "orders", "seed")
        self.name, self.identity = spec, stable_hash("participants", "python", spec, source_of(self._function))

    async def collect(self, design: Design, n: int, seed: int, key: str, kept: Kept) -> Data | None:
        """See :class:`Participants`."""
        orders = design.orders(n, seed, "participants", key)
        found = self._function(design.to_json(), orders.tolist(), derive_key(seed, "own", key) % 2**31)
        try:
            values = [list(row) for row in found]
        except TypeError:
            raise UserError(f"{self.name} returned {type(found).__name__}, not a list of choices for each subject") from None
        return Data(design, orders, check_choices(values, orders, self.name), tuple(f"own{s}" for s in range(n)))


def given_participants(given: Participants | Callable[..., Any]) -> Participants:
    """Participants as a program gives them: an object with ``collect``, or a function that makes choices. Raises UserError."""
    if hasattr(given, "collect"):
        return cast(Participants, given)
    if not callable(given):
        raise UserError(
            f"participants are a function of (design, orders, seed) or have a method collect; this is a {type(given).__name__}"
        )
    return OwnParticipants(f"{given.__module__}:{getattr(given, '__qualname__', type(given).__name__)}", given)


class ByHand:
    """``web``: people, whose data `data import` brings."""

    name, identity = "web", stable_hash("participants", "web")

    async def collect(self, design: Design, n: int, seed: int, key: str, kept: Kept) -> Data | None:
        """Nothing yet."""
        return None


class People:
    """``people:FILES``: experiments that were run already, one of each file, in this order: names or patterns, with commas."""

    def __init__(self, spec: str) -> None:
        """Reads all files. Raises UserError."""
        from ramify.methods.theory_loop.people import read_data

        files = [path for text in spec.split(",") for path in (sorted(glob(text)) if "*" in text else [text])]
        if not files:
            raise UserError(f"people:{spec} matches no file")
        self.studies = [read_data(Path(path)) for path in files]
        self.name = f"people:{spec}"
        self.identity = stable_hash("participants", "people", *(study.to_csv() for study in self.studies))

    @property
    def given(self) -> list[Design]:
        """The experiments, two for each round."""
        return [study.design for study in self.studies]

    async def collect(self, design: Design, n: int, seed: int, key: str, kept: Kept) -> Data | None:
        """Everybody who took part in experiment ``ROUND.SLOT`` and is kept, whatever ``n`` is; of another key, nobody yet."""
        return next((study for turn, study in enumerate(self.studies) if key == f"{turn // 2 + 1}.{turn % 2 + 1}"), None)


class Agents:
    """``agent:MODEL``: each subject is a conversation with a model of its own seed;
    a trial is one message. A reply that is not a choice ends a subject."""

    def __init__(self, spec: str, temperature: float = 1.0) -> None:
        from ramify.engine.named import find_model

        self._model, self._template = find_model(spec)
        self._sampler = Sampler(self._model, retries=FailurePolicy({}))
        self._settings = Sampling(
            temperature=temperature,
            max_tokens=16,
            stop_tokens=() if self._template is None else tuple(self._template.stop_tokens),
        )
        self.name = f"agent:{self._model.identity.name}"
        self.identity = stable_hash("participants", "agent", self._model.identity.weights, INSTRUCTIONS, repr(temperature))

    async def collect(self, design: Design, n: int, seed: int, key: str, kept: Kept) -> Data | None:
        """See :class:`Participants`. Raises InfrastructureError where no subject could be asked."""
        orders, gate = design.orders(n, seed, "participants", key), asyncio.Semaphore(AT_ONCE)
        failures: list[InfrastructureError] = []

        async def one(s: int) -> tuple[int, ...] | None:
            async with gate:
                try:
                    stored = await kept(f"{key}/{s}", partial(self._subject, design, orders[s], (key, s, seed)))
                except InfrastructureError as error:
                    failures.append(error)
                    return None
                return None if stored.failed else stored.choices

        found = await asyncio.gather(*(one(s) for s in range(n)))
        done = [s for s, choices in enumerate(found) if choices is not None]
        if not done and failures:
            raise failures[0]
        chosen = np.array([found[s] for s in done], np.int64).reshape(len(done), orders.shape[1])
        return Data(design, orders[done], chosen, tuple(f"agent{s}" for s in done), Attendance(n, n - len(done)))

    async def _subject(self, design: Design, order: np.ndarray, position: tuple[str, int, int]) -> SubjectChoices:
        key, s, seed = position
        scale = " with 1 (good) or 0 (bad)" if design.rating_max == 1 else f" from 0 to {design.rating_max}"
        validities = ", ".join(f"expert {j + 1}: {100 * v:.0f} %" for j, v in enumerate(design.validities))
        head = INSTRUCTIONS.format(cues=len(design.validities), scale=scale, validities=validities)
        messages: list[Message] = []
        choices: list[int] = []
        for t, pair in enumerate(order.tolist()):
            told = f"Ratings of A: {list(design.a[pair])}. Ratings of B: {list(design.b[pair])}. A or B?"
            messages.append(Message("user", told if messages else f"{head}\n\n{told}"))
            reply = await reply_to(self._sampler, self._template, messages, self._settings, ("theory-loop", key, s, t, seed))
            found = re.search(r"\b([AB])\b", reply.text)
            if found is None:
                return SubjectChoices(tuple(choices), f"trial {t}: {reply.text[:80]!r} is neither A nor B")
            choices.append(int(found[1] == "B"))
            messages.append(Message("assistant", found[1]))
        return SubjectChoices(tuple(choices))


def find_participants(spec: str, noise: float, bench: TheoryBench) -> Participants:
    """Participants by name. Raises UserError where there are none such."""
    kind, _, rest = spec.partition(":")
    if kind == "simulated" and rest:
        return SimulatedPeople(rest, noise, bench)
    if kind == "agent" and rest:
        return Agents(rest)
    if kind == "people" and rest:
        return People(rest)
    if spec == "web":
        return ByHand()
    if own_path(spec) is not None:
        return OwnParticipants(spec)
    raise UserError(
        f"no participants '{spec}': simulated:THEORY, agent:MODEL, FILE.py:FUNCTION, people:FILES for experiments that "
        "people took part in already, or web: people to come, whose choices `data import` reads from CSV"
    )
