"""Trajectories of ATIF in and out: steps, images, tokens, subagents, outcomes; what is written the format's own models accept."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from session_logs import ask_why, claude, codex, paths, read, refusals, said, trajectory, write

from ramify.base.errors import UserError
from ramify.cli.main import main
from ramify.integrations.formats.atif import write_atif
from ramify.trace.db import Run
from ramify.trace.intake import IgnoredPart, take
from ramify.trace.node import Annotation, Node
from ramify.trace.notes import noting

OSLO = "Is it warm in Oslo?"


def edited(step: int, **fields: Any) -> dict[str, Any]:
    made = trajectory()
    made["steps"][step - 1] |= fields
    return made


def exported(run: Run, out: Path) -> list[dict[str, Any]]:
    """What is written, each accepted by the format's own models where these are installed."""
    write_atif(run, out)
    made = (
        [json.loads(line) for line in out.read_text().splitlines()] if out.suffix == ".jsonl" else [json.loads(out.read_text())]
    )
    try:
        models = importlib.import_module("atif")
    except ImportError:
        return made
    for one in made:
        models.Trajectory.model_validate(one)
    return made


def test_the_formats_own_models_accept_what_is_read_here_and_refuse_what_is_not() -> None:
    models = pytest.importorskip("atif", reason="the package atif is not installed: ITS MODELS DO NOT CHECK WHAT IS EXPORTED")
    assert len(models.Trajectory.model_validate(trajectory()).steps) == len(trajectory()["steps"])
    with pytest.raises(ValueError, match="source"):
        models.Trajectory.model_validate(edited(1, source="nobody"))


def test_steps_are_messages(tmp_path: Path) -> None:
    with read(write(tmp_path / "t.json", trajectory(extra={"reward": 1.0})), tmp_path / "run") as run:
        nodes = run.nodes(OSLO)[1:]
        assert [said(node) for node in nodes] == [
            ("system", "Use the tools."),
            ("user", OSLO),
            ("assistant", "I look."),
            ("tool", "4 degrees"),
            ("assistant", "No: 4 degrees."),
        ]
        looks, last = nodes[2], nodes[-1]
        assert (looks.message.reasoning, looks.message.calls[0].name) == ("I need a thermometer.", "weather")
        assert looks.data["response"]["metrics"]["cost_usd"] == 0.01
        assert [run.provenance(str(node.provenance)).model for node in (looks, last)] == ["model-x", "model-y"]
        (attempt,) = run.attempts()
        assert (attempt.reward, attempt.success, attempt.failure) == (1.0, True, None)
        assert last.data["record"]["session_id"] == "s1"


def test_what_was_not_sampled_here_is_given(tmp_path: Path) -> None:
    observed = {"results": [{"content": "$ "}]}
    steps = [
        {"source": "user", "message": "go"},
        {"source": "agent", "message": "copied", "is_copied_context": True},
        {"source": "agent", "message": "scripted", "llm_call_count": 0, "observation": observed},
        {"source": "agent", "message": "ls", "observation": observed},
    ]
    with read(write(tmp_path / "t.json", trajectory() | {"steps": steps}), tmp_path / "run") as run:
        nodes = run.nodes("go")[2:]
        assert [(said(node), node.provenance is not None) for node in nodes] == [
            (("assistant", "copied"), False),
            (("assistant", "scripted"), False),
            (("user", "$ "), False),
            (("assistant", "ls"), True),
            (("user", "$ "), False),
        ]
        (made,) = exported(run, tmp_path / "out.json")
        assert [step.get("is_copied_context") or step.get("llm_call_count") for step in made["steps"]] == [None, True, 0, None]
        assert made["steps"][3]["observation"] == observed


def spelled() -> dict[str, Any]:
    """Three replies whose prompts continue one another."""
    made = trajectory()
    first = {"prompt_token_ids": [1, 2, 3], "completion_token_ids": [4, 5], "logprobs": [-0.5, -0.25]}
    last = {"prompt_token_ids": [1, 2, 3, 4, 5, 9, 6], "completion_token_ids": [7, 8], "logprobs": [-1.0, 0.0]}
    made["steps"][2]["metrics"], made["steps"][3]["metrics"] = first, last
    return made


def test_tokens_and_logprobs(tmp_path: Path) -> None:
    with read(write(tmp_path / "t.json", spelled()), tmp_path / "run") as run:
        nodes = run.nodes(OSLO)[1:]
        assert [None if node.tokens is None else node.tokens.tolist() for node in nodes] == [
            [],
            [1, 2, 3],
            [4, 5],
            [9, 6],
            [7, 8],
        ]
        assert [node.sampled_tokens for node in nodes] == [0, 0, 2, 0, 2]
        assert np.asarray(nodes[2].logprobs).tolist() == [-0.5, -0.25]
        shown = run.shown(nodes[-1].id).tokens
        assert shown is not None
        assert shown.tolist() == [1, 2, 3, 4, 5, 9, 6]
        (made,) = exported(run, tmp_path / "out.json")
        for old, new in zip(spelled()["steps"][2:], made["steps"][2:], strict=True):
            assert new["metrics"] == old["metrics"]
    torn = spelled()
    torn["steps"][3]["metrics"]["prompt_token_ids"] = [1, 2, 7]  # the prompt was changed: only replies have tokens
    with read(write(tmp_path / "torn.json", torn), tmp_path / "torn") as run:
        assert [node.tokens is not None for node in run.nodes(OSLO)[1:]] == [False, False, True, False, True]


