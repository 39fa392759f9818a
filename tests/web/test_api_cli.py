from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import openai
import pytest
from api_server import NAME, client, served
from zoo import save_checkpoint

from ramify.cli.main import main
from ramify.cli.serve import EngineOptions, _welcome, find_served
from ramify.engine.local import LocalModel
from ramify.methods.dspark.drafter_files import for_target, save_drafter

HELLO: list[Any] = [{"role": "user", "content": "go to the hall"}]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["builtin", "--redact"], 2, "--redact is about what --record keeps"),
        (["builtin", "--host", "0.0.0.0"], 2, "without a token"),
        (["nothing"], 2, "unknown model 'nothing'"),
        (["hf:nowhere"], 2, "there is no folder nowhere"),
        (["chat:m@http://127.0.0.1:1/v1", "--drafter", "d"], 2, "names one elsewhere"),
        (["builtin", "--middleware", "pinz"], 2, "did you mean 'pins'"),
        (["builtin", "--drafter", "nowhere"], 2, "nowhere"),
        (["builtin", "--pass-key"], 2, "--pass-key sends clients' keys to an endpoint"),
        (["anthropic:m@http://10.0.0.1/v1", "--pass-key"], 2, "clients' keys to 10.0.0.1 unencrypted"),
        (["builtin", "--verify", "closely"], 2, "--verify is coupled or rejection, not 'closely'"),
    ],
)
def test_a_start_that_cannot_be_is_one_sentence(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *arguments]) == code
    printed = capsys.readouterr().err
    assert words in printed
    assert len(printed.splitlines()) == 1


def test_a_run_of_another_verb_is_not_recorded_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["rollout", "--env", "household", "--attempts", "1", "--count", "1", "--out", "runs/played"]) == 0
    before = (tmp_path / "runs" / "played" / "run.sqlite").read_bytes()
    capsys.readouterr()
    assert main(["serve", "builtin", "--record", "played"]) == 2
    assert capsys.readouterr().err == "ramify: runs/played was not made by `ramify serve --record`: choose another folder\n"
    assert (tmp_path / "runs" / "played" / "run.sqlite").read_bytes() == before


@pytest.mark.slow
def test_a_drafter_changes_no_seeded_reply_and_tells_what_came_of_it(tmp_path: Path) -> None:
    plain, _ = find_served("builtin", 4)
    local: Any = getattr(plain, "inner", None)
    assert isinstance(local, LocalModel)
    drafter = for_target(local.module, layers=1, block=4, rank=4)
    save_drafter(drafter, tmp_path / "drafter")
    drafted, gauges = find_served("builtin", 4, EngineOptions(drafter=tmp_path / "drafter", schedule="fixed:3"))
    request: dict[str, Any] = {"model": NAME, "messages": HELLO, "temperature": 1.5, "max_tokens": 16, "logit_bias": {"4": -100}}

    def replies(ai: openai.OpenAI) -> list[str | None]:
        found = ai.chat.completions.create(seed=3, n=3, **request).choices
        events = ai.chat.completions.create(seed=4, stream=True, **request)
        return [*(choice.message.content for choice in found), "".join(event.choices[0].delta.content or "" for event in events)]

    with served(plain) as url, client(url) as ai:
        expected = replies(ai)
    with served(drafted, gauges) as url, client(url) as ai:
        assert replies(ai) == expected
        assert ai.chat.completions.create(**request).choices[0].finish_reason == "length"
        text = urllib.request.urlopen(url.removesuffix("/v1") + "/metrics").read().decode()
    counts = dict(line.split() for line in text.splitlines() if line.startswith("ramify_engine_"))
    assert float(counts["ramify_engine_rounds"]) > 0
    assert 1 <= float(counts["ramify_engine_tau"]) <= 4
    assert 0 <= float(counts["ramify_engine_budget"]) <= 3
    reached, accepted = (
        [float(counts[f'ramify_engine_{name}_at_total{{position="{position}"}}']) for position in range(1, 5)]
        for name in ("reached", "accepted")
    )
    assert reached[0] >= reached[1] >= reached[2]
    assert reached[0] > 0 == reached[3]  # three are drafted of a block of four
    assert sum(accepted) == float(counts["ramify_engine_accepted"])


def test_what_a_request_leaves_open_is_the_checkpoints_own(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, "llama", {"temperature": 0.0, "max_new_tokens": 5})
    model, _ = find_served(f"hf:{tmp_path}", 4)
    with served(model) as url:
        create = client(url).chat.completions.create
        greedy, cold, hot, longer = (
            create(model=NAME, messages=HELLO, seed=seed, **settings)
            for seed, settings in ((1, {}), (2, {}), (2, {"temperature": 1.0}), (2, {"max_tokens": 9}))
        )
    assert greedy.choices[0].message.content == cold.choices[0].message.content != hot.choices[0].message.content
    assert [one.usage.completion_tokens for one in (cold, hot, longer)] == [5, 5, 9]
    assert "temperature 0" in _welcome(url, NAME, "", False, {"temperature": 0.0})


def test_a_made_up_token_is_said_once() -> None:
    text = _welcome("http://127.0.0.1:1/v1", NAME, "a-token-that-was-made-up", True)
    assert text.count("a-token-that-was-made-up") == 1
    assert "export RAMIFY_TOKEN=a-token-that-was-made-up" in text
    assert "Bearer $RAMIFY_TOKEN" in text
    assert "RAMIFY_TOKEN" not in _welcome("http://127.0.0.1:1/v1", NAME, "", False)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_verb_prints_its_address_serves_records_and_ends_in_order(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "ramify.cli.main", "serve", "builtin", "--port", "0", "--json", "--token", "--record", "kept",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, text=True) as process:
        try:
            assert process.stdout is not None
            printed = json.loads(process.stdout.readline())
            with openai.OpenAI(base_url=printed["url"], api_key=printed["token"], max_retries=0) as ai:
                assert (
                    ai.chat.completions.create(model=printed["model"], messages=HELLO, max_tokens=8).choices[0].message.role
                    == "assistant"
                )
            with (
                openai.OpenAI(base_url=printed["url"], api_key="wrong", max_retries=0) as ai,
                pytest.raises(openai.AuthenticationError),
            ):
                ai.models.list()
            process.send_signal(signal.SIGTERM)
            log = process.communicate(timeout=60)[1]
        finally:
            process.kill()
    assert (process.returncode, log.splitlines()) == (0, ["ramify: every request was answered; the server has ended"])
    shown = subprocess.run(
        [sys.executable, "-m", "ramify.cli.main", "show", "kept", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(shown.stdout)["nodes"] >= 2
