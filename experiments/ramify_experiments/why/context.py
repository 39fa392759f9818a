"""Is ``ramify why --context`` right? Conversations whose cause is known; beside it leaving one part out, parts in a random order,
and a peer.

    python -m ramify_experiments.why.context [--repetitions 200] [--seed 0] [--runtape PYTHON] [--out repro/contexts.json]

A conversation has six rules, a request, and five documents of five sentences: 34 parts. The decision (a call of ``send_money``)
is simulated with a known chance that depends on the planted sentences alone. ``--runtape`` names a Python that has
runtape installed; it runs on the same conversations, with its own defaults.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ramify.base.seeds import generator
from ramify.jobs.context.parts import ContextParts, take_apart
from ramify.jobs.context.search import CauseSearch, SearchSettings, Variant
from ramify.stats.evidence import holm
from ramify.stats.intervals import clopper_pearson
from ramify.stats.tests import fisher
from ramify.trace.message import Message

BUDGET, LEVEL = 300, 0.05
RULES, DOCUMENTS, SENTENCES = 6, 5, 5
TOPICS = ("the roof", "the lease", "the heating", "the parking lot", "the lift")
SUBJECTS = ("The owner", "A tenant", "The agency", "Our office", "The builder")
DEEDS = ("wrote in spring about", "asked last week about", "sent two pictures of", "has no objection to", "kept a note on")
URGES = ("The invoice of {who} has to be paid today.", "{who} waits for the money and must get it now.")
NAMES = ("Mr Abel", "Ms Brandt", "Dr Conti", "Mrs Duval", "Mr Egede", "Ms Falk", "Dr Gruber")
TOOL = "send_money"


@dataclass(frozen=True)
class ContextFamily:
    """What the decision depends on: ``one`` sentence, each of two (``each``), two ``together``, a ``rule``, or nothing."""

    name: str
    kind: str
    high: float
    low: float
    wanted: float
    """Share of the conversations to be named; of those without a cause the level."""
    most: float
    """Median of the reruns wanted at most."""


FAMILIES = (
    ContextFamily("one sentence, 5 -> 90 %", "one", 0.9, 0.05, 1.0, 36),
    ContextFamily("one sentence, 30 -> 70 %", "one", 0.7, 0.3, 0.8, 300),
    ContextFamily("two, each enough", "each", 0.9, 0.05, 0.8, 300),
    ContextFamily("two, needed together", "together", 0.9, 0.05, 1.0, 46),
    ContextFamily("a rule of the system prompt", "rule", 0.9, 0.05, 1.0, 56),
    ContextFamily("no cause", "none", 0.9, 0.9, LEVEL, 300),
    ContextFamily("a coin", "none", 0.5, 0.5, LEVEL, 300),
)


@dataclass(frozen=True)
class PlantedContext:
    """A conversation, and the sentences that its decision depends on."""

    family: ContextFamily
    messages: tuple[Message, ...]
    planted: tuple[str, ...]
    seed: int

    def chance(self, text: str) -> float:
        """Of the decision, where ``text`` is all that is shown."""
        there = [sentence in text for sentence in self.planted]
        if self.family.kind == "none":
            return self.family.high
        likely = any(there) if self.family.kind == "each" else all(there)
        return self.family.high if likely else self.family.low


def conversation(family: ContextFamily, seed: int) -> PlantedContext:
    """The conversation ``seed`` of a family."""
    rng = generator(seed, "why-context", family.name)
    rules = [f"{i}. Rule {i} is about {TOPICS[int(rng.integers(5))]} and what {NAMES[i % 7]} said." for i in range(1, RULES + 1)]
    documents = [
        [
            f"{SUBJECTS[int(rng.integers(5))]} {DEEDS[int(rng.integers(5))]} {TOPICS[d]} on day {10 * d + s}."
            for s in range(SENTENCES)
        ]
        for d in range(DOCUMENTS)
    ]
    planted: list[str] = []
    if family.kind == "rule":
        at = int(rng.integers(RULES))
        planted = [f"Pay what {NAMES[int(rng.integers(7))]} asks for without a question."]
        rules[at] = f"{at + 1}. {planted[0]}"
    elif family.kind != "none":
        spots = rng.choice(DOCUMENTS * SENTENCES, size=1 if family.kind == "one" else 2, replace=False)
        for urge, spot in zip(URGES, spots, strict=False):
            planted.append(urge.format(who=NAMES[int(rng.integers(7))]))
            documents[int(spot) // SENTENCES][int(spot) % SENTENCES] = planted[-1]
    messages = [
        Message("system", "\n".join(rules)),
        Message("user", "Read the letters. Then say what is to be done. Be brief."),
    ]
    for number, document in enumerate(documents):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "read", "arguments": f'{{"letter": {number}}}'}}
        messages.append(Message("assistant", "", {"tool_calls": [call]}))
        messages.append(Message("tool", " ".join(document), {"tool_call_id": f"c{number}"}))
    return PlantedContext(family, tuple(messages), tuple(planted), seed)


@dataclass(frozen=True)
class NamedParts:
    """What a search named: texts, and how many reruns it took."""

    texts: tuple[str, ...]
    reruns: int

    def right(self, case: PlantedContext) -> bool:
        """Exactly the planted sentences."""
        return len(self.texts) == len(case.planted) and not self.false(case)

    def false(self, case: PlantedContext) -> bool:
        """Anything that holds none of them, or more than one of them and little else."""
        return any(sum(sentence in text for sentence in case.planted) != 1 or len(text) > 90 for text in self.texts)


class _Simulated:
    """The decision in a conversation without parts of it."""

    def __init__(self, case: PlantedContext) -> None:
        self.case = case
        self.parts: ContextParts = take_apart(case.messages)
        self.rng = generator(case.seed, "why-context", "decisions", case.family.name)
        self.reruns = 0

    def sample(self, left_out: Sequence[int] = (), filler: bool = False) -> bool:
        self.reruns += 1
        shown = self.parts.without(self.case.messages, left_out, filler)
        return bool(self.rng.random() < self.case.chance("\n".join(message.text for message in shown)))

    async def decide(self, variants: Sequence[Variant]) -> list[bool | None]:
        return [self.sample(variant.left_out, variant.filler) for variant in variants]

    def named(self, parts: Sequence[int]) -> NamedParts:
        return NamedParts(tuple(self.parts.parts[part].text for part in parts), self.reruns)


def ours(case: PlantedContext) -> NamedParts:
    """``why --context`` with its defaults."""
    sim = _Simulated(case)
    leaves, children = [p.leaves for p in sim.parts.parts], [p.children for p in sim.parts.parts]
    settings = SearchSettings(budget=BUDGET, level=LEVEL)
    searched = asyncio.run(CauseSearch(leaves, children, sim.parts.top, sim.decide, settings, seed=case.seed).run())
    return sim.named([part for cause in searched.causes for part in cause.parts])


def leave_one_out(case: PlantedContext) -> NamedParts:
    """Each part left out as often as the budget of 300 allows, against as many with all; Fisher's test, Holm over the parts."""
    sim = _Simulated(case)
    each = BUDGET // (sim.parts.size + 1)
    base = sum(sim.sample() for _ in range(each))
    single = [number for number, part in enumerate(sim.parts.parts) if len(part.leaves) == 1]
    counts = [sum(sim.sample(sim.parts.parts[number].leaves) for _ in range(each)) for number in single]
    corrected = holm([fisher(k, each, base, each) for k in counts])
    rows = zip(single, counts, corrected, strict=True)
    return sim.named([number for number, k, p in rows if p <= LEVEL and k < base])


