"""The rule g2po-released against numbers of the authors' code: g2po/core_g2po.py of github.com/Nala-YN/G2PO at b8ffaf56."""

from __future__ import annotations

import numpy as np
import pytest

from ramify.base.errors import UserError
from ramify.methods.graph_credit.algorithm import CreditConfig, credit

Attempt = tuple[str, float, str]
"""States in order, the reward, and an x for each action that the environment refused."""

# Drawn at random. Numbers: compute_g2po_outcome_advantage on compute_group_aggregation_values, in both of its modes.
# fmt: off
CASES: dict[str, tuple[list[Attempt], dict[str, list[float]]]] = {
    "success or not": (
        [("ACDCCD", 10.0, "......"), ("ACDEE", 10.0, "....."), ("ABDEAC", 0.0, "x.x..."), ("A", 0.0, "x"), ("AA", 0.0, ".."),
            ("ABDCC", 0.0, "..x..")],
        {
            "mean_std": [3.159893, 1.802953, 0.100021, 1.455626, 1.802953, 4.342742, 3.159893, 1.802953, 1.232011, 1.021782,
            3.303988, -2.530442, 0.846717, -0.78814, -3.511073, 1.186038, -4.124459, -2.530442, -1.039626, -2.488645,
            -2.488645, 0.846717, -1.92013, -0.518229, -4.124459],
            "mean": [10.928329, 7.343174, 3.231841, 6.421827, 7.343174, 13.665665, 10.928329, 7.343174, 6.015664, 5.407298,
            13.057299, -8.737848, 0.496424, -4.084336, -13.170519, 0.928329, -13.14435, -8.737848, -4.865667, -8.63785,
            -8.63785, 0.496424, -6.868158, -3.578173, -13.14435],
        },
    ),
    "partial rewards": (
        [("A", 10.0, "."), ("AED", 10.0, ".x."), ("AEDDE", 3.0, "....."), ("ACD", 3.0, "..x"), ("ABE", 3.0, "x.."), ("A", 0.0,
            "."), ("AACA", 5.0, ".x.."), ("A", 3.0, ".")],
        {
            "mean_std": [6.333747, 2.479045, 2.96687, 5.285162, 0.07199, 0.599559, -0.384207, -0.451451, -2.65802, -0.388673,
            0.653943, -2.979334, -1.031525, 0.215812, -2.65802, -3.858213, 0.663651, 0.265691, -0.160524, -2.138888,
            -2.826618],
            "mean": [18.661057, 7.245316, 8.301075, 16.999805, 0.245316, 1.401074, -1.185383, -1.415936, -7.413738, -1.118943,
            -0.016733, -10.100195, -3.023943, 0.641725, -7.413738, -11.338943, 1.960806, 0.781057, 1.468204, -6.338943,
            -8.338943],
        },
    ),
    "no success": (
        [("AB", 0.0, ".."), ("ADDA", 5.0, "...."), ("A", 3.0, "."), ("A", 0.0, "."), ("ACBAD", 0.0, ".x...")],
        {
            "mean_std": [-2.041688, -1.002032, 4.145965, 2.752113, 1.01046, 0.053996, -0.784278, -2.041688, -2.041688,
            -0.294925, 1.573403, 2.050281, -3.37992],
            "mean": [-3.633423, -1.961635, 7.232827, 5.271699, 2.740458, 1.366577, -0.633423, -3.633423, -3.633423, -1.127883,
            1.373374, 2.232827, -5.594551],
        },
    ),
    "all succeed": (
        [("ACAEAE", 10.0, "...xx."), ("AC", 10.0, ".."), ("AAEDBC", 10.0, "x....."), ("ACEAC", 10.0, ".....")],
        {
            "mean_std": [1.172778, -3.138995, 0.231172, -2.188472, -0.133616, 2.950169, 1.172778, 1.91803, -2.8959, 0.231172,
            -0.977172, 0.109113, -0.867868, 1.91803, 1.172778, -1.688774, -2.076029, 1.172778, 1.91803],
            "mean": [0.497257, -2.286036, 0.140389, -1.538819, 0.040389, 2.211801, 0.497257, 1.364584, -1.006512, 0.140389,
            -0.640699, 0.066974, -0.532701, 1.364584, 0.497257, -1.239135, -1.438819, 0.497257, 1.364584],
        },
    ),
}
# fmt: on


def credited(attempts: list[Attempt], **options: object) -> np.ndarray:
    """The credit of each step, a success being 10 as in the authors' code."""
    table = [
        (attempt, step, state, reward if step == len(states) - 1 else 0.0, refused[step] == ".")
        for attempt, (states, reward, refused) in enumerate(attempts)
        for step, state in enumerate(states)
    ]
    attempt_ids, steps, keys, rewards, valid = map(list, zip(*table, strict=True))
    config = CreditConfig(**{"success_reward": 10.0} | options)
    return credit(["t"] * len(table), attempt_ids, steps, keys, rewards, valid=valid, config=config)["A"]


@pytest.mark.parametrize("norm", ["mean_std", "mean"])
@pytest.mark.parametrize("case", CASES)
def test_the_released_rule_gives_the_numbers_of_the_released_code(case: str, norm: str) -> None:
    attempts, printed = CASES[case]
    np.testing.assert_allclose(credited(attempts, rule="g2po-released", norm=norm), printed[norm], atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_each_of_its_settings_is_needed(case: str) -> None:
    """Without any one of them the numbers are others, wherever it has a part."""
    attempts, printed = CASES[case]
    rewards = {reward for _, reward, _ in attempts}
    released = {"weight": "step", "zero_if_constant": False, "end": "success"}
    np.testing.assert_allclose(credited(attempts, **released), printed["mean_std"], atol=1e-5)
    matters = {"weight": len(rewards) > 1, "zero_if_constant": len(rewards) == 1, "end": bool(rewards - {0.0, 10.0})}
    for name, apart in matters.items():
        changed = credited(attempts, **{other: value for other, value in released.items() if other != name})
        assert (np.abs(changed - printed["mean_std"]).max() > 0.01) == apart, name


def test_what_the_released_code_has_is_not_set_otherwise() -> None:
    with pytest.raises(UserError, match=r"rule g2po-released has gamma = 0\.95, as the authors' code: take rule g2po to set it"):
        CreditConfig(rule="g2po-released", gamma=0.9)
    with pytest.raises(UserError, match="truncation = bootstrap has no meaning"):
        CreditConfig(end="success", truncation="bootstrap")
