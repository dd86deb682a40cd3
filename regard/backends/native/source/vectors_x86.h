// Vectors of x86-64: AVX-512 in registers of 16 numbers, AVX2 in registers of 8. Of float64 only `madd` has a form here.
#pragma once
#include "vectors_generic.h"

#if defined(__AVX512F__) && !defined(RG_DOUBLE)
#define RG_512
#elif defined(__AVX2__) && RG_WIDTH == 8
#define RG_256
#endif
#if defined(RG_512) || defined(RG_256)
#define RG_FEW
#define RG_BLOCK_ROWS 8
#endif

namespace RG_SPACE {
namespace {
constexpr int VECTOR_REGISTERS = W == 16 ? 32 : 16;
typedef _Float16 half_number;

// While it lives, denormal numbers count as 0, as inputs and as results.
struct FlushToZero {
  const unsigned before = _mm_getcsr();
  FlushToZero() { _mm_setcsr(before | 0x8040); }
  ~FlushToZero() { _mm_setcsr(before); }
};

#if defined(RG_512)
static inline vf madd(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
// x in a register: a compiler would load what several products share once for each of them.
static inline vf in_register(vf x) {
  asm("" : "+v"(x));
  return x;
}
static inline vf load_some(const real *p, int n) { return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p); }
static inline void store_some(real *p, vf x, int n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)x); }
static inline vf larger(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
static inline vf smaller(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
static inline real largest(vf x) { return _mm512_reduce_max_ps((__m512)x); }
static inline uint32_t not_below(vf x, real limit) {
  return _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(limit), _CMP_NLE_UQ);
}

static inline vi nearest(vf x, vf *as_real) {
  const __m512i n = _mm512_cvtps_epi32((__m512)x);
  *as_real = (vf)_mm512_cvtepi32_ps(n);
  return (vi)n;
}

template <class Join>
static inline vf joined(const vf *x, Join join) {
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
}

static inline vf kept_where(const vu *state, uint64_t least, vf x) {
  const __m512i threshold = _mm512_set1_epi64((long long)least);
  const __mmask8 low = _mm512_cmpge_epu64_mask((__m512i)state[0], threshold);
  const __mmask8 high = _mm512_cmpge_epu64_mask((__m512i)state[1], threshold);
  return (vf)_mm512_maskz_mov_ps(_mm512_kunpackb(high, low), (__m512)x);
}

// Sixteen rows of memory: four neighbouring 32-bit words of each, column by column.
struct WordColumns {
  __m512i column[4];

  // Words of the rows first, first + 4, first + 8 and first + 12; `at` says where the words of a row are.
  template <class Place>
  static __m512i four(const Place &at, int first) {
    const auto one = [&](int i) { return _mm_loadu_si128((const __m128i *)at(first + i)); };
    __m512i x = _mm512_castsi128_si512(one(0));  // masked loads, since inserting needs shuffles
    x = _mm512_mask_broadcast_i32x4(x, 0x00f0, one(4));
    x = _mm512_mask_broadcast_i32x4(x, 0x0f00, one(8));
    return _mm512_mask_broadcast_i32x4(x, 0xf000, one(12));
  }
  template <class Place>
  explicit WordColumns(const Place &at) {
    const __m512i a = four(at, 0), b = four(at, 1), c = four(at, 2), d = four(at, 3);
    const __m512i t0 = _mm512_unpacklo_epi32(a, b), t1 = _mm512_unpackhi_epi32(a, b);
    const __m512i t2 = _mm512_unpacklo_epi32(c, d), t3 = _mm512_unpackhi_epi32(c, d);
    column[0] = _mm512_unpacklo_epi64(t0, t2), column[1] = _mm512_unpackhi_epi64(t0, t2);
    column[2] = _mm512_unpacklo_epi64(t1, t3), column[3] = _mm512_unpackhi_epi64(t1, t3);
  }
};

// The number `place` of each word, as real; int8 times its scale.
template <int TYPE>
static inline vf number_in(__m512i word, int place, vf scale) {
  if constexpr (TYPE == RG_FLOAT32) return (vf)word;
  if constexpr (TYPE == RG_BFLOAT16)
    return (vf)(place ? _mm512_and_epi32(word, _mm512_set1_epi32((int)0xffff0000)) : _mm512_slli_epi32(word, 16));
  if constexpr (TYPE == RG_FLOAT16)
    return (vf)_mm512_cvtph_ps(_mm512_cvtepi32_epi16(place ? _mm512_srli_epi32(word, 16) : word));
  return (vf)_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(word, 24 - 8 * place), 24)) * scale;
}

