"""The verbs of ``ramify crosscoder``. STATES, DICTIONARY and STUDY are folders that capture, train and steer write."""

from __future__ import annotations

import csv
import json
import math
from contextlib import ExitStack
from dataclasses import asdict, fields
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from ramify.base.config import Config
from ramify.base.errors import UserError
from ramify.base.files import write_whole
from ramify.base.ledger import Ledger
from ramify.base.seeds import generator
from ramify.base.words import plural
from ramify.kit import Json, Verbs, argument, option
from ramify.methods.crosscoder.record import begin_study, keep_study, read_study
from ramify.methods.crosscoder.report import markdown, study_verdict
from ramify.methods.crosscoder.settings import OWN, PARTITIONS, DictionaryConfig, FitConfig
from ramify.render.terminal import emit, progress, say, table

if TYPE_CHECKING:
    from ramify.methods.crosscoder.algorithm import Confirmed, Steering
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
CHOOSING = 0.33
"""Share of the prompts that choose feature and strength when steering; the others, twice as many, make the interval that is
reported."""


class CaptureOptions(Config):
    """Two models and two corpora."""

    tuned: str
    """the model after training: hf:FOLDER, a folder, or the folder of a LoRA adapter"""
    base: str
    """the model before it"""
    layer: int = Field(ge=1)
    """the block after which states are read; 1 is the first"""
    tool: Path
    """prompts of the behaviour in question, JSON lines with prompt or prompt_ids"""
    plain: Path
    """other texts, in the same form"""
    raw: bool = False
    """prompts are the text as it is, without the chat template"""
    longest: int = Field(0, ge=0)
    """cut prompts after so many tokens; 0 never does"""
    dtype: Literal["float16", "float32"] = "float16"
    """numbers on disk"""
    other_tokenizer: bool = False
    """continue although the models' tokenizers differ"""


class DictionaryOptions(FitConfig):
    """A dictionary, and how it is trained."""

    BASIC = "steps batch lr features k exclusive seed"
    features: int = Field(8192, ge=1)
    """size of the dictionary"""
    k: int = Field(45, ge=1)
    """features active per prompt on average (with --topk row: at most)"""
    exclusive: float = Field(0.1, ge=0, le=0.5)
    """share of features that belong to each model alone; 0 is the plain crosscoder"""
    topk: Literal["batch", "row"] = "batch"
    """k features on average, above a threshold kept with the weights, or the k largest of each prompt as in the paper"""
    start: Literal["random", "tied"] = "random"
    """first weights: independent ones, or encoder = decoder"""
    centred: bool = True
    """subtract the decoder's bias before encoding"""
    control: bool = True
    """train the same dictionary again on the base against itself, where nothing is the tuned model's own"""
    seed: int = 0
    """decides weights and order"""


class SteerOptions(Config):
    """What is steered, how it is searched and scored."""

    BASIC = "target partition features top gains score budgets seed"
    tuned: str = ""
    """the model after training; default: the one whose states were captured"""
    base: str = ""
    """the model before it"""
    target: Literal["a", "b"] = "a"
    """the model that is steered: a, the tuned one, or b, the base"""
    partition: Literal["a", "b", "shared", "all"] = "a"
    """where features are searched"""
    features: tuple[int, ...] = ()
    """these features only, by number"""
    top: int = Field(12, ge=1)
    """features with the highest d that are tried"""
    sizes: tuple[int, ...] = ()
    """1: each of them alone; n: the n of the highest d changed together;
    several are corrected for each other (default: 1, or none with --sets)"""
    sets: tuple[str, ...] = ()
    """more sets that are changed together, by number: 3+7+11,5+9"""
    gains: tuple[float, ...] = (6, 16, 32)
    """activations are multiplied by these; 0 takes the features out"""
    clamps: tuple[float, ...] = ()
    """activations are set to these"""
    score: str = "call"
    """call (a listed tool, by its exact name), toolrl (the paper's fuzzy rule), exact, number, boxed, cmd:./check.sh,
    FILE.py:FUNCTION, python:MODULE:FUNCTION"""
    budgets: tuple[int, ...] = (50, 100, 200)
    """replies are judged after so many tokens; the last is what a reply may have"""
    randoms: int = Field(19, ge=0)
    """random directions of the same length, for comparison; fewer than 19 refute nothing at 5 %.
    Of sets: random sets, each searched as the features were"""
    raw: bool = False
    """prompts are the text as it is, without the chat template"""
    seed: int = 0
    """decides which prompts choose, and the random directions"""


def _template(models: Checkpoints, name: str, raw: bool) -> Any:
    """The chat template of the tuned model, None with ``raw`` or where it brings none."""
    if raw:
        return None
    from ramify.engine.pairs import pair_template

    template = pair_template(name)
    if template is None:
        say("the tuned model brings no chat template: prompts are the text as it is")
    return template


