"""The verbs of ``ramify cliffs``. SCAN is the run that ``ramify cliffs scan`` made."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ramify.base import codec
from ramify.base.config import Config
from ramify.base.errors import NeedsError, RamifyError, UserError, nearest
from ramify.base.files import write_whole
from ramify.base.progress import SILENT, Progress
from ramify.base.waiting import wait_for
from ramify.base.words import plural
from ramify.engine.named import find_sampled
from ramify.kit import Form, Verbs, argument, only_for, option
from ramify.methods.cliffs.forks import TAKES, ForkSource, ReplyForks
from ramify.methods.cliffs.known import KnownReplies, listed, read_known, scanned_of
from ramify.methods.cliffs.record import (
    begin,
    conclude,
    keep,
    left_to_scan,
    read_run,
    read_scan,
    token_texts,
)
from ramify.methods.cliffs.report import Ablation, CliffScan, ablation_table, picture, sentence, summary
from ramify.methods.cliffs.run import (
    CONTROLS,
    LOOKED,
    CliffMass,
    Examined,
    ScanConfig,
    Scanned,
    TokenPair,
    ablate,
    corrected,
    cost_estimate,
    examine,
    first_look,
    mass_under,
    pairs,
    scan,
)
from ramify.methods.cliffs.stems import is_token_file, read_stems
from ramify.methods.cliffs.traces import read_traces
from ramify.model.protocol import Sampling, eos_of
from ramify.render.potential import potential_svg, potential_text
from ramify.render.result import Cell, Result, Section, Verbatim, table
from ramify.render.terminal import progress
from ramify.rollout.potential import ForksSpent
from ramify.rollout.token_traces import TokenProblem, TokenTrace, read_problems
from ramify.score.judge import find_judge
from ramify.trace.connect import holds_run
from ramify.trace.db import Run
from ramify.trace.sources import run_folder

ELSEWHERE = 0.1
"""Recorded log-probs this far from those found now, in nats, are another model's or other settings'."""


WHY_NOT = {
    False: (
        "no fork of the bare prompt ends right",
        "the prompt is rendered with the model's chat template, that replies end within --max-tokens, and that the verifier "
        "accepts a right reply",
    ),
    True: ("every fork of the bare prompt ends right", "the verifier refuses a wrong reply"),
}
"""What a V_0 of 0 and of 1 says, and what to look at."""


class Forking(Config):
    """What every verb that forks takes."""

    model: str
    """builtin, hf:FOLDER or completions:NAME@URL?tokenizer=FOLDER"""
    verifier: str
    """exact, number, boxed, regex:PATTERN, cmd:./check.sh, FILE.py:FUNCTION or python:MODULE:FUNCTION of (text, trace), or
    another judge"""
    truncated: Literal["apart", "graded"] = "apart"
    """forks cut off by the limit of tokens: counted apart, or given to the verifier like the others"""
    seconds: float = Field(10.0, gt=0)
    """seconds the verifier may take per reply; a fork beyond that is missing, not wrong"""
    seed: int = 0
    """decides every sample"""


class ScanOptions(ScanConfig, Forking):
    """A scan, and how replies to problems are sampled."""

    BASIC = "model verifier seed n delta0 faithful budget_rollouts temperature max_tokens samples"
    temperature: float = Field(1.0, ge=0)
    """of replies sampled to --problems; forks are sampled as their stem was"""
    top_p: float = Field(1.0, gt=0, le=1)
    """of replies sampled to --problems"""
    top_k: int = Field(0, ge=0)
    """of replies sampled to --problems; 0 keeps all"""
    max_tokens: int = Field(1024, ge=1)
    """longest reply sampled to --problems"""
    samples: int = Field(1, ge=1)
    """replies sampled to each of --problems"""
    anyway: bool = False
    """scan also where forks of the bare prompts all end alike, right or wrong, which a first look at some of them finds"""


class AblateOptions(Forking):
    """An ablation."""

    k: tuple[int, ...] = (1, 8, 64)
    """the k of pass@k"""
    n: int = Field(64, ge=1)
    """fresh forks of each arm"""
    controls: tuple[Literal["random", "critical", "tangent"], ...] = CONTROLS
    """positions to cut at for comparison"""
    which: Literal["first", "all"] = "first"
    """the first cliff of each wrong trace, or all of them"""


class PairOptions(Forking):
    """Pairs for training."""

    classes: tuple[Literal["deterministic", "uncertain", "sampled_off", "other"], ...] = ("uncertain", "sampled_off")
    """classes of cliffs to use"""
    candidates: int = Field(10, ge=2)
    """likeliest tokens that are tried at a cliff"""
    n: int = Field(64, ge=1)
    """fresh forks after each"""
    hard: bool = False
    """only candidates at least as good as the position before"""
    compare: str = ""
    """another model with the same tokenizer: does it step off there, too?"""
    texts: bool = False
    """rows of texts (prompt, chosen, rejected), as trainers of preferences take them; tokens that are no whole text are left
    out"""


app = Verbs("cliffs", help="Find the tokens at which a chain of thought falls off, and confirm them.")
ScanPath = Annotated[Path, argument(metavar="SCAN", help="The run that `ramify cliffs scan` made.")]


def _forks(options: Forking, model: str = "") -> tuple[ReplyForks, Any]:
    """What forks, and the chat template of the model. Raises NeedsError on a chat endpoint before any request is sent."""
    judge = find_judge(options.verifier, takes=TAKES, seconds=options.seconds, what="verifier")
    found, tokenizer, template = find_sampled(model or options.model)
    eos = {*eos_of(found), *(() if template is None else template.stop_tokens)}
    return ReplyForks(found, tokenizer, judge, None, options.seed, truncated=options.truncated, eos=sorted(eos)), template


def _same_forks(source: ForkSource, options: Forking) -> tuple[ReplyForks, tuple[str, ...]]:
    """What forks, and a caveat where model or verifier differ from the scan's, since its cliffs are theirs."""
    forks, _ = _forks(options)
    now = forks.source()
    changed = [name for name in ("weights", "verifier", "truncated") if getattr(source, name) != getattr(now, name)]
    caveat = f"the scan was made with another {' and another '.join(changed)}: with {source.model} and {source.verifier}"
    return forks, (caveat,) if changed else ()


