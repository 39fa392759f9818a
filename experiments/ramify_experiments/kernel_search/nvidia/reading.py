"""What was read of a compiled kernel, as the verb returns it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ramify.methods.kernel_search.report import findings_table, grouped_by_reason
from ramify.methods.kernel_search.tools import Prescription
from ramify.render.result import Cell, Result, Section, table
from ramify_experiments.kernel_search.nvidia.ptx import Access
from ramify_experiments.kernel_search.nvidia.symptoms import GpuMetrics

INSTRUCTIONS = (
    *("instructions", "LDG32", "LDG64", "LDG128", "STG32", "STG64", "STG128"),
    *("HMMA", "HGMMA", "FFMA", "LDL", "STL", "BAR"),
)
"""Of a GPU, whose counts a reader is shown."""


@dataclass(frozen=True)
class GpuReading(Result):
    """What a GPU kernel's PTX and machine code tell without a GPU."""

    kernel: str
    metrics: GpuMetrics
    accesses: tuple[Access, ...]
    findings: tuple[Prescription, ...]
    not_measurable: tuple[str, ...]

    def sections(self) -> Iterable[Section]:
        """The metrics, loads and stores that fetch more than they use or are not known, the findings."""
        m = self.metrics
        rows: list[tuple[str, Cell]] = [("registers", m.registers), ("stack", m.stack), ("shared", m.shared), ("warps", m.warps)]
        rows += [("occupancy", m.occupancy), ("limiter", m.limiter), ("blocks", m.blocks)]
        rows += [(name, m.count(name)) for name in INSTRUCTIONS]
        touched: dict[tuple[Cell, ...], None] = {}  # equal ones once
        for one in self.accesses:
            if one.why or (one.sectors or 0) > (one.ideal or 0) or (one.conflicts or 1) > 1:
                told = f"{one.sectors} for {one.ideal}" if one.sectors else ""
                stride = "" if one.stride is None else one.stride
                touched[one.line, one.op, one.bytes, stride, told, one.conflicts or "", one.why] = None
        columns = ("line", "access", "bytes", "apart", "sectors", "bank", "")
        reasons = grouped_by_reason(self.not_measurable)
        yield Section.of("", table(("", ""), rows), table(columns, touched), findings_table(self.findings), reasons)
