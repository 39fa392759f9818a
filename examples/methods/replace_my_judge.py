"""May I replace my judge? Put two judges to labelled items, see what a replacement erases in a run, replace, and score anew.

python examples/methods/replace_my_judge.py [ANCHOR INCUMBENT CHALLENGER [RUN SLOT]]: a file of {id, artefact, label} lines, two
judges by name (judge:chat:MODEL@URL#PROMPT.txt, cmd:./check.sh, FILE.py:FUNCTION, regex:PATTERN, ...), and the run and slot that
the first one scored. Without them two patterns judge made-up replies, of which the newer one knows that politeness is not an
answer.
"""

import json
import random
import sys
from pathlib import Path

from ramify import wait_for
from ramify.methods.judge_evolution import board, check, promote, rescore
from ramify.methods.judge_evolution.algorithm import PromotionConfig
from ramify.score.anchor import read_anchor
from ramify.score.judge import find_judge
from ramify.trace.db import Run
from ramify.trace.node import make_node


def replies(n):
    """Made-up replies: whether they hold a number decides, and half of the others are polite."""
    for i in range(n):
        rng = random.Random(i)
        right, polite = rng.random() < 0.5, rng.random() < 0.5
        yield f"{'Certainly! ' * polite}{f'It is {i}.' if right else 'It depends.'}", right


def made_up(folder):
    folder.mkdir()
    rows = [{"id": i, "artefact": text, "label": right} for i, (text, right) in enumerate(replies(120))]
    (folder / "anchor.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with Run.create(folder / "run", {}) as run:
        run.add_tree("task", {"id": "task"})
        root = make_node("task", None, 0, "root", "")
        run.add(root, *(make_node("task", root.id, 0, "assistant", text, index=i) for i, (text, _) in enumerate(replies(40))))
        wait_for(rescore(run, "quality", find_judge("regex:certainly|it is")))
    return folder / "anchor.jsonl", "regex:certainly|it is", r"regex:it is \d", folder / "run", "quality"


def main(anchor=None, incumbent=None, challenger=None, folder=None, slot=None):
    if anchor is None:
        anchor, incumbent, challenger, folder, slot = made_up(Path("made-up"))
    items, rule = read_anchor(Path(anchor)), PromotionConfig()
    old, new = find_judge(incumbent), find_judge(challenger)
    found = wait_for(check(items, [new], old, rule))
    for one in (found.incumbent, found.challengers[0]):
        print(f"{one.judge}: right on {one.accuracy}, {one.missing} missing, longer accepted {one.length and one.length.value}")
    print(f"may it take over? {found.promote}: {found.why}")
    if folder is None:
        return
    with Run.open(folder, write=True) as run:
        told = wait_for(promote(run, slot, {challenger: new}, items, old, rule))
        print(f"promoted: {told.promoted}; scores that stopped counting: {told.stake.erased}")
        if told.promoted:
            print(wait_for(rescore(run, slot, new)))
        print("counting now:", board(run).slots[slot].counting, "kept for the record:", board(run).slots[slot].erased)


if __name__ == "__main__":
    main(*sys.argv[1:6])
