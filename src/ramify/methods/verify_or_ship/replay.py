"""Policies on stored trajectories: what each would have paid and got, beside every fixed rule and stopping at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ramify.base.errors import UserError
from ramify.methods.verify_or_ship.algorithm import (
    REWRITE,
    SHIP,
    STOP,
    VERIFY,
    ControlConfig,
    ControlState,
    Plan,
    Policy,
    Tables,
    Tracker,
    fixed_rules,
    greedy,
    worth,
)
from ramify.methods.verify_or_ship.calibration import CalibrateConfig, CandidateAttempt, calibrate, folds, overlap, same_text
from ramify.stats.intervals import Interval, clustered_mean

ALWAYS, NULL = "always verify", "stop at once"
GREEDY, PLAIN, AWARE = "bayes greedy", "bayes, one table", "bayes"


@dataclass(frozen=True, slots=True)
class PolicyPlay:
    """What a policy did on one trajectory."""

    utility: float
    actions: tuple[str, ...]
    beliefs: tuple[float, ...]
    """The belief before each action."""
    delivered: bool
    right: bool
    """Whether what was delivered is right; False where nothing was."""

    @property
    def verified(self) -> int:
        """How often the verifier ran."""
        return self.actions.count(VERIFY)


def play(policy: Policy, trajectory: CandidateAttempt, tables: Tables, config: ControlConfig, resets: bool = False) -> PolicyPlay:
    """Follow ``policy`` along a stored trajectory of known truths, a rewrite being its next candidate.

    What a critic or the verifier said of a text is known of the same text at no further cost, to every policy. Raises UserError
    where the trajectory ends before the policy does.
    """
    tracker, at, utility = Tracker(tables, resets), 0, 0.0
    actions: list[str] = []
    beliefs: list[float] = []
    while True:
        candidate, state = trajectory.candidates[at], tracker.state
        action = policy(state)
        actions.append(action)
        beliefs.append(state.belief)
        if action in (STOP, SHIP, VERIFY):
            delivered = action == SHIP or (action == VERIFY and bool(candidate.right))
            if action == VERIFY:
                utility += config.reward * bool(candidate.right) - config.c_ver
            elif action == SHIP:
                utility += config.reward if candidate.right else -config.loss
            if action == VERIFY and not candidate.right and config.after_verify == "continue" and not state.refused:
                tracker.refused()
                continue
            return PolicyPlay(utility, tuple(actions), tuple(beliefs), delivered, delivered and bool(candidate.right))
        if action == REWRITE:
            utility -= config.c_gen
            at += 1
            if at >= len(trajectory.candidates):
                raise UserError(f"the attempt at '{trajectory.instance}' has {at} candidates, and a policy asks for one more")
            tracker.rewritten(same_text(candidate, trajectory.candidates[at]))
            continue
        utility -= config.cost(action)
        tracker.observe(action, tables.critics[action].level(candidate.checks.get(action)))


class PolicyGain(NamedTuple):
    """Mean difference of two policies, in utility a task; the interval is None of one instance."""

    value: float
    interval: Interval | None
    over: str


@dataclass(frozen=True)
class PolicyWorth:
    """What a policy got on the same trajectories as the others, and what its tables expected (``planned``)."""

    policy: str
    utility: float
    interval: Interval | None
    planned: float | None
    gain_over_always: PolicyGain
    gain_over_best_fixed: PolicyGain
    delivered_right: float
    delivered_wrong: float
    verified: float


@dataclass(frozen=True)
class Regime:
    """What each policy is worth at one price of the verifier and one prior, and which to use."""

    c_ver: float
    prior: float
    regime: str
    best_fixed: str
    loss_of_best_fixed: float
    values: Mapping[str, float]


@dataclass
class Replay:
    """Utilities of every policy on the same trajectories. ``utilities[name]`` has shape (trajectories,)."""

    instances: list[str]
    utilities: dict[str, np.ndarray] = field(default_factory=dict)
    plays: dict[str, list[PolicyPlay]] = field(default_factory=dict)
    planned: dict[str, float] = field(default_factory=dict)
    """What each policy's own tables expect of it, averaged over folds."""
    left_out: int = 0
    """Trajectories that are shorter than the horizon or hold a candidate without a truth."""

    @property
    def bayes(self) -> str:
        """The controller that the report is about."""
        return next(name for name in (AWARE, PLAIN) if name in self.utilities)

    @property
    def fixed(self) -> list[str]:
        """The fixed rules."""
        return [name for name in self.utilities if name not in (GREEDY, PLAIN, AWARE)]

    @property
    def best_fixed(self) -> str:
        """The fixed rule that did best on these very trajectories, which favours it."""
        return max(self.fixed, key=lambda name: float(self.utilities[name].mean()))

    def gain(self, name: str, over: str, seed: int = 0) -> PolicyGain:
        """Mean difference of two policies and its 95 % interval, instances resampled (paired)."""
        return PolicyGain(*clustered_mean(self.utilities[name] - self.utilities[over], self.instances, seed), over)

    def table(self, seed: int = 0) -> list[PolicyWorth]:
        """One row a policy, the best mean first."""
        rows = []
        for name, utilities in self.utilities.items():
            played = self.plays[name]
            mean, interval = clustered_mean(utilities, self.instances, seed)
            rows.append(
                PolicyWorth(
                    policy=name,
                    utility=mean,
                    interval=interval,
                    planned=self.planned.get(name),
                    gain_over_always=self.gain(name, ALWAYS, seed),
                    gain_over_best_fixed=self.gain(name, self.best_fixed, seed),
                    delivered_right=float(np.mean([one.right for one in played])),
                    delivered_wrong=float(np.mean([one.delivered and not one.right for one in played])),
                    verified=float(np.mean([one.verified for one in played])),
                )
            )
        return sorted(rows, key=lambda row: -row.utility)


