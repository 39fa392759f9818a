"""Candidates as nodes of a run: read from any run, made from record files,
and judged by critics and verifier where they are not yet.

A candidate is a reply of the agent that critics or the verifier have scored; the replies of one attempt are its rewrites. Scores
are stored as every score of a run is, by the name of who gave it, so one critic's can be erased and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ramify.base import verdicts
from ramify.base.config import check
from ramify.base.errors import UserError
from ramify.base.files import read_small
from ramify.base.ids import stable_hash
from ramify.base.registry import register
from ramify.base.waiting import wait_for
from ramify.env.protocol import Task
from ramify.methods.verify_or_ship.algorithm import Kernel, Likelihood, Tables
from ramify.methods.verify_or_ship.calibration import CandidateAttempt, CodeCandidate
from ramify.score.judge import Item, Judge, Judgement, judged, records
from ramify.trace.db import Run
from ramify.trace.foreign import Thread, import_records
from ramify.trace.formats import Reader
from ramify.trace.lines import field
from ramify.trace.message import Message
from ramify.trace.node import IMPORT, AttemptRecord, Finding, Node, Score
from ramify.trace.path import Path as NodePath
from ramify.trace.sources import opened, run_folder
from ramify.trace.tree import Tree

VERIFIER = "verifier"
"""The scorer whose word is the truth."""
BELIEF = "verify-or-ship"
"""The scorer of a candidate's belief."""
CALIBRATED = "verify-or-ship calibrate"
CHECK, PROBABILITY = "check", "probability"
"""Units: what a critic gives, and what a belief is. Neither decides how an attempt ended."""
_KNOWN = ("instance_id", "sample", "step", "Y", "critics", "payload", "payload_hash")
_NO_CRITIC = ("cost", "seconds", "tokens", "usd")


# -- record files


def _value(value: Any, what: str, where: str) -> float | None:
    """A critic's word as stored. Raises UserError on anything but true, false, a finite number or null."""
    if value is None:
        return None
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    raise UserError(f"{where}: '{what}' must be true, false, a finite number or null, not {str(value)[:40]!r}")


def _checks(record: Mapping[str, Any], where: str) -> dict[str, float | None]:
    """What critics said, by name: the object ``critics``, else every further field that is true, false, a number or null."""
    if "critics" in record:
        given = field(dict(record), "critics", dict, where)
        return {str(name): _value(value, str(name), where) for name, value in given.items()}
    found = {}
    for name, value in record.items():
        about = name in _KNOWN or any(word in name.lower().split("_") for word in _NO_CRITIC)
        if not about and (value is None or isinstance(value, bool | int | float)):
            found[name] = _value(value, name, where)
    return found


class _Records:
    """Hangs records in their trees: a step 0 opens an attempt, a later step follows the last one of its sample or instance."""

    def __init__(self) -> None:
        self.threads: dict[tuple[str, str], tuple[Thread, int]] = {}
        self.counts: dict[str, int] = {}

    def add(self, run: Run, record: dict[str, Any], where: str, number: int) -> None:
        instance = record.get("instance_id")
        if not isinstance(instance, str | int) or isinstance(instance, bool) or instance == "":
            raise UserError(
                f"{where}: 'instance_id' must be text or an integer" + (", and it is missing" if instance is None else "")
            )
        instance = str(instance)
        step = field(record, "step", int, where, 0)
        sample = str(record.get("sample", ""))
        truth = _value(record.get("Y"), "Y", where)
        if "Y" not in record or truth not in (None, 0.0, 1.0):
            raise UserError(f"{where}: 'Y' must be 0, 1 or null" + ("" if "Y" in record else ", and it is missing"))
        checks = _checks(record, where)
        key = (instance, sample)
        thread, expected = self.threads.get(key, (None, 0))
        if step == 0:
            if thread is not None and sample:
                raise UserError(f"{where}: step 0 of instance '{instance}', sample '{sample}' is there twice")
            run.add_tree(instance, {"id": instance})
            index = self.counts.get(instance, 0)
            self.counts[instance] = index + 1
            thread = Thread(run, instance, index)
        elif thread is None or step != expected:
            raise UserError(
                f"{where}: step {step} of instance '{instance}' follows " + (f"step {expected - 1}" if thread else "no step 0")
            )
        payload = record.get("payload")
        text = payload if isinstance(payload, str) else ""
        about = {"step": step} | {
            k: v for k, v in record.items() if k not in _KNOWN and k not in checks and isinstance(v, str | int | float | bool)
        }
        if mark := record.get("payload_hash") or (stable_hash(text) if text else ""):
            about["payload_hash"] = str(mark)
        node = thread.hang(Message("assistant", text), True, about=about)
        won = None if truth is None else truth > 0
        run.add(AttemptRecord(node.id, instance, purpose=IMPORT, index=thread.completion, outcome=won, reward=truth))
        run.add(Score(node.id, VERIFIER, truth, "reward"))
        run.add(*(Score(node.id, name, value, CHECK) for name, value in checks.items()))
        self.threads[key] = (thread, step + 1)


