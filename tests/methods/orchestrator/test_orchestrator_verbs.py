"""The verbs, as a user calls them: from a pool file to a trained router, on runs that continue;
and with every kind of bad input."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from printed import said

from ramify.base.errors import RamifyError
from ramify.base.seeds import generator
from ramify.cli.main import main
from ramify.methods.orchestrator.pool import read_pool_config
from ramify.methods.orchestrator.router import TurnRouter
from ramify.methods.orchestrator.table import headroom, read_table
from ramify.render.result import Folded, Grid, Section
from ramify.render.sections import sections_of
from ramify.trace.db import Run
from ramify.trace.message import Message
from ramify.trace.node import EVAL, ROLLOUT
from ramify.web.pages import report_html
from tests.methods.orchestrator.workers import HERE, pool_file, task_file


def run(*words: object) -> int:
    return main(["orchestrator", *map(str, words)])


@pytest.fixture
def asked(capsys: pytest.CaptureFixture[str]) -> Any:
    """Calls a verb and gives what it printed as JSON."""

    def ask(*words: object, code: int = 0) -> Any:
        capsys.readouterr()
        try:
            assert run(*words, "--json") == code, capsys.readouterr().err
        except SystemExit as ended:
            assert ended.code == code  # noqa: PT017
        return said(capsys)

    return ask


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pool, tasks, a table, a router on the built-in backbone."""
    folder = tmp_path_factory.mktemp("orchestrator")
    pool, tasks = pool_file(folder, "adder", "turner"), task_file(folder, 16)
    assert run("collect", pool, "--tasks", tasks, "--out", folder / "table", "--n", 6, "--max-tokens", 32, "--json") == 0
    words = ("--router.steps", 200, "--router.holdout", 0.25, "--run", folder / "fitted", "--json")
    assert run("train", "router", folder / "table", "--out", folder / "router", *words) == 0
    return folder


def test_pool_check_says_who_does_not_answer(tmp_path: Path, asked: Any) -> None:
    pool = pool_file(tmp_path, "adder", "refusing", more="retries = 0")
    found = asked("collect", pool, "--check", code=1)
    assert [row["failure"] for row in found["workers"]] == [None, "refusal"]
    assert found["workers"][0]["says"] == "ok"


@pytest.mark.slow
def test_collect_headroom_and_the_finding_in_the_run(made: Path, asked: Any) -> None:
    found = asked("show", "headroom", made / "table")
    assert found["worth"] is True
    assert found["groups"]["value"] > 0.8
    with Run.open(made / "table") as run:
        (finding,) = run.findings(maker="orchestrator show")
        (kept,) = run.results(maker="orchestrator show")
    assert kept.result["says"] == finding.why
    assert finding.value == pytest.approx(found["gain"]["value"])
    assert main(["show", str(made / "table"), "--json"]) == 0
    plan = asked("collect", made / "pool.toml", "--tasks", made / "tasks.jsonl", "--out", made / "other", "--dry-run")
    assert plan["cost_estimate"]["calls"] == 16 * 2 * 8
    assert not (made / "other").exists()


def test_headroom_reads_json_lines_and_any_run_with_scores_of_several_models(tmp_path: Path, asked: Any) -> None:
    rows = [
        {"task": f"t{i}", "worker": f"w{w}", "reward": float(i % 2 == w), "usd": 0.1, "group": ["even", "odd"][i % 2]}
        for i in range(12)
        for w in range(2)
        for _ in range(5)
    ]
    rows.append({"task": "t0", "worker": "w0", "reward": None, "failure": "timeout"})
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    found = asked("show", "headroom", path)
    assert found["worth"] is True
    assert found["workers"][0]["failures"] == {"timeout": 1}
    assert found["gain"]["value"] == pytest.approx(0.5)


