"""``ramify repro``: run a method's reproduction (or the main job's comparison) and print its table of checks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from ramify.base.errors import UserError
from ramify.cli import experiments
from ramify.kit import Verbs, argument, option
from ramify.render.result import Result

app = Verbs("repro")


@app.itself()
def repro(
    slug: Annotated[str, argument(metavar="METHOD", help="A method, 'improve', or 'all'.")],
    cpu: Annotated[bool, option("--cpu", help="The size for two CPU cores.")] = False,
    gpu: Annotated[bool, option("--gpu", help="The size for one GPU.")] = False,
    quick: Annotated[
        bool, option("--quick", help="One seed, at most a minute, looser thresholds. The default for 'all'.")
    ] = False,
    real: Annotated[
        bool, option("--real", help="The method's headline on a real pretrained model: at most ten minutes on two cores.")
    ] = False,
    model: Annotated[
        str | None, option(help="With --real: the pretrained model, a folder or a GGUF file as gguf:FILE; default: smollm2.")
    ] = None,
    seed: Annotated[int, option(min=0, help="The first seed; the others follow it.")] = 0,
    fresh: Annotated[bool, option("--fresh", help="Discard the results of an earlier, interrupted call.")] = False,
    backend: Annotated[
        str, option(help="Where cells run: local (processes on this machine), ray or ray:CELLS_AT_ONCE.")
    ] = "local",
    out: Annotated[Path | None, option(help="Also write the results with commit, versions and machine as JSON.")] = None,
) -> Iterator[Result]:
    """Reproduce a method's headline result. Exit code 1 when a check misses its threshold.

    Finished cells are cached, so an interrupted call continues where it stopped.
    """
    if gpu and (cpu or quick):
        raise UserError("choose --gpu or --cpu, and with --cpu --quick where it should take at most a minute")
    if real and (gpu or cpu or quick):
        raise UserError("--real has one size: leave out --cpu, --gpu and --quick")
    if model is not None and not real:
        raise UserError("--model goes with --real: the other sizes train their own models")
    size = "real" if real else "gpu" if gpu else "quick" if quick or (slug == "all" and not cpu) else "cpu"
    run = experiments.command("repro")
    reports: Iterator[Result] = run(slug, size, seed=seed, fresh=fresh, backend=backend, out=out, model=model or "smollm2")
    return reports
