"""What `ramify why` makes a server compute: the tokens of its prompts,
those that the server found in its cache, and the fewest possible.

    python -m ramify_experiments.why.served --url http://127.0.0.1:8000/v1 [--model builtin] [--tokenizer FOLDER] [--out
    repro/served.json]

For any OpenAI-compatible server that serves ``--model``, by default ramify's built-in agent: it plays household errands, asks why
one failed, and counts what the continuations sent. The server counts on its page ``/metrics`` (ramify and vLLM), or in the usage
of its replies (``cached_tokens``; vLLM with ``--enable-prompt-tokens-details``). Start the server anew before each count: what it
has cached before is not counted as computed.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urljoin
from urllib.request import urlopen

import ramify
from ramify.base.errors import UserError
from ramify.engine.checkpoints import model_folder
from ramify.env.builtin.household import HouseholdEnvironment
from ramify.env.protocol import Task
from ramify.model.endpoint import HttpModel
from ramify.trace.context import shown
from ramify.trace.db import Run
from ramify.trace.node import ATTEMPTS

PAGES = (
    ("ramify_engine_prompt_tokens", "ramify_engine_cached_tokens", False),
    ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", True),
)
"""On a server's page: tokens of prompts that it computed, those that it found in its cache,
and whether the former count the latter, too."""


@dataclass(frozen=True)
class Sent:
    """A prompt of a run and the reply to it, as token ids; both empty where the model takes messages.

    ``again``: of a continuation, not of an attempt. ``usage``: what the server says it counted."""

    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    again: bool
    usage: dict[str, int]


def sent(path: Path) -> Iterator[Sent]:
    """Every prompt of the run at ``path``."""
    with Run.open(path) as run:
        for info in run.trees():
            tree = run.tree(info.name)
            for node in tree.nodes.values():
                if node.provenance is None:
                    continue
                before, own = shown(node, tree.node, tree.path, run.context).tokens, node.tokens
                row = () if before is None or own is None else (*before.tolist(), *own.tolist())
                size = 0 if before is None else len(before) + node.head
                again = any(one.purpose and one.purpose not in ATTEMPTS for one, _ in tree.path(node.id).segments)
                yield Sent(row[:size], row[size:], again, node.data.get("usage", {}))


def once(rows: Sequence[Sent]) -> int:
    """Prompt tokens of a run's continuations, what they share counted once,
    without those of its attempts' prompts and of replies.

    A server computes at least these; and at most one more a prompt where it shares every token, since the last token of a reply
    is not run when it is sampled.
    """
    return len(_fresh(rows, 1, 0))


def in_blocks(rows: Sequence[Sent], block: int) -> int:
    """The fewest that a server computes whose cache holds whole blocks of ``block`` tokens: each distinct block once, and of each
    prompt what follows its last whole block, one token at least, which the first token of the reply is sampled from."""
    again = [one.prompt for one in rows if one.again]
    return block * len(_fresh(rows, block, 1)) + sum(len(row) - (len(row) - 1) // block * block for row in again)


def _fresh(rows: Sequence[Sent], block: int, less: int) -> set[tuple[int, ...]]:
    """Starts of prompts of continuations in steps of ``block`` tokens that no attempt's prompt is and no reply made; of every
    text all but its last ``less`` tokens. With ``less`` a prompt's own end counts as there:
    each prompt computes its last tokens anyway."""

    def starts(row: tuple[int, ...], after: int = 0) -> set[tuple[int, ...]]:
        return {row[:end] for end in range(block, len(row) - less + 1, block) if end > after}

    there, fresh = set[tuple[int, ...]](), set[tuple[int, ...]]()
    for one in rows:
        there |= starts(one.prompt + one.reply, len(one.prompt) - less)
        (fresh if one.again else there).update(starts(one.prompt))
    return fresh - there


def counted(url: str) -> tuple[int, int] | None:
    """Prompt tokens computed and found in the cache since the server at ``url`` began; None where it has no page that says so."""
    totals: dict[str, float] = {}
    for name, value in re.findall(r"^([\w:]+)(?:\{.*\})? (\S+)$", _read(urljoin(url, "/metrics")), re.MULTILINE):
        totals[name] = totals.get(name, 0) + float(value)
    for total, cached, inclusive in PAGES:
        if total in totals:
            return int(totals[total] - inclusive * totals[cached]), int(totals[cached])
    return None


def server_of(url: str) -> dict[str, Any]:
    """What serves: its name, its version where it says one, and how many tokens a block of its cache has (1: any number)."""
    owner = json.loads(_read(f"{url}/models"))["data"][0].get("owned_by", "")
    version = ramify.__version__ if owner == "ramify" else json.loads(_read(urljoin(url, "/version")) or "{}").get("version", "")
    block = re.search(r'^vllm:cache_config_info\{.*?\bblock_size="(\d+)"', _read(urljoin(url, "/metrics")), re.MULTILINE)
    return {"server": owner, "version": version, "block": int(block[1]) if block else 1}


def measure(model: HttpModel, run: Path, tasks: Sequence[Task], attempts: int = 4, samples: int | None = None) -> dict[str, Any]:
    """Play errands into the new ``run``, ask why one failed, and count what the continuations made the server of ``model`` do.

    ``computed`` and ``cached`` are the server's own counts of ``prompt_tokens``, and ``cached_by_usage`` that in its replies,
    left out where it keeps none; ``once`` and ``in_blocks`` are the fewest possible, left out where the model takes messages.
    """
    _ = model.capabilities  # the requests that this sends are not counted
    url, block = model.endpoint.url, server_of(model.endpoint.url)["block"]
    ramify.play(model, HouseholdEnvironment(), list(tasks), attempts=attempts, out=run)
    before = counted(url)
    why = ramify.why(run, model=model, env=HouseholdEnvironment(), samples=samples)
    after = counted(url)
    rows = list(sent(run))
    again = [one for one in rows if one.again]
    found: dict[str, Any] = {"headline": why.headline, "continuations": why.samples, "failed": why.failed, "prompts": len(again)}
    found["prompt_tokens"] = sum(len(one.prompt) or one.usage.get("prompt_tokens", 0) for one in again)
    if before is not None and after is not None:
        found |= {"computed": after[0] - before[0], "cached": after[1] - before[1]}
    if all("cached_tokens" in one.usage for one in again):
        found["cached_by_usage"] = sum(one.usage["cached_tokens"] for one in again)
    if all(one.prompt for one in again):
        found |= {"once": once(rows)} | ({"in_blocks": in_blocks(rows, block)} if block > 1 else {})
    return found


def _read(url: str) -> str:
    """A page; "" where the server has none. Raises UserError where nothing answers."""
    try:
        with urlopen(url, timeout=60) as answer:
            return str(answer.read().decode())
    except HTTPError:
        return ""
    except URLError as error:
        raise UserError(f"nothing answers at {url}: {error.reason}") from None


def main() -> None:
    """The command above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="where the server's /completions begins, such as http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="builtin", help="its name there")
    parser.add_argument("--tokenizer", type=Path, default=model_folder("builtin"), help="folder with its tokenizer")
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--attempts", type=int, default=4)
    parser.add_argument("--samples", type=int, help="continuations at most")
    parser.add_argument("--out", type=Path, help="add the figures to this file, by server")
    args = parser.parse_args()
    record = server_of(args.url) | {"ramify": ramify.__version__, "tasks": args.tasks, "attempts": args.attempts}
    tasks = list(HouseholdEnvironment().task_set("eval", 2 * args.tasks))
    with tempfile.TemporaryDirectory() as folder:
        for at, mode in enumerate(
            ("completions", "chat")
        ):  # other errands for each, so that neither finds the other's in the cache
            model = HttpModel(args.url, args.model, mode, tokenizer=args.tokenizer if mode == "completions" else None)
            record[mode] = measure(model, Path(folder) / mode, tasks[at::2], args.attempts, args.samples)
    print(json.dumps(record, indent=1))
    if args.out:
        known = json.loads(args.out.read_text(encoding="utf-8")) if args.out.exists() else {}
        known[f"{record['server']}, blocks of {record['block']}"] = record
        args.out.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
