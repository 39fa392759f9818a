"""The verbs of ``ramify kernel-search``. Exit code 1: nothing was faster (``search --strict``, ``bench``)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ramify.base.errors import UserError
from ramify.base.files import write_whole
from ramify.base.progress import Progress
from ramify.base.waiting import wait_for
from ramify.kit import RunArgument, Seed, Verbs, argument, find_run, only_for, option
from ramify.methods.kernel_search.algorithm import KernelSearchConfig
from ramify.methods.kernel_search.compiled import CHIP, CompileTarget, disassembler, is_compiled
from ramify.methods.kernel_search.report import (
    BenchedKernel,
    CandidateCode,
    CountedLoops,
    DiagnosedKernel,
    SearchedKernel,
    SearchExplained,
    ToolRate,
    TreeRow,
    comment,
)
from ramify.render.result import Cell, Result
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
Signature = Annotated[
    str | None,
    option(
        "--signature",
        metavar="TYPES",
        help="Of a Triton kernel: its types as Triton writes them, '*fp32:16, *fp32:16, i32, 1024'; default: what the file says.",
    ),
]
Warps = Annotated[int | None, option(min=1, max=32, help="Of a GPU kernel: warps a block; default: what the file says, or 4.")]
Stages = Annotated[int | None, option(min=1, max=16, help="Of a Triton kernel: stages of the software pipeline.")]


def _task(kernel: str, ref: str | None, size: list[str] | None = None, allow_unsandboxed: bool = False) -> KernelTask:
    from ramify.base.plugins import find_attribute
    from ramify.methods.kernel_search.named import read_task
    from ramify.methods.kernel_search.task import evaluate

    reference = find_attribute(ref) if ref else None
    if reference is not None and not callable(reference):
        raise UserError(f"--ref {ref} is not a function")
    sizes: dict[str, float] = {}
    for given in size or ():
        name, equals, number = given.partition("=")
        if not (equals and name.isidentifier()):
            raise UserError(f"--size {given} is not a size: NAME=16")
        sizes[name] = evaluate(number, {})
    return read_task(kernel, reference, sizes, allow_unsandboxed)


@app.verb()
def diagnose(
    kernel: Annotated[
        str,
        argument(
            "KERNEL",
            help="FILE.c:FUNCTION or FILE.py:FUNCTION, as for `search`, or a KernelBench problem; FILE.cu:KERNEL, FILE.py:KERNEL "
            "(Triton), or a .ptx, .sass or .cubin file; FILE:FUNCTION of a shared object, an object file or a program.",
        ),
    ],
    ref: Reference = None,
    size: Sizes = None,
    simulate: Annotated[bool | None, option(help="Run cachegrind and llvm-mca where they are, which is the default.")] = None,
    pairs: Annotated[
        int | None, option(min=4, max=1000, help="Pairs of timed batches, reference and candidate in turn; default: 6.")
    ] = None,
    seed: Annotated[int | None, option("--seed", help="Decides every sample; default: 0.")] = None,
    loops: Annotated[bool, option("--loops", help="Of FILE.c:FUNCTION: only count its innermost loops; run nothing.")] = False,
    flags: Annotated[
        str | None, option("--flags", metavar="FLAGS", help="With --loops: how it is compiled; default: -O3 -march=native.")
    ] = None,
    arch: Annotated[
        str | None,
        option("--arch", help="Of a GPU kernel: the chip to compile for, which need not be here; default: sm_90."),
    ] = None,
    signature: Signature = None,
    warps: Warps = None,
    stages: Stages = None,
    allow_unsandboxed: Allow = False,
) -> DiagnosedKernel | CountedLoops | Result:
    """Why a kernel is slow: its class, its roofs, findings with what to do about each, and what is not measurable here.

    A kernel of a GPU is read as compiled, without a GPU: spills, occupancy and its limiter, tensor cores, what a warp touches
    (needs the distribution ramify-experiments).
    Of a shared object, an object file or a program, and with --loops of a C file, the innermost loops of the function are
    counted: never the whole symbol.
    """
    from ramify.methods.kernel_search.assembly import is_elf

    timed = {"ref": ref, "size": size, "no_simulate": simulate is False, "pairs": pairs, "seed": seed}
    of_gpu = {"arch": arch, "signature": signature, "warps": warps, "stages": stages}
    file, _, symbol = kernel.rpartition(":")
    path, compiled = Path(file or kernel), is_compiled(kernel)
    if loops or (not compiled and is_elf(path)):
        only_for("machine code", **timed, **of_gpu)
        if not file:
            raise UserError(f"{kernel}: loops are counted of one function, FILE:FUNCTION")
        return _counted(path, symbol, flags, allow_unsandboxed)
    only_for("diagnose without --loops", flags=flags)
    if compiled or (path.suffix == ".py" and any(of_gpu.values())):
        only_for("a kernel of a GPU", **timed)
        return disassembler().read(kernel, CompileTarget(arch or CHIP, signature or "", warps, stages, allow_unsandboxed))
    only_for("a kernel that is run here", **of_gpu)
    from ramify.methods.kernel_search import diagnosis
    from ramify.methods.kernel_search.wall import Wall

    task = _task(kernel, ref, size, allow_unsandboxed)
    wall = Wall(task, pairs=6 if pairs is None else pairs, seed=seed or 0, allow_unsandboxed=allow_unsandboxed)
    with progress("diagnose", kept="nothing was written"):
        return wait_for(diagnosis.diagnose(task, wall, simulate=simulate is not False)).result()


def _counted(file: Path, symbol: str, flags: str | None, allow: bool) -> CountedLoops:
    from ramify.methods.kernel_search import assembly

    words = ("-O3 -march=native" if flags is None else flags).split()
    return CountedLoops(symbol, tuple(wait_for(assembly.loops_of(file, symbol, tuple(words), allow))))


@app.verb()
def tune(
    kernel: Annotated[str, argument("KERNEL", help="FILE.py:KERNEL, a Triton kernel.")],
    choices: Annotated[str, argument("CHOICES", help="What to compile: 'BLOCK = 64, 128; warps = 2, 4; stages = 2, 3'.")],
    out: Annotated[
        Path | None, option("--out", metavar="FILE.py", help="Write those worth timing as triton.autotune takes them.")
    ] = None,
    arch: Annotated[str, option("--arch", help="The chip to compile for; it need not be here.")] = CHIP,
    signature: Signature = None,
    warps: Warps = None,
    stages: Stages = None,
    allow_unsandboxed: Allow = False,
) -> Result:
    """Which configurations of a Triton kernel are worth timing on a GPU? Each is compiled, without one, and its machine code
    read: what does not compile, does not fit or spills registers where another does not is left out.

    Needs the distribution ramify-experiments."""
    return disassembler().tune(kernel, choices, CompileTarget(arch, signature or "", warps, stages, allow_unsandboxed), out)


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
    best = loop.search(task, options, out, progress=bar, simulate=simulate, allow_unsandboxed=allow_unsandboxed)
    return best.result(strict)


@app.verb()
def bench(
    kernel: KernelArgument,
    candidate: Annotated[Path, argument("CANDIDATE", help="File with another version of the function, same signature.")],
    flags: Annotated[
        str | None, option("--flags", metavar="FLAGS", help="How the candidate is compiled; default: as the kernel.")
    ] = None,
    ref: Reference = None,
    size: Sizes = None,
    pairs: Annotated[int, option(min=4, max=1000, help="Pairs of timed batches, reference and candidate in turn.")] = 20,
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
        above, reached = tree.nodes[record.parent].speedup, tree.nodes[number].speedup
        if record.tool:
            rate = rates.get(record.tool, ToolRate(0, 0))
            gained = rate.gained + bool(reached and above and reached / above > 1.5)
            rates[record.tool] = replace(rate, gained=gained, tried=rate.tried + 1)
    explained = SearchExplained(
        candidates=len(records),
        best=best,
        why=ends[0].why if ends else "",
        tree=tuple(
            TreeRow(grown.number, grown.parent, grown.how, grown.speedup, grown.visits, grown.pruned) for grown in tree.nodes
        ),
        refused=dict(sorted(refused.items())),
        tools=dict(sorted(rates.items())),
    )
    if out is not None:
        write_whole(out, comment(explained, records[best - 1].code.source if best else root, language))
    return explained
