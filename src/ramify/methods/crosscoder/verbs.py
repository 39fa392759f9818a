"""The verbs of ``ramify crosscoder``. STATES, DICTIONARY and STUDY are folders that capture, train and steer write."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from ramify.base.errors import UserError
from ramify.base.files import write_whole
from ramify.base.ledger import Ledger
from ramify.base.progress import Progress
from ramify.base.seeds import generator
from ramify.base.words import plural
from ramify.kit import Verbs, argument, only_for, option
from ramify.methods.crosscoder.record import DictionaryAbout, FitQuality, ListedFeature, OwnFeatures, Steering
from ramify.methods.crosscoder.report import (
    KIND,
    CapturedStates,
    FeatureRanking,
    SteeringStudy,
    TrainedDictionary,
    Windows,
    WrittenVectors,
    own_verdict,
    read_study,
    sets_verdict,
    small_difference,
    verdict,
)
from ramify.methods.crosscoder.settings import (
    PARTITIONS,
    CaptureOptions,
    DictionaryConfig,
    DictionaryOptions,
    FitConfig,
    SteerOptions,
)
from ramify.render.result import to_markdown
from ramify.render.terminal import progress, say
from ramify.trace.db import Run
from ramify.trace.lines import read_lines

if TYPE_CHECKING:
    from ramify.methods.crosscoder.dictionary import Dictionary
    from ramify.methods.crosscoder.run import Checkpoints, States

app = Verbs(
    "crosscoder",
    help="Find what training changed inside a model as single features, and steer by them.",
)
StatesFolder = Annotated[Path, argument(metavar="STATES", help="A folder that `ramify crosscoder capture` wrote.")]
DictionaryFolder = Annotated[Path, argument(metavar="DICTIONARY", help="A folder that `ramify crosscoder train` wrote.")]

SHORTLISTED = 0.1
"""A feature fires above this activation where the features are listed that the paper's rule takes (``--short``); else above 0."""
TOP = 20
"""Features listed."""
CHOOSING = 0.33
"""Share of the prompts that choose feature and strength when steering; the others, twice as many, make the interval that is
reported."""


def _template(name: str, raw: bool) -> Any:
    """The chat template of the tuned model, None with ``raw`` or where it brings none."""
    if raw:
        return None
    from ramify.engine.pairs import pair_template

    template = pair_template(name)
    if template is None:
        say("the tuned model brings no chat template: prompts are the text as it is")
    return template


@app.verb(settings=CaptureOptions)
def capture(options: CaptureOptions, out: Annotated[Path, option(metavar="STATES", help="Folder to write.")]) -> CapturedStates:
    """Run both models over two corpora and keep their hidden states at the last token of every prompt, or at what decides each
    token of the tuned model's replies (--reply), where a change of how it talks shows."""
    from ramify.methods.crosscoder.record import CapturedFrom
    from ramify.methods.crosscoder.run import Checkpoints, States, prompts, with_replies
    from ramify.methods.crosscoder.run import capture as capture_states

    models = Checkpoints.open(options.tuned, options.base, options.layer, options.other_tokenizer)
    template = _template(options.tuned, options.raw)
    read = [
        prompts(path, models, None if text else template, options.longest)
        for path, text in ((options.tool, False), (options.plain, options.plain_text))
    ]
    rows: list[Sequence[int]] = [prompt.prompt_ids for part in read for prompt in part]
    first = [1 if options.plain_text and i >= len(read[0]) else len(row) - 1 for i, row in enumerate(rows)]
    if options.reply:
        stops = () if template is None else template.stop_tokens
        asked = [i for i, start in enumerate(first) if start == len(rows[i]) - 1]
        with progress("reply", kept="nothing was written"):
            for i, row in zip(asked, with_replies(models, [rows[i] for i in asked], options.reply, stops), strict=True):
                rows[i] = row
    with progress("capture", kept="nothing was written"):
        values = capture_states(models, rows, first)
    text = np.repeat(np.arange(len(rows)), [len(row) - start for row, start in zip(rows, first, strict=True)])
    if options.dtype == "float16" and np.abs(values).max() > np.finfo(np.float16).max:
        raise UserError("a hidden state is too large for float16: give --dtype float32")
    about = CapturedFrom(
        options.tuned,
        options.base,
        options.layer,
        tuple(model.identity.weights for model in models.models),
        models.tuned.identity.tokenizer,
        options.other_tokenizer,
    )
    tool = text < len(read[0])
    States(values.astype(options.dtype), tool, about, text).save(out)
    return CapturedStates(len(values), int(tool.sum()), int((~tool).sum()), len(rows), values.shape[2], str(out))


