"""Write docs/claims.md, what each method's paper claims beside what was reproduced here: python docs/claims.py.

A claim is listed with the checks of a committed reproduction that bear on it;
the figures and the word beside it come from those files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "claims.md"
HEAD = """# What the papers claim, and what was reproduced

Written by `python docs/claims.py` from the files under `repro/`. Every reproduction runs on two CPU cores with models trained
from scratch, none of them a paper's own; so a row says whether the *mechanism* shows at that size, with thresholds that were
fixed before the code. No result here is a paper's benchmark. The last column is what `ramify repro METHOD --real` finds of it in
at most ten minutes with a pretrained model that was not made here, SmolLM2-135M-Instruct; where 135 million weights are too few
for anything to be seen, it says that; where it is empty, no such figure is committed. The word before it is of the second column
alone.

- **shown**: every check of the row holds. **in part**: some hold, or only in some of the cases that the row names.
  **not shown**: none does.
- **contradicted**: what was found speaks against it. **measured**: there are values, and no threshold was set for them.
- **not tried**: it takes models, data or hardware that the project does not have.
- **outside**: on data that nobody here made, by `repro/METHOD-outside.json`; no claim of the paper.
- Values carry 95 % intervals where the check has one. A check holds where its value does; where its interval reaches over the
  threshold, chance may have done it.
- Why a threshold is missed is on the method's page; all checks are in [results](reference/results.md), and how often each method
  finds something where nothing is, in [nulls](nulls.md).
"""


@dataclass(frozen=True)
class Claim:
    """One claim of a paper: in words, with its figures, and the checks here that bear on it (none: not tried)."""

    paper: str
    checks: Mapping[str, str] = field(default_factory=dict)  # shown as -> the name of the check
    here: str = ""
    word: str = ""
    """What is to be said of the claim where its checks alone would say too much or too little."""
    real: Mapping[str, str] = field(default_factory=dict)
    """Of the reproduction on a real model: shown as -> the name of the check."""
    real_says: str = ""
    """What is to be said of those, or why there are none."""


PARTS = {"world-model": ("world-model-trained",)}
"""Further reproductions of a method; a check that both have counts as the first one gives it."""


def files(slug: str) -> list[Path]:
    """The files of a method's reproductions; a further one may not be committed yet."""
    more = [ROOT / "repro" / f"{name}-cpu.json" for name in PARTS.get(slug, ())]
    return [ROOT / "repro" / f"{slug}-cpu.json", *(path for path in more if path.is_file())]


def real_checks(slug: str) -> dict[str, dict[str, Any]]:
    """The checks of a method's committed reproduction on a real model, by name; none where there is none."""
    path = ROOT / "repro" / f"{slug}-real.json"
    checks = json.loads(path.read_text(encoding="utf-8"))["checks"] if path.is_file() else []
    return {check["name"]: check for check in checks}


def report(slug: str) -> list[dict[str, Any]]:
    """The checks of a method's committed reproductions."""
    checks: list[dict[str, Any]] = []
    for path in files(slug):
        earlier = {check["name"] for check in checks}
        checks += [one for one in json.loads(path.read_text(encoding="utf-8"))["checks"] if one["name"] not in earlier]
    return checks


def figure(check: Mapping[str, Any]) -> str:
    """A check's value, interval and what was wanted."""
    value = f"{check['value']:.3g}"
    if check["interval"] is not None:
        value += " [{:.3g}, {:.3g}]".format(*check["interval"])
    if check["op"] != "report":
        value += f", wanted {check['op']} {check['threshold']:g}"
    return value


def verdict(claim: Claim, checks: Mapping[str, Mapping[str, Any]]) -> str:
    """The word beside a claim, from its checks."""
    if claim.word and claim.checks:
        return claim.word
    held = [checks[name]["status"] == "pass" for name in claim.checks.values() if checks[name]["op"] != "report"]
    if not held:
        return "measured" if claim.checks else "not tried"
    return "shown" if all(held) else "in part" if any(held) else "not shown"


def told(names: Mapping[str, str], checks: Mapping[str, Mapping[str, Any]], says: str) -> str:
    """The figures of the checks ``names`` (shown as -> name), and what is said of them."""
    shown = "; ".join(f"{label}: {figure(checks[name])}" for label, name in names.items())
    return ". ".join(filter(None, (shown, says)))


