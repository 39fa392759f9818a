"""The steps of `.ci/run`: install, tests, types, style, layers, then the units of kept.py that have changed, as far as there is
time.

Runs every step even when one fails, ends with a summary and what failed in each step's own words, and exits 1 when any did. What
passed is written to kept.json, which whoever changes something commits.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import kept
from kept import ROOT, Unit

LANES = 2
LATEST = 18 * 60
"""Seconds after the start at which no unit is under way any more, if each takes as long as it did when it last passed."""
CHECKS = {
    "types": [".venv/bin/mypy"],
    "style": [".venv/bin/ruff", "check", "."],
    "format": [".venv/bin/ruff", "format", "--check", "."],
    "layers": [".venv/bin/lint-imports"],
}
HELP = "usage: .ci/run [--all] [--plan]   (--all: everything, kept or not; --plan: say what would run, and why)"


@dataclass
class Done:
    """A step that ran."""

    name: str
    passed: bool
    seconds: float
    log: Path

    @property
    def said(self) -> str:
        """Its last line: of pytest, how many passed."""
        lines = [line for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip(" =")]
        return lines[-1].strip(" =")[:200] if lines else ""


class Steps:
    """Runs commands and keeps what they said."""

    def __init__(self, notes: Path) -> None:
        self.notes, self.done = notes, list[Done]()
        self.began = time.monotonic()
        self._printing = Lock()

    def run(self, name: str, command: Sequence[str], live: bool = True, **env: str) -> Done:
        """Run one, showing what it says at once, or where others run beside it, whole at its end."""
        title = f"\n===== {name}: {' '.join(command)}"
        if live:
            print(title, flush=True)
        log, began = self.notes / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}.log", time.monotonic()
        with log.open("w", encoding="utf-8") as out:
            code = _run(command, {**os.environ, **env}, lambda line: (out.write(line), live and print(line, end="", flush=True)))
        # 5: pytest ran no test, as where the whole file is skipped
        done = Done(name, code == 0 or (code == 5 and "pytest" in command), time.monotonic() - began, log)
        with self._printing:
            if not live:
                print(title, log.read_text(encoding="utf-8"), sep="\n")
            print(f"===== {name} took {done.seconds:.0f} s{'' if done.passed else ': FAILED'}", flush=True)
            self.done.append(done)
        return done

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began


def _run(command: Sequence[str], env: dict[str, str], hear: Callable[[str], object]) -> int:
    pipe = subprocess.PIPE
    try:
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                hear(line)
            return process.wait()
    except OSError as error:
        hear(f"ERROR {error}\n")
        return 127


class Units:
    """What of the units runs and what does not, and why."""

    def __init__(self, everything: bool, units: Sequence[Unit] | None = None) -> None:
        units = kept.units() if units is None else units
        self.rows = {name: row for name, row in kept.read().items() if name in {unit.name for unit in units}}
        self.same = [unit for unit in units if self.rows.get(unit.name, {}).get("hash") == unit.hash]
        changed = [unit for unit in units if unit not in self.same]
        self.chosen = [*units] if everything else kept.sample(changed, self.rows, _commit())
        self.chosen.sort(key=lambda unit: -kept.seconds(unit, self.rows))  # so that no lane is left alone with it at the end
        self.left = [unit for unit in changed if unit not in self.chosen]
        self.late = list[Unit]()
        self.everything = everything
        self._writing = Lock()

    def run(self, unit: Unit, steps: Steps) -> None:
        """Run one where there is time, and keep its result where it passed."""
        if not self.everything and steps.elapsed() + kept.seconds(unit, self.rows) > LATEST:
            self.late.append(unit)
            return
        # a reproduction finds no cells of an earlier run, so that its seconds are those of the whole
        env = {"RAMIFY_CACHE": str(steps.notes / "cache" / unit.name)} if unit.kind in ("repro", "nulls") else {}
        done = steps.run(unit.name, unit.command, live=False, **env)
        with self._writing:
            earlier = self.rows.get(unit.name)
            if not done.passed:
                self.rows.pop(unit.name, None)
            elif not done.said.startswith("NOT CHECKED") and (
                earlier is None or _skipped(done.said) <= _skipped(earlier["said"])
            ):
                # where less was tried than before, for want of a browser, say, what is kept is of those who tried more
                self.rows[unit.name] = {"hash": unit.hash, "seconds": round(done.seconds), "said": done.said}
            kept.write(self.rows)

    def say(self) -> None:
        """What did not run, and why."""
        same = [unit for unit in self.same if unit not in self.chosen]
        if same:
            print("\nkept, since nothing that they reach has changed since they passed:", _listed(same))
        if self.left:
            print("\nNOT RUN, changed and not in this commit's sample (`.ci/run --all` runs them):", _listed(self.left))
        if self.late:
            print("\nNOT RUN, changed and no time was left (`.ci/run --all` runs them):", _listed(self.late))


def _listed(units: Iterable[Unit]) -> str:
    return ", ".join(sorted(unit.name for unit in units))


def _skipped(said: str) -> int:
    found = re.search(r"(\d+) skipped", said)
    return int(found[1]) if found else 0


def _commit() -> str:
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def plan(units: Units) -> None:
    """Print what would run."""
    print("steps: extras, tests, " + ", ".join(CHECKS))
    for unit in units.chosen:
        known = f"{units.rows[unit.name]['seconds']} s" if unit.name in units.rows else f"unknown, counts {kept.UNKNOWN} s"
        print(f"{'run':4} {unit.name} ({'kept' if unit in units.same else 'changed'}, {known})")
    units.say()
    total = sum(kept.seconds(unit, units.rows) for unit in units.chosen)
    print(f"\n{len(units.chosen)} units run, {total:.0f} s in {LANES} lanes; {len(units.left)} changed ones do not")


def browser() -> None:
    """The browser tests drive Debian's chromium; they skip without it."""
    if shutil.which("chromium"):
        return
    if os.getuid() == 0 and shutil.which("apt-get"):
        env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for words in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", "chromium"]):
            subprocess.run(["apt-get", *words], env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if not shutil.which("chromium"):
        print("WARNING: no chromium and no way to install it: THE BROWSER TESTS WILL BE SKIPPED")


def summary(steps: Steps, units: Units) -> int:
    """Print it, and what failed, in each step's own words: last, since of a long log often only the end is kept.

    Returns the exit code.
    """
    wide = max(len(done.name) for done in steps.done)
    print("\nminutes  step")
    for done in steps.done:
        took = f"{int(done.seconds) // 60:4d}:{int(done.seconds) % 60:02d}"
        print(f"{took}  {done.name:{wide}}  {'passed' if done.passed else 'FAILED'}  {done.said}")
    units.say()
    failed = [done for done in steps.done if not done.passed]
    for done in failed:
        print(f"\n===== FAILED: {done.name}")
        lines = [line[:400] for line in done.log.read_text(encoding="utf-8").splitlines()]
        print("\n".join([line for line in lines if re.match(r"FAILED|ERROR|E  ", line)][-40:] + lines[-15:]))
    count = (
        f"{len(units.same) - len([u for u in units.same if u in units.chosen])} kept, {len(units.left) + len(units.late)} NOT RUN"
    )
    how = f"{len(failed)} of {len(steps.done)} steps FAILED" if failed else f"all {len(steps.done)} steps passed"
    print(f"\n{how}, {count}, in {steps.elapsed() / 60:.0f} minutes")
    return 1 if failed else 0


def main(words: Sequence[str]) -> int:
    """Run it all."""
    if set(words) - {"--all", "--plan"}:
        print(HELP, file=sys.stderr)
        return 2
    everything = "--all" in words
    units = Units(everything)
    if "--plan" in words:
        plan(units)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        steps = Steps(Path(folder))
        browser()
        if everything:  # `./test` passes with the test tools alone; the doors to other tools are skipped there
            steps.run("tests", ["./test", "-ra"])
        steps.run("extras", ["scripts/install", "all"])
        if everything:
            steps.run("doors", ["./test", "-ra", "tests/integrations"])
        else:
            steps.run("tests", ["./test", "-ra"])
        with ThreadPoolExecutor(LANES) as lanes:
            jobs = [lanes.submit(steps.run, name, command, live=False) for name, command in CHECKS.items()]
            jobs += [lanes.submit(units.run, unit, steps) for unit in units.chosen]
        for job in jobs:
            job.result()
        return summary(steps, units)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
