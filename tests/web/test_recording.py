"""What the recorder keeps: trees of conversations, tokens, what was shown, failures; after a kill;
and nothing that was to be redacted."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base.errors import InfrastructureError, RamifyError, UserError
from ramify.methods.governance.lost_rules import audit
from ramify.methods.governance.written_rules import Rule
from ramify.model.chat import TagTemplate
from ramify.model.laid import Layout
from ramify.model.middleware import Middleware
from ramify.model.protocol import CLIENT, Completion, Model, Prefix, Sampling
from ramify.model.scripted import CharTokenizer, ScriptedModel
from ramify.trace.db import Run
from ramify.trace.message import Message
from ramify.trace.node import Node
from ramify.web.exchange import Exchange
from ramify.web.recording import Recorder
from ramify.web.redaction import scrub

RULE = "Never mail anyone outside acme.com."
SYSTEM = Message("system", f"You sort mail. {RULE}")
TEMPLATE = TagTemplate(CharTokenizer())


def echo(messages: tuple[Message, ...], key: int) -> str:
    return f"reply {key % 100} to: {messages[-1].text}"


def local() -> Layout:
    return Layout(ScriptedModel(echo), TEMPLATE)


def remote() -> Model:
    return ScriptedModel(echo, tokens=False)


async def ask(recorder: Recorder, model: Model, *messages: Message, n: int = 1, key: int = 1) -> list[Completion]:
    """One chat request, answered and recorded."""
    prefix, keys = Prefix(messages=messages), tuple(range(key, key + n))
    completions = await model.sample(prefix, n, Sampling(), keys)
    await recorder(Exchange(f"chatcmpl-{key}", "chat", model.identity, (prefix,), Sampling(), (keys,), (tuple(completions),)))
    return completions


def as_message(completion: Completion) -> Message:
    return Message("assistant", completion.text)


def record(folder: Path, work: Callable[[Recorder], Any], **options: Any) -> Run:
    """What ``work`` records, in a run opened to be read."""
    recorder = Recorder(folder, {"model": "scripted"}, **options)
    try:
        asyncio.run(work(recorder))
    finally:
        recorder.close()
    return Run.open(folder)


def user(text: str) -> Message:
    return Message("user", text)


@pytest.mark.parametrize("make", [local, remote])
def test_a_conversation_is_one_path_and_choices_are_siblings(tmp_path: Path, make: Callable[[], Model]) -> None:
    model = make()

    async def work(recorder: Recorder) -> None:
        first, _ = await ask(recorder, model, SYSTEM, user("one"), n=2)
        await ask(recorder, model, SYSTEM, user("one"), as_message(first), user("two"), key=7)
        await ask(recorder, model, SYSTEM, user("elsewhere"), key=8)

    with record(tmp_path / "run", work, template=getattr(model, "template", None)) as run:
        infos = run.trees()
        assert len(infos) == 2
        nodes = run.nodes(infos[0].name)
        assert [(n.role, n.text) for n in nodes if n.role != "root"] == [
            ("system", SYSTEM.text),
            ("user", "one"),
            ("assistant", "reply 1 to: one"),
            ("assistant", "reply 2 to: one"),
            ("user", "two"),
            ("assistant", "reply 7 to: two"),
        ]
        last = nodes[-1]
        assert [m.text for m in run.path(last.id).messages()][2:] == ["reply 1 to: one", "two", "reply 7 to: two"]
        assert nodes[3].parent == nodes[4].parent == nodes[2].id
        assert all(n.context is None for n in nodes)
        assert run.provenance(str(last.provenance)).model == "scripted"
        assert last.data["key"] == 7
        assert last.data["request"] == "chatcmpl-7"


def test_token_ids_and_logprobs_are_those_of_the_model(tmp_path: Path) -> None:
    model = local()
    found: list[Completion] = []

    async def work(recorder: Recorder) -> None:
        first = (await ask(recorder, model, SYSTEM, user("one")))[0]
        found.extend(await ask(recorder, model, SYSTEM, user("one"), as_message(first), user("two"), key=7))

    with record(tmp_path / "run", work, template=model.template) as run:
        last = [n for n in run.each(Node) if n.index >= 0][-1]
        shown, completion = run.shown(last.id), found[0]
        assert shown.tokens is not None
        assert completion.tokens is not None
        header = TEMPLATE.open("assistant")
        rendered = np.concatenate([np.asarray(one.tokens) for one in completion.shown])
        assert np.array_equal(shown.tokens, rendered)
        assert np.array_equal(run.path(last.id).tokens, [*rendered, *header, *completion.tokens])
        assert last.logprobs is not None
        assert completion.logprobs is not None
        assert np.allclose(last.logprobs[len(header) :], completion.logprobs)
        assert last.sampled_tokens == len(completion.tokens)


@pytest.mark.parametrize("make", [local, remote])
def test_a_client_that_compacts_keeps_one_history_and_the_loss_shows(tmp_path: Path, make: Callable[[], Model]) -> None:
    model = make()
    summary = Message("system", "Summary: the user sorts mail with us.")

    async def work(recorder: Recorder) -> None:
        chat = [SYSTEM, user("sort the first letter of the morning")]
        for key in (1, 2):
            chat += [as_message((await ask(recorder, model, *chat, key=key))[0]), user(f"and letter {key}")]
        short = [summary, *chat[-3:]]  # the newest exchange and the request; the rule is gone
        for key in (3, 4):
            short += [as_message((await ask(recorder, model, *short, key=key))[0]), user(f"and letter {key}")]

    with record(tmp_path / "run", work, template=getattr(model, "template", None)) as run:
        assert len(run.trees()) == 1
        replies = [n for n in run.each(Node) if n.index >= 0]
        assert [n.context is None for n in replies] == [True, True, False, False]
        shown = run.shown(replies[-1].id)
        assert shown.messages[0].text == summary.text
        assert next(m.text for m in run.path(replies[-1].id).messages()) == SYSTEM.text  # the history is whole
        if model.capabilities & {"tokens"}:
            assert shown.tokens is not None
    found = audit(tmp_path / "run", [Rule(RULE)])
    (fate,) = found.rules
    assert (fate.stated_in, fate.replies_without) == (1, 2)
    assert len(fate.lost) == 1


def test_results_in_another_order_are_the_same_history(tmp_path: Path) -> None:
    asked = [{"id": id, "type": "function", "function": {"name": "look", "arguments": "{}"}} for id in "ab"]
    told = [Message("tool", f"result {id}", {"tool_call_id": id}) for id in "ab"]
    said = iter([Completion("", "eos", data={"tool_calls": asked}), Completion("so it is", "eos"), Completion("bye", "eos")])
    model = ScriptedModel(lambda messages, key: next(said), tokens=False)

    async def work(recorder: Recorder) -> None:
        first = (await ask(recorder, model, user("look twice")))[0].message
        second = as_message((await ask(recorder, model, user("look twice"), first, *told))[0])
        await ask(recorder, model, user("look twice"), first, *told[::-1], second, user("bye"))

    with record(tmp_path / "run", work) as run:
        nodes = [node for node in run.each(Node) if node.role != "root"]
    assert [node.role for node in nodes] == ["user", "assistant", "tool", "tool", "assistant", "user", "assistant"]


def test_conversations_of_two_clients_do_not_mix(tmp_path: Path) -> None:
    model = remote()

    async def work(recorder: Recorder) -> None:
        CLIENT.set("user ana")
        chat = [SYSTEM, user("hi")]
        for key in (1, 2):
            chat += [as_message((await ask(recorder, model, *chat, key=key))[0]), user("and then?")]
        for client in ("user ben", "user ana"):  # "hi" opens the conversations of both
            CLIENT.set(client)
            await ask(recorder, model, Message("system", f"You serve {client}."), *chat[1:4], key=3)
        CLIENT.set("user ben")
        await ask(recorder, model, Message("system", "Another summary."), *chat[3:], key=4)  # another's newest exchange

    with record(tmp_path / "run", work) as run:
        assert [sum(n.index >= 0 for n in run.nodes(info.name)) for info in run.trees()] == [3, 1, 1]


def test_tools_are_kept_as_they_are_and_redacted_where_asked(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "login", "description": "as ana@mail.example.org",
            "parameters": {"type": "object", "properties": {"password": {"type": "string"}}}}}  # fmt: skip
    prefix = Prefix(messages=(user("hi"),), tools=(tool,))

    async def work(recorder: Recorder) -> None:
        identity, outcomes = ScriptedModel().identity, ((Completion("fine", "eos"),),)
        await recorder(Exchange("x", "chat", identity, (prefix,), Sampling(), ((1,),), outcomes))

    for hidden in (False, True):
        with record(tmp_path / str(hidden), work, hidden=hidden) as run:
            (node,) = [n for n in run.each(Node) if n.index >= 0]
            (kept,) = run.provenance(str(node.provenance)).settings["tools"]
        assert kept["function"]["parameters"] == tool["function"]["parameters"]  # type: ignore[index]
        assert kept["function"]["description"] == ("as [e-mail]" if hidden else "as ana@mail.example.org")


@pytest.mark.parametrize("make", [local, remote])
def test_what_middleware_puts_in_is_context_and_not_history(tmp_path: Path, make: Callable[[], Model]) -> None:
    class Reminds(Middleware):
        async def before(self, given: Prefix) -> Prefix:
            return Prefix(messages=(given.messages[0], Message("system", "Be kind."), *given.messages[1:]), tools=given.tools)

    model = Reminds(make())

    async def work(recorder: Recorder) -> None:
        first = (await ask(recorder, model, SYSTEM, user("one")))[0]
        await ask(recorder, model, SYSTEM, user("one"), as_message(first), user("two"), key=7)

    with record(tmp_path / "run", work, template=getattr(model, "template", None)) as run:
        last = [n for n in run.each(Node) if n.index >= 0][-1]
        assert [m.text for m in run.path(last.id).messages()] == [
            SYSTEM.text, "one", "reply 1 to: one", "two", "reply 7 to: two",
        ]  # fmt: skip
        assert [m.text for m in run.shown(last.id).messages] == [
            SYSTEM.text, "Be kind.", "one", "reply 1 to: one", "two",
        ]  # fmt: skip


def test_white_space_tells_prompts_apart_and_ends_of_replies_not(tmp_path: Path) -> None:
    model = remote()

    async def work(recorder: Recorder) -> None:
        first = (await ask(recorder, model, user("one")))[0]
        await ask(recorder, model, user("one "))
        await ask(recorder, model, user("one"), Message("assistant", f" {first.text}\n"), user("two"))

    with record(tmp_path / "run", work) as run:
        assert [len(run.nodes(info.name)) for info in run.trees()] == [5, 3]
        assert [info.task["asked"] for info in run.trees()] == ["one", "one "]


def test_tool_calls_are_found_again_however_they_are_spelled(tmp_path: Path) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "mail", "arguments": '{"to":"x@acme.com"}'}}
    sampled = '<tool_call>\n{"name": "mail", "arguments": {"to": "x@acme.com"}}\n</tool_call>'
    model = ScriptedModel([sampled, "done"], tokens=False)

    async def work(recorder: Recorder) -> None:
        await ask(recorder, model, SYSTEM, user("mail x"))
        again = Message("assistant", "", {"tool_calls": [call]})
        await ask(recorder, model, SYSTEM, user("mail x"), again, Message("tool", "sent", {"tool_call_id": "a"}), key=2)

    with record(tmp_path / "run", work) as run:
        (info,) = run.trees()
        assert [n.role for n in run.nodes(info.name)] == ["root", "system", "user", "assistant", "tool", "assistant"]


def test_failures_are_data_and_siblings_stay(tmp_path: Path) -> None:
    prefix = Prefix(messages=(user("hi"),))
    outcomes = (Completion("fine", "eos"), InfrastructureError("provider", "down for a while"))
    identity = ScriptedModel().identity

    async def work(recorder: Recorder) -> None:
        await recorder(Exchange("x", "chat", identity, (prefix,), Sampling(), ((1, 2),), (outcomes,)))

    with record(tmp_path / "run", work) as run:
        good, bad = [n for n in run.each(Node) if n.index >= 0]
        assert (good.text, good.stop) == ("fine", "eos")
        assert bad.stop == "failed"
        assert bad.data["failure"] == "provider: down for a while"


def test_prompts_of_token_ids_continue_where_they_were_sampled(tmp_path: Path) -> None:
    model = ScriptedModel(["drawn"])

    async def ask_tokens(recorder: Recorder, tokens: np.ndarray, key: int) -> np.ndarray:
        prefix = Prefix(tokens)
        (completion,) = await model.sample(prefix, 1, Sampling(), [key])
        await recorder(Exchange(f"c{key}", "completions", model.identity, (prefix,), Sampling(), ((key,),), ((completion,),)))
        assert completion.tokens is not None
        return np.concatenate([tokens, completion.tokens])

    async def work(recorder: Recorder) -> None:
        start = np.array([20, 21, 22], np.int32)
        whole = await ask_tokens(recorder, start, 1)
        await ask_tokens(recorder, start, 2)
        await ask_tokens(recorder, np.append(whole, [30, 31]).astype(np.int32), 3)

    with record(tmp_path / "run", work) as run:
        (info,) = run.trees()
        nodes = run.nodes(info.name)
        assert [n.role for n in nodes] == ["root", "user", "assistant", "assistant", "user", "assistant"]
        sampled = np.asarray(nodes[2].tokens)
        assert np.array_equal(run.path(nodes[-1].id).tokens, [20, 21, 22, *sampled, 30, 31, *sampled])
        assert nodes[2].parent == nodes[3].parent
        assert nodes[4].parent == nodes[2].id


def test_a_recorder_opened_again_continues_in_the_same_trees(tmp_path: Path) -> None:
    model = local()
    sampled: list[Completion] = []

    async def first(recorder: Recorder) -> None:
        sampled.extend(await ask(recorder, model, SYSTEM, user("one")))

    async def second(recorder: Recorder) -> None:
        await ask(recorder, model, SYSTEM, user("one"))  # the same sample again is another node
        await ask(recorder, model, SYSTEM, user("one"), as_message(sampled[0]), user("two"), key=2)

    record(tmp_path / "run", first, template=TEMPLATE).close()
    with record(tmp_path / "run", second, template=TEMPLATE) as run:
        assert len(run.trees()) == 1
        assert len([n for n in run.each(Node) if n.index >= 0]) == 3
        assert len(run) == 7


def test_a_recorder_refuses_a_run_of_another_verb_and_one_that_was_redacted(tmp_path: Path) -> None:
    Run.create(tmp_path / "played", {"model": "builtin"}, kind="rollout").close()
    with pytest.raises(UserError, match=r"was not made by `ramify serve --record`: choose another folder"):
        Recorder(tmp_path / "played", {})
    Recorder(tmp_path / "run", {"model": "one"}, hidden=True).close()
    Recorder(tmp_path / "run", {"model": "two"}, hidden=True).close()
    with Run.open(tmp_path / "run") as run:
        assert run.config == {"serve": {"model": "two"}, "redact": True}
    with pytest.raises(UserError, match="redact was True, is False"):
        Recorder(tmp_path / "run", {"model": "two"})


def test_two_servers_cannot_record_into_one_run(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run", {})
    try:
        with pytest.raises(UserError):
            Recorder(tmp_path / "run", {})
    finally:
        recorder.close()
    with pytest.raises(RamifyError, match="closed"):
        asyncio.run(ask(recorder, remote(), user("late")))


KILLED = """
import asyncio, sys
sys.path.insert(0, sys.argv[2])
from test_recording import Recorder, ask, local, user, TEMPLATE