def test_a_large_document_is_read_without_the_ids_of_its_prompts(tmp_path: Path) -> None:
    many = spelled()
    many["steps"][2]["metrics"]["prompt_token_ids"] = [12345] * (1 << 22)
    (tmp_path / "t.json").write_text(json.dumps(many, indent=1))
    assert (tmp_path / "t.json").stat().st_size > 1 << 24
    with read(tmp_path / "t.json", tmp_path / "run") as run:
        assert [node.tokens is not None for node in run.nodes(OSLO)[1:]] == [False, False, True, False, True]
        assert "prompt_token_ids" in run.memo("ignored", IgnoredPart)
    (tmp_path / "x.json").write_text(json.dumps(trajectory("x" * (1 << 24))))
    with pytest.raises(UserError, match=r"x.json is one trajectory of more than 16777216 bytes, also without"):
        take([tmp_path / "x.json"], tmp_path / "no")


def test_images_are_placeholders(tmp_path: Path) -> None:
    image = {"media_type": "image/png", "path": "images/a.png"}
    inline = {"media_type": "image/png", "path": "data:image/png;base64,YSBwaWN0dXJl"}
    parts = [{"type": "text", "text": "See "}, {"type": "image", "source": image}, {"type": "image", "source": inline}]
    with read(write(tmp_path / "t.json", edited(2, message=parts)), tmp_path / "run") as run:
        (info,) = run.trees()
        asked = run.nodes(info.name)[2]
        assert asked.text.startswith("See [image: images/a.png][image: image/png, ")
        (blob,) = [part["blob"] for part in asked.data["media"].values() if "blob" in part]
        assert run.get_blob(blob) == b"a picture"
        (made,) = exported(run, tmp_path / "out.json")
        assert made["steps"][1]["message"] == parts


def family() -> dict[str, Any]:
    """A trajectory whose call starts a subagent, which starts one, too."""
    inner = trajectory("inner") | {"trajectory_id": "inner"}
    inner["steps"][1]["message"] = "Look inside."
    outer = trajectory("outer") | {"trajectory_id": "outer", "subagent_trajectories": [inner]}
    outer["steps"][1]["message"] = "Look around."
    made = trajectory("done") | {"subagent_trajectories": [outer]}
    for one, name in ((outer, "inner"), (made, "outer")):
        refs = [{"trajectory_id": name}, {"trajectory_path": "elsewhere.json"}]
        one["steps"][2]["observation"]["results"][0]["subagent_trajectory_ref"] = refs
    return made


def test_subagents_are_trees_that_their_callers_name(tmp_path: Path) -> None:
    with read(write(tmp_path / "t.json", family()), tmp_path / "run") as run:
        names = [OSLO, "subagent: Look around.", "subagent: Look inside."]
        assert sorted(info.name for info in run.trees()) == sorted(names)
        ends = [(run.node(note.node).role, run.node(note.value["node"]).text) for note in run.each(Annotation)]
        assert sorted(ends) == [("tool", "inner"), ("tool", "outer")]
        assert run.nodes(OSLO)[4].data["subagents"][1] == {"trajectory_path": "elsewhere.json"}
        (made,) = exported(run, tmp_path / "out.json")
        (outer,) = made["subagent_trajectories"]
        (inner,) = outer["subagent_trajectories"]
        assert [one["steps"][-1]["message"] for one in (made, outer, inner)] == ["done", "outer", "inner"]
        (result,) = made["steps"][2]["observation"]["results"]
        assert result["subagent_trajectory_ref"] == [{"trajectory_id": outer["trajectory_id"]}]


