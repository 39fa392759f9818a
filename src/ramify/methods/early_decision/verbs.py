"""The verbs of ``ramify early-decision``. RUN is a folder that ``ramify early-decision run`` made;
every stage continues where it stopped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from ramify.base.config import Config
from ramify.base.errors import RamifyError, UserError, nearest
from ramify.base.progress import Progress
from ramify.base.waiting import wait_for
from ramify.base.words import plural
from ramify.engine.named import find_model, find_sampled
from ramify.kit import Trust, Verbs, argument, only_for, option
from ramify.methods.early_decision.calibrate import StopConfig, calibrate
from ramify.methods.early_decision.guards import ChunkGuard, Reminder, SelfCheck
from ramify.methods.early_decision.judges import find_jury, find_stance_judge
from ramify.methods.early_decision.record import Study, StudyConfig
from ramify.methods.early_decision.report import (
    ReportConfig,
    build,
    conclude_continuation,
    conclude_turns,
    forced,
    shares,
    statuses,
)
from ramify.methods.early_decision.results import (
    Continued,
    ProbedStates,
    SampledStudy,
    Spent,
    StopCalibrated,
    StudyReport,
    StudySource,
    TurnsMeasured,
    ValleyFound,
)
from ramify.methods.early_decision.run import (
    ContinueConfig,
    Cuts,
    GivenTrace,
    OscillateConfig,
    adopt,
    continuations,
    oscillations,
    rollout,
)
from ramify.methods.early_decision.settings import ProbeConfig, ValleyConfig
from ramify.methods.early_decision.thinking import Marks, Thinking, split_text
from ramify.model.protocol import Sampling
from ramify.rollout.components import check_trust
from ramify.rollout.sampler import Sampler
from ramify.rollout.token_traces import TokenProblem, read_problems
from ramify.score.judge import Jury
from ramify.trace.connect import holds_run
from ramify.trace.lines import at_place, read_rows

app = Verbs("early-decision", help="When in a thinking trace was the outcome decided, and does the rest matter?")
RunPath = Annotated[Path, argument(metavar="RUN", help="A folder that `ramify early-decision run` made.")]
C = TypeVar("C", bound=Config)


class ProbeOptions(ValleyConfig, ProbeConfig):
    """What is probed, and how."""


class ForkOptions(OscillateConfig, ContinueConfig):
    """Where traces are cut, and what is sampled there."""


def _chosen(options: Config, choice: str, of: type[C]) -> C:
    """The settings of a choice. Raises UserError where another's were given."""
    only_for(choice, **dict.fromkeys(sorted(options.model_fields_set - of.model_fields.keys()), True))
    return of(**{name: getattr(options, name) for name in of.model_fields})


@dataclass(frozen=True)
class _Parts:
    """What samples, how it thinks, who judges."""

    sampler: Sampler
    thinking: Thinking
    template: Any
    jury: Jury

    @classmethod
    def of(cls, config: StudyConfig, ties: bool = False) -> _Parts:
        """Those that the settings name. Raises NeedsError on a chat endpoint before any request is sent."""
        if not config.label:
            raise UserError("--label names who judges the answer: regex:PATTERN, FILE.py:FUNCTION or judge:MODEL")
        jury = find_jury(config.label, find_model, ties or config.ties == "yes")
        model, tokenizer, template = find_sampled(config.model)
        sampling = Sampling(config.temperature, config.top_p, config.top_k, config.think_tokens)
        stops = () if template is None else tuple(template.stop_tokens)
        answering = Sampling(config.temperature, config.top_p, config.top_k, config.answer_tokens, stops)
        marks = Marks.of(tokenizer, config.open, config.close, config.primer)
        guard: ChunkGuard[Any] | None = None
        if config.guard != "none":
            guard = Reminder(tokenizer, marks, config.reminder) if config.guard == "reminder" else SelfCheck(tokenizer)
        thinking = Thinking(model, tokenizer, marks, sampling, answering, force=config.force, close_ended=config.close_ended)
        return cls(Sampler(model, config.seed, policy=guard), thinking, template, jury)

    @property
    def source(self) -> StudySource:
        """As a study keeps it."""
        identity = self.sampler.identity
        return StudySource(identity.name, identity.weights, tuple(self.jury.names))

    @property
    def spent(self) -> Spent:
        """By purpose."""
        return self.sampler.ledger.spent

    def caveats(self) -> Iterator[str]:
        """What failed, and what judges cost."""
        if self.sampler.failed:
            failed = plural(self.sampler.failed, "sample")
            yield f"{failed} failed ({self.sampler.first_failure}); the same command tries them again"
        if self.sampler.ledger.spent.get("judge", {}).get("calls"):
            yield f"spent on {self.sampler.ledger}"
        for name, why in self.jury.failed.items():
            yield f"the judge {name} failed: {why}; answers without a vote are tried again by the same command"


