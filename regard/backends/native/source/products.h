// Products of matrices in registers: tiles of MR rows by NR columns, as many as the registers of the processor hold.
//
// Each number of a result is one chain of `step` over the words of the inner axis from its first one on, so it does not
// depend on the tile that it is computed in.
#pragma once
#include "words.h"

namespace RG_SPACE {
namespace {
constexpr int NV = sizeof(vf) == 16 ? 4 : 2, NR = W * NV;  // registers and columns of a tile
// Rows of a tile: 24 accumulators of the 32 registers of AVX-512 (12 rows of 2) and of NEON (6 rows of 4), 12 of the 16 of AVX2.
constexpr int MR = W == 16 ? 12 : 6;
constexpr int CHUNK = 256, PANELS = CHUNK / NR;  // keys at a time, in panels of NR
constexpr int LINE = 64 / sizeof(real);        // reals that come from memory together
constexpr int LDS = CHUNK + 16;                // row length of scores; no power of 2, so that rows share no cache set

// How a product is stored: alone, added to what stands there, or as if it were added to 0, where zeros lose their sign.
enum { ALONE = 0, ONTO = 1, FIRST = 2 };

// c[i][0..NR) = [c +] sum over k of a[i * ai + k * ak] * b[k * bk + 0..NR), stored as ADD says. A product that is stored ALONE
// is multiplied by `by`. AHEAD: `a` is read from memory for the first time, so the rows of the next tile are
// prefetched on the way; they may lie behind the tensor, since a prefetch reads nothing.
template <int M, int ADD, int N = NV, bool AHEAD = false>
static inline __attribute__((always_inline)) void product(int K, const real *__restrict a, long ai, long ak,
                                                          const real *__restrict b, long bk, real *__restrict c,
                                                          long ci, real by = 1) {
  vf x[M][N];
#pragma GCC unroll 16
  for (int i = 0; i < M; i++)
#pragma GCC unroll 4
    for (int j = 0; j < N; j++) x[i][j] = vf{};
#pragma GCC unroll 2
  for (int k = 0; k < K; k++) {
    vf y[N];
#pragma GCC unroll 4
    for (int j = 0; j < N; j++) y[j] = load(b + j * W);
    if (AHEAD && k % LINE == 0) {
#pragma GCC unroll 16
      for (int i = 0; i < M; i++) __builtin_prefetch(a + (MR + i) * ai, 0, 2);
    }
#pragma GCC unroll 16
    for (int i = 0; i < M; i++) {
      const vf s = everywhere(a + i * ai);
#pragma GCC unroll 4
      for (int j = 0; j < N; j++) x[i][j] = step(y[j], s, x[i][j]);
    }
    a += ak, b += bk;
  }
  if (ADD == ALONE && (HALF || by != 1)) {
#pragma GCC unroll 16
    for (int i = 0; i < M; i++)
#pragma GCC unroll 4
      for (int j = 0; j < N; j++) x[i][j] *= all(by);
  }
#pragma GCC unroll 16
  for (int i = 0; i < M; i++)
#pragma GCC unroll 4
    for (int j = 0; j < N; j++) {
      real *p = c + i * ci + j * W;
      store(p, ADD == ONTO ? load(p) + x[i][j] : ADD == FIRST ? x[i][j] + vf{} : x[i][j]);
    }
}

// How the left factor is read: by rows, or as a transpose by the columns of a matrix of scores, whose rows are LDS apart (of
// bfloat16 by the columns of a panel, whose lines are NR apart).
enum Left { ROWS, COLUMNS };

// The same for m <= MR rows; the strides that are known are constants for the compiler.
template <Left L, int ADD, int N = NV, int M = MR>
static __attribute__((noinline)) void tile(int m, int K, const real *a, long lda, const real *b, long ldb, real *c,
                                           long ldc) {
  if constexpr (M > 1)
    if (m < M) return tile<L, ADD, N, M - 1>(m, K, a, lda, b, ldb, c, ldc);
  if constexpr (L == ROWS)
    product<M, ADD, N>(K, a, lda, 1, b, ldb, c, ldc);
  else
    product<M, ADD, N>(K, a, 1, HALF ? NR : LDS, b, ldb, c, ldc);
}

// The same for so many columns, which are whole registers, or for all of a tile where there are more.
template <Left L, int ADD, int N = NV>
static auto tile_of(int columns) {
  if constexpr (N > 1)
    if (columns <= (N - 1) * W) return tile_of<L, ADD, N - 1>(columns);
  return tile<L, ADD, N>;
}

// Scores of m rows with N registers of the keys of a panel: a has K words a row, the panel NR a line.
template <int N, bool AHEAD, int M = MR>
static __attribute__((noinline)) void score_registers(int m, int K, const real *a, long lda, const real *panel, real *s, real by) {
  if constexpr (M > 1)
    if (m < M) return score_registers<N, AHEAD, M - 1>(m, K, a, lda, panel, s, by);
  product<M, ALONE, N, AHEAD>(K, a, lda, 1, panel, NR, s, LDS, by);
}

// The same for the lanes [begin, end) of a panel, which are whole registers.
template <bool AHEAD = false, int N = NV>
static inline void score_tile(int m, int K, const real *a, long lda, const real *panel, int begin, int end, real *s, real by) {
  if constexpr (N > 1)
    if (end - begin < N * W) return score_tile<AHEAD, N - 1>(m, K, a, lda, panel, begin, end, s, by);
  score_registers<N, AHEAD>(m, K, a, lda, panel + begin, s + begin, by);
}
}  // namespace
}  // namespace RG_SPACE
