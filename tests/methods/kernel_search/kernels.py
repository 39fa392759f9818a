"""Small kernels in C for the tests."""

SUM = """// ramify: n = 20000, 1001, 1; flops n
float sum(int n, const float *x) {
  float s = 0;
  for (int i = 0; i < n; i++)
    s += x[i];
  return s;
}
"""
EXP = """#include <math.h>
// ramify: n = 4000, 33; x[n] in -4..4
void each(int n, const float *x, float *y) {
  for (int i = 0; i < n; i++)
    y[i] = expf(x[i]);
}
"""
CREEP = """// ramify: n = 4000, 33; a = 2.5; inout y[n]
void axpy(int n, double a, const float *x, float *y) {
  for (int i = 0; i < n; i++)
    y[i] += a * x[i];
}
"""
COLUMNS = """// ramify: n = 512, 30; m = 512, 41; x[n*m]; y[m]; flops n*m
void columns(int n, int m, const float *x, float *y) {
  for (int j = 0; j < m; j++) {
    float s = 0;
    for (int i = 0; i < n; i++)
      s += x[i * m + j];
    y[j] = s;
  }
}
"""
ARGMAX = """// ramify: n = 4000, 33
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
"""
