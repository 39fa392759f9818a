"""A step of a run as a regression test (``ramify test RUN STEP``): does the agent ask what it asked then, how often does a model
take it, is that often enough, does another version differ there, and the pytest file that keeps it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ramify.base.errors import EXIT_DONE, EXIT_FAILED, InfrastructureError, RamifyError, UserError
from ramify.base.files import write_whole
from ramify.base.ids import json_hash, stable_hash
from ramify.base.plugins import own_path
from ramify.base.secrets import without_keys
from ramify.base.waiting import wait_for
from ramify.env.protocol import AnyEnvironment
from ramify.env.tools import declare
from ramify.jobs.junit import JunitCase
from ramify.jobs.reliability import TestedVersions, TestPlan, plan_rows
from ramify.render.numbers import percent, percent_interval
from ramify.render.result import CALL, Result, Section, Verbatim, table
from ramify.render.text import sanitize
from ramify.rollout.agent import Agent
from ramify.rollout.components import check_trust
from ramify.rollout.stored import WhoPlays, agent_of
from ramify.score.target import StepTarget
from ramify.stats.drops import Counts
from ramify.stats.rates import RateTest, runs_needed
from ramify.stats.repeats import OverTasks, compare_versions
from ramify.testing.repeated import Repeated, properties_of
from ramify.testing.steps import OUTCOME, RecordedStep
from ramify.trace.db import Run
from ramify.trace.graph import short
from ramify.trace.node import Node
from ramify.trace.view import views

MAKER = "test"
"""Kind of its journal entries."""
SAMPLES = 20
"""Samples of a step, where no rate is stated."""
AT_ONCE = 8


@dataclass(frozen=True, repr=False)
class TestedStep(Result):
    """What became of a step that was asked again."""

    run: str
    node: str
    """The step's reply."""
    action: str
    target: str
    says: str
    """What the agent does that takes the step, in words."""
    model: str
    same: bool | None
    """Whether the agent asks what it asked; None where it could not be run."""
    difference: str
    """How its first other request differs."""
    successes: int
    n: int
    failed: int
    """Samples without an outcome, which count as neither."""
    measures: Mapping[str, OverTasks]
    """``success``, pass^k and ``flip rate``, by name."""
    reasons: Mapping[str, int]
    """What was said instead, and how often."""
    verdict: str
    """``passed`` or ``failed`` where a rate was stated and it is settled."""
    sentence: str
    at_least: float | None
    wrote: str = field(default="", metadata=CALL)

    @property
    def part(self) -> str:
        """The run keeps the newest result of every step."""
        return f"step {self.node[:12]}"

    @property
    def exit_code(self) -> int:
        """That of a failure where the agent asks otherwise, or the stated rate is not shown."""
        wanted = self.at_least is not None and self.n + self.failed > 0
        return EXIT_FAILED if self.same is False or (wanted and self.verdict != "passed") else EXIT_DONE

    def junit(self) -> list[JunitCase]:
        """Two tests: it asks as recorded, and the model takes the step."""
        asks = JunitCase("asks as recorded", self.difference, "" if self.same is not None else "the agent could not be run")
        failed = self.sentence if self.at_least is not None and self.verdict != "passed" else ""
        told = properties_of(Counts(self.successes, self.n, self.failed), self.measures)
        live = JunitCase(f"the agent {self.says}", failed, "" if self.n + self.failed else "no model was asked", told)
        return [asks, replace(live, failure="") if live.skipped else live]

    def sections(self) -> Iterable[Section]:
        """What is asked, how often the step is taken, what was said instead."""
        asks = {True: "It asks what it asked when it was recorded.", False: "", None: "Whether it asks the same was not tried."}
        rows = [(name, percent(over.value), percent_interval(over.interval)) for name, over in self.measures.items()]
        head = f"{self.run}, step {self.node[:12]} (`{self.action}`); wanted: the agent {self.says}."
        live = f"Asked {self.model}: {self.sentence}" if self.n + self.failed else "No model was asked."
        diff = Verbatim(self.difference, "diff") if self.difference else None
        yield Section.of("", head, asks[self.same], diff, live, table(("", "share", "95 % interval"), rows) if rows else None)
        said = sorted(self.reasons.items(), key=lambda item: -item[1])[:10]
        if said:
            yield Section.of("instead", table(("said", "times"), said))
        if self.wrote:
            yield Section.of("", f"Written: {self.wrote}, and {Path(self.wrote).with_suffix('.json').name} beside it.")