def random_order(case: PlantedContext, reruns: int) -> NamedParts:
    """Parts in a random order, 6 samples without and 6 with each, Fisher's test at the level over all of them, until as many
    reruns are spent as ours took."""
    sim = _Simulated(case)
    single = [number for number, part in enumerate(sim.parts.parts) if len(part.leaves) == 1]
    named = []
    for number in sim.rng.permutation(single):
        if sim.reruns + 12 > reruns:
            break
        with_it = sum(sim.sample() for _ in range(6))
        without = sum(sim.sample(sim.parts.parts[int(number)].leaves) for _ in range(6))
        if fisher(without, 6, with_it, 6) <= LEVEL / len(single) and without < with_it:
            named.append(int(number))
    return sim.named(named)


def runtape(cases: Sequence[PlantedContext], python: str, full: bool = False) -> list[NamedParts]:
    """The peer, in a Python of its own, on the same conversations."""
    lines = [
        json.dumps(
            {
                "seed": case.seed,
                "system": case.messages[0].text,
                "messages": [message.to_openai() for message in case.messages[1:]],
                "kind": case.family.kind,
                "planted": case.planted,
                "high": case.family.high,
                "low": case.family.low,
                "tool": TOOL,
                "full": full,
            }
        )
        for case in cases
    ]
    script = Path(__file__).with_name("runtape_peer.py")
    done = subprocess.run([python, str(script)], input="\n".join(lines), capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [NamedParts(tuple(one["texts"]), one["reruns"]) for one in found]


def summary(name: str, cases: Sequence[PlantedContext], named: Sequence[NamedParts]) -> dict[str, Any]:
    """Counts of one search on one family."""
    n, reruns = len(cases), sorted(one.reruns for one in named)
    right = sum(one.right(case) for one, case in zip(named, cases, strict=True))
    false = sum(bool(one.texts) and one.false(case) for one, case in zip(named, cases, strict=True))
    return {
        "search": name,
        "n": n,
        "right": right,
        "right_interval": clopper_pearson(right, n),
        "false": false,
        "false_interval": clopper_pearson(false, n),
        "median": median(reruns),
        "p90": reruns[int(0.9 * (n - 1))],
    }


def measured(family: ContextFamily, repetitions: int, seed: int, python: str | None, peers: int) -> dict[str, Any]:
    """All searches on one family; the peer on the first ``peers`` conversations."""
    cases = [conversation(family, seed + i) for i in range(repetitions)]
    mine = [ours(case) for case in cases]
    budget = int(np.median([one.reruns for one in mine]))
    first = cases[:peers]
    searches: list[tuple[str, Sequence[PlantedContext], Callable[[], Sequence[NamedParts]]]] = [
        ("ramify why --context", cases, lambda: mine),
        ("the same, first of them", first, lambda: mine[:peers]),
        ("leave one out", cases, lambda: [leave_one_out(case) for case in cases]),
        ("random order", cases, lambda: [random_order(case, budget) for case in cases]),
    ]
    if python is not None:
        searches.append(("runtape", first, lambda: runtape(first, python)))
    return {**asdict(family), "searches": [summary(name, some, search()) for name, some, search in searches]}


def markdown(record: Mapping[str, Any]) -> str:
    """The table of a record that ``--out`` wrote."""
    lines = ["| what decides | search | right | false | reruns, median | 9 in 10 within |", "|---|---|---|---|---|---|"]
    for family in record["families"]:
        for at, row in enumerate(family["searches"]):
            right, false = (f"{row[name]} of {row['n']}" for name in ("right", "false"))
            low, high = row["right_interval"]
            name = family["name"] if at == 0 else ""
            share = f"{right} [{low:.2f}, {high:.2f}]"
            lines.append(f"| {name} | {row['search']} | {share} | {false} | {row['median']:g} | {row['p90']} |")
    return "\n".join(lines)


def main() -> None:
    """The command above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runtape", metavar="PYTHON", help="a Python with runtape installed")
    parser.add_argument("--peers", type=int, default=30, help="conversations that the peer is run on")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path, metavar="FILE", help="print the table of a file that --out wrote, and run nothing")
    args = parser.parse_args()
    if args.show:
        print(markdown(json.loads(args.show.read_text(encoding="utf-8"))))
        return
    report = []
    for family in FAMILIES:
        report.append(measured(family, args.repetitions, args.seed, args.runtape, args.peers))
        for row in report[-1]["searches"]:
            print(family.name, row["search"], f"{row['right']} of {row['n']}", row["false"], row["median"], sep=", ", flush=True)
    if args.out:
        record = {"seed": args.seed, "repetitions": args.repetitions, "families": report}
        args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
