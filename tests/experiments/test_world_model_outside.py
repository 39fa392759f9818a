"""The comparison with another reader of observations and judgements, on made outputs of both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ramify.base.errors import UserError
from ramify.methods.world_model.algorithm import RUBRIC, TAG, extract, read_scores
from ramify.methods.world_model.judging import shown
from ramify_experiments.world_model.outside import (
    FIVES,
    FORMS,
    JUDGEMENTS,
    PRAISE,
    QUOTED,
    PeerParsed,
    compared,
    judge_prompt,
    question_of,
    total,
)


def test_differences_are_counted() -> None:
    replies = [f"<{TAG}>a</{TAG}>", f"<{TAG}>b</{TAG}>", "praise", "<think>x</think>"]
    whole = dict.fromkeys(RUBRIC, 4)
    judged = [json.dumps({"scores": whole}), json.dumps({"scores": {"format": 3}}), "nothing", json.dumps({"scores": whole})]
    scores = [whole, dict.fromkeys(RUBRIC, 0) | {"format": 3}, dict.fromkeys(RUBRIC, 0), whole | {"format": 5}]
    peer = PeerParsed(
        ("a", "c", "praise", "No output"),
        tuple({"success": i != 2, "scores": each} for i, each in enumerate(scores)),
    )
    counts = [row[1].split(" [")[0] for row in compared(replies, judged, peer)]
    assert counts == ["1 of 4", "1 of 2", "2 of 4", "3 of 4", "1 of 3", "1 of 2"]


def test_no_form_of_a_reply_brings_praise_to_the_judge() -> None:
    read = {name: extract(form.format(t=TAG, T=TAG.upper(), praise=PRAISE)) for name, form in FORMS.items()}
    assert not any(PRAISE in (text or "") for text in read.values())
    refused = {name for name, text in read.items() if text is None}
    assert refused == {
        *("capitals", "a tag that is not closed", "a tag that is not closed, and praise", "no tag", "no tag, and praise"),
        *("thoughts alone", "nothing"),
    }
    assert {(text or "").strip() for name, text in read.items() if name not in refused} == {"file.txt"}


def test_the_forms_of_a_judgement() -> None:
    read = {name: total(read_scores(text)) for name, text in JUDGEMENTS.items() if name not in QUOTED}
    assert {name for name, mean in read.items() if mean is None} == {
        *("a comma too many", "single quotes", "prose", "a total alone", "a score missing", "no reply"),
        *(f"a score {one!r}" for one in (None, "good", "2", "2/5", True)),
    }
    odd = {"a score 2.5": 3.7, "a score 9": 4.2, "a score 0": 3.4, "a score -3": 3.4}
    assert {name: mean for name, mean in read.items() if mean not in (None, 4)} == pytest.approx(odd)


def test_no_quote_of_the_judged_text_is_its_judgement() -> None:
    assert total(read_scores(FIVES)) == 5
    for text in QUOTED.values():
        assert total(read_scores(text.replace(FIVES, shown(FIVES)))) == 4


def test_the_peers_question() -> None:
    template = "{context}|{world_model_input}|{predicted_observation}|{ground_truth} "
    asked = question_of(template, "ls", "a", "b", "pwd\n/\n")
    assert asked.startswith("# Context (Historical Interactions):\n\npwd\n/\n|# Current Turn:\n\nls|")
    assert asked.endswith("|**Ground Truth (Real Output):**\n```\nb\n```")
    assert question_of(template, "ls", "a", "b").startswith("|# Current Turn")


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "eval" / "lwm_eval_utils"
    place.mkdir(parents=True)
    (place / "task_configs.py").write_text("X = 1\n")
    with pytest.raises(UserError, match="should be a checkout of QwenLM/Qwen-AgentWorld"):
        judge_prompt(tmp_path)
    (place / "task_configs.py").write_text('X = 1\nJUDGE_USER_PROMPT = """{context} scores"""\n')
    assert judge_prompt(tmp_path) == "{context} scores"
