"""Why is my C function slow, and what makes it faster without making it wrong? Yours:
python make_a_loop_faster.py FILE.c:FUNCTION.

Needs gcc. Every candidate runs in the sandbox, is compared on fresh inputs, and is timed in pairs against the original.
"""

import sys
import tempfile
from pathlib import Path

from ramify import wait_for
from ramify.methods.kernel_search import KernelSearchConfig, Wall, diagnose, read_task, search

SOFTMAX = """#include <math.h>
// ramify: n = 4096, 33, 1; x[n] in -4..4
void softmax(int n, const float *x, float *y) {
  float s = 0;
  for (int i = 0; i < n; i++) {
    y[i] = expf(x[i]);
    s += y[i];
  }
  for (int i = 0; i < n; i++)
    y[i] = y[i] / s;
}
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "softmax.c"
        path.write_text(SOFTMAX)
        task = read_task(sys.argv[1] if len(sys.argv) > 1 else f"{path}:softmax")

        found = wait_for(diagnose(task, Wall(task, pairs=4, batch_seconds=0.005), simulate=False))
        for one in found.findings:
            print(f"{one.severity:8} {one.tool} at {one.where}: {one.cause}\n         -> {one.prescription}")

        best = search(task, KernelSearchConfig(evals=4, pairs=4, batch=0.005), out=Path(folder) / "run")
        for node, trial in zip(best.tree.nodes[1:], best.trials[1:], strict=True):
            print(f"{node.how:16} {f'refused: {trial.refused}' if trial.refused else f'{node.speedup:.2f} times as fast'}")
        if best.gain is None:
            print("nothing is faster than the original")
        else:
            low, high = best.ci
            print(f"{best.speedup:.2f} times as fast, 95 % interval {low:.2f} to {high:.2f}, with {' '.join(best.best.words)}")


if __name__ == "__main__":
    main()
