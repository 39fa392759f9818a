"""A service desk: three bookings, each with a wish (cancel or change) that the rules allow or forbid.

The customer claims what the rules say and is right 65 % of the time; `lookup` shows the truth but fails 20 % of the time;
whatever closes a booking cannot be taken back and is not commented on. The episode is won when all three are closed as the rules
demand. An agent may talk before it acts: all words but the last two of a reply are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ramify.base.errors import InfrastructureError, UserError
from ramify.base.ids import canonical_json, stable_hash
from ramify.base.registry import register
from ramify.base.seeds import generator
from ramify.env.protocol import Observation, Task, TaskSet
from ramify.env.task_sets import generated_task_set

BOOKINGS = ("a", "b", "c")
WISHES = ("cancel", "change")
VERBS = ("lookup", *WISHES, "deny")
_NAMES = "Ann Bob Cem Dan Eve Fay Gus Ida Jon Kim Lea Max Nia Ola Pia Ron Sue Tom Una Vic Wes Yan Zoe Art"
_FILLERS = (
    "well so now okay right hmm then let see sure fine next alright indeed actually perhaps basically anyway "
    "clearly honestly simply surely gladly kindly"
)
NAMES, FILLERS = tuple(_NAMES.split()), tuple(_FILLERS.split())
"""Customers, and words that mean nothing, the most frequent first."""
TRUTHFUL, BUSY, TURNS = 0.65, 0.2, 9


class Desk:
    """One episode. The state: how each booking was closed, and the number of actions so far."""

    system = ""

    def __init__(self, max_turns: int = TURNS) -> None:
        self.max_turns = max_turns
        self._task: Task | None = None
        self._seed = 0
        self._state: dict[str, Any] = {}

    def reset(self, task: Task, seed: int) -> Observation:
        """Start ``task``; ``seed`` decides which lookups fail."""
        missing = sorted({"name", *BOOKINGS} - set(task.data))
        if missing:
            raise UserError(f"task '{task.id}' lacks {', '.join(missing)}, which the desk environment needs")
        self._task, self._seed, self._state = task, seed, {"closed": {}, "turn": 0}
        return Observation(self._screen(f"{task.data['name']} asks."))

    def step(self, action: str) -> Observation:
        """Apply the last two words of ``action``: ``lookup``, ``cancel``, ``change`` or ``deny``, and an open booking."""
        if self._task is None:
            raise InfrastructureError("env", "step before reset")
        closed, turn = self._state["closed"], self._state["turn"]
        self._state["turn"] = turn + 1
        verb, what = [*action.split()[-2:], "", ""][:2]
        if verb not in VERBS or what not in BOOKINGS or what in closed:
            return Observation(self._screen("Nothing happens."), valid=False)
        booking = self._task.data[what]
        if verb == "lookup":
            if generator(self._seed, "desk", self._task.id, turn).random() < BUSY:
                return Observation(self._screen("busy."))
            record = f"{what} {'flex' if booking['flex'] else 'basic'} {'insured' if booking['insured'] else 'bare'}."
            return Observation(self._screen(record))
        closed[what] = verb
        if len(closed) < len(BOOKINGS):
            return Observation(self._screen("done."))
        won = all(closed[b] == rightful(self._task.data[b]) for b in BOOKINGS)
        return Observation("All closed.", reward=float(won), terminated=True, outcome=won)

    def _screen(self, note: str) -> str:
        """``note`` and the first open booking: its wish and what the customer claims."""
        assert self._task is not None
        b = first_open(self._state)
        booking = self._task.data[b]
        return f"{note} {b} {booking['wish']} {'yes' if booking['claim'] else 'no'}."

    def snapshot(self) -> dict[str, Any]:
        """The state as JSON, without task and seed, which ``reset`` has given."""
        return {"closed": dict(self._state["closed"]), "turn": self._state["turn"]}

    def restore(self, snapshot: Any) -> None:
        """Go back to ``snapshot``."""
        self._state = {"closed": dict(snapshot["closed"]), "turn": snapshot["turn"]}

    def key(self) -> str:
        """The state itself, canonically: equal keys of one task and seed have equal futures."""
        return canonical_json(self._state)


def first_open(state: dict[str, Any]) -> str:
    """The booking on the screen."""
    return next(b for b in BOOKINGS if b not in state["closed"])


def allowed(booking: dict[str, Any]) -> bool:
    """The rules: a change needs a flex ticket, a cancellation needs insurance."""
    return bool(booking["flex"] if booking["wish"] == "change" else booking["insured"])


def rightful(booking: dict[str, Any]) -> str:
    """The verb that closes ``booking`` as the rules demand."""
    return str(booking["wish"]) if allowed(booking) else "deny"


def make_task(task_id: str, rng: np.random.Generator) -> Task:
    """A customer with three bookings: wish, ticket and insurance are fair coins, the claim is true 65 % of the time."""
    data: dict[str, Any] = {"name": str(rng.choice(NAMES))}
    for b in BOOKINGS:
        flex, insured, change = (bool(bit) for bit in rng.integers(0, 2, 3))
        booking = {"wish": WISHES[change], "flex": flex, "insured": insured}
        data[b] = {**booking, "claim": allowed(booking) == bool(rng.random() < TRUTHFUL)}
    return Task(task_id, data)


def possible_actions(task: Task, state: dict[str, Any]) -> list[str]:
    """Every verb on every open booking."""
    return [f"{verb} {b}" for b in BOOKINGS if b not in state["closed"] for verb in VERBS]


def talk(rng: np.random.Generator, fillers: int) -> str:
    """``fillers`` words sampled with probability proportional to rank^-1.5, whatever the situation;
    without any, always the first."""
    weights = np.arange(1, len(FILLERS) + 1) ** -1.5
    return " ".join(rng.choice(FILLERS, size=fillers, p=weights / weights.sum())) if fillers else FILLERS[0]


def demonstrate(
    task: Task, seed: int, rng: np.random.Generator, look: float, slip: float, fillers: int = 0
) -> list[tuple[str, str]]:
    """One noisy demonstration as (observation, action) pairs: the bookings in order, each looked up first with probability
    ``look`` (again, if the lookup fails) and closed as the record says, else as the customer claims. Each action is any possible
    one instead with probability ``slip``. Before each action come the words of :func:`talk`."""
    env = Desk()
    observation, pairs, known, looking = env.reset(task, seed), [], set[str](), dict[str, bool]()
    for _ in range(env.max_turns):
        state = env.snapshot()
        b = first_open(state)
        looks = looking.setdefault(b, bool(rng.random() < look))
        yes = allowed(task.data[b]) if b in known else task.data[b]["claim"]
        action = f"lookup {b}" if looks and b not in known else f"{task.data[b]['wish'] if yes else 'deny'} {b}"
        if rng.random() < slip:
            action = str(rng.choice(possible_actions(task, state)))
        pairs.append((observation.text, f"{talk(rng, fillers)} {action}"))
        observation = env.step(action)
        if "insured" in observation.text or "bare" in observation.text:
            known.add(observation.text[0])
        if observation.terminated:
            break
    return pairs


def _customer(data: Mapping[str, Any]) -> str:
    return stable_hash("customer", canonical_json(dict(data)))


@register("env", "desk")
class DeskEnvironment:
    """The desk environment; tasks are customers, made from a seed, and splits never share one."""

    name = "desk"

    def __init__(self, max_turns: int = TURNS) -> None:
        self.max_turns = max_turns

    actions = staticmethod(possible_actions)

    def make(self) -> Desk:
        """A fresh episode."""
        return Desk(self.max_turns)

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        """``n`` customers of a split."""
        return generated_task_set(self.name, split, n, seed, lambda rng: make_task("", rng).data, kind="desk", hashed=_customer)
