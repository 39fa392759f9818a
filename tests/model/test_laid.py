from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import ramify
from ramify.base.errors import UserError
from ramify.model.chat import JinjaTemplate, TagTemplate
from ramify.model.laid import Layout, TooLongError
from ramify.model.protocol import Completion, Prefix, Sampling
from ramify.model.scripted import ScriptedModel
from ramify.model.streaming import gathered, stream
from ramify.model.tokenizer import HfTokenizer
from ramify.trace.message import Message

HOUSEHOLD = HfTokenizer.load(Path(ramify.__file__).parent / "assets" / "household")
TOOL: dict[str, object] = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
# As Qwen's templates tell of tools: inside the first system message, which is made up where there is none.
SOURCE = """
{%- if tools %}{{- '<|system|>' }}
{%- if messages and messages[0].role == 'system' %}{{- messages[0].content + ' ' }}{% endif %}
{{- 'TOOLS: ' }}{% for tool in tools %}{{- tool.function.name }}{% endfor %}{{- '<|end|>' }}
{%- elif messages and messages[0].role == 'system' %}{{- '<|system|>' + messages[0].content + '<|end|>' }}{% endif %}
{%- for m in messages %}{% if not (loop.first and m.role == 'system') %}\
{{- '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{% endif %}"""
SPECIALS = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>")


class Heard(ScriptedModel):
    """Takes the household tokenizer's ids, remembers them, and samples what it is told to, in the tokens it is told to."""

    def __init__(self, sampled: Sequence[list[int]], context: int = 400) -> None:
        super().__init__()
        self.sampled_tokens, self.context, self.prompts = list(sampled), context, list[list[int]]()
        self.eos = (4,)

    async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Completion]:
        assert prefix.tokens is not None
        assert 4 in settings.stop_tokens
        self.prompts.append(prefix.tokens.tolist())
        ids = self.sampled_tokens.pop(0)
        zeros = np.zeros(len(ids), np.float32)
        text = HOUSEHOLD.decode(ids)
        return [Completion(text, "eos", np.array(ids, np.int32), zeros, zeros, None, HOUSEHOLD.ends(ids))] * n


def chat(*texts: str) -> tuple[Message, ...]:
    return tuple(Message(("user", "assistant")[i % 2], text) for i, text in enumerate(texts))


def ask(model: Layout, *messages: Message, tools: Sequence[dict[str, object]] = ()) -> Completion:
    prefix = Prefix(messages=messages, tools=tuple(tools))
    return asyncio.run(gathered(stream(model, prefix, Sampling(), 1)))


def spelled_by_bytes(text: str) -> list[int]:
    """Other tokens of the same text than encoding it gives: one a character."""
    return [token for letter in text for token in HOUSEHOLD.encode(letter)]


def test_a_reply_that_comes_back_keeps_its_tokens_at_its_place_only() -> None:
    sampled = [*spelled_by_bytes("go hall"), 4]
    assert sampled[:-1] != HOUSEHOLD.encode("go hall")
    inside = Heard([sampled, [5, 4], [5, 4], [5, 4]])
    model = Layout(inside, TagTemplate(HOUSEHOLD))
    first = ask(model, *chat("where?"))
    assert first.data == {"usage": {"prompt_tokens": len(inside.prompts[0])}}
    again = ask(model, *chat("where?", "go hall", "and then?"))
    start = len(inside.prompts[0])
    assert inside.prompts[1][: start + len(sampled)] == [*inside.prompts[0], *sampled]
    reply = again.shown[1]
    assert reply.tokens is not None
    assert reply.tokens.tolist() == [2, *sampled]
    assert reply.ends is not None
    assert (reply.message.text, int(reply.ends[-1])) == ("go hall", len("go hall"))
    ask(model, *chat("elsewhere?", "go hall", "and then?"))
    encoded = [2, *HOUSEHOLD.encode("go hall"), 4]
    third = inside.prompts[2]
    assert third[third.index(2) : third.index(2) + len(encoded)] == encoded
    ask(model, *chat("where?", "go hall!", "and then?"))
    assert sampled[:-1] != inside.prompts[3][start : start + len(sampled) - 1]


def test_the_memory_of_replies_is_bounded() -> None:
    sampled = [*spelled_by_bytes("go hall"), 4]
    inside = Heard([sampled, [5, 4], [5, 4]])
    model = Layout(inside, TagTemplate(HOUSEHOLD), remembered=1)
    ask(model, *chat("where?"))
    ask(model, *chat("what?"))
    ask(model, *chat("where?", "go hall", "and then?"))
    start = len(inside.prompts[0])
    assert inside.prompts[2][start : start + len(sampled)] != sampled


def test_a_template_that_knows_tools_tells_of_them() -> None:
    template = JinjaTemplate(HOUSEHOLD, SOURCE, SPECIALS)
    inside = Heard([[5, 4]] * 4)
    model = Layout(inside, template)
    ask(model, *chat("hello"), tools=[TOOL])
    ask(model, Message("system", "Be brief."), *chat("hello", "yes", "go"), tools=[TOOL])
    ask(model, *chat("hello"))
    texts = [HOUSEHOLD.decode(prompt) for prompt in inside.prompts]
    assert texts[0] == "<|system|>TOOLS: look<|end|><|user|>hello<|end|><|assistant|>"
    assert texts[1].startswith("<|system|>Be brief. TOOLS: look<|end|><|user|>hello<|end|><|assistant|>yes<|end|>")
    assert texts[2] == "<|user|>hello<|end|><|assistant|>"


def test_otherwise_the_system_message_tells_of_them() -> None:
    inside = Heard([[5, 4]] * 2, context=2000)
    model = Layout(inside, TagTemplate(HOUSEHOLD))
    completion = ask(model, Message("system", "Be brief."), *chat("hello"), tools=[TOOL])
    assert HOUSEHOLD.decode(inside.prompts[0]).startswith("<|system|>Be brief.\n\n# Tools")
    assert '"name": "look"' in completion.shown[0].message.text
    ask(model, *chat("hello"), tools=[TOOL])
    assert HOUSEHOLD.decode(inside.prompts[1]).startswith("<|system|># Tools")


def test_token_ids_pass_and_what_does_not_fit_is_one_sentence() -> None:
    inside = Heard([[5, 4], [5, 4]], context=8)
    model = Layout(inside, TagTemplate(HOUSEHOLD))
    assert (model.context, model.eos, model.identity) == (8, (4,), inside.identity)
    given = Prefix(np.array([7, 8], np.int32))
    assert asyncio.run(model.sample(given, 1, Sampling(stop_tokens=(4,)), [1]))[0].shown == ()
    assert inside.prompts == [[7, 8]]
    with pytest.raises(TooLongError, match=r"the chat has \d+ tokens; 'scripted' holds 8"):
        ask(model, *chat("go to the hall and on to the kitchen and the garden"))
    with pytest.raises(UserError, match="at least one message"):
        ask(model)
    with pytest.raises(UserError, match="no role 'owner'"):
        ask(model, Message("owner", "x"))
