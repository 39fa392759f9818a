"""Things of one's own by file or module, wherever a verb takes a name: environments, models, verifiers, voters, behaviours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ramify
from ramify.base.plugins import find_attribute

MINE = '''
"""Things of my own."""

from ramify import Observation
from ramify.env.builtin.household import HouseholdEnvironment

HOUSE = HouseholdEnvironment()


def make_house():
    return HouseholdEnvironment()


class Sum:
    """One episode."""

    system, max_turns = "Add.", 2

    def reset(self, task, seed):
        self.task, self.said = task, ""
        return Observation(f"{task.data['a']} + 1")

    def step(self, action):
        self.said = action
        right = action == str(self.task.data["a"] + 1)
        return Observation("right" if right else "wrong", float(right), terminated=True, outcome=right)

    def snapshot(self):
        return self.said

    def restore(self, snapshot):
        self.said = snapshot

    def key(self):
        return self.said


def make_sum():
    return Sum()


ONE_SUM = Sum()


def adds(messages):
    return str(int(messages[-1]["content"].split()[0]) + 1) if "+" in messages[-1]["content"] else "0"


def agent(messages):
    return "go hall"


def keyed_agent(messages, key):
    return "go hall" if key % 2 else "look"


def broken_agent(messages):
    return 1 / 0


def mute_agent(messages):
    return None


def right(text, trace):
    return "e" in text


def make_right():
    return right


def voter(prompt, answer):
    return "4" in answer


def went(messages):
    return any("4" in m.text for m in messages if m.role == "assistant")


def three(a, b, c):
    return True


NUMBER = 3
'''


@pytest.fixture
def mine(here: Path) -> Path:
    (here / "mine.py").write_text(MINE)
    return here


@pytest.mark.parametrize(
    "env", ["mine.py:HOUSE", "mine.py:make_house", "mine.py:HouseholdEnvironment", "factory:mine:make_house"]
)
@pytest.mark.parametrize("model", ["mine.py:agent", "python:mine:keyed_agent"])
def test_environments_and_plain_functions_as_agents_are_played(verb, mine: Path, env: str, model: str) -> None:
    found = verb("rollout", "--env", env, "--model", model, "--count", "1", "--out", "run", "--json")
    assert (found.code, found.json["n"], found.json["failed"]) == (0, 1, 0)
    assert verb("resume", "run", "--json").json["turns"] == found.json["turns"]


@pytest.mark.parametrize("env", ["mine.py:Sum", "mine.py:make_sum", "python:mine:Sum", "factory:mine:Sum"])
def test_the_command_line_takes_what_play_takes(verb, mine: Path, env: str) -> None:
    """A class or function that makes one episode, by its name and as the thing itself: the same attempts."""
    tasks = mine / "tasks.jsonl"
    tasks.write_text("".join(json.dumps({"id": f"t{a}", "a": a}) + "\n" for a in (2, 5)))
    typed = ("rollout", "--env", env, "--model", "mine.py:adds", "--tasks", "tasks.jsonl", "--out", "typed", "--json")
    found = verb(*typed)
    assert (found.code, found.json["n"], found.json["successes"]) == (0, 2, 2)
    adds, thing = (find_attribute(f"mine.py:{name}") for name in ("adds", env.rpartition(":")[2]))
    attempts = ramify.play(adds, thing, tasks, out="called")
    with ramify.Run.open("typed") as run:
        made = [(node.role, node.text) for attempt in attempts for node in run.nodes(attempt.tree)]
        step = next(node.id for node in run.nodes(attempts[0].tree) if node.role == "assistant")
    with ramify.Run.open("called") as run:
        assert made == [(node.role, node.text) for attempt in attempts for node in run.nodes(attempt.tree)]
    fork = verb("fork", "typed", step, "--n", "2", "--json")
    assert (fork.code, fork.json["fork"]["n"]) == (0, 2)


@pytest.mark.slow
def test_the_same_names_are_checked_and_made_by_workers(verb, mine: Path) -> None:
    assert verb("check", "env", "mine.py:HOUSE").code == 0
    words = ("rollout", "--env", "mine.py:HOUSE", "--model", "mine.py:keyed_agent", "--count", "2", "--json", "--out")
    here = verb(*words, "here").json
    there = verb(*words, "there", "--backend", "processes:1").json
    assert {k: here[k] for k in ("n", "successes", "turns")} == {k: there[k] for k in ("n", "successes", "turns")}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("mine.py:broken_agent", "engine: mine.py:broken_agent raised ZeroDivisionError: division by zero"),
        ("mine.py:mute_agent", "engine: mine.py:mute_agent returned a NoneType, not a text"),
    ],
)
def test_what_an_agent_raises_is_a_failed_attempt(verb, mine: Path, model: str, message: str) -> None:
    found = verb("rollout", "--model", model, "--count", "1", "--out", "run", "--json")
    assert (found.code, found.json["failures"]) == (1, {message: 1})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--env", "nowhere.py:HOUSE"), "there is no file nowhere.py"),
        (("--env", "mine.py:HOSE"), "there is no 'HOSE' (did you mean 'HOUSE'?)"),
        (("--env", "mine.py:NUMBER"), "mine.py:NUMBER: this int is not an environment: it has no name, make, task_set"),
        (("--env", "mine.py:three"), "mine.py:three makes no environment without arguments"),
        (("--env", "mine.py:ONE_SUM"), "mine.py:ONE_SUM is one episode: give what makes one for each attempt, the class Sum"),
        (("--env", "mine.py:Sum"), "'Sum' makes no tasks of its own: give tasks= (--tasks FILE)"),
        (("--env", "python:mine"), "'mine' is not MODULE:ATTRIBUTE or FILE.py:ATTRIBUTE"),
        (("--model", "mine.py:three"), "mine.py:three cannot be called without arguments, and is no model"),
        (("--model", "wrong.py:x"), "names nothing that can be imported: SyntaxError"),
    ],
)
def test_what_is_no_part_is_one_sentence(verb, mine: Path, words: tuple[str, str], message: str) -> None:
    (mine / "wrong.py").write_text("def (:\n")
    assert message in verb.refused("rollout", *words, "--count", "1", "--out", "run")
    assert not (mine / "run").exists()


@pytest.mark.parametrize("verifier", ["mine.py:right", "python:mine:right", "factory:mine:right", "factory:mine:make_right"])
def test_a_plain_function_verifies_replies(verb, mine: Path, verifier: str) -> None:
    (mine / "problems.jsonl").write_text(json.dumps({"id": "p", "prompt": "Say e.", "answer": "e"}) + "\n")
    sizes = ("--samples", "2", "--max-tokens", "3", "--coarse", "2", "--forks", "4", "--confirm", "4")
    found = verb("cliffs", "scan", "--model", "builtin", "--verifier", verifier, "--problems", "problems.jsonl",
                 "--out", "scan.jsonl", "--dry-run", "--json", *sizes[:4])  # fmt: skip
    assert found.code == 0, found.err
    assert "cost_estimate" in found.json


def test_a_verifier_that_takes_something_else_is_one_sentence(verb, mine: Path) -> None:
    words = ("cliffs", "scan", "--model", "builtin", "--problems", "p.jsonl", "--out", "s.jsonl", "--verifier")
    assert verb.refused(*words, "mine.py:three") == "mine.py:three cannot be called with (text, trace)"
    assert "int" in verb.refused(*words, "mine.py:NUMBER")


def test_a_plain_function_says_what_a_run_did(verb, mine: Path, chats: Path) -> None:
    log = mine / "log.jsonl"
    log.write_text("".join(json.dumps(json.loads(line)) + "\n" for line in (mine / "chats.jsonl").read_text().splitlines()))
    for name in ("mine.py:went", "factory:mine:went", "python:mine:went"):
        found = verb("forensics", "report", log, "log", "--behavior", name, "--json").json
        assert (found["rate"]["k"], found["rate"]["n"]) == (1, 2)
    assert "cannot be called with (messages)" in verb.refused("forensics", "report", log, "log", "--behavior", "mine.py:three")


def test_a_plain_function_votes(verb, mine: Path) -> None:
    (mine / "prompts.jsonl").write_text(json.dumps({"id": "p", "prompt": "2+2?"}) + "\n")
    words = ("early-decision", "run", "--model", "nosuch", "--prompts", "prompts.jsonl", "--out", "run", "--label")
    assert "unknown model 'nosuch'" in verb.refused(*words, "mine.py:voter")  # the voter is there
    assert verb.refused(*words, "mine.py:three") == "mine.py:three cannot be called with (prompt, answer)"
    assert "there is no 'vote'" in verb.refused(*words, "factory:mine:vote")
