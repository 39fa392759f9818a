"""Credit rules as a kind: the battery, rules of one's own from a file, the settings that reach them,
and what a run keeps of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramify.base import registry
from ramify.base.errors import UserError
from ramify.jobs.improve import ARMS, ImproveConfig, credit_rule, improve, resume
from ramify.methods.graph_credit.rules import GraphCredit
from ramify.score.credit.grpo import Grpo
from ramify.score.credit.protocol import CreditRule, assigned, find_rule
from ramify.testing import conformance
from ramify.testing.credit import ENDS, example_group
from ramify.trace.db import Run
from ramify.trace.node import Annotation, TokenValues

PAGE = Path(__file__).parents[2] / "docs/howto/credit.md"
RULE = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
SMALL = ("--updates", "1", "--tokens", "900", "--tasks-per-update", "4", "--eval-episodes", "4", "--train-tasks", "24")


@pytest.mark.parametrize("name", registry.names("credit"))
def test_built_in_rules_conform(verb: Any, name: str) -> None:
    done = verb("check", "credit", name, "--json")
    assert done.json["conforms"], done.out
    assert [one["check"] for one in done.json["checks"]] == conformance.checks("credit")


def test_the_rule_of_the_page_trains_and_explains_itself_everywhere(verb: Any, here: Path) -> None:
    assert RULE.count("\n") < 30
    (here / "mine.py").write_text(RULE, encoding="utf-8")
    assert verb("check", "credit", "mine.py:LeaveOneOut").code == 0
    assert verb("improve", "--credit", "mine.py:LeaveOneOut", *SMALL, "--out", "run").code == 0
    with Run.open(here / "run") as run:
        assert run.config["credit"]["name"] == "mine.py:LeaveOneOut"
        marks = list(run.each(Annotation))
        values = {stream.node: stream.values for stream in run.each(TokenValues) if stream.name == "credit"}
        assert {mark.maker for mark in marks if mark.name == "why"} == {"leave-one-out"}
        best = max((mark for mark in marks if mark.name == "why"), key=lambda mark: mark.value["A"])
        sampled = run.node(best.node).sampled
        assert values[best.node][sampled] == pytest.approx(best.value["reward"] - best.value["others"])
        assert not values[best.node][~sampled].any()
    shown = verb("show", "run")
    assert "credit by leave-one-out" in shown.out
    assert "others: mean reward of the other attempts at its task" in shown.out
    record = verb("show", "run", "--json").json["credit"][0]
    assert list(record["numbers"]) == ["A", "reward", "others"]
    why = verb("graph-credit", "why", "run", best.node)
    assert "mean reward of the other attempts at its task" in why.out
    assert verb("graph-credit", "why", "run", best.node, "--json").json["numbers"]["others"] == best.value["others"]
    assert verb("show", "run", "--html", "run.html").code == 0
    page = (here / "run.html").read_text(encoding="utf-8")
    assert "mean reward of the other attempts at its task" in page
    assert "A_ep" not in page
    assert verb("export", "run", "own.jsonl", "--to", "trl-steps", "--rule", "mine.py:LeaveOneOut").code == 0
    assert verb("export", "run", "kept.jsonl", "--to", "trl-steps").code == 0
    made, kept = (
        [json.loads(line)["advantages"] for line in (here / f).read_text().splitlines()] for f in ("own.jsonl", "kept.jsonl")
    )
    assert made == kept


@pytest.mark.slow
def test_a_run_with_another_rule_is_not_continued(here: Path) -> None:
    (here / "mine.py").write_text(RULE, encoding="utf-8")
    few = {"updates": 1, "tokens": 900, "tasks_per_update": 4, "eval_episodes": 4, "train_tasks": 24}
    improve(ImproveConfig(**few, credit="mine.py:LeaveOneOut"), here / "run")
    with Run.open(here / "run", write=True) as run:
        run._db.execute("DELETE FROM journal WHERE kind = 'result'")
    (here / "mine.py").write_text(RULE.replace("maximum(count - 1, 1)", "maximum(count - 1, 2)"), encoding="utf-8")
    with pytest.raises(UserError, match="credit rule was"):
        resume(here / "run")


@pytest.mark.parametrize("arm", ["infotree+g2po", "grpo", "imitate"])
def test_a_named_rule_is_of_the_arm_that_was_chosen(arm: str) -> None:
    """And of arms with graph credit."""
    own = {"infotree+g2po": "graph-credit", "grpo": "grpo", "imitate": "imitate"}[arm]
    assert credit_rule(ImproveConfig(arm=arm), arm).maker == own
    new = credit_rule(ImproveConfig(arm=arm, credit={"name": "gigpo", "gamma": 0.9}), arm)
    assert isinstance(new, GraphCredit)
    assert (new.config.rule, new.config.gamma) == ("gigpo", 0.9)
    assert credit_rule(ImproveConfig(arm=arm, credit="gigpo", compare=True), "grpo").maker == (
        "graph-credit" if arm == "grpo" else "grpo"
    )
    assert all(credit_rule(ImproveConfig(), name) for name in ARMS)


@pytest.mark.slow
def test_the_short_name_the_long_ones_and_files_agree(verb: Any, here: Path) -> None:
    (here / "short.toml").write_text('credit = "gigpo"\n')
    (here / "table.toml").write_text('[credit]\nname = "gigpo"\ngamma = 0.9\n')

    def made(*words: str) -> dict[str, Any]:
        return verb("improve", "--dry-run", "--eval-episodes", "2", "--train-tasks", "4", *words, "--json").json["settings"][
            "credit"
        ]

    assert made("--credit", "gigpo", "--credit.gamma", "0.9") == made("--config", "table.toml")
    assert made("--credit.gamma", "0.9", "--credit", "gigpo") == made("--config", "short.toml", "--credit.gamma", "0.9")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--credit", "g2poo"), "unknown credit 'g2poo' (did you mean 'g2po'?)"),
        (("--credit", "grpo:1"), "the credit rule 'grpo' takes no argument"),
        (("--credit", "bad.py:nothing"), "there is no 'nothing'"),
        (("--credit", "bad.py:Fails"), "bad.py:Fails failed: OSError: no disk"),
        (("--credit", "bad.py:Other"), "is a Other, which is not a credit rule: derive its class from"),
        (("--credit", "bad.py:Lossy"), "unknown loss 'hinge'"),
        (("--credit", "gigpo", "--credit.value", "loo"), "value = loo has no meaning there"),
        (("--credit", "grpo", "--credit.truncation", "bootstrap"), "--credit g2po --credit.w 0"),
        (("--credit.gama", "1"), "did you mean '--credit.gamma'?"),
    ],
)
def test_a_rule_that_is_none_is_refused_before_a_run_exists(words: tuple[str, ...], sentence: str, verb: Any, here: Path) -> None:
    (here / "bad.py").write_text(
        "from ramify.score.credit.grpo import Grpo\n"
        "class Fails:\n    def __init__(self): raise OSError('no disk')\n"
        "class Other: pass\n"
        "class Lossy(Grpo):\n    loss = 'hinge'\n"
    )
    assert sentence in verb.refused("improve", *words, "--out", "run")
    assert not (here / "run").exists()


class Broken(CreditRule):
    maker = "broken"

    def __init__(self, way: str = "") -> None:
        self.way = way

    def assign(self, group: Any) -> dict[str, np.ndarray]:
        values = group.spread(group.reward)
        name = next(iter(values))
        match self.way:
            case "shape":
                values[name] = values[name][1:]
            case "nan":
                values[name] = values[name] * np.nan
            case "node":
                values["nowhere"] = values[name]
            case "all":
                values = {name: np.ones_like(one) for name, one in values.items()}
            case "change":
                group.reward[:] = 0
        return values

    def explain(self, node: str) -> dict[str, Any]:
        return {"secret": 1} if self.way == "unsaid" else {"A": float("nan")} if self.way == "json" else {}


@pytest.mark.parametrize(
    ("way", "check"),
    [("", ""), ("shape", "per_token"), ("nan", "per_token"), ("node", "per_token"), ("all", "sampled_tokens_only"),
     ("change", "leaves_the_group"), ("unsaid", "explains"), ("json", "explains")],
)  # fmt: skip
def test_the_battery_finds_what_a_rule_gets_wrong(way: str, check: str) -> None:
    found = {problem.check for problem in conformance.check("credit", Broken(way))}
    assert check in found if check else not found


def test_credit_is_the_mean_of_the_attempts_that_share_a_step() -> None:
    group = example_group(["shared"])
    found = assigned(Grpo(norm="mean"), group)
    shared = next(name for name in found if len(group.attempts_of(name)) == 2)
    assert not found[shared].any()
    ends = sorted(float(values.max() + values.min()) for name, values in found.items() if name != shared)
    assert ends == [-0.5, 0.5]
    assert sorted(group.reward) == sorted(ENDS["shared"])


def test_rules_of_trees_are_those_of_tree_rollouts() -> None:
    """Two attempts share their first step: within that branch one wins and one loses, as over the task."""
    group = example_group(["shared"])
    own, weighted = (assigned(find_rule(name), group) for name in ("tree-grpo", "tree-node"))
    for node in own:
        alone = len(group.attempts_of(node)) == 1
        assert np.abs(own[node]).max() == pytest.approx(2.0 if alone else 0.0)
        assert np.abs(weighted[node]).max() == pytest.approx(1.0 if alone else 0.0)


def test_settings_reach_the_rules_that_name_them() -> None:
    assert find_rule("grpo", {"ddof": 0, "gamma": 0.5}).ddof == 0  # type: ignore[attr-defined]
