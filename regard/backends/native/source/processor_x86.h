// Processors of x86-64.
#pragma once
#include "processor.h"

#include <cpuid.h>

DECLARE(avx2)
DECLARE(avx512)
DECLARE(bf16_avx2)  // bfloat16, by three instruction sets; see words.h
DECLARE(bf16_avx512)
DECLARE(bf16_pairs)
#define FLOAT32_KERNEL(function) (instructions() >= AVX512 ? avx512::function : avx2::function)
#define BFLOAT16_KERNEL(function)                              \
  (instructions() == AVX512_BF16 ? bf16_pairs::function        \
   : instructions() == AVX512    ? bf16_avx512::function       \
                                 : bf16_avx2::function)

namespace {
constexpr int LEAST = AVX2;

// Asked of the processor itself and of the operating system, which must save the registers: some compilers' own
// functions for this know no instruction set without their runtime library.
inline int supported() {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return NONE;
  const bool fma = c & bit_FMA, f16c = c & bit_F16C, saves = c & bit_OSXSAVE;
  if (!fma || !f16c || !saves) return NONE;
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & 0x6) != 0x6 || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2)) return NONE;
#if defined(RG_LOWERED)  // the kernel for AVX-512 was built for AVX2, as a test
  return AVX512;
#endif
  const unsigned wide = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
  if ((low & 0xe6) != 0xe6 || (b & wide) != wide) return AVX2;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && a & 1 << 5 ? AVX512_BF16 : AVX512;
}
}  // namespace
