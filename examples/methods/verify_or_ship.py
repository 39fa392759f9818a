"""Should my coding agent rewrite, or pay for the full test run? Tables from its past attempts,
the policy they make, and one task under it.

python examples/methods/verify_or_ship.py: my repository is one module, PUBLIC and FULL are its quick and its whole test run (in
the sandbox), and `attempts` are replies that my agent gave.
Put your scripts and logs in their place: candidates come on standard input.
"""

import json
import tempfile
from pathlib import Path

from ramify import wait_for
from ramify.methods.verify_or_ship import ControlConfig, Controller, Critic, calibrate
from ramify.methods.verify_or_ship.algorithm import Plan
from ramify.methods.verify_or_ship.records import ask, read_source
from ramify.methods.verify_or_ship.report import policy_text, walk
from ramify.score.judge import find_judge
from ramify.trace.convert import read_run
from ramify.trace.db import Run

RUN = "#!/bin/sh\ncat > slug.py\nexec 2>/dev/null\npython -c 'from slug import slug as s\n%s'\n"
PUBLIC = RUN % 'assert s("Hello World") == "hello-world"'
FULL = RUN % 'for a, b in [("A  b", "a-b"), (" x ", "x"), ("", ""), ("A-B", "a-b")]: assert s(a) == b'
BODIES = {
    "right": '"-".join(text.lower().replace("-", " ").split())',
    "near": 'text.lower().replace(" ", "-")',  # passes the public test and fails the full one
    "wrong": 'text.upper().replace(" ", "-")',
    "broken": 'text.lower(',
}  # fmt: skip


def attempts():
    """What my agent did at sixteen tasks: a first candidate, and a rewrite of it."""
    for i in range(16):
        first = ["wrong", "near", "right", "right"][i % 4]
        pair = [first, "right" if i in (0, 5) else {"wrong": "near", "near": "broken", "right": "right"}[first]]
        said = [
            {"role": "assistant", "content": f"def slug(text):\n    return {BODIES[name]}  # {i}.{k}\n"}
            for k, name in enumerate(pair)
        ]
        yield {"task": f"task {i}", "messages": [{"role": "user", "content": "write slug"}, *said]}


def main(folder):
    (folder / "public.sh").write_text(PUBLIC)
    (folder / "full.sh").write_text(FULL)
    (folder / "log.jsonl").write_text("".join(json.dumps(one) + "\n" for one in attempts()))
    read_run(folder / "log.jsonl", folder / "run")
    public, full = find_judge(f"cmd:{folder / 'public.sh'}"), find_judge(f"cmd:{folder / 'full.sh'}")
    with Run.open(folder / "run", write=True) as run:  # each candidate judged once; interrupted, it continues
        print(ask(run, {"tests": public, "verifier": full}), "candidates judged")
    tables = calibrate(read_source(folder / "run"))
    config = ControlConfig(reward=100, c_ver=40, c_gen=8, costs=("tests=2",))
    print(policy_text(list(walk(Plan(tables, config)))))

    replies = iter(["wrong", "right", "right"])  # in their place: what your model writes when it is shown what failed
    controller = Controller(
        [Critic("tests", public)],
        full,
        lambda task, last, said: f"def slug(text):\n    return {BODIES[next(replies)]}\n",
        config,
        tables,
    )
    found = wait_for(controller.run("write slug"))
    print(f"{' > '.join(found.actions)}: delivered {found.delivered}, belief {found.belief:.2f}, cost {found.cost:g}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(Path(place))
