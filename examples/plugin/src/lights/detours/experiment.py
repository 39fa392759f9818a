"""What `ramify repro detours` and `ramify check method detours` run: made logs of which is known what is true."""

from __future__ import annotations

import json
from collections.abc import Sequence

from lights.detours.algorithm import Detour, first_return, weigh
from ramify.base.seeds import generator
from ramify_experiments.cases import KnownCase, Repetition
from ramify_experiments.lab import Checks, ResultCache, sized

ATTEMPTS, ROOMS = 60, 6
COST = 0.5
"""How much less often attempts with a detour succeed where that is planted."""


def attempts(seed: int, cost: float) -> list[tuple[list[str], int | None, bool]]:
    """Made attempts: the rooms an agent is in, the step of its detour (half of them have one), and whether it succeeded."""
    rng, made = generator(seed, "detours", "attempts"), []
    for _ in range(ATTEMPTS):
        rooms = [f"room {i}" for i in rng.permutation(ROOMS).tolist()]
        step = int(rng.integers(0, ROOMS)) if rng.random() < 0.5 else None
        if step is not None:
            rooms.insert(step + 1, rooms[int(rng.integers(0, step + 1))])
        made.append((rooms, step, bool(rng.random() < 0.75 - cost * (step is not None))))
    return made


def measured(seed: int, cost: float) -> float:
    """The difference that the method measures: one cell of the experiment."""
    detours, without = [], []
    for rooms, _, success in attempts(seed, cost):
        back = first_return(rooms)
        if back is None:
            without.append(success)
        else:
            detours.append(Detour("made", "", "", *back, success))
    difference = weigh(detours, without, {}).difference
    assert difference is not None
    return difference.success


@sized("detours", quick=10, cpu=200)
def reproduce(size: str, cells: ResultCache, seeds: Sequence[int]) -> Checks:
    """The measured difference is the planted one; thresholds were fixed before the code."""
    checks = Checks(seeds)
    found = cells.grid(measured, {"none": {"cost": 0.0}, "planted": {"cost": COST}}, seeds, workers=1)
    checks.mean("difference, planted", found["planted"], "<=", -0.3)
    checks.mean("difference, nothing planted", found["none"], ">=", -0.2)
    checks.paired("planted - nothing planted", found["planted"], found["none"], "<", 0.0)
    return checks


def _costly(rep: Repetition, cost: float) -> bool:
    """Import a made log and ask the verb, as a user does. Raises where it names other steps than those that were planted."""
    made = attempts(rep.seed, cost)
    with (rep.folder / "log.jsonl").open("w", encoding="utf-8") as log:
        for i, (rooms, _, success) in enumerate(made):
            said = [{"role": role, "content": text} for room in rooms for role, text in (("user", room), ("assistant", "go"))]
            print(json.dumps({"task": f"{i}", "messages": said[:-1], "reward": float(success)}), file=log)
    rep.verb("import", rep.folder / "log.jsonl", "--run", rep.folder / "run")
    found = rep.verb("detours", "find", rep.folder / "run")
    named = {one["task"]: one["step"] for one in found["detours"]}
    assert named == {f"{i}": step for i, (_, step, _) in enumerate(made) if step is not None}
    return bool(found["costly"])


CASES = (
    KnownCase(
        "detours cost nothing",
        "nothing",
        f"{ATTEMPTS} attempts succeed alike with a detour and without one: costly detours are a false finding.",
        lambda rep: _costly(rep, 0.0),
        wanted=0.025,
        full=200,
        quick=20,
    ),
    KnownCase(
        "detours cost success",
        "planted",
        f"Attempts with a detour succeed {COST:.0%} less often: it must stand out, and every detour be named at its step.",
        lambda rep: _costly(rep, COST),
        wanted=0.8,
        full=100,
        quick=10,
    ),
)