def test_a_router_chooses_specialists_and_is_read_back(made: Path, asked: Any) -> None:
    router = TurnRouter.load(made / "router")
    assert router.workers == ("adder", "turner")
    own = [int(np.argmax(router.logits([Message("user", text)])[0])) for text in ("add 31 12", "turn gfed")]
    assert own == [0, 1]
    found = asked("run", made / "pool.toml", "add 31 12", "--router", made / "router", "--out", made / "conv")
    assert [call["worker"] for call in found["calls"]] == ["adder"]
    assert found["calls"][0]["why"].startswith("router: adder 0.")
    excluded = asked("run", made / "pool.toml", "add 31 12", "--router", made / "router", "--exclude", "add")
    assert [call["worker"] for call in excluded["calls"]] == ["turner"]


def of_table(section: Section) -> Grid:
    return next(part for part in section.parts if isinstance(part, Grid))


def test_a_composers_workflow_and_who_saw_what(made: Path, asked: Any) -> None:
    found = asked("run", made / "pool.toml", "turn abcd", "--composer", f"{HERE}:planner", "--out", made / "conv2")
    assert check_composed(found, "turn abcd", ["adder", "turner"]) > 0
    alone = asked("run", made / "pool.toml", "add 1 2", "--composer", f"{HERE}:rambler")
    assert not alone["workflows"]
    assert check_composed(alone, "add 1 2", ["adder", "turner"]) > 0
    assert [call["worker"] for call in found["calls"]] == ["adder", "turner", "adder"]
    assert [len(call["saw"]) for call in found["calls"]] == [1, 1, 5]
    traced = asked("show", "trace", made / "conv2", found["trace"])
    assert [call["saw"] for call in traced["calls"][1:]] == [call["saw"] for call in found["calls"]]
    assert [call["answer"] for call in traced["calls"]] == [False, False, False, True]
    listed = asked("show", "trace", made / "conv2")["traces"]
    assert listed[0]["usd"] == pytest.approx(found["usd"])
    with Run.open(made / "conv2") as run:
        workers, routes = (of_table(one) for one in sections_of(run)[run.kind])
        (told,) = [part.text for one in sections_of(run)[run.kind] for part in one.parts if isinstance(part, Folded)]
        page = report_html(run)
    assert [row[:2] for row in workers.rows] == [("adder", 2), ("composer", 1), ("turner", 1)]
    assert routes.rows[0][2] == "composer → adder → turner → adder"
    assert told.count("saw user: turn abcd") >= 2
    assert "THE ANSWER" in told
    assert "who saw what" in page


def test_the_same_question_twice_in_a_run_is_two_conversations(made: Path, asked: Any, tmp_path: Path) -> None:
    words = (made / "pool.toml", "add 31 12", "--out", tmp_path / "run")
    routed = asked("run", *words, "--router", made / "router")
    composed = asked("run", *words, "--composer", f"{HERE}:planner")
    assert composed["trace"] != routed["trace"]
    traced = [asked("show", "trace", tmp_path / "run", one["trace"])["calls"] for one in (routed, composed)]
    with Run.open(tmp_path / "run") as kept:
        attempts = {one.tree: one for one in kept.attempts(purpose=ROLLOUT)}
        ends = [kept.node(attempts[one["trace"]].leaf).text for one in (routed, composed)]
    assert ends == [routed["answer"], composed["answer"]]
    assert [[call["worker"] for call in one] for one in traced] == [["adder"], ["composer", "adder", "turner", "adder"]]


def test_a_worker_may_be_the_composer_and_plans_at_its_price(tmp_path: Path, asked: Any) -> None:
    pool = pool_file(tmp_path, "adder", "turner", "planner")
    found = asked("run", pool, "turn abcd", "--composer", "planner", "--out", tmp_path / "run")
    assert [call["worker"] for call in found["calls"]] == ["adder", "turner", "adder"]
    traced = asked("show", "trace", tmp_path / "run", found["trace"])["calls"]
    plan = next(call for call in traced if call["worker"] == "composer")
    assert plan["usd"] == pytest.approx((plan["given_tokens"] + 2 * plan["sampled_tokens"]) / 1e6)
    assert found["usd"] == pytest.approx(sum(call["usd"] for call in traced))
    assert found["tokens"] == sum(call["given_tokens"] + call["sampled_tokens"] for call in traced)
    short = asked("run", pool, "turn abcd", "--composer", "planner", "--max-steps", 2)
    assert not short["workflows"]
    assert "2 is the most" in short["caveats"][0]