@dataclass(frozen=True)
class StepQuestion:
    """What is asked about a step. ``n`` samples where no ``test`` says how many; 0 asks no model."""

    target: str | None = None
    test: RateTest | None = None
    n: int | None = None

    @property
    def most(self) -> int:
        """Samples at most."""
        if self.n is not None:
            return self.n
        return SAMPLES if self.test is None else self.test.most


def step_in(run: Run, where: str, scorer: str | None = None, target: str | None = None) -> tuple[Node, str | None]:
    """The reply that ``where`` names and the target by default: a node; or a tree's first reply, with its success. Raises
    UserError, also where an attempt through it failed and no target says what it should have done."""
    if where in [info.name for info in run.trees()]:
        tree = run.tree(where)
        replies = [node for node in tree.nodes.values() if node.role == "assistant" and node.opens]
        first = next((node for node in replies if not any(n.role == "assistant" for n in _above(run, node))), None)
        if first is None:
            raise UserError(f"tree '{where}' of {run.folder} has no reply of an agent")
        return first, target or OUTCOME
    node = run.node(run.find(where))
    if node.role != "assistant":
        raise UserError(f"node {node.id[:12]} is a {node.role} message; name a reply of the agent, or a tree")
    if target is None:
        through = [
            view
            for view in views(run, scorer=scorer)
            if not view.fork and any(part.id == node.id for part, _ in view.path.segments)
        ]
        if through and all(view.success is False for view in through):
            raise UserError(
                f"the attempt through node {node.id[:12]} failed, so doing the same again tests nothing: say with --expect what "
                "it should do (calls:TOOL, not:calls:TOOL, says:REGEX, a judge, outcome)"
            )
    return node, target


def _above(run: Run, node: Node) -> list[Node]:
    return [part for part, _ in run.tree(node.tree).path(node.id).segments[:-1]]


def recorded_in(run: Run, node: Node, who: WhoPlays) -> RecordedStep:
    """The step, with the environment that asks where the run or ``who`` names one."""
    env = who.env or (run.config.get("env") if isinstance(run.config.get("env"), str) else None)
    check_trust(run, who.trust or env is None)
    step = RecordedStep.of(run, node, env)
    if env is not None:
        declare(step.environment, who.effects)
    return step


@dataclass
class _Arm:
    """One version: its step, its model, and its samples so far."""

    run: Run
    step: RecordedStep
    agent: Agent
    target: StepTarget
    repeated: Repeated
    done: int = 0

    async def next(self, n: int, gate: asyncio.Semaphore) -> None:
        """``n`` samples more, in their order; what is stored is loaded."""
        known = {entry.key: entry.payload for entry in self.run.journal(MAKER)}
        weights = self.agent.model.identity.weights
        settings = self.agent.settings(self.agent.sampling)
        what = [self.step.asks.lines(), weights, settings, self.target.identity, self.step.seed]
        about = json_hash([*what, *([_said_by(self.step.agent)] if self.target.name == OUTCOME else [])])

        async def sampled(index: int) -> tuple[bool | None, str]:
            key = f"{about}/{index}"
            if key not in known:
                async with gate:
                    try:
                        yes, said = await self.step.sample(self.agent, self.target, index)
                    except InfrastructureError as error:
                        return None, str(error)
                self.run.log(MAKER, key, {"yes": yes, "said": short(said, 200)})
                self.run.commit()
                known[key] = {"yes": yes, "said": short(said, 200)}
            return known[key]["yes"], str(known[key]["said"])

        for yes, said in await asyncio.gather(*(sampled(self.done + i) for i in range(n))):
            self.repeated.add(yes, said or "(nothing)")
        self.done += n


