"""The search (section 3.3) on workspaces of your own: the archive is a tree of the run,
its outcomes are scores, every step is in the journal.

A step is decided by the seed, its number, and what is stored, and it is committed whole; so the same command continues a search
that was killed, and ends where the undisturbed one would have. Programs of workspaces run in the sandbox only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from ramify.base import codec
from ramify.base.config import Config, load
from ramify.base.errors import InfrastructureError, UserError, nearest
from ramify.base.ids import canonical_json, json_hash, stable_hash
from ramify.base.ledger import Ledger
from ramify.base.progress import SILENT, Progress
from ramify.base.waiting import wait_for
from ramify.methods.judge_evolution.algorithm import (
    ALPHA,
    RHO,
    Archive,
    PromotionConfig,
    SearchConfig,
    UtilityRecord,
    cell,
    checkpoints,
    decide,
    gate_open,
)
from ramify.methods.judge_evolution.ledger import LOOK, AnchorLook, judges_itself
from ramify.methods.judge_evolution.meta import Editor, find_editor, provenance_of
from ramify.methods.judge_evolution.workspace import (
    Files,
    Program,
    RoleTask,
    WorkspaceJudge,
    changed,
    check_files,
    judge_identity,
    packed,
    read_tasks,
    read_workspace,
    unpacked,
)  # fmt: skip
from ramify.render.result import Result, Section, table
from ramify.sandbox.find import find_sandbox
from ramify.score.anchor import Anchor, JudgeQuality, Labelled, answers, leaks, quality, read_anchor
from ramify.score.judge import Item, Judge, find_judge, judged, truth
from ramify.stats.intervals import Proportion
from ramify.trace.db import Record, Run, counts
from ramify.trace.foreign import root
from ramify.trace.node import Finding, Node, Score, make_node

KIND = "judge-evolution evolve"
TREE = "archive"
GROWN, OUTCOME, CHECKPOINT = "workspace", "outcome", "checkpoint"
"""What the journal calls a try to grow the archive, one outcome, and one look at all slots."""
REPLACED = "judge replaced"
"""The finding that a judge took over."""
FRUITLESS = 12
"""Proposals in a row that may fail before a search without anything left to measure ends."""


@dataclass(frozen=True)
class TrainingTask:
    """How a new workspace did at one training task, as its editor is told."""

    role: str
    task: str
    made: str
    success: bool | None


@dataclass(frozen=True)
class GrownWorkspace:
    """A try to grow the archive: its node, or why there is none."""

    node: str | None
    parent: int | None = None
    why: str = ""


@dataclass(frozen=True)
class WorkspaceOutcome:
    """One outcome: a workspace's artefact of a task, scored by ``judges`` (slot -> judge). ``success`` is None where they gave no
    answer."""

    workspace: int
    role: str
    task: str
    success: bool | None
    judges: Mapping[str, str]
    node: str


@dataclass(frozen=True)
class ShortQuality:
    """What a judge was worth on the anchor of a checkpoint."""

    accuracy: Proportion | None
    sensitivity: Proportion | None
    specificity: Proportion | None
    missing: int

    @classmethod
    def of(cls, one: JudgeQuality) -> ShortQuality:
        """Of its quality."""
        return cls(one.accuracy, one.sensitivity, one.specificity, one.missing)


@dataclass(frozen=True)
class SlotDecision:
    """What a checkpoint came to for one slot: the judge that takes over, and of which workspace it is; or that none does."""

    why: str
    challengers: tuple[str, ...] = ()
    judge: str | None = None
    workspace: int | None = None
    look: int | None = None
    pool: int = 0
    """Items that the adversarial pool added to the anchor."""
    incumbent: ShortQuality | None = None
    winner: ShortQuality | None = None


@dataclass(frozen=True)
class SlotDecisions:
    """A checkpoint: what was decided of every slot."""

    slots: Mapping[str, SlotDecision]

    def replaced(self) -> Iterator[tuple[str, int, str, str]]:
        """(slot, workspace, judge, why) of those whose judge is replaced."""
        for slot, one in self.slots.items():
            if one.judge is not None and one.workspace is not None:
                yield slot, one.workspace, one.judge, one.why


@dataclass(frozen=True)
class WorkspaceRates:
    """Outcomes of a workspace that count, and the share of successes of it and all its descendants."""

    successes: int
    n: int
    productivity: float | None


@dataclass(frozen=True)
class BestWorkspace:
    """The best workspace, of all roles or of one."""

    workspace: int
    node: str
    found_by: str
    successes: int
    n: int
    productivity: float | None


@dataclass(frozen=True)
class ReplacedJudge:
    """A judge that took over a slot during a search."""

    outcomes: int
    slot: str
    workspace: int
    judge: str
    why: str

    def __str__(self) -> str:
        return f"after {self.outcomes} outcomes the judge of '{self.slot}' became that of workspace {self.workspace}: {self.why}"


@dataclass(frozen=True)
class EvolvedWorkspaces(Result):
    """What a search came to: the best workspaces, what was replaced, and how much counts."""

    outcomes: int
    counting: int
    erased: int
    missing: int
    workspaces: int
    dropped: int
    """Proposals that could not be used."""
    generalist: BestWorkspace
    specialists: Mapping[str, BestWorkspace]
    """By role."""
    seed: WorkspaceRates
    looks: int
    replaced: tuple[ReplacedJudge, ...]
    incumbents: Mapping[str, str]
    spent: Mapping[str, Mapping[str, float]]

    def sections(self) -> Iterable[Section]:
        """Endpoints, sums, replaced judges."""
        rows = [
            (name, one.workspace, f"{one.successes} of {one.n}", one.found_by)
            for name, one in {"generalist": self.generalist, **self.specialists}.items()
        ]
        yield Section.of(
            "",
            table(("endpoint", "workspace", "successes that count", "found by"), rows),
            f"{self.outcomes} outcomes, {self.counting} count, {self.erased} erased, {self.missing} missing; {self.workspaces} "
            f"workspaces, {self.dropped} proposals dropped; {self.looks} looks at anchors",
            "\n".join(map(str, self.replaced)),
        )

    def findings(self, run: Run, nodes: Sequence[str]) -> list[Finding]:
        """The endpoints and every replacement, for the run; ``nodes`` are those of the workspaces."""
        do = f"ramify judge-evolution show {run.folder} --git DIR writes every workspace as a git commit"
        ends = {"generalist": self.generalist, **{f"specialist, {role}": one for role, one in self.specialists.items()}}
        found = [
            Finding(
                name,
                KIND,
                f"workspace {one.workspace}: {one.successes} of {one.n} outcomes that count succeeded",
                one.node,
                0,
                do,
                one.successes / one.n if one.n else None,
                "share",
                codec.to_json(one),
            )
            for name, one in ends.items()
        ]
        replaced = [Finding(REPLACED, KIND, str(one), nodes[one.workspace], evidence=codec.to_json(one)) for one in self.replaced]
        return found + replaced


class RoleConfig(Config):
    """A role: a program of the workspace, and how what it makes is scored."""

    command: list[str]
    """Program and arguments, run in the workspace; a task's ``input`` is its standard input, what it prints is the artefact."""
    tasks: str
    """JSON lines of ``id`` and ``input``, and ``split`` ("train" or "validation");
    of a role that fills a slot ``artefact`` and ``label``."""
    slot: str = ""
    """The slot whose judge scores the artefacts."""
    judge: str = ""
    """Or a judge by name that scores them, such as exact; a task's other fields are its data."""
    fills: str = ""
    """Or the slot that this role's program is a judge for: it reads an artefact and ends with exit code 0 (yes) or 1 (no)."""
    files: list[str] = Field(default_factory=list)
    """Patterns of the files that make the judge of ``fills`` what it is; without them every file does."""


