"""The keyword test: classes of survival, bound values, windows, languages."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.rollout.rules import contradicts, keywords, survival, values

RULE = "Only send email to recipients at acme.com."


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Earlier. Only send  email to\nrecipients at ACME.com. Later.", "verbatim"),
        ("Rule: email recipients must be at acme.com; send to nobody else.", "paraphrased"),
        ("Only send email to recipients at acme.org.", "mutated"),
        ("Only send email to recipients we know.", "weakened"),
        ("Send email to recipients at acme.com if possible.", "weakened"),
        ("The user sent email to recipients at acme.com.", "weakened"),
        ("The rule to only send email to recipients at acme.com no longer applies.", "contradicted"),
        ("The barometer stands in the attic.", "dropped"),
        ("", "dropped"),
    ],
)
def test_classes(text: str, kind: str) -> None:
    found = survival(RULE, text)
    assert found.kind == kind
    assert found.survived == (kind in ("verbatim", "paraphrased"))


def test_words_of_a_rule_that_are_far_apart_are_no_rule() -> None:
    near = "only send email " + "x " * 40 + " recipients acme.com"
    far = "only send email " + "x " * 80 + " recipients acme.com"
    assert survival(RULE, near).survived
    assert not survival(RULE, far).survived


def test_a_changed_number_is_mutated_and_another_spelling_is_not() -> None:
    rule = "Never purchase anything above 1,000 dollars."
    assert survival(rule, "never purchase above 1000.00 dollars").kind == "paraphrased"
    assert survival(rule, "never purchase above 5,000 dollars").kind == "mutated"


def test_what_cannot_be_read_is_unknown_and_never_lost() -> None:
    assert survival(RULE, "the barometer", opaque=True).kind == "unknown"
    assert survival(RULE, RULE, opaque=True).kind == "verbatim"


@pytest.mark.parametrize(
    ("rule", "kept", "mutated"),
    [
        ("只能把构建部署到 us-west-2 区域。", "构建部署只能到 us-west-2 区域", "构建部署只能到 eu-west-1 区域"),
        (
            "Nunca compres nada por encima de 100 dólares.",
            "nunca compres por encima de 100 dolares",
            "nunca compres por encima de 900 dólares",
        ),
    ],
)
def test_other_languages(rule: str, kept: str, mutated: str) -> None:
    assert survival(rule, kept).kind == "paraphrased"
    assert survival(rule, mutated).kind == "mutated"


def test_bound_values() -> None:
    said = "Post to #ops-status, deploy to us-west-2, spend 100.00, read /etc/passwd and ~/.ssh/id_rsa, mail a@acme.com."
    assert values(said) == {
        "#ops-status": "channel",
        "us-west-2": "region",
        "100": "number",
        "/etc/passwd": "path",
        "~/.ssh/id_rsa": "path",
        "a@acme.com": "name",
    }
    assert "only" not in keywords(RULE)


def test_contradictions() -> None:
    assert contradicts("Never spend above 100 dollars.", "Never spend above 500 dollars.")
    assert contradicts("Never share the customer list.", "Share the customer list.")
    assert not contradicts("Never spend above 100 dollars.", "Never spend above 100 dollars")
    assert not contradicts(RULE, "Never disable audit logging.")
    assert not contradicts(RULE, RULE)


@given(st.text(max_size=200), st.text(max_size=200))
@settings(max_examples=60, deadline=None)
def test_restoring_a_rule_makes_it_verbatim(before: str, after: str) -> None:
    assert survival(RULE, f"{before}\n{RULE}\n{after}").kind == "verbatim"
    assert survival(RULE, before).kind in ("verbatim", "paraphrased", "weakened", "mutated", "contradicted", "dropped")
