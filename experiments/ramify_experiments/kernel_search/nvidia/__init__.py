"""What ``kernel-search diagnose`` and ``tune`` read of kernels for NVIDIA's chips, none of which need be here. Importing this
package loads none of its readers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.base.files import write_whole
from ramify.base.registry import register
from ramify.methods.kernel_search.compiled import NVIDIA
from ramify.render.terminal import progress

if TYPE_CHECKING:
    from ramify.methods.kernel_search.compiled import CompileTarget
    from ramify_experiments.kernel_search.nvidia.reading import GpuReading
    from ramify_experiments.kernel_search.nvidia.tuning import TunedKernel


@register("disassembler", NVIDIA)
class NvidiaDisassembler:
    """CUDA, Triton, PTX, SASS and cubins, without a GPU."""

    def tools(self) -> tuple[bool, str]:
        """See :class:`Disassembler`."""
        from ramify_experiments.kernel_search.nvidia.sass import gpu_tools

        return gpu_tools()

    def read(self, spec: str, target: CompileTarget) -> GpuReading:
        """See :class:`Disassembler`."""
        from ramify_experiments.kernel_search.nvidia.sass import read_gpu

        return read_gpu(spec, target)

    def tune(self, spec: str, choices: str, target: CompileTarget, out: Path | None = None) -> TunedKernel:
        """See :class:`Disassembler`."""
        from ramify_experiments.kernel_search.nvidia import tuning

        values = tuning.choices_of(choices)
        total = math.prod(map(len, values.values()))
        with progress("tune", total, "configurations", kept="nothing was written") as bar:
            rows = tuning.tuned(spec, values, target, progress=bar.at)
        if out is not None:
            write_whole(out, tuning.configs_file(spec, target.arch, rows))
        return tuning.TunedKernel(spec, target.arch, tuple(rows), "" if out is None else str(out))
