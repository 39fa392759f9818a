"""Searches without a model on torch files: two with something to gain, two healthy ones, on which nothing may be found.

``python -m ramify_experiments.kernel_search.torch_files [--evals 6] [--pairs 10] [--seed 0]`` prints one line of JSON a file.
"""

from __future__ import annotations

import argparse
import json

from ramify.methods.kernel_search.loop import search
from ramify.methods.kernel_search.proposers import TransformProposer
from ramify.methods.kernel_search.task import from_python
from ramify.methods.kernel_search.transforms import transforms_for
from ramify.render.terminal import say

FILES = {
    "product": """import torch
# ramify: n = 200, 7; k = 100, 5; m = 150, 3; x[n, k]; w[k, m]; result[n, m]


def product(n, k, m, x, w):
    return (x[:, :, None] * w[None]).sum(1)
""",
    "copies": """import torch
# ramify: n = 512, 7; m = 1024, 5; x[n, m]; b[n, m]; result[n, m]


def copies(n, m, x, b):
    z = x.clone() * 2.0 + b.clone()
    e = z.double() * 0.5 + 1.0
    return e.float() * z.clone()
""",
    "sum": """import torch
# ramify: n = 500000, 7; x[n]; y[n]; result[n]


def sum(n, x, y):
    return torch.add(x, y)
""",
    "matmul": """import torch
# ramify: n = 256, 7; x[n, n]; y[n, n]; result[n, n]


def matmul(n, x, y):
    return x @ y
""",
}
HEALTHY = ("sum", "matmul")


def main() -> None:
    """Print what each search came to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--evals", type=int, default=6)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without", action="append", default=[], help="a transform to leave out")
    options = parser.parse_args()
    names = [one for one in transforms_for("torch") if one not in options.without]
    for name, source in FILES.items():
        task = from_python(source, path=f"{name}.py")
        proposer = TransformProposer(task, options.seed, names=names)
        found = search(task, evals=options.evals, pairs=options.pairs, seed=options.seed, proposer=proposer).result()
        row = {"file": name, "healthy": name in HEALTHY, "speedup": found.speedup, "interval": found.interval}
        say(json.dumps(row | {"line": [one.how for one in found.line], "candidates": found.candidates, "refused": found.refused}))


if __name__ == "__main__":
    main()