@dataclass(frozen=True)
class _Source:
    """What a scan's stems are: those of ``--traces``, or replies sampled to ``--problems``."""

    forks: ReplyForks
    config: ScanConfig
    samples: int
    given: list[TokenTrace] | None
    questions: Sequence[TokenProblem] = ()
    doubts: tuple[str, ...] = ()

    @classmethod
    def of(cls, options: ScanOptions, traces: Path | None, form: str | None, problems: Path | None, retokenise: bool) -> _Source:
        if (traces is None) == (problems is None):
            raise UserError("name either --traces or --problems")
        if form is not None and traces is None:
            raise UserError("--from is the format of --traces")
        config = ScanConfig(**{name: getattr(options, name) for name in ScanConfig.model_fields})
        own = traces is not None and is_token_file(traces, form)
        stems = read_traces(traces) if traces is not None and own and not retokenise else []  # before a model is loaded
        forks, template = _forks(options)
        if problems is not None:
            stops = () if template is None else template.stop_tokens
            forks.sampling = Sampling(options.temperature, options.top_p, options.top_k, options.max_tokens, tuple(stops))
            return cls(forks, config, options.samples, None, read_problems(problems, template))
        assert traces is not None
        doubts: tuple[str, ...] = ()
        if not stems:
            stems, doubts = _retold(traces, form, own, forks, template, options, retokenise)
        return cls(forks, config, options.samples, stems, doubts=doubts)

    def stems(self, run: Run | None, done: Mapping[str, Scanned], bar: Progress = SILENT) -> list[TokenTrace]:
        """Those that are not ``done`` in the run. Raises RamifyError where none could be sampled."""
        given = self.given
        if given is None:
            given = wait_for(self.forks.sample(self.questions, self.samples, done, bar))
            if not given and self.forks.first_failure:
                raise RamifyError(f"no reply could be sampled: {self.forks.first_failure}")
        return given if run is None else left_to_scan(run, done, given)


def _planned(
    options: ScanOptions, out: Path, traces: Path | None, form: str | None, problems: Path | None, retokenise: bool
) -> Mapping[str, Cell]:
    """What a scan takes at most."""
    source = _Source.of(options, traces, form, problems, retokenise)
    begun = time.monotonic()
    if not holds_run(out):
        stems = source.stems(None, {})
    else:
        with begin(out, source.config, source.forks.source(), {}, True) as run:
            stems = source.stems(run, {one.trace.id: one for one in read_run(run)[2]})
    took = time.monotonic() - begun
    costs = wait_for(cost_estimate(stems, source.forks, source.config))
    sampled = source.forks.sampler.spent().sampled
    if not sampled:
        return costs
    # a fork lies half a reply before its end on average
    tokens = costs["forks at the first look"] * costs["tokens"] / max(1, 2 * costs["traces"])
    return {
        **costs,
        "seconds of the first look, about": round(tokens * took / sampled),
        "seconds from": f"{plural(sampled, 'token')} sampled for this estimate",
    }


