"""The theories of section 3.5 as sources: seeds, what the paper's loops found, and the hidden truths of its stress tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ramify.base.errors import UserError, nearest
from ramify.methods.theory_loop.theories import SAMPLE, Theory, read_theory

NOISE = {"beta": "[0.1, 20]", "epsilon": "[0, 0.5]"}
_HEAD = "import numpy as np\n\n\n"
_SHARED = '''
def squashed(difference, beta, epsilon):
    """P(B) from S_b - S_a (S, P): a logistic choice with slope beta, and a share epsilon of guesses."""
    choice = 1 / (1 + np.exp(-np.clip(beta[:, None] * difference, -500, 500)))
    return (1 - epsilon[:, None]) * choice + epsilon[:, None] / 2
'''
_ONE = """

def predict(parameters, state, history):
    one = {name: np.array([value]) for name, value in parameters.items()}
    a, b = np.array([state["option_a_ratings"]], float), np.array([state["option_b_ratings"]], float)
    p = predict_all(one, a, b, np.array(state["validities"], float))[0, 0]
    return [1 - p, p]


"""
_TTB = '''
def take_the_best(a, b, order):
    """S_b - S_a (P,): the first cue in the given order that tells the options apart decides; 0 where none does."""
    decided = np.zeros(len(a))
    for j in order:
        decided = np.where(decided == 0, np.sign(b[:, j] - a[:, j]), decided)
    return decided
'''
_WEIGHTED = """

def predict_all(p, a, b, v):
    return squashed(weights(p, v) @ (b - a).T, p["beta"], p["epsilon"])
"""


def weighted(description: str, parameters: dict[str, str], weights: str, beta: str = NOISE["beta"]) -> Theory:
    """A theory that adds weighted ratings; ``weights`` is the body of a function of ``p`` and ``v`` that returns (S, n)."""
    head = f"{_HEAD}def weights(p, v):\n    {weights}\n\n"
    return Theory(
        description, {**parameters, "beta": beta, "epsilon": NOISE["epsilon"]}, head + _SHARED + _WEIGHTED + _ONE + SAMPLE
    )


def scored(description: str, difference: str, parameters: dict[str, str] | None = None, shared: str = _TTB) -> Theory:
    """A theory whose S_b - S_a is an expression of ``p``, ``a``, ``b`` and ``v``, (P,) or (S, P)."""
    body = f'\n\ndef predict_all(p, a, b, v):\n    return squashed(np.atleast_2d({difference}), p["beta"], p["epsilon"])\n'
    return Theory(
        description, {**(parameters or {}), **NOISE}, _HEAD.rstrip("\n") + "\n\n" + shared + "\n" + _SHARED + body + _ONE + SAMPLE
    )


def mixed(description: str, second: str, parameters: dict[str, str]) -> Theory:
    """With a subject's own probability take the best, else a rule whose S_b - S_a is the expression ``second``."""
    body = f"""

def predict_all(p, a, b, v):
    first = squashed(np.atleast_2d(take_the_best(a, b, np.argsort(-v, kind="stable"))), p["beta"], p["epsilon"])
    other = squashed(np.atleast_2d({second}), p["beta"], p["epsilon"])
    return p["share"][:, None] * first + (1 - p["share"][:, None]) * other
"""
    return Theory(
        description,
        {"share": "[0, 1]", **parameters, **NOISE},
        _HEAD.rstrip("\n") + "\n\n" + _TTB + "\n" + _SHARED + body + _ONE + SAMPLE,
    )


RANKS = "rank = (v[None, :] > v[:, None]).sum(axis=1) + ((v[None, :] == v[:, None]).sum(axis=1) + 1) / 2\n    "
"""Average ranks of the validities, 1 the most valid."""
_TALLY = "np.sign(b - a).sum(axis=1)"
_MAJORITY = """
def predict(parameters, state, history):
    a, b, v = (np.array(state[name], float) for name in ("option_a_ratings", "option_b_ratings", "validities"))
    sides = np.sign(b - a)
    told = [sides[j] for j in np.argsort(-v, kind="stable") if sides[j] != 0]
    votes = np.sign(told[0] if told else 0) + np.sign(sides.sum()) + np.sign(((b - a) * v).sum())
    p = 1 / (1 + np.exp(parameters["beta"] * np.sign(votes)))
    p = (1 - parameters["epsilon"]) * p + parameters["epsilon"] / 2
    return [1 - p, p]


"""


def _history(description: str, rule: str) -> Theory:
    code = f"""import numpy as np


def predict(parameters, state, history):
    if not history["response"]:
        return [0.5, 0.5]
    p = {rule}
    p = (1 - parameters["epsilon"]) * p + parameters["epsilon"] / 2
    return [1 - p, p]


"""
    return Theory(description, {"epsilon": NOISE["epsilon"]}, code + SAMPLE)


