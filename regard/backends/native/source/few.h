// Few rows, as in decoding: keys and values are read once from memory, in their own type, and widened in registers.
//
// The order of every sum is that of the tiles, so the bits are too.
#pragma once
#include "packing.h"

namespace RG_SPACE {
namespace {
constexpr int FEW = MR < 8 ? MR : 8;  // rows at most: those of one tile, since all get the weights of the same keys

#if defined(RG_FEW)
constexpr long SOON = 1024, LATER = 16384, LATEST = 65536, PAGE = 4096;  // bytes
constexpr int SOON_ROWS = 4, LATER_ROWS = 64;  // of rows with gaps between them: about as many bytes of a head

// Prefetches. They may point behind the tensor, since nothing is read yet. A line is brought from memory into the second cache long
// before it is read, and into the first cache shortly before. If it were brought from memory into the first cache at once, it would
// occupy one of that cache's few buffers for misses until memory answers, and these are too few to read at the speed of memory.
static inline __attribute__((always_inline)) void prefetch_lines(const char *p, int bytes, long later = LATER, long soon = SOON) {
  for (int at = 0; at < bytes; at += 64) {
    __builtin_prefetch(p + later + at, 0, 2);
    __builtin_prefetch(p + soon + at, 0, 3);
  }
}
// One line of each page is prefetched still earlier: the processor has to look up the page's address first, which takes longer
// than reading from it.
static inline __attribute__((always_inline)) void prefetch_pages(const char *p, long bytes) {
  for (long at = 0; at < bytes; at += PAGE) __builtin_prefetch(p + LATEST + at, 0, 2);
}

// The same for rows of `bytes` bytes, `row` bytes apart, in turn; rows with gaps get their lines only.
static inline __attribute__((always_inline)) void prefetch_row(const char *p, int bytes, long row, int number) {
  if (row != bytes) return prefetch_lines(p, bytes, LATER_ROWS * row, SOON_ROWS * row);
  prefetch_lines(p, bytes);
  if (number % W == 0) prefetch_pages(p, W * row);
}

// The words of a product that 32 bits of a key hold: their numbers, or their pair.
template <int TYPE>
constexpr int WORDS_IN = PAIR == 2 ? 1 : IN_WORD<TYPE>;
template <int TYPE, class Bits>
static inline vf word_in(Bits bits, int place, vf scale) {
  if constexpr (PAIR == 2) return (vf)bits;
  return number_in<TYPE>(bits, HALF ? 1 - place : place, scale);
}

// Scores of M rows with the keys in G registers of a panel, which begin at `lane`. Unless WHOLE, the tensor lacks some of the
// panel's keys: their lanes get scores of others, and are masked later.
template <int M, int TYPE, bool WHOLE, int G>
static inline __attribute__((always_inline)) void score_keys_of(const Vectors &keys, int panel_key, int lane, const real *q,
                                                                real *s, real by) {
  constexpr int BYTES = 4 / IN_WORD<TYPE>, STEP = 4 * IN_WORD<TYPE>;
  const long length = words(keys.dim);
  const long row = keys.x.row * BYTES;
  const bool dense = WHOLE && row == keys.dim * BYTES;
  const int first = keys.begin(panel_key), last = keys.end(panel_key, NR) - 1, key = panel_key + lane;
  const auto key_in = [&](int i) { return WHOLE ? key + i : std::min(std::max(key + i, first), last); };
  vf sum[G][M], scale[G]{};
  for (int g = 0; g < G; g++)
    for (int i = 0; i < M; i++) sum[g][i] = vf{};
  if (TYPE == RG_INT8)
    for (int i = 0; i < G * W; i++)
      scale[i / W][i % W] = *numbers_at<float>(keys.scale, keys.batch, keys.head, key_in(i) - keys.first_key);
  const char *p = WHOLE ? keys.row(key) : nullptr, *next = p, *lines[G * W];
  if (!WHOLE)
    for (int i = 0; i < G * W; i++) lines[i] = keys.row(key_in(i));
  if (dense) prefetch_pages(p, G * W * row);
  const int lines_of_row = (keys.dim * BYTES + 63) / 64;
  for (int c = 0; c < keys.dim; c += STEP, p += WHOLE ? 16 : 0, next += WHOLE ? 16 * G * W : 0) {
    if (dense) prefetch_lines(next, 16 * G * W);
    if (WHOLE && !dense)  // as many lines of later rows as are read
      for (int line = c * BYTES * G * W / 64; line < (c * BYTES + 16) * G * W / 64; line++)
        prefetch_lines(keys.row(key) + line / lines_of_row * row + line % lines_of_row * 64, 64, LATER_ROWS * row, SOON_ROWS * row);
#pragma GCC unroll 4
    for (int g = 0; g < G; g++) {
      const WordColumns words_of_keys([&](int i) { return WHOLE ? p + (g * W + i) * row : lines[g * W + i] + c * BYTES; });
#pragma GCC unroll 4
      for (int word = 0; word < 4; word++)
#pragma GCC unroll 4
        for (int place = 0; place < WORDS_IN<TYPE>; place++) {
          const vf x = word_in<TYPE>(words_of_keys.column[word], place, scale[g]);
#pragma GCC unroll 8
          for (int i = 0; i < M; i++)
            sum[g][i] = step(x, everywhere(q + i * length + c / PAIR + word * WORDS_IN<TYPE> + place), sum[g][i]);
        }
    }
  }
  for (int g = 0; g < G; g++)
    for (int i = 0; i < M; i++) store(s + (long)i * LDS + lane + g * W, sum[g][i] * all(by));
}

// The registers of a panel that are computed at once where it has four: enough sums that do not wait for each other.
template <int M>
constexpr int TOGETHER_OF = NV < 4 ? 1 : M <= 2 ? 4 : M <= 4 ? 2 : 1;

// The same for the lanes [begin, end), which are whole registers.
template <int M, int TYPE, bool WHOLE>
static void score_few(const Vectors &keys, int panel_key, int begin, int end, const real *q, real *s, real by) {
  constexpr int G = TOGETHER_OF<M>;
  int lane = begin;
  if constexpr (G > 1)
    for (; lane + G * W <= end; lane += G * W) score_keys_of<M, TYPE, WHOLE, G>(keys, panel_key, lane, q, s, by);
  for (; lane < end; lane += W) score_keys_of<M, TYPE, WHOLE, 1>(keys, panel_key, lane, q, s, by);
}

// Add the values of the keys [from, to), times their weights, to the columns of N registers of M rows.
template <int M, int TYPE, int N>
static void add_few(const Vectors &values, int from, int to, const real *weights, real *into, long width, int column) {
  vf sum[M][N];
  for (int i = 0; i < M; i++)
    for (int n = 0; n < N; n++) sum[i][n] = vf{};
#if defined(RG_BF16)
  for (int key = from; key < to; key += 2, weights += STEPS) {
    const uint16_t *a = values.halves_of(key), *b = values.halves_of(key + 1);
    if (column == 0 && a)
      for (int i = 0; i < 2; i++)
        prefetch_row((const char *)(a + i * values.x.row), 2 * values.dim, 2 * values.x.row, key - from + i);
    vf x[N][STEPS];
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) pair_rows(a ? a + column + n * W : a, b ? b + column + n * W : b, W, x[n]);
#pragma GCC unroll 2
    for (int one = 0; one < STEPS; one++)
#pragma GCC unroll 8
      for (int i = 0; i < M; i++) {
        const vf weight = everywhere(weights + (long)i * LDS + one);
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) sum[i][n] = step(x[n][one], weight, sum[i][n]);
      }
  }
#else
  constexpr int BYTES = 4 / IN_WORD<TYPE>;
  const char *p = values.row(from) + column * BYTES;
  for (int key = from; key < to; key++, p += values.x.row * BYTES) {
    if (column == 0) prefetch_row(p, values.dim * BYTES, values.x.row * BYTES, key - from);
    const vf scale = TYPE == RG_INT8 ? all((real)*numbers_at<float>(values.scale, values.batch, values.head, key - values.first_key)) : vf{};
    vf x[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) x[n] = numbers_at<TYPE>(p + n * W * BYTES, scale);
#pragma GCC unroll 8
    for (int i = 0; i < M; i++) {
      const vf weight = all(weights[(long)i * LDS + key - from]);
#pragma GCC unroll 8
      for (int n = 0; n < N; n++) sum[i][n] = madd(x[n], weight, sum[i][n]);
    }
  }
#endif
  for (int i = 0; i < M; i++)
    for (int n = 0; n < N; n++) store(into + i * width + column + n * W, load(into + i * width + column + n * W) + sum[i][n]);
}

