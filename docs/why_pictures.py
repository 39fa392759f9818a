"""Draw the picture of docs/why.md: python docs/why_pictures.py (an errand that two bad picks lose only together, played and asked
here)."""

from __future__ import annotations

import tempfile
from pathlib import Path

from picture_files import save

import ramify
from ramify.web.shares import share_picture
from ramify_experiments.why.errands import ErrandEnvironment, agent, errand, recorded


def shares() -> str:
    """Shares of the steps of one errand of the reproduction."""
    one = errand("two", 1)
    environment = ErrandEnvironment(one)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        ramify.play(recorded(one), environment, [{"id": "errand"}], out=run)
        return share_picture(ramify.why(run, model=agent(one), env=environment, share=True).share)


if __name__ == "__main__":
    save("why", {"shares": shares()})
