"""Checkpoints with chat templates of all kinds through ``ramify rollout``, ``fork``, ``resume`` and ``improve``.

What transformers renders of the messages before a reply is the truth:
the tokens recorded as shown to the model must say exactly that.
"""

from __future__ import annotations

import asyncio
import datetime
import importlib.util
import json
import re
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from chat_templates import CALL, checkpoint, truths

from ramify.cli.main import main
from ramify.cli.serve import EngineOptions, find_served
from ramify.engine.checkpoints import chat_template
from ramify.model.protocol import Prefix, Sampling
from ramify.model.tokenizer import HfTokenizer
from ramify.rollout.token_traces import read_problems
from ramify.trace.db import Run
from ramify.trace.message import Message
from ramify.trace.node import Node
from ramify.train.batch import rows_from_path
from ramify.web.api import Api
from ramify.web.limits import Slots
from ramify.web.recording import Recorder

_TURN = "{{ '<|im_start|>' + m.role + '\\n' + text + '<|im_end|>\\n' }}"
_REPLY = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
ADDS = "{{ bos_token }}{% for m in messages %}{% set text = m.content %}" + _TURN + "{% endfor %}" + _REPLY
FORGETS = (
    "{% for m in messages %}{% set text = m.content %}{% if m.role == 'assistant' and '</think>' in text %}"
    "{% set text = text.split('</think>')[-1].lstrip('\\n') %}{% endif %}" + _TURN + "{% endfor %}" + _REPLY
)
DATED = (
    "{{ '<|im_start|>system\\nToday is ' + strftime_now('%d %B %Y') + '<|im_end|>\\n' }}"
    "{% for m in messages %}{% set text = m.content | trim %}" + _TURN + "{% endfor %}" + _REPLY
)
MERGES = (  # as Gemma 3: the system's words become the user's
    "{% set first = messages[0].content + '\\n\\n' if messages[0].role == 'system' else '' %}"
    "{% for m in (messages[1:] if first else messages) %}{% set text = (first if loop.first else '') + m.content | trim %}"
    + _TURN
    + "{% endfor %}"
    + _REPLY
)
MOVES = (  # as Mistral: the system's words go before the newest message, where they were not a turn ago
    "{% for m in messages %}{% if m.role != 'system' %}"
    "{% set text = (messages[0].content + '\\n' if loop.last and messages[0].role == 'system' else '') + m.content %}"
    + _TURN
    + "{% endif %}{% endfor %}"
    + _REPLY
)
CALLS_APART = (  # as gpt-oss: a tool's result wants to be told which call it answers
    "{% set ns = namespace(call='') %}{% for m in messages %}{% set text = m.content %}{% if m.tool_calls %}"
    "{% set ns.call = m.tool_calls[0].function.name %}"
    "{% set text = text + '<call>' + ns.call + ' ' + m.tool_calls[0].function.arguments | tojson + '</call>' %}"
    "{% elif m.role == 'tool' %}{% if not ns.call %}{{ raise_exception('a tool result without a call') }}{% endif %}"
    "{% set text = ns.call + ' says ' + text %}{% endif %}" + _TURN + "{% endfor %}" + _REPLY
)
PARTED = (  # as a model that sees pictures: contents are lists of parts
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% for part in m.content %}{% if part.type == 'text' %}"
    "{{ part.text }}{% else %}<image>{% endif %}{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}" + _REPLY
)
OPENS_THINKING = ADDS.replace("assistant\\n'", "assistant\\n<think>\\n\\n</think>\\n\\n'")  # only for the reply asked for
OWN = {
    "adds": ADDS,
    "forgets": FORGETS,
    "dated": DATED,
    "merges": MERGES,
    "moves": MOVES,
    "calls-apart": CALLS_APART,
    "parted": PARTED,
    "opens-thinking": OPENS_THINKING,
}
PLAY = ["--count", "2", "--attempts", "2", "--max-reply", "8", "--json"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint for each template, made when it is first asked for."""

    class Made(dict[str, Path]):
        def __missing__(self, name: str) -> Path:
            self[name] = checkpoint(tmp_path_factory.mktemp("model") / name, OWN[name])
            return self[name]

    return Made()


def played(model: Path, out: Path, *more: str, env: str = "LookEnvironment") -> list[str]:
    return ["rollout", "--model", f"hf:{model}", "--env", f"factory:chat_templates:{env}", *PLAY, "--out", str(out), *more]


def replies(run: Run) -> list[Node]:
    found = {}
    for info in run.trees():
        tree = run.tree(info.name)
        found |= {node.id: node for leaf in tree.leaves() for node, _ in tree.path(leaf.id).segments if node.role == "assistant"}
    return list(found.values())


def shown(run: Run, node: Node, tokenizer: HfTokenizer) -> tuple[str, np.ndarray]:
    """What the model was shown before it sampled the first token of ``node``: text and tokens."""
    before = run.shown(node.id).tokens
    assert before is not None
    assert node.sampled is not None
    tokens = np.concatenate([before, node.tokens[: int(np.argmax(node.sampled))]])
    return tokenizer.decode(tokens.tolist()), tokens


def path_messages(run: Run, node: Node) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in run.path(str(node.parent)).upto(node.offset).messages()]


def agree(folder: Path, model: Path) -> list[Node]:
    """Checks every reply of a run against transformers; the replies."""
    tokenizer = HfTokenizer.load(model)
    with Run.open(folder) as run:
        nodes = [node for node in replies(run) if node.opens]
        for node in nodes:
            text, tokens = shown(run, node, tokenizer)
            assert text in truths(model, path_messages(run, node)), node.id
            if model.name in OWN:  # content spells special tokens; only the template puts them
                ends = sum(tokenizer.decode([token]) == "<|im_end|>" for token in tokens.tolist())
                assert ends == text.count("<|im_start|>") - 1
        return nodes


def learnable(folder: Path) -> None:
    """Every sampled token is in one training row, behind what the model was shown when it sampled it."""
    with Run.open(folder) as run:
        for info in run.trees():
            tree = run.tree(info.name)
            for leaf in tree.leaves():
                path = tree.path(leaf.id)
                nodes = [node for node, _ in path.segments if node.role == "assistant"]
                rows = rows_from_path(path, run.node, run.context)
                assert sum(int(row.mask.sum()) for row in rows) == sum(node.sampled_tokens for node in nodes)
                for node in nodes:
                    before, end = run.shown(node.id).tokens, int(node.sampled.nonzero()[0][-1]) + 1
                    after = [*before.tolist(), *node.tokens[:end].tolist()]
                    mine = [row for row in rows if row.tokens[: len(after)].tolist() == after]
                    assert any(row.mask[len(before) : len(after)].sum() == node.sampled_tokens for row in mine)


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_a_model_is_shown_what_transformers_renders(verb, here: Path, models: dict[str, Path], name: str) -> None:
    done = verb(*played(models[name], here / "run"))
    assert (done.code, done.json["failed"]) == (0, 0), done.err
    nodes = agree(here / "run", models[name])
    assert any(CALL in node.text for node in nodes)
    assert any(node.context for node in nodes) == (name not in ("adds", "parted"))
    learnable(here / "run")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["forgets", "moves", "calls-apart"])
def test_a_run_continues_to_the_same_trees(verb, here: Path, models: dict[str, Path], name: str) -> None:
    whole, cut = here / "whole", here / "cut"
    assert verb(*played(models[name], whole)).code == 0
    assert verb(*played(models[name], cut, "--concurrency", "1", "--budget.calls", "6")).code == 3
    assert verb(*played(models[name], cut)).code == 0
    assert verb("resume", cut, "--json").code == 0
    with Run.open(whole) as one, Run.open(cut) as other:
        assert [one.tree(info.name).hash for info in one.trees()] == [other.tree(info.name).hash for info in other.trees()]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["forgets", "moves", "merges"])
def test_forks_see_what_the_reply_saw(verb, here: Path, models: dict[str, Path], name: str) -> None:
    run = here / "run"
    assert verb(*played(models[name], run)).code == 0
    tokenizer = HfTokenizer.load(models[name])
    with Run.open(run) as opened:
        node = max(replies(opened), key=lambda n: (len(path_messages(opened, n)), n.sampled_tokens))
        _, before = shown(opened, node, tokenizer)
        head = int(np.argmax(node.sampled))
        old = {one.id for one in replies(opened)}
    inside = verb("fork", run, f"{node.id}:{head + 1}", "--n", "2", "--json")
    assert inside.code == 0, inside.err
    (here / "rule.json").write_text(json.dumps({"rule": {"add": "Answer in one word."}}))
    ruled = verb("fork", run, f"{node.id}:{head}", "--n", "2", "--edit", here / "rule.json", "--json")
    assert ruled.code == 0, ruled.err
    (here / "more.json").write_text(json.dumps({"append": " so"}))
    assert verb("fork", run, f"{node.id}:{head + 1}", "--n", "2", "--edit", here / "more.json", "--json").code == 0
    assert verb("fork", run, f"{node.id}:{head + 1}", "--edit", here / "rule.json", "--after", "keep", "--json").code == 0
    with Run.open(run) as opened:
        new = [one for one in replies(opened) if one.id not in old and one.provenance]
        here_too = [one for one in new if one.parent == node.id and one.offset == head + 1]
        assert len(here_too) >= 2
        for one in here_too:  # what the reply saw, and what is kept of it
            assert opened.shown(one.id).tokens.tolist() == [*before.tolist(), int(node.tokens[head])]
        edited = [
            one
            for one in new
            if one.parent == node.id and one.offset == head and "Answer in one word." in read(opened, one, tokenizer)
        ]
        assert edited
        history = path_messages(opened, node)
        wanted = truths(models[name], [(history[0][0], history[0][1] + "\nAnswer in one word."), *history[1:]])
        assert all(read(opened, one, tokenizer) in wanted for one in edited)
    agree(run, models[name])


def read(run: Run, node: Node, tokenizer: HfTokenizer) -> str:
    return tokenizer.decode(run.shown(node.id).tokens.tolist())


@pytest.mark.slow
def test_workers_render_the_same(verb, here: Path, models: dict[str, Path]) -> None:
    short = ["--compactor", "recency-truncate", "--window", "460"]  # rendered and compacted
    assert verb(*played(models["moves"], here / "one", *short)).code == 0
    assert verb(*played(models["moves"], here / "two", *short, "--backend", "processes:2")).code == 0
    with Run.open(here / "one") as one, Run.open(here / "two") as two:
        assert any(node.data.get("history") for node in replies(one))
        assert [one.tree(info.name).hash for info in one.trees()] == [two.tree(info.name).hash for info in two.trees()]


@pytest.mark.slow
def test_the_agent_learns_behind_what_it_was_shown(verb, here: Path, models: dict[str, Path]) -> None:
    sizes = [
        "--updates", "1", "--tokens", "200", "--eval-episodes", "2", "--tasks-per-update", "2", "--train-tasks", "4",
        "--max-reply", "8", "--tree.roots", "2",
    ]  # fmt: skip
    own = here / "own.jinja"
    own.write_text(FORGETS)
    done = verb(
        "improve", "--model", f"hf:{models['adds']}", "--env", "factory:chat_templates:LookEnvironment", *sizes,
        "--chat-template", own, "--out", here / "run", "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert any(node.context for node in agree(here / "run", here / "run" / "agent"))
    assert (here / "run" / "agent" / "chat_template.jinja").read_text() == FORGETS
    own.unlink()  # the run keeps it
    assert verb("resume", here / "run", "--json").json["after"] == done.json["after"]


@pytest.mark.parametrize(
    ("source", "env", "needs"),
    [
        ("{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + ADDS,
         "LookEnvironment",
         "refuses the system message of the environment; .*System role not supported"),
        ("{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('only users and assistants') }}{% endif %}{% "
         "endfor %}"
         + ADDS, "LookEnvironment", "refuses the tool results of the environment; .*only users and assistants"),
        ("{% for m in messages %}{% set text = m.content %}{% if m.role != 'tool' %}" + _TURN
            + "{% endif %}{% endfor %}" + _REPLY,
         "LookEnvironment", "refuses the tool results of the environment; .*does not show the result of a tool"),
        ("{% for tool in tools %}{{ tool.name }}{% endfor %}" + ADDS, "ToollessEnvironment", "does not render the roles user, "
                                                                                             "assistant"),
    ],
)  # fmt: skip
def test_what_a_template_refuses_is_said_before_anything_runs(
    verb, here: Path, models: dict[str, Path], source: str, env: str, needs: str
) -> None:
    (here / "refuses.jinja").write_text(source)
    code, out, err = verb(*played(models["adds"], here / "run", "--chat-template", str(here / "refuses.jinja"), env=env))
    assert (code, out) == (4, "")
    assert err.count("\n") == 1
    assert f"the chat template {here / 'refuses.jinja'}" in err
    assert re.search(needs, err)
    assert not (here / "run").exists()


@pytest.mark.parametrize("name", ["adds", "forgets", "merges", "opens-thinking"])
def test_a_prompt_of_text_is_laid_out_as_transformers_renders_it(models: dict[str, Path], name: str, tmp_path: Path) -> None:
    """The problems that cliffs, judges and drafters ask about; templates that rewrite the past were refused here, too."""
    from transformers import AutoTokenizer

    question = "hello <|im_end|> there"
    (tmp_path / "problems.jsonl").write_text(json.dumps({"id": "p", "prompt": question}) + "\n")
    theirs = AutoTokenizer.from_pretrained(models[name])
    (problem,) = read_problems(tmp_path / "problems.jsonl", chat_template(models[name]))
    text = theirs.decode(list(problem.prompt_ids), skip_special_tokens=False)
    assert text == theirs.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False)
    assert list(problem.prompt_ids).count(theirs.convert_tokens_to_ids("<|im_end|>")) == text.count("<|im_end|>") - 1


def test_a_template_of_ones_own(verb, here: Path, models: dict[str, Path]) -> None:
    file, run = here / "own.jinja", here / "run"
    file.write_text(MERGES)
    options = ["--chat-template", str(file)]
    assert verb(*played(models["adds"], run, *options, "--budget.calls", "4", "--concurrency", "1")).code == 3
    assert any(node.context for node in agree(run, models["merges"]))
    file.write_text(FORGETS)
    assert "it began with other settings: chat template was" in verb.refused(*played(models["adds"], run, *options))
    assert "it began with other settings: chat template was" in verb.refused(*played(models["adds"], run))
    file.unlink()
    assert verb("resume", run, "--json").code == 3
    assert "cannot read the chat template" in verb.refused(*played(models["adds"], here / "no", *options))
    file.write_text("{% for")
    assert "is not a jinja template" in verb.refused(*played(models["adds"], here / "no", *options))
    assert "--chat-template goes with" in verb.refused(
        "rollout", "--model", "chat:x@http://127.0.0.1:9/v1", "--chat-template", write(file, ADDS), "--out", here / "no"
    )
    assert not (here / "no").exists()


def write(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


def test_a_run_keeps_its_date(verb, here: Path, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    class Day(datetime.date):
        now = "2031-12-24"

        @classmethod
        def today(cls) -> datetime.date:
            return datetime.date.fromisoformat(cls.now)

    clock = SimpleNamespace(date=Day, datetime=datetime.datetime, time=datetime.time)
    monkeypatch.setattr("ramify.model.chat.datetime", clock)
    run, tokenizer = here / "run", HfTokenizer.load(models["dated"])
    assert verb(*played(models["dated"], run, "--budget.calls", "6", "--concurrency", "1")).code == 3
    Day.now = "2032-01-01"
    assert verb(*played(models["dated"], run)).code == 0
    assert verb("resume", run, "--json").code == 0
    with Run.open(run) as opened:
        node = replies(opened)[-1].id
    assert verb("fork", run, node, "--n", "1", "--json").code == 0
    with Run.open(run) as opened:
        assert {read(opened, node, tokenizer).split("<|im_end|>")[0] for node in replies(opened)} == {
            "<|im_start|>system\nToday is 24 December 2031"
        }


def shipped() -> list[Path]:
    found = importlib.util.find_spec("trl")
    return sorted((Path(str(found.origin)).parent / "chat_templates").glob("*.jinja")) if found and found.origin else []


@pytest.mark.slow
@pytest.mark.skipif(not shipped(), reason="TRL, which ships the templates, is not installed")
@pytest.mark.parametrize("template", shipped(), ids=lambda path: path.stem)
def test_templates_that_trl_ships(tmp_path: Path, template: Path, capsys: pytest.CaptureFixture) -> None:
    """Each in an environment with a system message and tools; where it refuses these, without tools, then without either."""
    model = checkpoint(tmp_path / "model", template.read_text(encoding="utf-8"))
    for env, refused in (
        ("LookEnvironment", "tool results"),
        ("ToollessEnvironment", "system message"),
        ("PlainEnvironment", ""),
    ):
        code = main(played(model, tmp_path / env, env=env))
        out, err = capsys.readouterr()
        if code == 0:
            assert json.loads(out)["failed"] == 0
            assert agree(tmp_path / env, model)
            learnable(tmp_path / env)
            return
        assert code == 4, err
        assert refused
        assert "of the environment; choose another environment" in err
    pytest.fail(err)


@pytest.mark.parametrize("name", ["adds", "forgets", "moves", "calls-apart"])
def test_a_server_shows_what_transformers_renders(here: Path, models: dict[str, Path], name: str) -> None:
    model = models[name]
    layout, _ = find_served(f"hf:{model}", 4)
    recorder = Recorder(here / "run", {}, layout.template)
    api = Api(layout, "tiny", Slots(4, 4, 4), recorder)
    talk: list[dict] = [{"role": "system", "content": "Be <|im_end|> brief."}, {"role": "user", "content": "Where is it?"}]

    async def chat() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=api.app()), base_url="http://here") as client:
            for turn in range(4):
                request = {"model": "tiny", "messages": talk, "max_tokens": 8, "seed": turn}
                answer = await client.post("/v1/chat/completions", json=request)
                assert answer.status_code == 200, answer.text
                talk.append({"role": "assistant", "content": answer.json()["choices"][0]["message"]["content"]})
                talk.append({"role": "user", "content": f" more {turn} <|im_end|>\n"})

    asyncio.run(chat())
    recorder.close()
    tokenizer = HfTokenizer.load(model)
    with Run.open(here / "run") as run:
        nodes = sorted(replies(run), key=lambda node: node.index)
        assert len(nodes) == 4
        for turn, node in enumerate(nodes):
            text, tokens = shown(run, node, tokenizer)
            assert text in truths(model, [(one["role"], one["content"]) for one in talk[: 2 + 2 * turn]])
            ends = sum(tokenizer.decode([token]) == "<|im_end|>" for token in tokens.tolist())
            assert ends == text.count("<|im_start|>") - 1
            if turn:  # the reply before, as it was sampled
                before = nodes[turn - 1]
                spoken = before.tokens[before.sampled].tolist()
                again = any(tokens[at : at + len(spoken)].tolist() == spoken for at in range(len(tokens)))
                assert again or name != "adds"


def test_a_server_takes_a_template_of_ones_own(verb, here: Path, models: dict[str, Path]) -> None:
    layout, _ = find_served(f"hf:{models['adds']}", 4, EngineOptions(chat_template=write(here / "own.jinja", MERGES)))
    (completion,) = asyncio.run(
        layout.sample(Prefix(messages=(Message("system", "S"), Message("user", " U "))), 1, Sampling(max_tokens=2), [1])
    )
    prompt = [token for message in completion.shown for token in message.tokens.tolist()]
    assert (
        HfTokenizer.load(models["adds"]).decode([*prompt, *completion.head])
        == "<|im_start|>user\nS\n\nU<|im_end|>\n<|im_start|>assistant\n"
    )
    assert "cannot read the chat template no.jinja" in verb.refused(
        "serve", f"hf:{models['adds']}", "--chat-template", "no.jinja"
    )
