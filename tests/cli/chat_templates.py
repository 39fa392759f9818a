"""A tiny random checkpoint with a chat template, as transformers saves one, and an environment with tools to play it in."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from ramify.env.protocol import Observation, Task, TaskSet
from ramify.env.tools import describe, tool_json
from ramify.trace.message import parse_tool_calls

ENDS = (
    "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<turn|>", "<|END_OF_TURN_TOKEN|>", "<｜end▁of▁sentence｜>", "<|return|>",
    "<|end|>",
)  # fmt: skip
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "the <|im_end|> shelf"}}\n</tool_call>'
THOUGHT = "<think>\nI wonder.\n</think>\n\n"
WORDS = ("hello", " there", " is it", "ok", " no", "\n", " ")


def tokenizer(source: str) -> tuple[Any, str]:
    """A byte-level tokenizer with a token for each border that ``source`` writes, and its end-of-turn token."""
    import tokenizers

    found = set(re.findall(r"<[|｜][^<>{}'\"\s]{1,40}[|｜]?>|<(?:start|end)_of_turn>|<[a-z]{1,12}\|>", source))
    end = next((text for text in ENDS if text in found), "</s>")
    raw = tokenizers.Tokenizer(tokenizers.models.BPE())
    raw.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        special_tokens=sorted({"<s>", end, "<|im_end|>", *found}), initial_alphabet=alphabet, vocab_size=320, show_progress=False
    )
    raw.train_from_iterator(["system user assistant tool hello there you are the result of looking"] * 3, trainer)
    raw.add_tokens([CALL, THOUGHT, *WORDS])
    return raw, end


def checkpoint(folder: Path, source: str) -> Path:
    """A Llama of random weights with this chat template, saved by transformers, whose replies think, call the tool and end."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    raw, end = tokenizer(source)
    theirs = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token=end)
    theirs.chat_template = source
    theirs.save_pretrained(folder)
    torch.manual_seed(0)
    size = raw.get_vocab_size(with_added_tokens=True)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=size,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=4096,
            eos_token_id=raw.token_to_id(end),
            bos_token_id=raw.token_to_id("<s>"),
        )
    )
    with torch.no_grad():  # a constant direction through which some tokens are likelier than others
        model.model.embed_tokens.weight[:, 0] = 2.0
        model.lm_head.weight[:, 0] = -1.0
        for text, logit in {end: 1.0, CALL: 1.0, THOUGHT: 1.0, **dict.fromkeys(WORDS, 0.6)}.items():
            model.lm_head.weight[raw.token_to_id(text), 0] = logit
        for token, added in raw.get_added_tokens_decoder().items():
            if added.special and added.content != end:
                model.lm_head.weight[token, 0] = -4.0
    model.save_pretrained(folder)
    return folder


class Shelf:
    """One episode: calls are answered by a tool, anything else by the user; it ends after five replies."""

    max_turns = 5
    describes_tools = True

    def __init__(self) -> None:
        self.system = describe([*LookEnvironment.tools], "You look at shelves.") if self.describes_tools else ""

    def reset(self, task: Task, seed: int) -> Observation:
        self.log: list[str] = []
        return Observation(f"Where is it, {task.id}?")

    def step(self, action: str) -> Observation:
        self.log.append(action)
        over = len(self.log) == self.max_turns
        calls = [call for call in parse_tool_calls(action) if not call.error]
        if calls and not over:
            return Observation(f"shelf {len(self.log)}: nothing, <|im_end|> {json.dumps(calls[0].arguments)}", role="tool")
        return Observation(
            f"Continue ({len(self.log)}).", float(bool(calls)), terminated=over, outcome=bool(calls) if over else None
        )

    def snapshot(self) -> Any:
        return list(self.log)

    def restore(self, snapshot: Any) -> None:
        self.log = list(snapshot)

    def key(self) -> str:
        return json.dumps(self.log)


class LookEnvironment:
    """Episodes of :class:`Shelf`."""

    name = "look"
    tools = (tool_json("look", "Look at a shelf.", {"type": "object", "properties": {"at": {"type": "string"}}}),)
    env = Shelf

    def make(self) -> Shelf:
        return self.env()

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        return TaskSet.of(Task(f"{split}-{i}") for i in range(n))


class Toolless(Shelf):
    """Whatever is said is answered by the user."""

    def step(self, action: str) -> Observation:
        return replace(super().step(action), role="user")


class ToollessEnvironment(LookEnvironment):
    """Episodes of :class:`Toolless`."""

    tools = ()
    env = Toolless


class Plain(Toolless):
    """Without a system message, too."""

    describes_tools = False


class PlainEnvironment(ToollessEnvironment):
    """Episodes of :class:`Plain`."""

    env = Plain


class Sure(Toolless):
    """Whatever is said, the outcome is the same."""

    outcome = True

    def step(self, action: str) -> Observation:
        observation = super().step(action)
        return replace(observation, reward=0.0, outcome=self.outcome if observation.terminated else None)


class SureEnvironment(ToollessEnvironment):
    """Episodes of :class:`Sure`, which all succeed."""

    env = Sure


class Hopeless(Sure):
    """Nothing ever succeeds."""

    outcome = False


class HopelessEnvironment(ToollessEnvironment):
    """Episodes of :class:`Hopeless`."""

    env = Hopeless


def parted(messages: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """Messages in OpenAI's form, each content a list of one part."""
    return [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in messages]


def bare(messages: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """Messages in OpenAI's form, replies as the texts they are."""
    return [{"role": role, "content": text} for role, text in messages]


def with_calls(messages: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """Messages in OpenAI's form, with the calls that a tool answers taken out of the text."""
    made = bare(messages)
    for i, message in enumerate(made[1:]):
        if message["role"] != "tool":
            continue
        calls = parse_tool_calls(made[i]["content"])
        content = made[i]["content"][: calls[0].char_span[0]].rstrip()
        tool_calls = [
            {"id": f"call{i % 1000:03d}{k:02d}", "type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}}
            for k, c in enumerate(calls)
            if not c.error
        ]
        made[i] = {"role": "assistant", "content": content, "tool_calls": tool_calls}
        message |= {"name": "look", "tool_call_id": tool_calls[0]["id"]}
    return made


def truths(folder: Path, messages: list[tuple[str, str]]) -> list[str]:
    """What transformers renders of a conversation for a model that replies, from a checkpoint:
    replies as texts, and with calls apart."""
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder)
    found = []
    for form in (bare, with_calls, parted):
        try:
            found.append(str(theirs.apply_chat_template(form(messages), add_generation_prompt=True, tokenize=False)))
        except Exception:  # a template refuses one of the forms with an error of its own
            continue
    return found
