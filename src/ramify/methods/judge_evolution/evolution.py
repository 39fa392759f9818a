"""The search (section 3.3) on workspaces of your own: the archive is a tree of the run,
its outcomes are scores, every step is in the journal.

A step is decided by the seed, its number, and what is stored, and it is committed whole; so the same command continues a search
that was killed, and ends where the undisturbed one would have. Programs of workspaces run in the sandbox only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

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
from ramify.methods.judge_evolution.ledger import LOOK, QUESTION, judges_itself
from ramify.methods.judge_evolution.meta import Editor, find_editor, provenance_of
from ramify.methods.judge_evolution.workspace import (
    Files,
    Program,
    WorkspaceJudge,
    changed,
    check_files,
    judge_identity,
    packed,
    read_rows,
    read_workspace,
    unpacked,
)  # fmt: skip
from ramify.sandbox.find import find_sandbox
from ramify.score.anchor import Anchor, Labelled, answers, leaks, quality, read_anchor
from ramify.score.judge import Item, Judge, find_judge, judged, truth
from ramify.trace.db import Run
from ramify.trace.foreign import root
from ramify.trace.node import Finding, Score, make_node

KIND = "judge-evolution evolve"
TREE = "archive"
GROWN, OUTCOME, CHECKPOINT = "workspace", "outcome", "checkpoint"
"""What the journal calls a try to grow the archive, one outcome, and one look at all slots."""
FRUITLESS = 12
"""Proposals in a row that may fail before a search without anything left to measure ends."""


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
        self.tasks: dict[str, dict[str, dict[str, Any]]] = {}
        for name, role in config.roles.items():
            self._fits(file, name, role)
            need = ("artefact", "label") if role.fills else ("input",)
            self.tasks[name] = {str(row["id"]): dict(row) for row in read_rows(self.folder / role.tasks, need)}
        for slot, own in config.slots.items():
            if not own.judge and not any(role.fills == slot for role in config.roles.values()):
                raise UserError(f"{file}: slot '{slot}' has no first judge: name one with judge, or let a role fill it")
        self.validation = [
            (r, t) for r, tasks in self.tasks.items() for t, row in tasks.items() if row.get("split", "validation") != "train"
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

    def train(self, role: str) -> list[dict[str, Any]]:
        """Its training tasks, as many as a workspace plays."""
        return [row for row in self.tasks[role].values() if row.get("split") == "train"][: self.config.train]

    @property
    def parts(self) -> dict[str, str]:
        """What the settings name, as hashes."""
        found = {"workspace": json_hash(dict(self.workspace)), "tasks": json_hash(self.tasks)}
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
        self.feedback: list[list[dict[str, Any]]] = []
        self.slot_judges: dict[str, Judge] = {}
        self.judges: dict[str, Judge] = {}
        self.known = {(one.kind, one.key): one.payload for one in run.journal() if one.kind in (GROWN, OUTCOME, CHECKPOINT)}
        self.pool: dict[str, list[Labelled]] = {slot: [] for slot in self.config.slots}
        self.looks = checkpoints(self.config.first, RHO, self.config.budget)
        self.past: list[Mapping[str, Any]] = []
        """Outcomes so far, in order; ``known`` may hold later ones."""
        self.fixed = {
            name: find_judge(_placed(case.folder, role.judge), question=QUESTION)
            for name, role in self.config.roles.items()
            if role.judge
        }
        self.truths = {
            name: find_judge(_placed(case.folder, slot.truth), question=QUESTION)
            for name, slot in self.config.slots.items()
            if slot.truth
        }

    async def go(self) -> dict[str, Any]:
        """Every outcome up to the budget; returns :meth:`result`.
        Raises UserError where an anchor leaks, NeedsError without a sandbox."""
        await self._seed()
        self.progress.begin(self.config.budget, 0, "", "outcomes")
        for n in range(self.config.budget):
            if not await self.step(n):
                break
            self.progress.at(n + 1, f"{len(self.archive)} workspaces")
        found = self.result()
        self._conclude(found)
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
        if (GROWN, "seed") not in self.known:
            trained = await self._trained(self.case.workspace)
            if isinstance(trained, str):
                raise UserError(f"the seed workspace {self.case.folder / self.config.workspace} does not run: {trained}")
            with self.run.transaction():
                self.run.add_tree(
                    TREE, {"id": TREE, "data": {"roles": list(self.config.roles), "slots": list(self.config.slots)}}
                )
                node = self._keep(None, self.case.workspace, trained, "the seed", -1)
                self._note(GROWN, "seed", {"node": node, "parent": None})
                for slot in self.config.slots:
                    first = self.slot_judges[slot]
                    self.run.replace_judge(
                        slot,
                        first.identity,
                        {"spec": self.config.slots[slot].judge, "name": first.name, "outcomes": 0, "workspace": 0},
                    )
        self._take(self.known[GROWN, "seed"])

    def _first(self, slot: str) -> Judge:
        spec = self.config.slots[slot].judge
        if spec:
            return find_judge(_placed(self.case.folder, spec), question=QUESTION)
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
        if (GROWN, key) not in self.known:
            parent = self.archive.thompson(self.config, key, "expand")
            proposed = await self._proposed(key, parent)
            with self.run.transaction():
                if isinstance(proposed, str):
                    self._note(GROWN, key, {"node": None, "parent": parent, "why": proposed[:300]})
                else:
                    files, trained = proposed
                    node = self._keep(
                        parent, files, trained, ", ".join(changed(self.files[parent], files)) or "nothing changed", n
                    )
                    self._note(GROWN, key, {"node": node, "parent": parent})
        self._take(self.known[GROWN, key])

    async def _proposed(self, key: str, parent: int) -> tuple[Files, list[dict[str, Any]]] | str:
        """A child's files and how its training tasks went, or why there is none."""
        feedback = [one for node in reversed(self.archive.lineage(parent)) for one in self.feedback[node]]
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

    async def _trained(self, files: Files) -> list[dict[str, Any]] | str:
        """Transcripts of the training tasks; a sentence where a program of the workspace does not even run."""
        found: list[dict[str, Any]] = []
        for name, role in self.config.roles.items():
            rows = self.case.train(name)
            for row in rows or list(self.case.tasks[name].values())[:1]:
                outcome = await self._ran(files, name, row)
                if outcome.reason != "exit" or outcome.code not in ((0, 1) if role.fills else (0,)):
                    return (
                        f"role '{name}' ended with {outcome.reason} {outcome.code} on task '{row['id']}': "
                        f"{outcome.error_text.strip()[-160:]}"
                    )
                if rows:
                    success, _, _ = await self._scored(name, row, outcome, "")
                    found.append({"role": name, "task": row["id"], "made": outcome.text[:2000], "success": success})
        return found

    async def _ran(self, files: Files, role: str, row: Mapping[str, Any]) -> Any:
        given = row["artefact"] if self.config.roles[role].fills else row["input"]
        return await Program(self.sandbox, files, self.config.roles[role].command, self.config.seconds).run(str(given))

    def _keep(self, parent: int | None, files: Files, trained: Sequence[Mapping[str, Any]], what: str, n: int) -> str:
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
            data={"workspace": len(self.nodes), "files": blob, "train": [dict(one) for one in trained]},
        )
        self.run.add(*([provenance] if parent is not None else []), node)
        return node.id

    def _take(self, record: Mapping[str, Any]) -> None:
        """Take a workspace that the run holds into the archive."""
        if record["node"] is None:
            return
        node = self.run.node(str(record["node"]))
        if record["parent"] is not None:
            self.archive.grow(int(record["parent"]))
        self.nodes.append(node.id)
        self.files.append(unpacked(self.run.get_blob(str(node.data["files"]))))
        self.feedback.append([dict(one) for one in node.data["train"]])

    def _note(self, kind: str, key: str, payload: Mapping[str, Any]) -> None:
        self.run.log(kind, key, dict(payload))
        self.known[kind, key] = dict(payload)

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
        return {
            (record["workspace"], record["role"], record["task"])
            for record in self.past
            if record["success"] is None and all(now.get(slot) == judge for slot, judge in record["judges"].items())
        }

    async def _evaluate(self, n: int, left: Mapping[int, Sequence[tuple[str, str]]]) -> None:
        if (OUTCOME, str(n)) not in self.known:
            at = self.archive.thompson(self.config, n, "evaluate", nodes=sorted(left))
            role, task = cell(self.archive, at, left[at], n, seed=self.config.seed)
            artefact, outcome = await self._artefact(at, role, task)
            success, judges, evidence = await self._scored(role, self.case.tasks[role][task], outcome, artefact.id)
            with self.run.transaction():
                self.run.add(artefact)
                value = None if success is None else float(success)
                self.run.add(Score(artefact.id, role, value, evidence=evidence, judges=judges))
                self._note(
                    OUTCOME,
                    str(n),
                    {"workspace": at, "role": role, "task": task, "success": success, "judges": judges, "node": artefact.id},
                )
        record = self.known[OUTCOME, str(n)]
        self.past.append(record)
        if record["success"] is not None:
            self.archive.add(
                UtilityRecord(record["workspace"], record["role"], record["task"], record["success"], record["judges"])
            )

    async def _artefact(self, at: int, role: str, task: str) -> tuple[Any, Any]:
        """What the workspace makes of the task: its node, and the outcome of its program; what is stored is not made again."""
        row, above = self.case.tasks[role][task], self.run.node(self.nodes[at])
        about = {"workspace": at, "role": role, "task": task}
        stored = [one["node"] for one in self.past if (one["workspace"], one["role"], one["task"]) == (at, role, task)]
        if stored:
            node = self.run.node(stored[0])
            return node, _Kept(node.text, str(node.data["reason"]), int(node.data["code"]))
        outcome = await self._ran(self.files[at], role, row)
        index = int(stable_hash("artefact", role, task)[:7], 16)
        about |= {"reason": outcome.reason, "code": outcome.code, "group": "machine"}
        return make_node(TREE, above.id, len(above), "tool", outcome.text, index=index, data=about), outcome

    async def _scored(
        self, role: str, row: Mapping[str, Any], outcome: Any, node: str
    ) -> tuple[bool | None, dict[str, str], dict[str, Any]]:
        """(success or missing, the judges it depends on, evidence).
        A program that fails did not succeed, whoever would have judged."""
        own = self.config.roles[role]
        if own.fills:
            answer = outcome.code == 0 if outcome.reason == "exit" and outcome.code in (0, 1) else None
            return (False if answer is None else answer is bool(row["label"])), {}, {"said": answer}
        if outcome.reason != "exit" or outcome.code != 0:
            return False, {}, {"failed": f"{outcome.reason} {outcome.code}"}
        judge = self.slot_judges[own.slot] if own.slot else self.fixed[role]
        data = {name: value for name, value in row.items() if name not in ("id", "input", "split")}
        item = Item(outcome.text, node or str(row["id"]), str(row["input"]), data)
        (found,) = await judged(judge, [item], self.ledger)
        if found.value not in (0, 1):
            (found,) = await judged(judge, [item], self.ledger)
        evidence = {"failure": found.failure} if found.failure else {"evidence": found.evidence}
        success = truth(judge, found) if found.value in (None, 0, 1) else None
        return success, ({own.slot: judge.identity} if own.slot else {}), evidence

    # -- checkpoints

    async def _checkpoint(self, n: int) -> None:
        """Every slot is decided on what was known before, then all are replaced (section 3.3c)."""
        if (CHECKPOINT, str(n)) not in self.known:
            decided = {slot: await self._decided(slot, n) for slot in self.config.slots}
            with self.run.transaction():
                erased = 0
                for slot, record in decided.items():
                    self.run.log(
                        LOOK,
                        f"{slot} {n}",
                        {
                            "slot": slot,
                            "anchor": self.case.anchors[slot].hash,
                            "challengers": record["challengers"],
                            "why": record["why"],
                        },
                    )
                    if record["judge"] is not None:
                        about = {
                            "spec": "",
                            "name": f"{slot} of workspace {record['workspace']}",
                            "outcomes": n,
                            "why": record["why"],
                            "workspace": record["workspace"],
                        }
                        erased += self.run.replace_judge(slot, record["judge"], about)
                self._note(CHECKPOINT, str(n), {"slots": decided, "erased": erased})
        record = self.known[CHECKPOINT, str(n)]
        for slot, one in record["slots"].items():
            if one["judge"] is not None:
                before = self.archive.incumbents[slot]
                own = self._own(slot, one["workspace"], self.files[one["workspace"]])
                if own.identity != one["judge"]:
                    raise UserError(
                        f"workspace {one['workspace']} of {self.run.folder} no longer holds the judge that took over after {n} "
                        "outcomes"
                    )
                self.slot_judges[slot] = own
                self.judges[own.identity] = own
                await self._fill_pool(slot, before)
        self.archive.replace({slot: one["judge"] for slot, one in record["slots"].items() if one["judge"] is not None})

    async def _decided(self, slot: str, n: int) -> dict[str, Any]:
        incumbent, none = self.slot_judges[slot], {"judge": None, "workspace": None}
        roles = [role for role in self.config.roles.values() if role.fills == slot]
        challengers: dict[str, int] = {}
        for number, files in enumerate(self.files):
            for role in roles:
                name = judge_identity(files, role.command, role.files)
                if name != incumbent.identity:
                    challengers.setdefault(name, number)
        if not challengers:
            return {**none, "why": "there is no challenger", "challengers": [], "anchor": None}
        anchor = self._union(slot)
        own = await answers(incumbent, anchor, ledger=self.ledger)
        found = [
            await answers(self._own(slot, number, self.files[number]), anchor, ledger=self.ledger)
            for number in challengers.values()
        ]
        look = 1 + sum(1 for (kind, key) in self.known if kind == CHECKPOINT and int(key) < n)
        values = np.array([one.values for one in found])
        decision = decide(anchor.labels, own.values, values, self.config.promotion, look, anchor.first_half)
        measured = {"incumbent": _short(quality(anchor, own)), "pool": len(anchor) - len(self.case.anchors[slot])}
        summary = {"why": decision.why, "challengers": list(challengers), "look": look, **measured}
        if decision.winner is None:
            return {**none, **summary}
        judge, number = list(challengers.items())[decision.winner]
        return {"judge": judge, "workspace": number, **summary, "winner": _short(quality(anchor, found[decision.winner]))}

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
        successes = [one for one in self.past if one["role"] in roles and one["judges"].get(slot) == displaced and one["success"]]
        texts = {one["node"]: self.run.node(one["node"]).text for one in reversed(successes)}
        items = [Item(text, node) for node, text in texts.items() if text]
        if slot in self.truths and items:
            good = await judged(self.truths[slot], items, self.ledger)
            items = [item for item, one in zip(items, good, strict=True) if one.value != 1]
        known = {one.item.id for one in self.pool[slot]}
        self.pool[slot] = [*(Labelled(item, False, "machine") for item in items if item.id not in known), *self.pool[slot]]

    # -- what came out

    def result(self) -> dict[str, Any]:
        """Generalist, one specialist a role, what was replaced, and how much counts."""
        best, how = self.archive.best()
        specialists = {role: self.archive.best(role=role) for role in self.config.roles}
        past = {int(key): record for (kind, key), record in self.known.items() if kind == CHECKPOINT}
        replaced = [
            {"outcomes": n, "slot": slot, "workspace": one["workspace"], "judge": one["judge"], "why": one["why"]}
            for n, record in sorted(past.items()) for slot, one in record["slots"].items() if one["judge"] is not None
        ]  # fmt: skip
        counting = len(self.archive.counting())
        missing = sum(record["success"] is None for (kind, _), record in self.known.items() if kind == OUTCOME)
        return {
            "outcomes": len(self.archive.outcomes) + missing,
            "counting": counting,
            "erased": len(self.archive.outcomes) - counting,
            "missing": missing,
            "workspaces": len(self.archive),
            "dropped": sum(record["node"] is None for (kind, _), record in self.known.items() if kind == GROWN),
            "generalist": {"workspace": best, "node": self.nodes[best], "found by": how, **self._rates(best)},
            "specialists": {
                role: {"workspace": node, "node": self.nodes[node], "found by": way, **self._rates(node, role)}
                for role, (node, way) in specialists.items()
            },
            "seed": self._rates(0),
            "looks": sum(len(record["slots"]) for record in past.values()),
            "replaced": replaced,
            "incumbents": dict(self.archive.incumbents),
            "spent": self.ledger.to_json()["spent"],
        }

    def _rates(self, node: int, role: str | None = None) -> dict[str, Any]:
        won = [one.success for one in self.archive.counting() if one.node == node and role in (None, one.role)]
        return {"successes": sum(won), "n": len(won), "productivity": self.archive.productivity(node)}

    def _conclude(self, found: Mapping[str, Any]) -> None:
        """Keep the endpoint and every replacement as findings of the run."""
        do = f"ramify judge-evolution export {self.run.folder} --out DIR writes every workspace as a git commit"
        ends = [
            ("generalist", found["generalist"]),
            *((f"specialist, {role}", one) for role, one in found["specialists"].items()),
        ]
        findings = [
            Finding(
                name,
                KIND,
                f"workspace {one['workspace']}: {one['successes']} of {one['n']} outcomes that count succeeded",
                one["node"],
                0,
                do,
                one["successes"] / one["n"] if one["n"] else None,
                "share",
                dict(one),
            )
            for name, one in ends
        ]
        findings += [
            Finding("judge replaced", KIND, f"after {one['outcomes']} outcomes the judge of '{one['slot']}' became that of "
                                            f"workspace {one['workspace']}: {one['why']}",
                    self.nodes[one["workspace"]], evidence=one)
            for one in found["replaced"]
        ]  # fmt: skip
        self.run.conclude(KIND, findings)


