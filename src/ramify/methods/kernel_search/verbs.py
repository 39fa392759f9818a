"""The verbs of ``ramify kernel-search``. Exit code 1: nothing was faster (``search --strict``),
or a cheat got through (``redteam``)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

from ramify.base.errors import EXIT_FAILED, UserError
from ramify.base.files import write_whole
from ramify.base.waiting import wait_for
from ramify.kit import DryRun, Json, RunArgument, Seed, Verbs, argument, find_run, option
from ramify.methods.kernel_search.algorithm import KernelSearchConfig
from ramify.render.terminal import emit, progress, say, table

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


def _task(kernel: str, ref: str | None, size: list[str] | None = None, allow_unsandboxed: bool = False) -> Any:
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
    as_json: Json = False,
) -> None:
    """What can be measured here: tiers, the measured roofs of one core, and how noisy this machine is."""
    from ramify.methods.kernel_search import diagnosis
    from ramify.methods.kernel_search.tools import TIERS
    from ramify.sandbox.find import find_sandbox

    here = diagnosis.tiers()
    found: dict[str, Any] = {
        "tiers": {name: {"measures": TIERS[name], "here": works, "how": how} for name, (works, how) in here.items()},
        "roofs": None,
    }
    text = table(
        ["tier", "measures", "here", "how"],
        [[name, TIERS[name], "yes" if works else "no", how] for name, (works, how) in here.items()],
    )
    if here["C1"][0]:
        with progress("rulers", as_json=as_json, kept="nothing was written"):
            roofs = wait_for(diagnosis.measured_roofs(find_sandbox(allow_unsandboxed=allow_unsandboxed), fresh))
        found["roofs"] = roofs.to_json()
        rows = [[f"{size >> 10} KiB", f"{speed / 1e9:.1f} GB/s"] for size, speed in sorted(roofs.bandwidth.items())]
        text += f"\n\npeak {roofs.peak / 1e9:.1f} Gflop/s in float32, spread of equal batches {roofs.noise:.1%}\n" + table(
            ["working set", "bandwidth"], rows
        )
        if roofs.noise > 0.2:
            text += "\nThis machine is too busy to rank kernels: measure with more pairs, or later."
    emit(found, as_json, text)


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
    as_json: Json = False,
) -> None:
    """Why a kernel is slow: its class, its roofs, findings with what to do about each, and what is not measurable here.

    A CUDA kernel, and a Triton kernel whose file says its types, is read as compiled for --arch, without a GPU.
    """
    from ramify.methods.kernel_search.sass import is_gpu

    if is_gpu(kernel):
        _told(kernel, arch, "", None, None, allow_unsandboxed, as_json)
        return
    from ramify.methods.kernel_search import diagnosis
    from ramify.methods.kernel_search.wall import Wall

    task = _task(kernel, ref, size, allow_unsandboxed)
    wall = Wall(task, pairs=pairs, seed=seed, allow_unsandboxed=allow_unsandboxed)
    with progress("diagnose", as_json=as_json, kept="nothing was written"):
        found = wait_for(diagnosis.diagnose(task, wall, simulate=simulate))
    emit(found.to_json(), as_json, _diagnosed(found.to_json()))


def _diagnosed(found: dict[str, Any]) -> str:
    roof = found["roofline"]
    parts = [f"{found['kernel']}: class {found['class']}"]
    if found["seconds"]:
        parts.append(f"{found['seconds'] * 1e6:.1f} us a call")
    if roof.get("share of the roof"):
        parts.append(f"{roof['share of the roof']:.0%} of its roof")
    text = ", ".join(parts)
    rows = [[one["severity"], one["tool"], one["where"], one["cause"], one["prescription"]] for one in found["findings"]]
    text += "\n\n" + (table(["", "tool", "where", "cause", "what to do"], rows) if rows else "no tool found anything")
    text += "".join(f"\n{one}" for one in _together(found["not_measurable"]))
    if found["skipped"]:
        text += f"\nnot compared, the original itself is off there: {', '.join(found['skipped'])}"
    return text + "".join(f"\n{note}" for note in found["notes"])


def _together(missing: list[str]) -> list[str]:
    """Tools that are not measurable for the same reason on one line."""
    named: dict[str, list[str]] = {}
    for one in missing:
        tool, _, why = one.partition(": ")
        named.setdefault(why, []).append(tool)
    return [f"{', '.join(tools)}: {why}" for why, tools in named.items()]


@app.verb(settings=KernelSearchConfig)
def search(
    options: KernelSearchConfig,
    kernel: KernelArgument,
    out: Annotated[Path, option("--out", metavar="RUN", help="Run to make or to continue.")],
    ref: Reference = None,
    size: Sizes = None,
    simulate: Annotated[bool, option(help="Simulate every candidate that is expanded, too: slower, finds strides.")] = True,
    strict: Annotated[bool, option("--strict", help="Exit code 1 where nothing was faster.")] = False,
    allow_unsandboxed: Allow = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Search for a faster version that is still right. The same command continues an interrupted search.

    Every candidate is compiled and run in the sandbox, compared on fresh inputs, and timed in pairs against the original.
    """
    from ramify.methods.kernel_search import loop as searching

    task = _task(kernel, ref, size, allow_unsandboxed)
    if dry_run:
        plan = {
            "candidates at most": options.evals,
            "timed batches at most": options.evals * options.pairs * 2,
            "processor seconds at least": options.evals * options.pairs * 2 * options.batch,
        }
        emit({"config": options.to_json(), "plan": plan}, as_json, table(["at most", ""], list(plan.items())))
        return
    with progress(
        "search", options.evals, "candidates", as_json, kept=f"every candidate is kept in {out}: the same command continues"
    ) as bar:
        found = searching.search(task, options, out, progress=bar, simulate=simulate, allow_unsandboxed=allow_unsandboxed)
    made = found.to_json()
    text = f"{made['candidates']} candidates, {made['refused']} refused, {made['repeated']} repeated; {made['stopped']}\n"
    if found.gain:
        text += (
            f"candidate {found.number} is {found.speedup:.2f} times as fast, 95 % interval {found.ci[0]:.2f} to "
            f"{found.ci[1]:.2f}: "
        )
        text += " -> ".join(one["how"] for one in made["line"]) + f"\nflags: {' '.join(found.best.words)}\n\n{found.code}"
    else:
        text += "nothing is faster than the original"
    emit(made, as_json, text)
    if strict and not found.gain:
        raise SystemExit(EXIT_FAILED)


