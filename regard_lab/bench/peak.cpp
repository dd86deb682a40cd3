// The most multiply-adds that one core does in a second: sums that stay in registers, so that nothing waits for memory.
// Each function returns the operations of one round, and is called with a number of rounds.
#include <cstdint>
#if defined(__AVX512F__)
#include <immintrin.h>
constexpr int BYTES = 64;
#elif defined(__AVX__)
constexpr int BYTES = 32;
#else
constexpr int BYTES = 16;
#endif
#if defined(__aarch64__)
#define IN_REGISTER(x) asm volatile("" : "+w"(x))
#elif defined(__x86_64__)
#define IN_REGISTER(x) asm volatile("" : "+v"(x))
#else
#define IN_REGISTER(x) asm volatile("" : "+m"(x))
#endif

typedef float Vector __attribute__((vector_size(BYTES)));
constexpr int NUMBERS = BYTES / 4;
constexpr int SUMS = 12;  // more than the cycles of a multiply-add times the units that do one

extern "C" int64_t peak_float32(int64_t rounds) {
  Vector sums[SUMS] = {};
  const Vector factor = Vector{} + 0.5f, added = Vector{} + 0.25f;
  for (int64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 12
    for (int i = 0; i < SUMS; i++) {
      sums[i] = sums[i] * factor + added;
      IN_REGISTER(sums[i]);
    }
  }
  return 2 * SUMS * NUMBERS;
}

// Pairs of bfloat16 numbers, where the processor multiplies them directly; 0 elsewhere.
extern "C" int64_t peak_bfloat16(int64_t rounds) {
#if defined(__AVX512BF16__)
  __m512 sums[SUMS] = {};
  const __m512bh factor = (__m512bh)_mm512_set1_epi32(0x3f003f00);
  for (int64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 12
    for (int i = 0; i < SUMS; i++) {
      sums[i] = _mm512_dpbf16_ps(sums[i], factor, factor);
      IN_REGISTER(sums[i]);
    }
  }
  return 4 * SUMS * NUMBERS;
#else
  return rounds * 0;
#endif
}
