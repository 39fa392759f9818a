"""Comparisons: what is paired with what, what is counted, and that peers sample from the same weights. No clock is asserted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ramify.base.errors import UserError
from ramify.base.progress import Progress
from ramify.engine.profile import Profile
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.methods.dspark import bench
from ramify.methods.dspark.drafter_files import for_target
from ramify.methods.dspark.peers import peer
from ramify.model.protocol import Sampling

PROMPTS = [np.arange(1 + i, 9 + i, dtype=np.int32) for i in range(6)]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    shape = TinyConfig(vocab=48, width=16, layers=3, heads=2, kv_heads=1, head_size=8, ffn=32, context=128)
    model = TinyLM(shape, seed=1)
    with torch.no_grad():  # steep enough that greedy decoding has no near-ties
        model.model.embed_tokens.weight.mul_(20)
    model.save(folder)
    return folder


def fixed(name: str, calls: list[tuple[str, int]], seconds: float) -> bench.Entrant:
    def entrant(prompts: list[np.ndarray], load: int, turn: int) -> bench.BenchTurn:
        calls.append((name, turn))
        return bench.BenchTurn(seconds * (1 + turn), 10, 5, 1.0)

    return entrant


def test_turns_are_paired_and_the_order_turns() -> None:
    calls: list[tuple[str, int]] = []
    entrants = {"plain": fixed("plain", calls, 2.0), "half": fixed("half", calls, 1.0), "same": fixed("same", calls, 2.0)}
    runs = bench.turns(entrants, PROMPTS, 2, 1, 6)
    assert all(len(r) == 6 for r in runs.values())  # the first turn is not counted
    assert len({name for name, turn in calls[::3]}) > 1  # not always the same one first
    found = {p.name: p for p in bench.pairings("here", runs)}
    assert found["half"].ratio == 2.0
    assert found["half"].interval == (2.0, 2.0)
    assert found["half"].verdict == "faster"
    assert found["same"].verdict == "even"
    assert found["half"].tau == 2.0


def test_ctrl_c_leaves_the_turns_that_every_entrant_has() -> None:
    calls: list[tuple[str, int]] = []

    def third(prompts: list[np.ndarray], load: int, turn: int) -> bench.BenchTurn:
        if turn == 5:
            raise KeyboardInterrupt
        return fixed("half", calls, 1.0)(prompts, load, turn)

    entrants = {"plain": fixed("plain", calls, 2.0), "half": third}
    cut = bench.Interrupt()
    runs = bench.turns(entrants, PROMPTS, 2, 1, 15, interrupt=cut)
    assert {name: len(own) for name, own in runs.items()} == {"plain": 4, "half": 4}
    assert cut.came == "4 turns of 15 with 1 request at once"
    assert bench.pairings("here", runs)[1].interval == (2.0, 2.0)
    with pytest.raises(KeyboardInterrupt):
        bench.turns(entrants, PROMPTS, 2, 1, 15)


def test_an_interrupted_comparison_reports_its_turns_and_says_so(target: Path) -> None:
    drafter = for_target(TinyLM.load(target), "dspark", layers=1, block=3, rank=4)
    costs = Profile(3, (1, 4), (1.0, 2.0), ((0.1, 0.2), (0.2, 0.4)), ((1.0, 1.1, 1.2, 1.3), (2.0, 2.2, 2.4, 2.6)))

    def after(turns: int) -> Progress:
        class Cut(Progress):
            def at(self, done: float, note: str = "", phase: str = "") -> None:
                if done == turns:
                    raise KeyboardInterrupt

        return Cut()

    few = Sampling(max_tokens=2)
    whole = {"drafters": {"own": drafter}, "prompts": {"one": PROMPTS}, "settings": few, "costs": costs, "loads": (1,)}
    found = bench.compare(target, **whole, rounds=9, progress=after(5))
    assert (found.exit_code, [p.turns for p in found.domains], found.loads) == (130, [4, 4], ())
    assert found.caveats[0].startswith("interrupted after 4 turns of 9")
    assert found.caveats[1] == (
        "the interval of 4 turns is no wider than from the slowest to the fastest, which holds the median in 88% and not 95 %"
    )
    assert "own" in str(found)
    with pytest.raises(KeyboardInterrupt):  # nothing is there to report
        bench.compare(target, **whole, rounds=9, progress=after(1))


@pytest.mark.slow
def test_a_comparison_names_every_entrant_at_every_place(target: Path) -> None:
    module = TinyLM.load(target)
    drafter = for_target(module, "dspark", layers=1, block=3, rank=4)
    costs = Profile(3, (1, 4), (1.0, 2.0), ((0.1, 0.2), (0.2, 0.4)), ((1.0, 1.1, 1.2, 1.3), (2.0, 2.2, 2.4, 2.6)))
    said: list[str] = []

    class Told(Progress):
        def at(self, done: float, note: str = "", phase: str = "") -> None:
            said.extend([note] if note else [])

    found = bench.compare(
        target,
        {"own": drafter},
        {"one": PROMPTS, "two": PROMPTS},
        settings=Sampling(max_tokens=4),
        peers={"prompt_lookup": None},
        costs=costs,
        loads=(1, 2),
        rounds=2,
        progress=Told(),
    )
    assert {(p.place, p.name) for p in found.domains} == {
        (d, n) for d in ("one", "two") for n in ("plain", "own", "prompt_lookup")
    }
    assert {p.name for p in found.loads} == {"plain", "off", "fixed:2", "fixed:3", "threshold:0.5", "greedy", "stale2"}
    assert all(1 <= p.tau <= 4 for p in found.domains)
    assert next(p.tau for p in found.domains if p.name == "plain") == 1
    assert len(found.pays()) == 2
    text = str(found)
    assert "prompt_lookup" in text
    assert "2 at once" in text
    assert len(said) == 4
    assert found.loads[0].verdict == "open"  # of two turns nothing is said
    assert found.caveats[0].startswith("2 turns give no verdict")


def test_a_comparison_needs_something_to_compare(target: Path) -> None:
    with pytest.raises(UserError, match="at least one drafter"):
        bench.compare(target, {}, {"one": PROMPTS})
    with pytest.raises(UserError, match="peer 'medusa'"):
        peer(target, "medusa", Sampling())


@pytest.mark.slow
def test_transformers_drafts_with_our_dflash_what_the_engine_drafts(target: Path) -> None:
    """The same weights behind ``speculation_type="dflash"`` are accepted as often, greedily, as on the engine."""
    module = TinyLM.load(target)
    drafter = for_target(module, "dflash", layers=2, block=3, seed=3)
    greedy = Sampling(temperature=0.0, max_tokens=24)
    _, passes = peer(target, "hf_dflash", greedy, drafter, 3)(PROMPTS, 24)
    engine = bench.Engine(module, greedy, 1, drafter=drafter, schedule="fixed:3")
    run = engine(PROMPTS, 1, 0)
    assert abs(run.passes - passes) <= len(PROMPTS)  # one pass more or less a reply: the first token's, and room at the end
    from ramify.methods.dspark.transformers_drafter import transformers_dflash

    with pytest.raises(UserError, match="kind dflash"):
        transformers_dflash(for_target(module, "dspark", layers=1, block=3, rank=4))
