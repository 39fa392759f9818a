"""Metrics, gold spans, gate, phases and mask: worked cases and invariants (section 8)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.base.errors import UserError
from ramify.methods.diagnose.algorithm import (
    LEVELS,
    PAPER,
    InjectionGate,
    SolveRates,
    gains,
    gold_spans,
    scores,
    threshold,
)
from ramify.methods.diagnose.case import CaseFile, Diagnosis
from ramify.methods.diagnose.injection import inject
from ramify.methods.diagnose.masking import mask
from ramify.methods.diagnose.phases import classify, shell
from ramify.methods.diagnose.results import summary
from ramify.methods.diagnose.signals import agreement
from ramify.trace.message import Message

GOLD = [("a.py", 10, 12), ("b.py", 5, 5)]
spans = st.lists(
    st.tuples(st.sampled_from(["a.py", "b.py", "c.py"]), st.integers(1, 30), st.integers(0, 8)).map(
        lambda s: (s[0], s[1], s[1] + s[2])
    ),
    max_size=5,
)


def test_the_worked_case() -> None:
    row = scores([("a.py", 8, 17), ("c.py", 1, 3)], GOLD)
    assert row["coverage recall"] == row["span precision"] == row["file precision"] == row["file recall"] == row["file F1"] == 0.5
    assert row["tightness"] == pytest.approx(0.3)
    assert row["Jaccard"] == pytest.approx(1 / 3)
    assert row["exact set"] == 0
    assert scores([("a.py", 11, 12)], GOLD)["coverage recall"] == 0
    none = scores([], GOLD)
    assert (none["file precision"], none["coverage recall"], none["span precision"], none["tightness"]) == (0, 0, 0, None)
    assert summary([none, row]).metrics["tightness"].n == 1


@given(spans, st.randoms(use_true_random=False))
def test_order_and_repetition_of_predictions_do_not_matter(predicted: list[tuple[str, int, int]], rng: object) -> None:
    kept = {k: v for k, v in scores(predicted, GOLD).items() if "@1" not in k}
    other = [*predicted, *predicted[:2]]
    rng.shuffle(other)  # type: ignore[attr-defined]
    assert {k: v for k, v in scores(other, GOLD).items() if "@1" not in k} == kept


@given(spans.filter(bool), st.integers(0, 4), st.integers(0, 10), st.integers(0, 10))
def test_widening_never_lowers_coverage_and_whole_files_give_file_recall(
    predicted: list[tuple[str, int, int]], at: int, up: int, down: int
) -> None:
    file, start, end = predicted[at % len(predicted)]
    wider = [*predicted]
    wider[at % len(predicted)] = (file, max(1, start - up), end + down)
    a, b = scores(predicted, GOLD), scores(wider, GOLD)
    assert b["coverage recall"] >= a["coverage recall"]  # type: ignore[operator]
    if a["coverage recall"] == b["coverage recall"] and a["tightness"] is not None:
        assert b["tightness"] <= a["tightness"]  # type: ignore[operator]
    whole = [(f, 1, 99) for f, _, _ in predicted]
    assert scores(whole, GOLD)["coverage recall"] == sum(any(f == g[0] for f, _, _ in predicted) for g in GOLD) / 2


def test_the_papers_table_is_aggregated() -> None:
    assert {name: round(value, 2) for name, value in gains(PAPER).items()} == {
        "All": 4.39,
        "Filtered": 5.33,
        "max(All, Filtered)": 5.95,
    }


PATCH = """diff --git a/x/a.py b/x/b.py
similarity index 90%
rename from x/a.py
rename to x/b.py
--- a/x/a.py
+++ b/x/b.py
@@ -3,4 +3,4 @@ def f():
 one
-two
-three
+TWO
 four
@@ -20,2 +20,3 @@
 twenty
+new
 next
--- /dev/null
+++ b/new.py
@@ -0,0 +1,2 @@
+a
+b
--- a/del.py
+++ b/del.py
@@ -1,0 +2 @@
+after the first
\\ No newline at end of file
"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_gold_spans_are_those_before_the_patch(end: str) -> None:
    assert gold_spans(PATCH.replace("\n", end)) == [("x/a.py", 4, 5), ("x/a.py", 20, 20), ("del.py", 1, 1)]
    with pytest.raises(UserError, match="no hunk"):
        gold_spans("hello")


def test_the_threshold() -> None:
    assert threshold(SolveRates(0.6, 0.8, 0.4)) == pytest.approx(0.5)
    assert threshold(SolveRates(0.3, 0.8, 0.4)) == 0


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_the_gate(a: float, b: float, c: float, price: float, more: float) -> None:
    wrong, nothing, right = sorted((a, b, c))
    agent = SolveRates(nothing, right, wrong)
    q = threshold(agent)
    assert 0 <= q <= 1
    assert threshold(agent, price + more, 0.1) <= threshold(agent, price, 0.1) <= q
    gate = InjectionGate(0.5, {}, agent)
    if wrong < nothing < right:
        assert gate.injects(1.0)
        assert not gate.injects(0.0)
    if nothing <= wrong:
        assert gate.injects(0.0)


