"""The search: choose a node, diagnose it, let the proposer write candidates,
put each through the wall, and note it, on the kernel's search loop.

Everything lies in the run: candidates are nodes of one tree (their text is the code), what they were worth is a score, what the
tools said of them are findings, and each evaluation is one committed entry of the journal; so the same command continues a search
that was killed, and a tree is made again from its journal bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ramify.base import codec
from ramify.base.errors import InfrastructureError, UserError
from ramify.base.progress import SILENT, Progress
from ramify.base.waiting import wait_for
from ramify.methods.kernel_search.algorithm import EACH, CandidateNode, CandidateTree, Gain, KernelSearchConfig, reward
from ramify.methods.kernel_search.diagnosis import Roofs, class_of, floor_of, gather, measured_roofs
from ramify.methods.kernel_search.library import CodeLibrary
from ramify.methods.kernel_search.proposers import KernelProposer, Proposal, SearchMemory, find_proposer
from ramify.methods.kernel_search.report import LineStep, SearchedKernel, ToolRate
from ramify.methods.kernel_search.task import KernelTask
from ramify.methods.kernel_search.tools import Prescription, examine
from ramify.methods.kernel_search.wall import Built, Code, Wall, WallTrial
from ramify.rollout.search import search as search_loop
from ramify.trace.db import Run
from ramify.trace.node import Finding, Provenance, Score, make_node

KIND = "kernel-search search"
TREE, TRIAL, SPENT = "candidates", "candidate", "nothing left"
SCORER = "speed-up"


@dataclass
class BestKernel:
    """What a search came to."""

    best: Code
    number: int
    gain: Gain | None
    """None where nothing was faster than the original."""
    tree: CandidateTree
    codes: list[Code]
    trials: list[WallTrial]
    tools: list[tuple[str, str]]
    """(transform or author, tool) of every candidate."""
    confirmed: WallTrial | None = None
    """The best one timed again by :meth:`Wall.confirm`, with twice the pairs: this is what is reported."""
    stopped: str = ""
    repeated: int = 0
    """Proposals that were the same code as an earlier candidate: not compiled again."""
    rates: dict[str, tuple[int, int]] = field(default_factory=dict)
    """ProfileTool -> (its transforms that gained over their parent, tries)."""

    @property
    def speedup(self) -> float:
        """Of the best one over the original, as confirmed; 1 where nothing was faster."""
        return self.gain.speedup if self.gain else 1.0

    @property
    def ci(self) -> tuple[float, float]:
        """95 % interval of the speed-up."""
        return (self.gain.low, self.gain.high) if self.gain else (1.0, 1.0)

    @property
    def code(self) -> str:
        """Source of the best one."""
        return self.best.source

    def result(self, strict: bool = False) -> SearchedKernel:
        """As the verb returns it; with ``strict`` nothing faster is a failure."""
        return SearchedKernel(
            speedup=self.speedup,
            interval=self.ci,
            gain=self.gain,
            number=self.number,
            best=self.best,
            candidates=len(self.trials) - 1,
            refused=sum(not each.ok for each in self.trials[1:]),
            repeated=self.repeated,
            unranked=sum(each.gain is not None and not each.gain.ranked for each in self.trials),
            stopped=self.stopped,
            line=tuple(LineStep(each.number, each.how, each.speedup) for each in reversed(list(self.tree.line(self.number)))),
            tools={name: ToolRate(*rate) for name, rate in sorted(self.rates.items())},
            strict=strict,
        )


@dataclass(frozen=True, slots=True)
class TriedCandidate:
    """A candidate in the journal."""

    code: Code
    how: str
    tool: str
    trial: WallTrial
    roof: float
    """Fraction of the roof that it reaches."""
    parent: int
    machine: str = ""
    """Hash of its machine code."""


class KernelSearch:
    """One search, with or without a run."""

    def __init__(
        self, task: KernelTask, config: KernelSearchConfig | None = None, run: Run | None = None, *, wall: Wall | None = None,
        proposer: KernelProposer | None = None, progress: Progress = SILENT, roofs: Roofs | None = None, simulate: bool = False,
        allow_unsandboxed: bool = False,
        rank: Callable[[WallTrial], float | None] | None = None, score: Callable[[float | None], float] | None = None,
    ) -> None:  # fmt: skip
        self.task, self.config, self.run, self.progress, self.roofs, self.simulate = (
            task,
            config or KernelSearchConfig(),
            run,
            progress,
            roofs,
            simulate,
        )
        self.wall = wall or Wall(
            task,
            pairs=self.config.pairs,
            batch_seconds=self.config.batch,
            seed=self.config.seed,
            allow_unsandboxed=allow_unsandboxed,
        )
        self.memory = SearchMemory(Path(self.config.memory) if self.config.memory else None)
        self.library = CodeLibrary(self.config.library) if self.config.library else None
        self.proposer = proposer or find_proposer(self.config.proposer, task, self.config.seed, self.memory, self.library)
        self.tree = CandidateTree(self.wall.original.key, self.config.algo, score)
        self.codes, self.trials, self.how = [self.wall.original], [WallTrial()], [("", "")]
        self.nodes: list[str] = []
        self.builds: dict[int, Built | str] = {}
        self.findings: dict[int, list[Prescription]] = {}
        self.repeated, self.stopped, self.begun = 0, "", time.monotonic()
        self.rank = rank or ranked_speedup
        self.known = (
            {(entry.kind, entry.key): entry.payload for entry in run.journal() if entry.kind in (TRIAL, SPENT)} if run else {}
        )
        self.rates: dict[str, tuple[int, int]] = {}
        self.machines: dict[str, int] = {}
        """Hash of machine code -> the first candidate that compiled to it."""
        self._round = 0
        self._busy = False

    async def go(self) -> BestKernel:
        """Search up to the budget. Raises UserError where the original fails its own reference."""
        await self.wall.prepare()
        self._met(self.wall.machine, 0)
        if self.roofs is not None and not self.wall.floor:
            self.wall.floor = floor_of(self.task, self.roofs)
        if self.roofs is not None:
            self.memory.klass = class_of(*self.task.work(), self.roofs)
        if self.run is not None and not self.run.has_tree(TREE):
            with self.run.transaction():
                self.run.add_tree(TREE, {"id": TREE, "data": {"kernel": self.task.name, "kind": self.task.kind}})
        if self.run is not None:
            self.nodes.append(self._node(None, self.wall.original, "the original"))
        self.progress.begin(self.config.evals, 0, "", "candidates")
        await search_loop(self.tree, self._select, self._expand, lambda tree, pick, result: tree)
        best = await self._best_found()
        if self.library is not None and best.gain is not None:
            self.library.keep(self.task, best.best, best.speedup)
        if self.run is not None:
            self.run.conclude(KIND, self._conclusions(best))
        return best

    @property
    def done(self) -> int:
        """Candidates evaluated."""
        return len(self.trials) - 1

    def _select(self, tree: CandidateTree) -> int | None:
        if self.done >= self.config.evals:
            self.stopped = "the budget of candidates is spent"
            return None
        if time.monotonic() - self.begun > self.config.seconds:
            self.stopped = "the time is spent"
            return None
        chosen = tree.select()
        if chosen is None:
            self.stopped = "nothing is left to propose"
        return chosen

    async def _expand(self, number: int) -> None:
        """Propose from one node and evaluate each proposal; what the journal knows is taken over."""
        self._round += 1
        key = str(self._round)
        if (SPENT, key) in self.known:
            self.tree.spent(number)
            return
        most = min(EACH, self.config.evals - self.done)
        known = [self.known.get((TRIAL, f"{self._round}.{i}")) for i in range(most)]
        whole = (TRIAL, f"{self._round}.end") in self.known
        proposals = [] if whole else await self._proposed(number, most)
        if not whole and not proposals and not any(known):
            self._note(SPENT, key, {"parent": number})
            self.tree.spent(number)
            return
        for i in range(max(len(proposals), sum(each is not None for each in known))):
            held = known[i]
            if held is not None:
                record = codec.from_json(TriedCandidate, held, f"candidate {self._round}.{i}")
            else:
                code, how, tool = proposals[i]
                trial, built = await self._tried(code)
                reached = 0.0 if trial.gain is None or self.roofs is None else self.wall.floor / trial.gain.candidate
                machine = "" if isinstance(built, str) else built.machine
                record = TriedCandidate(code, how, tool, trial, reached, number, machine)
                self._note(TRIAL, f"{self._round}.{i}", codec.to_json(record))
                self.builds[len(self.trials)] = built
            self._take(number, record)
            if held is None and self.config.memory:
                self._remember(number, record)
        self._note(TRIAL, f"{self._round}.end", {})

    async def _tried(self, code: Code) -> tuple[WallTrial, Built | str]:
        built = await self.wall.build(code)
        if not isinstance(built, str) and (twin := self.machines.get(built.machine)) is not None:
            same = (
                f"it compiles to the machine code of {f'candidate {twin}' if twin else 'the original'}, so it is not timed again"
            )
            return replace(self.trials[twin], notes=(*self.wall.notes, same)), built
        trial = await self.wall.trial(code, len(self.trials), built=built)
        if trial.gain is not None and not trial.gain.ranked:  # noise: once more, with twice the pairs
            trial = await self.wall.trial(code, len(self.trials), built=built, pairs=2 * self.wall.pairs)
        return trial, built

    async def _proposed(self, number: int, most: int) -> list[Proposal]:
        trial = self.trials[number]
        findings = [] if trial.refused else await self._findings(number)
        position = (number, self._round)
        try:
            offered = await self.proposer.propose(
                self.codes[number], findings, trial.refused, most, position, {each.key: 1 for each in self.codes}
            )
        except InfrastructureError as error:
            self.stopped = f"the proposer failed: {error.message}"
            raise
        fresh = [each for each in offered if each[0].key not in self.tree.known]
        self.repeated += len(offered) - len(fresh)
        return fresh

    async def _findings(self, number: int) -> list[Prescription]:
        if number not in self.findings:
            metrics = await gather(
                self.wall,
                self.codes[number],
                self.builds.get(number),
                simulate=self.simulate,
                roofs=None,
                trial=self.trials[number],
            )
            self.findings[number] = examine(metrics)[0]
            if self.run is not None:
                self.run.conclude(
                    f"{KIND} {number}",
                    [prescription.finding(f"{KIND} {number}", self.nodes[number]) for prescription in self.findings[number]],
                )
        return self.findings[number]

    def _take(self, parent: int, record: TriedCandidate) -> None:
        code, trial, tool = record.code, record.trial, record.tool
        number = self.tree.add(parent, code.key, self.rank(trial), record.how, record.roof)
        self.codes.append(code)
        self.trials.append(trial)
        self._met(record.machine, number)
        self.how.append((record.how, tool))
        above, reached = self.tree.nodes[parent].speedup, self.tree.nodes[number].speedup
        ratio = reached / above if reached and above else None
        if tool:
            hits, tries = self.rates.get(tool, (0, 0))
            self.rates[tool] = (hits + bool(ratio and ratio > 1.5), tries + 1)
        if self.run is not None:
            self.nodes.append(self._node(parent, code, record.how, trial))
        self.progress.at(self.done, f"best {self.tree.nodes[self.tree.best].speedup or 1:.2f}x")

    def _remember(self, parent: int, record: TriedCandidate) -> None:
        """Append the newest candidate to the memory; one that a continued search takes over is there already."""
        above, reached = self.tree.nodes[parent].speedup, self.tree.nodes[-1].speedup
        self.memory.add(record.tool, record.how, reached / above if reached and above else None, record.trial.refused)

    def _met(self, machine: str, number: int) -> None:
        if machine:
            self.machines.setdefault(machine, number)

    def _note(self, kind: str, key: str, payload: dict[str, Any]) -> None:
        if self.run is not None:
            self.run.log(kind, key, payload)
            self.run.commit()
        self.known[kind, key] = payload

    def _node(self, parent: int | None, code: Code, how: str, trial: WallTrial | None = None) -> str:
        assert self.run is not None
        author = Provenance(self.proposer.name, "", {}, self.config.seed)
        above = None if parent is None else self.nodes[parent]
        number = len(self.nodes)
        data = {
            "flags": list(code.flags),
            "macros": dict(code.macros),
            "how": how,
            "number": number,
            "refused": trial.refused if trial else "",
        }
        node = make_node(
            TREE,
            above,
            0 if above is None else 1,
            "root" if above is None else "assistant",
            code.source,
            index=-1 if above is None else number,
            provenance=None if above is None else author.hash,
            data=data,
        )
        with self.run.transaction():
            self.run.add(author, node)
            if trial is not None:
                value = ranked_speedup(trial)
                self.run.add(
                    Score(
                        node.id,
                        SCORER,
                        None if trial.ok and value is None else value or 0.0,
                        "times faster",
                        evidence=codec.to_json(trial) | {"reward": reward(value)},
                    )
                )
        return node.id

    async def _best_found(self) -> BestKernel:
        """The best candidate, timed once more in fresh processes with twice the pairs:
        the best of many looks better than it is."""
        promising: dict[Gain, CandidateNode] = {}
        for node in sorted((node for node in self.tree.nodes[1:] if node.correct), key=lambda node: -(node.speedup or 0)):
            gain = self.trials[node.number].gain
            if gain is not None and gain.gains:
                promising.setdefault(gain, node)  # candidates of one machine code have one gain
        best, confirmed = 0, None
        for node in list(promising.values())[:3]:
            record = self.known.get((TRIAL, f"confirmed {node.number} of {self.done}"))
            again = (
                codec.from_json(WallTrial, record, f"candidate {node.number}, confirmed")
                if record
                else await self.wall.confirm(self.codes[node.number], 1_000_000 + node.number, pairs=2 * self.wall.pairs)
            )
            self._note(TRIAL, f"confirmed {node.number} of {self.done}", codec.to_json(again))
            if again.ok and again.gain is not None and again.gain.gains:
                best, confirmed = node.number, again
                break
        gain = confirmed.gain if confirmed else None
        return BestKernel(
            self.codes[best],
            best,
            gain,
            self.tree,
            self.codes,
            self.trials,
            self.how,
            confirmed,
            self.stopped,
            self.repeated,
            self.rates,
        )

    def _conclusions(self, best: BestKernel) -> list[Finding]:
        if best.gain is None:
            return [
                Finding(
                    "nothing faster",
                    KIND,
                    f"none of {self.done} candidates is faster than the original",
                    self.nodes[0],
                    value=1.0,
                    unit="times faster",
                )
            ]
        why = (
            f"candidate {best.number} ({self.tree.nodes[best.number].how}) is {best.speedup:.2f} times as fast, 95 % "
            f"interval {best.ci[0]:.2f} to {best.ci[1]:.2f}, confirmed in {best.gain.rounds} pairs of fresh processes"
        )
        return [
            Finding(
                "faster kernel",
                KIND,
                why,
                self.nodes[best.number],
                0,
                f"ramify kernel-search explain {self.run.folder if self.run else 'RUN'} --code best",
                best.speedup,
                "times faster",
                best.result().to_keep(),
            )
        ]


def ranked_speedup(trial: WallTrial) -> float | None:
    """What a trial counts in the tree: the lower bound of its speed-up;
    1 of times too noisy to rank, or none; None of a refused one."""
    if not trial.ok:
        return None
    if trial.gain is None or not trial.gain.ranked:
        return 1.0
    return trial.gain.low


def begin(task: KernelTask, config: KernelSearchConfig, folder: Path) -> Run:
    """The run of a search. All that decides it is compared; the budget may grow, and the same command then continues."""
    free = ("evals", "seconds", "library")
    decides = {name: value for name, value in config.to_json().items() if name not in free} | {"kernel": task.symbol}
    return Run.begin(folder, KIND, decides, {name: getattr(config, name) for name in free}, parts={"task": task.identity})


def search(
    task: KernelTask, config: KernelSearchConfig | None = None, out: Path | str | None = None, *,
    proposer: KernelProposer | None = None, progress: Progress = SILENT,
    roofs: bool = True, simulate: bool = False, allow_unsandboxed: bool = False, **settings: Any,
) -> BestKernel:  # fmt: skip
    """Search for a faster kernel; with ``out`` in a run, which the same call continues.
    ``settings`` are those of KernelSearchConfig.

    ``simulate`` lets every chosen candidate be simulated, too (slower, finds strides). Raises UserError where the original fails
    its own reference, NeedsError where nothing isolates or there is no compiler.
    """
    config = config or KernelSearchConfig(**settings)
    if task.kind == "triton":
        raise UserError(
            f"{task.path}: Triton kernels are timed on a GPU only, so nothing can be ranked here; `kernel-search diagnose` reads "
            "them without one, and `bench` says whether one is right"
        )

    async def whole(run: Run | None) -> BestKernel:
        searching = KernelSearch(
            task, config, run, proposer=proposer, progress=progress, simulate=simulate, allow_unsandboxed=allow_unsandboxed
        )
        if roofs and task.kind == "c":
            searching.roofs = await measured_roofs(searching.wall.sandbox)
        return await searching.go()

    if out is None:
        return wait_for(whole(None))
    with begin(task, config, Path(out)) as run:
        return wait_for(whole(run))


def tree_of(run: Run) -> tuple[CandidateTree, list[TriedCandidate]]:
    """The tree of a stored search, made again from its journal, and its records. Raises UserError on another run."""
    if run.kind != KIND:
        raise UserError(f"{run.folder} was not made by `ramify {KIND}`")
    config = run.config
    records = [
        codec.from_json(TriedCandidate, entry.payload, f"{run.folder}, candidate {entry.key}")
        for entry in run.journal(TRIAL)
        if entry.key.replace(".", "").isdigit()
    ]
    roots = [node for node in run.nodes(TREE) if node.parent is None]
    if not roots:
        raise UserError(f"{run.folder} holds no candidate yet")
    first = codec.from_json(Code, {"source": roots[0].text, **roots[0].data}, f"{run.folder}, the original")
    tree = CandidateTree(first.key, str(config.get("algo", "mcts")))
    for record in records:
        tree.add(record.parent, record.code.key, ranked_speedup(record.trial), record.how, record.roof)
    return tree, records