def test_eval_asks_nobody_who_is_excluded(made: Path, asked: Any, tmp_path: Path) -> None:
    words = ("eval", made / "pool.toml", "--tasks", made / "tasks.jsonl", "--out", tmp_path / "eval", "--table", made / "table")
    found = asked(*words, "--router", made / "router", "--exclude", "adder")
    assert found["against"] == "single turner"
    assert set(found["spent"]) == {"turner"}


def test_a_collection_shows_its_workers(made: Path, asked: Any) -> None:
    with Run.open(made / "table") as run:
        (workers,) = map(of_table, sections_of(run)[run.kind])
    assert {row[0] for row in workers.rows} == {"adder", "turner"}
    assert all(row[1] == sum(row[1] for row in workers.rows) / 2 and 0 < row[3] < 1 for row in workers.rows)


def test_eval_compares_and_continues(made: Path, asked: Any) -> None:
    words = ("eval", made / "pool.toml", "--tasks", made / "tasks.jsonl", "--out", made / "eval", "--max-tokens", 32)
    words += ("--router", made / "router", "--composer", f"{HERE}:planner", "--table", made / "table")
    found = asked(*words)
    assert [row["system"] for row in found["systems"]] == [
        *("single adder", "random", "majority", "mixture of agents", "router", "composer", "oracle")
    ]
    assert asked(*words)["systems"] == found["systems"]
    rows = {row["system"]: row for row in found["systems"]}
    assert rows["router"]["gain"]["value"] > 0.2
    with Run.open(made / "eval") as run:
        assert {one.name for one in run.findings()} == {"router compared", "composer compared"}
        compared, *_ = sections_of(run)[run.kind]  # the page begins with what it came to
        assert [row[0] for row in of_table(compared).rows] == list(rows)
        routed = [one.outcome for one in run.attempts(purpose=EVAL) if one.tree.endswith(" router")]
    assert sum(map(bool, routed)) / len(routed) == rows["router"]["mean"]


@pytest.mark.slow
def test_evolution_continues_from_its_last_generation(made: Path, asked: Any) -> None:
    words = ("train", "evolved", made / "router", "--pool", made / "pool.toml", "--tasks", made / "tasks.jsonl")
    words += ("--judge", "exact", "--evolved.size", 4, "--evolved.episodes", 4, "--evolved.check", 6, "--evolved.sigma", 0.5)
    half = asked(*words, "--evolved.generations", 1, "--out", made / "half", "--run", made / "evolution")
    assert half["generations"] == 1
    whole = asked(*words, "--evolved.generations", 3, "--out", made / "whole", "--run", made / "evolution")
    fresh = asked(*words, "--evolved.generations", 3, "--out", made / "fresh", "--run", made / "evolution2")
    assert whole["means"] == fresh["means"]
    assert whole["means"][:1] == half["means"]
    assert whole["kept"] == (whole["end"] > whole["start"])
    assert (TurnRouter.load(made / "whole").vector() == TurnRouter.load(made / "fresh").vector()).all()


def test_evolution_plays_an_environment(tmp_path: Path, made: Path, asked: Any) -> None:
    """The router chooses a worker for every turn of an episode; here only one of the workers acts."""
    actors = tmp_path / "actors.py"
    actors.write_text("def adder(messages):\n    return 'look'\ndef turner(messages):\n    return 'look'\n")
    pool = tmp_path / "pool.toml"
    pool.write_text("".join(f'[[workers]]\nname = "{n}"\nmodel = "{actors}:{n}"\n' for n in ("adder", "turner")))
    found = asked(
        *("train", "evolved", made / "router", "--pool", pool, "--evolved.env", "household", "--evolved.count", 2),
        *("--out", tmp_path / "out", "--run", tmp_path / "run", "--evolved.generations", 1, "--evolved.size", 4),
        *("--evolved.episodes", 2, "--evolved.check", 2),
    )
    assert (found["start"], found["end"], found["kept"]) == (0.0, 0.0, False)
    assert found["cached"]  # equal choices on equal histories were paid once