class SlotConfig(Config):
    """A place for a judge."""

    anchor: str
    """Labelled items, see `ramify judge-evolution check`."""
    judge: str = ""
    """The first judge by name; without it the seed workspace's own."""
    truth: str = ""
    """A judge by name that keeps what is truly good out of the adversarial pool."""


class CheckpointConfig(PromotionConfig):
    """When a challenger of a search takes over."""

    adversarial: float = Field(0.0, ge=0, le=5)
    """Artefacts that fooled a displaced judge join the anchor, labelled no, up to this share of its size; 0: none."""


class EvolveConfig(SearchConfig):
    """A whole search: ``evolve.toml`` of a case's folder."""

    workspace: str = "agent"
    """Folder of the seed's programs."""
    meta: str = "numbers"
    """Who edits: numbers[:SCALE], cmd:SCRIPT, FILE.py:FUNCTION, or a model by name."""
    train: int = Field(3, ge=0)
    """Training tasks of each role that every new workspace plays; the editor is shown how it went."""
    seconds: float = Field(10.0, gt=0)
    """Most time of a program for one task."""
    promotion: CheckpointConfig = Field(default_factory=CheckpointConfig)
    roles: dict[str, RoleConfig] = Field(default_factory=dict)
    slots: dict[str, SlotConfig] = Field(default_factory=dict)