def test_a_gate_is_calibrated_and_refuses_what_it_cannot_learn_from() -> None:
    signals = [{"consistency": "span", "self_check": "executes"}] * 30 + [{"consistency": "none", "self_check": "elsewhere"}] * 30
    gate = InjectionGate.fit(signals, [True] * 27 + [False] * 3 + [True] * 3 + [False] * 27, SolveRates(0.6, 0.8, 0.3))
    high, low = gate.probability(signals[0]), gate.probability(signals[-1])
    assert low < 0.1 < 0.9 < high
    assert gate.probability({}) == pytest.approx(0.5)
    assert gate.probability({"recall_risk": "memory"}) == 0
    for name, table in gate.likelihoods.items():
        assert sum(pair[0] for pair in table.values()) == pytest.approx(1)
        assert set(table) == set(LEVELS[name])
    with pytest.raises(UserError, match="right and on wrong"):
        InjectionGate.fit(signals, [True] * 60, SolveRates(0.6, 0.8, 0.3))
    with pytest.raises(UserError, match="did you mean 'consistency'"):
        InjectionGate.fit([{"consistancy": "span"}] * 2, [True, False], SolveRates(0.6, 0.8, 0.3))


def test_agreement_of_localizations() -> None:
    def case(*places: tuple[str, int, int]) -> CaseFile:
        return CaseFile("i", "r", "", findings=tuple(Diagnosis(*place) for place in places))

    assert agreement([case(("a.py", 1, 9)), case(("a.py", 5, 12))]) == "span"
    assert agreement([case(("a.py", 1, 9)), case(("a.py", 15, 22))]) == "file"
    assert agreement([case(("a.py", 1, 9)), case(("b.py", 1, 9))]) == "none"
    assert agreement([case(("a.py", 1, 9)), case()]) == "none"


def test_the_prompt_holds_what_the_gate_lets_through() -> None:
    found = (
        Diagnosis("a.py", 1, 2, root_cause="swapped", confidence=0.9),
        Diagnosis("b.py", 3, 4, root_cause="unsure", confidence=0.2),
    )
    case = CaseFile("i", "r", "", findings=found, issue="It fails.")
    gate = InjectionGate(0.5, {}, SolveRates(0.6, 0.8, 0.4))
    text = inject(case, gate)
    assert "a.py, lines 1 to 2" in text
    assert "b.py" not in text
    assert "b.py" in inject(case)
    assert "swapped" not in inject(case, fields=("solution_idea",))
    assert inject(CaseFile("i", "r", "", findings=(), issue="It fails."), gate) == "It fails.\n"
    with pytest.raises(UserError, match="did you mean 'root_cause'"):
        inject(case, fields=("root_case",))
    with pytest.raises(UserError, match="no confidence"):
        inject(CaseFile("i", "r", "", findings=(Diagnosis("a.py", 1, 2),), issue="x"), gate)


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("cd /repo && grep -rn total src", "localize"), ("sed -n 1,20p a.py", "localize"), ("cat a.py", "localize"),
        ("cat > reproduce.py <<'EOF'\nimport x\nEOF", "make_test"), ("sed -i s/a/b/ tests/test_x.py", "make_test"),
        ("sed -i 's/a/b/' src/x.py", "repair"),
        ("cd /x && pip install -e .", "prepare_env"), ("python -m pytest tests -q", "run_test"),
        ("cd /x && python reproduce.py", "run_test"),
        ("git apply fix.patch", "repair"), ("echo hi > src/a.py", "repair"), ("grep x a.py 2> /dev/null", "localize"),
        ("apt-get install -y rg", "prepare_env"),
        ("cp a.py conftest.py", "make_test"), ("python -c 'print(1)'", "localize"), ("ls; sed -i s/a/b/ a.py", "repair"),
        ("exit", "finish"),
    ],
)  # fmt: skip
def test_commands_are_classed(command: str, wanted: str) -> None:
    assert shell(command) == wanted


@pytest.mark.parametrize(
    ("name", "arguments", "wanted"),
    [
        ("str_replace_editor", {"command": "view", "path": "a.py"}, "localize"),
        ("str_replace_editor", {"command": "create", "path": "repro.py"}, "make_test"),
        ("str_replace_editor", {"command": "str_replace", "path": "src/a.py"}, "repair"),
        ("view_file", {"path": "a.py"}, "localize"),
        ("execute_bash", {"command": "pytest"}, "run_test"), ("finish", {}, "finish"), ("think", {"thought": "edit"}, "think"),
        ("write_file", {"path": "a.py"}, "repair"),
    ],
)  # fmt: skip
def test_calls_are_classed(name: str, arguments: dict[str, str], wanted: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}
    assert classify(Message("assistant", "", {"tool_calls": [call]})) == wanted
    assert classify(Message("assistant", "I wonder.")) == "think"


def test_masking() -> None:
    issue = (
        'See django/db/models/query.py:12 and https://github.com/django/django/issues/3 .\n  File "/usr/x/query.py", line 3, in '
        "f\nIn django.db it fails for 3/4 of 1.5 users.\n"
    )
    text, masked = mask(issue, ["django"])
    assert "query.py" not in text
    assert "django" not in text
    assert "3/4 of 1.5 users" in text
    assert "line 3, in f" in text
    assert len(text.splitlines()) == len(issue.splitlines())
    assert "django/db/models/query.py:12" in masked
    assert mask(text, ["django"])[0] == text