def _said_by(agent: AnyEnvironment | None) -> list[str]:
    """What decides how an attempt goes on after the step: the name of the environment, and what the file says that it is in."""
    named = own_path(agent) if isinstance(agent, str) else None
    file = Path(named[1].rpartition(":")[0]) if named else Path()
    return [str(agent), stable_hash(file.read_bytes()) if file.is_file() else ""]


def asked_again(
    run: Run,
    node: Node,
    question: StepQuestion,
    who: WhoPlays,
    on_sample: Callable[[int], object] = lambda done: None,
) -> TestedStep:
    """Ask a step of a run that is open for writing again; samples are stored in it. Raises UserError."""
    step = recorded_in(run, node, who)
    same, difference, caveats = None, "", list[str]()
    if step.agent is not None:
        try:
            difference = step.difference()
            same = not difference
        except InfrastructureError as error:
            caveats.append(f"the agent could not be run again, so the recorded request is asked: {error}")
            step = replace(step, agent=None)
    repeated = Repeated(question.test if question.n is None else None)
    target, model = step.target(question.target), ""
    if question.most and not step.ends_before:
        arm = _Arm(run, step, _agent(run, node, who), target, repeated)
        model = without_keys(str(arm.agent.model.identity.name))

        async def go() -> None:
            gate = asyncio.Semaphore(AT_ONCE)
            while not repeated.over and arm.done < question.most:
                ahead = question.test.ahead(repeated.counts) if question.test and question.n is None else AT_ONCE
                await arm.next(min(ahead, question.most - arm.done), gate)
                on_sample(arm.done)

        wait_for(go())
        if not repeated.counts.n:
            raise RamifyError(f"every sample failed, the last at {repeated.broken}")
        if repeated.counts.missing:
            caveats.append(f"samples without an outcome, the last because of {repeated.broken}")
    return TestedStep(
        run=str(run.folder),
        node=node.id,
        action=short(step.message.spoken(), 200),
        target=target.name,
        says=target.says,
        model=model,
        same=same,
        difference=difference,
        successes=repeated.counts.k,
        n=repeated.counts.n,
        failed=repeated.counts.missing,
        measures=repeated.measures,
        reasons=dict(repeated.reasons),
        verdict=repeated.settled or "",
        sentence=repeated.sentence,
        at_least=None if question.test is None else question.test.at_least,
        caveats=tuple(caveats),
    )


def _agent(run: Run, node: Node, who: WhoPlays) -> Agent:
    spec = run.config.get("model")
    if who.model is None and not isinstance(spec, str):
        raise UserError(f"{run.folder} names no model that could be asked: name one (--model), or ask none (--n 0)")
    return agent_of(run, node, who.model, spec)


