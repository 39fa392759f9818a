"""What is measured for section 7(a): localizers, repair agents told a finding or not,
and the ablation, on generated repositories."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ramify.base.seeds import derive_key, generator
from ramify.methods.diagnose.algorithm import InjectionGate, LocalizeConfig, SolveRates, scores
from ramify.methods.diagnose.case import CaseFile, Diagnosis
from ramify.methods.diagnose.code import words
from ramify.methods.diagnose.loop import played
from ramify.methods.diagnose.masking import mask
from ramify.methods.diagnose.policy import CAUSES, RulePolicy, Weights
from ramify.methods.diagnose.signals import rivals, signals_of
from ramify.methods.diagnose.tools import NAMES, RepoTools
from ramify_experiments.diagnose import encoder
from ramify_experiments.diagnose.corpus import Instance, instances
from ramify_experiments.diagnose.encoder import EncoderPolicy
from ramify_experiments.diagnose.faulty import Faulty
from ramify_experiments.diagnose.ranker import labelled, train
from ramify_experiments.diagnose.repair import RepairBench

BUDGET = {"weak": 300, "strong": 300}
"""Test runs an agent may make, chosen on training instances of seed 100 so that it solves near 0.40 and 0.80 of them untold."""
RHOS = (0.1, 0.25, 0.5, 0.75)
HIGH = 4.0
RECOVERIES = ("keep_first", "warn_loops", "implicit_calls", "shorten", "final_prompt")
CONDITIONS = ("baseline", "shuffled", "all", "filtered", "gated", "oracle")
CONTEXT = 60_000


def composite(finding: Diagnosis | None, one: Instance) -> float:
    """The judge: root cause, location and solution, 1 to 5 each, from the truth; their mean.
    A cause named second is worth 3 as a root cause."""
    if finding is None or finding.file != one.gold[0]:
        return 1.0
    if not (finding.start <= one.gold[2] and one.gold[1] <= finding.end):
        return (1 + 3 + 1) / 3
    named = one.operator in finding.solution_idea
    cause = 5 if one.operator in finding.root_cause else 3 if named else 2
    return (cause + 5 + (5 if named else 2)) / 3


def oracle(one: Instance) -> Diagnosis:
    """A finding written with the truth in view."""
    cause, edit = CAUSES[one.operator]
    return Diagnosis(*one.gold, root_cause=cause, solution_idea=f"{edit} ({one.operator})")


def located(one: Instance, policy: RulePolicy, config: LocalizeConfig, issue: str = "") -> CaseFile:
    """One localization."""
    return played(RepoTools(one.snapshot, config.without), issue or one.issue, policy, config, one.key)[0]


def first(case: CaseFile) -> Diagnosis | None:
    """The first finding."""
    return case.findings[0] if case.findings else None


def signs(one: Instance, case: CaseFile, weights: Weights, config: LocalizeConfig) -> dict[str, str]:
    """The patch-free signals: two more localizations, the nearest rivals, and the call of the issue as a reproduction."""
    tools, found = RepoTools(one.snapshot), first(case)
    if found is None:
        return {}
    others = [located(one, RulePolicy(weights, seed), config) for seed in (1, 2)]
    called = next(
        (at for at in one.failing if f"`{one.repo.tests[at][0]}({', '.join(map(str, one.repo.tests[at][1]))})`" in one.issue),
        one.failing[0],
    )
    names = {s.name for s in tools.code.facts(found.file).symbols if s.start <= found.end and found.start <= s.end}
    executed = "executes" if names & one.coverage[called] else "elsewhere"
    return signals_of(case, tools, others, executed, rivals(case, tools, RulePolicy(weights)))


def bm25(one: Instance) -> tuple[str, int, int]:
    """The function that BM25 (k1 = 1.2, b = 0.75) ranks first for the words of the issue:
    the strongest simple baseline without tools."""
    documents = {name: words(f.text) for name, f in one.repo.functions.items()}
    return one_span(one, rank_bm25(documents, words(one.issue)))


def rank_bm25(documents: Mapping[str, Sequence[str]], query: Sequence[str], k1: float = 1.2, b: float = 0.75) -> str:
    """The first document by BM25, the earlier of equals."""
    mean = sum(map(len, documents.values())) / len(documents)
    score = dict.fromkeys(documents, 0.0)
    for word in sorted(set(query)):
        often = sum(word in text for text in documents.values())
        idf = math.log(1 + (len(documents) - often + 0.5) / (often + 0.5))
        for name, text in documents.items():
            tf = text.count(word)
            score[name] += idf * tf * (k1 + 1) / (tf + k1 * (1 - b + b * len(text) / mean))
    return max(score, key=lambda name: score[name])


def one_span(one: Instance, name: str) -> tuple[str, int, int]:
    """Where a function of an instance is."""
    path = one.repo.functions[name].path
    symbol = next(s for s in RepoTools(one.snapshot).code.facts(path).symbols if s.name == name)
    return path, symbol.start, symbol.end


def measured(seed: int, training: int, gating: int, testing: int, encoded: bool) -> dict[str, Any]:
    """One seed: L2 and its gate trained, every localizer and every repair condition on the test instances.
    ``encoded``: with an encoder, too."""
    learned = labelled(instances(seed, "train", training))
    weights = train(learned)
    deep = EncoderPolicy(weights, encoder.train(learned, weights, seed)) if encoded else None
    config, rng = LocalizeConfig(), generator(seed, "diagnose", "shuffle")
    known = instances(seed, "gate", gating)
    cases = [located(one, RulePolicy(weights), config) for one in known]
    right = [composite(first(case), one) >= HIGH for case, one in zip(cases, known, strict=True)]
    signals = [signs(one, case, weights, config) for one, case in zip(known, cases, strict=True)]
    rates = {kind: _rates(known, cases, right, kind) for kind in BUDGET}
    gates = {kind: InjectionGate.fit(signals, right, agent, source="training instances") for kind, agent in rates.items()}
    test = instances(seed, "test", testing)
    order = rng.permutation(len(test))
    order = np.where(order == np.arange(len(test)), np.roll(order, 1), order)
    found = [located(one, RulePolicy(weights), config) for one in test]
    rows = []
    for at, (one, case) in enumerate(zip(test, found, strict=True)):
        other = first(found[int(order[at])])
        rows.append(
            _instance(one, case, other, gates, signs(one, case, weights, config)) | _localizers(one, weights, config, case, deep)
        )
    table = {name: {level: list(pair) for level, pair in one.items()} for name, one in gates["strong"].likelihoods.items()}
    agents = {kind: [agent.nothing, agent.right, agent.wrong] for kind, agent in rates.items()}
    return {
        "rows": rows,
        "gate": {"prior": gates["strong"].prior, "likelihoods": table, "agents": agents},
        "weights": list(weights.functions),
        "parameters": 0 if deep is None else sum(weight.numel() for weight in deep.model.parameters()),
    }


def _rates(known: Sequence[Instance], cases: Sequence[CaseFile], right: Sequence[bool], kind: str) -> SolveRates:
    """Solve rates of an agent on the gate's own instances: untold, told right findings, told wrong ones."""
    uninformed, informed = [], []
    for one, case in zip(known, cases, strict=True):
        bench = RepairBench(one)
        own = getattr(bench, kind)()
        uninformed.append(bench.run(own, None, BUDGET[kind])[0])
        informed.append(bench.run(own, first(case), BUDGET[kind])[0])
    share = lambda which: float(np.mean([t for t, ok in zip(informed, right, strict=True) if ok is which] or [False]))  # noqa: E731
    return SolveRates(float(np.mean(uninformed)), share(True), share(False))


