"""A small Python service whose code mypy would pass in strict mode but for a chosen number of seeded errors, one a function.

The code of a seed is the same at every number of errors; the functions broken at a smaller number are broken at a larger one,
too.
"""

from __future__ import annotations

from functools import cache

from ramify.base.seeds import generator

PACKAGE, MARKER = "service", "service/py.typed"
CONFIG = (
    '[project]\nname = "service"\nversion = "2.4.0"\nrequires-python = ">=3.11"\n\n[tool.mypy]\nstrict = true\nfiles = '
    '["service"]\n'
)
README = "# Service\n\nOrders, stock and billing for the shop. Types are checked with `mypy`, configured in `pyproject.toml`.\n"
MODULES = tuple(
    """accounts alerts audit basket billing catalog coupons delivery exports invoices ledger orders payments pricing refunds
    reports search shipping stock users""".split()
)
VERBS = tuple("apply build check count find format load make merge parse pick rank read sum tag".split())
MOST = len(MODULES) * len(VERBS)
"""Functions there are, so the most errors that can be seeded."""
_HEAD = (
    '"""{title} of the shop."""\n\nfrom __future__ import annotations\n\nimport re\nfrom typing import Any\n\n__all__ = ["Any", '
    '"re"]\n'
)
#: (right, broken) bodies; each broken one is one error in strict mode: what is missing or wrong is named next to it.
_FORMS = (
    (  # no annotation
        "def {name}(price: float, count: int) -> float:\n    return round(price * count * {k} / 100, 2)\n",
        "def {name}(price, count):\n    return round(price * count * {k} / 100, 2)\n",
    ),
    (  # no return type
        'def {name}(title: str) -> str:\n    return title.strip().lower() + "-{k}"\n',
        'def {name}(title: str):\n    return title.strip().lower() + "-{k}"\n',
    ),
    (  # a list of what
        "def {name}(rows: list[int]) -> int:\n    return len(rows) + {k}\n",
        "def {name}(rows: list) -> int:\n    return len(rows) + {k}\n",
    ),
    (  # None is not a str
        'def {name}(label: str | None = None) -> str:\n    return label or "item-{k}"\n',
        'def {name}(label: str = None) -> str:\n    return label or "item-{k}"\n',
    ),
    (  # an int where a str is promised
        "def {name}(total: int) -> str:\n    return str(total + {k})\n",
        "def {name}(total: int) -> str:\n    return total + {k}\n",
    ),
    (  # Any where a str is promised
        'def {name}(record: dict[str, Any]) -> str:\n    return str(record.get("id", "{k}"))\n',
        'def {name}(record: dict[str, Any]) -> str:\n    return record.get("id", "{k}")\n',
    ),
    (  # a match that may be None
        'def {name}(text: str) -> int:\n    match = re.search(r"[0-9]+", text)\n    return int(match.group()) if match else '
        "{k}\n",
        'def {name}(text: str) -> int:\n    match = re.search(r"[0-9]+", text)\n    return int(match.group())\n',
    ),
    (  # a method that str has not
        "def {name}(title: str) -> int:\n    return len(title.strip()) + {k}\n",
        "def {name}(title: str) -> int:\n    return len(title.trim()) + {k}\n",
    ),
)


@cache
def files(seed: int, errors: int) -> dict[str, str]:
    """Path -> text of the repository with ``errors`` (0 to 300) broken functions; do not change the result."""
    rng = generator(seed, "typed-repo")
    forms = rng.integers(len(_FORMS), size=MOST)
    numbers = rng.integers(2, 90, size=MOST)
    broken = {int(i) for i in rng.permutation(MOST)[:errors]}
    found = {"README.md": README, "pyproject.toml": CONFIG, f"{PACKAGE}/__init__.py": '"""The shop\'s service."""\n'}
    for m, module in enumerate(MODULES):
        parts = [_HEAD.format(title=module.capitalize())]
        for v, name in enumerate(functions(module)):
            i = m * len(VERBS) + v
            parts.append(_FORMS[forms[i]][i in broken].format(name=name, k=numbers[i]))
        found[f"{PACKAGE}/{module}.py"] = "\n\n".join(parts)
    return found


def functions(module: str) -> list[str]:
    """The functions of a module, in their order."""
    return [f"{verb}_{module}" for verb in VERBS]