@app.verb(settings=CaptureOptions)
def capture(
    options: CaptureOptions, out: Annotated[Path, option(metavar="STATES", help="Folder to write.")], as_json: Json = False
) -> None:
    """Run both models over two corpora and keep their hidden states at the last token of every prompt."""
    from ramify.methods.crosscoder.run import Checkpoints, States, prompts
    from ramify.methods.crosscoder.run import capture as capture_states

    models = Checkpoints.open(options.tuned, options.base, options.layer, options.other_tokenizer)
    template = _template(models, options.tuned, options.raw)
    read = [prompts(path, models, template, options.longest) for path in (options.tool, options.plain)]
    with progress("capture", as_json=as_json, kept="nothing was written"):
        values = capture_states(models, [one.prompt_ids for part in read for one in part])
    if options.dtype == "float16" and np.abs(values).max() > np.finfo(np.float16).max:
        raise UserError("a hidden state is too large for float16: give --dtype float32")
    about = {
        "tuned": options.tuned,
        "base": options.base,
        "layer": options.layer,
        "weights": [model.identity.weights for model in models.models],
        "tokenizer": models.tuned.identity.tokenizer,
        "other_tokenizer": options.other_tokenizer,
    }
    States(values.astype(options.dtype), np.arange(len(values)) < len(read[0]), about).save(out)
    found = {"rows": len(values), "tool": len(read[0]), "plain": len(read[1]), "width": values.shape[2], "out": str(out)}
    emit(found, as_json, table(["number", "value"], list(found.items())))


@app.verb(settings=DictionaryOptions)
def train(
    options: DictionaryOptions,
    states: StatesFolder,
    out: Annotated[Path, option(metavar="DICTIONARY", help="Folder to write.")],
    as_json: Json = False,
) -> None:
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
    found: list[dict[str, Any]] = []
    with progress("train", config.steps * len(pairs), "steps", as_json, kept="nothing was written") as bar:
        for name, values in pairs.items():
            done = config.steps * len(made)
            made.append(Dictionary(DictionaryConfig(width=values.shape[2], **shape), options.seed))
            on_step = lambda step, loss: bar.at(done + step, f"{name}: loss {loss:.4f}")  # noqa: B023, E731
            quality = fit(made[-1], values, config, options.seed, on_step)
            found.append(quality | _own(made[-1], np.asarray(values[sample]), kept.tool[sample]))
    against = {"base against base": {name: found[1][name] for name in ("l0", "own", "highest_d")}} if options.control else {}
    made[0].save(out, kept.about | {"fit": config.to_json(), "seed": options.seed, "quality": found[0] | against})
    sentence = _verdict(found[0]["own"], found[0]["tested"])
    if options.control:
        sentence += f" Of the base against itself: {len(found[1]['own'])}."
    shown = {name: value for name, value in found[0].items() if name != "loss"} | against | {"verdict": sentence, "out": str(out)}
    rows = [[name, json.dumps(value) if isinstance(value, dict | list) else value] for name, value in shown.items()]
    emit(shown, as_json, table(["number", "value"], rows, sentence))


def _own(made: Dictionary, values: np.ndarray, tool: np.ndarray) -> dict[str, Any]:
    """The features of the tuned model's block that are its own, and the highest d in the block,
    which needs no difference of the models."""
    from ramify.methods.crosscoder.algorithm import cohens_d, owned
    from ramify.methods.crosscoder.dictionary import encode_rows

    partition = "a" if made.own else "all"
    found = owned(made, values, partition)
    codes = encode_rows(made, values)[:, made.partition(partition)]
    both = min(tool.sum(), (~tool).sum()) > 1
    return {
        "own": [i for i, one in found.items() if one.own],
        "tested": sum(one.latent_scaling is not None for one in found.values()),
        "highest_d": float(cohens_d(codes[tool], codes[~tool]).max()) if both else None,
    }


def _verdict(own: list[int], tested: int) -> str:
    """What :func:`owned` found, in a sentence."""
    rule = f"less than {OWN:g} of it in the base, p <= 0.05 over the {tested} that fire"
    if not own:
        return f"Nothing stands out: no feature is the tuned model's own ({rule})."
    named = ", ".join(map(str, own[:20])) + (" and more" if len(own) > 20 else "")
    return f"{len(own)} feature{'s are' if len(own) > 1 else ' is'} the tuned model's own ({rule}): {named}."


