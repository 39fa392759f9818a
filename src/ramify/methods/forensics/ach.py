"""The motives and the benign explanations that a case begins with;
the table itself is :mod:`ramify.methods.forensics.hypotheses` [3.6, 3.7]."""

from __future__ import annotations

from ramify.methods.forensics.experiment import Move
from ramify.methods.forensics.hypotheses import Hypothesis

BENIGN: dict[str, str] = {
    "misspecification": "the task asked for it, or rewarded it",
    "judgement": "the agent weighed things badly, without a motive",
    "overzealousness": "the agent did too much of what it was told",
    "misreading": "an ambiguous feature of the environment was taken for part of the task",
    "reverse sycophancy": "the agent did what it took the test to be looking for",
    "role-play": "the agent played a part it was given",
    "incident": "something particular to this run: a broken tool, a bug of the harness, a lost edit",
}
"""Benign explanations that must be visited before a motive is named [3.6]."""

_STILL: dict[str, Move] = {"effort": "same", "clarity": "same", "oversight": "same"}
_MOTIVES: tuple[tuple[str, str, dict[str, Move], str], ...] = (
    ("tedium", "The honest way is too much work.", {"effort": "rises", "idea": "falls"}, "the rate does not grow with the work"),
    (
        "confusion",
        "The agent does not know what the user wants.",
        {"clarity": "falls", "idea": "same"},
        "the rate stays where the wish is spelt out",
    ),
    (
        "evasion",
        "The agent knows better and does it where nobody sees.",
        {"oversight": "falls", "idea": "same"},
        "the rate stays where it will be seen",
    ),
    ("cue", "Something in the text asks for it.", {"cue": "falls"}, "the rate stays where the cue is gone"),
)
STANDARD = {name: Hypothesis(name, says, _STILL | moves, otherwise) for name, says, moves, otherwise in _MOTIVES}
"""The standard battery: four motives and what each predicts where a factor of that role is turned (``clarity``: the wish is spelt
out; ``oversight``: the act will be seen; ``cue``: the nudge is gone; ``effort``: the dose grows, and where a variant lowers a
number the prediction is turned round; ``idea``: its sentence is forbidden)."""