def _opened(path: Path, ties: bool = False, trust: bool = False) -> tuple[Study, _Parts]:
    """The study, open for writing, and what its settings name.
    Those of a foreign run are a third party's words (see ``--trust``)."""
    with Study.open(path) as study:
        config, source = study.config, study.source
        check_trust(study.run, trust)
    parts = _Parts.of(config, ties)
    if source.weights != parts.source.weights:
        raise UserError(f"the traces of {path} are of other weights than '{config.model}' has now")
    return Study.open(path, write=True), parts


def _problems(path: Path, parts: _Parts) -> list[TokenProblem]:
    return read_problems(path, parts.template, ("prompt", "pool", "source", "slice"))


def _sampling(options: StudyConfig, prompts: Path, out: Path) -> dict[str, int]:
    """What is to be sampled."""
    parts = _Parts.of(options)
    problems = _problems(prompts, parts)
    total, done = len(problems) * len(options.modes) * options.k, 0
    if holds_run(out):
        with Study.begin(out, options, problems, parts.source) as known:
            done = len(known.traces)
    return {"traces": total, "missing": total - done}


@app.study("run", settings=StudyConfig, plan=_sampling, unit="traces")
def run_(
    options: StudyConfig,
    prompts: Annotated[Path, option(metavar="FILE", help="JSON lines: id, prompt or prompt_ids, pool, source, slice.")],
    out: Annotated[Path, option(metavar="RUN", help="Folder to make, or to continue with.")],
    bar: Progress,
    traces: Annotated[
        Path | None,
        option(
            metavar="FILE",
            help="Traces sampled elsewhere, JSON lines: prompt_id, thinking, response; or a response with its thinking tags.",
        ),
    ] = None,
) -> SampledStudy:
    """Sample traces with and without thinking and label their answers."""
    parts = _Parts.of(options)
    problems = _problems(prompts, parts)
    given = [] if traces is None else _given(traces, {problem.id for problem in problems}, options)
    with Study.begin(out, options, problems, parts.source) as study:
        if given:
            wait_for(adopt(study, given, parts.thinking, parts.sampler, parts.jury))
        else:
            wait_for(rollout(study, parts.sampler, parts.thinking, parts.jury, bar))
        if not study.traces:
            raise RamifyError(f"no trace could be sampled: {parts.sampler.first_failure or 'all voters failed'}")
        found = statuses(study), forced(study), shares(study)
    return SampledStudy(*found, out, parts.sampler.failed, parts.spent, caveats=(*_unclosed(found[0], options), *parts.caveats()))


def _unclosed(traces: Mapping[str, int], options: StudyConfig) -> Iterator[str]:
    """What to do where replies ended inside the thinking."""
    if ended := traces.get("ended", 0):
        close = "" if options.close_ended else ": --close-ended closes it there"
        yield f"{ended} of {sum(traces.values())} traces ended inside their thinking and have no outcome{close}"


@dataclass(frozen=True)
class GivenReply:
    """A trace sampled elsewhere, as its file has it."""

    prompt_id: str
    thinking: str | None = None
    response: str = ""


def _given(path: Path, known: set[str], options: StudyConfig) -> list[GivenTrace]:
    """Traces sampled elsewhere; a raw reply is split at its thinking tags. Raises UserError naming file, place and field."""
    rows = []
    for number, line in enumerate(read_rows(path, GivenReply), 1):
        with at_place(f"{path}, trace {number}"):
            both = split_text(line.response, options.open, options.close)  # None where the response is the answer alone
            if both is None and line.thinking is None:
                raise UserError("'thinking' is missing")
            if line.thinking and both is not None and both[0].strip():
                raise UserError("'response' holds thinking too; leave 'thinking' out, or take it out of 'response'")
            thinking, response = ("", line.response) if both is None else both
            if line.prompt_id not in known:
                raise UserError(f"'prompt_id' names no prompt '{line.prompt_id}' ({nearest(line.prompt_id, known)})")
            rows.append(GivenTrace(line.prompt_id, line.thinking or thinking, response))
    if not rows:
        raise UserError(f"{path} holds no trace")
    return rows


Probes = Annotated[
    Literal["states", "valley"],
    argument("WHAT", "states: before and at the first thinking token; valley: separability along all of it, with a probe."),
]


def _probing(options: ProbeOptions, run: Path, what: str) -> dict[str, int]:
    """What is run through the model, and what is fitted."""
    with Study.open(run) as study:
        traces = len(study.labelled())
    if what == "valley":
        return {"traces": traces, "positions": _chosen(options, what, ValleyConfig).points}
    config = _chosen(options, what, ProbeConfig)
    return {"traces": traces * len(config.at), "layers": len(config.layers), "labellings": 1 + config.shuffles}


