"""``ramify why`` of logs that nobody here made and nobody can run again: what names the labelled step, and what is named in logs
of successful attempts.

    python -m ramify_experiments.why.log_outside DATA [--judge smollm2 --judged 8 --ways whole,halving] [--out FILE]
    python -m ramify_experiments.why.log_outside DATA --judge smollm2 --judged 0 --answered [--keep FOLDER] [--out FILE]

``DATA`` is a folder with ``whowhen`` (the folder ``Who&When`` of GitHub mingyin1/Agents_Failure_Attribution, MIT),
``tau/gpt-4o-airline.json`` (historical_trajectories of sierra-research/tau-bench, MIT), ``luna`` (``runs`` of
Liu-Ruotian/agentdojo-luna-trajectories: AgentDojo in ten domains with gpt-5.6-luna), ``swe`` (trajectories/demonstrations of
SWE-agent/SWE-agent, MIT, which all solve their task) and ``hotpot/100_questions_5_trials.txt`` (hotpotqa_runs/root/ReAct/base of
noahshinn/reflexion, MIT: an agent on questions of HotpotQA, the right answer after each log).

``--answered`` is the null of the way ``answer``: logs of successes that name their answer, beside failures at such questions. All
are shown to it as failures, since it refuses successes.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ramify.jobs.log.ask import why_judged
from ramify.jobs.log.rarity import Successes, broken_rules, rank
from ramify.jobs.log.rules import RULES, Violation, violations
from ramify.jobs.log.ways import WAYS, Way
from ramify.jobs.why.attempts import KNOWN
from ramify.stats.ranking import auroc, auroc_interval
from ramify.trace.db import Run
from ramify.trace.view import View, views
from ramify_experiments.lab import call_verb
from ramify_experiments.why.injected import share

ERROR_TEXT = re.compile(r"\b(?:error|exception|traceback|failed)\b", re.IGNORECASE)
"""What the simplest baseline takes for an error."""
LEVEL = 0.05


def imported(data: Path, folder: Path, name: str) -> Path:
    """A run of one of the sources, read by ``ramify import``."""
    source, form = data / name, []
    if name in ("luna", "hotpot"):
        source = folder / f"{name}.jsonl"
        made = _luna(data / name) if name == "luna" else _hotpot(data / name / "100_questions_5_trials.txt")
        source.write_text("".join(f"{json.dumps(row)}\n" for row in made), encoding="utf-8")
        form = ["--from", "who-and-when"] if name == "hotpot" else []
    call_verb("import", source, *form, "--run", folder / name)
    return folder / name


def other_answers(data: Path, folder: Path) -> Path:
    """The labelled logs, each with the answer of the next: the null of what goes by the answer."""
    logs = {path: json.loads(path.read_text(encoding="utf-8")) for path in sorted((data / "whowhen").rglob("*.json"))}
    answers = [log.get("ground_truth") for log in logs.values()]
    for (path, log), answer in zip(logs.items(), [*answers[1:], *answers[:1]], strict=True):
        copy = folder / "other answers" / "whowhen" / path.relative_to(data / "whowhen")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(json.dumps({**log, "ground_truth": answer}), encoding="utf-8")
    call_verb("import", folder / "other answers" / "whowhen", "--run", folder / "null")
    return folder / "null"


_TOLD = re.compile(r"^(Thought|Action|Observation) (\d+): ?", re.MULTILINE)


def _hotpot(path: Path) -> Iterable[dict[str, Any]]:
    """The first trial's logs that end with an answer, as Who&When's are. What says whether it was right is left out."""
    trial = path.read_text(encoding="utf-8").split("BEGIN TRIAL 2")[0]
    for kind, text in re.findall(r"BEGIN (CORRECT|INCORRECT) AGENTS -+\n(.*?)(?=\n-{9,}|\Z)", trial, re.DOTALL):
        for number, one in enumerate(re.split(r"^Question: ", text, flags=re.MULTILINE)[1:]):
            log, _, answer = one.rpartition("Correct answer: ")
            question, *parts = _TOLD.split(log)
            history = [{"role": "user", "content": question.strip()}]
            for what, step, said_there in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
                line = f"{what} {step}: {said_there.strip()}"
                if what == "Action" and history[-1]["role"] == "assistant":
                    history[-1]["content"] += f"\n{line}"
                else:
                    history.append({"role": "user" if what == "Observation" else "assistant", "content": line})
            if history[-1]["role"] == "user":  # "Answer is CORRECT"
                history.pop()
            yield {
                "question_ID": f"{kind.lower()}-{number:02}", "question": question.strip(), "history": history,
                "ground_truth": answer.splitlines()[0].strip(), "is_correct": False,
            }  # fmt: skip


def _luna(folder: Path) -> Iterable[dict[str, Any]]:
    """The logs as conversations; their own fields differ from AgentDojo's."""
    for path in sorted(folder.rglob("*.json")):
        log = json.loads(path.read_text(encoding="utf-8"))
        if log.get("error") or "messages" not in log:
            continue
        messages = []
        for one in log["messages"]:
            content = one.get("content")
            text = content if isinstance(content, str) else "".join(part.get("content", "") for part in content or [])
            row: dict[str, Any] = {"role": one["role"], "content": text}
            if calls := one.get("tool_calls"):
                row["tool_calls"] = [
                    {"id": c["id"], "type": "function", "function": {"name": c["function"], "arguments": json.dumps(c["args"])}}
                    for c in calls
                ]
            if one["role"] == "tool":
                row |= {"tool_call_id": one["tool_call_id"]}
                row |= {"content": text or one["error"], "is_error": True} if one.get("error") else {}
            messages.append(row)
        tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in log["available_tools"]]
        yield {"task_id": f"{log['domain']}/{log['task_id']}", "messages": messages, "success": log["evaluation"]["utility"],
               "tools": tools}  # fmt: skip