@dataclass(frozen=True)
class EndedProgram:
    """How a program of a workspace ended, now or in the run."""

    text: str
    reason: str
    code: int | None
    error_text: str = ""


class EvolutionCase:
    """A search with its files read: roles, tasks, slots, anchors."""

    def __init__(self, folder: Path, options: Mapping[str, Any] | None = None) -> None:
        """Raises UserError naming file and field on what does not fit together."""
        file = folder / "evolve.toml" if folder.is_dir() else folder
        self.folder, self.config = file.parent, load(EvolveConfig, [file], dict(options or {}))
        config = self.config
        if not config.roles:
            raise UserError(f"{file} names no role: [roles.NAME] with command and tasks")
        self.workspace = read_workspace(self.folder / config.workspace)
        self.anchors = {name: read_anchor(self.folder / slot.anchor) for name, slot in config.slots.items()}
        self.tasks: dict[str, dict[str, RoleTask]] = {}
        for name, role in config.roles.items():
            self._fits(file, name, role)
            self.tasks[name] = read_tasks(self.folder / role.tasks, bool(role.fills))
        for slot, own in config.slots.items():
            if not own.judge and not any(role.fills == slot for role in config.roles.values()):
                raise UserError(f"{file}: slot '{slot}' has no first judge: name one with judge, or let a role fill it")
        self.validation = [
            (role, name) for role, tasks in self.tasks.items() for name, task in tasks.items() if task.split != "train"
        ]
        if not self.validation:
            raise UserError(f"{file}: no role has a validation task")

    def _fits(self, file: Path, name: str, role: RoleConfig) -> None:
        ways = [way for way in (role.slot, role.judge, role.fills) if way]
        if len(ways) != 1:
            raise UserError(f"{file}: role '{name}' needs one of slot, judge and fills, and has {len(ways)}")
        for slot in (role.slot, role.fills):
            if slot and slot not in self.config.slots:
                raise UserError(f"{file}: role '{name}' names slot '{slot}', which is none ({nearest(slot, self.config.slots)})")
        if not role.command:
            raise UserError(f"{file}: role '{name}' has an empty command")

    def train(self, role: str) -> list[RoleTask]:
        """Its training tasks, as many as a workspace plays."""
        return [one for one in self.tasks[role].values() if one.split == "train"][: self.config.train]

    @property
    def parts(self) -> dict[str, str]:
        """What the settings name, as hashes."""
        found = {"workspace": json_hash(dict(self.workspace)), "tasks": json_hash(codec.to_json(self.tasks))}
        return found | {f"anchor of {name}": anchor.hash for name, anchor in self.anchors.items()}


