"""Replies under a grammar and penalties: the distribution they follow, with drafts and without, and what is refused."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from zoo import save_checkpoint

from engine.helpers import LETTERS, WORDS, byte_tokenizer, sample, speller, tiny, tokens
from engine.speculating import Shadow, prompts, sample_all
from ramify.base.errors import NeedsError, UserError
from ramify.engine.grammar import token_bytes
from ramify.engine.local import LocalModel
from ramify.engine.sampling import adjusted, check
from ramify.engine.schedules import FixedSchedule
from ramify.engine.speculate import Speculator
from ramify.model import grammar_child
from ramify.model.function import FunctionModel
from ramify.model.grammar import FOLLOWED, MOST_PROPERTIES, json_object, json_schema, one_of, regex, tool_calls
from ramify.model.protocol import Grammar, Prefix, Sampling, require, require_splittable
from ramify.model.tokenizer import HfTokenizer
from ramify.stats.tests import chi_square
from ramify.trace.message import parse_tool_calls

PERSON = {
    "type": "object",
    "title": "Person",
    "properties": {
        "name": {"type": "string", "maxLength": 6, "description": "what they are called"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"anyOf": [{"const": "cat"}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
    "$defs": {"tag": {"enum": ["big", "small"]}},
}


def writer(**options: Any) -> LocalModel:
    """A model of bytes that knows nothing, with room for a long reply."""
    return LocalModel(tiny(vocab=300, context=1024), byte_tokenizer(), eos=(0,), **options)


# -- formulas


def test_each_setting_changes_the_logits_as_its_formula_says():
    z = torch.tensor([[2.0, 1.0, -1.0, 0.5, 0.0]], dtype=torch.float64)
    model = speller()
    prompt = np.array([2], np.int32)
    s = Sampling(
        temperature=0.5,
        logit_bias=((0, -1.5), (4, 3.0)),
        repetition_penalty=2.0,
        frequency_penalty=0.25,
        presence_penalty=0.5,
        min_p=0.05,
    )
    (shaper,) = asyncio.run(model._grammars.shapers(s, prompt, 1))
    assert shaper is not None
    for token in (1, 1):
        assert shaper.take(token) is None
    found = adjusted(z, [s], [False], [shaper.after([0])]).exp()[0].numpy()
    biased = np.array([0.5, 1.0, -1.0, 0.5, 3.0])
    seen = np.array([0.25, 0.5, -2.0, 0.5, 3.0])  # 0 is drafted, 1 was sampled twice, 2 is in the prompt
    cooled = (seen - np.array([0.25 + 0.5, 2 * 0.25 + 0.5, 0, 0, 0])) / 0.5
    wanted = np.exp(cooled) * (np.exp(cooled - cooled.max()) >= 0.05)
    assert biased[3] == seen[3]
    np.testing.assert_allclose(found, wanted / wanted.sum(), atol=1e-12)
    assert (found == 0).any()
    # nothing of the draft stays
    counts = np.array([0, 2 * 0.25 + 0.5, 0, 0, 0])
    again = adjusted(z, [s], [False], [shaper.after([])]).exp()[0].numpy()
    cooled = (np.array([0.5, 0.5, -2.0, 0.5, 3.0]) - counts) / 0.5
    wanted = np.exp(cooled) * (np.exp(cooled - cooled.max()) >= 0.05)
    np.testing.assert_allclose(again, wanted / wanted.sum(), atol=1e-12)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("frequency_penalty", float("nan")),
        ("presence_penalty", float("inf")),
        ("logit_bias", ((99, 1.0),)),
        ("logit_bias", ((1, float("inf")),)),
    ],
)
def test_settings_that_mean_nothing_are_refused_by_name(field: str, value: Any):
    with pytest.raises(UserError, match=field):
        check(Sampling(**{field: value}), 5)


# -- grammars


@pytest.mark.parametrize("seed", range(3))
def test_every_reply_under_a_schema_fits_it(seed: int):
    found = sample(writer(), tokens(5, seed), range(8), max_tokens=400, grammar=json_schema(PERSON))
    whole = [d for d in found if d.stop == "stop"]
    assert whole
    for one in whole:
        person = json.loads(one.text)
        assert list(person)[:2] == ["name", "age"]
        assert len(person["name"]) <= 6
        assert 0 <= person["age"] <= 120
        assert person.get("kind") in ("cat", None)
        assert set(person.get("tags", ())) <= {"big", "small"}
        assert set(person) <= PERSON["properties"].keys()
    for one in found:
        assert one.stop in ("stop", "length")
        assert one.stop != "length" or len(one.tokens) == 400


def test_a_reply_ends_where_nothing_can_follow_and_at_the_limit_inside():
    model = writer()
    short = sample(model, tokens(5), range(4), max_tokens=3, grammar=json_schema(PERSON))
    assert {d.stop for d in short} == {"length"}
    (exact,) = sample(model, tokens(5), [1], max_tokens=3, grammar=regex("[a-c]{3}"))
    assert exact.stop == "stop"
    assert re.fullmatch("[a-c]{3}", exact.text)
    ended = sample(model, tokens(5), range(20), max_tokens=60, grammar=regex("[a-c]+"))
    assert all(re.fullmatch("[a-c]+", d.text.removesuffix("<|end|>")) for d in ended)
    assert {"eos"} <= {d.stop for d in ended} <= {"eos", "length"}  # it may continue for ever, so the model ends it


def test_json_mode_a_choice_and_calls_of_tools():
    model = writer()
    for one in sample(model, tokens(5), range(20), max_tokens=200, grammar=json_object()):
        assert one.text.startswith("{")
        assert one.stop != "stop" or isinstance(json.loads(one.text), dict)
    picked = {d.text for d in sample(model, tokens(5), range(20), max_tokens=20, grammar=one_of(["yes", 'n"o', "maybe\n"]))}
    assert picked <= {"yes", 'n"o', "maybe\n"}
    assert len(picked) > 1
    tools = [{"function": {"name": "go", "parameters": {"$ref": "#/$defs/a", "$defs": {"a": {
        "type": "object", "properties": {"to": {"enum": ["hall", "attic"]}}, "required": ["to"], "additionalProperties": False,
    }}}}}, {"function": {"name": "look", "parameters": {"properties": {}, "additionalProperties": False}}}]  # fmt: skip
    for one in sample(model, tokens(5), range(10), max_tokens=400, grammar=tool_calls(tools, several=False)):
        assert one.stop == "stop"
        (call,) = parse_tool_calls(one.text)
        assert not call.error
        assert call.arguments in ({"to": "hall"}, {"to": "attic"}) if call.name == "go" else call.arguments == {}


def test_calls_that_a_reply_is_free_to_make_fit_their_schemas():
    model, go = writer(), {"name": "go", "parameters": {"properties": {"to": {"const": "hall"}}, "additionalProperties": False}}

    def taken(text: str, several: bool = True) -> int:
        parser = model._grammars.compile(tool_calls([{"function": go}], several, free=True))
        assert model.tokenizer is not None
        ids = model.tokenizer.encode(text)
        count = parser.try_consume_tokens(ids)
        return len(text) if count == len(ids) and parser.is_accepting() else len(model.tokenizer.decode(ids[:count]))

    call = '<tool_call>\n{"name": "go", "arguments": {"to": "hall"}}\n</tool_call>'
    for text in ("hello", "a <tool", call, f"I think\n{call}", f"{call}\n{call}", f"{call} done"):
        assert taken(text) == len(text)
    assert taken(f"{call}{call}", several=False) == len(call)
    assert taken('well <tool_call>\n{"name": "fly"') == len('well <tool_call>\n{"name": "')
    assert taken("<tool_call>go") == len("<tool_call>")


def test_logprobs_are_those_of_the_distribution_that_was_sampled():
    """Summed over every text of a finite grammar the chances are one, and the model's own stay beside them."""
    model = speller()
    settings = {"max_tokens": 4, "grammar": one_of(WORDS), "frequency_penalty": 0.7, "temperature": 0.8}
    seen = {
        d.text: (d.tokens, float(np.exp(d.logprobs.sum(dtype=float))))
        for d in sample(model, tokens(6, vocab=5), range(400), **settings)
    }
    distribution = distribution_of(model, tokens(6, vocab=5), 0.8, 0.7)
    assert {"ab<end>", "abc", "bad"} <= set(seen) <= {*WORDS, "ab<end>", "da<end>"} - {"ab", "da"}
    assert sum(distribution.values()) == pytest.approx(1)
    for text, (_, p) in seen.items():
        assert p == pytest.approx(distribution[text.removesuffix("<end>")], abs=1e-5)
    (one,) = sample(model, tokens(6, vocab=5), [3], **settings)
    own = asyncio.run(model.chosen_logprobs([np.concatenate((tokens(6, vocab=5), one.tokens))]))[0][6:]
    np.testing.assert_allclose(one.model_logprobs, own, atol=1e-5)