def compared_step(
    run: Run,
    other: Run,
    node: Node,
    question: StepQuestion,
    who: WhoPlays,
    difference: float,
    on_sample: Callable[[int], object] = lambda done: None,
) -> TestedVersions:
    """The agent of ``run`` against that of ``other`` at one step, sampled in turns: each asks what its own environment, where it
    names one, asks at that step today. Raises UserError where the other run names no model."""
    first = next(
        (reply for info in other.trees() for reply in other.tree(info.name).nodes.values() if reply.role == "assistant"), None
    )
    if first is None:
        raise UserError(f"{other.folder} holds no reply of an agent")
    arms = []
    for opened, at, by in ((other, first, WhoPlays(trust=who.trust, effects=who.effects)), (run, node, who)):
        env = by.env or opened.config.get("env")
        step = recorded_in(run, node, replace(by, env=env if isinstance(env, str) else who.env))
        check_trust(opened, by.trust)
        arms.append(_Arm(run, step, _agent(opened, at, by), step.target(question.target), Repeated()))

    async def go() -> None:
        gate = asyncio.Semaphore(AT_ONCE)
        while arms[0].done < question.most and not any(arm.repeated.over for arm in arms):
            await asyncio.gather(*(arm.next(min(AT_ONCE // 2, question.most - arm.done), gate) for arm in arms))
            on_sample(sum(arm.done for arm in arms))

    wait_for(go())
    counts = [arm.repeated.counts for arm in arms]
    if not all(each.n for each in counts):
        raise RamifyError(f"every sample failed, the last at {next(arm.repeated.broken for arm in arms if arm.repeated.broken)}")
    name = f"step {node.id[:12]}"
    versus = compare_versions({name: counts[0]}, {name: counts[1]})
    row = versus.tasks[name]
    failed = sum(each.missing for each in counts)
    return TestedVersions(
        first=str(other.folder),
        second=str(run.folder),
        difference=versus.difference,
        interval=row.difference_interval,
        p=versus.p,
        differing=versus.differing,
        tasks=versus.tasks,
        wanted=difference,
        needed=plan_rows([counts[0] + counts[1]], [difference])[0].each,
        of="samples",
        caveats=(f"{failed} samples without an outcome count as neither",) if failed else (),
    )


def planned_step(node: Node, run: Run, test: RateTest | None) -> TestPlan:
    """How many samples of a step it takes; of a step whose samples are not known as of one that is taken half of the time, which
    takes most."""
    rate = None
    if test is not None:
        fixed = runs_needed(test.at_least, test.usual, test.confidence, test.power)
        mean = test.runs(test.usual)
        rate = {"at_least": test.at_least, "usual": test.usual, "mean": mean, "most": test.most, "fixed": fixed}
    return TestPlan(str(run.folder), f"step {node.id[:12]}", tuple(plan_rows([Counts(1, 2)])), rate)


# -- the file

TEST = '''"""{what}

Written by `ramify test`; edit it as you like. The recorded step is {data} beside it: move the two together.

    pytest {file}                                   # asks as recorded: no model
    pytest {file} --ramify-live --ramify-model M    # asks the model M (default: {model}) until it is settled
"""

import pytest

from ramify.testing import recorded_step

STEP = recorded_step(__file__{agent})

{recorded}
@pytest.mark.ramify_rate(at_least={at_least:g}, usual={usual:g}, confidence={confidence:g})
def test_{name}(ramify_live):
    """At a rate of {usual:g} it passes {power:.0%} of the time, after {runs:.0f} runs in the mean and {most} at most; at
    {at_least:g} or less it passes {error:.0%} of the time at most."""
    ramify_live.expect(STEP, {target!r})
'''
RECORDED = """
def test_asks_as_recorded():
    STEP.asks_as_recorded()

"""
UNKNOWN = """
# Which agent asks is not on record. With agent=ramify.agent(...), or agent="FILE.py:NAME" of one, above:
#
# def test_asks_as_recorded():
#     STEP.asks_as_recorded()

"""


def write_test(step: RecordedStep, node: Node, run: Run, target: StepTarget, test: RateTest, path: Path) -> None:
    """Write the test ``path`` and its data beside it. Raises UserError where it names another kind of file, or one is there."""
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise UserError(f"--write names a Python file that can be imported, as tests/test_step.py, not {path}")
    if not path.parent.is_dir():
        raise UserError(f"cannot write {path}: there is no folder {path.parent}")
    words = "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in target.name.lower())
    agent = f", agent={step.agent!r}" if step.agent is not None else ""
    text = TEST.format(
        what=_in_docstring(f"Step {node.id[:12]} of {Path(str(run.folder)).name}: the agent {target.says}."),
        data=path.with_suffix(".json").name,
        file=path.name,
        model=_in_docstring(without_keys(step.model)) or "none",
        agent=agent,
        recorded=RECORDED if agent else UNKNOWN,
        name="_".join(filter(None, words.split("_"))) or "step",
        target=target.name,
        at_least=test.at_least,
        usual=test.usual,
        confidence=test.confidence,
        power=test.power,
        runs=test.runs(test.usual),
        most=test.most,
        error=1 - test.confidence,
    )
    data = replace(step, model=without_keys(step.model)).to_text()
    for file, written in ((path, text), (path.with_suffix(".json"), data)):
        if file.exists() and file.read_text(encoding="utf-8", errors="replace") != written:
            raise UserError(f"{file} is there already and says something else: choose another name, or remove it")
    write_whole(path.with_suffix(".json"), data)
    write_whole(path, text)


def _in_docstring(text: str) -> str:
    """``text`` of a run, which others may have written, as it can stand between three quotes."""
    return sanitize(text, flatten=True).replace("\\", "\\\\").replace('"', "'")