def import_candidates(path: Path, folder: Path) -> int:
    """Make a run of a file of records, one candidate a line: ``instance_id``, ``step``, ``Y`` and the critics; returns how many.

    Raises UserError naming file and line.
    """
    records = _Records()
    return import_records(path, folder, "verify-or-ship", records.add)


_EXAMPLE = "\n".join(
    json.dumps(
        {"instance_id": f"task {i}", "step": step, "Y": int(step == 1), "syntax": 1, "tests": step, "payload": f"return {step}"}
    )
    for i in range(2)
    for step in range(2)
)

register("reader", "verify-or-ship")(
    Reader(
        "verify-or-ship",
        "Candidates of a coding agent with what critics and the verifier said, one a line: instance_id, step, Y, critics.",
        lambda path, first: first is not None and len({"instance_id", "Y", "critics"} & first.keys()) > 1,
        import_candidates,
        example=_EXAMPLE + "\n",
    )
)


# -- candidates of a run


def _scores(run: Run, tree: str) -> dict[str, dict[str, float | None]]:
    """Node -> scorer -> value. Of several judges of one name the last counts; one that could not run says None."""
    found: dict[str, dict[str, float | None]] = {}
    for score in run.scores(tree=tree):
        if score.scorer != BELIEF:
            found.setdefault(score.node, {})[score.scorer] = score.value
    return found


def candidate_nodes(tree: Tree, scored: Mapping[str, Any] | None = None) -> list[tuple[NodePath, list[Node]]]:
    """Each attempt of a tree: its path and the replies on it, those that are ``scored`` where that is given."""
    found = []
    for leaf in tree.leaves():
        path = tree.path(leaf.id)
        nodes = [node for node, _ in path.segments if node.role == "assistant" and (scored is None or node.id in scored)]
        if nodes:
            found.append((path, nodes))
    return found


def candidates(run: Run, verifier: str = VERIFIER) -> list[CandidateAttempt]:
    """The attempts of a run whose replies were scored; the truth of one that was cut by its limit of tokens is not known. Raises
    UserError where nothing was scored, or not by ``verifier``."""
    names = {scorer for scorer, _, _ in run.scorers()}
    if verifier not in names:
        raise UserError(
            f"{run.folder} has no score of '{verifier}' (there are {', '.join(sorted(names)) or 'none'}): name the verifier's "
            "with --verifier, "
            "or give --judge and --verify so that they are asked now"
        )
    return _scored(run, verifier)


def unverified(run: Run) -> list[CandidateAttempt]:
    """The attempts of a run that critics have scored and no verifier. Raises UserError where nothing was scored."""
    attempts = _scored(run, "")
    if not attempts:
        raise UserError(f"{run.folder} holds no candidate that a critic has scored")
    return attempts


def _scored(run: Run, verifier: str) -> list[CandidateAttempt]:
    attempts = []
    for info in sorted(run.trees(), key=lambda info: info.name):
        if scores := _scores(run, info.name):
            instance = str(info.task.get("id", info.name))
            for _, nodes in candidate_nodes(run.tree(info.name), scores):
                attempts.append(CandidateAttempt(instance, tuple(_candidate(node, scores[node.id], verifier) for node in nodes)))
    return attempts


def _candidate(node: Node, scores: Mapping[str, float | None], verifier: str) -> CodeCandidate:
    truth = scores.get(verifier)
    if truth not in (None, 0.0, 1.0):
        raise UserError(f"the verifier '{verifier}' gave {truth:g} at node {node.id}; the truth of a candidate is 0 or 1")
    if node.stop == "length" and truth is not None:
        verdicts.left_open(node.id)
        truth = None
    checks = {name: value for name, value in scores.items() if name != verifier}
    payload = node.text or str(node.data.get("payload_hash", ""))
    return CodeCandidate(None if truth is None else bool(truth), checks, payload, node.id)


def read_source(source: Path, verifier: str = VERIFIER) -> list[CandidateAttempt]:
    """The attempts of a run, or of a file of records. Raises UserError naming file and line."""
    with opened(source) as run:
        return candidates(run, verifier)


# -- asking critics and the verifier


