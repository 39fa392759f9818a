"""The parts of the reproduction of diagnose on small cases; the results themselves come from `ramify repro diagnose`."""

from __future__ import annotations

import ast
import json
import subprocess
import sys

import pytest

from ramify.methods.diagnose.algorithm import LocalizeConfig
from ramify.methods.diagnose.case import Diagnosis
from ramify.methods.diagnose.loop import played
from ramify.methods.diagnose.policy import RulePolicy
from ramify.methods.diagnose.tools import RepoTools
from ramify_experiments.diagnose.corpus import instances, repository
from ramify_experiments.diagnose.encoder import EncoderPolicy, FunctionEncoder, coded
from ramify_experiments.diagnose.encoder import train as train_encoder
from ramify_experiments.diagnose.faulty import Faulty
from ramify_experiments.diagnose.machine import Machine
from ramify_experiments.diagnose.measure import HIGH, composite, oracle
from ramify_experiments.diagnose.mutate import OPERATORS, mutants, repairs
from ramify_experiments.diagnose.ranker import conversation, labelled, train
from ramify_experiments.diagnose.repair import RepairBench


@pytest.mark.slow
def test_a_repository_is_what_the_specification_says() -> None:
    repo = repository(3, 1)
    assert len([path for path in repo.texts if not path.endswith("__init__.py")]) == 30
    assert len(repo.functions) == 180
    assert repo.texts == repository(3, 1).texts
    assert repo.texts != repository(3, 2).texts


def test_closures_compute_what_python_does() -> None:
    """Every test of a repository in a fresh interpreter gives what the closures gave."""
    repo = repository(5, 0)
    code = "\n\n".join(ast.unparse(node) for node in repo.trees.values())
    script = (
        f"import json\n{code}\ndef outcome(name, arguments):\n    try:\n        return globals()[name](*arguments)\n"
        f"    except Exception as error:\n        return type(error).__name__\n"
        "print(json.dumps([outcome(name, arguments) for name, arguments in "
        f"json.loads({json.dumps(json.dumps([[n, a] for n, a, _ in repo.tests]))})]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [wanted for _, _, wanted in repo.tests]


@pytest.mark.slow
def test_every_mutation_can_be_undone() -> None:
    repo = repository(7, 0)
    for operator in OPERATORS:
        options = ((n, f) for n in repo.trees.values() for f in list(mutants(n, operator))[:1])
        node, fault = next((n, f) for n, f in options if operator != "missing guard" or "if rate <= 0" in ast.unparse(n))
        before = ast.unparse(fault)
        found = {ast.unparse(ast.fix_missing_locations(fault)) for _ in repairs(fault, [operator])}
        assert ast.unparse(node) in found, operator
        assert ast.unparse(fault) == before  # every edit was taken back


@pytest.mark.slow
def test_agents_count_what_they_try() -> None:
    (one,) = instances(11, "test", 1)
    bench = RepairBench(one)
    told = oracle(one)
    assert composite(told, one) >= HIGH
    assert composite(None, one) == 1
    assert composite(Diagnosis("shop/no.py", 1, 2), one) == 1
    solved, first = bench.run(bench.strong(), told, 300)
    assert solved
    assert first == 0
    assert bench.run(bench.strong(), None, 0) == (False, 0)
    assert one.function in bench.strong()[:20]
    assert bench.run(bench.strong(), None, 300) == bench.run(bench.strong(), Diagnosis("shop/no.py", 1, 2), 300)


@pytest.mark.slow
def test_the_faulty_policy_goes_wrong_and_the_loop_recovers() -> None:
    total = {"recovered": 0, "loops": 0, "cut_off": 0}
    for one in instances(13, "test", 4):
        case, _ = played(RepoTools(one.snapshot), one.issue, Faulty(RulePolicy(), 5), LocalizeConfig(context=60_000))
        assert case.findings
        for name in total:
            total[name] += getattr(case.meta, name)
    assert all(total.values()), total


@pytest.mark.slow
def test_the_encoder_begins_as_the_logit_and_learns_from_what_was_seen() -> None:
    learned = labelled(instances(17, "train", 4))
    weights = train(learned)
    functions, found = conversation(instances(17, "test", 1)[0], RulePolicy(weights))
    plain, fresh = RulePolicy(weights), EncoderPolicy(weights, FunctionEncoder().eval())
    assert fresh.belief(functions, found) == pytest.approx(plain.belief(functions, found))
    assert fresh.causes(functions[0], functions, found.issue) == plain.causes(functions[0], functions, found.issue)
    trained = EncoderPolicy(weights, train_encoder(learned[:2], weights, 0, epochs=2, batch=1))
    belief = trained.belief(functions, found)
    assert belief.sum() == pytest.approx(1)
    assert belief != pytest.approx(plain.belief(functions, found), abs=1e-9)
    assert coded("shop_total(x) < 7") != coded("shop_total(x) > 7")


def test_the_machine_refuses_what_it_does_not_cover() -> None:
    with pytest.raises(ValueError, match="While"):
        Machine({"f": ast.parse("def f():\n    while 1:\n        pass\n").body[0]})  # type: ignore[dict-item]