def attempts(path: Path) -> tuple[list[tuple[View, list[Violation]]], dict[str, str]]:
    """The attempts of a run with the rules each breaks, and the labelled step of each by its last node."""
    with Run.open(path) as run:
        found = [(view, violations(run, view)) for view in views(run) if view.record is None or view.record.purpose in KNOWN]
        labels = {note.node for note in run.annotations(name="mistake")}
        truth = {
            view.leaf: node
            for view, _ in found
            for message in view.messages
            if (node := message.nodes[-1].id) in labels
        }  # fmt: skip
    return found, truth


def said(one: dict[str, Any]) -> str:
    """A share in words."""
    return f"{one['k']} of {one['n']} [{one['interval'][0]:.2f}, {one['interval'][1]:.2f}]"


def named(broken: Sequence[Violation], among: Successes, leaf: str) -> str | None:
    """The step that ``ramify why`` names by a rule, had the attempt failed."""
    return next((one.node for one in broken_rules(broken, among, LEVEL, leaf) if one.p <= LEVEL), None)


def baselines(logs: Sequence[tuple[View, list[Violation]]], truth: dict[str, str]) -> dict[str, Any]:
    """Of labelled logs: how often each way names the labelled step."""
    hits: dict[str, list[float]] = {
        way: [] for way in ("rule", "rule names any", "hint", "hints", "first error text", "last step", "random step")
    }
    for view, broken in logs:
        label = truth[view.leaf]
        replies = [i for i, message in enumerate(view.messages) if message.role == "assistant"]
        error = next((i for i, message in enumerate(view.messages) if ERROR_TEXT.search(message.text)), None)
        before = [i for i in replies if error is not None and i <= error]
        by_rule = named(broken, Successes(()), view.leaf)
        hits["rule"].append(by_rule == label)
        hits["rule names any"].append(by_rule is not None)
        rare = broken_rules(broken, Successes(()), LEVEL, view.leaf)
        hits["hint"].append(bool(rare) and rare[0].node == label)
        hits["hints"].append(bool(rare))
        hits["first error text"].append(bool(before) and view.messages[before[-1]].nodes[-1].id == label)
        hits["last step"].append(view.messages[-1].nodes[-1].id == label)
        own = [view.messages[i].nodes[-1].id for i in replies]
        hits["random step"].append((label in own) / max(1, len(own)))
    found: dict[str, Any] = {way: share(int(sum(ones)), len(ones)) for way, ones in hits.items() if way != "random step"}
    return found | {"random step": {"p": sum(hits["random step"]) / len(logs), "n": len(logs)}}