def ask(
    run: Run,
    judges: Mapping[str, Judge],
    report: Callable[[int], object] = lambda done: None,
    begin: Callable[[int], object] = lambda n: None,
    together: int = 32,
) -> int:
    """Have ``judges`` (scorer -> judge) judge every reply that they have not judged, ``together`` at once as far as each judge
    takes them, one commit a candidate; returns how many were judged.

    Interrupted, the same call continues. Equal texts of one task are judged once by each judge.
    """
    work: list[tuple[str, Node, NodePath, Task]] = []
    done = {
        (score.node, score.scorer)
        for score in run.each(Score)
        if score.scorer in judges and judges[score.scorer].identity in score.judges.values() and score.value is not None
    }
    for info in sorted(run.trees(), key=lambda info: info.name):
        tree = run.tree(info.name)
        task = Task(str(info.task.get("id", info.name)), dict(info.task.get("data") or info.task))
        seen: set[str] = set()
        for _, nodes in candidate_nodes(tree):
            for node in nodes:
                if node.id not in seen:
                    seen.add(node.id)
                    work.append((info.name, node, tree.path(node.id), task))
    missing = [one for one in work if any((one[1].id, name) not in done for name in judges)]
    begin(len(missing))
    known: dict[tuple[str, str, str], asyncio.Task[list[Judgement]]] = {}

    async def judge_it(tree: str, node: Node, path: NodePath, task: Task) -> list[Score]:
        item, scores = Item.of(path, task), []
        for name, judge in judges.items():
            if (node.id, name) in done:
                continue
            key = (tree, name, node.text)
            if key not in known:
                known[key] = asyncio.ensure_future(judged(judge, [item]))
            (judgement,) = await known[key]
            (score, *_) = records(judge, node.id, judgement)
            assert isinstance(score, Score)
            unit = "reward" if name == VERIFIER else CHECK
            scores.append(replace(score, scorer=name, unit=unit, judges={name: judge.identity}))
        return scores

    async def all_of_them() -> None:
        count = 0
        for start in range(0, len(missing), together):
            for ended in asyncio.as_completed([judge_it(*one) for one in missing[start : start + together]]):
                run.add(*await ended)
                run.commit()
                count += 1
                report(count)

    wait_for(all_of_them())
    return len(missing)


# -- tables


def read_tables(path: Path) -> Tables:
    """The tables of a file that ``calibrate --out`` wrote (or the paper's code), or of a run in which ``calibrate`` left them.

    Raises UserError naming the file and the field.
    """
    folder = run_folder(path)
    if folder is not None:
        with Run.open(folder) as run:
            found = [one for one in run.findings(maker=CALIBRATED) if one.name == "calibrated"]
        if not found:
            raise UserError(f"{path} holds no tables: run `ramify verify-or-ship calibrate {path}` first")
        return check(Tables, dict(found[0].evidence or {}).get("tables") or {}, str(path))
    try:
        record = json.loads(read_small(path, "the tables").decode("utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({str(error)[:80]})") from None
    if not isinstance(record, dict):
        raise UserError(f"{path} holds no tables: a JSON object is needed")
    if "critic_likelihoods" in record:
        return _of_the_paper(record, str(path))
    return check(Tables, record, str(path))


def _of_the_paper(record: Mapping[str, Any], where: str) -> Tables:
    """The tables of the paper's own code: ``prior_Y1``, ``critic_likelihoods``,
    and its ``kernel_all`` where the two files were joined."""
    try:
        critics = {
            str(name): Likelihood.of(float(own["P_pass_given_Y1"]), float(own["P_pass_given_Y0"]))
            for name, own in record["critic_likelihoods"].items()
        }
        prior, kernel = float(record["prior_Y1"]), record.get("kernel_all")
        made = Kernel() if kernel is None else Kernel(fix=kernel["P_fix_given_broken"], broken=kernel["P_break_given_correct"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{where}: the field {error} of the tables is missing or no number") from None
    return check(Tables, {"prior": prior, "critics": critics, "kernel": made}, where)


def tables_finding(tables: Tables, report: Mapping[str, Any], source: str) -> Finding:
    """The tables as a run keeps them."""
    gaps = ", ".join(f"{name} {own.gap:+.2f}" for name, own in tables.critics.items())
    why = (
        f"{tables.prior:.0%} of first candidates are right; gaps of the critics: {gaps}; a rewrite repairs "
        f"{tables.kernel.fix:.0%}"
    )
    action = f"ramify verify-or-ship plan {source}"
    evidence = {"tables": tables.to_json(), **report}
    return Finding("calibrated", CALIBRATED, why, value=tables.prior, unit=PROBABILITY, action=action, evidence=evidence)


def keep_beliefs(run: Run, found: Iterable[tuple[str, float]], tables: Tables) -> None:
    """Store beliefs (node, probability) as scores of ``verify-or-ship``."""
    identity = stable_hash("verify-or-ship", "tables", json.dumps(tables.to_json(), sort_keys=True))
    for node, belief in found:
        run.add(Score(node, BELIEF, belief, PROBABILITY, judges={BELIEF: identity}))
