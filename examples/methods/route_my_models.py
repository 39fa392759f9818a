"""Is routing between my models worth it? Ask each of them my tasks, look at the headroom,
fit a router where there is some, and use it.

python examples/methods/route_my_models.py [TASKS JUDGE NAME=MODEL NAME=MODEL ...]: JSON lines of {id, prompt, answer}, a judge by
name (exact, number, cmd:./check.sh, ...), and models by name (chat:MODEL@URL, hf:DIR, FILE.py:FUNCTION). Without them two
functions answer made-up tasks, each of which knows one kind. The router reads the prompt with the built-in model.
"""

import random
import sys
from pathlib import Path

from ramify.methods.orchestrator import ModelPool, PoolWorker, TurnRouter, collect
from ramify.methods.orchestrator.table import headroom
from ramify.score.judge import find_judge
from ramify.trace.message import Message


def adds(messages, key):
    _, a, b = messages[-1]["content"].split()
    return str(int(a) + int(b)) if a.isdigit() and random.Random(key).random() < 0.9 else "no idea"


def joins(messages, key):
    _, a, b = messages[-1]["content"].split()
    return a + b if not a.isdigit() and random.Random(key).random() < 0.9 else "no idea"


def made_up():
    for i in range(20):
        a, b = (str(i), str(3 * i)) if i % 2 else ("abcdef"[i % 6] * 2, "uvwxyz"[i % 5])
        yield {"id": f"t{i}", "prompt": f"plus {a} {b}", "answer": str(int(a) + int(b)) if i % 2 else a + b}


def main(tasks=None, judge="exact", *models):
    named = [one.partition("=")[::2] for one in models] or [("adds", adds), ("joins", joins)]
    pool = ModelPool([PoolWorker(name, model) for name, model in named])
    table = collect(pool, tasks or list(made_up()), find_judge(judge), Path("table"), n=6)
    found = headroom(table)
    for row in found.workers:
        print(f"{row.worker}: {row.mean:.2f}, failures {row.failures or 'none'}")
    print(found.says)
    if not found.worth:
        return
    router = TurnRouter.from_backbone("builtin", pool.names)
    print(router.fit(table))
    for prompt in table.prompts[:4]:
        logits, _ = router.logits([Message("user", prompt)])
        print(f"{prompt!r} -> {pool.names[int(logits.argmax())]}")
    router.save(Path("router"))
    print("saved: ramify orchestrator serve POOL.toml --router router")


if __name__ == "__main__":
    main(*sys.argv[1:])
