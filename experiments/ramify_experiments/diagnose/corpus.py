"""Generated repositories with one seeded fault each (section 7, corpus i):
30 modules of 6 functions, imports four deep, near-duplicate siblings.

A test calls a public entry point and compares with what the correct code returned. The issue tells what the failing call returns,
in the words of the docstrings of the entry and of the faulty function, with 0, 1 or 2 leaks (its path, its name).
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ramify.base.seeds import generator
from ramify.methods.diagnose.snapshot import Snapshot
from ramify_experiments.diagnose.machine import Machine
from ramify_experiments.diagnose.mutate import OPERATORS, mutants

LAYERS = (("api", 6), ("service", 8), ("domain", 8), ("util", 8))
"""Folder and modules of each of the four layers; a function calls functions of the next one."""
PER_MODULE = 6
NOUNS = (
    "order refund parcel invoice ticket voucher account basket shelf batch route driver depot carton pallet ledger tariff coupon "
    "member supplier window engine sensor panel gauge rotor valve pump filter beacon"
).split()
OPAQUE = (
    "core base rules flow steps parts sums kinds marks terms forms links lanes zones grids nodes bands folds slots turns scopes "
    "tiers units waves"
).split()
"""Names of modules below the public ones: they say nothing of what the functions in them are about."""
VERBS = ["settle", "weigh", "rank", "blend", "trim", "scale", "fold", "spread", "shift", "bound", "tally", "merge"]
TRAITS = "late early heavy fragile urgent frozen partial returned monthly yearly foreign local bulk spare".split()
LIST_FORM = '''def {name}(items, limit={default}):
    """{doc}"""
    if not items:
        return {empty}
    total = {start}
    for at in range({low}, len(items)):
        if items[at] {sign} limit:
            total = total + {call_more} * {factor}
        else:
            total = total + {call_item}
    return total % {modulus}
'''
PAIR_FORM = '''def {name}(count, price, rate={default}):
    """{doc}"""
    if price <= {floor}:
        return {empty}
    value = {call_pair}
    if count {sign} value % {modulus}:
        value = value - rate
    else:
        value = value + {call_more} * {factor}
    return value
'''
SHARE_FORM = '''def {name}(count, price, rate={default}):
    """{doc}"""
    if rate <= 0:
        return {empty}
    share = count * {factor} // rate
    rest = {call_share}
    if rest {sign} share:
        return share - rest
    return {call_more} + price + {start}
'''
_FORMS = (LIST_FORM, PAIR_FORM, SHARE_FORM)


@dataclass(frozen=True)
class Function:
    """A generated function before it is written."""

    name: str
    layer: int
    path: str
    form: int
    doc: str
    text: str
    calls: tuple[str, ...]


@dataclass
class Repo:
    """A correct repository: texts by path, functions by name, and calls of the entries with what they return."""

    functions: dict[str, Function]
    texts: dict[str, str]
    trees: dict[str, ast.FunctionDef]
    tests: list[tuple[str, list[Any], Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Instance:
    """A faulty repository with its issue and the truth."""

    key: str
    snapshot: Snapshot
    issue: str
    gold: tuple[str, int, int]
    function: str
    operator: str
    leaks: int
    failing: tuple[int, ...]
    coverage: tuple[frozenset[str], ...]
    """Functions that each test calls, in the faulty repository."""
    repo: Repo = field(repr=False)
    trees: Mapping[str, ast.FunctionDef] = field(repr=False, default_factory=dict)


def repository(seed: int, number: int) -> Repo:
    """The ``number``-th repository of a seed."""
    rng = generator(seed, "diagnose", "repository", number)
    nouns, opaque = ([words[at] for at in rng.permutation(len(words))] for words in (NOUNS, OPAQUE))
    modules: list[tuple[int, str, str]] = []
    about: dict[str, str] = {}
    for layer, (folder, count) in enumerate(LAYERS):
        for _ in range(count):
            noun = nouns.pop()
            path = f"shop/{folder}/{opaque.pop() if layer else noun}.py"
            modules.append((layer, path, folder))
            about[path] = noun
    functions: dict[str, Function] = {}
    below: dict[int, list[str]] = {}
    for layer in (3, 2, 1, 0):
        here = [path for at, path, _ in modules if at == layer]
        for first in range(0, len(here), 2):
            pair = here[first : first + 2]
            for _ in range(PER_MODULE):
                _siblings(rng, layer, pair, about, below.get(layer + 1, []), functions)
        below[layer] = [name for name, one in functions.items() if one.layer == layer]
    texts = {path: _module(path, functions) for _, path, _ in modules}
    texts |= {f"shop/{folder}/__init__.py": f'"""The {folder} layer."""\n' for folder, _ in LAYERS} | {
        "shop/__init__.py": '"""A shop."""\n'
    }
    trees = {node.name: node for text in texts.values() for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    made = Repo(functions, texts, trees)
    machine = Machine(trees)
    for name in below[0]:
        for _ in range(4):
            arguments = _arguments(rng, functions[name].form)
            made.tests.append((name, arguments, machine.outcome(name, arguments)))
    return made


def _siblings(
    rng: np.random.Generator, layer: int, paths: Sequence[str], about: Mapping[str, str], below: Sequence[str],
    functions: dict[str, Function],
) -> None:  # fmt: skip
    """A function for each of two neighbouring modules, near-duplicates:
    same form and words, often another constant or comparison."""
    form, verb, trait = int(rng.integers(3)), str(rng.choice(VERBS)), str(rng.choice(TRAITS))
    shared = {
        "default": int(rng.integers(2, 9)),
        "empty": int(rng.integers(0, 4)),
        "start": int(rng.integers(0, 6)),
        "low": 0,
        "sign": str(rng.choice(["<", ">", "<=", ">="])),
        "factor": int(rng.integers(2, 6)),
        "modulus": int(rng.integers(23, 97)),
        "floor": int(rng.integers(0, 3)),
    }
    word = str(rng.choice(TRAITS))
    for path in paths:
        noun = about[path]
        name = next(
            one
            for one in (f"{verb}_{trait}_{noun}", *(f"{verb}_{trait}_{noun}_{n}" for n in range(2, 9)))
            if one not in functions
        )
        own = dict(shared)
        for key in ("default", "start", "factor", "sign"):
            if rng.random() < 0.05:
                own[key] = str(rng.choice(["<", ">", "<=", ">="])) if key == "sign" else int(rng.integers(2, 9))
        calls: list[str] = []

        def call(kinds: Mapping[str, Sequence[str]], calls: list[str] = calls) -> str:
            if not below:
                return str(kinds["none"][0])
            called = str(below[int(rng.integers(len(below)))])
            calls.append(called)
            return f"{called}({kinds['list' if functions[called].form == 0 else 'pair'][0]})"

        own["call_item"] = call({"none": ["items[at]"], "list": ["items, items[at]"], "pair": ["items[at], limit"]})
        own["call_pair"] = call({"none": ["count * price"], "list": ["[count, price, rate]"], "pair": ["count, price, rate"]})
        own["call_share"] = call({"none": ["count - price"], "list": ["[price, count], rate"], "pair": ["price, count"]})
        first = calls[form : form + 1]
        calls.clear()
        own["call_more"] = call(
            [
                {"none": ["items[at]"], "list": ["items"], "pair": ["limit, items[at]"]},
                *[{"none": ["count"], "list": ["[rate, count]"], "pair": ["price, rate"]}] * 2,
            ][form]
        )
        calls[:] = [*first, *calls]
        doc = f"{verb.capitalize()} the {trait} {noun} of {word} goods."
        functions[name] = Function(name, layer, path, form, doc, _FORMS[form].format(name=name, doc=doc, **own), tuple(calls))


def _arguments(rng: np.random.Generator, form: int) -> list[Any]:
    if form == 0:
        size = 0 if rng.random() < 0.2 else int(rng.integers(2, 7))
        made: list[Any] = [[int(one) for one in rng.integers(0, 15, size)]]
        return made if rng.random() < 0.5 else [*made, int(rng.integers(2, 9))]
    made = [int(rng.integers(1, 30)), int(rng.integers(0, 30))]
    return made if rng.random() < 0.5 else [*made, int(rng.integers(0, 9))]


def _module(path: str, functions: Mapping[str, Function], faulty: Mapping[str, str] | None = None) -> str:
    own = [one for one in functions.values() if one.path == path]
    needed: dict[str, list[str]] = {}
    for one in own:
        for name in one.calls:
            module = functions[name].path.removesuffix(".py").replace("/", ".")
            needed.setdefault(module, []).append(name)
    head = ['"""Functions of the shop."""', ""] + [
        f"from {module} import {', '.join(sorted(set(names)))}" for module, names in sorted(needed.items())
    ]
    return "\n".join(head) + "\n" + "".join(f"\n\n{(faulty or {}).get(one.name, one.text).rstrip()}\n" for one in own)


def instances(seed: int, split: str, count: int, each: int = 8) -> list[Instance]:
    """``count`` faulty repositories, ``each`` of them of one correct one;
    ``split`` decides the repositories, so splits share none."""
    made: list[Instance] = []
    number = 0 if split == "train" else 100_000
    while len(made) < count:
        repo = repository(seed, number)
        rng = generator(seed, "diagnose", "faults", number)
        names = list(repo.functions)
        machine = Machine(repo.trees)
        for at in range(each):
            if len(made) < count and (one := _instance(f"{split}-{number}-{at}", repo, names, rng, machine)):
                made.append(one)
        number += 1
    return made


def _instance(key: str, repo: Repo, names: Sequence[str], rng: np.random.Generator, machine: Machine) -> Instance | None:
    for _ in range(200):
        name, operator = names[int(rng.integers(len(names)))], OPERATORS[int(rng.integers(len(OPERATORS)))]
        options = list(mutants(repo.trees[name], operator))
        if not options:
            continue
        fault = options[int(rng.integers(len(options)))]
        kept, machine.functions[name] = machine.functions[name], machine.compile(fault)
        failing, coverage, got = [], [], {}
        for at, (entry, arguments, wanted) in enumerate(repo.tests):
            machine.seen = set()
            value = machine.outcome(entry, arguments)
            coverage.append(frozenset(machine.seen))
            if value != wanted:
                failing.append(at)
                got[at] = value
        machine.functions[name] = kept
        if failing and len(failing) < len(repo.tests):
            return _described(key, repo, name, operator, fault, failing, coverage, got, rng)
    return None


def _described(
    key: str, repo: Repo, name: str, operator: str, fault: ast.FunctionDef, failing: list[int], coverage: list[frozenset[str]],
    got: Mapping[int, Any], rng: np.random.Generator,
) -> Instance:  # fmt: skip
    one = repo.functions[name]
    text = ast.unparse(ast.fix_missing_locations(fault))
    module = _module(one.path, repo.functions, {name: text})
    texts = {**repo.texts, one.path: module}
    node = next(n for n in ast.parse(module).body if isinstance(n, ast.FunctionDef) and n.name == name)
    at = failing[int(rng.integers(len(failing)))]
    entry, arguments, wanted = repo.tests[at]
    values = ", ".join(map(str, arguments))
    returned = f"raises {got[at]}" if isinstance(got[at], str) else f"returns {got[at]}"
    expected = f"{wanted} was expected" if isinstance(wanted, str) else f"expected {wanted}"
    hints = [word for word in one.doc.lower().rstrip(".").split() if len(word) > 3 and word != "goods"]
    kept = [word for word in hints if rng.random() < 0.55]
    leaks = int(rng.integers(3))
    lines = [f"Wrong result of {entry}", "", f"`{entry}({values})` {returned}, {expected}."]
    lines += [f"It happens with {' '.join(kept)} goods."] if kept else []
    path_leaks = leaks == 2 or (leaks == 1 and rng.random() < 0.5)
    lines += [f"It may have to do with {one.path}."] if path_leaks else []
    lines += [f"I suspect {name}."] if leaks == 2 or (leaks == 1 and not path_leaks) else []
    return Instance(
        key,
        Snapshot(texts, "shop"),
        "\n".join(lines).strip() + "\n",
        (one.path, node.lineno, node.end_lineno or node.lineno),
        name,
        operator,
        leaks,
        tuple(failing),
        tuple(coverage),
        repo,
        {**repo.trees, name: fault},
    )