@app.verb(settings=DictionaryOptions)
def train(
    options: DictionaryOptions,
    states: StatesFolder,
    out: Annotated[Path, option(metavar="DICTIONARY", help="Folder to write.")],
) -> TrainedDictionary:
    """Train a dictionary of both models' states; the normaliser is kept with the weights."""
    from ramify.methods.crosscoder.dictionary import Dictionary, fit
    from ramify.methods.crosscoder.run import States

    kept = States.load(states)
    shape = {name: getattr(options, name) for name in ("features", "k", "topk", "exclusive", "start", "centred")}
    config = FitConfig(**{name: getattr(options, name) for name in FitConfig.model_fields})
    pairs = {"tuned, base": kept.values}
    if options.control:
        pairs["base, base"] = np.broadcast_to(kept.values[:, 1:], kept.values.shape)
    sample = np.sort(generator(options.seed, "own").permutation(len(kept.values))[:8192])
    made: list[Dictionary] = []
    fits: list[FitQuality] = []
    found: list[OwnFeatures] = []
    with progress("train", config.steps * len(pairs), "steps", kept="nothing was written") as bar:
        for name, values in pairs.items():
            done = config.steps * len(made)
            made.append(Dictionary(DictionaryConfig(width=values.shape[2], **shape), options.seed))
            on_step = lambda step, loss: bar.at(done + step, f"{name}: loss {loss:.4f}")  # noqa: B023, E731
            fits.append(fit(made[-1], values, config, options.seed, on_step))
            found.append(_own(made[-1], fits[-1].l0, np.asarray(values[sample]), kept.tool[sample], kept.text[sample]))
    own, same = found[0], found[1] if options.control else None
    made[0].save(
        out, DictionaryAbout(**vars(kept.about), fit=config, seed=options.seed, quality=fits[0], own=own, base_against_base=same)
    )
    sentence = own_verdict(own.own, own.mostly, own.tested)
    if same is not None:
        sentence += f" Of the base against itself: {len(same.mostly)}."
    numbers = {name: value for name, value in vars(fits[0]).items() if name != "loss"} | vars(own)
    apart = _apart(np.asarray(kept.values[sample]))
    told = () if config.difference or own.mostly else small_difference(apart, fits[0].fve)
    return TrainedDictionary(**numbers, difference=apart, base_against_base=same, verdict=sentence, out=str(out), caveats=told)


def _apart(values: np.ndarray) -> float:
    """The variance of the models' difference over that of the tuned model's states, of states [N, 2, D]."""
    states = values.astype(np.float64)
    spread = [(part - part.mean(axis=0)).__pow__(2).sum() for part in (states[:, 0] - states[:, 1], states[:, 0])]
    return float(spread[0] / max(spread[1], 1e-12))


def _own(made: Dictionary, l0: Mapping[str, float], values: np.ndarray, tool: np.ndarray, text: np.ndarray) -> OwnFeatures:
    """The features of the tuned model's block that are its own, and the highest d in the block."""
    from ramify.methods.crosscoder.algorithm import cohens_d, owned
    from ramify.methods.crosscoder.dictionary import encode_rows

    partition = "a" if made.own else "all"
    found = owned(made, values, partition, text=text)
    codes = encode_rows(made, values)[:, made.partition(partition)]
    both = min(tool.sum(), (~tool).sum()) > 1
    return OwnFeatures(
        l0=l0,
        own=tuple(i for i, one in found.items() if one.own),
        mostly=tuple(i for i, one in found.items() if one.mostly),
        tested=sum(one.latent_scaling is not None for one in found.values()),
        highest_d=float(cohens_d(codes[tool], codes[~tool]).max()) if both else None,
    )


