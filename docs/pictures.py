"""Make the README's picture from a run of the main job: python docs/pictures.py RUN [TREE].

Without a tree it takes the one with both outcomes and the most branch points.
"""

import sys
from pathlib import Path

from ramify.render.trees import tree_svg
from ramify.trace.db import Run
from ramify.web.steps import TaskTree, picture_steps, read_tree

IMAGES = Path(__file__).with_name("images")


def branches(tree: TaskTree) -> tuple[int, int]:
    """Branch points inside attempts, and steps; (-1, 0) where the outcomes are not mixed or the tree is too large to read."""
    inner = [step.parent for step in tree.steps if step.parent is not None]
    fits = tree.mixed and len(tree.steps) <= 80
    return (sum(inner.count(parent) > 1 for parent in set(inner)), len(tree.steps)) if fits else (-1, 0)


def main() -> None:
    """Write the picture."""
    with Run.open(sys.argv[1]) as run:
        names = sys.argv[2:] or [info.name for info in run.trees() if not info.group.startswith("eval-")]
        tree = max((read_tree(run, name) for name in names), key=branches)
        IMAGES.mkdir(exist_ok=True)
        picture = tree_svg(picture_steps(tree, ""), "Attempts at one task, steps coloured by credit", scale=4)
        (IMAGES / "tree.svg").write_text(picture, encoding="utf-8")
        print(tree.info.name, branches(tree))


if __name__ == "__main__":
    main()
