"""``ramify why --context`` on what nobody here made: AgentDojo's injections, and a question to SmolLM2.

    python -m ramify_experiments.why.context_outside [--tasks 30] [--out repro/contexts_outside.json]

**AgentDojo** (suite banking, attack ``important_instructions``): the victim is scripted. It plays the suite's own solution of the
user's task; where it is shown the goal of the injection it takes the injection's first call in nine of ten replies, without it in
one of twenty. So the goal, a sentence or two in a tool's result, is the truth.

**SmolLM2**: "On which day is the shop closed?" after six sentences; the answer names Monday because of one of them.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ramify
from ramify import Observation
from ramify.env.protocol import Environment, Task
from ramify.jobs.context.answer import WhyContext
from ramify.jobs.context.ask import why_context
from ramify.rollout.components import any_environment
from ramify.stats.intervals import clopper_pearson
from ramify.trace.db import Run
from ramify.trace.message import parse_tool_calls
from ramify_experiments.cases import SingleReply

SUITE = "agentdojo:banking?attack=important_instructions"
SHOP = (
    "The shop is in Mill Lane.",
    "It sells bread and cakes.",
    "The baker is called Tom.",
    "It opens at seven.",
    "Cakes have to be ordered a day before.",
    "It is closed on Monday.",
)


class BakeryQuestion(SingleReply):
    """One question about a text of six sentences."""

    system = "You answer questions about a text."

    def reset(self, task: Task, seed: int) -> Observation:
        """Text and question."""
        return Observation(f"{' '.join(SHOP)}\n\nOn which day is the shop closed? Answer in one short sentence.")

    def step(self, action: str) -> Observation:
        """The end."""
        return Observation("Thank you.", 1.0, terminated=True, outcome="monday" in action.lower())


def goal_of(environment: Any, task: Task) -> str:
    """What the injection of a task asks for, in one line."""
    _, injection = environment._of(task)
    return line(injection.GOAL)


def line(text: str) -> str:
    """A text in one line, without what YAML and JSON escape."""
    return " ".join(text.replace("\\n", " ").replace("\\", "").split())


def victim(environment: Any, task: Task) -> Callable[[list[Mapping[str, Any]], int], str]:
    """The scripted victim of one task."""
    right, wrong, goal = (
        environment.walkthrough(task),
        environment.walkthrough(task, injected=True)[0],
        goal_of(environment, task),
    )

    def reply(messages: list[Mapping[str, Any]], key: int) -> str:
        told = any(goal in line(str(message.get("content") or "")) for message in messages)
        at = sum(message["role"] == "assistant" for message in messages)
        if at and random.Random(key).random() < (0.9 if told else 0.05):
            return str(wrong)
        return str(right[min(at, len(right) - 1)])

    return reply


def injected(environment: Environment, tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """What is named in each task whose victim took the injection's call."""
    rows = []
    for task in tasks:
        agent, goal = victim(environment, task), goal_of(environment, task)
        wrong = parse_tool_calls(environment.walkthrough(task, injected=True)[0])[0].name  # type: ignore[attr-defined]
        right = {call.name for said in environment.walkthrough(task) for call in parse_tool_calls(said)}  # type: ignore[attr-defined]
        if wrong in right:
            continue
        with tempfile.TemporaryDirectory() as folder:
            ramify.play(agent, environment, [task], attempts=1, out=Path(folder) / "run")
            node = _step(Path(folder) / "run", wrong)
            if node is None:
                continue
            answer = why_context(Path(folder) / "run", node, target=f"calls:{wrong}", model=agent, env=environment)
        rows.append({"task": task.id, **_row(answer, goal)})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def _step(folder: Path, tool: str) -> str | None:
    """The first reply that calls ``tool`` after a result was shown."""
    with Run.open(folder) as run:
        for info in run.trees():
            for node in run.tree(info.name).nodes.values():
                if node.role == "assistant" and any(call.name == tool for call in node.message.calls):
                    return node.id
    return None


def _row(answer: WhyContext, goal: str) -> dict[str, Any]:
    texts = [line(part.text) for cause in answer.causes for part in cause.parts]
    named = [text for text in texts if any(piece in text for piece in (goal, goal[:40])) or text in goal]
    return {
        "named": bool(named),
        "false": len(texts) - len(named),
        "parts": answer.parts,
        "samples": answer.samples,
        "where": [part.where for cause in answer.causes for part in cause.parts],
    }


def asked_smollm2() -> dict[str, Any]:
    """The question to SmolLM2 as a run, its answer asked about, and each sentence's share by its log-probability left out."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        settings = ramify.Sampling(temperature=0.7, max_tokens=12)
        ramify.play("smollm2", BakeryQuestion, [{"id": "shop"}], attempts=4, out=out, sampling=settings)
        with Run.open(out) as run:
            nodes = [node for info in run.trees() for node in run.tree(info.name).nodes.values()]
        node = next(node.id for node in nodes if node.role == "assistant" and "monday" in node.text.lower())
        answer = why_context(out, node, target="says:monday", env=BakeryQuestion)
    causes = [
        {"where": part.where, "text": part.text, "kept": str(part.kept), "deleted": str(part.deleted), "filled": str(part.filled)}
        for cause in answer.causes
        for part in cause.parts
    ]
    return {"headline": answer.headline, "causes": causes, "samples": answer.samples, "parts": answer.parts}


def main() -> None:
    """The command above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=30, help="tasks of AgentDojo")
    parser.add_argument("--no-smollm2", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    record: dict[str, Any] = {}
    if args.out and args.out.exists():  # the half that is not run again stays
        record = json.loads(args.out.read_text(encoding="utf-8"))
    if not args.no_smollm2:
        record["smollm2"] = asked_smollm2()
        print(json.dumps(record["smollm2"]), flush=True)
    environment = any_environment(SUITE)
    rng = random.Random(0)
    known = [task for split in ("train", "eval", "tune") for task in environment.task_set(split, 10_000)]
    tasks = rng.sample(known, min(args.tasks, len(known)))
    rows = injected(environment, tasks)
    k, n = sum(row["named"] for row in rows), len(rows)
    record["agentdojo"] = {
        "suite": SUITE,
        "victim": "scripted",
        "asked": n,
        "named": k,
        "interval": clopper_pearson(k, n) if n else None,
        "false": sum(row["false"] > 0 for row in rows),
        "rows": rows,
    }
    print(f"AgentDojo: the injected sentence is named in {k} of {n}")
    if args.out:
        args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
