"""Verbs of every method run on the kernel: what they ask of the sampler, of forks, of judges and of the run is counted."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramify.base.registry import builtin_methods
from ramify.cli.main import main
from ramify.engine.local import LocalModel
from ramify.model.function import FunctionModel
from ramify.model.scripted import ScriptedModel
from ramify.rollout import potential
from ramify.rollout.run import Episodes
from ramify.rollout.sampler import Sampler
from ramify.score import judge as family
from ramify.trace.db import Run
from tests.cli.test_one_record import RULE, record
from tests.methods.governance.test_restored_rule import played as dropped
from tests.pair import save_pair

pytestmark = pytest.mark.slow

CASE = """
question = "Why the shortcut?"
env = "factory:tests.methods.forensics.scripted_organisms:environment"
model = "factory:tests.methods.forensics.scripted_organisms:tedious"
n = 10
sentences = "stops"
[fields.errors]
baseline = 258
"""
MODEL = ("--model", "builtin")


class Use:
    """What the verbs of each method asked of the kernel: samples of models and of the sampler, forks, judgements, runs."""

    def __init__(self) -> None:
        self.now: dict[str, int] = defaultdict(int)
        self.of: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))

    def ran(self, method: str, *words: object, code: tuple[int, ...] = (0,)) -> dict[str, int]:
        """What one command line asks for, added to its method's."""
        self.now.clear()
        assert main([*map(str, words)]) in code, words
        for name, times in self.now.items():
            self.of[method][name] += times
        return dict(self.now)

    def methods(self, name: str) -> set[str]:
        """The methods that asked for it."""
        return {method for method, found in self.of.items() if found[name]}


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Counts wherever the kernel is asked."""
    found = Use()

    def counting(owner: Any, attribute: str, name: str, times: Callable[..., int] = lambda *given: 1) -> None:
        inner = getattr(owner, attribute)

        def counted(*given: Any, **more: Any) -> Any:
            found.now[name] += times(*given)
            return inner(*given, **more)

        monkeypatch.setattr(
            owner,
            attribute,
            staticmethod(counted) if isinstance(owner, type) and inner.__class__.__name__ == "method" else counted,
        )

    for kind in (LocalModel, ScriptedModel, FunctionModel):
        counting(kind, "sample", "models", lambda model, prefix, n, *rest: n)
    counting(Sampler, "_plain", "sampler", lambda sampler, prefix, settings, keys, *rest: len(keys))
    for rule in (potential.Fixed, potential.Staged, potential.UntilLost):
        counting(rule, "looks", "forks")
    for way in ("branch", "edited"):
        counting(Episodes, way, "forks")
    counting(family, "checked", "judged")
    counting(Run, "__init__", "runs")
    return found


def test_every_method_runs_on_the_kernel(tmp_path: Path, use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    """All methods go through the run; six through forks or potentials of their own; eight through judges."""
    save_pair(tmp_path / "models")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "cli"))
    problems, case = tmp_path / "problems.jsonl", tmp_path / "case"
    problems.write_text(json.dumps({"id": "p", "prompt_ids": [5, 6, 7], "prompt": "hm", "answer": "go"}) + "\n", encoding="utf-8")

    def sampled(method: str, *words: object) -> dict[str, int]:
        """A verb that samples: every sample of a model was asked for by a sampler."""
        asked = use.ran(method, *words)
        assert asked["models"] == asked["sampler"] > 0
        return asked

    settings = ("--verifier", "exact", "--max-tokens", 4, "--n", 4, "--faithful", "true")
    assert sampled("cliffs", "cliffs", "scan", *MODEL, "--problems", problems, "--out", "scan", *settings)["forks"]
    settings = ("--label", "regex:o", "--k", 2, "--think-tokens", 4, "--answer-tokens", 2)
    sampled("early-decision", "early-decision", "run", *MODEL, "--prompts", problems, "--out", "study", *settings)
    assert sampled("early-decision", "early-decision", "continue", "study", "--m", 1, "--n", 2, "--shares", "0.5,1")["forks"]
    case.mkdir()
    (case / "case.toml").write_text(CASE, encoding="utf-8")
    sampled("forensics", "forensics", "run", case)
    assert sampled("forensics", "forensics", "change", case, "sentences", "--k", 8)["forks"]
    sampled("forensics", "forensics", "ask", case, "question", "why", "Why?", "fix", "--n", 2)
    sampled("governance", "governance", "bench", "--out", "rows", "--tasks", "email", "--reps", 1)
    use.ran("governance", "governance", "judge", "rows", "--judge", "regex:mail")
    clerk = dropped(tmp_path, "careful", 1)
    rules = ("--rules", tmp_path / "rules.json")
    assert sampled("governance", "governance", "audit", clerk, *rules, "--fork", 2)["forks"]
    sampled("tree-rollouts", "rollout", *MODEL, "--tree", "--tree-budget", 40, "--count", 1, "--out", "trees")
    use.ran("tree-rollouts", "tree-rollouts", "report", "trees")
    small = ("--sequences", 18, "--length", 20, "--steps", 2, "--rows", 4, "--anchors", 4, "--layers", 1, "--block", 3)
    sampled("dspark", "dspark", "train", "builtin", "--prompts", "trees", "--out", "drafter", *small)
    lines = [
        {"task": f"t{i}", "messages": [{"role": "assistant", "content": text}]}
        for i, text in enumerate(("go", "no", "go", "hm") * 3)
    ]
    (tmp_path / "written.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    use.ran("verify-or-ship", "import", tmp_path / "written.jsonl", "--run", "written")
    use.ran("verify-or-ship", "verify-or-ship", "calibrate", "written", "--judge", "go=regex:o", "--verify", "regex:go")
    steered(tmp_path, use)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "sums.py").write_text("def total(items):\n    return sum(items) / len(items)\n")
    (tmp_path / "issue.md").write_text("`total([])` fails with ZeroDivisionError.\n")
    use.ran("diagnose", "diagnose", "run", "--repo", "shop", "--issue", "issue.md", "--out", "found")
    record(tmp_path / "run")
    audited_by(tmp_path, use)
    orchestrated(tmp_path, use)
    (tmp_path / "sum.c").write_text(
        "// ramify: n = 500, 3\nfloat sum(int n, const float *x) { float s = 0; for (int i = 0; i < n; i++) s += x[i]; return "
        "s; }\n"
    )
    small = ("--evals", 1, "--pairs", 4, "--batch", 0.001, "--no-simulate", "--out", "faster")
    use.ran("kernel-search", "kernel-search", "search", "sum.c", *small)
    use.ran("earned-code-memory", "earned-code-memory", "learn", "memory.sqlite", "run")
    use.ran("world-model", "world-model", "record", "--env", "household", "--episodes", 2, "--turns", 2, "--out", "recorded")
    small = "--rounds 1 --iterations 1 --people 4 --runs 6 --searched 3".split()
    use.ran("theory-loop", "theory-loop", "run", "--out", "loop", *small)
    assert use.methods("runs") == set(builtin_methods())
    assert use.methods("judged") >= {
        "cliffs",
        "crosscoder",
        "early-decision",
        "forensics",
        "governance",
        "implicit-advantage",
        "judge-evolution",
        "maze-recovery",
        "orchestrator",
        "verify-or-ship",
    }
    assert use.methods("forks") >= {"cliffs", "early-decision", "forensics", "governance", "implicit-advantage", "tree-rollouts"}


def steered(folder: Path, use: Use) -> None:
    """Steering samples with patched states."""
    for name, prompt in (("tool", "take lamp"), ("plain", "go hall")):
        rows = [{"id": f"{name}{i}", "prompt": f"{prompt} {i}", "answer": "hall"} for i in range(12)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pair = "--tuned hf:models/tuned --base hf:models/base --layer 2 --tool tool.jsonl --plain plain.jsonl".split()
    use.ran("crosscoder", "crosscoder", "capture", *pair, "--out", "states")
    small = ("--features", 12, "--k", 3, "--exclusive", 0.25, "--steps", 40, "--batch", 8, "--out", "dictionary")
    use.ran("crosscoder", "crosscoder", "train", "states", *small)
    scored = ("--prompts", "tool.jsonl", "--score", "factory:tests.pair:hall_first", "--budgets", "2,4", "--partition", "all")
    small = ("--randoms", 2, "--top", 2, "--gains", 4, "--out", "steered")
    use.ran("crosscoder", "crosscoder", "steer", "dictionary", "states", *scored, *small)


def orchestrated(folder: Path, use: Use) -> None:
    """Every call of a worker is asked for by a sampler, every reward is a judge's."""
    (folder / "workers.py").write_text("def yes(messages):\n    return 'yes'\ndef no(messages):\n    return 'no'\n")
    (folder / "pool.toml").write_text("".join(f'[[workers]]\nname = "{n}"\nmodel = "workers.py:{n}"\n' for n in ("yes", "no")))
    rows = [{"id": f"q{i}", "prompt": f"well {i}?", "answer": ("yes", "no")[i % 2]} for i in range(6)]
    (folder / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = use.ran(
        "orchestrator", "orchestrator", "collect", "pool.toml", "--tasks", "asked.jsonl", "--n", 5, "--out", "rewards"
    )
    assert asked["models"] == asked["sampler"] == asked["judged"] == 60
    use.ran("orchestrator", "orchestrator", "show", "headroom", "rewards")


def audited_by(folder: Path, use: Use) -> None:
    """Four methods on one recorded run, and forks where their findings say so, by the command that they name."""
    run, pair = folder / "run", ["--policy", "hf:models/tuned", "--reference", "hf:models/base"]
    (folder / "rules.txt").write_text(RULE + "\n")
    use.ran("implicit-advantage", "implicit-advantage", "score", "--trajectories", run, *pair, code=(0, 4))
    judge = ("--model", "regex:go", "--tokenizer", "builtin", "--name", "goes")
    use.ran("implicit-advantage", "implicit-advantage", "judge", "--scores", run, "--trajectories", run, *judge, code=(0, 4))
    blame = ("implicit-advantage", "blame", "--scores", run, "--level", "1", "--every", "--fork", 2)
    asked = use.ran("implicit-advantage", *blame, *MODEL, "--env", "factory:test_one_record:Recorded")
    assert asked["forks"]
    assert asked["models"] == asked["sampler"] > 0
    use.ran("judge-evolution", "judge-evolution", "rescore", run, "quality", "--judge", "regex:go")
    use.ran("maze-recovery", "maze-recovery", "audit", run, "--detector", "lexicon")
    use.ran("maze-recovery", "maze-recovery", "audit", run)
    use.ran("governance", "governance", "audit", run, "--rules", folder / "rules.txt")
    use.ran("graph-credit", "graph-credit", "mark", run, "--level", "0.99")
    with Run.open(run) as opened:
        named = {
            finding.maker.split()[0]: found[0]
            for finding in opened.findings()
            if (found := re.findall(r"ramify fork \S+ (\w+)", finding.action))
        }
    for method, node in named.items():
        parts = ("--n", 2, *MODEL, "--env", "factory:test_one_record:Recorded")
        assert use.ran(method, "fork", run, node, *parts)["forks"]