def nulls(corpora: dict[str, list[tuple[View, list[Violation]]]]) -> dict[str, Any]:
    """Of successful logs: how many break each rule or a rarer one, and in how many a step is named, by the successes of the other
    corpora and (where there are enough) by those of the same corpus."""
    ranks = {name: tuple((view.leaf, rank(broken)) for view, broken in logs) for name, logs in corpora.items()}
    found: dict[str, Any] = {}
    for name, logs in corpora.items():
        others = Successes(tuple(one for other, rows in ranks.items() if other != name for one in rows))
        own = Successes(ranks[name])
        rules = {rule: share(sum(any(b.rule == rule for b in broken) for _, broken in logs), len(logs)) for rule in RULES}
        found[name] = {
            "rules": rules,
            "named, by the others": share(sum(named(broken, others, "") is not None for _, broken in logs), len(logs)),
            "named, by its own": share(sum(named(broken, own, view.leaf) is not None for view, broken in logs), len(logs)),
        }
    both = [one for name in ("tau", "luna") for _, one in ranks[name]]
    found["public"] = {"n": len(both), **{rule: sum(one <= at for one in both) for at, rule in enumerate(RULES)}}
    return found


def judged(path: Path, judge: str, ways: Sequence[Way], most: int) -> dict[str, Any]:
    """What a model names in the ``most`` shortest labelled logs, and the baselines on these."""
    found, truth = attempts(path)
    logs = sorted((one for one in found if one[0].leaf in truth), key=lambda one: sum(len(m.text) for m in one[0].messages))[
        :most
    ]
    rows: dict[str, Any] = {way: {"right": 0, "named": 0, "unread": 0, "failed": 0} for way in ways}
    pairs: dict[str, list[int]] = {}
    for view, _ in logs:
        try:
            answer = why_judged(path, view.leaf, judges=[judge], ways=ways)
        except Exception as error:
            print(f"{view.leaf[:12]}: {error}", flush=True)
            continue
        for one in answer.opinions:
            if one.judge != "rules":
                row = rows[one.way]
                row["right"] += one.node == truth[view.leaf]
                row["named"] += one.node is not None
                row["unread"] += one.unread
                row["failed"] += bool(one.failure)
        for pair in answer.agreement:
            counts = pairs.setdefault(f"{pair.first}; {pair.second}", [0, 0])
            counts[0], counts[1] = counts[0] + pair.k, counts[1] + pair.n
        print(json.dumps(rows), flush=True)
    for row in rows.values():
        row["right"] = share(row["right"], len(logs))
    return {"judge": judge, "logs": len(logs), "ways": rows, "agreement": pairs, "baselines": baselines(logs, truth)}


def answered(path: Path, judge: str) -> dict[str, Any]:
    """Of logs of both outcomes, all said to be failures: in how many the way ``answer`` names a step, and how much it lost."""
    cases: list[dict[str, Any]] = []
    for view, _ in sorted(attempts(path)[0], key=lambda one: one[0].info.name):
        (one, *_) = why_judged(path, view.leaf, judges=[judge], ways=["answer"]).opinions
        lost = re.search(r"stayed (\S+) lower", one.reason)
        won = view.info.name.startswith("correct")
        steps = sum(message.role == "assistant" for message in view.messages)
        cases.append({"log": view.info.name, "won": won, "steps": steps, "lost": float(lost[1]) if lost else 0.0})
        print(json.dumps(cases[-1]), flush=True)
    found: dict[str, Any] = {"judge": judge}
    for name, side in (("won", True), ("failed", False)):
        here = [case for case in cases if case["won"] is side]
        named_in = share(sum(case["lost"] > 0 for case in here), len(here))
        found[name] = {"named": named_in, "steps": sum(case["steps"] for case in here) / len(here)}
    by = [case["lost"] for case in cases], [not case["won"] for case in cases]
    found["AUROC"] = {"value": auroc(*by), "interval": auroc_interval(*by, [case["log"] for case in cases])}
    return found | {"cases": cases}