class Evolution:
    """One search, in its run. ``step`` makes outcome number n and everything that comes before it,
    or takes it over from the journal."""

    def __init__(self, case: EvolutionCase, run: Run, progress: Progress = SILENT, allow_unsandboxed: bool = False) -> None:
        self.case, self.run, self.progress, self.config = case, run, progress, case.config
        self.sandbox = find_sandbox(allow_unsandboxed=allow_unsandboxed)
        self.editor: Editor = find_editor(_placed(case.folder, self.config.meta), self.sandbox, max(60.0, self.config.seconds))
        self.archive, self.ledger = Archive(), Ledger()
        self.files: list[Files] = []
        self.nodes: list[str] = []
        self.feedback: list[tuple[TrainingTask, ...]] = []
        self.slot_judges: dict[str, Judge] = {}
        self.judges: dict[str, Judge] = {}
        self.pool: dict[str, list[Labelled]] = {slot: [] for slot in self.config.slots}
        self.looks = checkpoints(self.config.first, RHO, self.config.budget)
        self.past: list[WorkspaceOutcome] = []
        """Outcomes so far, in order; the journal may hold later ones."""
        self.fixed = {
            name: find_judge(_placed(case.folder, role.judge)) for name, role in self.config.roles.items() if role.judge
        }
        self.truths = {
            name: find_judge(_placed(case.folder, slot.truth)) for name, slot in self.config.slots.items() if slot.truth
        }

    async def go(self) -> EvolvedWorkspaces:
        """Every outcome up to the budget; returns :meth:`result`.
        Raises UserError where an anchor leaks, NeedsError without a sandbox."""
        await self._seed()
        self.progress.begin(self.config.budget, 0, "", "outcomes")
        for n in range(self.config.budget):
            if not await self.step(n):
                break
            self.progress.at(n + 1, f"{len(self.archive)} workspaces")
        found = self.result()
        self.run.conclude(KIND, found.findings(self.run, self.nodes))
        return found

    async def step(self, n: int) -> bool:
        """Checkpoint, growth and outcome number ``n``, in this order; False where nothing is left to measure."""
        if n in self.looks:
            await self._checkpoint(n)
        if gate_open(n, len(self.archive), ALPHA):
            await self._grow(str(n), n)
        for more in range(FRUITLESS):
            left = self._open()
            if left:
                await self._evaluate(n, left)
                return True
            await self._grow(f"{n}+{more}", n)
        return False

    # -- the seed, and growth

    async def _seed(self) -> None:
        self._no_leak({f"the file {path} of the workspace": text for path, text in self.case.workspace.items()})
        for slot in self.config.slots:
            self._appoint(slot, self._first(slot))
        self.run.add_tree(TREE, {"id": TREE, "data": {"roles": list(self.config.roles), "slots": list(self.config.slots)}})
        self._take(await self.run.once_awaited(GROWN, "seed", GrownWorkspace, self._planted, self._first_judges))

    async def _planted(self) -> tuple[GrownWorkspace, list[Record]]:
        trained = await self._trained(self.case.workspace)
        if isinstance(trained, str):
            raise UserError(f"the seed workspace {self.case.folder / self.config.workspace} does not run: {trained}")
        node, records = self._node(None, self.case.workspace, trained, "the seed", -1)
        return GrownWorkspace(node), records

    def _first_judges(self, grown: GrownWorkspace) -> None:
        for slot, first in self.slot_judges.items():
            about = {"spec": self.config.slots[slot].judge, "name": first.name, "outcomes": 0, "workspace": 0}
            self.run.replace_judge(slot, first.identity, about)

    def _first(self, slot: str) -> Judge:
        spec = self.config.slots[slot].judge
        if spec:
            return find_judge(_placed(self.case.folder, spec))
        return self._own(slot, 0, self.case.workspace)

    def _own(self, slot: str, number: int, files: Files) -> WorkspaceJudge:
        role = next(one for one in self.config.roles.values() if one.fills == slot)
        return WorkspaceJudge(self.sandbox, files, role.command, role.files, self.config.seconds, f"{slot} of workspace {number}")

    def _appoint(self, slot: str, judge: Judge) -> None:
        self.slot_judges[slot] = judge
        self.judges[judge.identity] = judge
        self.archive.incumbents[slot] = judge.identity

    def _no_leak(self, texts: Mapping[str, str]) -> None:
        for slot, anchor in self.case.anchors.items():
            found = leaks(anchor, texts)
            if found is not None:
                raise UserError(
                    f"the anchor of slot '{slot}' leaks: its item '{found[0]}' stands in {found[1]}; whoever is judged must not "
                    "see it"
                )

    async def _grow(self, key: str, n: int) -> None:
        self._take(await self.run.once_awaited(GROWN, key, GrownWorkspace, partial(self._grown, key, n)))

    async def _grown(self, key: str, n: int) -> tuple[GrownWorkspace, list[Record]]:
        parent = self.archive.thompson(self.config, key, "expand")
        proposed = await self._proposed(key, parent)
        if isinstance(proposed, str):
            return GrownWorkspace(None, parent, proposed[:300]), []
        files, trained = proposed
        what = ", ".join(changed(self.files[parent], files)) or "nothing changed"
        node, records = self._node(parent, files, trained, what, n)
        return GrownWorkspace(node, parent), records

    async def _proposed(self, key: str, parent: int) -> tuple[Files, list[TrainingTask]] | str:
        """A child's files and how its training tasks went, or why there is none."""
        feedback = [codec.to_json(one) for node in reversed(self.archive.lineage(parent)) for one in self.feedback[node]]
        before = self.files[parent]
        self._no_leak({f"what the editor {self.editor.name} is shown": self.editor.shown(before, feedback)})
        try:
            number = int(stable_hash("proposal", key)[:7], 16)
            changes = await self.editor.propose(before, feedback, self.config.seed, number)
            files = {path: text for path, text in {**before, **changes}.items() if text is not None}
            check_files(files, "the proposal")
        except (InfrastructureError, ValueError) as error:
            return str(error)
        except UserError as error:
            if "proposal" not in str(error) and "sandbox path" not in str(error):
                raise
            return str(error)
        self._no_leak({f"the file {path} of a proposal": text for path, text in files.items()})
        if files == before:
            return "the proposal changes nothing"
        trained = await self._trained(files)
        return trained if isinstance(trained, str) else (files, trained)

    async def _trained(self, files: Files) -> list[TrainingTask] | str:
        """Transcripts of the training tasks; a sentence where a program of the workspace does not even run."""
        found: list[TrainingTask] = []
        for name, role in self.config.roles.items():
            tasks = self.case.train(name)
            for task in tasks or list(self.case.tasks[name].values())[:1]:
                outcome = await self._ran(files, name, task)
                if outcome.reason != "exit" or outcome.code not in ((0, 1) if role.fills else (0,)):
                    return (
                        f"role '{name}' ended with {outcome.reason} {outcome.code} on task '{task.id}': "
                        f"{outcome.error_text.strip()[-160:]}"
                    )
                if tasks:
                    success, _, _ = await self._scored(name, task, outcome, "")
                    found.append(TrainingTask(name, task.id, outcome.text[:2000], success))
        return found

    async def _ran(self, files: Files, role: str, task: RoleTask) -> EndedProgram:
        program = Program(self.sandbox, files, self.config.roles[role].command, self.config.seconds)
        outcome = await program.run(task.given)
        return EndedProgram(outcome.text, outcome.reason, outcome.code, outcome.error_text)

    def _node(
        self, parent: int | None, files: Files, trained: Sequence[TrainingTask], what: str, n: int
    ) -> tuple[str, list[Record]]:
        """The node of a workspace, and what is to be stored of it."""
        blob = self.run.put_blob(packed(files))
        provenance = provenance_of(self.editor, self.config.seed)
        above = root(self.run, TREE) if parent is None else self.run.node(self.nodes[parent])
        node = make_node(
            TREE,
            above.id,
            len(above),
            "assistant" if parent is not None else "user",
            what,
            snapshot=f"blob:{blob}",
            index=-1 if parent is None else n,
            provenance=None if parent is None else provenance.hash,
            data={"workspace": len(self.nodes), "files": blob, "train": codec.to_json(list(trained))},
        )
        return node.id, [*([provenance] if parent is not None else []), node]

    def _take(self, grown: GrownWorkspace) -> None:
        """Take a workspace that the run holds into the archive."""
        if grown.node is None:
            return
        node = self.run.node(grown.node)
        if grown.parent is not None:
            self.archive.grow(grown.parent)
        self.nodes.append(node.id)
        self.files.append(unpacked(self.run.get_blob(str(node.data["files"]))))
        self.feedback.append(codec.from_json(tuple[TrainingTask, ...], node.data["train"], f"node {node.id}"))

    # -- outcomes

    def _open(self) -> dict[int, list[tuple[str, str]]]:
        """ResultCache without an outcome that counts, by node:
        the same artefact scored twice by the same judge would be one observation."""
        done = {(one.node, one.role, one.task) for one in self.archive.outcomes if self.archive.valid(one)} | self._unanswered()
        cells = {node: [(r, t) for r, t in self.case.validation if (node, r, t) not in done] for node in range(len(self.archive))}
        return {node: left for node, left in cells.items() if left}

    def _unanswered(self) -> set[tuple[int, str, str]]:
        """ResultCache that the present judges could not answer: missing, and not asked for again."""
        now = self.archive.incumbents
        return {(one.workspace, one.role, one.task) for one in self.past if one.success is None and counts(one.judges, now)}

    async def _evaluate(self, n: int, left: Mapping[int, Sequence[tuple[str, str]]]) -> None:
        found = await self.run.once_awaited(OUTCOME, str(n), WorkspaceOutcome, partial(self._evaluated, n, left))
        self.past.append(found)
        if found.success is not None:
            self.archive.add(UtilityRecord(found.workspace, found.role, found.task, found.success, found.judges))

    async def _evaluated(self, n: int, left: Mapping[int, Sequence[tuple[str, str]]]) -> tuple[WorkspaceOutcome, list[Record]]:
        at = self.archive.thompson(self.config, n, "evaluate", nodes=sorted(left))
        role, task = cell(self.archive, at, left[at], n, seed=self.config.seed)
        artefact, outcome = await self._artefact(at, role, task)
        success, judges, evidence = await self._scored(role, self.case.tasks[role][task], outcome, artefact.id)
        value = None if success is None else float(success)
        score = Score(artefact.id, role, value, evidence=evidence, judges=judges)
        return WorkspaceOutcome(at, role, task, success, judges, artefact.id), [artefact, score]

    async def _artefact(self, at: int, role: str, task: str) -> tuple[Node, EndedProgram]:
        """What the workspace makes of the task: its node, and the outcome of its program; what is stored is not made again."""
        row, above = self.case.tasks[role][task], self.run.node(self.nodes[at])
        about = {"workspace": at, "role": role, "task": task}
        stored = [one.node for one in self.past if (one.workspace, one.role, one.task) == (at, role, task)]
        if stored:
            node = self.run.node(stored[0])
            return node, EndedProgram(node.text, str(node.data["reason"]), node.data["code"])
        outcome = await self._ran(self.files[at], role, row)
        index = int(stable_hash("artefact", role, task)[:7], 16)
        about |= {"reason": outcome.reason, "code": outcome.code, "group": "machine"}
        return make_node(TREE, above.id, len(above), "tool", outcome.text, index=index, data=about), outcome

    async def _scored(
        self, role: str, task: RoleTask, outcome: EndedProgram, node: str
    ) -> tuple[bool | None, dict[str, str], dict[str, Any]]:
        """(success or missing, the judges it depends on, evidence).
        A program that fails did not succeed, whoever would have judged."""
        own = self.config.roles[role]
        if own.fills:
            answer = outcome.code == 0 if outcome.reason == "exit" and outcome.code in (0, 1) else None
            return (False if answer is None else answer is task.label), {}, {"said": answer}
        if outcome.reason != "exit" or outcome.code != 0:
            return False, {}, {"failed": f"{outcome.reason} {outcome.code}"}
        judge = self.slot_judges[own.slot] if own.slot else self.fixed[role]
        item = Item(outcome.text, node or task.id, task.given, task.data)
        (found,) = await judged(judge, [item], self.ledger)
        if found.value not in (0, 1):
            (found,) = await judged(judge, [item], self.ledger)
        evidence = {"failure": found.failure} if found.failure else {"evidence": found.evidence}
        success = truth(judge, found) if found.value in (None, 0, 1) else None
        return success, ({own.slot: judge.identity} if own.slot else {}), evidence

    # -- checkpoints

    async def _checkpoint(self, n: int) -> None:
        """Every slot is decided on what was known before, then all are replaced (section 3.3c)."""
        made = partial(self._all_decided, n)
        decided = await self.run.once_awaited(CHECKPOINT, str(n), SlotDecisions, made, partial(self._write_down, n))
        for slot, workspace, judge, _ in decided.replaced():
            before = self.archive.incumbents[slot]
            own = self._own(slot, workspace, self.files[workspace])
            if own.identity != judge:
                raise UserError(
                    f"workspace {workspace} of {self.run.folder} no longer holds the judge that took over after {n} outcomes"
                )
            self.slot_judges[slot] = own
            self.judges[own.identity] = own
            await self._fill_pool(slot, before)
        self.archive.replace({slot: judge for slot, _, judge, _ in decided.replaced()})

    async def _all_decided(self, n: int) -> tuple[SlotDecisions, list[Record]]:
        return SlotDecisions({slot: await self._decided(slot, n) for slot in self.config.slots}), []

    def _write_down(self, n: int, decided: SlotDecisions) -> None:
        """Looks at anchors, and the judges that take over, in the run."""
        for slot, one in decided.slots.items():
            look = AnchorLook(slot, self.case.anchors[slot].hash, one.challengers, one.why)
            self.run.log(LOOK, f"{slot} {n}", codec.to_json(look))
        for slot, workspace, judge, why in decided.replaced():
            name = f"{slot} of workspace {workspace}"
            self.run.replace_judge(slot, judge, {"spec": "", "name": name, "outcomes": n, "why": why, "workspace": workspace})

    async def _decided(self, slot: str, n: int) -> SlotDecision:
        incumbent = self.slot_judges[slot]
        roles = [role for role in self.config.roles.values() if role.fills == slot]
        challengers: dict[str, int] = {}
        for number, files in enumerate(self.files):
            for role in roles:
                name = judge_identity(files, role.command, role.files)
                if name != incumbent.identity:
                    challengers.setdefault(name, number)
        if not challengers:
            return SlotDecision("there is no challenger")
        anchor = self._union(slot)
        own = await answers(incumbent, anchor, ledger=self.ledger)
        found = [
            await answers(self._own(slot, number, self.files[number]), anchor, ledger=self.ledger)
            for number in challengers.values()
        ]
        look = 1 + self.looks.index(n)
        values = np.array([one.values for one in found])
        decision = decide(anchor.labels, own.values, values, self.config.promotion, look, anchor.first_half)
        made = SlotDecision(
            decision.why,
            tuple(challengers),
            look=look,
            pool=len(anchor) - len(self.case.anchors[slot]),
            incumbent=ShortQuality.of(quality(anchor, own)),
        )
        if decision.winner is None:
            return made
        judge, number = list(challengers.items())[decision.winner]
        winner = ShortQuality.of(quality(anchor, found[decision.winner]))
        return replace(made, judge=judge, workspace=number, winner=winner)

    def _union(self, slot: str) -> Anchor:
        """The anchor with the newest of the pool, at most ``adversarial`` of its size (section 3.5)."""
        anchor = self.case.anchors[slot]
        most = int(self.config.promotion.adversarial * len(anchor))
        return anchor.joined(self.pool[slot][:most]) if most else anchor

    async def _fill_pool(self, slot: str, displaced: str) -> None:
        """What the displaced judge accepted joins the pool as machine-made, the newest first;
        a slot's ``truth`` keeps the truly good out."""
        if not self.config.promotion.adversarial:
            return
        roles = {name for name, role in self.config.roles.items() if role.slot == slot}
        successes = [one for one in self.past if one.role in roles and one.judges.get(slot) == displaced and one.success]
        texts = {one.node: self.run.node(one.node).text for one in reversed(successes)}
        items = [Item(text, node) for node, text in texts.items() if text]
        if slot in self.truths and items:
            good = await judged(self.truths[slot], items, self.ledger)
            items = [item for item, one in zip(items, good, strict=True) if one.value != 1]
        known = {one.item.id for one in self.pool[slot]}
        self.pool[slot] = [*(Labelled(item, False, "machine") for item in items if item.id not in known), *self.pool[slot]]

    # -- what came out

    def result(self) -> EvolvedWorkspaces:
        """Generalist, one specialist a role, what was replaced, and how much counts."""
        past = {int(key): one for key, one in self.run.memo(CHECKPOINT, SlotDecisions).items()}
        counting = len(self.archive.counting())
        missing = sum(one.success is None for one in self.run.memo(OUTCOME, WorkspaceOutcome).values())
        return EvolvedWorkspaces(
            outcomes=len(self.archive.outcomes) + missing,
            counting=counting,
            erased=len(self.archive.outcomes) - counting,
            missing=missing,
            workspaces=len(self.archive),
            dropped=sum(one.node is None for one in self.run.memo(GROWN, GrownWorkspace).values()),
            generalist=self._endpoint(None),
            specialists={role: self._endpoint(role) for role in self.config.roles},
            seed=self._rates(0),
            looks=sum(len(one.slots) for one in past.values()),
            replaced=tuple(ReplacedJudge(n, *made) for n, one in sorted(past.items()) for made in one.replaced()),
            incumbents=dict(self.archive.incumbents),
            spent=self.ledger.spent,
        )

    def _endpoint(self, role: str | None) -> BestWorkspace:
        best, how = self.archive.best(role=role)
        rates = self._rates(best, role)
        return BestWorkspace(best, self.nodes[best], how, rates.successes, rates.n, rates.productivity)

    def _rates(self, node: int, role: str | None = None) -> WorkspaceRates:
        won = [one.success for one in self.archive.counting() if one.node == node and role in (None, one.role)]
        return WorkspaceRates(sum(won), len(won), self.archive.productivity(node))


