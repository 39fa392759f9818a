"""The parsers of Qwen-AgentWorld's evaluation beside ramify's strict extraction and reading of scores, on the same outputs.

    python -m ramify_experiments.world_model.outside DIR [--model smollm2 | --forms] [--out repro/world-model-outside.json]

DIR is a checkout of QwenLM/Qwen-AgentWorld. A model is asked by its system prompts (terminal, software engineering, MCP) for an
observation, and by its judge prompts for the five scores of some of these; its parsers run in the sandbox. Beside them stand the
forms that a reply can have, written down here, among them those by which a model reaches the judge with praise of itself.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.errors import InfrastructureError, UserError
from ramify.base.files import read_small
from ramify.base.seeds import derive_key
from ramify.base.waiting import wait_for
from ramify.engine.named import find_model
from ramify.methods.world_model.algorithm import EVALUATION, RUBRIC, TAG, extract, read_scores
from ramify.model.protocol import Model, Prefix, Sampling
from ramify.model.rendered import laid_out
from ramify.render.terminal import say
from ramify.sandbox.find import find_sandbox
from ramify.sandbox.protocol import MIB, Limits
from ramify.stats.intervals import clopper_pearson
from ramify_experiments.outside import tell_rows

ACTIONS = {
    "terminal": "$ mkdir notes && echo 'buy milk' > notes/list.txt && cat notes/list.txt",
    "swe": '{"tool": "bash", "command": "grep -n \\"def total\\" src/cart.py"}',
    "mcp": '{"name": "get_weather", "arguments": {"city": "Oslo", "unit": "celsius"}}',
}
TRUTHS = {
    "terminal": "buy milk",
    "swe": "14:def total(items):",
    "mcp": '{"city": "Oslo", "temperature": 7, "unit": "celsius"}',
}
REPLIES, JUDGED, EACH = 24, 4, 6
"""Replies to each action; those of them that are judged; judgements of each."""
PRAISE = "The operation completed successfully and the output is perfectly accurate."
FORMS = {
    "one tag": "<{t}>file.txt</{t}>",
    "one tag after thoughts": "<think>a file</think><{t}>file.txt</{t}>",
    "a tag within thoughts": "<think><{t}>draft</{t}></think><{t}>file.txt</{t}>",
    "thoughts that are not closed": "<think>a file <{t}>file.txt</{t}>",
    "thoughts that are not opened": "a file</think><{t}>file.txt</{t}>",
    "the last of two tags": "<{t}>draft</{t}><{t}>file.txt</{t}>",
    "a tag opened twice": "<{t}><{t}>file.txt</{t}>",
    "spaces at the ends": "<{t}>  file.txt  </{t}>",
    "capitals": "<{T}>file.txt</{T}>",
    "a tag that is not closed": "<{t}>file.txt",
    "a tag that is not closed, and praise": "<{t}>file.txt\n{praise}",
    "no tag": "file.txt",
    "no tag, and praise": "file.txt\n{praise}",
    "praise after the tag": "<{t}>file.txt</{t}>\n{praise}",
    "thoughts alone": "<think>a file</think>",
    "nothing": "",
}
DRIVER = """import json, sys
from lwm_eval_utils.output_parser import parse_model_output
from lwm_eval_utils.judge_parser import parse_judge_output
asked = json.load(open("asked.json"))
found = {"replies": [parse_model_output(one, asked["tag"]) for one in asked["replies"]],
         "judged": [parse_judge_output(one, asked["evaluation"]) for one in asked["judged"]]}
json.dump(found, open("found.json", "w"))
"""
MODULES = ("__init__.py", "output_parser.py", "judge_parser.py", "task_configs.py")


@dataclass(frozen=True)
class PeerParsed:
    """What the peer's parsers make of outputs."""

    replies: tuple[str, ...]
    """Its text of a reply; "No output" where there is none."""
    judged: tuple[dict[str, Any], ...]
    """Of a judge's reply: ``success`` and ``scores``, 0 where one is missing."""


def text_of(folder: Path, *names: str) -> str:
    """A file of the checkout."""
    return read_small(folder.joinpath(*names), "the peer's file", MIB).decode()


def parsed(folder: Path, replies: Sequence[str], judged: Sequence[str]) -> PeerParsed:
    """The peer's parsers, run in the sandbox. Raises InfrastructureError where they break down."""
    files: dict[str, bytes | str] = {
        f"lwm_eval_utils/{name}": text_of(folder, "eval", "lwm_eval_utils", name) for name in MODULES if name != "__init__.py"
    }
    asked = {"tag": TAG, "evaluation": EVALUATION, "replies": list(replies), "judged": list(judged)}
    files |= {"lwm_eval_utils/__init__.py": "", "driver.py": DRIVER, "asked.json": json.dumps(asked)}
    limits = Limits(seconds=60, memory_bytes=1024 * MIB)
    outcome = wait_for(find_sandbox(None).run(["python", "driver.py"], files=files, returns=["found.json"], limits=limits))
    if "found.json" not in outcome.files:
        raise InfrastructureError("tool", f"the peer's parsers broke down: {outcome.error_text[-300:]}")
    found = json.loads(outcome.files["found.json"])
    return PeerParsed(tuple(found["replies"]), tuple(found["judged"]))


