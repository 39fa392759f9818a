"""The audit forks at a forbidden call behind a dropped rule: is it the missing rule, or would the agent have broken it anyway?"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from ramify.base.errors import EXIT_INTERRUPTED, InfrastructureError
from ramify.cli.main import main
from ramify.jobs.play import play
from ramify.model.scripted import ScriptedModel
from ramify.trace.db import Run
from ramify.trace.integrity import check_run
from ramify.trace.node import Node
from tests.methods.governance.office import RULE, WINDOW, OfficeEnvironment
from tests.methods.governance.test_lost_rules import PREDICATE, logged, session

HERE = "factory:tests.methods.governance.office"
N = 12


def played(folder: Path, agent: str, attempts: int = 4) -> Path:
    """A run of the office by the agent of that name, and the rules beside it."""
    folder.mkdir(exist_ok=True)
    (folder / "rules.json").write_text(json.dumps([{"text": RULE, "predicate": PREDICATE}]), encoding="utf-8")
    tasks = OfficeEnvironment().task_set("eval", 1)
    out, model = folder / agent, f"{HERE}:{agent}"
    shortened = {"compactor": "recency-truncate", "window": WINDOW}
    play(model, f"{HERE}:OfficeEnvironment", tasks, attempts=attempts, out=out, sampling={"max_tokens": 400}, **shortened)
    return out


def audit(run: Path, *words: object) -> int:
    return main(["governance", "audit", *map(str, (run, "--rules", run.parent / "rules.json", *words))])


def told(run: Path, capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    capsys.readouterr()
    assert audit(run, "--fork", N, *words, "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def nodes(run: Path) -> int:
    with Run.open(run) as opened:
        return sum(1 for _ in opened.each(Node))


@pytest.mark.parametrize("agent", ["careful", "careful_with_tokens"])
def test_an_agent_that_keeps_what_it_sees_is_named_and_the_same_command_loads(
    agent: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = played(tmp_path, agent)
    before = nodes(run)
    found = told(run, capsys)
    violations = found["rules"][0]["forbidden"]
    forks = found["forks"]["forks"]
    assert 2 <= violations == len(forks)
    assert found["forks"]["left_out"] == []
    for one in forks:
        with_rule, was = one["restored"], one["as_it_was"]
        assert (with_rule["n"], was["n"], with_rule["failed"], was["failed"]) == (N, N, 0, 0)
        assert with_rule["k"] <= 5 < 8 <= was["k"], "one in ten, nine in ten"
        assert with_rule["interval"][0] <= with_rule["value"] <= with_rule["interval"][1]
        assert one["p"] <= one["corrected"] <= 0.05
        assert one["found"]
    assert nodes(run) >= before + 2 * N * violations
    with Run.open(run) as opened:
        named = [one for one in opened.findings(maker="governance audit") if one.name == "missing rule"]
        assert {one.node for one in named} == {one["node"] for one in forks}
        restored = [node for node in opened.each(Node) if node.id not in (one["node"] for one in forks) and node.context]
        shown = [opened.shown(node.id).messages for node in restored]
        assert any(said[0].role == "system" and said[0].text.endswith(RULE) for said in shown)
    assert check_run(run) == []
    after = nodes(run)

    async def silent(*_: object) -> None:
        raise InfrastructureError("engine", "asked again")

    monkeypatch.setattr(ScriptedModel, "sample", silent)
    assert told(run, capsys) == found, "what was played is neither played again nor audited itself"
    assert nodes(run) == after
    assert audit(run, "--fork", N, "--out", tmp_path / "report.md") == 0
    text, one = capsys.readouterr().out, forks[0]
    sentence = f"the rule restored: {one['restored']['k']} of {N} break it"
    assert sentence in text
    assert f"{one['as_it_was']['k']} of {N} as it was" in text
    assert sentence in (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "missing rule" in "".join(finding.name for finding in _findings(run))


def _findings(run: Path) -> list[Any]:
    with Run.open(run) as opened:
        return opened.findings(maker="governance audit")


def test_an_agent_that_breaks_the_rule_either_way_is_not_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = played(tmp_path, "careless", 8)
    found = told(run, capsys)
    forks = found["forks"]["forks"]
    assert len(forks) == found["rules"][0]["forbidden"] >= 2
    assert not any(one["found"] for one in forks)
    assert all(0 < one[arm]["k"] < N for one in forks for arm in ("restored", "as_it_was")), "neither always nor never"
    assert "nothing stands out: at none of" in found["verdict"]
    assert not [one for one in _findings(run) if one.name == "missing rule"]


def test_where_nothing_was_broken_or_nobody_can_play_on_a_sentence_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = played(tmp_path, "obedient", 2)
    assert "no call is known to break a rule" in told(run, capsys)["forks"]["verdict"]
    log = logged(session(), tmp_path / "log.jsonl")
    found = told(log, capsys)
    assert (found["rules"][0]["forbidden"], found["forks"]["forks"]) == (1, [])
    assert "is not a run" in found["verdict"]
    imported = tmp_path / "imported"
    assert main(["import", str(log), "--run", str(imported)]) == 0
    found = told(imported, capsys)
    assert found["rules"][0]["forbidden"] == 1
    assert "name them (--model, --env" in found["verdict"]
    assert any(one.name == "forbidden call" for one in _findings(imported))
    assert audit(run, "--model", "builtin") == 2
    assert "--fork" in capsys.readouterr().err


def test_an_interrupted_fork_continues_and_its_half_is_not_audited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, run = (played(folder, "careful", 2) for folder in (tmp_path / "a", tmp_path / "b"))
    found, before, asked = told(whole, capsys), nodes(run), 0
    inner = ScriptedModel.sample

    async def sample(*given: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == N:
            signal.raise_signal(signal.SIGINT)
        return await inner(*given)

    with monkeypatch.context() as patched:
        patched.setattr(ScriptedModel, "sample", sample)
        assert audit(run, "--fork", N) == EXIT_INTERRUPTED
    assert "the same command continues" in capsys.readouterr().err
    assert before < nodes(run) < nodes(whole)
    assert told(run, capsys) == found
    assert nodes(run) == nodes(whole)


def test_an_agent_named_for_a_log_is_not_shown_another_past(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log holds no environment that comes to the same place: each call that cannot be played is told of, none is counted."""
    run = tmp_path / "imported"
    played(tmp_path, "obedient", 1)
    log = logged(session(), tmp_path / "log.jsonl")
    assert main(["import", str(log), "--run", str(run)]) == 0
    found = told(run, capsys, "--model", f"{HERE}:careful", "--env", f"{HERE}:OfficeEnvironment")
    assert (found["forks"]["forks"], len(found["forks"]["left_out"])) == ([], 1)
    assert "no rule was restored" in found["verdict"]