def _placed(folder: Path, spec: str) -> str:
    """A spec whose file lies beside the case: ``cmd:edit.py`` and ``edit.py:improve`` are of its folder."""
    kind, colon, rest = spec.partition(":")
    if kind == "cmd" and rest and not Path(rest).is_absolute():
        return f"cmd:{folder / rest}"
    if colon and kind.endswith(".py") and not Path(kind).is_absolute():
        return f"{folder / kind}:{rest}"
    return spec


def begin(case: EvolutionCase, folder: Path) -> Run:
    """The run of a search. All that decides it is compared; the budget may grow, and the same command then continues."""
    decides = {name: value for name, value in case.config.to_json().items() if name != "budget"}
    return Run.begin(folder, KIND, decides, {"budget": case.config.budget}, parts=case.parts)


def warnings(case: EvolutionCase) -> tuple[str, ...]:
    """Judges of the family of the editor whose work they judge."""
    specs = [slot.judge for slot in case.config.slots.values()] + [role.judge for role in case.config.roles.values()]
    return tuple(sentence for spec in specs if (sentence := judges_itself(spec, [case.config.meta])))


def plan(case: EvolutionCase) -> dict[str, int]:
    """What a search would take, at most: counts only."""
    config, size = case.config, 1
    looked = checkpoints(config.first, RHO, config.budget)
    calls = 0
    for n in range(config.budget):
        if n in looked:
            calls += sum(len(anchor) for anchor in case.anchors.values()) * size
        size += gate_open(n, size, ALPHA)
    return {"outcomes": config.budget, "workspaces": size, "checkpoints": len(looked), "anchor answers": calls}


