"""Participants whose rule is known: nobody may win against the rule that they follow, and a planted rule is to be found."""

from __future__ import annotations

from typing import Any

from ramify_experiments.cases import KnownCase, Repetition

METHOD = "theory-loop"
SMALL = ("--rounds", "3", "--iterations", "6", "--people", "15", "--runs", "30", "--searched", "12")


def _confirmed(rep: Repetition, truth: str, *seeds: str, people: int = 40) -> dict[str, Any]:
    """A loop, a claim of its better survivor against both seeds and a coin, and the claim's test on fresh participants."""
    folder, claim = str(rep.folder / "run"), str(rep.folder / "claim.json")
    theories = [word for seed in seeds for word in ("--theory", seed)]
    rep.verb(
        METHOD, "run", "--out", folder, "--participants", f"simulated:{truth}", "--seed", str(rep.seed % 2**31), *theories, *SMALL
    )
    rep.verb(METHOD, "confirm", folder, claim, "--register", "--people", str(people), "--seed", str(rep.seed % 2**31))
    return rep.verb(METHOD, "confirm", folder, claim)


def _beats_the_truth(rep: Repetition) -> bool:
    """The second seed is the rule that people follow: a winner other than it is a false finding."""
    return _confirmed(rep, "tallying", "ttb", "tallying")["winner"] not in (None, "pi_2")


def _tells_equals_apart(rep: Repetition) -> bool:
    """Two seeds that are one theory: the first experiment passes the gate."""
    folder = str(rep.folder / "run")
    words = "--rounds 1 --iterations 1 --people 4 --runs 50 --searched 12 --theory ttb --theory ttb".split()
    found = rep.verb(METHOD, "run", "--out", folder, "--seed", str(rep.seed % 2**31), *words)
    return bool(found["experiments"][0]["passed"])


CASES = (
    KnownCase(
        "people follow one of the two theories",
        "nothing",
        "Tallying is a seed and what people do. That another theory is confirmed against both seeds and a coin is a false "
        "finding.",
        _beats_the_truth,
        wanted=0.05,
        full=60,
        quick=6,
    ),
    KnownCase(
        "people flip coins",
        "nothing",
        "No rule is behind the choices. That any theory is confirmed against both seeds and a coin is a false finding.",
        lambda rep: _confirmed(rep, "coin", "ttb", "wadd")["winner"] is not None,
        wanted=0.05,
        full=60,
        quick=6,
    ),
    KnownCase(
        "two equal theories",
        "nothing",
        "Both seeds are take the best. That the experiment chosen out of twelve designs passes the gate at .01 is a false "
        "finding.",
        _tells_equals_apart,
        wanted=0.01,
        full=100,
        quick=6,
    ),
    KnownCase(
        "take the best is planted",
        "planted",
        "People take the best; the seeds are tallying and weighted additive. A theory must be found that beats both and a coin "
        "on fresh people.",
        lambda rep: _confirmed(rep, "ttb", "tallying", "wadd")["winner"] is not None,
        wanted=0.8,
        full=40,
        quick=6,
    ),
)
