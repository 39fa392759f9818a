"""Where in my repository is the bug that this issue reports, may my agent be told, and what does it spend on looking?

python examples/methods/diagnose.py: a small repository is written first. Put the folder of yours, and an issue of yours, in its
place; for a model give `Localizer(*find_model("chat:MODEL@URL"))`.
"""

from pathlib import Path

from ramify.methods.diagnose import Localizer, RepoTools, Snapshot, evaluate, inject
from ramify.methods.diagnose.algorithm import InjectionGate, SolveRates
from ramify.methods.diagnose.masking import mask

REPO = Path("my_repo")
FILES = {
    "shop/__init__.py": "",
    "shop/prices.py": "from shop.taxes import tax\n\n\ndef total(items):\n    return sum(items) + tax(items)\n",
    "shop/taxes.py": "def tax(items, rate=7):\n    share = sum(items) / len(items)\n    return share * rate // 100\n",
    "tests/test_prices.py": "from shop.prices import total\n\n\ndef test_total():\n    assert total([100]) == 107\n",
}
ISSUE = """`total([])` raises ZeroDivisionError for an empty basket, 0 was expected.

  File "shop/prices.py", line 5, in total
  File "shop/taxes.py", line 2, in tax
"""


def main():
    for name, text in FILES.items():
        (REPO / name).parent.mkdir(parents=True, exist_ok=True)
        (REPO / name).write_text(text, encoding="utf-8")

    # Three independent looks give the first finding a probability of being right.
    case = Localizer(samples=3).run(REPO, ISSUE, "empty-basket")
    print(case)

    # An agent that solves little without help is told sooner than one that a wrong hint would lead astray.
    for kind, agent in {"weak": SolveRates(0.2, 0.7, 0.2), "strong": SolveRates(0.9, 0.95, 0.5)}.items():
        gate = InjectionGate.default()
        gate = InjectionGate(gate.prior, gate.likelihoods, agent)
        told = "is told" if len(inject(case, gate)) > len(ISSUE) + 10 else "is not told"
        print(f"the {kind} agent {told}: it must be right with probability {gate.threshold:.2f}")

    # When the repair is known: was it right?
    print(evaluate([case], {"empty-basket": [("shop/taxes.py", 2, 2)]}).metrics["coverage recall"].value)

    # The same four tools for an agent of yours, and the issue without what gives the place away.
    print(RepoTools(Snapshot.open(REPO)).call("connected_tree", {"file": "shop/taxes.py"}).text)
    print(mask(ISSUE, ["shop"])[0])


if __name__ == "__main__":
    main()