@app.study("scan", settings=ScanOptions, plan=_planned, unit="traces")
def scan_(
    options: ScanOptions,
    out: Annotated[Path, option(metavar="SCAN", help="Folder of the run to make; a scan that is in it already continues.")],
    bar: Progress,
    traces: Annotated[
        Path | None,
        option(
            metavar="SOURCE",
            help="Replies as token ids, JSON lines; or the folder of a run, or a file that can be imported (an inspect log, "
            "...): the last reply of each attempt.",
        ),
    ] = None,
    form: Form = None,
    problems: Annotated[
        Path | None, option(metavar="FILE", help="Problems to sample replies to: id, prompt, answer a line.")
    ] = None,
    retokenise: Annotated[
        bool, option("--retokenise", help="Encode traces that hold text only; the tokens may be others.")
    ] = False,
) -> CliffScan:
    """Measure the potential of replies by forking them, and find and confirm their cliffs.

    Exit code 3 when --budget-rollouts ended it.
    """
    source = _Source.of(options, traces, form, problems, retokenise)
    placed = getattr(source.forks.model, "placed", {})  # the run is continued in the dtype that it was sampled in
    named = {"model": options.model, "judge": options.verifier, "seconds": options.seconds, **placed}
    with begin(out, source.config, source.forks.source(), named) as run:
        done = {one.trace.id: one for one in read_run(run)[2]}
        found = _scan(run, source.stems(run, done, bar), done, source.forks, source.config, bar, options.anyway)
    return replace(found, out=str(out), caveats=(*source.doubts, *found.caveats))


def _scan(
    run: Run,
    stems: list[TokenTrace],
    done: dict[str, Scanned],
    forks: ReplyForks,
    config: ScanConfig,
    bar: Progress,
    anyway: bool,
) -> CliffScan:
    """Scan ``stems``, except those already ``done``, and report what was found.

    Raises UserError before the first of them where a look at bare prompts says that nothing can be found, unless ``anyway``."""
    if config.budget_rollouts is not None:
        config = config.model_copy(
            update={"budget_rollouts": max(1, config.budget_rollouts - sum(s.forks for s in done.values()))}
        )

    def on_trace(one: Scanned) -> None:
        keep(run, one, forks.tokenizer)
        done[one.trace.id] = one
        bar.at(len(done), f"{sum(len(s.kept) for s in corrected(list(done.values()), config))} cliffs")

    bar.begin(len(done) + len(stems), len(done), unit="traces")
    stems = wait_for(forks.judged(stems))
    if not anyway and not done and stems and len(ends := wait_for(first_look(stems, forks, config))) == 1:
        (right,) = ends
        how, check = WHY_NOT[right]
        raise UserError(
            f"nothing was scanned: V_0 is {right:d}, {how} at the first problems ({LOOKED} at most): check that {check}; "
            "--anyway scans all the same"
        )
    result = wait_for(scan(stems, forks, config, on_trace))
    scanned = corrected(list(done.values()), config)
    if scanned:
        conclude(run, scanned, config)
    found = replace(
        summary(scanned, config),
        scanned=len(result.scanned),
        left=len(result.left),
        failed=result.failed,
        spent=result.spent,
    )
    return replace(found, caveats=tuple(_caveats(found, config, "seeds" in forks.model.capabilities)))


def _caveats(found: CliffScan, config: ScanConfig, repeats: bool) -> Iterator[str]:
    """What a reader of the report has to know; ``repeats``: whether the model repeats a sample for its seed."""
    for name, why in found.failed.items():
        yield f"trace '{name}' was not scanned: {why}"
    if found.failed and not found.scanned:
        yield "no trace was scanned"
    if found.truncated and config.screen == "prob" and not config.faithful:
        yield (
            "some forks were truncated; the screen is exact for the chance to end, and right, not for that of the ones that end"
        )
    if not repeats:
        yield "the model does not repeat a sample for its seed, so the same command may find other counts"
    if found.gap > ELSEWHERE:
        yield (
            f"log-probs of the traces are up to {found.gap:.2g} nats from the model's: another model or other settings sampled "
            "them"
        )
    for rate, count in ((False, found.solved.none), (True, found.solved.all)):
        if count:
            what, check = WHY_NOT[rate]
            yield f"V_0 is {rate:d} for {count} of {found.traces} traces, {what}: check that {check}"
    if found.cut:
        yield (
            f"{found.cut} of {found.traces} traces were cut by their limit of tokens before they ended, and what they lack "
            "counts as wrong: raise --max-tokens"
        )
    if found.left:
        yield (
            f"{plural(found.left, 'trace')} not scanned, since --budget-rollouts leaves fewer forks than the next one needs: "
            "raise it to continue"
        )


