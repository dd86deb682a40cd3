// Vector functions that run on any processor. An instruction set may have its own version of each.
//
// These are templates, so the compiler prefers a function of `vectors_x86.h` or `vectors_arm.h` with the same name and types.
// float64 uses most of these templates. So does the kernel of AVX-512 when a test builds it for AVX2, to run its tiles on a
// processor without AVX-512.
#pragma once
#include "registers.h"

namespace RG_SPACE {
namespace {
// a * b + c, rounded once
template <class V>
static inline V madd(V a, V b, V c) {
  for (int i = 0; i < W; i++) c[i] = std::fma(a[i], b[i], c[i]);
  return c;
}

// The first n < W numbers, zeros behind them.
template <class V = vf>
static inline V load_some(const real *p, int n) {
  V x{};
  for (int i = 0; i < n; i++) x[i] = p[i];
  return x;
}

template <class V>
static inline void store_some(real *p, V x, int n) {
  for (int i = 0; i < n; i++) p[i] = x[i];
}

// b where one of them is NaN
template <class V>
static inline V larger(V a, V b) {
  return a > b ? a : b;
}

// likewise
template <class V>
static inline V smaller(V a, V b) {
  return a < b ? a : b;
}

template <class V>
static inline real largest(V x) {
  real most = x[0];
  for (int i = 1; i < W; i++) most = x[i] > most ? x[i] : most;
  return most;
}

// A bit for each lane of x that is not at or below the limit: bit 0 is the first lane. NaN is not at or below anything.
template <class V>
static inline uint32_t not_below(V x, real limit) {
  uint32_t bits = 0;
  for (int i = 0; i < W; i++) bits |= (uint32_t) !(x[i] <= limit) << i;
  return bits;
}

// The sum of the lanes of a register: lane i + W / 2 is added to lane i, then W / 4, down to neighbours.
template <class V>
static inline real sum(V y) {
  real z[W];
  store(z, y);
  for (int half = W / 2; half; half /= 2)
    for (int i = 0; i < half; i++) z[i] += z[i + half];
  return z[0];
}

// Lane i of the result joins the lanes of x[i]: those W / 2 apart, then W / 4, down to neighbours.
template <class V, class Join>
static inline V joined(const V *x, Join join) {
  V out;
  for (int r = 0; r < W; r++) {
    V y = x[r];
    for (int half = W / 2; half; half /= 2) {
      V further{};
      for (int i = 0; i < half; i++) further[i] = y[i + half];
      y = join(y, further);
    }
    out[r] = y[0];
  }
  return out;
}

// The integer nearest to x, as an integer and as a real. Of NaN the real is some number, and the lowest bits are 0.
template <class V>
static inline vi nearest(V x, V *as_real) {
  vi n;
  for (int i = 0; i < W; i++) n[i] = x[i] == x[i] ? (whole)std::nearbyint(x[i]) : 0, (*as_real)[i] = (real)n[i];
  return n;
}

// x in the lanes whose state is at least this, 0 elsewhere.
template <class V>
static inline V kept_where(const vu *state, uint64_t least, V x) {
  constexpr int LENGTH = W / HALVES;
  vi keep;
  for (int half = 0; half < HALVES; half++) {
    const vu above = (vu)(state[half] >= least);
    for (int i = 0; i < LENGTH; i++) keep[half * LENGTH + i] = (whole)above[i];
  }
  return keep ? x : V{};
}

// out = factor * row for the numbers of another type, as far as they fill registers; returns how many of n were written.
template <class V>
static inline int read_converted(int, const char *, int, V, real *) {
  return 0;
}
}  // namespace
}  // namespace RG_SPACE
