"""``python -m ramify_experiments.tree_rollouts``: the verbs of :mod:`ramify_experiments.tree_rollouts.sweep`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ramify.base.errors import RamifyError
from ramify.kit import call
from ramify.render.terminal import say
from ramify_experiments.tree_rollouts.sweep import app


def main(argv: Sequence[str]) -> int:
    """Run the verb that ``argv`` names, and return its exit code."""
    try:
        return call(app, argv)
    except RamifyError as error:
        say(str(error))
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