def distribution_of(model: LocalModel, prompt: np.ndarray, temperature: float = 1.0, frequency: float = 0.0) -> dict[str, float]:
    """Chance of each word, from the module's own logits and a list of the words: no grammar, no engine."""
    chances = {"": 1.0}
    found: dict[str, float] = {}
    while chances:
        said, chance = chances.popitem()
        follow = {word[len(said)] for word in WORDS if word.startswith(said) and word != said}
        given = torch.tensor([*prompt.tolist(), *(LETTERS.index(letter) for letter in said)])[None]
        with torch.inference_mode():
            logits = model.module(given)[0, -1].double().numpy()
        allowed = {LETTERS.index(letter) for letter in follow} | ({4} if said in WORDS else set())
        counts = np.array([said.count(letter) for letter in LETTERS] + [0])
        weights = np.exp((logits - frequency * counts) / temperature) * np.isin(np.arange(5), list(allowed))
        weights = weights / weights.sum() if follow else np.eye(5)[4]
        for token, weight in enumerate(weights):
            if weight and token == 4:
                found[said] = chance * weight
            elif weight:
                chances[said + LETTERS[token]] = chance * weight
    return found


# -- batches and drafts

SETTINGS: list[dict[str, Any]] = [
    {"grammar": one_of(WORDS)},
    {"grammar": regex("(ab|ba|c+d)*"), "temperature": 1.3},
    {"grammar": regex("[a-c]{2,9}"), "frequency_penalty": 0.6, "repetition_penalty": 1.4, "min_p": 0.02},
    {"presence_penalty": 1.5, "logit_bias": ((2, 1.0),)},
    {"grammar": regex("(a|b)+"), "ban": (1,), "top_k": 2},
    {"grammar": one_of(WORDS), "temperature": 0.0},
    {},
]


