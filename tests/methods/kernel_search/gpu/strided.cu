// Reads a matrix by columns, and keeps a tile in shared memory whose columns share a bank.
extern "C" __global__ void columns(int n, int m, const float *x, float *y) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  float s = 0;
  if (row < n)
    for (int j = 0; j < m; j++)
      s += x[row * m + j];
  if (row < n)
    y[row] = s;
}

extern "C" __global__ void transpose(int n, const float *x, float *y) {
  __shared__ float tile[32][32];
  int i = blockIdx.x * 32 + threadIdx.x, j = blockIdx.y * 32 + threadIdx.y;
  tile[threadIdx.y][threadIdx.x] = x[j * n + i];
  __syncthreads();
  y[(blockIdx.x * 32 + threadIdx.y) * n + blockIdx.y * 32 + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}

extern "C" __global__ void gather(int n, const int *at, const float *x, float *y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    y[i] = x[at[i]];
}
