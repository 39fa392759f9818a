"""``ramify why --judge``: the three ways, answers that cannot be read, several judges, successful attempts, what is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramify.base.errors import UserError
from ramify.jobs.log.ask import MAKER, why_judged
from ramify.jobs.log.judges import QUESTIONS, read_half, read_step, read_yes
from ramify.jobs.log.likelihood import worst_fall
from ramify.score.judge import Item
from ramify.trace.db import Run

ITEM = [Item("log")]
WRONG = "I add 2 and 2: 5."
JUDGE = '''"""Judges that know the wrong step, do not, or see one everywhere."""

WRONG = "I add 2 and 2: 5."


def knows(text, data):
    lines = text.split("\\n")
    at = [int(line.split()[1]) for line in lines if WRONG in line]
    if "steps" in data:
        return at[0] if at else None
    if "step" in data:
        return WRONG in lines[-1]
    return bool(at) and at[0] <= data["middle"]


def first(text, data):
    return data["steps"][0] if "steps" in data else True


def nobody(text, data):
    return None


def down(text, data):
    raise OSError("no such host")
'''


@pytest.fixture
def logs(verb: Any, here: Path) -> Path:
    """Two failed attempts, of which the third reply is wrong, and twenty that succeed."""
    (here / "judge.py").write_text(JUDGE)

    def attempt(task: str, success: bool) -> dict[str, Any]:
        said = ["I look.", "I think.", "I add 2 and 2: 4." if success else WRONG, "I write it down.", "Done."]
        turns = [{"role": "user", "content": "What is 2 and 2?"}]
        for text in said:
            turns += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}]
        return {"task_id": task, "messages": turns[:-1], "success": success}

    rows = [attempt("a", False), attempt("b", False), *(attempt(f"won {i:02}", True) for i in range(20))]
    (here / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert verb("import", "log.jsonl", "--run", "run").code == 0
    return here / "run"


WAYS = ("--way", "whole", "--way", "steps", "--way", "halving")


def test_three_ways_of_a_judge_that_knows(verb: Any, logs: Path) -> None:
    plan = verb("why", "run", "--judge", "judge.py:knows", *WAYS, "--dry-run", "--json").json["cost_estimate"]
    assert (plan["attempts"], plan["questions"], plan["counterfactual"]) == (1, 1 + 5 + 3, False)
    answer = verb("why", "run", "--judge", "judge.py:knows", *WAYS, "--json").json
    assert (answer["verdict"], answer["action"], answer["votes"], answer["of"]) == ("opinion", WRONG, 3, 3)
    assert [(one["way"], one["step"], one["asked"]) for one in answer["opinions"]] == [
        ("whole", 3, 1),
        ("steps", 3, 3),
        ("halving", 3, 2),
    ]
    assert all((pair["k"], pair["n"]) == (1, 1) for pair in answer["agreement"])
    assert answer["counterfactual"] is False
    assert "this is not a counterfactual" in answer["headline"]
    with Run.open("run") as run:
        (finding,) = run.findings(maker=MAKER)
        assert (finding.name, finding.node) == ("a judge's opinion", answer["node"])
        notes = run.annotations(name="named by judge", node=answer["node"])
        assert {note.maker for note in notes} == {f"why --judge judge.py:knows {way}" for way in ("whole", "steps", "halving")}
    assert "a judge's opinion" in verb("show", "run").out


def test_a_step_is_named_where_successes_have_none(verb: Any, logs: Path) -> None:
    """A judge that sees no step in 20 successful attempts names one for certain; one that sees a step in all of them does not."""
    knows = verb("why", "run", "--judge", "judge.py:knows", "--way", "steps", "--successes", 20, "--json").json
    assert (knows["verdict"], knows["action"]) == ("step", WRONG)
    assert knows["successes"] == {"n": 20, "named": 0, "as_agreed": 0}
    first = verb("why", "run", "--judge", "judge.py:first", "--successes", 20, "--json").json
    assert (first["verdict"], first["action"]) == ("opinion", "I look.")
    assert first["successes"] == {"n": 20, "named": 20, "as_agreed": 20}
    few = verb("why", "run", "--judge", "judge.py:knows", "--way", "steps", "--successes", 18, "--json").json
    assert few["verdict"] == "opinion"


def test_several_judges_and_attempts(verb: Any, logs: Path) -> None:
    both = ("--judge", "judge.py:knows", "--judge", "judge.py:first")
    answer = verb("why", "run", *both, "--all", "--json").json
    assert [one["votes"] for one in answer["all"]] == [1, 1]
    (pair,) = answer["agreement"]
    assert (pair["k"], pair["n"]) == (0, 2)
    text = verb("why", "run", *both, "--all").out
    assert text.startswith("In 0 of 2 failed attempts a step is named, in 2 it is a mere opinion.")
    assert "name the same step in 0 of 2: 0%" in text
    assert "Nobody was asked about successful attempts" in verb("why", "run", "b", *both).out


def test_judges_that_say_nothing(verb: Any, logs: Path) -> None:
    answer = verb("why", "run", "--judge", "judge.py:nobody", *WAYS, "--json").json
    assert (answer["verdict"], answer["node"], answer["of"]) == ("none", None, 0)
    assert [one["unread"] for one in answer["opinions"]] == [1, 5, 1]
    assert any("7 answers could not be read" in caveat for caveat in answer["caveats"])
    mixed = verb("why", "run", "--judge", "judge.py:down", "--judge", "judge.py:knows", "--json").json
    assert (mixed["action"], mixed["votes"], mixed["of"]) == (WRONG, 1, 1)
    assert any("no such host" in caveat for caveat in mixed["caveats"])
    code, _, err = verb("why", "run", "--judge", "judge.py:down")
    assert code != 0
    assert "no judge could answer" in err


def test_what_was_answered_is_not_asked_again(logs: Path) -> None:
    asked: list[int] = []
    first = why_judged(logs, "a", judges=["judge.py:knows"], ways=["steps"], on_question=asked.append)
    assert asked == [1, 2, 3]
    assert why_judged(logs, "a", judges=["judge.py:knows"], ways=["steps"], on_question=asked.append) == first
    assert asked == [1, 2, 3]
    with pytest.raises(UserError, match="this one succeeded"):
        why_judged(logs, "won 01", judges=["judge.py:knows"])


def test_options_of_other_questions_are_refused(verb: Any, logs: Path) -> None:
    assert "takes no --share" in verb.refused("why", "run", "--judge", "judge.py:knows", "--share")
    assert "takes no --n" in verb.refused("why", "run", "--judge", "judge.py:knows", "--n", 9)
    assert "they go with it" in verb.refused("why", "run", "--way", "steps")


def test_a_model_that_is_asked(verb: Any, logs: Path) -> None:
    (logs.parent / "models.py").write_text(
        "from ramify.model.scripted import ScriptedModel\n\n"
        "def model():\n    return ScriptedModel(['Agent Name: agent\\nStep Number: 5\\nReason for Mistake: It adds wrongly.'], "
        "tokens=False)\n\n"
        "def babbles():\n    return ScriptedModel(['It is step 4 or step 5, who knows.'], tokens=False)\n\n"
        "def observes():\n    return ScriptedModel(['Step Number: 4'], tokens=False)\n"
    )
    answer = verb("why", "run", "--judge", "factory:models:model", "--json").json
    assert (answer["votes"], answer["action"], answer["opinions"][0]["reason"]) == (1, WRONG, "It adds wrongly.")
    unread = verb("why", "run", "--judge", "factory:models:babbles", "--json").json
    assert (unread["verdict"], unread["opinions"][0]["unread"]) == ("none", 1)
    given = verb("why", "run", "--judge", "factory:models:observes", "--json").json
    assert (given["verdict"], given["opinions"][0]["reason"]) == ("none", "step 4, which no agent took")


@pytest.mark.parametrize(
    ("reply", "step"),
    [
        ("Agent Name: A\nStep Number: 7\nReason for Mistake: x", 7),
        ("**Step Number:** 7", 7),
        ("Step: Step 7", 7),
        ("Step Number: 7\nStep Number: 8", None),
        ("It is the seventh step.", None),
        ("", None),
    ],
)
def test_a_step_is_read_strictly(reply: str, step: int | None) -> None:
    assert read_step(reply, ITEM).value == step


@pytest.mark.parametrize(
    ("reply", "yes"), [("1. Yes.\n2. Reason: x", True), ("No", False), ("**no**", False), ("I say yes", None), ("", None)]
)
def test_yes_and_no_are_read_strictly(reply: str, yes: bool | None) -> None:
    assert read_yes(reply, ITEM).value is yes


@pytest.mark.parametrize(
    ("reply", "upper"), [("upper half", True), ("The Lower Half.", False), ("upper half or lower half", None), ("upper", None)]
)
def test_a_half_is_read_strictly(reply: str, upper: bool | None) -> None:
    assert read_half(reply, ITEM).value is upper


def test_prompts_hold_the_fields_they_are_given() -> None:
    about = {"problem": "{p}", "log": "{x}", "steps": [1], "step": 1, "agent": "A", "first": 1, "middle": 2, "next": 3, "last": 4}
    for question in QUESTIONS.values():
        assert "{x}" in question.messages([Item("", data=about)])[-1].text


KNOWING = '''"""A model to which an answer is likely where it was shown, and less so where it was taken back."""

import dataclasses

import numpy as np

from ramify.model.protocol import TokenScores
from ramify.model.scripted import ScriptedModel


class Knowing(ScriptedModel):
    async def logprobs(self, tokens, top_k=0):
        rows = []
        for row in tokens:
            text = self.tokenizer.decode(row.tolist())
            log = text.split("<log>")[-1].split("</log>")[0]
            value = -4.0 + 2.0 * ("4" in log.split("and 2:")[-1]) - 1.0 * ("5" in log)
            rows.append(TokenScores(np.full(len(row), value, np.float32)))
        return rows


model = Knowing(["ok"])
short, small = Knowing(["ok"], name="short"), Knowing(["ok"], name="small")
short.context, small.context = 320, 40
'''


def test_the_way_answer_names_the_step_after_which_the_answer_is_less_likely_for_good(verb: Any, here: Path) -> None:
    (here / "knowing.py").write_text(KNOWING)
    turns = [{"role": "user", "content": "What is 2 and 2?"}]
    for text in ("I look.", "2 and 2: 4, it seems.", WRONG, "I write it down."):
        turns += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}]
    lost = {"question": "What is 2 and 2?", "question_ID": "a", "ground_truth": "4", "history": turns, "is_correct": False}
    won = lost | {"question_ID": "b", "history": turns[:5], "is_correct": True}
    without = {name: value for name, value in lost.items() if name != "ground_truth"} | {"question_ID": "c"}
    (here / "log.json").write_text(json.dumps([lost, won, without]))
    assert verb("import", "log.json", "--from", "who-and-when", "--run", "run").code == 0
    asked = ("--judge", "knowing.py:model", "--way", "answer", "--json")
    answer = verb("why", "run", "a", *asked).json
    assert (answer["verdict"], answer["action"]) == ("opinion", WRONG)
    assert "the answer fell from -2 to -5 nats a token" in answer["headline"]
    known = verb("why", "run", "a", *asked, "--successes", 1).json["successes"]
    assert known == {"n": 1, "named": 0, "as_agreed": 0}, "a log that ends with the answer at its likeliest names no step"
    assert "without their middle" not in answer["opinions"][0]["reason"]
    cut = verb("why", "run", "a", "--judge", "knowing.py:short", *asked[2:]).json["opinions"][0]["reason"]
    assert "prompts were longer than the model takes, and shown without their middle" in cut
    small = verb("why", "run", "a", "--judge", "knowing.py:small", *asked[2:])
    assert small.code != 0
    assert "leaves no room for a prompt" in small.err
    none = verb("why", "run", "c", *asked)
    assert none.code != 0
    assert "its task names no answer" in none.err
    refused = verb("why", "run", "a", "--judge", "regex:.", "--way", "answer")
    assert refused.code == 2
    assert "takes the log-probs of a model" in refused.err


def test_a_fall_that_is_made_good_is_none() -> None:
    def worst(*values: float) -> tuple[int | None, float]:
        return worst_fall(np.array(values))

    assert worst(-3, -5, -1, -0.5) == (None, 0.0)
    assert worst(-3, -1, -4, -2) == (1, 1.0), "what came back later is not lost"
    assert worst(-3, -1, -4, -4, -6) == (1, 3.0), "of several the one that lost most"
    assert worst(-3, -2, -2) == (None, 0.0)
    assert worst(-3) == worst() == (None, 0.0)