def speculating(kind: str, depth: int = 3) -> LocalModel:
    plain = speller()
    drafter = Shadow(plain.module, block=depth, blur=1.0)
    return plain.speculating(Speculator(drafter, FixedSchedule(depth), plain.forward.layers, kind))


def every(model: LocalModel, at_once: int) -> list[tuple[bytes, bytes, str]]:
    given = [prompt % 5 for prompt in prompts(6)]
    found = []
    for settings in SETTINGS:
        for one in sample_all(model, given, at_once, n=2, max_tokens=9, **settings):
            found.append((one.tokens.tobytes(), one.logprobs.tobytes(), one.stop))
    return found


@pytest.mark.slow
def test_a_reply_does_not_depend_on_its_batch_mates():
    assert every(speller(max_sequences=1), 1) == every(speller(max_sequences=16), 6)

    async def mixed() -> list[Any]:
        model = speller()
        return await asyncio.gather(
            *(model.sample(Prefix(tokens(6, vocab=5)), 2, Sampling(max_tokens=9, **s), [1, 2]) for s in SETTINGS)
        )

    alone = [sample(speller(), tokens(6, vocab=5), [1, 2], max_tokens=9, **s) for s in SETTINGS]
    for together, single in zip(asyncio.run(mixed()), alone, strict=True):
        for a, b in zip(together, single, strict=True):
            assert (a.tokens.tobytes(), a.logprobs.tobytes()) == (b.tokens.tobytes(), b.logprobs.tobytes())


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [1, 6])
def test_coupled_samples_are_those_without_drafts(at_once: int):
    model = speculating("coupled")
    assert every(model, at_once) == every(speller(), at_once)
    assert model.speculation is not None
    assert 0 < model.speculation.accepted < model.speculation.proposed


@pytest.mark.slow
@pytest.mark.parametrize("frequency", [0.0, 0.8])
def test_rejection_keeps_the_distribution_under_a_grammar_and_penalties(frequency: float):
    model, prompt = speculating("rejection"), tokens(6, vocab=5)
    distribution = distribution_of(model, prompt, frequency=frequency)
    made = sample(model, prompt, range(1200), max_tokens=4, grammar=one_of(WORDS), frequency_penalty=frequency)
    counts = np.array([sum(d.text.removesuffix("<end>") == word for d in made) for word in distribution])
    assert counts.sum() == len(made)
    assert chi_square(counts, np.array(list(distribution.values())))[1] > 0.001
    assert model.speculation is not None
    assert model.speculation.accepted > 100


