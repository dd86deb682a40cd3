// What every file of the kernel includes: the C interface, the headers of the language, and the namespace of an instruction
// set. build.py names the namespace by -DRG_SPACE and its reals in a register by -DRG_WIDTH; an editor, which has no such
// flags, reads the files as those for AVX2.
#pragma once
#include "regard_native.h"
#include "threads.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if !defined(RG_SPACE)
#define RG_SPACE avx2
#define RG_WIDTH 8
#endif
#if !defined(RG_REAL)
#define RG_REAL float
#endif

// The functions that newer versions of the C library have under newer names; the old ones run everywhere. Named so, they also
// come from the C library where a compiler brings functions of its own, whose last digits differ.
#if defined(__x86_64__) && defined(__GLIBC__)
__asm__(".symver log2, log2@GLIBC_2.2.5");
__asm__(".symver log2f, log2f@GLIBC_2.2.5");
#elif defined(__aarch64__) && defined(__GLIBC__)
__asm__(".symver log2, log2@GLIBC_2.17");
__asm__(".symver log2f, log2f@GLIBC_2.17");
#endif
