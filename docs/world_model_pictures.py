"""Draw the pictures and write the tables of docs/methods/world-model-evidence.md from the results in repro/:
python docs/world_model_pictures.py."""

from __future__ import annotations

import re

from picture_files import METHODS, Checks, alike, curve, write

from ramify.base.seeds import generator
from ramify.methods.world_model import SimulatedEnvironment
from ramify.methods.world_model.evaluation import drift as measured_drift
from ramify.methods.world_model.evaluation import evaluate
from ramify.methods.world_model.predict import FunctionPredictor
from ramify.methods.world_model.trajectories import EnvTrajectory, EnvTurn
from ramify.render.charts import Curve, curves_svg
from ramify_experiments.world_model.environments import KvEnvironment
from ramify_experiments.world_model.nulls import lost, noisy

PAGE = METHODS / "world-model-evidence.md"
FILES = ("world-model", "world-model-trained")
TABLES = {
    "hacking": ("hacking: ",),
    "stingy": ("stingy: ",),
    "fidelity": ("fidelity: exact",),
    "masking": ("masking: ",),
    "unified": ("unified: ",),
}
ARMS = ("real", "uncontrolled", "stingy", "learned, stingy")
TRAJECTORIES = 150


def recorded() -> list[EnvTrajectory]:
    """Random episodes of key-value servers."""
    environment, found = KvEnvironment(10), []
    for task in environment.task_set("eval", TRAJECTORIES, 0):
        env = environment.make()
        env.reset(task, 0)
        turns = []
        for turn in range(10):
            options = environment.actions(task, env.snapshot())
            action = options[int(generator(0, "picture", task.id, turn).integers(len(options)))]
            turns.append(EnvTurn(action, env.step(action).text))
        found.append(EnvTrajectory(task.id, task.id, task.data, "", "ready", tuple(turns)))
    return found


def drift() -> str:
    """Exact answers by turn of the two servers of the null and the planted case:
    errors that leave no trace, and errors that stay."""
    curves, test = [], recorded()
    for name, function in (("errors leave no trace", noisy), ("errors stay", lost)):
        environment = SimulatedEnvironment(FunctionPredictor(function, name))
        results = [evaluate(environment, test, mode) for mode in ("forced", "closed")]
        curve = measured_drift(*results).curve
        turns = [float(one.turn) for one in curve]
        if not curves:
            curves.append(Curve("on true history", turns, [one.forced for one in curve]))
        curves.append(Curve(f"on its own, {name}", turns, [one.closed for one in curve]))
    return curves_svg(curves, "Exact answers by turn of two simulations that are wrong one time of seven", "turn", "exact")


def trained(checks: Checks) -> str:
    """Exact answers by turn of the trained model, on true history and on its own."""
    curves = []
    for name in ("on true history", "closed loop"):
        key = rf"fidelity: drift curve, turn (\d+), {name}"
        found = sorted((int(one[1]), check["value"]) for key_, check in checks.items() if (one := re.fullmatch(key, key_)))
        curves.append(Curve(name, [float(turn) for turn, _ in found], [value for _, value in found]))
    return curves_svg(curves, "Exact answers by turn of a trained model, on worlds it has not seen", "turn", "exact")


def stingy(checks: Checks) -> str:
    """Success in the real environment over updates, by where the agent was trained."""
    curves = []
    for arm in ARMS:
        found = {
            int(one[1]): check
            for key, check in checks.items()
            if (one := re.fullmatch(rf"stingy: real success after (\d+) updates, {arm}", key))
        }
        if not found:
            continue
        at = sorted(found)
        curves.append(curve(arm, [float(i) for i in range(len(at))], [found[n] for n in at]))
    marks = sorted(
        {int(one[1]) for key in checks if (one := re.fullmatch(r"stingy: real success after (\d+) updates, real", key))}
    )
    name = lambda x: str(marks[int(x)]) if x == int(x) and 0 <= x < len(marks) else ""  # noqa: E731
    return curves_svg(
        curves, "Success in the real environment, by where the agent was trained", "updates", "success", x_text=name
    )


def pictures(checks: Checks) -> dict[str, str]:
    """The pictures by name."""
    return {"drift": drift(), "stingy": stingy(checks), "trained": trained(checks)}


def tables(checks: Checks) -> dict[str, str]:
    """The tables by name: the figures whose names begin alike."""
    return alike(checks, TABLES)


if __name__ == "__main__":
    write("world-model", PAGE, pictures, tables, *FILES)
