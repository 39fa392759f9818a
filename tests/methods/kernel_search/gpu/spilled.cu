// Thirty-two accumulators where 32 registers are allowed: they spill. Blocks of 256 threads with 48 KiB each.
extern "C" __global__ void __launch_bounds__(256, 8) spilled(int n, const float *x, float *y) {
  __shared__ float tile[256 * 24];
  float s[32];
  for (int k = 0; k < 24; k++)
    tile[threadIdx.x + 256 * k] = x[threadIdx.x + 256 * k];
  __syncthreads();
  for (int k = 0; k < 32; k++)
    s[k] = tile[threadIdx.x + k];
  for (int i = 0; i < n; i++)
    for (int k = 0; k < 32; k++)
      s[k] = s[k] * x[i] + s[(k + 7) % 32];
  for (int k = 0; k < 32; k++)
    y[threadIdx.x * 32 + k] = s[k];
}