@app.verb()
def asm(
    file: Annotated[Path, argument("FILE", help="A shared object, an object file or a program; or FILE.c, which is compiled.")],
    symbol: Annotated[str, argument("FUNCTION", help="The function.")],
    flags: Annotated[str, option("--flags", metavar="FLAGS", help="How a source is compiled.")] = "-O3 -march=native",
    allow_unsandboxed: Allow = False,
    as_json: Json = False,
) -> None:
    """The innermost loops of a function, and what is counted in each: never the whole symbol."""
    from ramify.methods.kernel_search import assembly

    loops = wait_for(assembly.loops_of(file, symbol, tuple(flags.split()), allow_unsandboxed))
    rows = [
        [
            one.line or "-",
            one.depth,
            one.instructions,
            one.packed,
            one.scalar,
            one.width,
            one.loads,
            one.stores,
            one.stack,
            one.shuffles + one.gathers,
            one.converts,
            one.jumps,
            ", ".join(one.calls),
        ]
        for one in loops
    ]
    columns = [
        "line",
        "depth",
        "instructions",
        "packed",
        "scalar",
        "bits",
        "loads",
        "stores",
        "stack",
        "shuffles",
        "converts",
        "jumps",
        "calls",
    ]
    from ramify.methods.kernel_search.diagnosis import loop_json

    emit(
        {"function": symbol, "loops": [loop_json(one) for one in loops]},
        as_json,
        table(columns, rows) if rows else f"{symbol} has no loop that computes or moves data",
    )


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
    as_json: Json = False,
) -> None:
    """What a GPU kernel's PTX and machine code tell without a GPU:
    spills, occupancy and its limiter, tensor cores, what a warp touches.

    With --tune the same of many configurations of a Triton kernel, and which of them are worth timing on a GPU.
    """
    if tune:
        _tuned(kernel, tune, arch, signature, warps, stages, out, allow_unsandboxed, as_json)
        return
    if out is not None:
        raise UserError("--out writes the configurations of --tune, which is not given")
    _told(kernel, arch, signature, warps, stages, allow_unsandboxed, as_json)


