"""The likelihoods of the default gate: `python -m ramify_experiments.diagnose.calibrate` prints them as
ramify.methods.diagnose.algorithm holds them.

The rule policy, three localizations an issue, on 120 generated repositories of seed 100;
a quarter of the issues are about another repository.
"""

from __future__ import annotations

import json
from dataclasses import replace

from ramify.methods.diagnose.algorithm import AGENTS, InjectionGate, LocalizeConfig
from ramify.methods.diagnose.loop import played
from ramify.methods.diagnose.policy import RulePolicy
from ramify.methods.diagnose.signals import rivals, signals_of
from ramify.methods.diagnose.tools import RepoTools
from ramify_experiments.diagnose.corpus import instances
from ramify_experiments.diagnose.measure import HIGH, composite


def main() -> None:
    """Print prior and likelihoods."""
    known, signals, right = instances(100, "calibrate", 120), [], []
    for at, one in enumerate(known):
        foreign = at % 4 == 0
        issue = known[at - 9].issue if foreign else one.issue
        tools = RepoTools(one.snapshot)
        cases = [played(tools, issue, RulePolicy(seed=seed), LocalizeConfig(), one.key)[0] for seed in range(3)]
        cases = [replace(case, issue=issue) for case in cases]
        signals.append(signals_of(cases[0], tools, cases[1:], None, rivals(cases[0], tools, RulePolicy())))
        right.append(not foreign and composite(next(iter(cases[0].findings), None), one) >= HIGH)
    gate = InjectionGate.fit(signals, right, AGENTS["strong"])
    table = {name: {level: [round(p, 3) for p in pair] for level, pair in one.items()} for name, one in gate.likelihoods.items()}
    print(json.dumps({"prior": round(gate.prior, 3), "likelihoods": table}, indent=1))


if __name__ == "__main__":
    main()
