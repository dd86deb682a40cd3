// Registers: their types, and how they are loaded and stored.
#pragma once
#include "space.h"

namespace RG_SPACE {
namespace {
typedef RG_REAL real;            // float, or double in the namespace for float64
constexpr int W = RG_WIDTH;      // reals in a register
constexpr bool SINGLE = sizeof(real) == 4;
#if defined(RG_DOUBLE)
typedef int64_t whole;
#else
typedef int32_t whole;
#endif

typedef real vf __attribute__((vector_size(W * sizeof(real))));
typedef whole vi __attribute__((vector_size(W * sizeof(real))));
typedef real vf_anywhere __attribute__((vector_size(W * sizeof(real)), aligned(sizeof(real)), may_alias));
typedef whole vi_anywhere __attribute__((vector_size(W * sizeof(real)), aligned(sizeof(real)), may_alias));

constexpr int HALVES = SINGLE ? 2 : 1;  // registers of 64-bit numbers that have the lanes of one of reals
typedef uint64_t vu __attribute__((vector_size(W / HALVES * 8)));

static inline vf load(const real *p) { return *(const vf_anywhere *)p; }
static inline void store(real *p, vf x) { *(vf_anywhere *)p = x; }
static inline vi load(const whole *p) { return *(const vi_anywhere *)p; }
static inline void store(whole *p, vi x) { *(vi_anywhere *)p = x; }
static inline vf all(real x) { return x - (vf){}; }

template <int TYPE>
constexpr int IN_WORD = TYPE == RG_FLOAT32 ? 1 : TYPE == RG_INT8 ? 4 : 2;  // numbers in 32 bits
}  // namespace
}  // namespace RG_SPACE
