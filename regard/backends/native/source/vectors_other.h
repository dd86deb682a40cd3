// Vectors of processors that have no file of their own: the compiler chooses the instructions.
#pragma once
#include "vectors_generic.h"

namespace RG_SPACE {
namespace {
constexpr int VECTOR_REGISTERS = 32;

// Denormal numbers are not flushed here: each kind of processor has its own way to do so, and some have none.
struct FlushToZero {
  FlushToZero() {}
};

// A float16 number by its bits, since not every compiler has a type for it.
struct half_number {
  uint16_t bits;

  explicit operator float() const {
    const uint32_t magnitude = (uint32_t)(bits & 0x7fff) << 13;
    const bool finite = magnitude < 0x7c00u << 13;
    const float shifted = from_bits(finite ? magnitude : magnitude | 0x7f800000);
    const float found = finite ? shifted * 0x1p112f : shifted;  // the exponents of float32 begin 112 lower
    return bits & 0x8000 ? -found : found;
  }
  explicit operator double() const { return (float)*this; }

  // To the nearest, ties to even.
  explicit half_number(float x) {
    uint32_t all_bits;
    std::memcpy(&all_bits, &x, 4);
    const uint32_t magnitude = all_bits & 0x7fffffff;
    uint32_t found;
    if (magnitude > 0x7f800000)
      found = 0x7e00;  // NaN
    else if (magnitude >= 0x47800000)
      found = 0x7c00;  // 2^16 or more: infinity
    else if (magnitude < 0x38800000)
      found = bits_of(from_bits(magnitude) + 0.5f) - 0x3f000000;  // denormal: beside 1/2, float32 has the steps of float16
    else
      found = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    bits = (uint16_t)(found | (all_bits >> 16 & 0x8000));
  }
  explicit half_number(double x) : half_number((float)x) {}

 private:
  static float from_bits(uint32_t bits) {
    float found;
    std::memcpy(&found, &bits, 4);
    return found;
  }
  static uint32_t bits_of(float x) {
    uint32_t found;
    std::memcpy(&found, &x, 4);
    return found;
  }
};
}  // namespace
}  // namespace RG_SPACE
