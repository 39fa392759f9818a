"""What is known of generated repositories, and what the verbs of diagnose make of them."""

from __future__ import annotations

import json
from pathlib import Path

from ramify.base.seeds import generator
from ramify_experiments.cases import KnownCase, Repetition
from ramify_experiments.diagnose.corpus import Instance, instances


def _written(one: Instance, folder: Path) -> Path:
    """An instance as files on disk."""
    for path in one.snapshot.paths:
        file = folder / "repo" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(one.snapshot.lines(path)) + "\n", encoding="utf-8")
    return folder / "repo"


def _planted(rep: Repetition) -> bool:
    """Whether the first location covers the function that the issue's traceback ends in."""
    (one,) = instances(rep.seed, "planted", 1)
    path, first, last = one.gold
    entry = one.failing[0]
    called = one.repo.functions[one.repo.tests[entry][0]]
    issue = rep.folder / "issue.md"
    trace = (
        f'  File "{called.path}", line 8, in {called.name}\n  File "{path}", line {last}, in {one.function}\nValueError: no '
        "goods\n"
    )
    issue.write_text(f"`{called.name}` fails.\n\nTraceback (most recent call last):\n{trace}", encoding="utf-8")
    found = rep.verb("diagnose", "run", "--repo", _written(one, rep.folder), "--issue", issue, "--out", rep.folder / "run")
    places = [(f["file"], f["start"], f["end"]) for f in found["findings"]]
    return bool(places) and places[0][0] == path and places[0][1] <= first and last <= places[0][2]


def _elsewhere(rep: Repetition) -> bool:
    """Whether a finding is told to a strong agent although the issue is about another program."""
    (one,) = instances(rep.seed, "nothing", 1)
    rng = generator(rep.seed, "diagnose", "elsewhere")
    words = (
        "socket parser cursor template canvas thread buffer widget token schema header cookie session stream layout cache query "
        "lexer"
    ).split()
    a, b, c, d = (words[at] for at in rng.permutation(len(words))[:4])
    issue = rep.folder / "issue.md"
    text = (
        f"Wrong result of {a}_{b}\n\n`{a}_{b}({int(rng.integers(99))})` returns {int(rng.integers(99))}, expected "
        f"{int(rng.integers(99))}.\nIt happens with {c} {d}.\n"
    )
    issue.write_text(text, encoding="utf-8")
    run = rep.folder / "run"
    rep.verb("diagnose", "run", "--repo", _written(one, rep.folder), "--issue", issue, "--out", run, "--samples", "3")
    return any(one["told"] for one in rep.verb("diagnose", "inject", run, "--agent", "strong")["prompts"])


def _edits_first(rep: Repetition) -> bool:
    """Whether an agent that edits before it looks is said to spend anything on finding the place."""
    return _share(rep, 0) > 0.0


def _looks_first(rep: Repetition) -> bool:
    """Whether the share of the replies before the first edit is the one that was made."""
    looks = int(generator(rep.seed, "diagnose", "looks").integers(1, 9))
    return abs(_share(rep, looks) - looks / (looks + 3)) < 1e-9


def _share(rep: Repetition, looks: int) -> float:
    rng = generator(rep.seed, "diagnose", "trace")
    look = ["grep -rn total src", "cat src/a.py", "cd /repo && ls", "sed -n 1,20p src/b.py", "find . -name '*.py'"]
    edit = ["sed -i s/1/2/ src/a.py", "cd /repo && sed -i s/a/b/ tests/test_a.py", "cat > reproduce.py <<'EOF'\nprint(1)\nEOF"]
    commands = [look[int(rng.integers(len(look)))] for _ in range(looks)]
    commands += [edit[int(rng.integers(len(edit)))], "pytest -q", look[int(rng.integers(len(look)))]]
    messages: list[dict[str, object]] = [{"role": "user", "content": "Repair it."}]
    for command in commands:
        call = f"<tool_call>{json.dumps({'name': 'bash', 'arguments': {'command': command}})}</tool_call>"
        messages += [{"role": "assistant", "content": call}, {"role": "user", "content": "done"}]
    (rep.folder / "log.jsonl").write_text(
        json.dumps({"task": "made", "messages": messages, "reward": 1.0}) + "\n", encoding="utf-8"
    )
    found = rep.verb("diagnose", "eval", rep.folder / "log.jsonl")
    return float(found["share_of_replies"])


CASES = (
    KnownCase(
        "an issue about another program",
        "nothing",
        "The issue names nothing that is in the repository: a finding that is told to a strong agent is false.",
        _elsewhere,
        wanted=0.05,
        full=200,
        quick=10,
    ),
    KnownCase(
        "an agent that edits first",
        "nothing",
        "The first reply edits: a share of the trace that is said to be localization is false.",
        _edits_first,
        wanted=0.0,
        full=200,
        quick=10,
    ),
    KnownCase(
        "a traceback",
        "planted",
        "The traceback of the issue ends in one of 180 functions: the first location must cover it.",
        _planted,
        wanted=0.9,
        full=100,
        quick=10,
    ),
    KnownCase(
        "an agent that looks first",
        "planted",
        "A known number of replies come before the first edit: the share must be exactly that.",
        _looks_first,
        wanted=1.0,
        full=100,
        quick=10,
    ),
)