def test_harbors_result_has_task_and_outcome(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    endings: dict[str, dict[str, Any]] = {
        "won": {"verifier_result": {"rewards": {"reward": 1.0}}},
        "lost": {"verifier_result": {"rewards": {"reward": 0.0}}},
        "slow": {
            "verifier_result": None,
            "exception_info": {"exception_type": "AgentTimeoutError", "exception_message": "900 s"},
        },
        "fell": {"exception_info": {"exception_type": "DaemonError", "exception_message": "no docker"}},
    }
    for name, ending in endings.items():
        (jobs / name / "agent" / "sessions" / "p").mkdir(parents=True)
        write(jobs / name / "agent" / "trajectory.json", trajectory(f"It is {name}."))
        write(jobs / name / "agent" / "sessions" / "p" / "s1.jsonl", *claude())  # the same attempt, as the agent logged it
        (jobs / name / "result.json").write_text(json.dumps({"task_name": "oslo", "trial_name": name, **ending}))
    taken = take([jobs], tmp_path / "run")
    assert sorted(taken.told) == [f"{name}/agent/sessions/p/s1.jsonl" for name in sorted(endings)]
    with Run.open(tmp_path / "run") as run:
        assert [info.name for info in run.trees()] == ["oslo"]
        found = {run.node(one.leaf).text: (one.reward, one.success, one.truncated, one.failure) for one in run.attempts()}
        assert found == {
            "It is won.": (1.0, True, False, None),
            "It is lost.": (0.0, False, False, None),
            "It is slow.": (None, None, True, None),
            "It is fell.": (None, None, False, "DaemonError: no docker"),
        }


def without_ids(node: Node) -> tuple[Any, ...]:
    """What a round trip keeps of a node; why a reply ended has no place in the format."""
    calls = [(call.name, dict(call.arguments)) for call in node.message.calls]
    arrays = [None if one is None else one.tolist() for one in (node.tokens, node.sampled, node.logprobs)]
    return node.role, node.text, node.message.reasoning, calls, node.data.get("tool_call_id"), arrays


def test_a_round_trip_keeps_what_the_format_holds(tmp_path: Path) -> None:
    logs = {
        "tokens": [spelled()],
        "family": [family()],
        "claude": claude(),
        "codex": codex(),
        "reward": [trajectory(extra={"reward": 0.5, "truncated": True})],
    }
    for name, records in logs.items():
        take([write(tmp_path / f"{name}.jsonl", *records)], tmp_path / name)
        with Run.open(tmp_path / name) as run:
            exported(run, tmp_path / f"{name}-out.jsonl")
            take([tmp_path / f"{name}-out.jsonl"], tmp_path / f"{name}-again")
            with Run.open(tmp_path / f"{name}-again") as again:
                for info in run.trees():
                    old, new = run.nodes(info.name), again.nodes(info.name)
                    assert [without_ids(node) for node in old] == [without_ids(node) for node in new], name
                ended = [[(one.reward, one.success, one.truncated, one.failure) for one in of.attempts()] for of in (run, again)]
                assert sorted(ended[0], key=str) == sorted(ended[1], key=str)


def test_export_says_what_it_cannot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    take([write(tmp_path / "t.jsonl", trajectory(), trajectory("Yes."))], tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "x.json"), "--to", "atif"]) == 2
    assert "the run holds several attempts, and a .json holds one: write .jsonl" in capsys.readouterr().err.replace("\n", " ")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "x.txt"), "--to", "atif"]) == 2
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "x.json"), "--to", "atif", "--max-rows", "1"]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "x.jsonl"), "--to", "atif"]) == 0
    assert len((tmp_path / "x.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (trajectory(schema_version="ATIF-v2.0"), r"t.jsonl:1: 'schema_version' is 'ATIF-v2.0'"),
        (trajectory(steps=[]), r"t.jsonl:1: 'steps' is empty"),
        (trajectory(agent=3), r"t.jsonl:1: 'agent' is not an object"),
        (edited(1, source="tool"), r"step 1: 'source' is 'tool'"),
        (edited(2, message=3), r"step 2: 'message', if no text, must be a list"),
        (edited(2, message=[{"type": "video"}]), r"step 2: 'message', part 0 is of type 'video'"),
        (
            edited(3, tool_calls=[{"tool_call_id": "x", "function_name": "y", "arguments": "z"}]),
            r"tool call 0: 'arguments' is not",
        ),
        (edited(3, metrics={"completion_token_ids": [1, -1]}), r"step 3: 'completion_token_ids' holds something"),
        (
            edited(3, metrics={"completion_token_ids": [1], "logprobs": []}),
            r"step 3: 'logprobs' must hold a number for each of 1",
        ),
        (trajectory(subagent_trajectories=[{}]), r"subagent trajectory 0: 'trajectory_id' must be text"),
    ],
)
def test_what_is_broken_is_named(tmp_path: Path, bad: dict[str, Any], fault: str) -> None:
    with pytest.raises(UserError, match=fault):
        take([write(tmp_path / "t.jsonl", bad)], tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_field_that_is_not_known_is_counted(tmp_path: Path) -> None:
    with noting() as notes:
        read(write(tmp_path / "t.json", edited(2, mood="calm") | {"mood": "calm"}), tmp_path / "run").close()
    assert {(one.field, one.of) for one in notes.unread} == {("mood", "step"), ("mood", "trajectory")}


def test_broken_trajectories_are_read_or_refused(tmp_path: Path) -> None:
    steps = [trajectory(steps=[step]) for step in family()["steps"]]
    assert min(refusals("atif", tmp_path, [spelled(), *steps])) > 0


def test_from_trajectories_to_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = [[edited(3, message="I look." if at % 2 else "I guess.")] for at in range(4)]
    for at, (one,) in enumerate(logs):
        one["steps"][3]["message"] = f"Ended {at}."
    why = ask_why(tmp_path, logs, capsys)
    assert "I guess." in why
    assert len(paths(Run.open(tmp_path / "run"), OSLO)) == 4
