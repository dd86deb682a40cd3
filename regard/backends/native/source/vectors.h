// Vectors of one register and the functions of them that the kernel needs.
//
// Every sum here has a fixed order that does not depend on the width of a register, so AVX2 and AVX-512 give equal bits.
// Products are added by `madd`, which rounds once; the compiler is told not to fuse others (-ffp-contract=off).
#pragma once
#include "space.h"

namespace RG_SPACE {
namespace {
typedef RG_REAL real;            // float, or double in the namespace for float64
constexpr int W = RG_WIDTH;      // reals in a register
constexpr bool SINGLE = sizeof(real) == 4;
#if defined(RG_DOUBLE)
typedef int64_t whole;
#else
typedef int32_t whole;
#endif

typedef real vf __attribute__((vector_size(W * sizeof(real))));
typedef whole vi __attribute__((vector_size(W * sizeof(real))));
typedef real vf_anywhere __attribute__((vector_size(W * sizeof(real)), aligned(sizeof(real)), may_alias));

static inline vf load(const real *p) { return *(const vf_anywhere *)p; }
static inline void store(real *p, vf x) { *(vf_anywhere *)p = x; }
typedef whole vi_anywhere __attribute__((vector_size(W * sizeof(real)), aligned(sizeof(real)), may_alias));
static inline vi load(const whole *p) { return *(const vi_anywhere *)p; }
static inline void store(whole *p, vi x) { *(vi_anywhere *)p = x; }
static inline vf all(real x) { return x - (vf){}; }

// The functions that follow have a form for each instruction set, and one for any, which float64 uses. Built for AVX2,
// registers of 16 numbers use it too: tests run the tiles of AVX-512 so where a processor has no AVX-512.
#if defined(__AVX512F__) && !defined(RG_DOUBLE)
#define RG_512
#elif defined(__AVX2__) && RG_WIDTH == 8
#define RG_256
#endif

static inline vf madd(vf a, vf b, vf c) {  // a * b + c, rounded once
#if defined(RG_512)
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(RG_256)
  return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(RG_DOUBLE) && defined(__AVX2__) && defined(__FMA__)
  return (vf)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
  for (int i = 0; i < W; i++) c[i] = std::fma(a[i], b[i], c[i]);
  return c;
#endif
}

// The first n < W numbers, zeros behind them.
static inline vf load_some(const real *p, int n) {
#if defined(RG_512)
  return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#else
  vf x{};
  for (int i = 0; i < n; i++) x[i] = p[i];
  return x;
#endif
}

static inline void store_some(real *p, vf x, int n) {
#if defined(RG_512)
  _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)x);
#else
  for (int i = 0; i < n; i++) p[i] = x[i];
#endif
}

static inline vf larger(vf a, vf b) {  // b where one of them is NaN
#if defined(RG_512)
  return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(RG_256)
  return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}

static inline vf smaller(vf a, vf b) {  // likewise
#if defined(RG_512)
  return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(RG_256)
  return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return a < b ? a : b;
#endif
}

static inline real largest(vf x) {
#if defined(RG_512)
  return _mm512_reduce_max_ps((__m512)x);
#elif defined(RG_256)
  __m128 a = _mm_max_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
  a = _mm_max_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
#else
  real most = x[0];
  for (int i = 1; i < W; i++) most = x[i] > most ? x[i] : most;
  return most;
#endif
}

// A bit for each lane of x that is not at or below the limit: bit 0 is the first lane. NaN is not at or below anything.
static inline uint32_t not_below(vf x, real limit) {
#if defined(RG_512)
  return _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(limit), _CMP_NLE_UQ);
#elif defined(RG_256)
  return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps((__m256)x, _mm256_set1_ps(limit), _CMP_NLE_UQ));
#else
  uint32_t bits = 0;
  for (int i = 0; i < W; i++) bits |= (uint32_t) !(x[i] <= limit) << i;
  return bits;
#endif
}

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

