"""Servers that others wrote: transformers serve on a checkpoint made here,
and vLLM where RAMIFY_TEST_VLLM says one is running."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from model_server import serving

import ramify
from ramify.base.errors import NeedsError
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.env.builtin.chain import ChainEnvironment
from ramify.env.builtin.household import HouseholdEnvironment
from ramify.model.chat import train_tokenizer
from ramify.model.endpoint import HttpModel
from ramify.model.http import ProviderError
from ramify.model.middleware import wrap
from ramify.model.probe import probe
from ramify.model.protocol import Prefix, Sampling
from ramify.rollout.pins import Pins
from ramify.testing import check_model
from ramify.trace.message import Message
from ramify.web.api import Api
from ramify.web.limits import Guard, Slots
from ramify.web.recording import Recorder

pytestmark = pytest.mark.slow
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% "
    "endif %}"
)
HELLO = Prefix(messages=(Message("user", "go to the hall"),))


def make_checkpoint(folder: Path) -> Path:
    tokenizer = train_tokenizer(["go to the hall and take the red key"] * 4, 300)
    shape = {"width": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_size": 8, "ffn": 48, "context": 512}
    model = TinyLM(TinyConfig(vocab=tokenizer.size, eos=(tokenizer.token_id("<|end|>"),), **shape), seed=0)
    model.save(folder, tokenizer)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, "eos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def free_port() -> int:
    """A port below those that the system hands out, so that no connection takes it in the seconds before the server does."""
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        with contextlib.suppress(OSError), socket.socket() as free:
            free.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """URL of ``transformers serve`` and the checkpoint, which is the model's name there."""
    folder = make_checkpoint(tmp_path_factory.mktemp("checkpoint"))
    cache = tmp_path_factory.mktemp("hub")  # without the folder its list of models is a 500
    port = free_port()
    command = [
        str(Path(sys.executable).parent / "transformers"), "serve", "--device", "cpu", "--host", "127.0.0.1", "--port",
        str(port),
    ]  # fmt: skip
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    with (cache / "log").open("wb") as log:
        process = subprocess.Popen([*command, str(folder)], env=environment, stdout=log, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}/v1"
    try:
        deadline = time.monotonic() + 300
        while not probe(url)["reachable"]:
            if process.poll() is not None or time.monotonic() > deadline:
                output = (cache / "log").read_text(errors="replace")
                if "No module named" in output or "pip install" in output:
                    pytest.skip("transformers[serving] is not installed: NO REAL CHAT SERVER IS TESTED")
                pytest.fail(f"transformers serve did not start: {output[-2000:]}")
            time.sleep(0.5)
        yield url, folder
    finally:
        process.terminate()
        process.wait(100)


def test_a_chat_with_transformers_serve(served: tuple[str, Path], tmp_path: Path) -> None:
    url, folder = served
    model = HttpModel(url, str(folder))
    assert model.capabilities <= {"seeds", "grammar", "penalties"}  # the latter two by name
    assert check_model(model) == []
    (completion,) = asyncio.run(model.sample(HELLO, 1, Sampling(max_tokens=5), [3]))
    assert completion.tokens is None
    assert (completion.stop, completion.data and completion.data["usage"]["completion_tokens"]) == ("length", 5)
    short = Sampling(max_tokens=4)
    attempts = ramify.play(
        f"chat:{folder}@{url}", "chain", ChainEnvironment().task_set("eval", 1), attempts=2, out=tmp_path / "r", sampling=short
    )
    assert [a.failure for a in attempts] == [None, None]
    assert all(turn.node.tokens is None for attempt in attempts for turn in attempt.turns)


def test_transformers_serve_takes_no_token_ids_and_that_is_one_sentence(served: tuple[str, Path]) -> None:
    url, folder = served
    model = HttpModel(url, str(folder), "completions", tokenizer=folder)
    assert model.capabilities == frozenset()
    with pytest.raises(NeedsError, match="takes and returns no token ids"):
        model.check(Sampling())


def test_transformers_serve_has_no_such_model(served: tuple[str, Path]) -> None:
    with pytest.raises(ProviderError):
        _ = HttpModel(served[0] + "?retries=0", str(served[1] / "nothing")).capabilities


