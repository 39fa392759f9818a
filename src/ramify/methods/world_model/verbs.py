"""The verbs of ``ramify world-model`` (``serve`` is in :mod:`ramify.cli.serve`).
Exit code 1 with ``audit --strict``: success that is not real, or drift."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ramify.base.errors import UserError
from ramify.base.progress import Progress
from ramify.kit import Form, RunArgument, Seed, Verbs, argument, find_run, option
from ramify.methods.world_model.recording import RecordOptions
from ramify.methods.world_model.results import PreparedTurns, RecordedWorld, TrainedWorld, WorldAudit, WorldEvaluation
from ramify.render.terminal import progress

if TYPE_CHECKING:
    from ramify.methods.world_model.settings import WorldTraining

app = Verbs("world-model", help="Learn what an environment answers, and let agents act, train and be tested in the prediction.")
Sources = Annotated[
    list[Path],
    argument(
        "SOURCE...", help="Runs (of `record`, `rollout`, `serve --record`, ...) or logs in any format that `ramify import` reads."
    ),
]
World = Annotated[str, argument("WORLD", help="Folder that `train` wrote, or a TOML file (see the page): what simulated: names.")]


def _training() -> type[WorldTraining]:
    from ramify.methods.world_model.settings import WorldTraining

    return WorldTraining


def _recording(options: RecordOptions) -> dict[str, int]:
    return {"episodes": options.episodes, "turns": options.episodes * options.turns}


@app.study(settings=RecordOptions, plan=_recording, unit="episodes")
def record(
    options: RecordOptions,
    out: Annotated[Path, option("--out", metavar="RUN", help="Run to make or to continue.")],
    bar: Progress,
) -> RecordedWorld:
    """Play an environment, by default with random actions that make sense in it,
    and keep what it answered."""
    from ramify.methods.world_model import recording

    return recording.record(options, out, bar)


@app.verb(keeps="sources")
def prepare(
    sources: Sources,
    out: Annotated[
        Path | None,
        option("--out", metavar="FILE", help="Also write rows for another trainer: messages, and which of them to train on."),
    ] = None,
    rows: Annotated[
        str,
        option(help="Of --out: chats, with `train` at each message; or turns, prompt and completion of each that is trained on."),
    ] = "chats",
    mask: Annotated[str, option(help="info: repeats are trained on seldom; none: everything is.")] = "info",
    seed: Seed = 0,
    form: Form = None,
) -> PreparedTurns:
    """Which recorded turns carry information: their classes, how many are kept, and how much of the text that is.

    A run keeps the class and the choice at each observation; `train` with the same --mask and --seed makes the same choice.
    """
    from ramify.methods.world_model import preparing

    return preparing.prepare(sources, _mask(mask), seed, out, form, rows)


def _mask(mask: str) -> Any:
    if mask not in ("info", "none"):
        raise UserError(f"--mask is info or none, not '{mask}'")
    return mask


def _training_costs(settings: WorldTraining, sources: list[Path], model: str, form: str | None) -> dict[str, float]:
    from ramify.methods.world_model import training

    trajectories = training.read_sources(sources, form)
    start = training.new_start(trajectories, settings) if model == "new" else training.open_start(model, weights=False)
    kept = training.mask_of(trajectories, settings.mask, settings.seed)
    rows = training.world_rows(trajectories, kept, start.template, min(settings.context, start.model.context))
    return training.cost_estimate(start, rows, settings)


@app.study(settings=_training, plan=_training_costs, unit="steps")
def train(
    settings: WorldTraining,
    sources: Sources,
    out: Annotated[
        Path, option("--out", metavar="WORLD", help="Run to make or to continue; `simulated:WORLD` is then an environment.")
    ],
    bar: Progress,
    model: Annotated[
        str, option("--model", metavar="MODEL", help="new, or what to train on: hf:FOLDER, or an earlier WORLD.")
    ] = "new",
    form: Form = None,
) -> TrainedWorld:
    """Train a world model on recorded turns: cpt, then sft or rl on top of it."""
    from ramify.methods.world_model import training

    return training.train_world(sources, model, settings, out, bar, form)


@app.verb("eval", keeps="world")
def eval_(
    world: World,
    data: Annotated[list[Path], option("--data", metavar="SOURCE", help="Recorded turns of tasks it was not trained on.")],
    mode: Annotated[str, option(help="forced (true history), closed (its own answers), or both with a comma.")] = "forced,closed",
    known: Annotated[
        list[Path] | None,
        option("--train", metavar="SOURCE", help="The turns it was trained on: the baselines answer from them."),
    ] = None,
    judge: Annotated[str, option(help="Rubric from 1 to 5: rules, judge:MODEL, any judge by name, or none.")] = "rules",
    count_failures: Annotated[
        bool, option(help="A turn without a prediction is wrong, and has 1; otherwise it is left out.")
    ] = True,
    limit: Annotated[int, option(min=1, help="Trajectories at most.")] = 200,
    form: Form = None,
) -> WorldEvaluation:
    """How often a simulated environment answers as the real one did:
    on true history, on its own, by turn, beside simple baselines."""
    from ramify.methods.world_model import reports

    modes = [one.strip() for one in mode.split(",")]
    if not modes or not set(modes) <= {"forced", "closed"}:
        raise UserError(f"--mode is forced, closed or forced,closed, not '{mode}'")
    with progress("eval", kept="nothing was written") as bar:
        return reports.evaluation(world, data, known or [], modes, judge, count_failures, limit, bar, form)


@app.verb(keeps="run")
def audit(
    run: RunArgument,
    env: Annotated[
        str | None, option("--env", metavar="ENV", help="The real environment: every attempt's actions are played in it.")
    ] = None,
    real: Annotated[
        str | None,
        option("--real", metavar="RUN", help="A run of the same agent in the real environment, where that has luck of its own."),
    ] = None,
    seed: Seed = 0,
    strict: Annotated[bool, option("--strict", help="Exit code 1 where success is not real, or observations drift.")] = False,
) -> WorldAudit:
    """What agents did in a simulated environment, checked against the real one:
    success that is not real, drift, invented fields."""
    from ramify.methods.world_model import reports

    folder = find_run(run)
    with progress("audit", kept="nothing was written") as bar:
        return reports.audit(folder, env, None if real is None else find_run(real), seed, strict, bar)
