// Vectors of one register and the functions of them that the kernel needs.
//
// Every sum here has a fixed order that does not depend on the width of a register, so all instruction sets give equal bits.
// Products are added by `madd`, which rounds once; the compiler is told not to fuse others (-ffp-contract=off).
//
// vectors_generic.h has a version of each function for any processor; vectors_x86.h and vectors_arm.h have their own of some.
// All other architectures use vectors_other.h, which tests choose on any processor by -DRG_GENERIC.
#pragma once
#include "vectors_generic.h"

#if defined(__x86_64__) && !defined(RG_GENERIC)
#include "vectors_x86.h"
#elif defined(__aarch64__) && !defined(RG_GENERIC)
#include "vectors_arm.h"
#else
#include "vectors_other.h"
#endif

namespace RG_SPACE {
namespace {
#ifndef RG_512
static inline vf in_register(vf x) { return x; }
#endif

// 0, 1, 2, ... in the lanes
static inline vf lane_numbers() {
  vf x;
  for (int i = 0; i < W; i++) x[i] = (real)i;
  return x;
}

// Sums of 32 lanes: lane i + 16 is added to lane i, then 8, 4, 2 and 1 apart.
constexpr int LANES = 32, REGISTERS = LANES / W;
struct Lanes {
  vf part[REGISTERS];
};

// The lanes that fill one register, after those that lie further apart were added.
static inline vf folded(Lanes x) {
#pragma GCC unroll 8
  for (int half = REGISTERS / 2; half; half /= 2)
#pragma GCC unroll 8
    for (int i = 0; i < half; i++) x.part[i] += x.part[i + half];
  return x.part[0];
}

static inline real sum(const Lanes &x) { return sum(folded(x)); }

constexpr real LOG2E = (real)1.4426950408889634, LN2 = (real)0.6931471805599453, INF = (real)__builtin_inf();
constexpr int EXPONENT = SINGLE ? 127 : 1023, MANTISSA = SINGLE ? 23 : 52;

// 2^x on [-1/2, 1/2]: a minimax polynomial in float32 (2e-7), the series in float64.
static inline vf fraction_exp2(vf f) {
  constexpr real SINGLE_TERMS[] = {(real)1.32647147e-3, (real)9.67151352e-3, (real)5.55073378e-2, (real)2.40222421e-1,
                                   (real)6.93146978e-1, (real)1};
  constexpr real DOUBLE_TERMS[] = {
      (real)1.3691488853904128e-12, (real)2.5678435993488206e-11, (real)4.4455382718708117e-10,
      (real)7.0549116208011234e-9, (real)1.0178086009239700e-7, (real)1.3215486790144309e-6,
      (real)1.5252733804059841e-5, (real)1.5403530393381608e-4, (real)1.3333558146428443e-3,
      (real)9.6181291076284772e-3, (real)5.5504108664821580e-2, (real)2.4022650695910072e-1,
      (real)6.9314718055994531e-1, (real)1};
  const real *terms = SINGLE ? SINGLE_TERMS : DOUBLE_TERMS;
  vf p = all(terms[0]);
#pragma GCC unroll 16
  for (int i = 1; i < (SINGLE ? 6 : 14); i++) p = madd(p, f, all(terms[i]));
  return p;
}

// 2^x for x <= 127: exactly 1 at 0, exactly 0 from -127 (-1023) down, so that masked weights are 0; NaN stays NaN.
static inline vf exp2(vf x) {
  x = larger(all(-EXPONENT), x);
  vf n_real;
  const vi n = nearest(x, &n_real);
  return (vf)((vi)fraction_exp2(x - n_real) + (n << MANTISSA));
}

static inline real exp2(real x) { return exp2(all(x))[0]; }

// tanh x, relative error 3e-7 in float32.
static inline vf tanh(vf x) {
  if constexpr (!SINGLE) {
    for (int i = 0; i < W; i++) x[i] = std::tanh(x[i]);
    return x;
  }
  const vf a = larger(x, -x);
  const vf e = exp2(a * all(-2 * LOG2E));
  const vf far = (all(1) - e) / (all(1) + e);
  const vf z = a * a;  // below 1/4 by its series, where 1 - e would lose digits
  vf series = madd(z, all((real)0.0218694885), all((real)-0.0539682540));
  series = madd(series, z, all((real)0.133333333));
  series = madd(series, z, all((real)-0.333333333));
  const vf near = madd(series * z, a, a);
  const vf found = a < all((real)0.25) ? near : far;
  return x < all(0) ? -found : found;
}

// s where the bit of its lane is set, -inf elsewhere; bit 0 is the first lane.
static inline vf shown(vf s, uint32_t bits) {
  vi lane;
  for (int i = 0; i < W; i++) lane[i] = (whole)1 << i;
  const vi set = (lane & (whole)bits) != 0;
  return set ? s : all(-INF);
}

// The lanes of x, each moved to the next lane; the last lane of `before` becomes the first, and the last of x is dropped.
template <class V, int... LANE>
static inline V moved_on(V before, V x, std::integer_sequence<int, LANE...>) {
#if defined(__clang__)
  return __builtin_shufflevector(before, x, (W - 1 + LANE)...);
#else
  return __builtin_shuffle(before, x, vi{(W - 1 + LANE)...});
#endif
}
template <class V>
static inline V moved_on(V before, V x) {
  return moved_on(before, x, std::make_integer_sequence<int, W>());
}

constexpr int up(int x, int m) { return (x + m - 1) / m * m; }
}  // namespace
}  // namespace RG_SPACE