def evolve(
    case: EvolutionCase | Path | str, out: Path | str, progress: Progress = SILENT, allow_unsandboxed: bool = False
) -> EvolvedWorkspaces:
    """Run or continue the search of a case's folder in the run ``out``; what it found is in the run as well.

    Raises UserError where something does not fit or an anchor leaks, NeedsError where nothing isolates.
    """
    made = case if isinstance(case, EvolutionCase) else EvolutionCase(Path(case))
    with begin(made, Path(out)) as run:
        found = wait_for(Evolution(made, run, progress, allow_unsandboxed).go())
    return replace(found, caveats=warnings(made))


def archive_of(run: Run) -> tuple[list[tuple[dict[str, str], int | None, str]], dict[str, int]]:
    """Every workspace of a search (files, parent, message), and the numbers of its endpoints by name.
    Raises UserError on another run."""
    if run.kind != KIND:
        raise UserError(f"{run.folder} was not made by `ramify {KIND}`")
    nodes: list[tuple[dict[str, str], int | None, str]] = []
    for grown in run.memo(GROWN, GrownWorkspace).values():
        if grown.node is not None:
            node = run.node(grown.node)
            files = unpacked(run.get_blob(str(node.data["files"])))
            check_files(files, f"node {node.id}")
            message = f"workspace {len(nodes)}: {node.text}"[:200] + f"\n\nnode {node.id} of {canonical_json(run.kind)}\n"
            nodes.append((files, grown.parent, message))
    if not nodes:
        raise UserError(f"{run.folder} holds no workspace yet: `ramify {KIND} CASE --out {run.folder}` continues it")
    names: dict[str, int] = {}
    for one in run.findings(maker=KIND):
        if one.name != REPLACED and isinstance(one.evidence, dict):
            names[one.name.replace(", ", "-").replace(" ", "-")] = int(one.evidence["workspace"])
    return nodes, names
