// Reading and writing tensors in their own types; inside the kernel every number is a `real`.
#pragma once
#include "products.h"

namespace RG_SPACE {
namespace {
struct Workspace {  // memory of one thread, kept between calls and cut into aligned pieces
  char *base = nullptr;
  size_t used = 0, size = 0;
  bool reserve(size_t bytes) {
    used = 0;
    if (bytes <= size) return true;
    std::free(base);
    size = (bytes + 4095) / 4096 * 4096;
    base = (char *)std::aligned_alloc(64, size);
    if (!base) size = 0;
    return base;
  }
  static size_t bytes(size_t numbers) { return (numbers * sizeof(real) + 63) / 64 * 64 + 64; }
  real *take(size_t numbers) {
    real *p = (real *)(base + used);
    used += bytes(numbers);
    return p;
  }
  ~Workspace() { std::free(base); }
};

static Workspace &workspace() {
  static thread_local Workspace kept;
  return kept;
}

static const int WIDTH_OF[] = {4, 2, 2, 1, 8};  // bytes of each type

static inline const char *at(const rg_tensor &x, long batch, long head, long row) {
  return (const char *)x.data + (batch * x.batch + head * x.head + row * x.row) * WIDTH_OF[x.type];
}
template <class T>
static inline T *numbers_at(const rg_tensor &x, long batch, long head, long row) {
  return (T *)x.data + batch * x.batch + head * x.head + row * x.row;
}

static inline float widened(uint16_t x) {  // bfloat16
  const uint32_t bits = (uint32_t)x << 16;
  float found;
  std::memcpy(&found, &bits, 4);
  return found;
}

static inline uint16_t narrowed(float x) {  // bfloat16, to the nearest, ties to even
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if (x != x) return 0x7fc0;
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

constexpr int REAL = SINGLE ? RG_FLOAT32 : RG_FLOAT64;  // the type of numbers that need no conversion

static inline real number(int type, const char *row, int i) {
  switch (type) {
    case RG_FLOAT32: return (real)((const float *)row)[i];
    case RG_BFLOAT16: return (real)widened(((const uint16_t *)row)[i]);
    case RG_FLOAT16: return (real)((const half_number *)row)[i];
    case RG_INT8: return (real)((const int8_t *)row)[i];
    default: return (real)((const double *)row)[i];
  }
}

// The same for whole registers at once, as many as there are; returns how many numbers were written. Numbers of type REAL are
// read in the code of each caller, since calls would take longer than short rows.
static __attribute__((noinline)) int read_other(int type, const char *row, int n, vf factor, real *out) {
  return read_converted(type, row, n, factor, out);
}
static inline __attribute__((always_inline)) int read_registers(int type, const char *row, int n, vf factor, real *out) {
  if (type != REAL) return read_other(type, row, n, factor, out);
  int i = 0;
  for (; i + W <= n; i += W) store(out + i, load((const real *)row + i) * factor);
  return i;
}

// out[0..n) = factor * row[0..n), zeros up to `padded`
static inline void read_row(int type, const char *row, int n, real factor, real *out, int padded) {
  int i = read_registers(type, row, n, all(factor), out);
  if (type == REAL && i < n) {
    store_some(out + i, load_some((const real *)row + i, n - i) * all(factor), n - i);
    i = n;
  }
  for (; i < n; i++) out[i] = number(type, row, i) * factor;
  for (; i < padded; i++) out[i] = 0;
}

// Whether x[0..n) * factor is finite: a finite number minus itself is 0, and any other is NaN.
static inline bool finite(const real *x, int n, real factor) {
  vf zeros{};
  for (int i = 0; i < n; i += W) {
    const vf y = (n - i < W ? load_some(x + i, n - i) : load(x + i)) * all(factor);
    zeros += y - y;
  }
  return !not_below(zeros, 0);
}

// row[0..n) = x[0..n) * factor
static inline void write_row(int type, char *row, int n, const real *x, real factor) {
  int i = 0;
  if (type == REAL) {
    real *out = (real *)row;
    for (; i + W <= n; i += W) store(out + i, load(x + i) * all(factor));
    if (i < n) store_some(out + i, load_some(x + i, n - i) * all(factor), n - i);
  } else if (type == RG_BFLOAT16) {
#if !defined(RG_DOUBLE)
    for (; i + W <= n; i += W)
      *(vh *)((uint16_t *)row + i) = __builtin_convertvector((vi)rounded(load(x + i) * all(factor)) >> 16, vh);
#endif
    for (; i < n; i++) ((uint16_t *)row)[i] = narrowed((float)(x[i] * factor));
  } else if (type == RG_FLOAT16) {
    for (; i < n; i++) ((half_number *)row)[i] = (half_number)(x[i] * factor);
  } else {
    for (; i < n; i++) ((float *)row)[i] = (float)(x[i] * factor);
  }
}

// panel[c][j] = x[j][c] for n <= NR rows of d numbers, `stride` apart; zeros behind the last row. Lines of the panel are `line`
// apart.
static void transpose(const real *x, long stride, int n, int d, real *panel, long line = NR) {
  int j = 0;
#if defined(RG_BLOCK_ROWS)
  for (; j + RG_BLOCK_ROWS <= n; j += RG_BLOCK_ROWS) transpose_block(x, j, stride, d, panel, line);
#endif
  if (j == NR) return;
  const int end = std::max(j, n), whole = up(end, W);  // of the rows, and of their last register
  for (int c = 0; c < d; c++) {
    real *into = panel + c * line;
    for (int i = j; i < n; i++) into[i] = x[i * stride + c];
    for (int i = end; i < std::min(whole, NR); i++) into[i] = 0;
    for (int i = whole; i < NR; i += W) store(into + i, vf{});
  }
}

// Keys or values of one head: the rows of the tensor that lie among n keys from `key` on.
struct Vectors {
  const rg_tensor &x, &scale;
  int batch, head, first_key, keys, dim;

  int begin(int key) const { return std::max(key, first_key); }
#if defined(RG_PLANTED_FAULT)  // one key too many: a test shows that the sanitizers notice
  int end(int key, int n) const { return (int)std::min((long)key + n, (long)first_key + keys + 1); }
#else
  int end(int key, int n) const { return (int)std::min((long)key + n, (long)first_key + keys); }
#endif

  // How many of the n keys from `key` on a panel has to read: those that there are, in whole registers, so that they are transposed
  // in blocks. All n if the first is missing. `rows` makes zeros of those that there are not.
  int count(int key, int n) const { return begin(key) == key ? std::min(n, up(end(key, n) - key, W)) : n; }

  const char *row(int key) const { return at(x, batch, head, key - first_key); }

  const uint16_t *halves_of(int key) const {  // NULL for keys that the tensor does not have
    return begin(key) == key && key < end(key, 1) ? (const uint16_t *)row(key) : nullptr;
  }

  // Whether the words of the vector of a key and of those that follow lie in memory as they are.
  bool as_words(int key) const {
    if (!HALF) return x.type == REAL;
    return PAIR == 2 && dim % 2 == 0 && x.row % 2 == 0 && (uintptr_t)row(key) % 4 == 0;
  }

  void read(int key, real *out, int padded) const {
#if defined(RG_BF16)
    return read_words(row(key), dim, out, padded);
#endif
    const real factor = x.type == RG_INT8 ? (real)*numbers_at<float>(scale, batch, head, key - first_key) : 1;
    read_row(x.type, row(key), dim, factor, out, padded);
  }

  // The rows as words, `row_stride` words apart: in place where they are whole and need no conversion, else copied to `room` with
  // zeros for keys that the tensor does not have.
  const real *rows(int key, int n, real *room, long *row_stride) const {
    const int b = begin(key), e = end(key, n), width = words(dim);
    if (b == key && e == key + n && as_words(key)) return *row_stride = x.row / PAIR, (const real *)row(key);
    *row_stride = width;
    for (int j = 0; j < n; j++, room += width) {
      if (key + j < b || key + j >= e) {
        std::memset(room, 0, width * sizeof(real));
        continue;
      }
      const char *next = row(key + j) + n * x.row * WIDTH_OF[x.type];  // it is read soon, or lies behind the tensor
      for (int at = 0; at < dim * WIDTH_OF[x.type]; at += 64) __builtin_prefetch(next + at, 0, 2);
      read(key + j, room, width);
    }
    return room - (long)n * width;
  }
};
}  // namespace
}  // namespace RG_SPACE