@pytest.mark.slow
def test_parked_and_forked_replies_continue_where_they_were():
    few = speller(max_sequences=2, quantum=1)
    assert every(few, 6) == every(speller(), 6)


# -- vocabularies


def metaspace() -> HfTokenizer:
    """As SentencePiece makes them: a space is a letter of its own kind, and what has no letter is spelled in bytes."""
    vocab = {
        word: i for i, word in enumerate(["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "a", '{"', "1"])
    }
    raw = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return HfTokenizer(raw)


def test_the_bytes_of_every_kind_of_vocabulary():
    level = token_bytes(byte_tokenizer(), 305)
    assert {one for one in level if len(one) == 1} == {bytes([byte]) for byte in range(256)}
    assert level[0] == b"<|end|>"
    assert level[300:] == [b""] * 5
    fallback = token_bytes(metaspace(), 262)
    assert fallback[1:257] == [bytes([byte]) for byte in range(256)]
    assert fallback[257:260] == [b" ", b" the", b"a"]
    model = LocalModel(tiny(vocab=262, context=512), metaspace(), eos=(0,))
    for one in sample(model, tokens(5), range(4), max_tokens=200, grammar=json_schema(PERSON)):
        assert one.stop == "length" or json.loads(one.text)["name"] is not None


def test_a_checkpoint_whose_vocabulary_is_larger_than_its_tokenizers(tmp_path: Path):
    save_checkpoint(tmp_path / "m", "gpt2")
    model = LocalModel.load(tmp_path / "m")
    for one in sample(model, tokens(5), range(4), max_tokens=200, grammar=json_schema(PERSON)):
        assert one.tokens.max() < 259
        assert one.stop == "length" or json.loads(one.text)


# -- refusals


def test_what_no_token_can_follow_fails_alone_with_a_sentence():
    model = speller()

    async def both() -> list[Any]:
        given = [Sampling(max_tokens=8, grammar=regex("ab!")), Sampling(max_tokens=8)]
        asked = (model.sample(Prefix(tokens(6, vocab=5)), 1, s, [1]) for s in given)
        return await asyncio.gather(*asked, return_exceptions=True)

    failed, fine = asyncio.run(both())
    assert isinstance(failed, UserError)
    assert re.search("no token can follow after 2 tokens", str(failed))
    assert np.array_equal(fine[0].tokens, sample(model, tokens(6, vocab=5), [1], max_tokens=8)[0].tokens)
    with pytest.raises(UserError, match="banned"):
        sample(model, tokens(6, vocab=5), [1], max_tokens=8, grammar=regex("a+"), ban=(0,))
    with pytest.raises(UserError, match="banned"):
        sample(model, tokens(6, vocab=5), [1], max_tokens=8, grammar=regex("a+"), ban_first=(0,))


def test_a_model_that_lacks_it_refuses_before_anything_runs():
    bare = LocalModel(tiny())
    assert "grammar" not in bare.capabilities
    with pytest.raises(UserError, match="tokenizer"):
        sample(bare, tokens(5), [1], grammar=json_object())
    function = FunctionModel(lambda messages: "hello")
    with pytest.raises(NeedsError, match="grammar"):
        asyncio.run(function.sample(Prefix(), 1, Sampling(grammar=json_object()), [1]))
    with pytest.raises(NeedsError, match="penalties"):
        require(function, Sampling(min_p=0.1).needs, "min_p")
    with pytest.raises(UserError, match="penalties"):
        asyncio.run(speller().logprobs([tokens(5, vocab=5)], settings=Sampling(presence_penalty=1)))


def test_what_continues_inside_a_reply_refuses_what_spans_it():
    for settings in (Sampling(grammar=regex("a+")), Sampling(frequency_penalty=0.5), Sampling(presence_penalty=-1)):
        with pytest.raises(NeedsError, match="would begin anew"):
            require_splittable(settings, "a fork")
    require_splittable(
        Sampling(repetition_penalty=1.3, min_p=0.1), "a fork"
    )  # the prompt counts for it, and so does what was said
    settings, prompt = {"repetition_penalty": 1.6, "max_tokens": 6, "temperature": 0.0}, tokens(6, vocab=5)
    (whole,) = sample(speller(), prompt, [1], **settings)
    (rest,) = sample(speller(), np.concatenate((prompt, whole.tokens[:3])), [1], **settings)
    assert rest.tokens[: len(whole.tokens) - 3].tolist() == whole.tokens[3:].tolist()


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "object", "properties": {"a": {"uniqueItems": True}}}, "properties.a: the keyword 'uniqueItems'"),
        ({"properties": {"a": {"minLenght": 2}}}, "properties.a: the keyword 'minLenght'.*minLength"),
        ({"items": {"type": "strin"}}, "items.type.*string"),
        ({"anyOf": [{}, {"format": "colour"}]}, r"anyOf\[1\].format"),
        ({"$ref": "https://example.org/x"}, r"\$ref"),
        ({"$ref": "#/$defs/a", "$defs": {}}, "not there"),
        ({"x-guidance": {"lenient": True}}, "x-guidance"),
        ({"not": {}}, "'not'"),
        ({"nullable": True, "type": "string"}, "nullable"),
        ({"multipleOf": 999_983}, "multipleOf"),
        ({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}, "multipleOf"),
        ({"pattern": "((a{900}){900}){900}"}, "pattern.*repeats"),
        ({"patternProperties": {"(a{900}){900}": {}}}, "patternProperties.*repeats"),
        ({"enum": []}, "enum"),
        ({"properties": {f"p{i}": {} for i in range(MOST_PROPERTIES + 1)}}, "properties"),
        ({"type": "string", "minimum": "3"}, "minimum"),
        (7, "must be an object"),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused_with_its_path(schema: Any, said: str):
    with pytest.raises(UserError, match=said):
        json_schema(schema)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"properties": {"a": {"pattern": "(?=x)"}}}, "at properties.a: .*look-around"),
        ({"items": {"oneOf": [{"type": "string"}, {"type": "string"}]}}, "at items: 'oneOf'"),
        (
            {"properties": {"a": {"type": "string", "minLength": 4, "maxLength": 2}}, "required": ["a"], "type": "object"},
            "minLength",
        ),
        ({"patternProperties": {"a": {}, "aa": {}}}, "disjoint"),
    ],
)
def test_what_the_parser_refuses_has_its_path_too(schema: Any, said: str):
    with pytest.raises(UserError, match=said):
        sample(writer(), tokens(5), [1], grammar=json_schema(schema))