// The same for all columns from `column` on, N registers at a time while there are so many.
template <int M, int TYPE, int N>
static void add_columns(const Vectors &values, int from, int to, const real *weights, real *into, long width, int column) {
  for (; column + N * W <= values.dim; column += N * W) add_few<M, TYPE, N>(values, from, to, weights, into, width, column);
  if constexpr (N > 1)
    if (column < values.dim) add_columns<M, TYPE, N / 2>(values, from, to, weights, into, width, column);
}

template <int M, int TYPE>
static void add_few(const Vectors &values, int from, int to, const real *weights, real *into, long width) {
  constexpr int N = VECTOR_REGISTERS / 4 / (M <= 2 ? 1 : M <= 4 ? 2 : 4);  // sums of M rows fit the registers
  add_columns<M, TYPE, N>(values, from, to, weights, into, width, 0);
}

// Calls f<M, TYPE> for a number of rows and a type.
template <int M, class F>
static void with_type(int type, F f) {
  std::integral_constant<int, M> rows;
  if (HALF) return f(rows, std::integral_constant<int, RG_BFLOAT16>());
  if (type == RG_FLOAT32) return f(rows, std::integral_constant<int, RG_FLOAT32>());
  if (type == RG_BFLOAT16) return f(rows, std::integral_constant<int, RG_BFLOAT16>());
  if (type == RG_FLOAT16) return f(rows, std::integral_constant<int, RG_FLOAT16>());
  f(rows, std::integral_constant<int, RG_INT8>());
}
template <class F, int M = FEW>
static void with_rows(int rows, int type, F f) {
  if constexpr (M > 1)
    if (rows < M) return with_rows<F, M - 1>(rows, type, f);
  with_type<M>(type, f);
}
#endif

