"""Sixteen kernels in C with one to three seeded pathologies each, and four healthy ones.
What is seeded is written down before any tool runs."""

from __future__ import annotations

from dataclasses import dataclass

from ramify.methods.kernel_search.task import KernelTask, from_c


@dataclass(frozen=True, slots=True)
class Seeded:
    """A kernel and the tools that its seeded pathologies must fire; none of a healthy one."""

    name: str
    tools: frozenset[str]
    source: str

    @property
    def task(self) -> KernelTask:
        """It as a task."""
        return from_c(self.source, self.name, path=f"{self.name}.c")


def _kernel(name: str, tools: str, source: str) -> Seeded:
    return Seeded(name, frozenset(tools.split()), source)


SUITE: tuple[Seeded, ...] = (
    _kernel(
        "reduction",
        "ReductionOrder",
        """// ramify: n = 65536, 1001, 1; flops n
float reduction(int n, const float *x) {
  float s = 0;
  for (int i = 0; i < n; i++)
    s += x[i];
  return s;
}
""",
    ),
    _kernel(
        "softmax",
        "MathCall DivSqrt",
        """#include <math.h>
// ramify: n = 8192, 37, 1; x[n] in -4..4; flops 3*n
void softmax(int n, const float *x, float *y) {
  float s = 0;
  for (int i = 0; i < n; i++) {
    y[i] = expf(x[i]);
    s += y[i];
  }
  for (int i = 0; i < n; i++)
    y[i] = y[i] / s;
}
""",
    ),
    _kernel(
        "activation",
        "BranchInLoop",
        """// ramify: n = 32768, 37, 1; flops 4*n
void activation(int n, const float *x, float *y) {
  for (int i = 0; i < n; i++) {
    if (x[i] > 2.0f)
      y[i] = 1.0f + 0.1f * x[i];
    else if (x[i] > 1.0f)
      y[i] = x[i] * (1.5f - 0.5f * x[i]);
    else if (x[i] > 0.0f)
      y[i] = x[i] * (0.5f + x[i]);
    else if (x[i] > -1.0f)
      y[i] = x[i] * (0.5f - x[i]);
    else if (x[i] > -2.0f)
      y[i] = x[i] * (1.5f + 0.5f * x[i]);
    else
      y[i] = 0.1f * x[i] - 1.0f;
  }
}
""",
    ),
    _kernel(
        "columns",
        "StridedAccess",
        """// ramify: n = 512, 33, 1; m = 512, 17, 1; x[n*m]; y[m]; flops n*m
void columns(int n, int m, const float *x, float *y) {
  for (int j = 0; j < m; j++) {
    float s = 0;
    for (int i = 0; i < n; i++)
      s += x[i * m + j];
    y[j] = s;
  }
}
""",
    ),
    _kernel(
        "norms",
        "LayoutAos",
        """// ramify: n = 16384, 33, 1; x[3*n]; y[n]; flops 5*n
void norms(int n, const float *x, float *y) {
  for (int i = 0; i < n; i++)
    y[i] = x[3 * i] * x[3 * i] + x[3 * i + 1] * x[3 * i + 1] + x[3 * i + 2] * x[3 * i + 2];
}
""",
    ),
    _kernel(
        "creep",
        "PrecisionCreep",
        """#include <math.h>
// ramify: n = 32768, 37, 1; flops 4*n
void creep(int n, const float *x, float *y) {
  for (int i = 0; i < n; i++)
    y[i] = 0.5 * x[i] * (1.0 + 0.044715 * x[i] * x[i]);
}
""",
    ),
    _kernel(
        "matmul",
        "StridedAccess",
        """// ramify: n = 128, 17, 1; a[n*n]; b[n*n]; c[n*n]; flops 2*n*n*n
void matmul(int n, const float *a, const float *b, float *c) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) {
      float s = 0;
      for (int k = 0; k < n; k++)
        s += a[i * n + k] * b[k * n + j];
      c[i * n + j] = s;
    }
}
""",
    ),
    _kernel(
        "convolution",
        "ReductionOrder",
        """// ramify: n = 2048, 20, 1; m = 64, 9, 1; x[n+m]; w[m]; y[n]; flops 2*n*m
void convolution(int n, int m, const float *x, const float *w, float *y) {
  for (int i = 0; i < n; i++) {
    float s = 0;
    for (int k = 0; k < m; k++)
      s += x[i + k] * w[k];
    y[i] = s;
  }
}
""",
    ),
    _kernel(
        "layernorm",
        "ReductionOrder PrecisionCreep DivSqrt",
        """#include <math.h>
// ramify: n = 16384, 37, 2; flops 8*n
void layernorm(int n, const float *x, float *y) {
  float mean = 0, square = 0;
  for (int i = 0; i < n; i++)
    mean += x[i];
  mean = mean / n;
  for (int i = 0; i < n; i++)
    square += (x[i] - mean) * (x[i] - mean);
  float scale = sqrtf(square / n + 1e-5f);
  for (int i = 0; i < n; i++)
    y[i] = (x[i] - mean) * 1.0001 / scale;
}
""",
    ),
    _kernel(
        "histogram",
        "DivSqrt ScalarFallback",
        """// ramify: n = 16384, 37, 1; bins = 64, 8, 2; x[n] in 0..1; key[n] in 0..bins-1; inout h[bins]
void histogram(int n, int bins, const float *x, const int *key, float *h) {
  for (int i = 0; i < n; i++)
    h[key[i]] += (x[i] - 0.25f) / (x[i] + 1.5f);
}
""",
    ),
    _kernel(
        "stencil",
        "StridedAccess",
        """// ramify: n = 384, 17, 4; x[n*n]; y[n*n]; flops 4*n*n
void stencil(int n, const float *x, float *y) {
  for (int i = 0; i < n * n; i++)
    y[i] = 0;
  for (int j = 1; j < n - 1; j++)
    for (int i = 1; i < n - 1; i++)
      y[i * n + j] = x[i * n + j - 1] + x[i * n + j + 1] + x[(i - 1) * n + j] + x[(i + 1) * n + j] - 4 * x[i * n + j];
}
""",
    ),
    _kernel(
        "transpose",
        "StridedAccess",
        """// ramify: n = 512, 33, 1; x[n*n]; y[n*n]
void transpose(int n, const float *x, float *y) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++)
      y[j * n + i] = x[i * n + j];
}
""",
    ),
    _kernel(
        "dots",
        "ReductionOrder",
        """// ramify: n = 128, 5, 1; m = 256, 37, 1; x[n*m]; w[m]; y[n]; flops 2*n*m
void dots(int n, int m, const float *x, const float *w, float *y) {
  for (int i = 0; i < n; i++) {
    float s = 0;
    for (int k = 0; k < m; k++)
      s += x[i * m + k] * w[k];
    y[i] = s;
  }
}
""",
    ),
    _kernel(
        "prefix",
        "DependencyChain",
        """// ramify: n = 32768, 37, 1; flops n
void prefix(int n, const float *x, float *y) {
  float s = 0;
  for (int i = 0; i < n; i++) {
    s += x[i];
    y[i] = s;
  }
}
""",
    ),
    _kernel(
        "argmax",
        "BranchInLoop",
        """// ramify: n = 32768, 37, 1
int argmax(int n, const float *x) {
  float best = x[0];
  int at = 0;
  for (int i = 0; i < n; i++)
    if (x[i] > best) {
      best = x[i];
      at = i;
    }
  return at;
}
""",
    ),
    _kernel(
        "attention",
        "ReductionOrder MathCall",
        """#include <math.h>
// ramify: n = 256, 5, 1; m = 64, 9, 1; q[m] in -0.2..0.2; k[n*m]; v[n*m]; p[n]; out p[n]; out y[m]; flops 4*n*m
void attention(int n, int m, const float *q, const float *k, const float *v, float *p, float *y) {
  float total = 0;
  for (int d = 0; d < m; d++)
    y[d] = 0;
  for (int i = 0; i < n; i++) {
    float s = 0;
    for (int d = 0; d < m; d++)
      s += q[d] * k[i * m + d];
    p[i] = s;
  }
  for (int i = 0; i < n; i++) {
    p[i] = expf(p[i]);
    total += p[i];
  }
  for (int i = 0; i < n; i++)
    for (int d = 0; d < m; d++)
      y[d] += p[i] * v[i * m + d];
  float scale = 1.0f / total;
  for (int d = 0; d < m; d++)
    y[d] *= scale;
}
""",
    ),
)