// The sum of the lanes of a register: lane i + W / 2 is added to lane i, then W / 4, down to neighbours.
static inline real sum(vf y) {
#if defined(RG_512)
  const __m256 a = _mm256_add_ps(_mm512_castps512_ps256((__m512)y), _mm512_extractf32x8_ps((__m512)y, 1));
#elif defined(RG_256)
  const __m256 a = (__m256)y;
#endif
#if defined(RG_512) || defined(RG_256)
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
#else
  real z[W];
  store(z, y);
  for (int half = W / 2; half; half /= 2)
    for (int i = 0; i < half; i++) z[i] += z[i + half];
  return z[0];
#endif
}

static inline real sum(const Lanes &x) { return sum(folded(x)); }

// Lane i of the result joins the lanes of x[i]: those W / 2 apart, then W / 4, down to neighbours.
template <class Join>
static inline vf joined(const vf *x, Join join) {
#if defined(RG_512)
  const auto two = [&](vf a, vf b, auto control) {  // the 128-bit parts of both
    constexpr int c = control();
    return (vf)_mm512_shuffle_f32x4((__m512)a, (__m512)b, c);
  };
  typedef std::integral_constant<int, 0x44> Low;
  typedef std::integral_constant<int, 0xEE> High;
  typedef std::integral_constant<int, 0x88> Even;
  typedef std::integral_constant<int, 0xDD> Odd;
  constexpr int PLACE[] = {0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15};  // of the rows after all shuffles
  vf y[8], z[4];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) y[i] = join(two(x[PLACE[i]], x[PLACE[i + 8]], Low()), two(x[PLACE[i]], x[PLACE[i + 8]], High()));
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) z[i] = join(two(y[i], y[i + 4], Even()), two(y[i], y[i + 4], Odd()));
  __m512 u[2];
#pragma GCC unroll 2
  for (int i = 0; i < 2; i++) {
    const __m512d a = (__m512d)z[i], b = (__m512d)z[i + 2];
    u[i] = (__m512)join((vf)_mm512_unpacklo_pd(a, b), (vf)_mm512_unpackhi_pd(a, b));
  }
  return join((vf)_mm512_shuffle_ps(u[0], u[1], 0x88), (vf)_mm512_shuffle_ps(u[0], u[1], 0xDD));
#elif defined(RG_256)
  constexpr int PLACE[] = {0, 2, 1, 3, 4, 6, 5, 7};
  __m256 y[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    const __m256 a = (__m256)x[PLACE[i]], b = (__m256)x[PLACE[i + 4]];
    y[i] = (__m256)join((vf)_mm256_permute2f128_ps(a, b, 0x20), (vf)_mm256_permute2f128_ps(a, b, 0x31));
  }
  __m256 u[2];
#pragma GCC unroll 2
  for (int i = 0; i < 2; i++) {
    const __m256d a = (__m256d)y[i], b = (__m256d)y[i + 2];
    u[i] = (__m256)join((vf)_mm256_unpacklo_pd(a, b), (vf)_mm256_unpackhi_pd(a, b));
  }
  return join((vf)_mm256_shuffle_ps(u[0], u[1], 0x88), (vf)_mm256_shuffle_ps(u[0], u[1], 0xDD));
#else
  vf out;
  for (int r = 0; r < W; r++) {
    vf y = x[r];
    for (int half = W / 2; half; half /= 2) {
      vf further{};
      for (int i = 0; i < half; i++) further[i] = y[i + half];
      y = join(y, further);
    }
    out[r] = y[0];
  }
  return out;
#endif
}

// The integer nearest to x, as an integer and as a real. Of NaN the real is NaN, and the lowest bits are 0.
static inline vi nearest(vf x, vf *as_real) {
#if defined(RG_512)
  const __m512i n = _mm512_cvtps_epi32((__m512)x);
  *as_real = (vf)_mm512_cvtepi32_ps(n);
  return (vi)n;
#elif defined(RG_256)
  const __m256i n = _mm256_cvtps_epi32((__m256)x);
  *as_real = (vf)_mm256_cvtepi32_ps(n);
  return (vi)n;
#else
  vi n;
  for (int i = 0; i < W; i++) n[i] = x[i] == x[i] ? (whole)std::nearbyint(x[i]) : 0, (*as_real)[i] = (real)n[i];
  return n;
#endif
}

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

constexpr int up(int x, int m) { return (x + m - 1) / m * m; }
}  // namespace
}  // namespace RG_SPACE