def _instance(
    one: Instance, case: CaseFile, other: Diagnosis | None, gates: Mapping[str, InjectionGate], signals: Mapping[str, str]
) -> dict[str, Any]:
    """What both agents make of one instance under every condition."""
    bench, mine = RepairBench(one), first(case)
    quality = composite(mine, one)
    row: dict[str, Any] = {"composite": quality, "operator": one.operator, "leaks": one.leaks}
    for kind, budget in BUDGET.items():
        own, gate = getattr(bench, kind)(), gates[kind]
        q = gate.probability(signals)
        findings = {
            "baseline": None, "shuffled": other, "all": mine, "filtered": mine if quality >= HIGH else None,
            "gated": mine if gate.injects(q) else None, "oracle": oracle(one),
        }  # fmt: skip
        row[kind] = {name: list(bench.run(own, finding, budget)) for name, finding in findings.items()}
        row[kind] |= {f"all, rho {rho:g}": list(bench.run(own, mine, budget, rho)) for rho in RHOS}
        row[kind]["q"] = q
    return row


def _localizers(
    one: Instance, weights: Weights, config: LocalizeConfig, case: CaseFile, deep: RulePolicy | None
) -> dict[str, Any]:
    """Every localizer's first place, scored: hit of the file, coverage of the function."""
    blind = config.model_copy(update={"without": NAMES, "zero_tool": True, "turns": 1})
    hidden = mask(one.issue)[0]
    word = config.model_copy(update={"without": ("view_file", "connected_tree", "repo_tree")})
    arms = {
        "L0": located(one, RulePolicy(), word), "L1": located(one, RulePolicy(), config), "L2": case,
        "L1 masked": located(one, RulePolicy(), config, hidden), "L2 masked": located(one, RulePolicy(weights), config, hidden),
        "L1 no tools": located(one, RulePolicy(), blind), "L2 no tools": located(one, RulePolicy(weights), blind),
    }  # fmt: skip
    arms |= {"L2 with the encoder": located(one, deep, config)} if deep is not None else {}
    spans = {name: made.locations for name, made in arms.items()}
    spans |= {"BM25": [bm25(one)], "Ochiai": [one_span(one, RepairBench(one).strong()[0])], "L3": [one.gold]}
    out: dict[str, Any] = {}
    for name, places in spans.items():
        row = scores(places, [one.gold])
        out[name] = [row["hit@1"], row["coverage recall"]]
    return {"localizers": out, "turns": case.meta.turns, "calls": case.meta.calls}


def ablated(seed: int, training: int, testing: int) -> dict[str, list[float]]:
    """File F1 of L2 under faults, whole and without each tool and each recovery."""
    weights, test = train(labelled(instances(seed, "train", training))), instances(seed, "test", testing)
    whole = LocalizeConfig(context=CONTEXT)
    arms = {"whole": whole} | {f"without {name}": whole.model_copy(update={"without": (name,)}) for name in NAMES}
    arms |= {f"without {name.replace('_', ' ')}": whole.model_copy(update={name: False}) for name in RECOVERIES}
    out: dict[str, list[float]] = {}
    for name, config in arms.items():
        out[name] = []
        for at, one in enumerate(test):
            speaker = Faulty(RulePolicy(weights), derive_key(seed, "faults", at))
            case, _ = played(RepoTools(one.snapshot, config.without), one.issue, speaker, config, one.key)
            out[name].append(float(scores(case.locations, [one.gold])["file F1"] or 0.0))
    return out