HEALTHY: tuple[Seeded, ...] = (
    _kernel("saxpy", "", """// ramify: n = 32768, 37, 1; a = 2.5; flops 2*n
void saxpy(int n, float a, const float *restrict x, const float *restrict z, float *restrict y) {
  for (int i = 0; i < n; i++)
    y[i] = a * x[i] + z[i];
}
"""),
    _kernel("horner", "", """// ramify: n = 32768, 37, 1; flops 10*n
void horner(int n, const float *restrict x, float *restrict y) {
  for (int i = 0; i < n; i++) {
    float t = x[i];
    y[i] = 1.0f + t * (0.5f + t * (0.25f + t * (0.125f + t * (0.0625f + t * 0.03125f))));
  }
}
"""),
    _kernel("counts", "", """// ramify: n = 32768, 37, 1; x[n] i32; y[n] i32
void counts(int n, const int *restrict x, int *restrict y) {
  for (int i = 0; i < n; i++)
    y[i] = 3 * x[i] + 1;
}
"""),
    _kernel("rows", "", """// ramify: n = 256, 17, 1; m = 256, 33, 1; x[n*m]; y[m]; flops n*m
void rows(int n, int m, const float *restrict x, float *restrict y) {
  for (int j = 0; j < m; j++)
    y[j] = 0;
  for (int i = 0; i < n; i++)
    for (int j = 0; j < m; j++)
      y[j] += x[i * m + j];
}
"""),
)  # fmt: skip
BY_NAME = {one.name: one for one in (*SUITE, *HEALTHY)}
