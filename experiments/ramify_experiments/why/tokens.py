"""Is ``ramify why --tokens`` right? Replies whose forking tokens are known, beside equal shares and the least likely token.

    python -m ramify_experiments.why.tokens [--repetitions 200] [--seed 0] [--out repro/tokens.json]

A reply has 30 tokens with two other likely tokens each, of random odds. Whether a continuation comes out as recorded is simulated
with a known chance that the planted other tokens alone lower.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ramify.base.seeds import generator
from ramify.jobs.tokens.search import OtherToken, TokenSearch
from ramify.stats.evidence import holm
from ramify.stats.intervals import clopper_pearson
from ramify.stats.tests import fisher

LENGTH, OTHERS, BUDGET, LEVEL = 30, 2, 300, 0.05
FEW = 20
"""As many other tokens as ``why --tokens`` screens, about."""
Place = tuple[int, int | None]


@dataclass(frozen=True)
class ForkFamily:
    """``planted`` other tokens after which the chance falls from ``high`` to ``low``."""

    name: str
    planted: int
    high: float
    low: float


FAMILIES = (
    ForkFamily("one fork, 95 -> 5 %", 1, 0.95, 0.05),
    ForkFamily("two forks, 95 -> 5 %", 2, 0.95, 0.05),
    ForkFamily("one fork, 70 -> 20 %", 1, 0.7, 0.2),
    ForkFamily("no fork, 95 %", 0, 0.95, 0.95),
    ForkFamily("a coin", 0, 0.5, 0.5),
)


class ForkedReply:
    """The reply ``seed`` of a family. Planted tokens are among the half that is likeliest."""

    def __init__(self, family: ForkFamily, seed: int) -> None:
        self.family = family
        self.rng = generator(seed, "why-tokens", family.name)
        odds = self.rng.uniform(0.01, 0.3, (LENGTH, OTHERS))
        self.others = [OtherToken(t, token, float(odds[t, token])) for t in range(LENGTH) for token in range(OTHERS)]
        likely = sorted(self.others, key=lambda other: -other.odds)[: len(self.others) // 4]
        chosen = self.rng.choice(len(likely), family.planted, replace=False)
        self.planted = {(likely[int(i)].t, likely[int(i)].token) for i in chosen}
        self.samples = 0

    async def sample(self, t: int, token: int | None, purpose: str, index: int) -> bool:
        """See :data:`ramify.jobs.tokens.search.SampleAt`."""
        return self.counted((t, token), 1) == 1

    def counted(self, place: Place, n: int) -> int:
        """How often it came out as recorded."""
        self.samples += n
        return int(self.rng.binomial(n, self.family.low if place in self.planted else self.family.high))


def searched(reply: ForkedReply) -> set[Place]:
    """``why --tokens`` with its defaults."""
    found = asyncio.run(TokenSearch(reply.others, reply.sample, BUDGET, LEVEL).run())
    return {(entry.other.t, entry.other.token) for entry in found.tried if entry.named}


def equal_shares(reply: ForkedReply, most: int = LENGTH * OTHERS) -> set[Place]:
    """The same budget in equal shares over the ``most`` likeliest other tokens (all) and the reply's own there; Fisher's test,
    Holm."""
    others = sorted(reply.others, key=lambda other: -other.odds)[:most]
    positions = sorted({other.t for other in others})
    each = BUDGET // (len(others) + len(positions))
    kept = {t: reply.counted((t, None), each) for t in positions}
    counts = [reply.counted((other.t, other.token), each) for other in others]
    p = holm([fisher(k, each, kept[other.t], each) for other, k in zip(others, counts, strict=True)])
    rows = zip(others, counts, p, strict=True)
    return {(other.t, other.token) for other, k, value in rows if value <= LEVEL and k < kept[other.t]}


def least_likely(reply: ForkedReply) -> set[Place]:
    """No samples: the likeliest other token where the reply's own is least likely."""
    rest = {t: sum(other.odds for other in reply.others if other.t == t) for t in range(LENGTH)}
    t = max(rest, key=lambda at: rest[at])
    return {max((other.odds, (other.t, other.token)) for other in reply.others if other.t == t)[1]}


SEARCHES: Mapping[str, Callable[[ForkedReply], set[Place]]] = {
    "ramify why --tokens": searched,
    "equal shares": equal_shares,
    f"equal shares of the {FEW} likeliest": lambda reply: equal_shares(reply, FEW),
    "least likely token": least_likely,
}


def measured(family: ForkFamily, repetitions: int, seed: int) -> dict[str, Any]:
    """All searches on one family."""
    rows = []
    for name, search in SEARCHES.items():
        replies = [ForkedReply(family, seed + i) for i in range(repetitions)]
        named = [search(reply) for reply in replies]
        pairs = list(zip(named, replies, strict=True))
        right = sum(places == reply.planted for places, reply in pairs)
        false = sum(bool(places - reply.planted) for places, reply in pairs)
        rows.append(
            {
                "search": name,
                "right": right,
                "right_interval": clopper_pearson(right, repetitions),
                "false": false,
                "false_interval": clopper_pearson(false, repetitions),
                "median": median(reply.samples for reply in replies),
            }
        )
        print(family.name, name, right, false, rows[-1]["median"], sep=", ", flush=True)
    return {**asdict(family), "searches": rows}


def markdown(families: Sequence[Mapping[str, Any]], n: int) -> str:
    """The table of a record that ``--out`` wrote."""
    lines = ["| reply | search | right | false | continuations, median |", "|---|---|---|---|---|"]
    for family in families:
        for at, row in enumerate(family["searches"]):
            right, false = (
                "{} of {} [{:.2f}, {:.2f}]".format(row[name], n, *row[f"{name}_interval"]) for name in ("right", "false")
            )
            name = family["name"] if at == 0 else ""
            lines.append(f"| {name} | {row['search']} | {right} | {false} | {row['median']:g} |")
    return "\n".join(lines)


def main() -> None:
    """The command above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    families = [measured(family, args.repetitions, args.seed) for family in FAMILIES]
    print(markdown(families, args.repetitions))
    if args.out:
        record = {"seed": args.seed, "repetitions": args.repetitions, "families": families}
        args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
