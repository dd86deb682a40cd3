// Processors of other architectures: the kernel is plain C++ there, without special instructions.
#pragma once
#include "processor.h"

DECLARE(generic)
DECLARE(bf16_generic)
#define FLOAT32_KERNEL(function) generic::function
#define BFLOAT16_KERNEL(function) bf16_generic::function

namespace {
constexpr int LEAST = GENERIC;
inline int supported() { return GENERIC; }
}  // namespace