def _tuned(
    kernel: str,
    tune: str,
    arch: str,
    signature: str,
    warps: int | None,
    stages: int | None,
    out: Path | None,
    allow: bool,
    as_json: bool,
) -> None:
    from ramify.methods.kernel_search import tuning

    choices = tuning.choices_of(tune)
    total = math.prod(map(len, choices.values()))
    with progress("tune", total, "configurations", as_json, kept="nothing was written") as bar:
        found = tuning.tuned(kernel, choices, arch, signature, warps, stages, allow_unsandboxed=allow, progress=bar.at)
    kept = [one for one in found if not one.why]
    if out is not None:
        write_whole(out, tuning.configs_file(kernel, arch, found))
    rows = []
    for one in found:
        m = one.metrics or {}
        occupancy = f"{m['occupancy']:.0%} ({m['limiter']})" if m.get("occupancy") is not None else ""
        rows.append(
            [one.label, m.get("registers", ""), m.get("shared", ""), occupancy, one.spills, one.why or ", ".join(one.findings)]
        )
    text = table(["configuration", "registers", "shared", "occupancy", "spills", ""], rows)
    text += f"\n\n{len(kept)} of {len(found)} are worth timing on a GPU" + (f": {out}" if out else "")
    emit({"kernel": kernel, "arch": arch, "configurations": [one.to_json() for one in found]}, as_json, text)


def _told(
    kernel: str, arch: str, signature: str, warps: int | None, stages: int | None, allow_unsandboxed: bool, as_json: bool
) -> None:
    from ramify.methods.kernel_search import sass as reader

    found = reader.read_gpu(kernel, arch, signature, warps, stages, allow_unsandboxed)
    found.pop("prescriptions")
    rows = [[one["severity"], one["tool"], one["where"], one["cause"], one["prescription"]] for one in found["findings"]]
    text = table(["", ""], reader.table_rows(found["metrics"])) + "\n\n"
    if touched := reader.access_rows(found["accesses"]):
        columns = ["line", "access", "bytes", "apart", "sectors", "bank", ""]
        text += table(columns, touched) + "\n\n"
    text += table(["", "tool", "where", "cause", "what to do"], rows) if rows else "no tool found anything"
    emit(found, as_json, text + "".join(f"\n{one}" for one in _together(found["not_measurable"])))


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
    as_json: Json = False,
) -> None:
    """Is this version right, and is it faster? The wall and the clock on one candidate. Exit code 1: refused, or not faster.

    A Triton kernel is compared in Triton's interpreter, and not timed.
    """
    from ramify.methods.kernel_search.task import read_source
    from ramify.methods.kernel_search.wall import Code, Wall

    task = _task(kernel, ref, size, allow_unsandboxed)
    wall = Wall(task, pairs=pairs, seed=seed, allow_unsandboxed=allow_unsandboxed)
    code = Code(read_source(candidate), tuple(flags.split()) if flags is not None else wall.original.flags, wall.original.macros)
    with progress("bench", as_json=as_json, kept="nothing was written"):
        trial = wait_for(_benched(wall, code))
    emit(trial.to_json(), as_json, _tried(trial))
    if not (
        trial.gain.gains if trial.gain else trial.ok and trial.checked
    ):  # what is right and not timed, as Triton, has not failed
        raise SystemExit(EXIT_FAILED)


async def _benched(wall: Any, code: Any) -> Any:
    """The candidate's trial in fresh processes; one that compiles to the original's machine code is not timed."""
    from ramify.methods.kernel_search.wall import WallTrial

    await wall.prepare()
    built = await wall.build(code)
    if not isinstance(built, str) and built.machine and built.machine == wall.machine:
        return WallTrial(notes=("it compiles to the machine code of the original",))
    return await wall.confirm(code, built=built)


def _tried(trial: Any) -> str:
    if trial.refused:
        return f"refused ({trial.stage}): {trial.refused}"
    if trial.gain is None:
        return f"not faster: {trial.notes[-1]}" if not trial.checked else f"right on {trial.checked} outputs; nothing was timed"
    gain = trial.gain
    said = (
        "faster"
        if gain.gains
        else "not ranked, the times are too noisy: give more --pairs"
        if not gain.ranked
        else "not shown to be faster"
    )
    return (
        f"{said}: {gain.speedup:.3f} times as fast, 95 % interval {gain.low:.3f} to {gain.high:.3f} over {gain.rounds} starts, "
        f"{gain.pairs} pairs of batches in all\n"
        f"{gain.reference * 1e6:.2f} us and {gain.candidate * 1e6:.2f} us a call, spread {gain.noise:.1%}; {trial.checked} "
        "outputs compared"
    )