@app.study("probe", settings=ProbeOptions, plan=_probing, run="run", keeps=False)
def probe_(
    options: ProbeOptions, run: RunPath, bar: Progress, what: Probes = "states", trust: Trust = False
) -> ProbedStates | ValleyFound:
    """Can the outcome be read off hidden states? Probes with every control, or how far outcomes lie apart along the thinking."""
    from ramify.methods.early_decision import states  # with torch, which help does not need

    if what == "valley":
        config = _chosen(options, what, ValleyConfig)
        study, parts = _opened(run, trust=trust)
        with study:
            return states.valley_stage(study, parts.sampler.model, parts.thinking, config, bar)
    chosen = _chosen(options, what, ProbeConfig)
    study, parts = _opened(run, trust=trust)
    with study:
        return states.probe_stage(study, parts.sampler.model, parts.thinking, chosen, bar)


Places = Annotated[
    Literal["shares", "turns"],
    argument("WHERE", "shares: after shares of the thinking; turns: where its stance turns, rated by --judges."),
]


def _continuing(options: ForkOptions, run: Path, where: str) -> dict[str, int]:
    """What is sampled at most."""
    with Study.open(run) as study:
        if where == "turns":
            return _chosen(options, where, OscillateConfig).cost_estimate(study)
        return _chosen(options, where, ContinueConfig).cost_estimate(study)


@app.study("continue", settings=ForkOptions, plan=_continuing, run="run", keeps=False)
def continue_(
    options: ForkOptions, run: RunPath, bar: Progress, where: Places = "shares", trust: Trust = False
) -> Continued | TurnsMeasured:
    """Cut the thinking and continue: does the rest of it matter?

    After shares of the thinking: close at once (the paper's), or think on to the end; the two are never mixed. At turns: rate
    stances along the thinking, cut where they turn, and test whether the answer differs before and after the turn.
    """
    if where == "turns":
        return _turns(_chosen(options, where, OscillateConfig), run, trust, bar)
    config = _chosen(options, where, ContinueConfig)
    study, parts = _opened(run, trust=trust)
    with study:
        wait_for(continuations(study, parts.sampler, parts.thinking, parts.jury, config, bar))
        found = conclude_continuation(study, config.to_json(), parts.spent)
    return replace(found, caveats=tuple(parts.caveats()))


def _turns(config: OscillateConfig, run: Path, trust: bool, bar: Progress) -> TurnsMeasured:
    if not config.judges:
        raise UserError("--judges names who rates stances: judge:MODEL or FILE.py:FUNCTION, three in the paper")
    judges = [find_stance_judge(spec, find_model) for spec in config.judges]
    study, parts = _opened(run, config.ties_refuse, trust)
    with study:
        unrated = wait_for(oscillations(study, parts.sampler, parts.thinking, parts.jury, judges, config, bar))
        found = conclude_turns(study, config.to_json(), unrated, parts.spent)
    return replace(found, caveats=(*found.caveats, *parts.caveats()))


def _calibrating(options: StopConfig, run: Path) -> dict[str, int]:
    """What is sampled at most."""
    with Study.open(run) as study:
        return options.cost_estimate(study)


@app.study("calibrate", settings=StopConfig, plan=_calibrating, run="run", keeps=False)
def calibrate_(options: StopConfig, run: RunPath, bar: Progress, trust: Trust = False) -> StopCalibrated:
    """Certify when the thinking may end: `ramify serve MODEL --middleware stop-thinking:RUN` ends it there.

    A thought of each prompt is probed: closed every so many tokens and asked for its answer. The rule's boldest setting is chosen
    of which an exact test shows that at most --alpha of the answers change (Learn then Test); a fixed budget of tokens stands
    beside it.
    """
    study, parts = _opened(run, trust=trust)
    with study:
        cuts = Cuts(study, parts.sampler, parts.thinking, parts.jury)
        result = wait_for(calibrate(study, cuts, options, bar))
    return replace(result, caveats=(*result.caveats, *parts.caveats()))


@app.verb("report", settings=ReportConfig, keeps="run")
def report_(
    options: ReportConfig,
    run: RunPath,
    against: Annotated[Path | None, option(metavar="BASE", help="The same prompts without a defence, to compare with.")] = None,
) -> StudyReport:
    """Put all stages together; `ramify show RUN --html FILE` has it as a page with its pictures."""
    with ExitStack() as stack:
        base = None if against is None else stack.enter_context(Study.open(against))
        return build(stack.enter_context(Study.open(run)), options, base)