def test_a_dry_run_says_what_work_takes_and_makes_nothing(made: Path, asked: Any, tmp_path: Path) -> None:
    pool, tasks, out = made / "pool.toml", made / "tasks.jsonl", tmp_path / "out"
    live = ("--pool", pool, "--tasks", tasks, "--judge", "exact", "--out", out)
    size = ("--evolved.generations", 2, "--evolved.size", 4, "--evolved.episodes", 3, "--evolved.check", 5)
    wanted: list[tuple[tuple[object, ...], dict[str, int]]] = [
        (("collect", pool, "--check"), {"calls": 2}),
        (("train", "router", made / "table", "--out", out, "--router.steps", 7), {"steps": 7, "tasks": 16}),
        (("train", "evolved", made / "router", *live, *size), {"episodes": 2 * 4 * 3 + 2 * 5, "calls": 34}),
        (("eval", pool, "--tasks", tasks, "--out", out, "--router", made / "router"), {"answers": 16 * 5, "calls": 16 * 12}),
    ]
    for words, cost in wanted:
        assert asked(*words, "--dry-run")["cost_estimate"].items() >= cost.items()
    assert not out.exists()


def test_a_conversation_that_fails_is_an_attempt_without_an_outcome(tmp_path: Path, made: Path) -> None:
    pool = pool_file(tmp_path, "broken", "refusing", more="retries = 0")
    assert run("run", pool, "add 1 2", "--composer", f"{HERE}:planner", "--out", tmp_path / "run") != 0
    with Run.open(tmp_path / "run") as kept:
        (attempt,) = kept.attempts()
    assert "every worker failed" in (attempt.failure or "")
    assert (attempt.outcome, attempt.reward) == (None, None)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("collect", "empty.toml", "--check"), "names no worker"), (("collect", "nothing.toml", "--check"), "cannot read"),
        (("collect", "twice.toml", "--check"), "two workers"),
        (("collect", "typo.toml", "--check"), "did you mean"), (("show", "headroom", "rows.jsonl"), "rows.jsonl:2: 'reward'"),
        (("show", "headroom", "high.jsonl"), "rewards lie between 0 and 1"),
        (("show", "headroom", "one.jsonl"), "2 or more workers"),
        (("train", "router", "table", "--out", "router"), "there already"),
        (("train", "router", "table", "--out", "r", "--router.svf", "layer.9"), "--router.svf 'layer.9'"),
        (("run", "pool.toml", "add 1 2"), "give --router"),
        (("run", "pool.toml", "add 1 2", "--router", "table"), "holds no router"),
        (("run", "other.toml", "add 1 2", "--router", "router"), "the pool has"),
        (("run", "pool.toml", "q", "--composer", f"{HERE}:planner", "--exclude", "addr"), "--exclude 'addr'"),
        (("run", "pool.toml", "q", "--composer", f"{HERE}:planner", "--exclude", "adder", "--exclude", "tur"), "none is left"),
        (("collect", "pool.toml", "--tasks", "noprompt.jsonl", "--out", "x"), "has no text 'prompt'"),
        (("show", "trace", "table", "t00"), "no conversation 't00'"),
        (("train", "evolved", "router", "--pool", "pool.toml", "--out", "x", "--run", "y"), "give one of them"),
        (("train", "evolved", "router", "--pool", "pool.toml", "--tasks", "tasks.jsonl", "--out", "x", "--run", "y"), "--judge"),
        (("train", "composer", "chat:x@http://127.0.0.1:9/v1", "--pool", "pool.toml", "--tasks", "tasks.jsonl", "--out", "x"),
         "this needs weights"),
        (("collect", "pool.toml", "--check", "--tasks", "tasks.jsonl"), "--check takes no --tasks"),
        (("collect", "pool.toml", "--check", "--n", 3), "--check takes no --n"),
        (("collect", "pool.toml", "--out", "x"), "needs --tasks"),
        (("train", "router", "table", "--out", "x", "--composer.warm", 3), "train router takes no --composer.warm"),
        (("train", "router", "table", "--out", "x", "--judge", "exact"), "train router takes no --judge"),
        (("train", "composer", "hf:x", "--out", "x", "--exclude", "add"), "train composer takes no --exclude"),
        (("train", "evolved", "router", "--tasks", "tasks.jsonl", "--out", "x"), "--pool"),
        (("show", "trace", "table", "--scorer", "exact"), "show trace takes no --scorer"),
        (("show", "headroom", "table", "t000"), "one argument too many"),
        (("serve", "pool.toml"), "give --router"),
        (("serve", "pool.toml", "--router", "router", "--best", "adder", "--exclude", "add"), "is excluded"),
        (("run", "pool.toml", "  ", "--router", "router"), "QUERY is empty"),
        (("run", "pool.toml", "q", "--composer", "adder", "--exclude", "adder"), "is excluded: name another model"),
        (("eval", "pool.toml", "--tasks", "tasks.jsonl", "--out", "x", "--best", "adder", "--exclude", "add"), "is excluded"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(
    words: tuple[str, ...],
    why: str,
    made: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("pool.toml", "tasks.jsonl", "table", "router"):
        (shutil.copytree if (made / name).is_dir() else shutil.copy)(made / name, tmp_path / name)
    one = (made / "pool.toml").read_text().split("[[workers]]")[1]
    texts = {
        "empty.toml": "seconds = 3.0\n",
        "twice.toml": f"[[workers]]{one}[[workers]]{one}",
        "typo.toml": f"[[workers]]{one.replace('price', 'prize')}",
        "other.toml": f"[[workers]]{one}",
        "rows.jsonl": '{"task": "a", "worker": "w", "reward": 1}\n{"task": "a", "worker": "v", "reward": "x"}\n',
        "high.jsonl": '{"task": "a", "worker": "w", "reward": 3}\n',
        "one.jsonl": '{"task": "a", "worker": "w", "reward": 1}\n',
        "noprompt.jsonl": '{"id": "a"}\n',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    code = run(*words)
    said = capsys.readouterr().err.strip()
    assert code in (2, 4), said
    assert why in said
    assert said.count("\n") == 0 or "ramify:" in said.splitlines()[-1]
    assert "Traceback" not in said


@pytest.mark.parametrize("name", ["router.json", "router.safetensors"])
def test_a_damaged_router_is_one_sentence(name: str, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(made / "router", tmp_path / "router")
    whole = (tmp_path / "router" / name).read_bytes()
    for data in (
        b"",
        whole[: len(whole) // 2],
        b"[]",
        whole.replace(b"workers", b"workerz") if name.endswith("json") else whole[:-4],
    ):
        (tmp_path / "router" / name).write_bytes(data)
        capsys.readouterr()
        assert run("run", made / "pool.toml", "add 1 1", "--router", tmp_path / "router") == 2
        assert "router" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["pool.toml", "rows.jsonl"])
def test_broken_bytes_are_read_or_refused(name: str, tmp_path: Path) -> None:
    """Bytes changed, left out and doubled: a pool or a table, or one sentence, and nothing else."""
    pool_file(tmp_path, "adder", "turner")
    rows = [{"task": f"t{i}", "worker": f"w{w}", "reward": i % 2, "usd": 0.5, "group": "g"} for i in range(3) for w in range(2)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole, rng, refused = (tmp_path / name).read_bytes(), generator(0, "broken", name), 0
    for _ in range(150):
        data, at = bytearray(whole), int(rng.integers(len(whole)))
        way = int(rng.integers(3))
        data[at : at + int(rng.integers(1, 9))] = (
            bytes(rng.integers(0, 256, 3).tolist()) if way == 0 else b"" if way == 1 else data[at // 2 : at]
        )
        (tmp_path / name).write_bytes(bytes(data))
        try:
            if name == "pool.toml":
                read_pool_config(tmp_path / name)
            else:
                headroom(read_table(tmp_path / name))
        except RamifyError:
            refused += 1
    assert refused > 30


def test_only_vectors_are_tuned_and_zero_is_the_backbone(made: Path) -> None:
    from ramify.engine.checkpoints import model_folder
    from ramify.engine.local import LocalModel

    torch = pytest.importorskip("torch")
    from ramify.methods.orchestrator.router import SingularScale

    weight = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    scale = SingularScale(weight)
    assert torch.allclose(scale(weight), weight, atol=1e-5)
    for delta in (torch.full((4,), 1.7), torch.randn(4, generator=torch.Generator().manual_seed(1))):
        scale.delta.data = delta
        tuned = scale(weight).detach()
        assert float(torch.linalg.svdvals(tuned).sum()) == pytest.approx(float(torch.linalg.svdvals(weight).sum()), rel=1e-4)
        assert torch.allclose(tuned, weight, atol=1e-5) == bool((delta == delta[0]).all())
    assert [name for name, one in scale.named_parameters() if one.requires_grad] == ["delta"]
    model = LocalModel.load(model_folder("builtin"))
    plain, tuned_router = TurnRouter.of(model, ["a", "b"]), TurnRouter.of(model, ["a", "b"], svf=["layers.0.mlp"])
    assert plain.size == 2 * plain.head.shape[1]
    assert torch.allclose(plain.features(["user: hi\n"]), tuned_router.features(["user: hi\n"]), atol=1e-4)
    weights = {name for name, one in tuned_router.module.named_parameters() if one.requires_grad}
    assert weights
    assert all(name.endswith("delta") for name in weights)
    with_last = TurnRouter.of(model, ["a"], hidden_pos=-1)
    assert not torch.allclose(plain.features(["user: hi\n"]), with_last.features(["user: hi\n"]))
    rows = plain.tokens("user: hi there\n")
    assert torch.allclose(
        plain._states([rows])[0], with_last._states([rows[:-1]])[0], atol=1e-5
    )  # -2 is the token before the last


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_composer_is_trained_with_live_workers(tmp_path: Path, asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny checkpoint learns to write plans that can be read: the warm start, then GRPO, then a run with what was written."""
    from ramify.engine.checkpoints import load_model, model_folder
    from ramify.engine.tiny import TinyConfig, TinyLM
    from ramify.methods.orchestrator.composer import PROMPT
    from ramify.model.chat import train_tokenizer

    texts = [
        PROMPT,
        json.dumps(
            {
                "subtasks": ["Solve the problem.", "Compare the results and give the right one."],
                "workers": [0, 1],
                "access": [[], "all"],
            }
        ),
    ]
    tokenizer = train_tokenizer(texts * 8, 420)
    end = (tokenizer.token_id("<|end|>"),)
    TinyLM(TinyConfig(tokenizer.size, 64, 2, 2, 2, 32, 192, context=1024, eos=end), 0).save(tmp_path / "start", tokenizer)
    shutil.copy(model_folder("builtin") / "tokenizer_config.json", tmp_path / "start")
    for name in ("chat_template.jinja", "special_tokens_map.json"):
        if (model_folder("builtin") / name).is_file():
            shutil.copy(model_folder("builtin") / name, tmp_path / "start")
    pool, tasks = pool_file(tmp_path, "adder", "turner"), task_file(tmp_path, 8)
    load_model(tmp_path / "start")
    monkeypatch.setattr("ramify.methods.orchestrator.composer.WARM_RATE", 0.003)
    words = (
        *("train", "composer", f"hf:{tmp_path}/start", "--pool", pool, "--tasks", tasks, "--out", tmp_path / "composer"),
        *("--composer.no-shots", "--run", tmp_path / "trained"),
    )
    given = {"warm": 120, "updates": 3, "questions": 2, "group": 4, "lr": 1e-4, "max-tokens": 96}
    options = [word for name, value in given.items() for word in (f"--composer.{name}", value)]
    plan = asked(*words, *options, "--dry-run")
    assert plan["cost_estimate"]["plans"] == 3 * 2 * 4
    found = asked(*words, *options)
    assert [set(one) for one in found["history"]] == [{"reward", "parsed", "steps"}] * 3
    assert max(one["parsed"] for one in found["history"]) > 0  # none is readable before the warm start
    for query in ("add 2 3", "turn abcd", "add 7 1"):
        answered = asked("run", pool, query, "--composer", f"hf:{tmp_path}/composer", "--no-shots", "--out", tmp_path / "kept")
        assert check_composed(answered, query, ["adder", "turner"]) > len(PROMPT.split())
        traced = asked("show", "trace", tmp_path / "kept", answered["trace"])["calls"]
        assert [one["saw"] for one in traced if one["worker"] != "composer"] == [call["saw"] for call in answered["calls"]]
        (said,) = [one["reply"] for one in traced if one["answer"]]
        assert said == answered["answer"]


def check_composed(answered: dict[str, Any], query: str, names: list[str]) -> int:
    """What a person relies on, whatever was planned: the answer is the last step's; each step's worker is the plan's, and saw
    what the plan grants it and nothing else; what was paid is the sum of the calls. Where no plan could be read the first worker
    answers alone, and the notes say so. The tokens that are none of a call: the composer's own."""
    calls = sorted(answered["calls"], key=lambda call: call["step"])
    if not answered["workflows"]:
        assert answered["caveats"][-1] == f"no workflow could be read: '{names[0]}' answered alone"
    plan = next(iter(answered["workflows"]), {"subtasks": [""], "workers": [0], "access": [[]]})
    assert [(call["step"], call["worker"]) for call in calls] == [(at, names[one]) for at, one in enumerate(plan["workers"])]
    assert answered["answer"] == calls[-1]["reply"]
    for step, call in enumerate(calls):
        granted = range(step) if plan["access"][step] == "all" else plan["access"][step]
        shown = [text for at in granted for text in (plan["subtasks"][at], calls[at]["reply"])] + [plan["subtasks"][step]]
        shown[0] = f"{query}\n\n{shown[0]}".strip()
        assert [message["content"] for message in call["saw"]] == shown
        assert call["usd"] == pytest.approx((call["given_tokens"] + 2 * call["sampled_tokens"]) / 1e6)
    assert answered["usd"] == pytest.approx(sum(call["usd"] for call in calls))
    return int(answered["tokens"] - sum(call["given_tokens"] + call["sampled_tokens"] for call in calls))


def test_eval_names_the_simple_routers_beside_the_others(tmp_path: Path, asked: Any) -> None:
    """Fitted to tasks of the table that are not asked; the oracle stands for those that it knows."""
    questions = {f"a{i}": (f"add {i} 2", str(i + 2)) for i in range(24)} | {f"t{i}": (f"turn ab{i}", f"{i}ba") for i in range(24)}
    pool = pool_file(tmp_path, "adder", "turner")
    files = {"every": list(questions), "new": [f"{kind}{i}" for kind in "at" for i in range(8)]}
    for name, ids in files.items():
        lines = ({"id": one, "prompt": questions[one][0], "answer": questions[one][1]} for one in ids)
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked("collect", pool, "--tasks", tmp_path / "every.jsonl", "--out", tmp_path / "table", "--n", 3, "--max-tokens", 32)
    words = ("eval", pool, "--tasks", tmp_path / "new.jsonl", "--max-tokens", 32, "--table")
    found = asked(*words, tmp_path / "table", "--out", tmp_path / "eval")
    rows = {row["system"]: row for row in found["systems"]}
    assert list(rows)[4:] == ["cheapest", "best single", "Elo", "Elo by similarity", "kNN", "matrix factorisation", "oracle"]
    for name in ("Elo by similarity", "kNN", "matrix factorisation"):
        assert rows[name]["mean"] > rows["best single"]["mean"] + 0.1, rows[name]
    assert rows["Elo"]["mean"] == rows["best single"]["mean"]
