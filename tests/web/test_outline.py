"""Equal steps are one choice, and the chance of success after each is estimated as the closed forms say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from web_sample import make_run

from ramify.base.codec import from_json, to_json
from ramify.jobs.why import Why
from ramify.jobs.why.records import Chance
from ramify.rollout.potential import counts_annotation
from ramify.stats.drops import Counts
from ramify.stats.intervals import wilson
from ramify.trace.db import Run
from ramify.trace.node import AttemptRecord, Finding, Node, Provenance, Score, make_node
from ramify.trace.outcome import settled
from ramify.web.drawn import DrawnFinding, DrawnTree, drawn
from ramify.web.outline import Outline, outline
from ramify.web.steps import read_tree
from ramify.web.tasks import task_rows

BY = Provenance("m", "w", {}, 0)


class Grown:
    """A run of one tree that a test grows step by step: `do` a reply with its answer, `end` with an outcome."""

    def __init__(self, folder: Path) -> None:
        self.run = Run.create(folder, {})
        self.run.add(BY)
        self.run.add_tree("t", {"id": "t"})
        self.start = self._add(None, "user", "find the key")
        self.count = 0

    def _add(self, parent: Node | None, role: str, text: str, **fields: object) -> Node:
        node = make_node("t", parent and parent.id, 0 if parent is None else 1, role, text, **fields)
        self.run.add(node)
        return node

    def do(self, parent: Node, action: str, answer: str = "done", edit: str = "") -> Node:
        self.count += 1
        reply = self._add(parent, "assistant", action, provenance=BY.hash, index=self.count)
        return self._add(reply, "user", answer, data={"edit": {"replace": edit}} if edit else {})

    def end(self, node: Node, won: bool) -> None:
        self.count += 1
        self.run.add(Score(node.id, "env", float(won)))
        self.run.add(AttemptRecord(node.id, "t", index=self.count, outcome=won, reward=float(won)))

    def outline(self) -> Outline:
        self.run.commit()
        return outline(self.run, read_tree(self.run, "t"))


@pytest.fixture
def grown(tmp_path: Path):
    one = Grown(tmp_path / "run")
    yield one
    one.run.close()


def test_equal_steps_are_one_choice_and_shares_are_those_of_flat_attempts(grown: Grown) -> None:
    for won in (True, True, False):
        grown.end(grown.do(grown.do(grown.start, "go left"), "open"), won)
    grown.end(grown.do(grown.do(grown.start, "go left"), "wait"), False)
    grown.end(grown.do(grown.start, "go right"), False)
    found = grown.outline()
    texts = {choice.text: choice for choice in found.choices}
    assert len(found.choices) == 1 + 4
    assert (len(texts["go left"].steps), len(texts["open"].steps)) == (4, 3)
    for name, k, n in (("go left", 2, 4), ("open", 2, 3), ("go right", 0, 1)):
        chance = texts[name].chance
        assert chance is not None
        assert (chance.p, chance.n) == (pytest.approx(k / n), pytest.approx(n))
        assert chance.interval == pytest.approx(wilson(k, n))
    root = found.choices[0].chance
    assert root is not None
    assert (root.p, root.n) == (pytest.approx(2 / 5), pytest.approx(5))


def test_many_forks_of_one_sample_count_as_one_before_it(grown: Grown) -> None:
    grown.end(grown.do(grown.start, "go right"), True)
    left = grown.do(grown.start, "go left")
    for _ in range(30):
        grown.end(grown.do(left, "wait"), False)
    root = grown.outline().choices[0].chance
    assert root is not None
    assert root.p == pytest.approx(1 / 2)
    assert root.n == pytest.approx(2)  # the choice between the two is what is uncertain


def test_what_follows_an_edit_does_not_count_for_what_is_before_it(grown: Grown) -> None:
    left = grown.do(grown.start, "look")
    for _ in range(4):
        grown.end(grown.do(left, "wait"), False)
    reply = grown.run.node(str(left.parent))
    changed = make_node("t", reply.id, 1, "user", "the door is open", data={"edit": {"replace": "the door is open"}})
    grown.run.add(changed)
    for _ in range(6):
        grown.end(grown.do(changed, "go in"), True)
    found = grown.outline()
    texts = {choice.text: choice for choice in found.choices}
    assert texts["look"].chance is not None
    assert texts["look"].chance.p == 0
    assert texts["go in"].edit
    assert texts["go in"].chance is not None
    assert texts["go in"].chance.p == 1
    assert found.drop is None


def test_what_was_chosen_in_one_state_stands_together_and_what_ramify_why_counted_comes_first(grown: Grown) -> None:
    for won in (True, False):
        grown.end(grown.do(grown.do(grown.start, "go left", "a door"), "open", "dark"), won)
    grown.end(grown.do(grown.do(grown.start, "go right", "a door"), "wait", "dark"), False)
    tree, found = read_tree(grown.run, "t"), grown.outline()
    record = drawn(grown.run, tree, found, {})
    texts = {choice.text: choice for choice in record.choices}
    assert texts["open"].rivals == texts["wait"].rivals >= 0
    first, second = record.rivals[texts["open"].rivals]
    assert (first.n, first.p, second.n) == (2, (0.5, *(round(end, 4) for end in wilson(1, 2)), 2), 1)
    assert [record.choices[at].text for at in (*first.choices, *second.choices)] == ["open", "wait"]
    assert [choice.reach for choice in record.choices] == pytest.approx([1, 2 / 3, 2 / 3, 1 / 3, 1 / 3])
    before, after = (Chance(k / 40, (k / 40 - 0.1, k / 40 + 0.1), k, 40) for k in (20, 4))
    evidence = to_json(
        Why(tree="t", attempt="end", success=False, verdict="step", headline="Lost at `open`", before=before, after=after)
    )
    at = texts["open"].ids[0]
    grown.run.conclude("why", [Finding("lost here", "why", "Lost at `open`", at, evidence=evidence)])
    lost = drawn(grown.run, tree, found, {}).choices[found.of[at]]
    assert (lost.p, lost.was, lost.change, lost.measured) == ((0.1, 0.0, 0.2, 40), (0.5, 0.4, 0.6, 40), -0.4, "attempt")


def test_counted_forks_come_before_the_attempts(grown: Grown) -> None:
    left = grown.do(grown.start, "look")
    grown.end(grown.do(left, "wait"), True)
    grown.run.add(counts_annotation(left.id, 0, Counts(3, 64)), counts_annotation(grown.start.id, 0, Counts(50, 64)))
    found = grown.outline()
    chances = [choice.chance for choice in found.choices[:2]]
    assert [(c.p, c.n, c.measured) for c in chances if c] == [(50 / 64, 64, True), (3 / 64, 64, True)]
    assert found.drop == (pytest.approx(-47 / 64), 1)
    tree = read_tree(grown.run, "t")
    grown.run.conclude("why", [Finding("lost here", "why", "Lost at `look`: <b>", left.parent, action="ramify fork x y")])
    said = drawn(grown.run, tree, found, {})
    assert (said.drop, said.lost) == (1, 1)
    assert said.findings == (DrawnFinding(1, "lost here", "why", "Lost at `look`: <b>", "ramify fork x y"),)
    assert said.choices[1].p == (round(3 / 64, 4), *(round(end, 4) for end in wilson(3, 64)), 64)
    assert (said.choices[1].change, said.choices[1].sure, said.choices[1].measured) == (
        pytest.approx(-47 / 64, abs=1e-3),
        True,
        "fork",
    )


def test_a_reply_that_was_forked_inside_is_a_step_beside_it(tmp_path: Path) -> None:
    def spelled(parent: Node, offset: int, text: str, index: int, opens: bool) -> Node:
        size = len(text)
        return make_node(
            "t", parent.id, offset, "assistant", text, tokens=range(size), sampled=[True] * size, ends=range(1, size + 1),
            opens=opens, provenance=BY.hash, index=index,
        )  # fmt: skip

    with Run.create(tmp_path / "run", {}) as run:
        run.add(BY)
        run.add_tree("t", {"id": "t"})
        start = make_node("t", None, 0, "user", "hi", tokens=[1, 2], ends=[1, 2])
        whole = spelled(start, 2, "go left", 0, True)
        other = spelled(whole, 3, "right", 1, False)
        run.add(start, whole, other, Score(whole.id, "env", 0.0), Score(other.id, "env", 1.0))
        tree = read_tree(run, "t")
        found = outline(run, tree)
        assert [choice.text for choice in found.choices[1:]] == ["go left", "go right"]
        assert [choice.parent for choice in found.choices[1:]] == [0, 0]
        assert [dict(choice.ends) for choice in found.choices[1:]] == [{"failure": 1}, {"success": 1}]
        record = drawn(run, tree, found, {})
        assert record.choices[2].fork_of == (1, 3)
        assert record.choices[2].label == "…right"


def test_the_record_holds_every_step_once(tmp_path: Path) -> None:
    with Run.open(make_run(tmp_path / "run")) as run:
        for info in run.trees():
            tree = read_tree(run, info.name)
            found = outline(run, tree)
            record = drawn(run, tree, found, {})
            ids = [name for row in record.choices for name in row.ids]
            assert sorted(ids) == sorted(step.id for step in tree.steps)
            assert [row.up < at for at, row in enumerate(record.choices)] == [True] * len(record.choices)
            assert record.choices[0].size == len(record.choices)
            assert record.choices[0].below == len(tree.ends)
            assert from_json(DrawnTree, json.loads(json.dumps(to_json(record, lean=True)))) == record


def test_the_rows_of_the_table_are_the_trees(tmp_path: Path) -> None:
    with Run.open(make_run(tmp_path / "run")) as run:
        name = run.trees()[-1].name
        end = run.scores(tree=name)[0].node
        run_rows = task_rows(run, settled(run))
        assert [row.name for row in run_rows] == [info.name for info in run.trees()]
        for row in run_rows:
            scores = run.scores(tree=row.name, scorer="env")
            assert (row.attempts, row.successes) == (len(scores), sum(score.value or 0 for score in scores))
    with Run.open(tmp_path / "run", write=True) as run:
        run.conclude("why", [Finding("lost here", "why", "Lost", end, value=-0.5)])
        row = task_rows(run, settled(run))[-1]
        assert (row.drop, row.found) == (-0.5, 1)
