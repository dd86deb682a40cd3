// Processors of other architectures. Every function of vectors.h has a form that any of them runs, and float64 has no other;
// a library that uses it on them has yet to be built, so Python refuses what this returns.
#pragma once
#include "processor.h"

namespace {
int supported() { return GENERIC; }
}  // namespace