def rows(slug: str, claims: Sequence[Claim]) -> str:
    """The table of one method."""
    checks = {check["name"]: check for check in report(slug)}
    real = real_checks(slug)
    lines = ["| the paper | here | | real model |", "|---|---|---|---|"]
    for claim in claims:
        if len(files(slug)) <= len(PARTS.get(slug, ())):  # what is not committed yet is not tried
            known = {label: name for label, name in claim.checks.items() if name in checks}
            claim = replace(claim, checks=known, here=claim.here if known else "")
        seen = {label: name for label, name in claim.real.items() if real}  # none before the reproduction is committed
        says = claim.real_says if real or not claim.real else ""  # of a claim without such checks: why there are none
        here, there = told(claim.checks, checks, claim.here), told(seen, real, says)
        lines.append(f"| {claim.paper} | {here} | {verdict(claim, checks)} | {there} |")
    lines += [f"| {what} | {here} | outside | |" for what, here in outside(slug)]
    return "\n".join(lines)


def outside(slug: str) -> list[list[str]]:
    """What was tried and what was found on data that nobody here made; none before it is committed."""
    path = ROOT / "repro" / f"{slug}-outside.json"
    return json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []


def missed(slug: str) -> str:
    """The thresholds that a reproduction misses."""
    checks = [c for c in report(slug) if c["op"] != "report"]
    names = [c["name"] for c in checks if c["status"] != "pass"]
    says = f"{len(checks) - len(names)} of {len(checks)} thresholds hold."
    return says + (" Missed: " + "; ".join(f"*{name}*" for name in names) + "." if names else "")


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for slug, claims in CLAIMS.items():
        parts.append(f"## [{slug}]({PAGES.get(slug, f'methods/{slug}.md')})\n\n{missed(slug)}\n\n{rows(slug, claims)}\n")
    return "\n".join(parts)