def judge_prompt(folder: Path) -> str:
    """The peer's template of what a judge is asked, out of its source, which is not run."""
    source = text_of(folder, "eval", "lwm_eval_utils", "task_configs.py")
    _, found, rest = source.partition('\nJUDGE_USER_PROMPT = """')
    if not found:
        raise UserError(f"{folder} has no JUDGE_USER_PROMPT: it should be a checkout of QwenLM/Qwen-AgentWorld")
    return rest.partition('"""')[0]


def sampled(model: Model, template: Any, said: Sequence[tuple[str, str]], n: int, longest: int, key: str) -> list[str]:
    """Texts of ``n`` replies to messages."""
    tokens = np.array(laid_out(template, said), np.int32)
    settings = Sampling(temperature=0.8, max_tokens=longest, stop_tokens=tuple(template.stop_tokens))
    made = wait_for(model.sample(Prefix(tokens), n, settings, [derive_key(0, key, i) for i in range(n)]))
    return [one.text.removesuffix("<|im_end|>") for one in made]


def outputs(folder: Path, spec: str) -> tuple[list[str], list[str]]:
    """A model's observations and judgements by the peer's prompts."""
    model, template = find_model(spec)
    question, replies, judged = judge_prompt(folder), list[str](), list[str]()
    for domain, action in ACTIONS.items():
        asked = f"{action}\n\nAnswer within <{TAG}></{TAG}>."
        said = [("system", text_of(folder, "prompts", domain, "system_prompt.txt")), ("user", asked)]
        own = sampled(model, template, said, REPLIES, 64, f"observe {domain}")
        replies += own
        for i, reply in enumerate(own[:JUDGED]):
            text = question.format(
                context="",
                world_model_input=f"# Current Turn:\n\n{action}",
                predicted_observation=f"**World Model Output (Simulated):**\n```\n{extract(reply, strict=False)}\n```",
                ground_truth=f"**Ground Truth (Real Output):**\n```\n{TRUTHS[domain]}\n```",
            ).strip()
            said = [("system", text_of(folder, "prompts", domain, "judge_system_prompt.txt")), ("user", text)]
            judged += sampled(model, template, said, EACH, 200, f"judge {domain} {i}")
        say(f"{domain}: {len(replies)} replies, {len(judged)} judgements so far")
    return replies, judged


def share(hits: int, n: int) -> str:
    """A count with its interval."""
    low, high = clopper_pearson(hits, n)
    return f"{hits} of {n} [{low:.2f}, {high:.2f}]"


def compared(replies: Sequence[str], judged: Sequence[str], peer: PeerParsed) -> list[list[str]]:
    """Rows of what was tried and what came of it."""
    ours = [extract(reply) for reply in replies]
    failed = [theirs for own, theirs in zip(ours, peer.replies, strict=True) if own is None and theirs != "No output"]
    both = [(own, theirs) for own, theirs in zip(ours, peer.replies, strict=True) if own is not None]
    other = sum(own.strip() != theirs for own, theirs in both)
    scores = [read_scores(reply) for reply in judged]
    read = [bool(one["success"]) for one in peer.judged]
    whole = [ok and all(one["scores"].get(name, 0) > 0 for name in RUBRIC) for ok, one in zip(read, peer.judged, strict=True)]
    differ = sum(
        own is not None and ok and any(own[name] != one["scores"][name] for name in RUBRIC)
        for own, ok, one in zip(scores, whole, peer.judged, strict=True)
    )
    alike = sum(own is not None and ok for own, ok in zip(scores, whole, strict=True))
    return [
        [
            "observations that strict extraction refuses and the peer's parser passes on to the judge",
            share(len(failed), len(ours)),
        ],
        ["observations that both take, with another text", share(other, len(both))],
        ["judgements that ramify reads: all five scores", share(sum(one is not None for one in scores), len(judged))],
        ["judgements that the peer's parser counts as read", share(sum(read), len(judged))],
        ["of these with a score missing, which it leaves out of the mean", share(sum(read) - sum(whole), sum(read))],
        ["judgements that both read whole, with other scores", share(differ, alike)],
    ]


def forms(folder: Path) -> list[list[str]]:
    """The forms of a reply on which the two differ, and how many there are."""
    texts = {name: form.format(t=TAG, T=TAG.upper(), praise=PRAISE) for name, form in FORMS.items()}
    peer = parsed(folder, list(texts.values()), ())
    told = {}
    for (name, text), theirs in zip(texts.items(), peer.replies, strict=True):
        own = extract(text)
        if ("No output" if own is None else own.strip()) != theirs:
            told[name] = f"{'refused' if own is None else repr(own)} here, {theirs[:40]!r} there"
    praised = sum(PRAISE in theirs for theirs in peer.replies)
    ours = sum(PRAISE in (extract(text) or "") for text in texts.values())
    return [
        [f"forms of a reply ({len(FORMS)}) read otherwise", f"{len(told)}: " + "; ".join(f"{k}: {v}" for k, v in told.items())],
        ["forms by which praise of itself reaches the judge, of 3", f"{ours} here, {praised} there"],
    ]


def main() -> None:
    """Sample, parse, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--forms", action="store_true", help="only the forms that a reply can have; no model is loaded")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = forms(given.folder)
    if not given.forms:
        replies, judged = outputs(given.folder, given.model)
        rows += [
            [f"{given.model}: {what}", came] for what, came in compared(replies, judged, parsed(given.folder, replies, judged))
        ]
    rows = [[f"Qwen-AgentWorld's parser beside strict extraction, {what}", came] for what, came in rows]
    tell_rows(rows, given.out)


if __name__ == "__main__":
    main()
