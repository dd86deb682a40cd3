// Processors of 64-bit Arm, all of which have NEON.
#pragma once
#include "processor.h"

DECLARE(neon)
DECLARE(bf16_neon)
#define FLOAT32_KERNEL(function) neon::function
#define BFLOAT16_KERNEL(function) bf16_neon::function

namespace {
constexpr int LEAST = NEON;
inline int supported() { return NEON; }
}  // namespace
