"""Log-prob ablation, the baseline of ``why --context`` where the model runs here: leave each part out once, and compare the
log-probability of what was said. One forward pass a part, no sample, and no error rate: a threshold decides.

    python -m ramify_experiments.why.context_logprobs [--repetitions 200] [--seed 0] [--out repro/contexts_logprobs.json]

**Simulated**: the conversations of :mod:`ramify_experiments.why.context`, with the decision's exact log-probability, the best
that such a baseline can be given. **SmolLM2**: a question about one of six shuffled sentences, answered greedily; the sentence it
is about is the truth, the five others are the null, and the question itself is neither. A part is named where leaving it out
takes more than log 2 from the log-probability of the reply; the largest fall is what a ranking would name.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.seeds import generator
from ramify.base.waiting import wait_for
from ramify.engine.named import find_model
from ramify.jobs.context.parts import take_apart
from ramify.model.protocol import Sampling
from ramify.model.rendered import laid_out
from ramify.stats.intervals import clopper_pearson
from ramify.trace.message import Message
from ramify_experiments.real import replied
from ramify_experiments.why.context import FAMILIES, NamedParts, PlantedContext, conversation, summary

FALL = math.log(2)
DAYS = ("Monday", "Tuesday", "Thursday", "Sunday")
NAMES = ("Tom", "Anna", "Peter", "Julia")
PLACES = ("Mill Lane", "Green Street", "North Square", "King Street")
GOODS = ("apples", "books", "flowers", "shoes")
FACTS = (
    ("It is closed on {}.", "On which day is the shop closed?", DAYS),
    ("The owner is called {}.", "What is the owner called?", NAMES),
    ("The shop is in {}.", "In which street is the shop?", PLACES),
    ("It sells {}.", "What does the shop sell?", GOODS),
)
MORE = ("Orders have to be paid in cash.", "The door is painted green.")


def ablated(case: PlantedContext) -> NamedParts:
    """The parts that are named with the exact log-probability of the decision."""
    parts = take_apart(case.messages)

    def chance(left_out: Sequence[int]) -> float:
        shown = parts.without(case.messages, left_out, False)
        return math.log(case.chance("\n".join(message.text for message in shown)))

    whole = chance(())
    single = [part for part in parts.parts if len(part.leaves) == 1]
    named = [part.text for part in single if whole - chance(part.leaves) > FALL]
    return NamedParts(tuple(named), 1 + len(single))


def asked_smollm2(model: str, questions: int, seed: int) -> list[dict[str, Any]]:
    """Of each question what falls how far without each part."""
    agent, template = find_model(model)
    assert template is not None
    rows = []
    for number in range(questions):
        rng = generator(seed, "log-prob ablation", number)
        facts = [(form.format(said := str(rng.choice(values))), question, said) for form, question, values in FACTS]
        truth, question, said = facts[number % len(facts)]
        told = [sentence for sentence, _, _ in facts] + [*MORE]
        text = " ".join(told[int(i)] for i in rng.permutation(len(told)))
        messages = (
            Message("system", "You answer questions about a text."),
            Message("user", f"{text}\n\n{question} Answer in one short sentence."),
        )

        def prompt(shown: Sequence[Message]) -> list[int]:
            return list(laid_out(template, [(message.role, message.text) for message in shown]))

        settings = Sampling(temperature=0.0, max_tokens=16, stop_tokens=template.stop_tokens)
        (reply,) = wait_for(replied(agent, [prompt(messages)], settings, seed))  # type: ignore[arg-type]
        if said.lower() not in template.tokenizer.decode(reply).lower():
            continue
        parts = take_apart(messages)
        single = [part for part in parts.parts if len(part.leaves) == 1]
        contexts = [messages, *(parts.without(messages, part.leaves, False) for part in single)]
        tokens = [np.array([*prompt(shown), *reply], np.int32) for shown in contexts]
        scores = wait_for(agent.logprobs(tokens))
        whole, *without = (float(score.logprobs[-len(reply) :].sum()) for score in scores)
        falls = {part.text.strip(): whole - value for part, value in zip(single, without, strict=True)}
        sentences = {sentence: falls[sentence] for sentence in told}
        rows.append(
            {"truth": truth, "falls": falls, "passes": len(tokens), "tokens": sum(map(len, tokens)), "sentences": sentences}
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def counted(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts of the questions to SmolLM2."""
    n = len(rows)
    first = sum(max(row["sentences"], key=row["sentences"].get) == row["truth"] for row in rows)
    named = sum(row["sentences"][row["truth"]] > FALL for row in rows)
    null = [fall for row in rows for sentence, fall in row["sentences"].items() if sentence != row["truth"]]
    false = sum(any(fall > FALL for text, fall in row["sentences"].items() if text != row["truth"]) for row in rows)
    return {
        "questions": n,
        "truth_is_largest": [first, clopper_pearson(first, n) if n else None],
        "truth_named": [named, clopper_pearson(named, n) if n else None],
        "false_sentences": [sum(fall > FALL for fall in null), len(null)],
        "questions_with_a_false_one": [false, clopper_pearson(false, n) if n else None],
        "tokens": sum(row["tokens"] for row in rows),
        "rows": list(rows),
    }


def main() -> None:
    """The command above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--questions", type=int, default=24)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    record: dict[str, Any] = {"seed": args.seed, "repetitions": args.repetitions, "fall": FALL, "families": []}
    for family in FAMILIES:
        cases = [conversation(family, args.seed + i) for i in range(args.repetitions)]
        row = summary("log-prob ablation, exact", cases, [ablated(case) for case in cases])
        record["families"].append({"name": family.name, **row})
        print(family.name, row["right"], row["false"], row["median"], sep=", ", flush=True)
    record["smollm2"] = counted(asked_smollm2(args.model, args.questions, args.seed))
    print({name: value for name, value in record["smollm2"].items() if name != "rows"})
    if args.out:
        args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