PAGES = {"why": "why.md"}
"""Pages of what is no method."""
BENCHMARKS = "Its benchmarks with its models"
CLAIMS: dict[str, tuple[Claim, ...]] = {
    "tree-rollouts": (
        Claim(
            "Groups with mixed outcomes rise from 58.1 to 76.3 % by moving budget to tasks that need it",
            {
                "selector and allocator - flat": "allocator: mixed, uucb + allocator - flat",
                "on hard prompts": "allocator: mixed on hard prompts, uucb + allocator - flat",
            },
            "The allocator does it without the tree as well",
            real={
                "trees and allocator - flat": "groups with mixed outcomes, trees + allocator - flat",
                "allocator alone - flat": "groups with mixed outcomes, flat + allocator - flat",
                "flat again - flat": "groups with mixed outcomes, flat again - flat",
            },
            real_says="SmolLM2, 24 tasks, three attempts each: too few for anything to be seen",
        ),
        Claim(
            "Choosing where to branch by a submodular objective raises informativeness",
            {"L1 mass": "selector: L1 mass, uucb - flat"},
            real={"trees and allocator - flat": "L1 mass, trees + allocator - flat"},
        ),
        Claim(
            "Trained models are better than with flat GRPO",
            {"success, 15 updates": "training: success after 15 updates at lr 1, uucb + allocator - flat"},
        ),
        Claim(BENCHMARKS + ", nine of them, ahead of five tree methods"),
    ),
    "graph-credit": (
        Claim(
            "Credit over merged states beats GRPO and GiGPO (ALFWorld, 1.5B: 95.0 against 72.8 and 86.7)",
            {
                "over GRPO, one learning rate": "matched learning rate: g2po - grpo",
                "each at its best rate": "each at its best learning rate: g2po - grpo",
            },
            real_says="Not tried: what a step is worth is measured by some 24 forks, nine processor seconds on walks of several "
            "turns, so that a correlation over 60 steps alone takes nine minutes",
        ),
        Claim(
            "Where no state repeats nothing is gained (AppWorld: small gain)",
            {"largest difference": "no repetition: g2po - grpo, largest difference"},
        ),
        Claim(BENCHMARKS + " (Qwen2.5, 1.5B to 14B)"),
    ),
    "cliffs": (
        Claim(
            "Single tokens lose the answer; wrong replies hold far more of them",
            {
                "wrong over right, potentials known": "exact process: cliffs per reply, wrong over right",
                "a model": "model: cliffs found per reply, wrong over right",
            },
        ),
        Claim(
            "Cutting the first one out of a wrong reply restores it",
            {"pass@1, deleted - kept": "model: pass@1, del - keep", "deleted - random cut": "model: pass@1, del - random"},
            real={
                "pass@1, deleted - kept": "pass@1, del - keep",
                "cliffs that are the first wrong digit": "confirmed cliffs that are the first wrong digit",
            },
            real_says="Sums of two numbers; word sums are beyond the model, and no cliff is found there",
        ),
        Claim(
            "Deterministic cliffs are a class of their own",
            {
                "confirmed by fresh forks, potentials known": "exact process: deterministic, share confirmed",
                "a model": "model: deterministic, share confirmed",
            },
            "An artefact of the test: where no other token was possible, nothing can have been lost",
            word="contradicted",
            real={"confirmed": "tokens of probability 0.9 or more: confirmed as cliffs"},
        ),
        Claim(
            "Preference pairs at cliffs train a better model",
            {
                "greedy": "training: gain in greedy accuracy, cliffs",
                "sampled, dense advantages": "training: gain in sampled accuracy, dense advantages",
            },
        ),
    ),
    "implicit-advantage": (
        Claim(
            "The log-ratio of a tuned policy and its reference is the advantage",
            {
                "largest error, exact process": "exact: proposition, largest error",
                "clipped training drifts from it: peak - last": "exact, clip arm: peak - last round",
            },
        ),
        Claim(
            "Ranking by it beats the mean of eight (38.8 against 33.1)",
            {
                "best-of-8 - Mean@8, quiet environment": "N0, off-policy best-of-8 - Mean@8",
                "noisy": "N5, off-policy best-of-8 - Mean@8",
            },
            real={"best of 4 - mean": "best of 4 - mean, grade", "by the log-prob": "best of 4 - mean, policy's log-prob"},
        ),
        Claim(
            "It beats the log-probability of the tuned policy",
            {
                "AUROC, noisy environment": "N5, off-policy AUROC, advantage - log-prob",
                "quiet": "N0, off-policy AUROC, advantage - log-prob",
            },
            "In the quiet environment it is behind",
            word="in part",
            real={"AUROC, grade": "AUROC, grade", "over the log-prob": "AUROC, grade - policy's log-prob"},
        ),
        Claim(
            "The step that lost an attempt is where it drops most",
            {"named right, quiet": "N0, attribution, sharpest-drop", "noisy": "N5, attribution, sharpest-drop"},
            real={
                "wrong answer of three is the lowest step": "wrong step is the lowest, by the grade",
                "by the log-prob": "wrong step is the lowest, by the policy's log-prob",
            },
            real_says="The smallest model of the paper has four billion weights",
        ),
        Claim(BENCHMARKS + " (Gemma, Qwen; tau2)"),
    ),
    "maze-recovery": (
        Claim(
            "Supervised training on golden paths freezes backtracking: steps grow exponentially in the number of branches, with "
            "RL linearly",
            {
                "slope, distance from theory": "slope of ln(golden SFT steps) in K, distance from ln((L+1)^2/L) = 1.674",
                "RL, slope in ln K": "slope of ln(RLVR steps) in ln K",
                "sampled, SFT / base": "table: golden SFT / base",
                "RL / base": "table: RL / base",
            },
            real_says="Not tried: it is about what training does to a walker of mazes, and `--detector` takes a model only to "
            "read replies",
        ),
        Claim(
            "Distilling what RL does, mistakes and recoveries included, keeps it; loops erased, it is lost",
            {"distilled / RL": "table: distilled / RL", "loop-erased / RL": "table: distilled, loop-erased / RL"},
        ),
        Claim(
            "A language model does the same",
            {"a small network: unfinished, golden SFT - RL": "network: unfinished, golden SFT - RL"},
            "The paper has no model",
        ),
    ),
    "early-decision": (
        Claim(
            "The decision can be read at the first token (AUROC .84 to .95)",
            {
                "AUROC, decided in advance": "locked: AUROC at the first token",
                "not where it is deliberated": "deliberative: AUROC at the first token - 95th percentile of shuffled labels",
            },
        ),
        Claim(
            "Most changes of stance in the text are performative (71 to 92 %)",
            {
                "decided in advance": "locked: performative share of cuts",
                "minus deliberative": "performative share of cuts, locked - deliberative",
            },
        ),
        Claim(
            "Thinking hardly changes the answer of the models studied (70 to 97 %)",
            {},
            "The agents here are made to think or not; how often real ones do was not measured",
            real={
                "told to answer first, open variance falls by": "commit: open variance falls by",
                "told to explain first": "reason: open variance falls by",
            },
            real_says="Explaining first, it answers no whatever it wrote",
        ),
        Claim("No defence lowers both error rates"),
    ),
    "crosscoder": (
        Claim(
            "One feature of the tuned model alone lifts tool use by 65 points",
            {
                "held-out lift of the best feature": "partitioned: best single feature, held-out lift",
                "an average feature": "partitioned: average feature under the same clamp, lift",
            },
        ),
        Claim(
            "The partition keeps one model's features out of the other",
            {
                "largest effect on the other": "largest effect of either model's own features on the other",
                "features wrongly called own": "planted, 10 %, sum L1: features called A's own that are not",
            },
            real={
                "features mostly of the copy that talks in another style": "style: features mostly the tuned model's",
                "the same, difference not weighed": "style, no weight on the difference: features mostly the tuned model's",
                "of the base beside itself": "base against itself: features mostly the tuned model's",
                "of an improved model beside its base": "improved: features mostly the tuned model's",
            },
            real_says="Whether features are found, not how they steer",
        ),
        Claim(
            "The partition buys concentration, not strength", {"partitioned - plain": "partitioned - plain: best single feature"}
        ),
        Claim(
            "Reconstruction alone lifts tool use by 31 points",
            {
                "right tool within 4 tokens, clean": "tuned, clean: right tool within 4 tokens",
                "reconstructed, one normaliser": "tuned, matched: right tool within 4 tokens",
                "the paper's": "tuned, mismatched: right tool within 4 tokens",
            },
            "The paper's own normalisation spoils the states",
            word="not shown",
        ),
    ),
    "forensics": (
        Claim(
            "One-variable interventions tell motives from mistakes",
            {
                "motive named, tedium": "protocol names tedium",
                "confusion": "protocol names confused",
                "evasion": "protocol names evasive",
                "nothing": "protocol names clean",
            },
            "The paper has no ground truth; these agents have a motive by construction",
            real={
                "a planted false note taken out": "notes taken out: change of the rate",
                "unchanged pairs that move": "null: unchanged pairs that moved",
                "asked why, it names the notes": "asked why, it names the notes: notes shown",
            },
            real_says="The cause is found, the motive stays undecided: three others were not tested",
        ),
        Claim(
            "The dose of errors moves the shortcut (z = 8.99)",
            {"z where it is the motive": "dose: z on tedium", "fires on others": "dose: fires on the others"},
            real={"p of the dose of false notes": "dose of false notes: p of the trend"},
        ),
        Claim(
            "Single sentences carry the decision (+.114)", {"planted sentence ranks first": "sentence: planted one ranks first"}
        ),
        Claim("The six cases with K2, R1, o3 and others"),
    ),
    "governance": (
        Claim(
            "Compaction drops rules: 0 % violations with the rule in view, 30 % after it is folded away",
            {
                "under control": "violation under control",
                "after compaction": "violation at b <= 8",
                "where the rule was dropped": "violation where it was dropped",
            },
            real={
                "own summaries": "violation, own summaries",
                "whole history": "violation, whole history",
                "the rule survives own summaries": "rule survives: own summaries of 50 words",
            },
            real_says="What is done is played by a made-up reader that keeps every rule it can read",
        ),
        Claim("Soft rules suffer 8.3 times as much as hard ones", {"soft / hard": "decay at b = 8, soft / hard"}),
        Claim(
            "The summariser decides, not the agent",
            {"variance between summarisers / agents": "crossing, variance between summarisers / between agents"},
        ),
        Claim(
            "Pinning brings violations to 0 %",
            {"pin - control": "violation, pin - control", "completed, control - pin": "allowed actions completed, control - pin"},
            real={"pinned": "violation, pinned"},
        ),
        Claim("Its rates for seven hosted models, and the optimised injections"),
    ),
    "dspark": (
        Claim(
            "16 to 18 % more accepted tokens than DFlash",
            {"tokens a pass, over DFlash": "DSpark over DFlash: tokens a pass, macro, mean over seeds"},
        ),
        Claim(
            "Acceptance does not decay along the block",
            {
                "positions 5 to 7, code": "DSpark - DFlash: acceptance at positions 5 to 7, code, mean over seeds",
                "chat": "DSpark - DFlash: acceptance at positions 5 to 7, chat, mean over seeds",
            },
        ),
        Claim(
            "Scaled confidences are calibrated (5.7 to 2.0 % error)",
            {"error after / before": "calibration, logits doubled: error after over before"},
        ),
        Claim(
            "Draft length by the present load is never worse and sometimes much better",
            {
                "over the best fixed, worst load": "stale2 over the best fixed length, at the worst load",
                "best load": "stale2 over the best fixed length, at the best load from 16",
            },
            "With the cost model of a GPU",
        ),
        Claim(
            "27 to 31 % more than Eagle3",
            {
                "tokens a pass": "DSpark: tokens a pass, macro",
                "Eagle3-style": "Eagle3: tokens a pass, macro",
                "with as many supervised positions": "Eagle3, equal positions: tokens a pass, macro",
            },
            "A target this small needs no depth to imitate; the Eagle3-style drafter makes seven passes for a draft, DSpark one",
            word="contradicted",
        ),
        Claim(
            "51 to 85 % faster in production",
            real={f"over plain, {load} at once": f"tokens a second over plain, {load} at once" for load in (1, 4, 16)},
            real_says="A minute of training: .06 of drafts accepted; told before: .19 to .73 needed, sure at 16 alone",
        ),
    ),
    "verify-or-ship": (
        Claim(
            "Planning with imperfect critics is near the optimum",
            {"regret from 500 attempts": "closed cases: regret of the plan from 500 attempts"},
        ),
        Claim(
            "It wins where the verifier is dear and critics err; else a fixed rule does",
            {
                "prices at which it gains": "regime 3: prices of 15 to 50 at which planning gains 1.5 or more over the best "
                "fixed rule",
                "with a learned rewriter": "learned rewriter: prices of 15 to 50 at which planning gains 1.5 or more over the "
                "best fixed rule",
                "one good test as gate": "regime 2: gate(tests) - bayes where it is best",
            },
            "On mutants of real packages it does not beat gating by the tests",
            real={"over the best fixed rule, worst price": "bayes - best fixed rule, worst price"},
            real_says="30 attempts of an improved SmolLM2 are too few for its tables",
        ),
        Claim(
            "The belief is a better confidence than any critic (PRR .866)",
            {"PRR, belief - best critic": "PRR: belief - best critic"},
            real={"PRR, belief": "PRR, belief", "the planted test alone": "PRR, tests", "the model as reviewer": "PRR, review"},
            real_says="SmolLM2 as reviewer says no to nearly everything",
        ),
        Claim(BENCHMARKS + " (six generators, nine benchmarks)"),
    ),
    "diagnose": (
        Claim(
            "Being told where the bug is helps a weak agent, hardly a strong one",
            {"weak": "(i) weak agent: all - baseline", "weak - strong": "(ii) gain of the weak agent - gain of the strong one"},
        ),
        Claim(
            "Passing on only good findings helps more",
            {
                "strong, gated - all": "(iii) strong agent: gated - all",
                "gated - baseline": "(iii) strong agent: gated - baseline",
            },
        ),
        Claim(
            "It saves test runs",
            {
                "weak": "(v) weak agent: fall of test runs before the true function, all",
                "strong": "(v) strong agent: fall of test runs before the true function, all",
            },
        ),
        Claim(
            "It finds files even where the issue does not name them",
            {
                "L1, masked - no tools": "(vii) L1: file, masked issue - no tools",
                "functions": "L1: function, masked issue - no tools",
            },
            real={"SmolLM2": "the model: first file right", "the rules": "the rules: first file right"},
            real_says="Four faults in small files; SmolLM2 names no place",
        ),
        Claim("SWE-bench with its models"),
    ),
    "earned-code-memory": (
        Claim(
            "Where families recur, tasks solved rise (54.8 to 66.1 %) at fewer tokens (- 22.8 %)",
            {
                "solved, over text alone": "recurring, solved, paper - text",
                "tokens, paper / none": "recurring, tokens, paper / none",
            },
            "Parts of the setting were chosen until the effects showed: see the page",
        ),
        Claim(
            "Code alone falls below no memory where it has to generalise (22 points)",
            {"code-only - none": "shifted, solved, code-only - none"},
        ),
        Claim(
            "Making tools at first sight costs 47 % more, and half are never called",
            {"construction, eager / paper": "construction, eager / paper", "never called": "eager: tools never called"},
        ),
        Claim(
            "AppWorld with GPT-4o",
            real={
                "tools let in": "codifier: tools that are let in",
                "right first call, with its plan - without": "agent: own plan - none",
            },
            real_says="AgentDojo's bank: too few weights to write, see the page",
        ),
    ),
    "judge-evolution": (
        Claim(
            "Old scores bind a new judge, erasing them frees it",
            {
                "rank correlation, kept": "arms: rank correlation before and after the switch, without erasure",
                "regret, kept / erased": "arms: regret without erasure / with erasure",
            },
        ),
        Claim(
            "Judges that evolve give better work than a fixed one",
            {
                "quality, full - fixed": "gaming: quality, full - fixed",
                "learned parts, lowest seed": "learned: true correctness, full - fixed, lowest seed",
            },
            real={
                "balanced accuracy of the model": "own question: balanced accuracy",
                "AUROC of its log-odds": "log-odds of yes: AUROC",
                "coins that may take over from it": "null: coins that may take over from the model",
            },
            real_says="SmolLM2 as judge of sums cannot be told from a constant, so it has nothing to evolve from",
        ),
        Claim(
            "An adversarial pool removes the lean to machines' texts",
            {
                "distance from parity": "bias: distance of the ratio from 1 at the best share, .20",
                "without a cap": "bias: machine / human without a cap",
            },
        ),
        Claim("Polyglot 71.7 against 69.9 %; acceptance of papers 40.5 against 21.8 %"),
    ),
    "world-model": (
        Claim(
            "A model predicts what environments answer (58.71 of 100 on its benchmark, 54.74 before)",
            {
                "exact on true history": "fidelity: exact on true history",
                "above the best baseline": "fidelity: exact - the best baseline",
                "in closed loop": "fidelity: exact in closed loop",
            },
            "A small model of three procedural environments, on worlds it has not seen",
            real={
                "exact on a text game": "exact on true history: the adapter",
                "above the best baseline": "exact on true history: the adapter - best baseline, a game",
                "in closed loop": "exact in closed loop: the adapter",
            },
            real_says="An adapter of 20 rows",
        ),
        Claim(
            "Masking turns that repeat their action keeps what informs",
            {
                "at equal updates": "masking: exact without echoes, masked - unmasked at equal updates",
                "at equal loss tokens": "masking: exact without echoes, masked - unmasked at equal loss tokens",
            },
        ),
        Claim(
            "Strict extraction stops self-praise",
            {
                "praise with it": "hacking: self-praise, strict extraction",
                "praise without": "hacking: self-praise, no extraction",
                "with the rule anchor alone": "hacking: self-praise, no extraction, rule anchor",
            },
            "The anchor alone does not",
        ),
        Claim(
            "Agents trained in a controlled simulation beat those trained in the real environment (50.3 against 45.6)",
            {"success at 60 updates": "stingy: real success at 60 updates, stingy simulation - real environment"},
            "A matter of speed: the real environment catches up",
        ),
        Claim(
            "A world model that becomes the agent is a better one",
            {
                "success after most training - after none": "unified: success after the most next-observation training - after "
                "none",
                "rank correlation": "unified: rank correlation of prediction and success",
            },
        ),
        Claim(BENCHMARKS + " (AgentWorldBench, Tool Decathlon, MCPMark, WideSearch)"),
    ),
    "kernel-search": (
        Claim(
            "Digested diagnoses beat raw counters, and raw counters are worse than none (4.00 against 1.77; p = .0007)",
            {
                "guided / blind, six candidates": "search: guided / blind, geometric mean",
                "hit rate, tools - raw metrics": "ranker: top-1 hit rate, tools - raw metrics",
                "raw metrics - nothing": "ranker: top-1 hit rate, raw metrics - nothing",
            },
            "Without a model: transforms by findings against transforms in random order, and one ridge regression from three "
            "sets of features",
            real_says="Not tried: `--proposer` takes a model, which has to write whole kernels that compile; the paper's was a "
            "frontier model",
        ),
        Claim(
            "Tree search beats greedy (4.60 against 3.65)",
            {
                "MCTS where the path dips": "matmul: MCTS reaches 0.8 of ikj's time within 40 candidates",
                "greedy there": "matmul: greedy reaches it",
                "over greedy, the suite": "search: guided MCTS / guided greedy, geometric mean",
            },
            "Where every single step loses only MCTS arrives; over the suite it is ahead on one processor and behind on another",
            word="in part",
        ),
        Claim(
            "Nothing that is wrong or dishonest is selected",
            {
                "wrong candidate chosen": "planted: log reward with the wall chooses it",
                "cheats that gain": "cheats that gain something",
            },
        ),
        Claim("Geometric mean over PyTorch eager on an A100: 2.42, 4.69, 5.30 on KernelBench's levels (GPU, frontier model)"),
    ),
    "orchestrator": (
        Claim(
            "Single-step scores mislead in a harness; evolution on whole trajectories repairs the router (TRINITY, Fugu)",
            {
                "first stage - best single, whole episodes": "A1: whole episodes, SFT - best single",
                "evolution - best single": "A1: evolution - best single, 20,160 episodes",
                "evolution - random search": "A1: evolution - random search, 20,160 episodes",
            },
        ),
        Claim(
            "Evolution beats REINFORCE (TRINITY: .615 against .253)",
            {
                "evolution - REINFORCE, 6,720 episodes": "A1: evolution - REINFORCE, 6,720 episodes",
                "20,160": "A1: evolution - REINFORCE, 20,160 episodes",
                "80,640": "A1: evolution - REINFORCE, 80,640 episodes",
            },
            "Episodes here are cheap and short",
            word="contradicted",
        ),
        Claim(
            "A composer of isolated workers beats the best worker and plain routing (Conductor: 72.35 against 67.6 and 52.4)",
            {
                "over the best single worker": "A2: composed - best single",
                "over routing to the best": "A2: composed - route to the best",
            },
        ),
        Claim(
            "Isolation is what makes it work (Fugu, without an ablation)",
            {"the same plans, all visible - isolated": "A2: the same plans all visible - isolated"},
        ),
        Claim(
            "Without worked examples the gain is lost (Conductor: 64.3 to 54.9)",
            {"steps from a structureless start": "A2: steps from a structureless start"},
        ),
        Claim(
            "A small model's hidden state routes between real models",
            {
                "over the best single model": "A3: routed - best single",
                "over the cross-fitted oracle": "A3: routed - cross-fitted oracle",
            },
            "Tiny models; the gain is across domains, not within them",
            real={
                "over the best single worker": "router - best single worker",
                "equal workers called worth routing": "null: equal workers, routing is said to be worth it",
            },
            real_says="The model, two adapters of it and a rule: across kinds of tasks, not within them",
        ),
        Claim("SWE-Bench Pro 73.7 against 69.2, Terminal-Bench 82.1 against 78.2, nine more benchmarks with frontier models"),
    ),
    "theory-loop": (
        Claim(
            "Hidden rules are recovered: error of the seed theories .066, of both survivors .013, of the better one .0025",
            {
                "survivors / seeds": "recovery: survivors / seeds",
                "better survivor / seeds": "recovery: better survivor / seeds",
                "better survivor - the best whole-range theory on the same data": "recovery: better survivor - baseline",
            },
            "Scripted roles in the place of the paper's model, and theories of five known families; better than the best of "
            "them without revision",
            real_says="Not tried: `--proposer` takes a model, which has to write theories as programs and to argue for them",
        ),
        Claim(
            "Noise in the actions costs accuracy (.029)",
            {"survivors, 0.75 - none": "noise: survivors, 0.75 - none"},
            "Six runs of each",
        ),
        Claim(
            "Blind designs recover as well as adversarial ones",
            {
                "survivors, adversarial - blind": "blind: survivors, adversarial - blind",
                "better survivor": "blind: better survivor, adversarial - blind",
            },
            "No difference is seen here either; that the two are equal was not tested",
        ),
        Claim(
            "The preregistered tests find diminishing returns (H2 p = 6e-5; H3 .029, p = .072)",
            {
                "H2 at n = 100": "H2: rejects at n = 100, diminishing returns",
                "H3 at n = 300": "H3: rejects at n = 300, diminishing returns",
            },
            "Of simulated people who have them; of linear people the tests reject at their level. H1 can be registered and is "
            "not in the tables",
        ),
        Claim("Its 250 people"),
    ),
    "why": (
        Claim(
            "Who&When: the best of three ways of asking a model names the failing step in 14.2 % of the logs",
            real_says="Not tried with a model that could: `why --judge` asks in the three ways, and SmolLM2-135M repeats the "
            "prompt's own words",
        ),
    ),
}

if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
