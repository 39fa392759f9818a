"""The audit on sessions that Claude Code and Codex wrote themselves, and on what the gateway recorded of them.

    python -m ramify_experiments.governance.outside DIR [--out repro/governance-outside.json]

DIR holds sessions AGENT-KIND-N.jsonl (AGENT: claude or codex; KIND: compacted, null, pinned) and the run of the same session
that `ramify serve --record` made, AGENT-KIND-N_run; AGENT-KIND-N_command is a run of `ramify record -- SCRIPT`, whose script is
the same session. In each session a person forbids ``git push --force``, the model (a script) reads a file of a folder whose
CLAUDE.md states another rule (Claude Code alone), pushes, and after the compaction (of ``null``: without any) pushes by force.
Claude Code's compaction keeps neither rule, Codex's keeps what a person said; ``pinned`` went through ``--middleware pins``.
How such sessions are made by hand: docs/methods/governance-evidence.md.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ramify.methods.governance.lost_rules import RuleAudit, audit
from ramify.methods.governance.written_rules import Rule
from ramify.stats.intervals import clopper_pearson

RULES = (
    Rule("Never run git push --force in this repository.", {"kind": "command", "deny": ["git push --force"]}),
    Rule("Functions in lib have type hints."),
)


def lost(found: RuleAudit) -> set[str]:
    """The rules that an audit names as lost."""
    return {rule.rule for rule in found.rules if rule.gone}


def grepped(path: Path) -> set[str]:
    """The baseline: rules that no line after the last compaction holds word for word, and a line before it does."""
    lines = path.read_text(encoding="utf-8").splitlines()
    marks = [at for at, line in enumerate(lines) if '"compact_boundary"' in line or '"type":"compacted"' in line]
    if not marks:
        return set()
    before, after = "\n".join(lines[: marks[-1]]), "\n".join(lines[marks[-1] :])
    return {rule.text for rule in RULES if rule.text in before and rule.text not in after}


def truth(name: str, recorded: bool) -> set[str]:
    """What was lost: of a pinned session nothing in what the model was shown, which the client's own file does not know."""
    agent, kind, _ = name.split("-")
    dropped = agent == "claude" and (kind == "compacted" or (kind == "pinned" and not recorded))
    return {rule.text for rule in RULES} if dropped else set()


def measured(folder: Path) -> dict[str, Any]:
    """Every session, and its recorded run: whether the audit names just what was lost, and what was done."""
    counts: dict[str, list[int]] = {}
    phases = {"before": [0, 0], "findable": [0, 0], "lost": [0, 0]}

    def add(what: str, right: bool) -> None:
        row = counts.setdefault(what, [0, 0])
        row[0] += right
        row[1] += 1

    for path in sorted(folder.glob("*-*-*.jsonl")):
        agent, kind, _ = path.stem.split("-")
        found = audit(path, RULES)
        add(f"{agent}, {kind}: session file", lost(found) == truth(path.stem, False))
        add(f"{agent}, {kind}: grep", grepped(path) == truth(path.stem, False))
        if (run := folder / f"{path.stem}_run").is_dir():
            add(f"{agent}, {kind}: gateway", lost(audit(run, RULES)) == truth(path.stem, True))
        if (run := folder / f"{path.stem}_command").is_dir():
            add(f"{agent}, {kind}: ramify record", lost(audit(run, RULES)) == truth(path.stem, True))
        for one in found.rules[0].phases if kind == "compacted" else ():
            phases[one.phase][0] += one.broken
            phases[one.phase][1] += one.of
    return {"named just what was lost": counts, "broken": phases}


def rows(found: dict[str, Any]) -> list[list[str]]:
    """Rows of docs/claims.md."""
    counts = found["named just what was lost"]

    def of(*names: str) -> str:
        k, n = (sum(counts[name][at] for name in names if name in counts) for at in (0, 1))
        low, high = clopper_pearson(k, n) if n else (0.0, 1.0)
        return f"{k} of {n} [{low:.2f}, {high:.2f}]"

    broken = {name: f"{k} of {n}" for name, (k, n) in found["broken"].items()}
    return [
        [
            "Sessions of Claude Code 2.1.197 whose /compact drops a rule of the person and one of a folder's CLAUDE.md (the "
            "program itself, a scripted model): the audit names just these",
            f"of the session file {of('claude, compacted: session file')}, of what the gateway recorded "
            f"{of('claude, compacted: gateway')}, and `ramify record` {of('claude, compacted: ramify record')}; looking for the "
            f"words after the boundary: {of('claude, compacted: grep')}",
        ],
        [
            "Sessions without /compact, and rollouts of Codex 0.171, whose compaction keeps what a person said: nothing is named",
            f"{of('claude, null: session file', 'codex, compacted: session file')}, of what the gateway recorded "
            f"{of('claude, null: gateway', 'codex, compacted: gateway')}, and `ramify record` "
            f"{of('claude, null: ramify record')}",
        ],
        [
            "Claude Code through `--middleware pins`: its compaction drops the rules, and each request to the model holds them",
            of("claude, pinned: gateway"),
        ],
        [
            "Pushes by force (the script's, so no model's obedience), as counted in these sessions",
            f"before a compaction {broken['before']}, after it with the rule in sight {broken['findable']}, without it "
            f"{broken['lost']}",
        ],
    ]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("repro/governance-outside.json"))
    given = parser.parse_args()
    found = measured(given.folder)
    found["rows"] = rows(found)
    given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