@app.verb()
def show(
    source: Annotated[Path, argument("DICTIONARY|RUN", help="A dictionary that `train` wrote, or a study that `steer` made.")],
    states: Annotated[
        Path | None, argument("STATES", help="With a dictionary: a folder that `ramify crosscoder capture` wrote.")
    ] = None,
    partition: Annotated[
        Literal["a", "b", "shared", "all"] | None,
        option(help="Of a dictionary: a (the tuned model alone; the default), b (the base alone), shared or all."),
    ] = None,
    short: Annotated[
        bool,
        option("--short", help="Of a dictionary: only what fires on 30 % of the tool corpus and at most 10 % of the other."),
    ] = False,
    top: Annotated[int | None, option(min=1, help="Of a dictionary: rows shown; default: 20.")] = None,
    out: Annotated[Path | None, option(help="File to write: .csv of a dictionary, .md of a study.")] = None,
) -> FeatureRanking | SteeringStudy:
    """Rank a dictionary's features by how well they separate the two corpora, and test whether each belongs to one model alone;
    or report on a study: what was chosen on which prompts, what it does on the others, and what its controls do."""
    if states is not None:
        return _ranking(source, states, partition or "a", short, top or TOP, out)
    only_for("a study (a dictionary is ranked on its STATES)", partition=partition, short=short, top=top)
    study = read_study(source)
    if out is not None:
        write_whole(out, to_markdown(study.sections()))
    return study


def _ranking(dictionary: Path, states: Path, partition: str, short: bool, top: int, out: Path | None) -> FeatureRanking:
    """The features of a dictionary by how well they separate the corpora, and whose they are."""
    from ramify.methods.crosscoder.algorithm import owned, rank_features, shortlist
    from ramify.methods.crosscoder.dictionary import Dictionary
    from ramify.methods.crosscoder.run import States

    made, kept = Dictionary.load(dictionary)[0], States.load(states)
    signed = rank_features(made, *_codes(made, kept), partition, SHORTLISTED if short else 0.0)
    ranked = shortlist(signed) if short else signed
    scaling = owned(made, np.asarray(kept.values), partition, text=kept.text)
    rows = tuple(ListedFeature(**vars(one), **vars(scaling[one.feature])) for one in ranked)
    own, mostly = (tuple(i for i, one in scaling.items() if getattr(one, name)) for name in ("own", "mostly"))
    tested = sum(row.latent_scaling is not None for row in scaling.values())
    if out is not None:
        text = StringIO(newline="")
        writer = csv.DictWriter(text, [field.name for field in fields(ListedFeature)])
        writer.writeheader()
        writer.writerows(map(asdict, rows))
        write_whole(out, text.getvalue())
    return FeatureRanking(len(signed), own, mostly, own_verdict(own, mostly, tested), rows, top)


def _codes(made: Dictionary, kept: States) -> tuple[np.ndarray, np.ndarray]:
    from ramify.methods.crosscoder.dictionary import encode_rows

    if kept.tool.sum() < 2 or (~kept.tool).sum() < 2:
        raise UserError("ranking compares two corpora, and the states hold fewer than two rows of one of them")
    values = np.asarray(kept.values)
    return encode_rows(made, values[kept.tool]), encode_rows(made, values[~kept.tool])


def _split(n: int) -> int:
    """How many of ``n`` prompts choose; the others confirm."""
    return min(n - 2, max(2, round(CHOOSING * n)))


def _steer_plan(options: SteerOptions, dictionary: Path, states: Path, problems: Path) -> dict[str, int]:
    """What a study takes: replies of the steered model and of its base, each of as many tokens as the largest budget."""
    from ramify.methods.crosscoder.dictionary import Dictionary
    from ramify.methods.crosscoder.run import States

    groups = _groups(Dictionary.load(dictionary)[0], States.load(states), options)
    n, cells = sum(1 for _ in read_lines(problems)), sum(map(len, groups.values()))
    choosing = max(0, _split(n))
    searched = 1 + cells * (1 if _singly(groups) else 1 + options.randoms)
    confirmed = 1 + max(1, len(groups)) * (1 + options.randoms + 3) + 4  # three controls; both models, clean and reconstructed
    replies = choosing * searched + (n - choosing) * confirmed
    return {"prompts": n, "cells": cells, "replies": replies, "tokens to sample": replies * max(options.budgets, default=0)}