def rows(record: dict[str, Any]) -> list[list[str]]:
    """The rows of docs/claims.md."""
    base, by_rules = record["whowhen"], record["nulls"]
    told = [
        [
            "The labelled step of 184 failed logs (Who&When), without a model",
            f"a rule: {said(base['rule'])}, and names one in {said(base['rule names any'])}; "
            f"the rarest broken rule, named or a hint: {said(base['hint'])}, of {said(base['hints'])}; "
            f"the agent's step at or before the first error text: {said(base['first error text'])}; "
            f"a random step of an agent: {base['random step']['p']:.3f}; the last step: {said(base['last step'])}",
        ],
        [
            "A rule names a step in logs of successful attempts (wanted at most 5 %)",
            "; ".join(
                f"{name}: {said(by_rules[name]['named, by the others'])} by the other corpora's rates, "
                f"{said(by_rules[name]['named, by its own'])} by its own"
                for name in ("tau", "luna", "swe")
            ),
        ],
    ]
    if one := record.get("judged"):
        ways = "; ".join(
            f"{way}: {said(row['right'])} right, {row['named']} named, {row['unread']} answers not read, {row['failed']} failed"
            for way, row in one["ways"].items()
        )
        best = one["baselines"]
        told.append(
            [
                f"`why --judge {one['judge']}` on the {one['logs']} shortest of them",
                f"{ways}; on the same logs the first error text {said(best['first error text'])}, "
                f"a random step {best['random step']['p']:.3f}",
            ]
        )
    if null := record.get("other answers"):
        row = null["ways"]["answer"]
        told.append(
            [
                f"`why --judge {null['judge']} --way answer` on labelled failures (Who&When), each with the answer of another",
                f"{said(row['right'])} right, {row['named']} named",
            ]
        )
    if null := record.get("answered"):
        won, lost, (low, high) = null["won"], null["failed"], null["AUROC"]["interval"]
        told.append(
            [
                f"`why --judge {null['judge']} --way answer` names a step in logs of an agent on HotpotQA that reach the answer "
                "(wanted: none), and in those that do not",
                f"{said(won['named'])} of the successes (of {won['steps']:.1f} steps), {said(lost['named'])} of the failures (of "
                f"{lost['steps']:.1f}); the AUROC of what the step lost is {null['AUROC']['value']:.2f} [{low:.2f}, {high:.2f}]",
            ]
        )
    return told


def main() -> None:
    """The command above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--judge", default="")
    parser.add_argument("--judged", type=int, default=8)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--answered", action="store_true", help="the null of the way answer")
    parser.add_argument("--keep", type=Path, help="folder of the runs: what is kept there is not asked again")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    record: dict[str, Any] = json.loads(args.out.read_text(encoding="utf-8")) if args.out and args.out.exists() else {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        labelled, truth = attempts(imported(args.data, folder, "whowhen"))
        record["whowhen"] = baselines([one for one in labelled if one[0].leaf in truth], truth)
        corpora = {name: attempts(imported(args.data, folder, name))[0] for name in ("tau", "luna", "swe")}
        won = {name: [one for one in logs if one[0].success is not False] for name, logs in corpora.items()}
        record["nulls"] = nulls(won)
        lost = {name: [one for one in logs if one[0].success is False] for name, logs in corpora.items()}
        record["failed"] = {
            name: share(sum(named(broken, Successes(()), view.leaf) is not None for view, broken in logs), len(logs))
            for name, logs in lost.items()
            if logs
        }
        if args.judge and args.answered:
            record["answered"] = answered(imported(args.data, folder, "hotpot"), args.judge)
        if args.judge and args.judged:
            ways = args.ways.split(",")
            record["judged"] = judged(folder / "whowhen", args.judge, ways, args.judged)
            if "answer" in ways:
                record["other answers"] = judged(other_answers(args.data, folder), args.judge, ["answer"], args.judged)
    record["rows"] = rows(record)
    for what, here in record["rows"]:
        print(f"{what}: {here}")
    if args.out:
        args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
