// Vectors of 64-bit Arm: NEON, in registers of four numbers, or of two in float64.
//
// The instructions that multiply bfloat16 numbers (bfdot, bfmmla) round differently from those of AVX-512, so they are not
// used. Two `fmla` for each pair give calls in bfloat16 the bits of other processors.
#pragma once
#include "vectors_generic.h"

#include <arm_neon.h>

#if !defined(RG_DOUBLE)
#define RG_FEW
#define RG_BLOCK_ROWS 4
#endif

namespace RG_SPACE {
namespace {
constexpr int VECTOR_REGISTERS = 32;
typedef __fp16 half_number;

// While an object of it lives, denormal inputs and results count as 0. Arm flushes a result before it is rounded, x86 after
// that. So they differ for a result that becomes the smallest normal number only by rounding.
struct FlushToZero {
  static constexpr uint64_t FLUSHES = 1 << 24;
  uint64_t before;

  FlushToZero() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    write(before | FLUSHES);
  }
  ~FlushToZero() { write(before); }
  // "memory": a barrier for the compiler, so that loads, sums and stores stay on their side.
  static void write(uint64_t control) { __asm__ volatile("msr fpcr, %0" : : "r"(control) : "memory"); }
};

#if defined(RG_DOUBLE)
static inline vf madd(vf a, vf b, vf c) { return (vf)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b); }

static inline vi nearest(vf x, vf *as_real) {
  const int64x2_t n = vcvtnq_s64_f64((float64x2_t)x);
  *as_real = (vf)vcvtq_f64_s64(n);
  return (vi)n;
}
#else
static inline vf madd(vf a, vf b, vf c) { return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
static inline real largest(vf x) { return vmaxnmvq_f32((float32x4_t)x); }

static inline uint32_t not_below(vf x, real limit) {
  const uint32x4_t bit = {1, 2, 4, 8};
  return vaddvq_u32(vbicq_u32(bit, vcleq_f32((float32x4_t)x, vdupq_n_f32(limit))));
}

static inline real sum(vf x) {
  const float32x2_t halves = vadd_f32(vget_low_f32((float32x4_t)x), vget_high_f32((float32x4_t)x));
  return vget_lane_f32(halves, 0) + vget_lane_f32(halves, 1);
}

static inline vi nearest(vf x, vf *as_real) {
  const int32x4_t n = vcvtnq_s32_f32((float32x4_t)x);
  *as_real = (vf)vcvtq_f32_s32(n);
  return (vi)n;
}

template <class Join>
static inline vf joined(const vf *x, Join join) {
  const auto halves = [&](vf a, vf b) {  // the upper half of each is joined to its lower half
    return join((vf)vzip1q_f64((float64x2_t)a, (float64x2_t)b), (vf)vzip2q_f64((float64x2_t)a, (float64x2_t)b));
  };
  const float32x4_t first = (float32x4_t)halves(x[0], x[1]), last = (float32x4_t)halves(x[2], x[3]);
  return join((vf)vuzp1q_f32(first, last), (vf)vuzp2q_f32(first, last));
}

static inline vf kept_where(const vu *state, uint64_t least, vf x) {
  const uint64x2_t threshold = vdupq_n_u64(least);
  const uint32x4_t low = (uint32x4_t)vcgeq_u64((uint64x2_t)state[0], threshold);
  const uint32x4_t high = (uint32x4_t)vcgeq_u64((uint64x2_t)state[1], threshold);
  return (vf)vandq_u32((uint32x4_t)x, vuzp1q_u32(low, high));
}

// Four rows of four 32-bit numbers, column by column.
struct FourColumns {
  uint32x4_t column[4];

  FourColumns(uint32x4_t a, uint32x4_t b, uint32x4_t c, uint32x4_t d) {
    const uint64x2_t even = (uint64x2_t)vtrn1q_u32(a, b), odd = (uint64x2_t)vtrn2q_u32(a, b);
    const uint64x2_t even_below = (uint64x2_t)vtrn1q_u32(c, d), odd_below = (uint64x2_t)vtrn2q_u32(c, d);
    column[0] = (uint32x4_t)vzip1q_u64(even, even_below), column[1] = (uint32x4_t)vzip1q_u64(odd, odd_below);
    column[2] = (uint32x4_t)vzip2q_u64(even, even_below), column[3] = (uint32x4_t)vzip2q_u64(odd, odd_below);
  }
};

// Four rows of memory: four neighbouring 32-bit words of each, column by column. `at` says where the words of a row are.
struct WordColumns : FourColumns {
  static uint32x4_t words(const char *p) { return vreinterpretq_u32_u8(vld1q_u8((const uint8_t *)p)); }
  template <class Place>
  explicit WordColumns(const Place &at) : FourColumns(words(at(0)), words(at(1)), words(at(2)), words(at(3))) {}
};

// The number `place` of each word, as real; int8 times its scale.
template <int TYPE>
static inline vf number_in(uint32x4_t word, int place, vf scale) {
  if constexpr (TYPE == RG_FLOAT32) return (vf)word;
  if constexpr (TYPE == RG_BFLOAT16) return (vf)(place ? vandq_u32(word, vdupq_n_u32(0xffff0000)) : vshlq_n_u32(word, 16));
  if constexpr (TYPE == RG_FLOAT16) {
    const uint16x4_t half = place ? vshrn_n_u32(word, 16) : vmovn_u32(word);
    return (vf)vcvt_f32_f16(vreinterpret_f16_u16(half));
  }
  return (vf)vcvtq_f32_s32((int32x4_t)((vi)word << (24 - 8 * place) >> 24)) * scale;
}

// The neighbouring numbers of a row that fill a register, as reals; int8 times its scale.
template <int TYPE>
static inline vf numbers_at(const char *p, vf scale) {
  if constexpr (TYPE == RG_FLOAT32) return load((const real *)p);
  if constexpr (TYPE == RG_BFLOAT16) return (vf)vshll_n_u16(vreinterpret_u16_u8(vld1_u8((const uint8_t *)p)), 16);
  if constexpr (TYPE == RG_FLOAT16) return (vf)vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8((const uint8_t *)p)));
  uint32_t four;
  std::memcpy(&four, p, 4);
  return (vf)vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four)))))) * scale;
}

