// Which instruction sets this processor has: a file for each architecture, and one for any other.
#pragma once

namespace {
// As `rg_instructions` gives them. NONE: the kernel was built for more than the processor has. GENERIC: vectors without
// instructions of their own.
constexpr int NONE = 0, GENERIC = 1, AVX2 = 2, AVX512 = 3, AVX512_BF16 = 4;
}  // namespace

#if defined(__x86_64__)
#include "processor_x86.h"
#else
#include "processor_generic.h"
#endif
