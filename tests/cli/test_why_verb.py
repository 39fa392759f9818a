"""``ramify why`` as a person types it: the headline, the last line of --json, what would have helped,
a fleet, a log alone, mistakes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ramify.base.errors import UserError
from ramify.jobs.why import attempts
from ramify.trace import outcome
from ramify.trace.db import Run

HALL = ("--model", "factory:halls:agent", "--env", "factory:halls:Halls")
TALKER = ("--model", "factory:halls:talker", *HALL[2:])
KEYS = {"tree", "verdict", "node", "action", "before", "after", "alternatives", "samples", "counterfactual", "caveats", "steps"}


@pytest.fixture
def halls(verb, here: Path) -> Path:
    """Six attempts at each of two halls, some of which fail at the second door."""
    assert verb("rollout", *HALL, "--count", 2, "--attempts", 6, "--out", "run", "--json").code == 0
    return here / "run"


def test_the_step_and_what_would_have_helped(verb, halls: Path) -> None:
    text = verb("why", halls).out
    first, *rest = text.splitlines()
    assert first.startswith("Lost at `right`: success ")
    assert "attempts chose `left`: 100%." in first
    assert any(line.split()[:1] == ["2"] and line.endswith("<-") for line in rest)
    assert "where the attempts of all tasks part" in text
    assert "`ramify show run --web`" in rest[-1]
    change = next(line for line in rest if line.startswith("Change it: "))
    result = verb("why", halls, "--json").json
    assert result.keys() >= KEYS
    assert (result["verdict"], result["action"], result["counterfactual"]) == ("step", "right", True)
    assert result["before"].keys() == result["after"].keys() == {"p", "interval", "k", "n", "exact", "failed"}
    assert list(result["alternatives"][0]) == ["action", "n", "p", "interval"]
    assert result["before"]["interval"][0] <= 0.7 <= result["before"]["interval"][1]
    # the command that it names runs, and says that the alternative helps
    words = change.partition("`ramify ")[2].rstrip("`").split()
    done = verb(*words, "--json").json
    (tried,) = done["do"]
    assert (tried["do"], tried["value"], tried["changed"]["p"]) == ("action", "left", 1.0)
    assert tried["control"]["n"] == 48
    nodes = len(Run.open(halls))
    assert verb(*words, "--json").json == done
    assert len(Run.open(halls)) == nodes
    shown = verb("show", halls).out
    assert "lost here" in shown
    assert "action `left` instead: 48 of 48 succeeded" in shown


def test_a_run_is_opened_once_and_keeps_the_answer(verb, halls: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, chosen, judged = [], [], []

    def open_run(path: Path | str, write: bool = False, real: Any = Run.open) -> Run:
        opened.append(write)
        return real(path, write)

    def counted(calls: list[None], real: Any) -> Any:
        return lambda *given, **more: (calls.append(None), real(*given, **more))[1]

    monkeypatch.setattr(Run, "open", open_run)
    monkeypatch.setattr(attempts, "choose", counted(chosen, attempts.choose))
    monkeypatch.setattr(outcome, "settled", counted(judged, outcome.settled))
    headline = verb("why", halls, "--do", "action").out.splitlines()[0]
    assert opened == [True, True]  # to ask, and to keep what came of it
    assert (len(chosen), len(judged)) == (1, 1)
    assert verb("show", halls, "--html", "page.html").code == 0
    page = (here / "page.html").read_text()
    assert re.sub("`(.*?)`", r"<code>\1</code>", headline).replace("->", "-&gt;") in page
    assert "<h3>success after each step, intervals corrected over the steps</h3>" in page
    assert "what would have helped" in page


def test_every_kind_of_change(verb, halls: Path, here: Path) -> None:
    (here / "edit.json").write_text(json.dumps({"rule": {"add": "Go left."}}))
    do = ["resample", "observation=door 2, closed", "context=edit.json", "policy=factory:halls:agent"]
    done = verb("why", halls, *(word for one in do for word in ("--do", one)), "--n", 16, "--json").json["do"]
    assert [one["do"] for one in done] == ["resample", "observation", "context", "policy"]
    resampled, observed, told, other = done
    assert resampled["control"]["p"] == observed["changed"]["p"] == 0
    assert resampled["changed"]["p"] > 0.3
    assert told["changed"]["n"] == other["changed"]["n"] == 16
    assert other["difference"] == 0  # the same agent at the same positions


def test_where_no_step_stands_out_there_is_nothing_to_change(verb, halls: Path) -> None:
    text = verb("why", halls, "--least", 0.9, "--do", "resample").out
    assert text.startswith("No step stands out: success was ")
    assert "none stands out: nothing was changed" in text
    assert verb("why", halls, "--least", 0.9, "--do", "resample", "--json").json["do"] == []


def test_credit_shared_over_the_steps(verb, halls: Path) -> None:
    text = verb("why", halls, "--least", 0.9).out
    assert text.startswith("No step stands out: success was ")
    command = next(line for line in text.splitlines() if line.startswith("Several steps may have lost it together: "))
    text = verb(*command.partition("`ramify ")[2].rstrip("`").split()).out
    assert "shares of " in text
    assert "walks, intervals corrected over the steps" in text
    result = verb("why", halls, "--share", "--json").json
    assert result.keys() >= {*KEYS, "share"}
    share = result["share"]
    assert list(share) == ["walks", "start", "end", "samples", "steps", "failed", "spent"]
    assert [list(step) for step in share["steps"]] == [["node", "action", "share", "interval", "credited"]] * 3
    assert [step["credited"] for step in share["steps"]] == [False, True, False]
    assert sum(step["share"] for step in share["steps"]) == pytest.approx(share["end"]["p"] - share["start"]["p"])


def test_a_fleet(verb, halls: Path) -> None:
    result = verb("why", halls, "--all", "--json").json
    assert [one["tree"] for one in result["all"]] == sorted({one["tree"] for one in result["all"]})
    assert result["tools"][0]["tool"] == "right"
    assert result["tools"][0]["lost"] == sum(one["verdict"] == "step" for one in result["all"]) > 0
    text = verb("why", halls, "--all").out
    assert "which tool loses most" in text
    assert "have a step that stands out" in text.splitlines()[0]


def test_budgets_and_dry_runs(verb, halls: Path) -> None:
    plan = verb("why", halls, "--dry-run", "--json").json["cost_estimate"]
    assert (plan["attempts"], plan["steps"], plan["samples"], plan["counterfactual"]) == (1, 3, 144, True)
    code, out, err = verb("why", halls, "--samples", 4, "--json")
    assert (code, json.loads(out)["samples"]) == (3, 4)
    assert "larger --samples" in err
    assert verb("why", halls, "--json").code == 0


def test_a_log_alone(verb, here: Path) -> None:
    def attempt(route: str, reward: float) -> dict:
        turns = [{"role": "user", "content": "Which way?"}]
        for word in route.split():
            turns += [{"role": "assistant", "content": word}, {"role": "user", "content": f"you went {word}"}]
        return {"task_id": "hall", "messages": [*turns, {"role": "assistant", "content": "done"}], "reward": reward}

    log = [attempt("on left", 1.0)] * 9 + [attempt("on right", 0.0)] * 9
    (here / "log.jsonl").write_text("".join(json.dumps(one) + "\n" for one in log))
    assert verb("import", "log.jsonl", "--run", "run").code == 0
    first, *rest = verb("why", "run").out.splitlines()
    assert first.startswith("Lost at `right`: success ")
    assert first.endswith("Recorded attempts only: this is not a counterfactual.")
    assert any("by `--model` and `--env`" in line for line in rest)
    result = verb("why", "run", "--json").json
    assert (result["counterfactual"], result["samples"], result["alternatives"][0]["action"]) == (False, 0, "left")
    assert "say what plays" in verb.refused("why", "run", "--share")
    assert "none stands out by forks" in verb.refused("why", "run", "--do", "resample")


def test_an_imported_log_whose_agent_can_run_again(verb, here: Path) -> None:
    """Its rewards still count once the environment has judged continuations: the same command again finds the same attempt."""
    log = []
    for route, reward in (("left right left", 0.0), ("left left left", 1.0)):
        turns = [{"role": "user", "content": "hall train-0"}]
        for i, word in enumerate(route.split(), 1):
            turns += [{"role": "assistant", "content": word}, {"role": "user", "content": f"door {i}"}]
        log.append({"task_id": "train-0", "messages": turns, "reward": reward})
    (here / "log.jsonl").write_text("".join(json.dumps(one) + "\n" for one in log))
    assert verb("import", "log.jsonl", "--run", "run").code == 0
    first = verb("why", "run", *TALKER, "--json").json
    assert (first["verdict"], first["action"], first["counterfactual"]) == ("step", "right", True)
    assert verb("why", "run", *TALKER, "--json").json == first
    shared = verb("why", "run", *TALKER, "--share", "--json").json
    assert [step["credited"] for step in shared["share"]["steps"]] == [False, True, False]
    assert shared["node"] == first["node"]
    assert verb("why", "run", "--json").json["node"] == first["node"]


def test_other_weights_are_told_before_anything_is_sampled(verb, halls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def search(*_: object) -> None:
        raise UserError("sampling begins")

    monkeypatch.setattr("ramify.jobs.why.ask.searched", search)
    assert "sampled by other weights" not in verb("why", halls).err
    failed = verb("why", halls, "--model", TALKER[1], "--env", TALKER[3])
    told, last = failed.err.splitlines()
    assert "sampled by other weights than those that continue" in told
    assert last == "ramify: sampling begins"


def test_a_fork_and_the_context_by_other_weights_say_so(verb, halls: Path) -> None:
    with Run.open(halls) as run:
        node = next(node for node in run.nodes(run.trees()[0].name) if node.role == "assistant")
    other = ("--model", TALKER[1], "--env", TALKER[3])
    for words, many in ((("fork", halls, node.id), ("--n", 2)), (("why", halls, node.id, "--context"), ("--samples", 8))):
        same, told = (verb(*words, *many, *more, "--json").json["caveats"] for more in ((), other))
        assert not any("other weights" in caveat for caveat in same), words
        assert sum("sampled by other weights than those that continue" in caveat for caveat in told) == 1, words


def test_questions_about_one_step_take_no_options_of_other_questions(verb, halls: Path) -> None:
    options = (("--n", 9), ("--first", 2), ("--least", 0.1), ("--describe", 3), ("--share",), ("--all",), ("--scorer", "env"))
    for asked in ("--context", "--tokens"):
        for option in options:
            refused = verb("why", halls, asked, *option)
            assert refused.code == 2
            assert f"take no {option[0]}" in " ".join(refused.err.split())
    assert "ask one at a time" in verb("why", halls, "--context", "--tokens").err
    assert "with --context or --tokens" in " ".join(verb("why", halls, "--outcome").err.split())


def test_context_stands_beside_the_answer_and_says_who_continues(verb, halls: Path) -> None:
    verb("why", halls)
    told = verb("why", halls, "--context", "--samples", 6, "--model", "factory:halls:talker", *HALL[2:], "--json").json
    assert any("other weights" in caveat for caveat in told["caveats"])
    with Run.open(halls) as run:
        assert {result.maker for result in run.results()} >= {"why", "why --context"}


def test_mistakes(verb, halls: Path, chats: Path) -> None:
    assert "did you mean 'resample'?" in verb.refused("why", halls, "--do", "resampel")
    assert "--do policy needs a value" in verb.refused("why", halls, "--do", "policy")
    assert "takes no tree" in verb.refused("why", halls, "train-0", "--all")
    assert "has no node 'zzz'" in verb.refused("why", halls, "zzz")
    assert "no run 'nowhere'" in verb.refused("why", "nowhere")
    assert "that somebody judged" in verb.refused("why", chats)
    for dry in ([], ["--dry-run"]):
        assert "cannot be more than n=4" in verb.refused("why", halls, "--n", 4, "--first", 8, *dry)
    (halls / "file").write_text("")
    assert "is a file; a run is a folder" in verb.refused("why", halls / "file")