@app.study(settings=SteerOptions, plan=_steer_plan)
def steer(
    options: SteerOptions,
    dictionary: DictionaryFolder,
    states: StatesFolder,
    problems: Annotated[
        Path, option("--prompts", metavar="FILE", help="Prompts to score, JSON lines: id, prompt, answer, data.")
    ],
    out: Annotated[Path, option(metavar="RUN", help="Run to make or to continue; scores that are in it are not run again.")],
    bar: Progress,
) -> SteeringStudy:
    """Search feature, or set of features, and strength on some prompts and confirm them on the others, compared with random
    directions and the means' difference."""
    from ramify.methods.crosscoder.dictionary import Dictionary
    from ramify.methods.crosscoder.run import Checkpoints, States, find_score, prompts

    made, about = Dictionary.load(dictionary)
    kept, tuned = States.load(states), options.tuned or about.tuned
    models = Checkpoints.open(tuned, options.base or about.base, about.layer, about.other_tokenizer)
    caveats = []
    if about.weights not in ((), tuple(model.identity.weights for model in models.models)):
        caveats.append("the dictionary was trained on states of other weights")
    template = _template(tuned, options.raw)
    read = prompts(problems, models, template)
    if len(read) < 4:
        raise UserError(
            f"{problems} holds {plural(len(read), 'prompt')}; some choose and others confirm, so at least 4 are needed"
        )
    order = np.random.Generator(np.random.Philox(options.seed)).permutation(len(read))
    cut = _split(len(read))
    parts = [[read[i] for i in sorted(part)] for part in (order[:cut], order[cut:])]
    scoring: dict[str, Any] = {
        "judge": find_score(options.score),
        "budgets": options.budgets,
        "seed": options.seed,
        "name": options.score,
        "stops": () if template is None else template.stop_tokens,
        "ledger": Ledger(),
    }
    # scores are found by all they depend on, so each call may have other options
    with Run.begin(out, KIND, {}, options.to_json()) as run:
        found = _studied(options, made, about, kept, models, parts, scoring | {"kept": run}, bar)
        run.conclude(KIND, [found.finding()])
    return replace(found, caveats=(*caveats, *found.caveats), spent=scoring["ledger"].to_json()["spent"])


def _studied(
    options: SteerOptions,
    made: Dictionary,
    about: DictionaryAbout,
    kept: States,
    models: Checkpoints,
    parts: Sequence[Any],
    scoring: dict[str, Any],
    bar: Progress,
) -> SteeringStudy:
    """The study on the prompts that choose and those that confirm, the two ``parts``."""
    from ramify.methods.crosscoder.algorithm import best, confirm, confirm_sets, corrected, no_reach, search, sets_best
    from ramify.methods.crosscoder.run import CachedScores
    from ramify.methods.crosscoder.run import capture as capture_states
    from ramify.methods.crosscoder.steer import change_of

    target = "ab".index(options.target)
    scores = [CachedScores(models, target, part, **scoring) for part in parts]
    at = [capture_states(models, [one.prompt_ids for one in part]) for part in parts]
    groups = _groups(made, kept, options)
    cells = [cell for some in groups.values() for cell in some]
    if not cells:
        raise UserError(
            "nothing to try: no feature of the partition is higher on the tool corpus, or neither gains nor clamps are given"
        )
    for cell in cells:  # a feature that does not exist is known before any prompt is run
        change_of(cell, made, np.zeros((1, made.config.features), np.float32), target)
    warning = no_reach(made, cells, target)
    bar.begin(0, phase="search")
    found = search(made, at[0], scores[0], cells, target)
    bar.begin(0, phase="confirm")
    how = (_directions(kept, target), target, options.randoms, options.seed)
    if _singly(groups):
        cell, sets = best(cells, found), []
        confirmed = tuple(confirm(made, at[1], scores[1], cell, *how))
    else:
        sets = confirm_sets(made, (at[0], at[1]), (scores[0], scores[1]), groups, *how)
        first = sets_best(sets)
        cell, confirmed = first.cell, first.confirmed
    bar.begin(0, phase="all budgets")
    return SteeringStudy(
        about=about,
        options=options,
        partition={name: len(made.partition(name)) for name in PARTITIONS},
        search=tuple(corrected(found)),
        chosen=cell.name,
        confirmed=confirmed,
        sets=tuple(sets),
        windows=_windows(made, models, parts[1], scoring, at[1], cell, target),
        verdict=sets_verdict(sets) if sets else verdict(confirmed),
        caveats=(warning,) if warning else (),
    )