def usable(trajectories: Sequence[CandidateAttempt], horizon: int) -> list[CandidateAttempt]:
    """The trajectories that a policy of this horizon can be followed along to any end."""
    return [
        one
        for one in trajectories
        if len(one.candidates) >= horizon and all(candidate.right is not None for candidate in one.candidates[:horizon])
    ]


def controllers(tables: Tables, config: ControlConfig) -> dict[str, tuple[Policy, Tables, bool]]:
    """Every policy with the tables it believes and whether a rewrite resets its belief."""
    found: dict[str, tuple[Policy, Tables, bool]] = {
        name: (rule, tables, False) for name, rule in fixed_rules(tables, config).items()
    }
    found[GREEDY] = (greedy(tables.plain(), config), tables.plain(), True)
    found[PLAIN] = (Plan(tables.plain(), config).decide, tables.plain(), False)
    found[AWARE] = (Plan(tables, config).decide, tables, False)
    return found


def replay(
    trajectories: Sequence[CandidateAttempt],
    config: ControlConfig,
    tables: Tables | None = None,
    calibration: CalibrateConfig | None = None,
    count: int = 5,
    seed: int = 0,
) -> Replay:
    """Every policy on ``trajectories``; without ``tables`` each fold of instances is played with tables of the others.

    Raises UserError where the tables were calibrated on one of these instances, or no trajectory is as long as the horizon.
    """
    whole = usable(trajectories, config.horizon)
    if not whole:
        raise UserError(
            f"no attempt has {config.horizon} candidates with a score of the verifier each: choose a smaller --horizon"
        )
    if tables is not None:
        if known := overlap(tables, whole):
            raise UserError(
                f"the tables were calibrated on {known} of these instances, which flatters them: leave --tables out, or replay "
                "others"
            )
        parts = [(tables, whole)]
    else:
        kept = {id(one) for one in whole}
        parts = []
        for others, held in folds(trajectories, count, seed):
            chosen = [one for one in held if id(one) in kept]
            if chosen:
                parts.append((calibrate(others, calibration), chosen))
    found = Replay([one.instance for _, held in parts for one in held], left_out=len(trajectories) - len(whole))
    expected: dict[str, list[float]] = {}
    for own, held in parts:
        for name, (policy, believed, resets) in controllers(own, config).items():
            plays = [play(policy, one, believed, config, resets) for one in held]
            found.plays.setdefault(name, []).extend(plays)
            expected.setdefault(name, []).append(worth(policy, believed, config, resets=resets))
    found.planned = {name: float(np.mean(values)) for name, values in expected.items()}
    found.utilities = {name: np.array([one.utility for one in plays]) for name, plays in found.plays.items()}
    return found


def beliefs(trajectories: Sequence[CandidateAttempt], tables: Tables) -> list[tuple[CandidateAttempt, int, ControlState]]:
    """(trajectory, place, state) of every candidate after all its critics, as a controller that asked them all would believe."""
    found = []
    for one in trajectories:
        tracker = Tracker(tables)
        for at, candidate in enumerate(one.candidates):
            if at:
                same = same_text(one.candidates[at - 1], candidate)
                tracker.rewritten(same)
            for name in tables.names:
                if name in tracker.state.unused:
                    tracker.observe(name, tables.critics[name].level(candidate.checks.get(name)))
            found.append((one, at, tracker.state))
    return found


GOOD_ENOUGH = 1.0
"""Utility a task within which a fixed rule counts as good as planning: a hundredth of the default worth of a right candidate."""


def regime(values: Mapping[str, float]) -> tuple[str, float]:
    """The name of the regime and how much its best fixed rule loses:
    that rule where it is within :data:`GOOD_ENOUGH` of the optimum, else Bayes.

    ``values``: of every policy, the optimum's under ``bayes``.
    """
    fixed = {name: value for name, value in values.items() if name not in (GREEDY, PLAIN, AWARE)}
    best = max(fixed, key=lambda name: fixed[name])
    loss = values[AWARE] - fixed[best]
    return (best if loss <= GOOD_ENOUGH else AWARE), loss


def regimes(tables: Tables, config: ControlConfig, prices: Sequence[float], priors: Sequence[float] = ()) -> list[Regime]:
    """For every price of the verifier (and prior): what each fixed rule, greedy and the optimum are worth under the tables."""
    rows = []
    for prior in priors or [tables.prior]:
        own = tables.with_prior(prior)
        for price in prices:
            chosen = config.model_copy(update={"c_ver": price})
            values = {name: worth(rule, own, chosen) for name, rule in fixed_rules(own, chosen).items()}
            values[GREEDY] = worth(greedy(own, chosen), own, chosen, resets=True)
            values[AWARE] = Plan(own, chosen).value
            best = max((name for name in values if name not in (GREEDY, AWARE)), key=lambda name: values[name])
            name, loss = regime(values)
            rows.append(Regime(price, prior, name, best, loss, values))
    return rows