// Whether these rows are few, and the vectors are whole registers; then scores or sums are computed here.
static bool few(int rows, const Vectors &x) {
#if defined(RG_FEW)
  return rows <= FEW && x.dim % std::max(W, 16 / WIDTH_OF[x.x.type]) == 0;  // 16 bytes of a key are read at a time
#else
  (void)rows, (void)x;
  return false;
#endif
}

static void score_few(int rows, const Vectors &keys, int key, int begin, int end, const real *q, real *s, real by) {
#if defined(RG_FEW)
  const bool whole = keys.begin(key) == key && keys.end(key, NR) == key + NR;
  with_rows(rows, keys.x.type, [&](auto m, auto type) {
    const auto score = whole ? score_few<m(), type(), true> : score_few<m(), type(), false>;
    score(keys, key, begin, end, q, s, by);
  });
#else
  (void)rows, (void)keys, (void)key, (void)begin, (void)end, (void)q, (void)s, (void)by;
#endif
}

static void add_few(int rows, const Vectors &values, int from, int to, const real *weights, real *into, long width) {
#if defined(RG_FEW)
  with_rows(rows, values.x.type, [&](auto m, auto type) { add_few<m(), type()>(values, from, to, weights, into, width); });
#else
  (void)rows, (void)values, (void)from, (void)to, (void)weights, (void)into, (void)width;
#endif
}
}  // namespace
}  // namespace RG_SPACE