@app.verb()
def rank(
    dictionary: DictionaryFolder,
    states: StatesFolder,
    partition: Annotated[str, option(help="a (the tuned model alone), b (the base alone), shared or all.")] = "a",
    short: Annotated[
        bool, option("--short", help="Only those that fire on 30 % of the tool corpus and at most 10 % of the other.")
    ] = False,
    out: Annotated[Path | None, option(help=".csv to write.")] = None,
    top: Annotated[int, option(min=1, help="Rows shown.")] = 20,
    as_json: Json = False,
) -> None:
    """Rank features by how well they separate the two corpora, and test whether each belongs to one model alone."""
    from ramify.methods.crosscoder.algorithm import Owned, RankedFeature, owned, rank_features, shortlist
    from ramify.methods.crosscoder.dictionary import Dictionary
    from ramify.methods.crosscoder.run import States

    made, kept = Dictionary.load(dictionary)[0], States.load(states)
    signed = rank_features(made, *_codes(made, kept), partition, SHORTLISTED if short else 0.0)
    ranked = shortlist(signed) if short else signed
    scaling = owned(made, np.asarray(kept.values), partition)
    rows = [one.to_json() | asdict(scaling[one.feature]) for one in ranked]
    own, tested = [i for i, one in scaling.items() if one.own], sum(one.latent_scaling is not None for one in scaling.values())
    columns = [field.name for kind in (RankedFeature, Owned) for field in fields(kind)]
    if out is not None:
        text = StringIO(newline="")
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        writer.writerows(rows)
        write_whole(out, text.getvalue())
    shown = [list(row.values()) for row in rows[:top]]
    sentence = _verdict(own, tested)
    emit(
        {"tool_signed": len(signed), "own": own, "verdict": sentence, "features": rows},
        as_json,
        table(columns, shown, f"{sentence}\nhigher on the tool corpus: {plural(len(signed), 'feature')}, {len(rows)} listed"),
    )


def _codes(made: Dictionary, kept: States) -> tuple[np.ndarray, np.ndarray]:
    from ramify.methods.crosscoder.dictionary import encode_rows

    if kept.tool.sum() < 2 or (~kept.tool).sum() < 2:
        raise UserError("ranking compares two corpora, and the states hold fewer than two rows of one of them")
    values = np.asarray(kept.values)
    return encode_rows(made, values[kept.tool]), encode_rows(made, values[~kept.tool])


@app.verb(settings=SteerOptions)
def steer(
    options: SteerOptions,
    dictionary: DictionaryFolder,
    states: StatesFolder,
    problems: Annotated[
        Path, option("--prompts", metavar="FILE", help="Prompts to score, JSON lines: id, prompt, answer, data.")
    ],
    out: Annotated[Path, option(metavar="RUN", help="Run to make or to continue; scores that are in it are not run again.")],
    as_json: Json = False,
) -> None:
    """Search feature, or set of features, and strength on some prompts and confirm them on the others, compared with random
    directions and the means' difference."""
    with ExitStack() as stack:
        _steer(stack, options, dictionary, states, problems, out, as_json)