def _retold(
    traces: Path, form: str | None, own: bool, forks: ReplyForks, template: Any, options: ScanOptions, retokenise: bool
) -> tuple[list[TokenTrace], tuple[str, ...]]:
    """Stems of a run or log, or of texts; what was left out of it, and whether texts were encoded."""
    doubts = list[str]()
    if own:
        stems = read_traces(traces, forks.tokenizer, template)
    else:
        sampling = Sampling(options.temperature, options.top_p, options.top_k, options.max_tokens)
        stems, left_out = read_stems(traces, form, forks.tokenizer, template, sampling, retokenise)
        for why, count in Counter(left_out.values()).most_common(3):
            doubts.append(f"{count} of {len(stems) + len(left_out)} attempts are left out: {why}")
    if retokenise:
        doubts.append("texts were encoded anew; where the model had sampled other tokens, what is found at them is not its own")
    return stems, tuple(doubts)


@app.verb("ablate", settings=AblateOptions, keeps="path")
def ablate_(options: AblateOptions, path: ScanPath) -> Ablation:
    """Resample wrong replies from before and from after their cliffs, with controls: pass@k of fresh forks."""
    _, source, scanned = read_scan(path)
    if not options.k or min(options.k) < 1 or max(options.k) > options.n:
        raise UserError(f"--k takes numbers from 1 to --n ({options.n}), not {','.join(map(str, options.k)) or 'none'}")
    forks, caveats = _same_forks(source, options)
    with progress("ablate", kept="nothing was written") as bar:
        records = wait_for(ablate(scanned, forks, options.n, options.controls, options.which, progress=bar))
    found = ablation_table(records, options.k)
    return replace(found, which=options.which, n=options.n, spent=forks.spent(), caveats=caveats)


@dataclass(frozen=True)
class PairsWritten(Result):
    """A file of pairs for training, and with another model what it makes of the cliffs."""

    out: Path
    cliffs: int
    pairs: int
    left_out: int
    """Cliffs of other classes, or of several tokens."""
    masses: tuple[CliffMass, ...]
    spent: ForksSpent
    compare: str = ""
    no_text: int = 0
    """Pairs of rows of texts that are left out: a token of them is part of a text."""

    def sections(self) -> Iterable[Section]:
        """One sentence, and the masses."""
        yield Section.of(
            "",
            f"{self.out} holds {plural(self.pairs, 'pair')} of {plural(self.cliffs, 'cliff')} ({self.left_out} of other classes, "
            f"or of several tokens, left out); {plural(self.spent.forward_tokens, 'token')} run.",
            table(["trace", "token", "cliff mass", f"under {self.compare}", "difference"], map(astuple, self.masses)),
        )


@app.verb("pairs", settings=PairOptions)
def pairs_(
    options: PairOptions,
    path: ScanPath,
    out: Annotated[Path, option(metavar="FILE", help="JSON lines to write.")],
) -> PairsWritten:
    """Pairs of single tokens for preference training: the cliff token, and each likely token that is no cliff there."""
    config, source, scanned = read_scan(path)
    forks, caveats = _same_forks(source, options)
    other = _forks(options, options.compare)[0] if options.compare else None
    if other is not None and other.tokenizer.hash != forks.tokenizer.hash:
        raise NeedsError(f"'{options.compare}' has another tokenizer than '{options.model}': their tokens cannot be compared")

    async def work() -> tuple[list[Examined], list[CliffMass]]:
        found = await examine(scanned, forks, config.test, options.candidates, options.n, options.classes)
        return found, [] if other is None else await mass_under(found, other)

    examined, masses = wait_for(work())
    rows = pairs(examined, options.hard)
    written = [codec.to_json(row) for row in rows]
    if options.texts:
        told = [_texts(row, forks.tokenizer.decode) for row in rows]
        written = [record for record in told if record is not None]
    write_whole(out, "".join(json.dumps(record) + "\n" for record in written))
    left_out = sum(len(one.kept) for one in scanned) - len(examined)
    spent = forks.spent()
    no_text = len(rows) - len(written)
    if no_text:
        caveats = (*caveats, f"{plural(no_text, 'pair')} left out, since a token of them is part of a text")
    kept = len(written)
    return PairsWritten(out, len(examined), kept, left_out, tuple(masses), spent, options.compare, no_text, caveats=caveats)


