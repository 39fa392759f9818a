"""``ramify repro cliffs --real``: tokens at which sums of a real pretrained model are lost, against the first wrong digit.

Sums and word sums are completed after worked lines, without a chat template: so 135 million weights are right often enough.
The token that loses a sum is known, the first digit that is not the sum's. The null are tokens that cannot lose a tenth, those
that the sampler gives nine tenths or more: the screen would leave them out, and here they are tested like the others. A coin as
verifier would be none: equal texts are judged once, so the last token decides.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.seeds import generator
from ramify.methods.cliffs import read_scan
from ramify.rollout.token_traces import TokenTrace
from ramify.stats.intervals import paired_proportions
from ramify_experiments.lab import Checks, ResultCache, call_verb
from ramify_experiments.real import raw_ids, token_texts

SUMS = "23 + 45 = 68\n51 + 17 = 68\n62 + 30 = 92\n14 + 25 = 39\n{} + {} ="
WORDS = (
    "Tom has 5 apples and gets 2 more, so he has 7 apples.\nAnn has 3 pens and gets 3 more, so she has 6 pens.\n"
    "Sue has 8 hats and gets 6 more, so she has 14 hats.\nBob has {} cups and gets {} more, so he has"
)
LEADING = "python:ramify_experiments.cliffs.real:leading"
STUDIES: dict[str, dict[str, Any]] = {
    "sums": {"form": SUMS, "low": 10, "high": 50, "problems": 16},
    "word sums": {"form": WORDS, "low": 2, "high": 10, "problems": 6},
}
"""Name -> prompt, numbers from ``low`` and below ``high``, how many replies are scanned."""
SCAN = ("--n", 48, "--confirm", 96, "--screen", "none", "--temperature", 0.7, "--max-tokens", 5, "--anyway")
ABLATE = ("--n", 48, "--k", 1, "--controls", "random")
FORCED = 0.9
"""Probability of a token under the sampler from which on it can lose less than a tenth."""


def leading(text: str, trace: TokenTrace) -> bool:
    """Whether the first number of a reply is the sum."""
    found = re.search(r"\d+", text)
    return found is not None and found.group() == str(trace.data["answer"])


def wrong_token(texts: Sequence[str], answer: int) -> int | None:
    """The token (from 1) that writes the first digit of the first number that is not the sum's; None where none does."""
    text, wanted = "".join(texts), str(answer)
    found = re.search(r"\d+", text)
    if found is None or found.group() == wanted:
        return None
    same = next((i for i, (a, b) in enumerate(zip(found.group(), wanted, strict=False)) if a != b), None)
    at = found.start() + (min(len(found.group()), len(wanted)) if same is None else same)
    ends = np.cumsum([len(one) for one in texts])
    return int(np.searchsorted(ends, at, "right")) + 1


def scanned(model: str, name: str, seed: int) -> dict[str, Any]:
    """A scan; of each reply whether it is right, its tokens, the first wrong digit, its least likely token, its cliffs."""
    study, rng = STUDIES[name], generator(seed, "cliffs real", name)
    pairs = [rng.integers(study["low"], study["high"], 2).tolist() for _ in range(study["problems"])]
    rows = [
        {"id": f"{i}: {a}+{b}", "prompt_ids": raw_ids(model, study["form"].format(a, b)), "answer": a + b}
        for i, (a, b) in enumerate(pairs)
    ]
    with tempfile.TemporaryDirectory() as folder:
        problems, out = Path(folder) / "problems.jsonl", Path(folder) / "scan"
        problems.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        forking = ("--model", model, "--verifier", LEADING, "--truncated", "graded", "--seed", seed)
        found = call_verb("cliffs", "scan", "--problems", problems, "--out", out, *forking, *SCAN)
        ablated = call_verb("cliffs", "ablate", out, *forking, *ABLATE)["records"]
        replies = []
        for one in read_scan(out)[2]:
            trace = one.trace
            texts = token_texts(model, trace.response_ids)
            replies.append(
                {
                    "texts": texts,
                    "right": trace.correct,
                    "truth": wrong_token(texts, trace.data["answer"]),
                    "unlikely": 1 + int(np.argmin(trace.logprobs)),
                    "confirmed": [cliff.t for cliff in one.of("confirmed")],
                    "drops": [cliff.fresh_drop for cliff in one.of("confirmed")],
                    "forced": [1 + t for t, logprob in enumerate(trace.logprobs) if logprob >= np.log(FORCED)],
                    "suspect": sum(cliff.suspect for cliff in one.of("confirmed")),
                    "start": trace.potentials[0].rate if trace.potentials and trace.potentials[0] else None,
                }
            )
    arms = [{arm: one["counts"][arm]["k"] / one["counts"][arm]["n"] for arm in ("del", "keep", "random")} for one in ablated]
    return {"replies": replies, "arms": arms, **{key: found[key] for key in ("forks", "tokens")}}