def _steer(
    stack: ExitStack, options: SteerOptions, dictionary: Path, states: Path, problems: Path, out: Path, as_json: bool
) -> None:
    """Do what :func:`steer` says; the run that keeps scores and study is closed with ``stack``."""
    from ramify.methods.crosscoder.algorithm import best, confirm, confirm_sets, corrected, no_reach, search, sets_best
    from ramify.methods.crosscoder.dictionary import Dictionary
    from ramify.methods.crosscoder.run import CachedScores, Checkpoints, States, find_score, prompts
    from ramify.methods.crosscoder.run import capture as capture_states

    made, about = Dictionary.load(dictionary)
    kept = States.load(states)
    models = Checkpoints.open(
        options.tuned or about["tuned"], options.base or about["base"], int(about["layer"]), bool(about.get("other_tokenizer"))
    )
    if about.get("weights") not in (None, [model.identity.weights for model in models.models]):
        say("warning: the dictionary was trained on states of other weights")
    template = _template(models, options.tuned or about["tuned"], options.raw)
    read = prompts(problems, models, template)
    if len(read) < 4:
        raise UserError(
            f"{problems} holds {plural(len(read), 'prompt')}; some choose and others confirm, so at least 4 are needed"
        )
    order = np.random.Generator(np.random.Philox(options.seed)).permutation(len(read))
    cut = min(len(read) - 2, max(2, round(CHOOSING * len(read))))
    choosing, others = ([read[i] for i in sorted(part)] for part in (order[:cut], order[cut:]))
    target = "ab".index(options.target)
    scoring: dict[str, Any] = {
        "judge": find_score(options.score),
        "budgets": options.budgets,
        "kept": stack.enter_context(begin_study(out, options.to_json())),
        "seed": options.seed,
        "name": options.score,
        "stops": () if template is None else template.stop_tokens,
        "ledger": Ledger(),
    }
    scores = [CachedScores(models, target, part, **scoring) for part in (choosing, others)]
    at = [capture_states(models, [one.prompt_ids for one in part]) for part in (choosing, others)]
    groups = _groups(made, kept, options)
    cells = [cell for some in groups.values() for cell in some]
    if not cells:
        raise UserError(
            "nothing to try: no feature of the partition is higher on the tool corpus, or neither gains nor clamps are given"
        )
    for cell in cells:  # a feature that does not exist is known before any prompt is run
        cell.change(made, np.zeros((1, made.config.features), np.float32), target)
    if warning := no_reach(made, cells, target):
        say(f"warning: {warning}")
    again = f"the scores are kept in {out}: the same command continues"
    with progress("steer", as_json=as_json, kept=again) as bar:
        bar.begin(0, phase="search")
        found = search(made, at[0], scores[0], cells, target)
        cell = best(cells, found)
        bar.begin(0, phase="confirm")
        how = (_directions(kept, target), target, options.randoms, options.seed)
        if len(groups) == 1 and all(len(one.features) == 1 for one in cells):
            sets: list[Confirmed] = []
            table_ = confirm(made, at[1], scores[1], cell, *how)
        else:
            sets = confirm_sets(made, (at[0], at[1]), (scores[0], scores[1]), groups, *how)
            cell, table_ = sets_best(sets)
        bar.begin(0, phase="all budgets")
        windows = _windows(made, models, others, scoring, at[1], cell, target)
    study = {
        "about": about | {"options": options.to_json(), "quality": about.get("quality")},
        "partition": {name: len(made.partition(name)) for name in PARTITIONS},
        "search": [one.to_json() | {"p_holm": p} for one, p in zip(found, corrected(found), strict=True)],
        "chosen": cell.name,
        "confirmed": [one.to_json() for one in table_],
        "sets": [one.to_json() for one in sets],
        "windows": windows,
        "warning": warning,
    }
    study["verdict"] = study_verdict(study)
    keep_study(scoring["kept"], study)
    emit(study | {"spent": scoring["ledger"].to_json()["spent"]}, as_json, markdown(study))


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
) -> dict[str, Any]:
    """Scores at every budget: both models clean and reconstructed (spillover), and the chosen cell."""
    from ramify.methods.crosscoder.dictionary import encode_rows
    from ramify.methods.crosscoder.run import CachedScores
    from ramify.methods.crosscoder.steer import reconstruct

    found: dict[str, Any] = {"budgets": sorted(set(scoring["budgets"]))}
    for model, name in enumerate(("tuned", "base")):
        scores = CachedScores(models, model, problems, **scoring)
        changes = {"clean": None, "reconstructed": reconstruct(made, at, model)}
        if model == target:
            changes["steered"] = cell.change(made, encode_rows(made, at), target)
        for what, change in changes.items():
            moved = change if change is not None and change.moved.any() else None
            scores(moved)
            found[f"{name}, {what}"] = scores.at[scores.key(moved)].mean(axis=0).tolist()
    return found


@app.verb()
def report(
    study: Annotated[Path, argument(metavar="RUN", help="A run that `ramify crosscoder steer` made.")],
    out: Annotated[Path | None, option(help=".md to write.")] = None,
    as_json: Json = False,
) -> None:
    """The report of a study in Markdown: what was chosen on which prompts, what it does on the others,
    and what its controls do."""
    found = read_study(study)
    try:
        text = markdown(found)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{study} holds no study: {type(error).__name__} {error}") from error
    if out is not None:
        write_whole(out, text + "\n")
    emit(found, as_json, text)


@app.verb()
def export(
    dictionary: DictionaryFolder,
    states: StatesFolder,
    features: Annotated[str, option(help="Numbers of features, with commas.")],
    out: Annotated[Path, option(help="Folder to write.")],
    gain: Annotated[float, option(help="What their mean activation on the tool corpus is multiplied by.")] = 32.0,
    target: Annotated[str, option(help="The model that is to be steered: a (tuned) or b (base).")] = "a",
    as_json: Json = False,
) -> None:
    """Write directions and fixed steering vectors (safetensors, JSON), and the dictionary in the files of sae-lens."""
    from ramify.methods.crosscoder.algorithm import Steering, no_reach
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
        raise UserError(f"--features {features} is no list of numbers with commas") from None
    made, kept = Dictionary.load(dictionary)[0], States.load(states)
    if warning := no_reach(made, [Steering(tuple(chosen), "scale", gain)], "ab".index(target)):
        say(f"warning: {warning}")
    export_files(made, _codes(made, kept)[0], chosen, gain, "ab".index(target), out)
    emit({"out": str(out), "features": chosen}, as_json, f"wrote {out}")