def _texts(row: TokenPair, decode: Callable[[Sequence[int]], str]) -> dict[str, Any] | None:
    """A pair as texts; None where a token is part of a letter, or the texts together are not what their tokens say."""
    prompt, *ends = (decode(list(ids)) for ids in (row.prompt_ids, (row.chosen_id,), (row.rejected_id,)))
    whole = [decode([*row.prompt_ids, token]) for token in (row.chosen_id, row.rejected_id)]
    if "\ufffd" in prompt + "".join(ends) or [prompt + end for end in ends] != whole:
        return None
    record = codec.to_json(row)
    del record["prompt_ids"]
    return {"prompt": prompt, "chosen": ends[0], "rejected": ends[1], "metadata": record}


@dataclass(frozen=True)
class TraceLine:
    """One trace of a scan."""

    trace: str
    right: bool | None
    tokens: int
    cliffs: int
    found: int
    """Candidates, confirmed or not."""
    forks: int


@dataclass(frozen=True)
class ScannedTraces(Result):
    """The traces of a scan."""

    verdict: str
    traces: tuple[TraceLine, ...]

    def sections(self) -> Iterable[Section]:
        """A row each, and the verdict."""
        head = ["trace", "right", "tokens", "cliffs", "found", "forks"]
        yield Section.of("", table(head, map(astuple, self.traces)), self.verdict)


@dataclass(frozen=True)
class CliffLine:
    """One candidate of a trace."""

    token: int
    text: str
    kind: str | None
    probability: float | None
    before: str
    behind: str
    drop: float
    fresh_drop: float | None
    status: str


@dataclass(frozen=True)
class TraceCurve(Result):
    """The potential over the text of a reply."""

    trace: str
    verdict: str
    right: bool | None
    svg: Path | None
    cliffs: tuple[CliffLine, ...]
    title: str = field(metadata={"json": False})
    curve: str = field(metadata={"json": False})
    """As a terminal shows it."""

    def sections(self) -> Iterable[Section]:
        """The curve, and the candidates."""
        head = ["token", "text", "class", "probability", "before", "behind", "drop", "fresh drop", "status"]
        rows = map(astuple, self.cliffs)
        yield Section.of(self.title, Verbatim(self.curve), table(head, rows), "" if self.cliffs else "No token is a candidate.")


@app.verb()
def show(
    path: Annotated[
        Path,
        argument(
            metavar="SCAN",
            help="The run that `ramify cliffs scan` made; or potentials that others measured, as JSON, JSON lines or CSV.",
        ),
    ],
    trace: Annotated[str, argument(metavar="TRACE", help="Id of a trace; without one they are listed.")] = "",
    svg: Annotated[Path | None, option(help="Write the picture to this file.")] = None,
    width: Annotated[int, option(min=20, help="Letters in a line.")] = 100,
    n: Annotated[
        int | None, option("--n", min=1, help="Of a file whose potentials are shares: forks after each; default: 64.")
    ] = None,
) -> ScannedTraces | KnownReplies | TraceCurve:
    """The potential over the text of a reply, with intervals, cliffs and rebounds; without TRACE a list of the traces.

    A file of potentials is tested as the paper does and corrected over all its tokens; no model is needed.
    """
    texts: Mapping[str, Sequence[str]] = {}
    if path.is_file() and run_folder(path) is None:
        config = ScanConfig(faithful=True)
        replies = read_known(path, 64 if n is None else n)
        scanned, texts = scanned_of(replies, config), {reply.id: reply.tokens for reply in replies}
        if not trace:
            return listed(scanned, config)
    else:
        only_for("show of a run", n=n)
        config, _, scanned = read_scan(path)
    if not trace:
        lines = [TraceLine(s.trace.id, s.trace.correct, s.trace.length, len(s.kept), len(s.cliffs), s.forks) for s in scanned]
        return ScannedTraces(sentence(scanned, config), tuple(lines))
    known = {one.trace.id: one for one in scanned}
    if trace not in known:
        raise UserError(f"{path} has no trace '{trace}' ({nearest(trace, known)})")
    one = known[trace]
    shown = picture(one, texts[trace] if trace in texts else token_texts(path, trace))
    if svg is not None:
        write_whole(svg, potential_svg(shown))
    cliffs = [
        CliffLine(
            c.t,
            shown.tokens[c.t - 1],
            c.facts.kind,
            c.facts.pi,
            f"{c.prev.k}/{c.prev.n}",
            f"{c.cur.k}/{c.cur.n}",
            c.drop,
            c.fresh_drop,
            c.status + (", suspect" if c.suspect else ""),
        )
        for c in one.cliffs
    ]
    curve = potential_text(shown, width)
    return TraceCurve(trace, sentence([one], config), one.trace.correct, svg, tuple(cliffs), shown.title, curve)
