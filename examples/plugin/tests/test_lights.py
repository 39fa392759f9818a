"""The parts do what their kinds promise, and the expert solves rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lights.environment import LightsEnvironment
from lights.judge import Switches
from lights.model import Expert

from ramify.jobs.play import play


@pytest.mark.parametrize(("kind", "part"), [("env", LightsEnvironment()), ("judge", Switches()), ("model", Expert())])
def test_the_parts_conform(ramify: Any, kind: str, part: Any) -> None:
    ramify.assert_conforms(kind, part)


def test_the_expert_beats_chance_and_repeats_itself(ramify: Any, tmp_path: Path, forbid_real_calls: None) -> None:
    first = play(Expert(), LightsEnvironment(), attempts=8, out=tmp_path / "first", seed=1)
    play(Expert(), LightsEnvironment(), attempts=8, out=tmp_path / "second", seed=1)
    ramify.assert_same_tree(tmp_path / "first", tmp_path / "second")
    ramify.assert_success_rate(first, at_least=0.25)