class _Kept:
    """The outcome of a program, as its artefact's node holds it."""

    def __init__(self, text: str, why: str, code: int) -> None:
        self.text, self.reason, self.code, self.error_text = text, why, code, ""


def _short(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in ("accuracy", "sensitivity", "specificity", "missing")}


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


def warnings(case: EvolutionCase) -> list[str]:
    """Judges of the family of the editor whose work they judge."""
    specs = [slot.judge for slot in case.config.slots.values()] + [role.judge for role in case.config.roles.values()]
    return [sentence for spec in specs if (sentence := judges_itself(spec, [case.config.meta]))]


def plan(case: EvolutionCase) -> dict[str, Any]:
    """What a search would take, at most: counts only."""
    config, size = case.config, 1
    looked = checkpoints(config.first, RHO, config.budget)
    calls = 0
    for n in range(config.budget):
        if n in looked:
            calls += sum(len(anchor) for anchor in case.anchors.values()) * size
        size += gate_open(n, size, ALPHA)
    return {"outcomes": config.budget, "workspaces": size, "checkpoints": len(looked), "anchor answers at most": calls}


def evolve(
    case: EvolutionCase | Path | str, out: Path | str, progress: Progress = SILENT, allow_unsandboxed: bool = False
) -> dict[str, Any]:
    """Run or continue the search of a case's folder in the run ``out``; what it found is in the run as well.

    Raises UserError where something does not fit or an anchor leaks, NeedsError where nothing isolates.
    """
    made = case if isinstance(case, EvolutionCase) else EvolutionCase(Path(case))
    with begin(made, Path(out)) as run:
        return wait_for(Evolution(made, run, progress, allow_unsandboxed).go())


def archive_of(run: Run) -> tuple[list[tuple[dict[str, str], int | None, str]], dict[str, int]]:
    """Every workspace of a search (files, parent, message), and the numbers of its endpoints by name.
    Raises UserError on another run."""
    if run.kind != KIND:
        raise UserError(f"{run.folder} was not made by `ramify {KIND}`")
    nodes: list[tuple[dict[str, str], int | None, str]] = []
    for record in (dict(one.payload) for one in run.journal(GROWN)):
        if record["node"] is not None:
            node = run.node(str(record["node"]))
            files = unpacked(run.get_blob(str(node.data["files"])))
            check_files(files, f"node {node.id}")
            message = f"workspace {len(nodes)}: {node.text}"[:200] + f"\n\nnode {node.id} of {canonical_json(run.kind)}\n"
            nodes.append((files, record["parent"], message))
    if not nodes:
        raise UserError(f"{run.folder} holds no workspace yet: `ramify {KIND} CASE --out {run.folder}` continues it")
    names: dict[str, int] = {}
    for one in run.findings(maker=KIND):
        if one.name != "judge replaced" and isinstance(one.evidence, dict):
            names[one.name.replace(", ", "-").replace(" ", "-")] = int(one.evidence["workspace"])
    return nodes, names
