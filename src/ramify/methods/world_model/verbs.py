"""The verbs of ``ramify world-model`` (``serve`` is in :mod:`ramify.cli.serve`).
Exit code 1 with ``audit --strict``: success that is not real, or drift."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ramify.base.errors import EXIT_FAILED, UserError
from ramify.kit import DryRun, Form, Json, RunArgument, Seed, Verbs, argument, find_run, option
from ramify.methods.world_model.recording import RecordOptions
from ramify.render.terminal import emit, progress, say, table

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


@app.verb(settings=RecordOptions)
def record(
    options: RecordOptions,
    out: Annotated[Path, option("--out", metavar="RUN", help="Run to make or to continue.")],
    as_json: Json = False,
) -> None:
    """Play an environment, by default with random actions that make sense in it,
    and keep what it answered. The same command continues."""
    from ramify.methods.world_model import recording

    kept = f"every episode is kept in {out}: the same command continues"
    with progress("record", options.episodes, "episodes", as_json, kept=kept) as bar:
        found = recording.record(options, out, bar)
    emit(found, as_json, recording.record_summary(found))


@app.verb()
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
    as_json: Json = False,
) -> None:
    """Which recorded turns carry information: their classes, how many are kept, and how much of the text that is.

    A run keeps the class and the choice at each observation; `train` with the same --mask and --seed makes the same choice.
    """
    from ramify.methods.world_model import preparing

    found = preparing.prepare(sources, _mask(mask), seed, out, form, rows)
    for warning in found["warnings"]:
        say(f"warning: {warning}")
    classes = [[one["class"], one["turns"], one["kept"], one["keep"]] for one in found["classes"]]
    title = (
        f"{found['turns']} turns of {found['trajectories']} trajectories, {found['kept']} trained on, "
        f"{found['share of text']:.1%} of the text"
    )
    emit(found, as_json, table(["class", "turns", "kept", "probability"], classes, title) + (f"\n\n{out}" if out else ""))


def _mask(mask: str) -> Any:
    if mask not in ("info", "none"):
        raise UserError(f"--mask is info or none, not '{mask}'")
    return mask


@app.verb(settings=_training)
def train(
    settings: WorldTraining,
    sources: Sources,
    out: Annotated[
        Path, option("--out", metavar="WORLD", help="Run to make or to continue; `simulated:WORLD` is then an environment.")
    ],
    model: Annotated[
        str, option("--model", metavar="MODEL", help="new, or what to train on: hf:FOLDER, or an earlier WORLD.")
    ] = "new",
    form: Form = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Train a world model on recorded turns: cpt, then sft or rl on top of it.
    The same command continues an interrupted training."""
    from ramify.methods.world_model import training

    if dry_run:
        trajectories = training.read_sources(sources, form)
        start = training.new_start(trajectories, settings) if model == "new" else training.open_start(model)
        kept = training.mask_of(trajectories, settings.mask, settings.seed)
        rows = training.world_rows(trajectories, kept, start.template, min(settings.context, start.model.context))
        cost = {
            "weights": sum(w.numel() for w in start.model.module.parameters()),
            "rows": len(rows),
            "observation tokens": sum(int(row.mask.sum()) for row in rows),
            "tokens to run": int(settings.steps * settings.rows * (sum(len(row.tokens) for row in rows) / max(1, len(rows)))),
        }
        emit({"settings": settings.to_json(), "bill": cost}, as_json, table(["what it costs", ""], list(cost.items())))
        return
    kept_text = f"the newest state is kept in {out}: the same command continues"
    with progress("train", settings.steps, "steps", as_json, kept=kept_text) as bar:
        found = training.train_world(sources, model, settings, out, bar, form)
    text = table(["", ""], [[name, value] for name, value in found.items()])
    emit(
        found, as_json, f"{text}\n\nnext: ramify world-model eval {out} --data HELD-OUT, or ramify rollout --env simulated:{out}"
    )


@app.verb("eval")
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
    as_json: Json = False,
) -> None:
    """How often a simulated environment answers as the real one did:
    on true history, on its own, by turn, beside simple baselines."""
    from ramify.methods.world_model import reports

    modes = [one.strip() for one in mode.split(",")]
    if not modes or not set(modes) <= {"forced", "closed"}:
        raise UserError(f"--mode is forced, closed or forced,closed, not '{mode}'")
    with progress("eval", as_json=as_json, kept="nothing was written") as bar:
        found = reports.evaluation(world, data, known or [], modes, judge, count_failures, limit, bar, form)
    for warning in found["warnings"]:
        say(f"warning: {warning}")
    emit(found, as_json, reports.evaluation_text(found))


@app.verb()
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
    as_json: Json = False,
) -> None:
    """What agents did in a simulated environment, checked against the real one:
    success that is not real, drift, invented fields."""
    from ramify.methods.world_model import reports

    folder = find_run(run)
    with progress("audit", as_json=as_json, kept="nothing was written") as bar:
        found = reports.audit(folder, env, None if real is None else find_run(real), seed, bar)
    for warning in found["warnings"]:
        say(f"warning: {warning}")
    emit(found, as_json, reports.audit_text(found))
    if strict and (found.get("loophole") or found.get("drift")):
        raise SystemExit(EXIT_FAILED)