def _singly(groups: Mapping[str, Sequence[Steering]]) -> bool:
    """Whether only single features are searched, and as one group."""
    return len(groups) == 1 and all(len(one.features) == 1 for some in groups.values() for one in some)


def _groups(made: Dictionary, kept: States, options: SteerOptions) -> dict[str, list[Steering]]:
    """The cells that are searched, by the size or the set they belong to; none where no feature is to be had."""
    from ramify.methods.crosscoder.algorithm import feature_sets, grid, rank_features

    tool_codes, plain_codes = _codes(made, kept)
    ranked = [] if options.features else rank_features(made, tool_codes, plain_codes, options.partition)
    features = options.features or tuple(one.feature for one in ranked[: options.top])
    sizes = options.sizes or (() if options.sets or not features else (1,))
    named = feature_sets(features, sizes, options.sets)
    return {name: cells for name, some in named.items() if (cells := grid(some, options.gains, options.clamps))}


def _directions(kept: States, target: int) -> dict[str, np.ndarray]:
    """The simplest directions, [D] each: the difference of the corpora's means in the steered model, and of the models' means."""
    values = np.asarray(kept.values, np.float32)
    found = {
        "tool - plain": values[kept.tool][:, target].mean(axis=0) - values[~kept.tool][:, target].mean(axis=0),
        "tuned - base": (values[kept.tool][:, 0] - values[kept.tool][:, 1]).mean(axis=0),
    }
    return {name: value for name, value in found.items() if value.any()}  # equal states point nowhere


def _windows(
    made: Dictionary,
    models: Checkpoints,
    problems: Any,
    scoring: dict[str, Any],
    at: np.ndarray,
    cell: Steering,
    target: int,
) -> Windows:
    """Scores at every budget: both models clean and reconstructed (spillover), and the chosen cell."""
    from ramify.methods.crosscoder.dictionary import encode_rows
    from ramify.methods.crosscoder.run import CachedScores
    from ramify.methods.crosscoder.steer import change_of, reconstruct

    found: dict[str, tuple[float, ...]] = {}
    for model, name in enumerate(("tuned", "base")):
        scores = CachedScores(models, model, problems, **scoring)
        changes = {"clean": None, "reconstructed": reconstruct(made, at, model)}
        if model == target:
            changes["steered"] = change_of(cell, made, encode_rows(made, at), target)
        for what, change in changes.items():
            moved = change if change is not None and change.moved.any() else None
            scores(moved)
            found[f"{name}, {what}"] = tuple(scores.at[scores.key(moved)].mean(axis=0).tolist())
    return Windows(tuple(sorted(set(scoring["budgets"]))), found)


@app.verb()
def export(
    dictionary: DictionaryFolder,
    states: StatesFolder,
    features: Annotated[str, option(help="Numbers of features, with commas.")],
    out: Annotated[Path, option(help="Folder to write.")],
    gain: Annotated[float, option(help="What their mean activation on the tool corpus is multiplied by.")] = 32.0,
    target: Annotated[str, option(help="The model that is to be steered: a (tuned) or b (base).")] = "a",
) -> WrittenVectors:
    """Write directions and fixed steering vectors (safetensors, JSON), and the dictionary in the files of sae-lens."""
    from ramify.methods.crosscoder.algorithm import no_reach
    from ramify.methods.crosscoder.dictionary import Dictionary
    from ramify.methods.crosscoder.run import States
    from ramify.methods.crosscoder.run import export as export_files

    if target not in ("a", "b"):
        raise UserError(f"--target {target} is neither a (tuned) nor b (base)")
    if not math.isfinite(gain):
        raise UserError(f"--gain must be a finite number, not {gain}")
    try:
        chosen = [int(part) for part in features.split(",")]
    except ValueError:
        raise UserError(f"--features {features} is not a list of numbers with commas") from None
    made, kept = Dictionary.load(dictionary)[0], States.load(states)
    warning = no_reach(made, [Steering(tuple(chosen), "scale", gain)], "ab".index(target))
    export_files(made, _codes(made, kept)[0], chosen, gain, "ab".index(target), out)
    return WrittenVectors(str(out), tuple(chosen), caveats=(warning,) if warning else ())