def real(model: str, cells: ResultCache, first: int = 0) -> Checks:
    """Confirmed cliffs of sums and word sums against the first wrong digit; tokens that cannot lose a tenth as the null."""
    checks = Checks((first,))
    done = cells.map(scanned, {name: {"model": model, "name": name, "seed": first} for name in STUDIES})
    for name in STUDIES:
        replies = done[name]["replies"]
        checks.mean(f"{name}: V_0", [one["start"] for one in replies])
        wrong = [one for one in replies if one["truth"] is not None]
        checks.share(f"{name}: wrong replies", len(wrong), len(replies))
        checks.share(f"{name}: wrong replies with a cliff", sum(bool(one["confirmed"]) for one in wrong), len(wrong))
        right = [one for one in replies if one["truth"] is None]
        checks.share(f"{name}: other replies with a cliff", sum(bool(one["confirmed"]) for one in right), len(right))
        checks.value(f"{name}: forks", done[name]["forks"], done[name]["tokens"])
    cliffs = [(t, one) for name in STUDIES for one in done[name]["replies"] for t in one["confirmed"]]
    hits = sum(t == one["truth"] for t, one in cliffs)
    checks.share("confirmed cliffs that are the first wrong digit", hits, len(cliffs), ">=", 0.5, exact=True)
    drops = [drop for name in STUDIES for one in done[name]["replies"] for drop in one["drops"]]
    checks.mean("confirmed cliffs: drop on fresh forks", drops)
    checks.value("confirmed cliffs that lose more than their token can", sum(one["suspect"] for _, one in cliffs), len(cliffs))
    named = [one for name in STUDIES for one in done[name]["replies"] if one["truth"] is not None]
    ours = [float(one["truth"] in one["confirmed"]) for one in named]
    simple = [float(one["truth"] == one["unlikely"]) for one in named]
    checks.share("wrong replies: a confirmed cliff is the first wrong digit", int(sum(ours)), len(named))
    checks.share("wrong replies: the least likely token is the first wrong digit", int(sum(simple)), len(named))
    checks.value(
        "wrong replies: cliffs - the least likely token",
        float(np.mean(ours) - np.mean(simple)) if named else 0.0,
        len(named),
        interval=paired_proportions(ours, simple) if named else None,
    )
    arms = [one for name in STUDIES for one in done[name]["arms"]]
    for arm in ("del", "keep", "random"):
        checks.mean(f"first cliff of a wrong reply: pass@1, {arm}", [one[arm] for one in arms])
    checks.mean("pass@1, del - keep", [one["del"] - one["keep"] for one in arms], ">=", 0.25)
    checks.mean("pass@1, del - random", [one["del"] - one["random"] for one in arms], ">", 0.0)
    every = [one for name in STUDIES for one in done[name]["replies"]]
    false, n = sum(len({*one["forced"]} & {*one["confirmed"]}) for one in every), sum(len(one["forced"]) for one in every)
    checks.share("tokens of probability 0.9 or more: confirmed as cliffs", false, n, "<=", 0.0, exact=True)
    return checks
