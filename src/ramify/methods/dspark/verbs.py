"""The verbs of ``ramify dspark``. TARGET is builtin, hf:FOLDER or a folder; DRAFTER is a folder that train wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ramify.base.errors import UserError
from ramify.base.files import read_record
from ramify.base.progress import Progress
from ramify.kit import DryRun, Seed, Verbs, argument, option
from ramify.methods.dspark.record import (
    BreakEven,
    CalibratedDrafter,
    DraftingNeeds,
    LosslessReport,
    SpeedComparison,
    TrainedDrafter,
)
from ramify.methods.dspark.settings import TrainOptions
from ramify.model.grammar import json_schema
from ramify.model.protocol import Sampling
from ramify.render.result import Cell, Planned
from ramify.render.terminal import progress

if TYPE_CHECKING:
    from ramify.methods.dspark.drafters import Qwen3Drafter
    from ramify.methods.dspark.run import Target

UNCHANGED = "the drafter is as it was"
LAYERS, BLOCK = (int(TrainOptions.model_fields[name].default) for name in ("layers", "block"))
"""Of a drafter, unless others are asked for."""
app = Verbs(
    "dspark",
    help="Train a drafter for your model, calibrate it, see at which load it pays, and check that nothing changes but the speed.",
)
TargetName = Annotated[str, argument(metavar="TARGET", help="builtin, hf:FOLDER or a folder: the model to speed up.")]
DrafterFolder = Annotated[Path, argument(metavar="DRAFTER", help="A folder that `ramify dspark train` wrote.")]
Prompts = Annotated[
    Path | None,
    option(
        "--prompts",
        metavar="FILE",
        help="JSON lines with prompt or prompt_ids, one text a line, or a run: what its agent was shown. builtin needs none.",
    ),
]
Raw = Annotated[bool, option("--raw", help="Prompts are the text as it is, without the chat template.")]
Count = Annotated[int, option("--n", min=2, help="Prompts; those of a file are used in turns.")]
Temperature = Annotated[float, option(min=0, help="Temperature of the samples.")]
Tokens = Annotated[int, option(min=2, help="Tokens of a reply at most.")]


def _train_plan(options: TrainOptions, target: str, prompts: Path | None, raw: bool) -> dict[str, Cell]:
    """What a training costs."""
    from ramify.methods.dspark import run
    from ramify.methods.dspark.run import Target

    opened = Target.open(target, weights=False)
    opened.prompts(prompts, options.sequences, raw, options.seed, "train")  # what is wrong with them is said now
    return run.cost_estimate(opened, options)


@app.study(settings=TrainOptions, plan=_train_plan)
def train(
    options: TrainOptions,
    target: TargetName,
    out: Annotated[Path, option(metavar="DRAFTER", help="Folder to write; a call that was stopped continues there.")],
    bar: Progress,
    prompts: Prompts = None,
    raw: Raw = False,
) -> TrainedDrafter:
    """Train a drafter on text that the target writes itself."""
    from ramify.methods.dspark import run
    from ramify.methods.dspark.run import Target

    opened = Target.open(target)
    run.check_layout(options, opened)
    given = opened.prompts(prompts, options.sequences, raw, options.seed, "train")
    rows = run.text(opened, given, options, out, bar)
    return run.train(opened, rows, options, out, bar)


@app.verb()
def calibrate(
    target: TargetName,
    drafter: DrafterFolder,
    prompts: Prompts = None,
    raw: Raw = False,
    n: Count = 200,
    tokens: Tokens = 64,
    temperature: Temperature = 1.0,
    seed: Seed = 0,
) -> CalibratedDrafter:
    """Fit one temperature a position to the drafter's confidences, save them with it, and test them on other prompts."""
    from ramify.methods.dspark import run
    from ramify.methods.dspark.run import Target

    opened = Target.open(target)
    given = opened.prompts(prompts, n, raw, seed, "calibrate")
    settings = Sampling(temperature=temperature, max_tokens=tokens)
    with progress("calibrate", kept=UNCHANGED) as bar:
        return run.calibrate(opened, drafter, given, settings, seed, bar)


