"""Speculation on the local engine beside plain decoding, transformers' own ways and vLLM's CPU build,
on one target and one set of prompts.

    python benchmarks/speculation.py [--parts domains loads serving steps] [--vllm PYTHON] [--rounds 15] [--threads 2]
    [--cpu-time] [--save]

The target and the drafters are those of ``ramify repro dspark`` (trained first where they are not in the cache yet). Temperature
1, 64 new tokens behind 24 given ones. All entrants take turns on the same prompts; a ratio is the median over the turns with its
95% bootstrap interval. ``--vllm`` names an interpreter of an environment of its own that holds vLLM. The part ``steps`` needs no
training: it measures what a drafting step costs beside a plain one, on pairs of random weights. ``--cpu-time`` counts processor
time, for a machine that does other work.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from common import save
from serving_vllm import Vllm

from ramify.base.seeds import derive_key
from ramify.engine.local import LocalModel
from ramify.engine.profile import Profile
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.methods.dspark import bench, profile
from ramify.methods.dspark.drafter_files import for_target
from ramify.methods.dspark.record import PLAIN, Pairing
from ramify.model.protocol import Prefix, Sampling
from ramify.render.terminal import progress
from ramify.render.text import table
from ramify.stats.intervals import bootstrap
from ramify_experiments.dspark import domains
from ramify_experiments.dspark.lab import GIVEN, DrafterLab
from ramify_experiments.dspark.repro import DRAFTERS, SIZES

PARTS = ("domains", "loads", "serving", "steps")
NEW = 64
SETTINGS = Sampling(max_tokens=NEW)
BATCHES = (1, 8, 32)
NAMES = {
    "generate": "transformers generate",
    "prompt_lookup": "transformers prompt lookup",
    "hf_assistant": "transformers assistant, 1 layer",
    "hf_dflash": "transformers DFlash, our weights",
}
SIZES_OF_STEPS = {
    "0.5 M": TinyConfig(vocab=512, width=96, layers=4, heads=3, kv_heads=3, head_size=32, ffn=256, context=512),
    "1 M": TinyConfig(vocab=512, width=128, layers=5, heads=4, kv_heads=2, head_size=32, ffn=384, context=512),
    "5 M": TinyConfig(vocab=512, width=256, layers=7, heads=8, kv_heads=4, head_size=32, ffn=704, context=512),
    "24 M": TinyConfig(vocab=2048, width=512, layers=8, heads=8, kv_heads=4, head_size=64, ffn=1408, context=512),
}
BLOCK = 7


Table = tuple[list[str], list[list[Any]]]


def say(line: str) -> None:
    print(line, flush=True)


def busy() -> str:
    """How busy the machine is."""
    return f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def one_at_a_time(found: Sequence[Pairing]) -> Table:
    """Columns and rows of the table of entrants."""
    cell = {(p.name, p.place): p for p in found}
    names, places = dict.fromkeys(p.name for p in found), list(dict.fromkeys(p.place for p in found))
    columns = ["", *(f"tau {d}" for d in places), *(f"tok/s {d}" for d in places), *(f"x plain, {d}" for d in places)]
    rows: list[list[Any]] = []
    for name in names:
        own = [cell[name, d] for d in places]
        taus, speeds = [f"{p.tau:.2f}" for p in own], [round(p.speed) for p in own]
        rows.append([NAMES.get(name, name), *taus, *speeds, *map(str, own)])
    return columns, rows


def under_load(found: Sequence[Pairing]) -> Table:
    """Columns and rows of the table of schedules; the frontier is drawn from it."""
    rows = [[p.place, p.name, round(p.speed), round(p.user_speed), str(p), p.verdict] for p in found]
    return ["requests at once", "schedule", "tok/s", "tok/s a request", "x plain", "verdict"], rows


def against_vllm(python: str, lab: DrafterLab, costs: Profile, drafter: Any, prompts: Sequence[np.ndarray], rounds: int) -> Table:
    """Columns and rows: the engine plain and speculating, and vLLM, on the same batches."""
    child = Vllm(python, lab.folder, NEW, torch.get_num_threads())

    def vllm(some: Sequence[np.ndarray], load: int, turn: int) -> bench.BenchTurn:
        seconds = child(some)
        return bench.BenchTurn(seconds, NEW * len(some), NEW * len(some), NEW / seconds)

    module = lab.model.module
    entrants: dict[str, bench.Entrant] = {
        PLAIN: bench.Engine(module, SETTINGS, max(BATCHES)),
        "stale2": bench.Engine(
            module, SETTINGS, max(BATCHES), drafter=drafter, schedule="stale2", profile=costs, verify="rejection"
        ),
        "vLLM CPU": vllm,
    }
    rows: list[list[Any]] = []
    try:
        for batch in BATCHES:
            runs = bench.turns(entrants, prompts, batch, batch, rounds)
            own, other = bench.pairings(str(batch), runs), bench.pairings(str(batch), runs, "vLLM CPU")
            rows.append([batch, *(round(p.speed) for p in own), *map(str, other[:2])])
            say("  ".join(map(str, rows[-1])))
    finally:
        child.close()
    return ["batch", "plain tok/s", "speculating tok/s", "vLLM tok/s", "plain / vLLM", "speculating / vLLM"], rows


def step_seconds(model: LocalModel, load: int, turn: int) -> tuple[float, float]:
    """Seconds of one step of so many requests, and of its target pass (nan without drafts), until the first of them ends."""
    made = np.random.default_rng((turn, load)).integers(0, model.forward.vocab, (load, 3)).astype(np.int32)
    before, spec = model.stats.forward_passes, model.speculation
    target = 0.0 if spec is None else spec.target_seconds

    async def run() -> float:
        keys = (derive_key(turn, "steps", i) for i in range(load))
        tasks = [
            asyncio.ensure_future(model.sample(Prefix(row), 1, SETTINGS, [key])) for row, key in zip(made, keys, strict=True)
        ]
        began = time.perf_counter()
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        seconds = time.perf_counter() - began
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return seconds

    seconds, steps = asyncio.run(run()), model.stats.forward_passes - before  # so short a prompt has no pass of its own
    return seconds / steps, float("nan") if spec is None else (spec.target_seconds - target) / steps


def steps(rounds: int) -> Table:
    """Columns and rows: by size and load, a plain step and one that drafts and verifies whole blocks, in turns."""
    rows: list[list[Any]] = []
    for name, config in SIZES_OF_STEPS.items():
        module = TinyLM(config)
        drafter = for_target(module, "dspark", layers=2, block=BLOCK, rank=64).eval()
        kept: dict[str, Any] = {"eos": (), "max_sequences": max(BATCHES), "cache_bytes": bench.CACHE}
        plain = LocalModel(module, **kept)
        drafting = LocalModel(module, drafter=drafter, schedule=f"fixed:{BLOCK}", verify="rejection", **kept)
        for load in BATCHES:
            turns: list[tuple[float, float, float]] = []
            for turn in range(-2, rounds):
                one = step_seconds(plain, load, turn + 2)[0] if turn % 2 else None
                whole, target = step_seconds(drafting, load, turn + 2)
                one = step_seconds(plain, load, turn + 2)[0] if one is None else one
                if turn >= 0:
                    turns.append((one, target / one, (whole - target) / one))
            one, target, over = np.median(np.array(turns), axis=0).tolist()
            low, high = bootstrap([turn[2] for turn in turns], lambda draws: np.median(draws, axis=1))
            rows.append([name, load, f"{1e3 * one:.2f}", f"{target:.2f}", f"{over:.2f} [{low:.2f}, {high:.2f}]"])
            say("  ".join(map(str, rows[-1])))
    return ["target", "requests at once", "plain step, ms", "target pass, plain steps", "the rest of the step, plain steps"], rows


def prompts_of(seed: int, n: int, part: str) -> dict[str, list[np.ndarray]]:
    """``n`` starts in each domain that no text was sampled from."""
    return {domain: domains.prompts(domain, n, GIVEN, seed, part) for domain in domains.DOMAINS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", metavar="PYTHON", help="interpreter of an environment that holds vLLM")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--cpu-time", action="store_true", help="count processor time")
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()
    if args.cpu_time:
        time.perf_counter = time.process_time
    torch.set_num_threads(args.threads)
    tables = {"speculation_steps": steps(args.rounds)} if "steps" in args.parts else {}
    if set(args.parts) - {"steps"}:
        tables |= trained(args)
    for name, (columns, rows) in tables.items():
        say("\n" + table(columns, rows))
        if args.save:
            clock = "processor time" if args.cpu_time else "wall-clock time"
            save(name, TITLES[name], columns, rows, f"{NOTES[name]} {args.threads} threads, {clock}, {busy()} at the end.")


def trained(args: argparse.Namespace) -> dict[str, Table]:
    """The parts that need the trained pair."""
    lab = DrafterLab(SIZES["cpu"], 0)
    first = lab.drafter(DRAFTERS["DSpark"])
    module, prompts = (
        lab.model.module,
        prompts_of(0, 24 * (args.rounds + bench.SETTLE), "bench"),
    )  # no prompt comes back, which a store would know
    mixed = [prompt for some in zip(*prompts.values(), strict=True) for prompt in some]
    tables: dict[str, Table] = {}
    if "domains" in args.parts:
        drafters = {name: lab.drafter(what) for name, what in DRAFTERS.items() if "equal" not in name}
        peers: dict[str, Any] = {"generate": None, "prompt_lookup": None, "hf_assistant": lab.assistant(2400, 1500)}
        peers["hf_dflash"] = drafters["DFlash"]
        with progress("one request at a time") as bar:
            alone = bench.one_by_one(lab.folder, module, drafters, prompts, SETTINGS, peers, args.rounds, progress=bar)
        tables["speculation"] = one_at_a_time(alone)
    if {"loads", "serving"} & set(args.parts):
        costs = profile.measure(LocalModel(module, eos=(), max_sequences=max(bench.LOADS)), first, mixed, bench.LOADS).profile()
        for row in profile.break_even(costs):
            say(", ".join(f"{name} {value:.4g}" for name, value in asdict(row).items()))
    if "loads" in args.parts:
        with progress("under load") as bar:
            together = bench.under_load(module, first, mixed, SETTINGS, costs, rounds=args.rounds, progress=bar)
        tables["speculation_load"] = under_load(together)
    if "serving" in args.parts and args.vllm:
        tables["serving"] = against_vllm(args.vllm, lab, costs, first, mixed, args.rounds)
    return tables


TITLES = {
    "speculation": "Speculation, one request at a time",
    "speculation_load": "Speculation under load",
    "speculation_steps": "What a drafting step costs",
    "serving": "The engine and vLLM's CPU build on one small model",
}
NOTES = {
    "speculation": (
        "A target of 0.47 M weights on three procedural domains, every draft verified at full length (7), rejection sampling. "
        "tau: tokens a target pass, "
        "the bonus or corrected token counted. x plain: seconds of the engine's plain decoding / seconds of the row, median "
        "over turns with its 95% interval. "
        "The transformers rows run through generate at batch 1; compare them with 'transformers generate', whose own overhead "
        "they share."
    ),
    "speculation_load": (
        "DSpark of 3 layers, all domains mixed, so many clients that each ask again at once. 'faster' and 'slower': the 95% "
        "interval of the ratio leaves 1 out. "
        "fixed and threshold do what they are told at any load; greedy and stale2 follow the profile of whole cycles measured "
        "in the same run."
    ),
    "speculation_steps": (
        "Targets of random weights, each with a DSpark of 2 layers and rank 64: what a step costs does not depend on what it "
        "samples. A drafting step "
        "drafts 7 tokens for each request and verifies all of them by rejection. Its target pass runs 8 tokens a request "
        "instead of 1; "
        "the rest is absorbing, drafting, verifying and taking the tokens in. Medians over turns with the 95% interval."
    ),
    "serving": "Batches that start together, 64 new tokens each, float32; vLLM runs eager in one process. Above 1 ramify is the "
    "faster one.",
}

if __name__ == "__main__":
    main()
