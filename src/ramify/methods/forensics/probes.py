"""Questions to the agent, and positive controls: the same tests on an agent known to have the property [3.4, 5 to 7 and 14]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ramify.base.errors import UserError
from ramify.base.ids import stable_hash
from ramify.base.progress import gathered
from ramify.base.waiting import wait_for
from ramify.env.protocol import Env, Environment, TaskSet
from ramify.methods.forensics import record
from ramify.methods.forensics.case import pieces, varied
from ramify.methods.forensics.experiment import Control, TestResult
from ramify.methods.forensics.found import AskedQuestion
from ramify.methods.forensics.judges import by_model, by_pattern, says
from ramify.methods.forensics.run import Case
from ramify.methods.forensics.study import Played
from ramify.model.protocol import Model
from ramify.score.judge import Judge
from ramify.stats.intervals import Proportion
from ramify.trace.message import Message


def ask(
    case: Case, name: str, question: str, answer: Judge, *, run: Played | None = None, n: int = 50, turn: int | None = None
) -> AskedQuestion:
    """Ask the agent a question, and count answers of a kind. The environment is not touched.

    Without ``run``: in the third person, a fresh conversation that quotes the task. With a run: a follow-up after its end, or,
    with ``turn``, an interruption before its reply ``turn`` (a resumption note). What an agent says of itself is no cause: the
    result is a rate of answers, to be compared with the behaviour and never to replace it.
    Raises UserError where the run has no such reply.
    """
    if run is None:
        shown = pieces(case.environment, varied(next(iter(case.task_set)), case.config, {}))
        rendered = "\n\n".join(f"[{piece}]\n{text}" for piece, text in shown.items() if text)
        situation = f"Another agent is in the following situation.\n\n<situation>\n{rendered}\n</situation>"
        prompt = [Message("user", f"{situation}\n\n{question}")]
    else:
        history = list(case.messages_of(run))
        starts = [i for i, message in enumerate(history) if message.role == "assistant"]
        if turn is not None and not 0 <= turn < len(starts):
            raise UserError(f"the run that ends at {run.leaf} has replies 0 to {len(starts) - 1}, not {turn}")
        before = history[: len(history) if turn is None else starts[turn]]
        prompt = [*(Message(m.role, m.text) for m in before), Message("user", question)]

    async def answers() -> tuple[list[str], list[bool]]:
        texts = await gathered((case.ask(prompt, ("ask", name, question), i, "ask") for i in range(n)), case.progress)
        return texts, [await says(answer, text, case.ledger) for text in texts]

    case.progress.begin(n, 0, "ask", "answers")
    texts, hits = wait_for(answers())
    found = AskedQuestion(name, question, Proportion.of(sum(hits), n), tuple(texts[:5]))
    record.keep(case.run, record.QUESTIONS, found)
    return found


def says_of(case: Case, what: str, judge: bool) -> Judge:
    """A class of texts: a pattern, or a description that the case's judge decides. Raises NeedsError without a judge."""
    return by_model(*case.asking(), what) if judge else by_pattern(what)


def control(
    case: Case, test: Callable[[Case], Sequence[TestResult]], model: str | Model = "", instruct: str = "", replace: bool = False
) -> dict[str, Control]:
    """Make a test on an agent known to have the property: another model,
    or the case's own with an instruction to have it. The controls are kept.

    The rates found there, at the lower end of their effect, give its power at its own size, returned here, and at that of each
    test it is put to; one that did not fire has none. Its false alarms are those of its level. A control that fired gives way to
    more runs of the same agent, to another only with ``replace``.
    Raises UserError where it would without, and where neither or both agents are named.
    """
    if bool(model) == bool(instruct):
        raise UserError("a positive control is another model, or an instruction to the same one")
    if instruct:
        name = f"instructed-{stable_hash(instruct)[:6]}"
        known = case.acting(name, environment=Instructed(case.environment, instruct))
    else:
        agent = case.agent_of(model)
        name = f"organism-{agent.model.identity.weights[:6]}"
        known = case.acting(name, agent)
    found, kept = {r.name: Control.of(r, name) for r in test(known)}, record.controls(case.run)
    for test_name, one in found.items():
        old = kept.get(test_name)
        if old is not None and old.fired and not replace and (old.source, True) != (one.source, one.n >= old.n):
            raise UserError(
                f"{case.run.folder} has a control of '{test_name}' that fired ({old.source}, {old.n} runs, power "
                f"{old.power:.2f}); to put the new one ({one.source}, {one.n} runs, power {one.power:.2f}) in its place, say "
                "--replace"
            )
    record.keep_controls(case.run, found)
    return found


class Instructed:
    """An environment with one more instruction in the system message, after its own."""

    name: str
    task_set: Callable[..., TaskSet]

    def __init__(self, inner: Environment, text: str) -> None:
        self.inner, self.text = inner, text

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def make(self) -> Env:
        """An episode."""
        env = self.inner.make()
        env.system = f"{env.system}\n{self.text}" if env.system else self.text
        return env
