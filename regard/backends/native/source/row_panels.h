// Products of rows with a matrix that lies in panels: some outputs side by side, and these for input after input.
//
// Each number of a result is one chain of `madd` over the inputs from the first one on, so its bits depend neither on the other
// rows nor on the width of registers.
#pragma once
#include "vectors.h"

namespace RG_SPACE {
namespace {
constexpr int ROWS_OF_TILE = W == 16 ? 12 : 6, COLUMNS_OF_TILE = 2 * W;
constexpr int INPUTS_AHEAD = 48;  // whose weights are on their way from memory

// Two registers of outputs for M rows of x, of which there are `in` numbers each; `weights` has `panel` outputs for each input.
template <int M>
static inline void multiply_tile(const real *__restrict x, int in, const real *__restrict weights, int panel, const real *bias, bool adds,
                                 real *__restrict y, long y_row) {
  vf sum[M][2];
#pragma GCC unroll 16
  for (int r = 0; r < M; r++) sum[r][0] = sum[r][1] = vf{};
#pragma GCC unroll 2
  for (int i = 0; i < in; i++, weights += panel) {
    // They may lie behind the matrix, since a prefetch reads nothing. The other outputs of the panel come to the second cache.
    const real *const ahead = weights + (long)INPUTS_AHEAD * panel;
    __builtin_prefetch(ahead);
    __builtin_prefetch(ahead + W);
    __builtin_prefetch(ahead + 2 * W, 0, 2);
    __builtin_prefetch(ahead + 3 * W, 0, 2);
    const vf left = load(weights), right = load(weights + W);
#pragma GCC unroll 16
    for (int r = 0; r < M; r++) {
      const vf number = all(x[(long)r * in + i]);
      sum[r][0] = madd(left, number, sum[r][0]);
      sum[r][1] = madd(right, number, sum[r][1]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < M; r++)
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
      real *to = y + r * y_row + half * W;
      vf out = sum[r][half];
      if (bias) out += load(bias + half * W);
      store(to, adds ? load(to) + out : out);
    }
}

template <int M = ROWS_OF_TILE>
static __attribute__((noinline)) void multiply_rows_of_tile(int rows, const real *x, int in, const real *weights, int panel, const real *bias,
                                                            bool adds, real *y, long y_row) {
  if constexpr (M > 1)
    if (rows < M) return multiply_rows_of_tile<M - 1>(rows, x, in, weights, panel, bias, adds, y, y_row);
  multiply_tile<M>(x, in, weights, panel, bias, adds, y, y_row);
}

// y = x matrixᵀ + bias, added to what y holds if `adds`. A panel has p.head_dim outputs, a multiple of 2 W, and `out` is a multiple
// of that. All rows pass by a part of a panel while it is in the cache.
static void project_by_panels(const rg_operation &p, int rows, const real *x, int in, real *y, int out) {
  const int panel = p.head_dim;
  for (int first = 0; first < out; first += COLUMNS_OF_TILE) {
    const real *weights = (const real *)p.weight + (long)(first / panel) * panel * in + first % panel;
    const real *bias = p.bias ? (const real *)p.bias + first : nullptr;
    for (int row = 0; row < rows; row += ROWS_OF_TILE)
      multiply_rows_of_tile<>(std::min(ROWS_OF_TILE, rows - row), x + (long)row * in, in, weights, panel, bias, p.adds, y + (long)row * out + first, out);
  }
}
}  // namespace
}  // namespace RG_SPACE