@app.verb()
def explain(
    run: RunArgument,
    code: Annotated[
        str | None, option("--code", metavar="NUMBER", help="Print the source of a candidate, or of the `best` one.")
    ] = None,
    out: Annotated[Path | None, option("--out", metavar="FILE.md", help="Also write a comment for a pull request.")] = None,
    as_json: Json = False,
) -> None:
    """A search that is stored: its tree, why candidates were refused, and how often each tool's advice gained."""
    from ramify.methods.kernel_search import loop as searching
    from ramify.methods.kernel_search import report
    from ramify.trace.db import Run

    with Run.open(find_run(run)) as opened:
        tree, records = searching.tree_of(opened)
        ends = list(opened.findings(maker=searching.KIND))
        language = "c" if opened.tree_info(searching.TREE).task["data"]["kind"] == "c" else "python"
        root = next(node.text for node in opened.nodes(searching.TREE) if node.parent is None)
    refused: dict[str, int] = {}
    rates: dict[str, list[int]] = {}
    for number, record in enumerate(records, 1):
        if record["trial"]["refused"]:
            refused[record["trial"]["stage"]] = refused.get(record["trial"]["stage"], 0) + 1
        above, own = tree.nodes[int(record["parent"])].speedup, tree.nodes[number].speedup
        if record["tool"]:
            row = rates.setdefault(record["tool"], [0, 0])
            row[0], row[1] = row[0] + bool(own and above and own / above > 1.5), row[1] + 1
    best = int(ends[0].evidence["number"]) if ends and isinstance(ends[0].evidence, dict) else 0
    if code is not None:
        number = best if code == "best" else int(code) if code.isdigit() and int(code) <= len(records) else -1
        if number < 0:
            raise UserError(f"--code {code}: a candidate's number from 0 to {len(records)}, or best")
        source = root if number == 0 else str(records[number - 1]["code"]["source"])
        flags = [] if number == 0 else records[number - 1]["code"]["flags"]
        emit({"number": number, "source": source, "flags": flags}, as_json, source)
        return
    found = {
        "candidates": len(records),
        "best": best,
        "why": ends[0].why if ends else "",
        "tree": [
            {
                "number": one.number,
                "parent": one.parent,
                "how": one.how,
                "speedup": one.speedup,
                "visits": one.visits,
                "pruned": one.pruned,
            }
            for one in tree.nodes
        ],
        "refused": refused,
        "tools": {name: {"gained": hits, "tried": tries} for name, (hits, tries) in sorted(rates.items())},
    }
    if out is not None:
        write_whole(out, report.comment(found, str(records[best - 1]["code"]["source"]) if best else root, language))
    text = "\n".join(searching.outline(tree))
    text += "\n\n" + (ends[0].why if ends else "the search has not ended: the same command continues it")
    text += (
        "\n\n" + table(["tool", "gained 1.5x", "tried"], [[name, *row] for name, row in sorted(rates.items())]) if rates else ""
    )
    text += "".join(f"\n{count} refused: {stage}" for stage, count in sorted(refused.items()))
    emit(found, as_json, text)


@app.verb()
def redteam(
    kernel: KernelArgument,
    only: Annotated[list[str] | None, option("--cheat", metavar="NAME", help="Only this one; several may be given.")] = None,
    ref: Reference = None,
    size: Sizes = None,
    seed: Seed = 0,
    allow_unsandboxed: Allow = False,
    as_json: Json = False,
) -> None:
    """Try every known way to look fast on a kernel of yours. Exit code 1: one got through."""
    from ramify.methods.kernel_search.redteam import attempt, cheats_for
    from ramify.methods.kernel_search.wall import Wall

    task = _task(kernel, ref, size, allow_unsandboxed)
    cheats = cheats_for(task)
    names = {one.name for one in cheats}
    for name in only or ():
        if name not in names:
            from ramify.base.errors import nearest

            raise UserError(f"--cheat {name} is none ({nearest(name, names)})")
    chosen = [one for one in cheats if not only or one.name in only]
    wall = Wall(task, pairs=4, batch_seconds=0.01, seed=seed, call_seconds=5.0, allow_unsandboxed=allow_unsandboxed)
    tried = []
    with progress("redteam", len(chosen), "cheats", as_json, kept="nothing was written") as bar:
        for i, cheat in enumerate(chosen):
            tried.append(wait_for(attempt(wall, cheat)))
            bar.at(i + 1, cheat.name)
    through = [one for one in tried if not one.held]
    rows = [
        [
            one.cheat.name,
            one.cheat.says,
            "refused" if one.trial.refused else "no gain" if one.held else "GOT THROUGH",
            one.trial.refused[:90],
        ]
        for one in tried
    ]
    emit(
        {"cheats": [one.to_json() for one in tried], "through": len(through)},
        as_json,
        table(["cheat", "what it does", "", "why"], rows) + f"\n\n{len(tried) - len(through)} of {len(tried)} gain nothing",
    )
    if through:
        say(f"{through[0].cheat.name} got through")
        raise SystemExit(EXIT_FAILED)
