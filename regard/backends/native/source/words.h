// Words: what products of matrices read.
//
// In float32 and float64 a word is a number. The namespaces with -DRG_BF16 compute calls whose q, k and v are bfloat16:
// one step of a product adds two neighbouring numbers, (sum + a[2i+1] b[2i+1]) + a[2i] b[2i], in float32, each time rounded
// once and with denormals flushed to 0. That is the instruction vdpbf16ps, and with it a word is a pair (PAIR = 2).
// Without it (PAIR = 1) a word is a number widened to float32, the two of a pair change places, and `madd` twice gives the
// same bits. Scores pair the numbers of a vector, outputs neighbouring keys, counted from the origin of the schedule, and
// gradients of keys neighbouring rows. Weights and their gradients are rounded to bfloat16 for that; scores, their highest,
// and all sums are float32. Queries are not multiplied by anything, so that the scale is applied to the scores.
#pragma once
#include "vectors.h"

namespace RG_SPACE {
namespace {
// Whether this namespace multiplies bfloat16 numbers.
#if defined(RG_BF16)
constexpr bool HALF = true;
#else
constexpr bool HALF = false;
#endif
#if defined(RG_BF16) && defined(__AVX512BF16__)
#define RG_PAIRS
constexpr int PAIR = 2;
#else
constexpr int PAIR = 1;
#endif
constexpr int STEPS = 2 / PAIR;  // words of a pair
constexpr int GAP = HALF ? 16 : 0;  // behind the lines of pairs, so that they share no cache set where they are a power of 2

// The words of n numbers, whole pairs of them.
constexpr int words(int n) { return HALF ? up(n, 2) / PAIR : n; }
// The number that begins the pair of number n, or that follows the last pair of n numbers.
constexpr int pair_begin(int n) { return HALF ? n / 2 * 2 : n; }
constexpr int pair_end(int n) { return HALF ? up(n, 2) : n; }

static inline vf everywhere(const real *word) {
#if defined(RG_PAIRS)
  int32_t x;
  std::memcpy(&x, word, 4);
  return (vf)_mm512_set1_epi32(x);
#else
  return all(*word);
#endif
}

static inline vf step(vf a, vf b, vf sum) {
#if defined(RG_PAIRS)
  return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
  return madd(a, b, sum);
#endif
}

// While it lives, bfloat16 namespaces flush denormals, so that the code around vdpbf16ps does what that instruction does. Other
// namespaces keep them.
#if defined(RG_BF16)
typedef FlushToZero Flushing;
#else
struct Flushing {
  Flushing() {}
};
#endif

#if !defined(RG_DOUBLE)
typedef uint16_t vh __attribute__((vector_size(W * 2), aligned(2), may_alias));

// The nearest bfloat16 numbers, ties to even, as float32.
static inline vf rounded(vf x) {
  const vi bits = (vi)x, found = (bits + 0x7fff + ((bits >> 16) & 1)) & (whole)0xffff0000;
  return x == x ? (vf)found : x;
}
#endif

#if defined(RG_BF16)
// Of a row, the numbers [0, n), at most W of them, in the lower halves of the lanes.
static inline vi halves(const uint16_t *p, int n) {
#if defined(RG_512)
  return (vi)_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16((__mmask16)(n < W ? (1u << n) - 1 : 0xffff), p));
#else
  if (n >= W) return __builtin_convertvector(*(const vh *)p, vi);
  vi x{};
  for (int i = 0; i < n; i++) x[i] = p[i];
  return x;
#endif
}

// The words of n numbers of two rows, of which one may be missing (NULL), column by column: STEPS of them for each column.
static inline void pair_rows(const uint16_t *a, const uint16_t *b, int n, vf *out) {
  const vi x = halves(a, a ? n : 0), y = halves(b, b ? n : 0) << 16;
#if defined(RG_PAIRS)
  out[0] = (vf)(x | y);
#else
  out[0] = (vf)y, out[1] = (vf)(x << 16);
#endif
}

// The lines of two rows of n numbers, zeros up to `padded` columns.
static inline void pair_lines(const uint16_t *a, const uint16_t *b, int n, real *out, int padded) {
  for (int c = 0; c < padded; c += W) {
    vf pair[STEPS];
    pair_rows(a && c < n ? a + c : nullptr, b && c < n ? b + c : nullptr, std::min(W, n - c), pair);
    for (int i = 0; i < STEPS; i++) store(out + (long)i * (padded + GAP) + c, pair[i]);
  }
}

static inline vf neighbours_swapped(vf x) {
  typedef uint64_t both __attribute__((vector_size(W * 4)));
  return (vf)((both)x >> 32 | (both)x << 32);
}

static inline vf rounded_as_pairs_are(vf x) {
  const vi normal = ((vi)x & 0x7f800000) != 0;
  return rounded((vf)((vi)x & (normal | (whole)0x80000000)));
}

// Rounds N registers of neighbouring numbers, and writes the words of their pairs.
template <int N>
static inline void store_pairs(real *out, const vf *x) {
#if defined(RG_PAIRS)
  static_assert(N == 2, "one register has the pairs of two");
  store(out, (vf)_mm512_cvtne2ps_pbh((__m512)x[1], (__m512)x[0]));
#else
  for (int i = 0; i < N; i++) store(out + i * W, neighbours_swapped(rounded_as_pairs_are(x[i])));
#endif
}

// Rounds a register of two rows, and writes the words of their pairs, column by column: STEPS lines, `line` words apart.
static inline void store_row_pairs(real *out, [[maybe_unused]] int line, vf a, vf b) {
#if defined(RG_PAIRS)
  alignas(64) static const uint16_t PLACE[] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                               8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a);
  store(out, (vf)_mm512_permutexvar_epi16(_mm512_load_si512(PLACE), both));
#else
  store(out, rounded_as_pairs_are(b)), store(out + line, rounded_as_pairs_are(a));
#endif
}

// out = the words of n numbers of a row, zeros up to `padded` words
static inline void read_words(const char *row, int n, real *out, int padded) {
#if defined(RG_PAIRS)
  std::memcpy(out, row, 2 * n);
  std::memset((char *)out + 2 * n, 0, 4 * padded - 2 * n);
#else
  const uint16_t *x = (const uint16_t *)row;
  int i = 0;
  for (; i + W <= n; i += W) store(out + i, neighbours_swapped((vf)(halves(x + i, W) << 16)));
  for (; i < padded; i++) {
    const uint32_t bits = (i ^ 1) < n ? (uint32_t)x[i ^ 1] << 16 : 0;
    std::memcpy(out + i, &bits, 4);
  }
#endif
}
#else
// Where words are numbers, code that is shared with bfloat16 calls neither.
static inline void read_words(const char *, int, real *, int) {}
static inline void store_row_pairs(real *, int, vf, vf) {}
#endif
}  // namespace
}  // namespace RG_SPACE
