"""Which step went wrong in my log? From a file that another tool wrote to the step, as it is typed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramify.score.trajectories import plain_layout, run_trajectories
from ramify.trace.aliases import ALIASES
from ramify.trace.db import Run

pytestmark = pytest.mark.usefixtures("here")

SYSTEM = {"role": "system", "content": "You fetch things. Use the tools."}
#: The calls of each attempt and what they showed, its last words, its reward. What lost the third is leaving the study.
ATTEMPTS = [
    ([("go", "study", "Room: study."), ("take", "mug", "Holding: mug.")], "Here it is.", 1.0),
    ([("go", "study", "Room: study."), ("take", "mug", "Holding: mug.")], "Here you are.", 1.0),
    ([("go", "study", "Room: study."), ("go", "cellar", "Room: cellar.")], "I found nothing.", 0.0),
    ([("go", "cellar", "Room: cellar.")], "There is nothing.", 0.0),
]
#: delta of that step at gamma .95: the study was worth two thirds of .95 ** 2, the cellar nothing
LOST = -2 / 3 * 0.95**2


def log(tasks: int = 2) -> list[tuple[str, list[dict[str, Any]], float]]:
    """(task, messages, reward) of every attempt, in OpenAI's form; attempts at one task are not neighbours."""
    found = []
    for number, (calls, last, reward) in enumerate(ATTEMPTS):
        for task in range(tasks):
            messages = [SYSTEM, {"role": "user", "content": f"Fetch mug {task}. You are in the hall."}]
            for at, (name, argument, seen) in enumerate(calls):
                call = {
                    "id": f"c{number}-{task}-{at}",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps({"it": argument})},
                }
                messages += [
                    {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": call["id"], "content": seen},
                ]
            found.append((f"mug-{task}", [*messages, {"role": "assistant", "content": last}], reward))
    return found


def write(name: str, records: list[dict[str, Any]]) -> Path:
    Path(name).write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return Path(name)


Made = Callable[[], list[dict[str, Any]]]
#: Name -> the file, options of import, options of the rest.
LOGS: dict[str, tuple[Made, list[str], list[str]]] = {
    "chats": (lambda: [{"task": t, "messages": m, "reward": r} for t, m, r in log()], [], []),
    "chats by other names": (lambda: [{"problem_id": 7 + int(t[-1]), "messages": m, "score": r} for t, m, r in log()], [], []),
    "chats, an id, success": (lambda: [{"id": t, "messages": m, "success": r > 0} for t, m, r in log()], [], []),
    "chats, fields named": (
        lambda: [{"id": i, "messages": m, "metadata": {"question": t, "grade": r}} for i, (t, m, r) in enumerate(log())],
        ["--task-field", "metadata.question", "--reward-field", "metadata.grade"],
        [],
    ),
    "chats, scores by name": (
        lambda: [{"task_id": t, "messages": m, "score": {"right": r, "polite": 1.0}} for t, m, r in log()],
        [],
        ["--scorer", "right"],
    ),
    "trl": (lambda: [{"prompt": m[:2], "completion": m[2:], "reward": r} for _, m, r in log()], [], []),
    "trl, a task": (
        lambda: [{"task_id": t, "prompt": m[:2], "completion": m[2:], "rewards": {"right": r, "form": 1}} for t, m, r in log()],
        [],
        ["--scorer", "right"],
    ),
    "verifiers": (
        lambda: [
            {"example_id": int(t[-1]), "task": "house", "prompt": m[:2], "completion": m[2:], "answer": "", "reward": r}
            | {"metrics": {"num_turns": 3.0}, "num_turns": 3.0}
            for t, m, r in log()
        ],
        [],
        [],
    ),
}


@pytest.mark.parametrize("name", LOGS)
def test_from_a_log_to_the_step_in_three_commands(verb: Any, name: str) -> None:
    make, importing, choosing = LOGS[name]
    record = verb("import", write("log.jsonl", make()), "--run", "mine", *importing, "--json").json
    assert (record["trees"], record["records"]) == (2, 8)
    found = verb("graph-credit", "report", "mine", *choosing, "--json").json
    assert (found["attempts"], found["tasks"], found["constant_reward_share"]) == (8, 2, 0)
    worst = found["top_losses"][0]
    assert (worst["source"], worst["action"], worst["target"]) == ("Room: study.", 'go({"it": "cellar"})', "Room: cellar.")
    assert worst["delta"] == pytest.approx(LOST)
    why = verb("graph-credit", "why", "mine", worst["node"], *choosing, "--json").json
    assert (why["delta"], why["action"], why["reward_mean"]) == (pytest.approx(LOST), 'go({"it": "cellar"})', 0.5)
    assert [visit["action"] for visit in why["visits"]].count('take({"it": "mug"})') == 2
    assert 'go({"it": "cellar"})' in verb("graph-credit", "report", "mine", *choosing).out


def test_a_page_says_of_how_many_attempts_nobody_said_how_they_ended(verb: Any) -> None:
    ends: list[dict[str, Any]] = [{"termination_reason": "max_steps"}, {"termination_reason": "max_steps"}, {}, {}]
    spoken = [messages for _, messages, _ in log(1)]
    rows = [{"task_id": "t", "messages": messages, **end} for messages, end in zip(spoken, ends, strict=True)]
    verb("import", write("log.jsonl", rows), "--run", "some")
    assert verb("export", "some", "some.html").code == 0
    assert "0 of 2 attempts succeed; of 2 more nobody said whether they did." in Path("some.html").read_text()


def test_the_reward_is_the_outcome_everywhere(verb: Any) -> None:
    verb("import", write("log.jsonl", [{"task_id": t, "messages": m, "score": r} for t, m, r in log()]), "--run", "mine")
    assert (counts := verb("show", "mine", "--json").json["attempts"])["successes"] == 4
    assert counts["n"] == 8
    marked = verb("graph-credit", "mark", "mine", "--json").json
    assert marked["credited"] > 0
    assert f"{marked['credited']} of {marked['steps']} steps of mine have credit" in verb("graph-credit", "mark", "mine").out
    assert verb("show", "mine", "--html", "report.html").code == 0
    assert verb("export", "mine", "again.html").code == 0
    page = Path("report.html").read_text(encoding="utf-8")
    assert page == Path("again.html").read_text(encoding="utf-8")
    assert "2 of 4 attempts succeed" in page
    assert "(nothing)" not in page.partition("<script")[0]  # where there is no action
    assert "go({&quot;it&quot;: &quot;cellar&quot;})" in page
    assert verb("export", "mine", "good.jsonl", "--to", "trl-sft", "--successful", "true", "--json").json["rows"] == 4
    assert verb("maze-recovery", "audit", "mine", "--json").json["success_share"]["k"] == 4
    with Run.open("mine") as run:
        graded, _ = run_trajectories(run, plain_layout(Letters()))
    assert sorted(attempt.success is True for attempt in graded) == [False] * 4 + [True] * 4


class Letters:
    """A tokenizer of letters."""

    def encode(self, text: str) -> list[int]:
        return list(map(ord, text))


def test_rewards_that_were_paid_step_by_step(verb: Any) -> None:
    """Step records need not say that they are done for their last reward to count."""
    steps = [
        {"problem_id": "t", "trial": i, "step": at, "obs": seen, "action": action, "score": reward * (at == 2)}
        for i, (second, reward) in enumerate((("take", 1.0), ("sing", 0.0)))
        for at, (seen, action) in enumerate((("hall", "go"), ("study", second), ("end", "")))
    ]
    verb("import", write("steps.jsonl", steps), "--run", "mine", "--from", "steps")
    assert verb("show", "mine", "--json").json["attempts"]["successes"] == 1
    found = verb("graph-credit", "report", "mine", "--json").json
    named = verb("graph-credit", "report", "steps.jsonl", "--anchor", "obs", "--json").json
    assert (found["attempts"], found["mean_abs_a"]) == (2, pytest.approx(named["mean_abs_a"]))


def test_a_log_without_a_reward_is_refused_in_one_sentence(verb: Any) -> None:
    verb("import", write("log.jsonl", [{"task_id": t, "messages": m, "note": "x"} for t, m, _ in log()]), "--run", "mine")
    for words in (("report",), ("mark",), ("advantages", "--out", "x.jsonl"), ("show",)):
        message = verb.refused("graph-credit", words[0], "mine", *words[1:])
        assert "mine holds no scored attempt" in message
        assert all(name in message for name in ("'reward'", "'score'", "'success'", "--reward-field"))
    assert verb("show", "mine", "--json").json["attempts"] is None
    verb("show", "mine", "--html", "report.html")
    assert "4 attempts; nobody said which succeeded" in Path("report.html").read_text(encoding="utf-8")
    assert verb("maze-recovery", "audit", "mine", "--json").json["success_unknown"] == 8


def test_rewards_that_tell_nothing_apart_are_not_called_credit(verb: Any) -> None:
    verb("import", write("log.jsonl", [{"task_id": t, "messages": m, "score": 1} for t, m, _ in log()]), "--run", "mine")
    result = verb("graph-credit", "mark", "mine")
    assert "in every task all attempts have one reward" in result.err
    assert "no step of mine has any credit" in result.out


def test_whose_score_decides(verb: Any) -> None:
    records = [{"task_id": t, "messages": m, "score": {"right": r, "polite": 1.0}} for t, m, r in log()]
    assert "scores by polite, right" in verb("import", write("log.jsonl", records), "--run", "mine").out
    for words in (("report",), ("mark",)):
        assert "choose one with --scorer (polite, right)" in verb.refused("graph-credit", *words, "mine")
    assert "no score of scorer 'rihgt' (did you mean 'right'?)" in verb.refused(
        "graph-credit", "report", "mine", "--scorer", "rihgt"
    )
    assert "Several scorers judged the attempts (polite, right)" in verb("show", "mine").out
    assert verb("show", "mine", "--scorer", "right", "--json").json["attempts"]["successes"] == 4
    verb("show", "mine", "--html", "all.html")
    verb("show", "mine", "--scorer", "right", "--html", "right.html")
    assert "Several scorers judged them (polite, right)" in Path("all.html").read_text(encoding="utf-8")
    assert "2 of 4 attempts succeed" in Path("right.html").read_text(encoding="utf-8")
    assert "no score of scorer 'x'" in verb.refused("show", "mine", "--scorer", "x")


def test_what_has_no_effect_is_refused(verb: Any) -> None:
    rows = [{"task_id": t, "messages": m, "score": r} for t, m, r in log()]
    write("log.jsonl", rows)
    assert "log.jsonl:1: there is no field 'taskid', which --task-field names (did you mean 'task_id'?)" in verb.refused(
        "import", "log.jsonl", "--run", "mine", "--task-field", "taskid"
    )
    assert not Path("mine").exists()
    verb("import", "log.jsonl", "--run", "mine")
    verb("export", "mine", "run.jsonl")
    assert "--task-field does not apply" in verb.refused("import", "run.jsonl", "--run", "b", "--task-field", "task_id")
    assert "--task-field does not apply" in verb.refused("maze-recovery", "audit", "mine", "--task-field", "task_id")
    assert "--anchor does not apply" in verb.refused("graph-credit", "report", "mine", "--anchor", "obs")
    step = {"task_id": "t", "attempt_id": 1, "step": 0, "anchor": "a", "action": "b", "reward": 1}
    write("steps.jsonl", [step, step | {"attempt_id": 2, "reward": 0}])
    assert "--scorer does not apply" in verb.refused("graph-credit", "report", "steps.jsonl", "--scorer", "env")
    assert "`ramify import log.jsonl --run DIR`" in verb.refused("graph-credit", "report", "log.jsonl")
    assert verb("maze-recovery", "audit", "log.jsonl", "--json").json["tasks"] == 2
    named = write("named.jsonl", [{"question": row["task_id"], "messages": row["messages"], "score": 1} for row in rows])
    assert verb("maze-recovery", "audit", named, "--json").json["tasks"] == 8
    assert verb("maze-recovery", "audit", named, "--task-field", "question", "--json").json["tasks"] == 2


def test_states_are_taken_out_of_texts(verb: Any) -> None:
    """The first observation also holds the task, so that a way back to it is not seen; a pattern shows the whole way."""
    rooms = ["hall", "study", "attic", "study", "hall", "cellar"]
    seen = [f"Fetch the mug. You are in the {rooms[0]}.", *(f"You see a desk. You are in the {room}." for room in rooms[1:])]
    moves = ["up", "up again", "down", "down again", "below", "Here it is."]
    chat = [
        m for s, a in zip(seen, moves, strict=True) for m in ({"role": "user", "content": s}, {"role": "assistant", "content": a})
    ]
    write("log.jsonl", [{"task_id": "t", "reward": r, "messages": chat} for r in (1, 0)])
    audit = ("maze-recovery", "audit", "log.jsonl")
    plain = verb(*audit, "--json")
    assert plain.json["mean_depth"] != 2
    assert any("--state-pattern" in warning for warning in plain.json["caveats"])
    assert "--state-pattern" in plain.err
    pattern = ("--state-pattern", r"in the (\w+)")
    record = verb(*audit, *pattern, "--json").json
    assert (record["states"], record["recoveries"], record["mean_depth"]) == (4, 2, 2)
    assert not any("--state-pattern" in warning for warning in record["caveats"])
    verb("import", "log.jsonl", "--run", "mine")
    assert "--state-pattern" in verb("graph-credit", "report", "mine").err
    credit = verb("graph-credit", "report", "mine", *pattern, "--json")
    assert (credit.json["states"], credit.err) == (4, "")
    assert "'in the (' is not a regular expression" in verb.refused(*audit, "--state-pattern", "in the (")
    for words in (audit, ("graph-credit", "report", "mine")):
        assert "'Room' is found in none of 12 observations" in verb.refused(*words, "--state-pattern", "Room")
        assert "not found in 2 of 12 observations" in verb(*words, "--state-pattern", r"You see .* (\w+)\.").err


def test_states_that_never_recur_are_warned_of(verb: Any) -> None:
    steps = [
        {"task_id": "t", "attempt_id": i, "step": at, "anchor": f"{at}:{i}", "action": "go", "reward": float(i)}
        for i in range(2)
        for at in range(3)
    ]
    assert "--state-pattern" in verb("graph-credit", "report", write("steps.jsonl", steps)).err


def test_a_session_is_an_attempt(verb: Any) -> None:
    """Attempts at one task follow each other in a log; nothing was dropped between them."""
    rule = "Never enter the cellar."
    Path("rules.txt").write_text(rule + "\n")
    stated = {"role": "system", "content": f"You fetch things. {rule}"}
    write("log.jsonl", [{"task_id": t, "messages": [stated, *m[1:]], "score": r} for t, m, r in log()])
    audit = ("governance", "audit", "log.jsonl", "--rules", "rules.txt", "--strict", "--json")
    found = verb(*audit)
    assert (found.code, found.json["sessions"], found.json["compactions"]) == (0, 8, [])
    assert (found.json["rules"][0]["stated_in"], found.json["rules"][0]["lost"]) == (8, [])

    user, answer = {"role": "user", "content": f"Fetch a mug. {rule}"}, {"role": "assistant", "content": "I go."}

    def called(shown: list[dict[str, Any]], said: str, **about: Any) -> dict[str, Any]:
        reply = {"role": "assistant", "content": said}
        return {"request": {"messages": shown}, "response": {"choices": [{"message": reply}]}, "task_id": "t", **about}

    more = [user, answer, {"role": "user", "content": "Continue."}]
    other = [user, {"role": "assistant", "content": "I look."}, {"role": "user", "content": "Continue."}]
    calls = [called([user], "I go."), called([user], "I look."), called(more, "a"), called(other, "b")]
    write("log.jsonl", calls)  # two attempts, their calls in turn
    found = verb(*audit)
    assert (found.code, found.json["sessions"], found.json["compactions"]) == (0, 2, [])
    summary = [{"role": "user", "content": "Summary: a mug is wanted."}]
    write("log.jsonl", [*calls, called(summary, "c")])  # and then a compaction, which dropped the rule
    found = verb(*audit)
    assert (found.code, found.json["sessions"], [c["step"] for c in found.json["compactions"]]) == (1, 2, [5])
    assert [loss["step"] for loss in found.json["rules"][0]["lost"]] == [5]
    first, second = ({"attempt_id": i} for i in (1, 2))
    longer = [*other, {"role": "assistant", "content": "b"}, {"role": "user", "content": "More."}]
    calls = [called([user], "I go.", **first), called([user], "I look.", **second), called(other, "b", **second)]
    write("log.jsonl", [*calls, called(summary, "c", **first), called(longer, "d", **second)])
    found = verb(*audit)  # the log says which attempt a call is of, so the compaction is the first one's
    assert [(c["session"], c["dropped"]) for c in found.json["compactions"]] == [("t#1", 1)]


def test_every_name_of_a_field_is_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs/howto/which-step.md").read_text(encoding="utf-8")
    for what, names in ALIASES.items():
        assert f"| {what} | {', '.join(f'`{name}`' for name in names)}" in page


def test_the_right_answer_of_a_log_is_its_tasks(verb: Any) -> None:
    write("log.jsonl", [{"task": t, "messages": m, "ground_truth": f"right of {t}", "answer": "said"} for t, m, _ in log()])
    assert "not understood: 'answer' of" in (told := "".join(verb("import", "log.jsonl", "--run", "a")[1:]))
    assert "ground_truth" not in told
    assert "'ground_truth'" in "".join(verb("import", "log.jsonl", "--run", "b", "--answer-field", "answer")[1:])
    for run, right in (("a", "right of {}"), ("b", "said")):
        with Run.open(Path(run)) as made:
            assert all(info.answer == right.format(info.name) for info in made.trees())