@app.verb()
def profile(
    target: TargetName,
    drafter: Annotated[
        Path | None, argument(metavar="DRAFTER", help="A folder that `ramify dspark train` wrote; none: before one is trained.")
    ] = None,
    prompts: Prompts = None,
    raw: Raw = False,
    loads: Annotated[str, option(help="Requests at once, with commas.")] = "1,2,4,8,16,32",
    repeats: Annotated[int, option(min=3, help="Cycles timed for each load and number of drafts.")] = 24,
    temperature: Temperature = 1.0,
    layers: Annotated[int, option(min=1, max=64, help="Without a drafter: draft layers of the one to be trained.")] = LAYERS,
    block: Annotated[int, option(min=1, max=256, help="Without a drafter: most tokens of a draft.")] = BLOCK,
    vocabulary: Annotated[int, option(min=0, help="Without a drafter: tokens that it could draft; 0: all.")] = 0,
    seed: Seed = 0,
) -> BreakEven | DraftingNeeds:
    """Time whole cycles on this machine, save them with the drafter, and say at which load drafting pays. Without a drafter:
    whether it can pay at all, and what share of drafts must be accepted, by the times of an untrained one."""
    from ramify.methods.dspark.drafter_files import load_drafter
    from ramify.methods.dspark.profile import break_even, measure, needed
    from ramify.methods.dspark.run import Target, make

    if drafter is not None and (layers, block, vocabulary) != (LAYERS, BLOCK, 0):
        raise UserError("--layers, --block and --vocabulary describe a drafter that is not there yet: leave them or DRAFTER out")
    opened = Target.open(target)
    at = _loads(loads)
    given = opened.prompts(prompts, 4 * max(at), raw, seed, "calibrate")
    settings = Sampling(temperature=temperature, max_tokens=64)
    if drafter is None:
        used = make(opened, TrainOptions(layers=layers, block=block, vocabulary=vocabulary), mask_token=0)
    else:
        used = load_drafter(drafter, opened.model.module)
    with progress("profile", kept=UNCHANGED if drafter else "nothing was written") as bar:
        cycles = measure(opened.model, used, given, at, repeats, settings, seed, bar)
    costs = cycles.profile()
    if drafter is None:
        weights = sum(weight.numel() for weight in used.parameters() if weight.requires_grad)
        return DraftingNeeds(tuple(needed(costs, cycles.again())), block, weights)
    costs.save(drafter)
    return BreakEven(tuple(break_even(costs, again=cycles.again())), str(drafter))


def _loads(text: str) -> list[int]:
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise UserError(f"--loads {text} is not a list of numbers with commas") from None
    if not found or found[0] < 1:
        raise UserError(f"--loads {text}: a load is at least one request")
    return found


@app.verb()
def bench(
    target: TargetName,
    drafters: Annotated[list[Path], argument(metavar="DRAFTER...", help="Folders of drafters; the first also runs under load.")],
    prompts: Prompts = None,
    raw: Raw = False,
    n: Count = 60,
    tokens: Tokens = 64,
    temperature: Temperature = 1.0,
    loads: Annotated[str, option(help="Requests at once, with commas.")] = "1,2,4,8,16,32",
    turns: Annotated[
        int, option(min=1, help="Turns of every entrant; the interval is over them, and fewer than 3 give no verdict.")
    ] = 15,
    peers: Annotated[
        list[str] | None,
        option(
            "--peer",
            metavar="KIND[:PATH]",
            help="Compared with: generate, prompt_lookup, hf_assistant:FOLDER, hf_dflash:DRAFTER.",
        ),
    ] = None,
    schedules: Annotated[
        list[str] | None,
        option(
            "--schedule", metavar="NAME", help="Under load only this one, beside no drafting (fixed:K, greedy, ...); repeats."
        ),
    ] = None,
    seed: Seed = 0,
    dry_run: DryRun = False,
) -> SpeedComparison | Planned:
    """Sample the same replies with and without drafters, in turns: tokens a pass, tokens/s, and from which load on none pays.

    Ctrl-C ends it with the turns that were timed, their interval, and exit code 130."""
    from ramify.engine.profile import FILE, Profile
    from ramify.methods.dspark.bench import SCHEDULES, compare
    from ramify.methods.dspark.drafter_files import load_drafter
    from ramify.methods.dspark.run import Target

    at, chosen = _loads(loads), tuple(schedules or SCHEDULES)
    if len({folder.name for folder in drafters}) < len(drafters):
        raise UserError("two drafters have folders of the same name, which is what the table calls them by")
    if dry_run:
        settings = {"target": target, "loads": loads, "turns": turns, "tokens": tokens, "temperature": temperature}
        return Planned(settings, _bench_costs(drafters, len(peers or []), at, turns, tokens, chosen))
    opened = Target.open(target)
    made = {folder.name: load_drafter(folder, opened.model.module) for folder in drafters}
    given = {"prompts": opened.prompts(prompts, n, raw, seed, "test")}
    file = drafters[0] / FILE
    with progress("bench", kept="nothing was written") as bar:
        return compare(
            opened.folder,
            made,
            given,
            settings=Sampling(temperature=temperature, max_tokens=tokens),
            peers={kind: _peer(kind, path, opened) for kind, _, path in (one.partition(":") for one in peers or [])},
            costs=Profile.load(drafters[0]) if file.is_file() else None,
            loads=at,
            schedules=chosen,
            rounds=turns,
            progress=bar,
        )


