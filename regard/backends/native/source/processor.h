// Which kernels the library has, and which of them this processor runs: a file for each architecture, and one for any other.
#pragma once
#include "regard_native.h"

#define DECLARE(SPACE)                                                                                                \
  namespace SPACE {                                                                                                   \
  int forward(const rg_call *);                                                                                       \
  int backward(const rg_call *, const rg_gradients *);                                                                \
  int recur(const rg_recurrence *);                                                                                   \
  int recur_back(const rg_recurrence *, const rg_recurrence_gradients *);                                             \
  void operate(const rg_operation *, const rg_program *, float *const *);                                             \
  void project(const rg_operation *, int32_t rows, const float *, int32_t in, float *, int32_t out, int32_t, int32_t); \
  void log_sum_exps(const float *, int64_t rows, int32_t n, float *);                                                 \
  }
DECLARE(wide)  // float64: those for calls and recurrences alone

int instructions();  // the best of those below that this processor has, or that was chosen

namespace {
// The numbers that `rg_instructions` returns. NONE: the processor lacks what the kernel was built for. GENERIC: plain C++,
// without special instructions. Each file defines LEAST, the smallest number that its kernels need.
constexpr int NONE = 0, GENERIC = 1, AVX2 = 2, AVX512 = 3, AVX512_BF16 = 4, NEON = 5;
}  // namespace

#if defined(__x86_64__) && !defined(RG_GENERIC)
#include "processor_x86.h"
#elif defined(__aarch64__) && !defined(RG_GENERIC)
#include "processor_arm.h"
#else
#include "processor_generic.h"
#endif