// The neighbouring numbers of a row that fill a register, as reals; int8 times its scale.
template <int TYPE>
static inline vf numbers_at(const char *p, vf scale) {
  if constexpr (TYPE == RG_FLOAT32) return load((const real *)p);
  if constexpr (TYPE == RG_BFLOAT16)
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
  if constexpr (TYPE == RG_FLOAT16) return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
  return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p))) * scale;
}
#elif defined(RG_256)
static inline vf madd(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
static inline vf larger(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
static inline vf smaller(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }

static inline real largest(vf x) {
  __m128 a = _mm_max_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
  a = _mm_max_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
}

static inline uint32_t not_below(vf x, real limit) {
  return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps((__m256)x, _mm256_set1_ps(limit), _CMP_NLE_UQ));
}

static inline vi nearest(vf x, vf *as_real) {
  const __m256i n = _mm256_cvtps_epi32((__m256)x);
  *as_real = (vf)_mm256_cvtepi32_ps(n);
  return (vi)n;
}

template <class Join>
static inline vf joined(const vf *x, Join join) {
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
}

// The same for eight rows of memory, and for registers of eight numbers.
struct WordColumns {
  __m256i column[4];

  template <class Place>
  static __m256i two(const Place &at, int first) {  // words of the rows first and first + 4
    const __m128i low = _mm_loadu_si128((const __m128i *)at(first)), high = _mm_loadu_si128((const __m128i *)at(first + 4));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
  }
  template <class Place>
  explicit WordColumns(const Place &at) {
    const __m256i a = two(at, 0), b = two(at, 1), c = two(at, 2), d = two(at, 3);
    const __m256i t0 = _mm256_unpacklo_epi32(a, b), t1 = _mm256_unpackhi_epi32(a, b);
    const __m256i t2 = _mm256_unpacklo_epi32(c, d), t3 = _mm256_unpackhi_epi32(c, d);
    column[0] = _mm256_unpacklo_epi64(t0, t2), column[1] = _mm256_unpackhi_epi64(t0, t2);
    column[2] = _mm256_unpacklo_epi64(t1, t3), column[3] = _mm256_unpackhi_epi64(t1, t3);
  }
};

template <int TYPE>
static inline vf number_in(__m256i word, int place, vf scale) {
  if constexpr (TYPE == RG_FLOAT32) return (vf)word;
  if constexpr (TYPE == RG_BFLOAT16)
    return (vf)(place ? _mm256_and_si256(word, _mm256_set1_epi32((int)0xffff0000)) : _mm256_slli_epi32(word, 16));
  if constexpr (TYPE == RG_FLOAT16) {
    const __m256i x = place ? _mm256_srli_epi32(word, 16) : _mm256_and_si256(word, _mm256_set1_epi32(0xffff));
    return (vf)_mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
  }
  return (vf)_mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(word, 24 - 8 * place), 24)) * scale;
}

template <int TYPE>
static inline vf numbers_at(const char *p, vf scale) {
  if constexpr (TYPE == RG_FLOAT32) return load((const real *)p);
  if constexpr (TYPE == RG_BFLOAT16)
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
  if constexpr (TYPE == RG_FLOAT16) return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
  return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p))) * scale;
}
#elif defined(RG_DOUBLE) && defined(__AVX2__) && defined(__FMA__)
static inline vf madd(vf a, vf b, vf c) { return (vf)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c); }
#endif

#if defined(RG_512) || defined(RG_256)
static inline real sum(vf y) {
#if defined(RG_512)
  const __m256 a = _mm256_add_ps(_mm512_castps512_ps256((__m512)y), _mm512_extractf32x8_ps((__m512)y, 1));
#else
  const __m256 a = (__m256)y;
#endif
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

static inline int read_converted(int type, const char *row, int n, vf factor, real *out) {
  int i = 0;
  if (type == RG_BFLOAT16) {
    typedef uint16_t half __attribute__((vector_size(W * 2), aligned(2), may_alias));
    for (; i + W <= n; i += W) {
      const vi bits = __builtin_convertvector(*(const half *)((const uint16_t *)row + i), vi) << 16;
      store(out + i, (vf)bits * factor);
    }
  } else if (type == RG_FLOAT16) {
    for (; i + 8 <= n; i += 8) {
      const __m256 y = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(row + 2 * i)));
      _mm256_storeu_ps(out + i, _mm256_mul_ps(y, _mm256_set1_ps(factor[0])));
    }
  } else if (type == RG_INT8) {
    for (; i + 8 <= n; i += 8) {
      const __m256 y = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(row + i))));
      _mm256_storeu_ps(out + i, _mm256_mul_ps(y, _mm256_set1_ps(factor[0])));
    }
  }
  return i;
}

// panel[c][j..j + 8) = x[j..j + 8)[c] for vectors of d numbers
static inline __attribute__((always_inline)) void transpose_block(const real *x, int j, long stride, int d, real *panel, long line) {
  int c = 0;
  for (; c + 8 <= d; c += 8)
    for (int half = 0; half < 2; half++) {  // rows i and i + 4 share a register, so that no lane crosses
      const float *y = x + (long)j * stride + c + 4 * half;
      __m256 r[4], t[4];
      for (int i = 0; i < 4; i++)
        r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(y + i * stride)), _mm_loadu_ps(y + (i + 4) * stride), 1);
      for (int i = 0; i < 2; i++)
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]), t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
      float *o = panel + (c + 4 * half) * line + j;
      _mm256_storeu_ps(o, _mm256_shuffle_ps(t[0], t[2], 0x44));
      _mm256_storeu_ps(o + line, _mm256_shuffle_ps(t[0], t[2], 0xEE));
      _mm256_storeu_ps(o + 2 * line, _mm256_shuffle_ps(t[1], t[3], 0x44));
      _mm256_storeu_ps(o + 3 * line, _mm256_shuffle_ps(t[1], t[3], 0xEE));
    }
  for (; c < d; c++)
    for (int i = 0; i < 8; i++) panel[c * line + j + i] = x[(j + i) * stride + c];
}
#endif
}  // namespace
}  // namespace RG_SPACE
