"""The verbs of ``ramify kernel-search``. Exit code 1: nothing was faster (``search --strict``),
or a cheat got through (``redteam``)."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ramify.base.errors import UserError, nearest
from ramify.base.files import write_whole
from ramify.base.progress import Progress
from ramify.base.waiting import wait_for
from ramify.kit import RunArgument, Seed, Verbs, argument, find_run, option
from ramify.methods.kernel_search.algorithm import NOISE, KernelSearchConfig
from ramify.methods.kernel_search.diagnosis import MeasurableHere
from ramify.methods.kernel_search.redteam import CheatsTried
from ramify.methods.kernel_search.report import (
    BenchedKernel,
    CandidateCode,
    CountedLoops,
    DiagnosedKernel,
    GpuReading,
    SearchedKernel,
    SearchExplained,
    ToolRate,
    TreeRow,
    comment,
)
from ramify.methods.kernel_search.tuning import TunedKernel
from ramify.render.result import Cell
from ramify.render.terminal import progress

if TYPE_CHECKING:
    from ramify.methods.kernel_search.task import KernelTask
    from ramify.methods.kernel_search.wall import Code, Wall, WallTrial

app = Verbs(
    "kernel-search", help="Why is this kernel slow, what should be changed, and which of many changes is faster and still right?"
)

KernelArgument = Annotated[
    str,
    argument(
        "KERNEL",
        help="FILE.c:FUNCTION or FILE.py:FUNCTION; a comment in it says sizes: // ramify: n = 1000000; x[n]; y[n]. Or a "
        "KernelBench problem.",
    ),
]
Reference = Annotated[
    str | None,
    option(
        "--ref",
        metavar="FILE.py:FUNCTION",
        help="Your own reference, called with the arguments by name; default: the kernel itself in double precision.",
    ),
]
Sizes = Annotated[
    list[str] | None,
    option(
        "--size",
        metavar="NAME=16",
        help="Of a KernelBench problem: another value of a constant of its file; several may be given.",
    ),
]
Allow = Annotated[bool, option("--allow-unsandboxed", help="Run candidates with limits only where nothing isolates.")]
Arch = Annotated[str, option("--arch", help="Of a GPU kernel: the chip to compile for, such as sm_90; it need not be here.")]
Pairs = Annotated[int, option(min=4, max=1000, help="Pairs of timed batches, reference and candidate in turn.")]


def _task(kernel: str, ref: str | None, size: list[str] | None = None, allow_unsandboxed: bool = False) -> KernelTask:
    from ramify.base.plugins import find_attribute
    from ramify.methods.kernel_search.task import evaluate, read_task

    reference = find_attribute(ref) if ref else None
    if reference is not None and not callable(reference):
        raise UserError(f"--ref {ref} is no function")
    sizes: dict[str, float] = {}
    for one in size or ():
        name, equals, number = one.partition("=")
        if not (equals and name.isidentifier()):
            raise UserError(f"--size {one} is no size: NAME=16")
        sizes[name] = evaluate(number, {})
    return read_task(kernel, reference, sizes, allow_unsandboxed)


@app.verb()
def doctor(
    fresh: Annotated[bool, option("--fresh", help="Measure the roofs again.")] = False,
    allow_unsandboxed: Allow = False,
) -> MeasurableHere:
    """What can be measured here: tiers, the measured roofs of one core, and how noisy this machine is."""
    from ramify.methods.kernel_search import diagnosis
    from ramify.sandbox.find import find_sandbox

    here, roofs = diagnosis.tiers(), None
    if here["C1"].here:
        with progress("rulers", kept="nothing was written"):
            roofs = wait_for(diagnosis.measured_roofs(find_sandbox(allow_unsandboxed=allow_unsandboxed), fresh))
    busy = roofs is not None and roofs.noise > NOISE
    said = "this machine is too busy to rank kernels: measure with more pairs, or later"
    return MeasurableHere(here, roofs, caveats=(said,) if busy else ())


@app.verb()
def diagnose(
    kernel: KernelArgument,
    ref: Reference = None,
    size: Sizes = None,
    simulate: Annotated[bool, option(help="Run cachegrind and llvm-mca where they are.")] = True,
    pairs: Pairs = 6,
    arch: Arch = "sm_90",
    seed: Seed = 0,
    allow_unsandboxed: Allow = False,
) -> DiagnosedKernel | GpuReading:
    """Why a kernel is slow: its class, its roofs, findings with what to do about each, and what is not measurable here.

    A CUDA kernel, and a Triton kernel whose file says its types, is read as compiled for --arch, without a GPU.
    """
    from ramify.methods.kernel_search.sass import is_gpu, read_gpu

    if is_gpu(kernel):
        return read_gpu(kernel, arch, allow_unsandboxed=allow_unsandboxed)
    from ramify.methods.kernel_search import diagnosis
    from ramify.methods.kernel_search.wall import Wall

    task = _task(kernel, ref, size, allow_unsandboxed)
    wall = Wall(task, pairs=pairs, seed=seed, allow_unsandboxed=allow_unsandboxed)
    with progress("diagnose", kept="nothing was written"):
        return wait_for(diagnosis.diagnose(task, wall, simulate=simulate)).result()


def _search_plan(
    options: KernelSearchConfig, kernel: str, ref: str | None, size: list[str] | None, allow_unsandboxed: bool
) -> dict[str, Cell]:
    """What a search takes."""
    _task(kernel, ref, size, allow_unsandboxed)  # what is wrong with the kernel is said now
    batches = options.evals * options.pairs * 2
    return {
        "candidates": options.evals,
        "timed batches": batches,
        "processor seconds of these, at least": batches * options.batch,
    }


@app.study(settings=KernelSearchConfig, plan=_search_plan, unit="candidates")
def search(
    options: KernelSearchConfig,
    kernel: KernelArgument,
    out: Annotated[Path, option("--out", metavar="RUN", help="Run to make or to continue.")],
    bar: Progress,
    ref: Reference = None,
    size: Sizes = None,
    simulate: Annotated[bool, option(help="Simulate every candidate that is expanded, too: slower, finds strides.")] = True,
    strict: Annotated[bool, option("--strict", help="Exit code 1 where nothing was faster.")] = False,
    allow_unsandboxed: Allow = False,
) -> SearchedKernel:
    """Search for a faster version that is still right.

    Every candidate is compiled and run in the sandbox, compared on fresh inputs, and timed in pairs against the original.
    """
    from ramify.methods.kernel_search import loop

    task = _task(kernel, ref, size, allow_unsandboxed)
    found = loop.search(task, options, out, progress=bar, simulate=simulate, allow_unsandboxed=allow_unsandboxed)
    return found.result(strict)


@app.verb()
def asm(
    file: Annotated[Path, argument("FILE", help="A shared object, an object file or a program; or FILE.c, which is compiled.")],
    symbol: Annotated[str, argument("FUNCTION", help="The function.")],
    flags: Annotated[str, option("--flags", metavar="FLAGS", help="How a source is compiled.")] = "-O3 -march=native",
    allow_unsandboxed: Allow = False,
) -> CountedLoops:
    """The innermost loops of a function, and what is counted in each: never the whole symbol."""
    from ramify.methods.kernel_search import assembly

    return CountedLoops(symbol, tuple(wait_for(assembly.loops_of(file, symbol, tuple(flags.split()), allow_unsandboxed))))


@app.verb()
def sass(
    kernel: Annotated[str, argument("KERNEL", help="FILE.py:KERNEL (Triton), FILE.cu:KERNEL, or a .ptx, .sass or .cubin file.")],
    arch: Arch = "sm_90",
    signature: Annotated[
        str, option("--signature", metavar="TYPES", help="Types as Triton writes them: '*fp32:16, *fp32:16, i32, 1024'.")
    ] = "",
    warps: Annotated[int | None, option(min=1, max=32, help="Warps a block; default: what the file says, or 4.")] = None,
    stages: Annotated[int | None, option(min=1, max=16, help="Stages of the software pipeline.")] = None,
    tune: Annotated[
        str,
        option(
            "--tune",
            metavar="CHOICES",
            help="Of a Triton kernel: compile every one of 'BLOCK = 64, 128; warps = 2, 4; stages = 2, 3'.",
        ),
    ] = "",
    out: Annotated[
        Path | None,
        option("--out", metavar="FILE.py", help="With --tune: write those worth timing as triton.autotune takes them."),
    ] = None,
    allow_unsandboxed: Allow = False,
) -> GpuReading | TunedKernel:
    """What a GPU kernel's PTX and machine code tell without a GPU:
    spills, occupancy and its limiter, tensor cores, what a warp touches.

    With --tune the same of many configurations of a Triton kernel, and which of them are worth timing on a GPU.
    """
    from ramify.methods.kernel_search.sass import read_gpu

    if tune:
        return _tuned(kernel, tune, arch, signature, warps, stages, out, allow_unsandboxed)
    if out is not None:
        raise UserError("--out writes the configurations of --tune, which is not given")
    return read_gpu(kernel, arch, signature, warps, stages, allow_unsandboxed)


def _tuned(
    kernel: str, tune: str, arch: str, signature: str, warps: int | None, stages: int | None, out: Path | None, allow: bool
) -> TunedKernel:
    from ramify.methods.kernel_search import tuning

    choices = tuning.choices_of(tune)
    total = math.prod(map(len, choices.values()))
    with progress("tune", total, "configurations", kept="nothing was written") as bar:
        found = tuning.tuned(kernel, choices, arch, signature, warps, stages, allow_unsandboxed=allow, progress=bar.at)
    if out is not None:
        write_whole(out, tuning.configs_file(kernel, arch, found))
    return TunedKernel(kernel, arch, tuple(found), "" if out is None else str(out))


@app.verb()
def bench(
    kernel: KernelArgument,
    candidate: Annotated[Path, argument("CANDIDATE", help="File with another version of the function, same signature.")],
    flags: Annotated[
        str | None, option("--flags", metavar="FLAGS", help="How the candidate is compiled; default: as the kernel.")
    ] = None,
    ref: Reference = None,
    size: Sizes = None,
    pairs: Pairs = 20,
    seed: Seed = 0,
    allow_unsandboxed: Allow = False,
) -> BenchedKernel:
    """Is this version right, and is it faster? The wall and the clock on one candidate. Exit code 1: refused, or not faster.

    A Triton kernel is compared in Triton's interpreter, and not timed.
    """
    from ramify.methods.kernel_search.task import read_source
    from ramify.methods.kernel_search.wall import Code, Wall, WallTrial

    task = _task(kernel, ref, size, allow_unsandboxed)
    wall = Wall(task, pairs=pairs, seed=seed, allow_unsandboxed=allow_unsandboxed)
    code = Code(read_source(candidate), tuple(flags.split()) if flags is not None else wall.original.flags, wall.original.macros)
    with progress("bench", kept="nothing was written"):
        trial = wait_for(_benched(wall, code))
    numbers = {name: value for name, value in vars(trial or WallTrial()).items() if name != "notes"}
    return BenchedKernel(**numbers, same_code=trial is None, caveats=trial.notes if trial else ())


async def _benched(wall: Wall, code: Code) -> WallTrial | None:
    """The candidate's trial in fresh processes; None of one that compiles to the original's machine code, which is not timed."""
    await wall.prepare()
    built = await wall.build(code)
    if not isinstance(built, str) and built.machine and built.machine == wall.machine:
        return None
    return await wall.confirm(code, built=built)


@app.verb(keeps="run")
def explain(
    run: RunArgument,
    code: Annotated[
        str | None, option("--code", metavar="NUMBER", help="Print the source of a candidate, or of the `best` one.")
    ] = None,
    out: Annotated[Path | None, option("--out", metavar="FILE.md", help="Also write a comment for a pull request.")] = None,
) -> SearchExplained | CandidateCode:
    """A search that is stored: its tree, why candidates were refused, and how often each tool's advice gained."""
    from ramify.methods.kernel_search import loop
    from ramify.trace.db import Run

    with Run.open(find_run(run)) as opened:
        tree, records = loop.tree_of(opened)
        ends = opened.findings(maker=loop.KIND)
        numbered = {node.id: int(node.data["number"]) for node in opened.nodes(loop.TREE)}
        language = "c" if opened.tree_info(loop.TREE).task["data"]["kind"] == "c" else "python"
        root = next(node.text for node in opened.nodes(loop.TREE) if node.parent is None)
    best = numbered.get(ends[0].node or "", 0) if ends else 0
    if code is not None:
        number = best if code == "best" else int(code) if code.isdigit() and int(code) <= len(records) else -1
        if number < 0:
            raise UserError(f"--code {code}: a candidate's number from 0 to {len(records)}, or best")
        shown = None if number == 0 else records[number - 1].code
        return CandidateCode(number, shown.source if shown else root, shown.flags if shown else ())
    refused: dict[str, int] = {}
    rates: dict[str, ToolRate] = {}
    for number, record in enumerate(records, 1):
        if record.trial.refused:
            refused[record.trial.stage] = refused.get(record.trial.stage, 0) + 1
        above, own = tree.nodes[record.parent].speedup, tree.nodes[number].speedup
        if record.tool:
            rate = rates.get(record.tool, ToolRate(0, 0))
            gained = rate.gained + bool(own and above and own / above > 1.5)
            rates[record.tool] = replace(rate, gained=gained, tried=rate.tried + 1)
    found = SearchExplained(
        candidates=len(records),
        best=best,
        why=ends[0].why if ends else "",
        tree=tuple(TreeRow(one.number, one.parent, one.how, one.speedup, one.visits, one.pruned) for one in tree.nodes),
        refused=dict(sorted(refused.items())),
        tools=dict(sorted(rates.items())),
    )
    if out is not None:
        write_whole(out, comment(found, records[best - 1].code.source if best else root, language))
    return found