def test_a_gateway_with_rules_in_front_of_transformers_serve(served: tuple[str, Path], tmp_path: Path) -> None:
    """Its own fields pass and its answers come back as they are: as asked directly with the rules' block in the messages."""
    (tmp_path / "rules.txt").write_text("Take the red key.")
    block = Pins(["Take the red key."]).block()
    url, folder = served
    user = {"role": "user", "content": "go to the hall"}
    settings: dict[str, Any] = {"model": str(folder), "max_tokens": 5, "temperature": 0.0, "stream": True}

    def read(base: str, messages: Any) -> list[Any]:
        with openai.OpenAI(base_url=base, api_key="any", max_retries=0) as client:
            events = [event.model_dump() for event in client.chat.completions.create(messages=messages, **settings)]
        return [(event["model"], event["usage"], event["choices"]) for event in events]

    recorder = Recorder(tmp_path / "run", {})
    api = Api(wrap(HttpModel(url, str(folder)), [f"pins:{tmp_path}/rules.txt"]), str(folder), Slots(8, 0), recorder)
    with serving(Guard(api.app(), "127.0.0.1")) as gateway:
        passed = read(gateway, [user])
    recorder.close()
    notes = [choice.pop("ramify") for _, _, choices in passed for choice in choices if "ramify" in choice]
    assert notes == [{"pins": {"reinserted": ["Take the red key."]}}]
    assert passed == read(url, [{"role": "system", "content": block}, user])


@pytest.fixture
def vllm() -> HttpModel:
    """``RAMIFY_TEST_VLLM=http://127.0.0.1:8000/v1?tokenizer=FOLDER``; the first model it lists."""
    url = os.environ["RAMIFY_TEST_VLLM"]
    found = probe(url)
    assert found["ok"], found
    return HttpModel(url, found["models"][0], "completions")


needs_vllm = pytest.mark.skipif(
    not os.environ.get("RAMIFY_TEST_VLLM"), reason="RAMIFY_TEST_VLLM is not set: NO REAL SERVER WITH TOKEN IDS IS TESTED"
)


@needs_vllm
def test_completions_with_vllm_pass_the_battery(vllm: HttpModel) -> None:
    assert {"tokens", "continue", "logprobs", "prompt_logprobs", "seeds"} <= vllm.capabilities
    assert check_model(vllm, tolerance=2e-2) == []


@needs_vllm
def test_vllm_scores_what_it_sampled_and_bans_what_it_must_not(vllm: HttpModel) -> None:
    prefix = Prefix(np.array(vllm.tokenizer.encode("go to the"), np.int32))
    settings: Any = {"max_tokens": 12}
    (completion,) = asyncio.run(vllm.sample(prefix, 1, Sampling(**settings), [4]))
    assert completion.tokens is not None
    assert prefix.tokens is not None
    (scores,) = asyncio.run(vllm.logprobs([np.concatenate([prefix.tokens, completion.tokens])]))
    np.testing.assert_allclose(scores.logprobs[len(prefix.tokens) :], completion.logprobs, atol=2e-2)
    banned = tuple(set(completion.tokens.tolist()))
    (other,) = asyncio.run(vllm.sample(prefix, 1, Sampling(**settings, ban=banned), [4]))
    assert other.tokens is not None
    assert not set(other.tokens.tolist()) & set(banned)
    word = completion.text[2:4]
    (stopped,) = asyncio.run(vllm.sample(prefix, 1, Sampling(**settings, stop_texts=(word,)), [4]))
    assert word in stopped.text
    vllm.check(Sampling(top_k=3))


@needs_vllm
def test_a_rollout_with_vllm(vllm: HttpModel, tmp_path: Path) -> None:
    name = f"completions:{vllm.model}@{os.environ['RAMIFY_TEST_VLLM']}"
    tasks = list(HouseholdEnvironment().task_set("eval", 1))
    (attempt,) = ramify.play(name, "household", tasks, out=tmp_path / "r")
    assert attempt.failure is None
    assert attempt.turns[0].node.sampled_tokens > 0
