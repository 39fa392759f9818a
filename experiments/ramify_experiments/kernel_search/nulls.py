"""Kernels whose truth is known: the same code twice, healthy kernels;
a candidate twice as fast, and the suite's seeded pathologies."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json

from ramify.base.errors import EXIT_FAILED
from ramify.methods.kernel_search.task import from_c, from_python
from ramify.methods.kernel_search.wall import Wall
from ramify_experiments.cases import KnownCase, Repetition
from ramify_experiments.kernel_search.suite import HEALTHY, SUITE, Seeded
from ramify_experiments.kernel_search.torch_files import FILES

METHOD = "kernel-search"
SMALL = """// ramify: n = 2000, 33, 1
void half(int n, const float *x, float *y) {
  for (int i = 0; i < n; i++)
    y[i] = x[i] * 0.5f;
}
"""
IN_PLACE = """// ramify: n = 4000, 33; a = 2.5; inout y[n]
void axpy(int n, double a, const float *x, float *y) {
  for (int i = 0; i < n; i++)
    y[i] += a * x[i];
}
"""
IN_NUMPY = """import numpy as np
# ramify: n = 2000, 33; x[n]; inout y[n]; result[n]
def waves(n, x, y):
    y[:] += np.sin(x)
    return np.tanh(np.exp(x))
"""
HONEST = (
    *(one.task for one in (*SUITE, *HEALTHY)),
    from_c(IN_PLACE),
    from_python(IN_NUMPY),
    *(from_python(source) for source in FILES.values()),
)
"""Kernels that cheat at nothing."""
SLOW = SMALL.replace(
    "y[i] = x[i] * 0.5f;", "y[i] = x[i] * 0.5f;\n  for (int i = 0; i < n; i++)\n    ((volatile float *)y)[i] = x[i] * 0.5f;"
)


def _file(rep: Repetition, name: str, source: str) -> str:
    path = rep.folder / name
    path.write_text(source, encoding="utf-8")
    return str(path)


def _faster(rep: Repetition, kernel: str, candidate: str) -> bool:
    """Whether `bench` says that the candidate is faster; its exit code is 1 where it does not."""
    words = (
        "kernel-search",
        "bench",
        _file(rep, "kernel.c", kernel),
        _file(rep, "candidate.c", candidate),
        "--pairs",
        "6",
        "--seed",
        str(rep.seed),
        "--json",
    )
    from ramify.cli.main import main

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(list(words))
    if code not in (0, EXIT_FAILED):
        raise RuntimeError(f"bench ended with {code}")
    trial = json.loads(out.getvalue().splitlines()[-1])
    if trial["refused"]:
        raise RuntimeError(trial["refused"])
    return code == 0


def _same(rep: Repetition) -> bool:
    """Equal instructions at equal addresses; the marks make two programs of them, which are timed."""
    return _faster(rep, *(SMALL + f'__attribute__((used)) static const char mark[8] = "{mark}";\n' for mark in ("one", "two")))


def _refused(rep: Repetition) -> bool:
    """Whether the wall refuses a kernel in the candidate's place of itself."""
    wall = Wall(HONEST[rep.seed % len(HONEST)], pairs=4, batch_seconds=0.005, seed=rep.seed)
    return not asyncio.run(wall.trial(wall.original)).ok


def _diagnosed(rep: Repetition, one: Seeded) -> dict[str, str]:
    found = rep.verb(
        METHOD, "diagnose", f"{_file(rep, f'{one.name}.c', one.source)}:{one.name}", "--pairs", "4", "--seed", str(rep.seed)
    )
    return {finding["tool"]: finding["severity"] for finding in found["findings"] if finding["severity"] != "info"}


def _seeded(rep: Repetition) -> bool:
    one = SUITE[rep.seed % len(SUITE)]
    return one.tools <= set(_diagnosed(rep, one))


CASES = (
    KnownCase(
        "the same code twice",
        "nothing",
        "The candidate has the kernel's instructions and another constant that nothing "
        "reads: that it is faster is a false finding.",
        _same,
        wanted=0.05,
    ),
    KnownCase(
        "healthy kernels",
        "nothing",
        "Four kernels that the compiler vectorizes whole: a finding of severity critical is false.",
        lambda rep: "critical" in _diagnosed(rep, HEALTHY[rep.seed % len(HEALTHY)]).values(),
        wanted=0.05,
        full=40,
        quick=4,
    ),
    KnownCase(
        "honest kernels",
        "nothing",
        f"One of {len(HONEST)} kernels in C, NumPy and torch, two of them changing an array in place, as a candidate for itself: "
        "that the wall refuses it is false.",
        _refused,
        wanted=0.05,
        full=100,
        quick=6,
    ),
    KnownCase(
        "the work is done twice",
        "planted",
        "The kernel computes its outputs twice, the candidate once: it is faster.",
        lambda rep: _faster(rep, SLOW, SMALL),
        wanted=0.8,
        full=40,
        quick=5,
    ),
    KnownCase(
        "seeded pathologies",
        "planted",
        "A kernel of the suite: every tool of a seeded pathology fires.",
        _seeded,
        wanted=0.8,
        full=48,
        quick=8,
    ),
)