@app.verb()
def redteam(
    kernel: KernelArgument,
    only: Annotated[list[str] | None, option("--cheat", metavar="NAME", help="Only this one; several may be given.")] = None,
    ref: Reference = None,
    size: Sizes = None,
    seed: Seed = 0,
    allow_unsandboxed: Allow = False,
) -> CheatsTried:
    """Try every known way to look fast on a kernel of yours. Exit code 1: one got through."""
    from ramify.methods.kernel_search.redteam import attempt, cheats_for
    from ramify.methods.kernel_search.wall import Wall

    task = _task(kernel, ref, size, allow_unsandboxed)
    cheats = cheats_for(task)
    names = {one.name for one in cheats}
    for name in only or ():
        if name not in names:
            raise UserError(f"--cheat {name} is none ({nearest(name, names)})")
    chosen = [one for one in cheats if not only or one.name in only]
    wall = Wall(task, pairs=4, batch_seconds=0.01, seed=seed, call_seconds=5.0, allow_unsandboxed=allow_unsandboxed)
    tried = []
    with progress("redteam", len(chosen), "cheats", kept="nothing was written") as bar:
        for i, cheat in enumerate(chosen):
            tried.append(wait_for(attempt(wall, cheat)).outcome())
            bar.at(i + 1, cheat.name)
    through = [f"{one.cheat} got through" for one in tried if not one.held]
    return CheatsTried(tuple(tried), len(through), caveats=tuple(through[:1]))