POWER = 'return v[None, :] ** p["gamma"][:, None]'
CANONICAL: dict[str, Theory] = {
    "ttb": scored(
        "Take the best: the most valid cue that tells the options apart decides.",
        'take_the_best(a, b, np.argsort(-v, kind="stable"))',
    ),
    "tallying": scored(
        "Tallying: the option that is better on more cues is chosen, whatever the cues are worth.", _TALLY, shared=""
    ),
    "wadd": weighted(
        "Weighted additive: ratings times validity times a subject's own weight for each cue, added.",
        {"w": "[(0, 1)] * n_features"},
        'return v[None, :] * p["w"]',
    ),
    "equal-weight": weighted(
        "Equal weights: the option with the larger sum of ratings is chosen.", {}, 'return np.ones((len(p["beta"]), len(v)))'
    ),
    "validity-wadd": weighted(
        "Weighted additive with the validities themselves as weights.", {}, 'return np.tile(v, (len(p["beta"]), 1))'
    ),
    "power-weights": weighted(
        "One dial: ratings weighted by validity to a subject's own power; 0 is tallying, 1 weighted "
        "additive, large take the best.",
        {"gamma": "[0, 10]"},
        POWER,
        "[0.1, 15]",
    ),
    "rank-decay": weighted(
        "Weights fall by a subject's own factor from one rank of validity to the next.",
        {"decay": "[0, 1]"},
        RANKS + 'return p["decay"][:, None] ** (rank[None, :] - 1)',
    ),
    "gap-gated": weighted(
        "Cues in order of validity; a gap between neighbours above a threshold discounts every later cue.",
        {"theta": "[0, 0.3]", "discount": "[0, 1]"},
        'order = np.argsort(-v, kind="stable")\n    gaps = np.concatenate([[0.0], v[order][:-1] - v[order][1:]])\n'
        '    passed = (gaps[None, :] > p["theta"][:, None]).cumsum(axis=1)\n    found = np.empty((len(p["theta"]), len(v)))\n'
        '    found[:, order] = v[order][None, :] * p["discount"][:, None] ** passed\n    return found',
    ),
    "mixture": mixed(
        "With a subject's own probability take the best, else weights that are a power of validity.",
        '(v[None, :] ** p["gamma"][:, None]) @ (b - a).T',
        {"gamma": "[0, 10]"},
    ),
    "mixture-tallying": mixed("With a subject's own probability take the best, else tallying.", _TALLY, {}),
    "dr-wadd": scored(
        "Weighted additive with diminishing returns: a step at the low end of a rating counts more than one at the high end.",
        "((v / v.sum())[None, None, :] * (worth(p, b) - worth(p, a))).sum(axis=2)",
        {"alpha": "[0.1, 1]", "s": "[0.1, 5]"},
        '\ndef worth(p, x):\n    """(S, P, n): u(x) = (x + s)^alpha - s^alpha."""\n    alpha, s = p["alpha"][:, None, None], '
        'p["s"][:, None, None]\n    return (x[None] + s) ** alpha - s**alpha\n',
    ),
    "satisficing-wadd": scored(
        "Weighted additive over cues that are good enough: a rating counts only whether it reaches a subject's own threshold.",
        '((v / v.sum())[None, None, :] * ((b[None] >= p["theta"][:, None, None]) * 1.0 - (a[None] >= p["theta"][:, None, '
        "None]))).sum(axis=2)",
        {"theta": "[0, 10]"},
        "",
    ),
    "coin": Theory(
        "Choices are coin flips.",
        {},
        "def predict(parameters, state, history):\n    return [0.5, 0.5]\n\n\ndef "
        "predict_all(p, a, b, v):\n    return np.full((1, len(a)), 0.5)\n",
    ),
    "alternating": _history("The first choice is random; then the other option than before.", '1.0 - history["response"][-1]'),
    "perseveration": _history("The first choice is random; then the same option again.", 'float(history["response"][-1])'),
    "take-the-worst": scored(
        "The least valid cue that tells the options apart decides.", 'take_the_best(a, b, np.argsort(v, kind="stable"))'
    ),
    "single-cue": scored(
        "Only the least valid cue counts; where it is equal, a guess.", "np.sign(b - a)[:, np.argmin(v)]", shared=""
    ),
    "anti-majority": Theory(
        "The opposite of what most of take the best, tallying and weighted additive would choose.",
        dict(NOISE),
        _HEAD.rstrip("\n") + "\n\n" + _MAJORITY + SAMPLE,
    ),
    "cue-parity": scored(
        "A where the number of cues on which A is better is odd, else B.", "1.0 - 2.0 * ((a > b).sum(axis=1) % 2)", shared=""
    ),
}
"""By name: the seeds and found theories first, then the truths of the stress tests."""
_LIMITS = {
    "power-weights": {"gamma=0": "tallying", "gamma=1": "validity-wadd", "gamma=12": "ttb"},
    "rank-decay": {"decay=1": "equal-weight"},
    "gap-gated": {"discount=1": "validity-wadd"},
    "mixture": {"share=1": "ttb", "share=0, gamma=0": "equal-weight"},
    "mixture-tallying": {"share=1": "ttb", "share=0": "tallying"},
    "dr-wadd": {"alpha=1": "validity-wadd"},
}
CANONICAL |= {name: replace(CANONICAL[name], about={"limits": limits}) for name, limits in _LIMITS.items()}


def find_theory(spec: str) -> Theory:
    """A theory by its name here, or from a file (.py, .yaml). Raises UserError with the nearest name."""
    if spec in CANONICAL:
        return CANONICAL[spec]
    path = Path(spec)
    if path.suffix in (".py", ".yaml", ".yml"):
        return read_theory(path)
    raise UserError(f"no theory '{spec}' ({nearest(spec, CANONICAL)}); one of your own is a file, .py or .yaml")