async def main():
    recorder, model = Recorder(sys.argv[1], {}, TEMPLATE), local()
    for i in range(10_000):
        await asyncio.gather(*(ask(recorder, model, user(f"question {i}.{k}"), key=i) for k in range(4)))
        for k in range(4):
            print(f"question {i}.{k}", flush=True)

asyncio.run(main())
"""


def test_a_kill_loses_no_answered_request(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "run"), str(Path(__file__).parent)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ) as child:
        assert child.stdout is not None
        answered = [child.stdout.readline().strip() for _ in range(30)]
        child.send_signal(signal.SIGKILL)
        answered += [line.strip() for line in child.stdout if line.endswith("\n")]
    with Run.open(tmp_path / "run") as run:
        prompts = {n.text: n.id for n in run.each(Node) if n.role == "user"}
        replied = {n.parent for n in run.each(Node) if n.index >= 0}
    assert all(answered)
    assert set(answered) <= set(prompts)
    assert {prompts[text] for text in answered} <= replied


SECRETS = {
    "mail": "ana.perez+x@mail.example.org",
    "key": "sk-proj-abcdEFGH1234567890abcd",
    "phone": "+34 (612) 345-678",
    "card": "4111 1111 1111 1111",
    "token": "ghp_abcdefghijklmnopqrstuvwxyz0123",
    "jwt": "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl",
}


def test_redaction_leaves_nothing_of_what_it_covers_on_the_disk(tmp_path: Path) -> None:
    text = " and ".join(SECRETS.values())
    model = Layout(ScriptedModel(lambda messages, key: f"noted: {messages[-1].text if messages else text}"), TEMPLATE)

    async def work(recorder: Recorder) -> None:
        first = (await ask(recorder, model, SYSTEM, user(f"write to {text} please")))[0]
        await ask(recorder, model, SYSTEM, user(f"write to {text} please"), as_message(first), user("continue"), key=2)
        prefix = Prefix(np.array(CharTokenizer().encode(text), np.int32))
        (completion,) = await model.sample(prefix, 1, Sampling(), [1])
        await recorder(Exchange("c", "completions", model.identity, (prefix,), Sampling(), ((1,),), ((completion,),)))

    with record(tmp_path / "run", work, template=TEMPLATE, hidden=True) as run:
        assert len(run.trees()) == 2  # the second request continued in the first's tree, though both were redacted
        nodes = list(run.each(Node))
        assert any("[e-mail] and [key] and [number]" in n.text for n in nodes)
        assert [n.tokens is None for n in nodes if n.role == "system"] == [False]
        spelled = " ".join(CharTokenizer().decode(n.tokens.tolist()) for n in nodes if n.tokens is not None)
    raw = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    for name, secret in SECRETS.items():
        assert secret.encode() not in raw, name
        assert secret not in spelled, name


@pytest.mark.parametrize(
    "text", ["in 2026 there were 1,234,567.89 of 3.14159", "10:45:00 on 2026-11-22", "node 0x3fffffff", "a-b_c@", "v1.2.3"]
)
def test_redaction_leaves_ordinary_numbers(text: str) -> None:
    assert scrub(text) == text


@given(st.text(max_size=200))
@settings(max_examples=60, deadline=None)
def test_redaction_is_stable(text: str) -> None:
    assert scrub(scrub(text)) == scrub(text)
