"""Speculation on the local engine beside plain decoding, transformers' own ways and vLLM's CPU build, on one target and one set of prompts.

    python benchmarks/speculation.py [--parts domains loads serving] [--vllm PYTHON] [--rounds 15] [--threads 2] [--save]

The target and the drafters are those of ``ramify repro dspark`` (trained first where they are not in the cache yet). Temperature 1, 64 new
tokens behind 24 given ones. All entrants take turns on the same prompts; a ratio is the median over the turns with its 95% bootstrap interval.
``--vllm`` names an interpreter of an environment of its own that holds vLLM.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from common import save
from serving_vllm import Vllm

from ramify.engine.local import LocalModel
from ramify.methods.dspark import bench, profile
from ramify.model.protocol import Sampling
from ramify.render.terminal import progress, table
from ramify_experiments.dspark import domains
from ramify_experiments.dspark.lab import GIVEN, DrafterLab
from ramify_experiments.dspark.repro import DRAFTERS, SIZES

PARTS = ("domains", "loads", "serving")
NEW = 64
SETTINGS = Sampling(max_tokens=NEW)
BATCHES = (1, 8, 32)
NAMES = {
    "generate": "transformers generate",
    "prompt_lookup": "transformers prompt lookup",
    "hf_assistant": "transformers assistant, 1 layer",
    "hf_dflash": "transformers DFlash, our weights",
}


Table = tuple[list[str], list[list[Any]]]


def say(line: str) -> None:
    print(line, flush=True)


def busy() -> str:
    """How busy the machine is."""
    return f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def one_at_a_time(found: Sequence[bench.Pairing]) -> Table:
    """Columns and rows of the table of entrants."""
    cell = {(p.name, p.place): p for p in found}
    names, places = dict.fromkeys(p.name for p in found), list(dict.fromkeys(p.place for p in found))
    columns = ["", *(f"tau {d}" for d in places), *(f"tok/s {d}" for d in places), *(f"x plain, {d}" for d in places)]
    rows: list[list[Any]] = []
    for name in names:
        own = [cell[name, d] for d in places]
        taus, speeds = [f"{p.tau:.2f}" for p in own], [round(p.speed) for p in own]
        rows.append([NAMES.get(name, name), *taus, *speeds, *map(bench.show, own)])
    return columns, rows


def under_load(found: Sequence[bench.Pairing]) -> Table:
    """Columns and rows of the table of schedules; the frontier is sampled from it."""
    rows = [[p.place, p.name, round(p.speed), round(p.user_speed), bench.show(p), p.score] for p in found]
    return ["requests at once", "schedule", "tok/s", "tok/s a request", "x plain", "verdict"], rows


def against_vllm(
    python: str, lab: DrafterLab, costs: profile.Profile, drafter: Any, prompts: Sequence[np.ndarray], rounds: int
) -> Table:
    """Columns and rows: the engine plain and speculating, and vLLM, on the same batches."""
    child = Vllm(python, lab.folder, NEW, torch.get_num_threads())

    def vllm(some: Sequence[np.ndarray], load: int, turn: int) -> bench.BenchTurn:
        seconds = child(some)
        return bench.BenchTurn(seconds, NEW * len(some), NEW * len(some), NEW / seconds)

    module = lab.model.module
    entrants: dict[str, bench.Entrant] = {
        bench.PLAIN: bench.Engine(module, SETTINGS, max(BATCHES)),
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
            rows.append([batch, *(round(p.speed) for p in own), *(bench.show(p) for p in other[:2])])
            say("  ".join(map(str, rows[-1])))
    finally:
        child.close()
    return ["batch", "plain tok/s", "speculating tok/s", "vLLM tok/s", "plain / vLLM", "speculating / vLLM"], rows


def prompts_of(seed: int, n: int, part: str) -> dict[str, list[np.ndarray]]:
    """``n`` starts in each domain that no text was sampled from."""
    return {domain: domains.prompts(domain, n, GIVEN, seed, part) for domain in domains.DOMAINS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", metavar="PYTHON", help="interpreter of an environment that holds vLLM")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()
    lab = DrafterLab(SIZES["cpu"], 0)
    first = lab.drafter(DRAFTERS["DSpark"])
    torch.set_num_threads(args.threads)
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
        costs = profile.measure(LocalModel(module, eos=(), max_sequences=max(bench.LOADS)), first, mixed, bench.LOADS)
        for row in profile.break_even(costs):
            say(", ".join(f"{name} {value:.4g}" for name, value in row.items()))
    if "loads" in args.parts:
        with progress("under load") as bar:
            together = bench.under_load(module, first, mixed, SETTINGS, costs, rounds=args.rounds, progress=bar)
        tables["speculation_load"] = under_load(together)
    if "serving" in args.parts and args.vllm:
        tables["serving"] = against_vllm(args.vllm, lab, costs, first, mixed, args.rounds)
    for name, (columns, rows) in tables.items():
        say("\n" + table(columns, rows))
        if args.save:
            save(name, TITLES[name], columns, rows, f"{NOTES[name]} {args.threads} threads, {busy()} at the end.")


TITLES = {
    "speculation": "Speculation, one request at a time",
    "speculation_load": "Speculation under load",
    "serving": "The engine and vLLM's CPU build on one small model",
}
NOTES = {
    "speculation": (
        "A target of 0.47 M weights on three procedural domains, every draft verified at full length (7), rejection sampling. tau: tokens a target pass, "
        "the bonus or corrected token counted. x plain: seconds of the engine's plain decoding / seconds of the row, median over turns with its 95% interval. "
        "The transformers rows run through generate at batch 1; compare them with 'transformers generate', whose own overhead they share."
    ),
    "speculation_load": (
        "DSpark of 3 layers, all domains mixed, so many clients that each ask again at once. 'faster' and 'slower': the 95% interval of the ratio leaves 1 out. "
        "fixed and threshold do what they are told at any load; greedy and stale2 follow the profile of whole cycles measured in the same run."
    ),
    "serving": "Batches that start together, 64 new tokens each, float32; vLLM runs eager in one process. Above 1 ramify is the faster one.",
}

if __name__ == "__main__":
    main()