template <int TYPE>
static inline int convert(const char *row, int n, vf factor, real *out) {
  constexpr int BYTES = 4 / IN_WORD<TYPE>;
  int i = 0;
  for (; i + W <= n; i += W) store(out + i, numbers_at<TYPE>(row + i * BYTES, all(1)) * factor);
  return i;
}

static inline int read_converted(int type, const char *row, int n, vf factor, real *out) {
  if (type == RG_BFLOAT16) return convert<RG_BFLOAT16>(row, n, factor, out);
  if (type == RG_FLOAT16) return convert<RG_FLOAT16>(row, n, factor, out);
  return type == RG_INT8 ? convert<RG_INT8>(row, n, factor, out) : 0;
}

// panel[c][j..j + 4) = x[j..j + 4)[c] for vectors of d numbers
static inline __attribute__((always_inline)) void transpose_block(const real *x, int j, long stride, int d, real *panel, long line) {
  int c = 0;
  for (; c + 4 <= d; c += 4) {
    const auto words = [&](int row) { return (uint32x4_t)load(x + (j + row) * stride + c); };
    const FourColumns block(words(0), words(1), words(2), words(3));
    for (int i = 0; i < 4; i++) store(panel + (c + i) * line + j, (vf)block.column[i]);
  }
  for (; c < d; c++)
    for (int i = 0; i < 4; i++) panel[c * line + j + i] = x[(j + i) * stride + c];
}
#endif
}  // namespace
}  // namespace RG_SPACE