def _bench_costs(
    drafters: list[Path], peers: int, at: list[int], turns: int, tokens: int, schedules: tuple[str, ...]
) -> dict[str, Cell]:
    """What a comparison takes: counted, and timed by the profile of the first drafter, where it has one."""
    import numpy as np

    from ramify.engine.profile import FILE, Profile
    from ramify.methods.dspark.bench import settled

    alone = (turns + 1) * (len(drafters) + 1 + peers) * 2
    together = {load: (turns + settled(schedules)) * (len(schedules) + 1) * max(4, 2 * load) for load in at}
    replies = alone + sum(together.values())
    costs: dict[str, Cell] = {"replies": replies, "tokens to sample": replies * tokens}
    if not (drafters[0] / FILE).is_file():
        return {**costs, "seconds": "not known: `ramify dspark profile` times this machine"}
    profile = Profile.load(drafters[0])
    each = {load: float(profile.cycle(load, np.zeros(1), 0)[0]) / load for load in {1, *at}}
    seconds = tokens * (alone * each[1] + sum(count * each[load] for load, count in together.items()))
    return {**costs, "seconds, about": round(seconds), "seconds from": "the drafter's profile, as if nothing were drafted"}


def _peer(kind: str, path: str, opened: Target) -> Path | Qwen3Drafter | None:
    """What a peer drafts with."""
    from ramify.methods.dspark.drafter_files import load_drafter

    if not path:
        return None
    return load_drafter(Path(path), opened.model.module) if kind == "hf_dflash" else Path(path)


@app.verb("verify-lossless")
def verify_lossless(
    target: TargetName,
    drafter: DrafterFolder,
    prompts: Prompts = None,
    raw: Raw = False,
    n: Count = 8,
    samples: Annotated[
        int, option(min=20, help="Outputs of three tokens that are counted for each schedule; fewer see larger shifts only.")
    ] = 4000,
    schedules: Annotated[
        list[str] | None,
        option("--schedule", metavar="NAME", help="Only this one (fixed:K, threshold:T, greedy, stale2); may be repeated."),
    ] = None,
    schema: Annotated[
        Path | None, option(metavar="FILE", help="Compare greedy and coupled replies held to this JSON schema, too.")
    ] = None,
    seed: Seed = 0,
) -> LosslessReport:
    """Check on your own pair that drafting changes no distribution and no greedy token,
    under every schedule; exit code 1 where it does.

    greedy and stale2 run under the drafter's profile where it has one.
    """
    from ramify.methods.dspark import run
    from ramify.methods.dspark.run import Target

    grammar = None if schema is None else json_schema(read_record(schema, "the JSON schema"), str(schema))
    opened = Target.open(target)
    given = opened.prompts(prompts, n, raw, seed, "test")
    with progress("verify", kept=UNCHANGED) as bar:
        return run.verify(opened, drafter, given, seed, samples, schedules or (), grammar, bar)