def test_huge_and_deep_schemas_are_refused_at_once():
    deep: Any = {"type": "integer"}
    for _ in range(5000):
        deep = {"type": "array", "items": deep}
    with pytest.raises(UserError, match="nested"):
        json_schema(deep)
    with pytest.raises(UserError, match="larger"):
        json_schema({"enum": ["x" * 1000] * 10_000})
    wide: Any = {}
    for i in range(60):  # doubles at every level, as an object that is shared
        wide = {"anyOf": [wide, wide], "title": str(i)}
    with pytest.raises(UserError, match=r"larger|nested|parts"):
        json_schema(wide)
    with pytest.raises(UserError, match="characters"):
        regex("a" * 1_000_000)


@pytest.mark.slow
def test_expressions_that_take_for_ever_to_join_are_refused_in_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(grammar_child, "SECONDS", 2.0)
    schema = {"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{i}}}"} for i in range(1, 40)]}
    with pytest.raises(UserError, match="more than 2 s"):
        sample(writer(), tokens(5), [1], grammar=json_schema(schema))


def test_an_expression_that_is_no_grammar_is_refused():
    with pytest.raises(UserError, match="regular expression cannot be followed"):
        sample(writer(), tokens(5), [1], grammar=regex("(a"))
    with pytest.raises(UserError, match="kind"):
        sample(writer(), tokens(5), [1], grammar=Grammar("bnf", "x"))
    with pytest.raises(UserError, match="must describe an object"):
        tool_calls([{"function": {"name": "f", "parameters": {"type": "string"}}}])


@pytest.mark.slow
def test_every_keyword_that_is_followed_is_known_to_the_parser():
    """What is let through here must not be passed over there: each keyword alone changes what is refused."""
    wrong: dict[str, Any] = dict.fromkeys(FOLLOWED, 3.5) | dict.fromkeys(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), "x"
    )
    passed = []
    for name, value in wrong.items():
        with suppress(UserError):
            sample(writer(), tokens(5), [1], max_tokens=1, grammar=Grammar("json", json.dumps({name: value})))
            passed.append(name)
    assert passed == ["const", "$defs", "definitions"]  # any value is a const; a definition is read where it is pointed to
