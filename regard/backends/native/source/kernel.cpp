// The kernel, compiled once for each instruction set of an architecture: -DRG_SPACE=avx2 -DRG_WIDTH=8, -DRG_SPACE=avx512
// -DRG_WIDTH=16, -DRG_SPACE=neon -DRG_WIDTH=4; once for float64, with -DRG_REAL=double -DRG_DOUBLE; and for bfloat16 by the
// namespaces with -DRG_BF16, see words.h. Another architecture has a file of vectors (vectors.h), one of its processors
// (processor.h), its flags in build.py, and its pace in regard/core/costs.py.
// Everything is static or inside the namespace, and no template of the standard library is instantiated out of line:
// the linker must never take a copy with AVX-512 instructions for code that runs on every processor.
#include "vectors.h"
#include "words.h"
#include "products.h"
#include "packing.h"
#include "panels.h"
#include "options.h"
#include "watching.h"
#include "few.h"
#include "forward.h"
#include "backward.h"
#include "tasks.h"
#include "received.h"
#include "recurrence.h"
#include "windows.h"
#if !defined(RG_BF16)
#include "listed.h"
#include "recurrence_back.h"
#endif

namespace RG_SPACE {
int forward(const rg_call *c) {
#if !defined(RG_BF16)
  if (c->lists) return forward_listed(*c);
#endif
  const Flushing flushing;
  if (c->windows) return forward_windows(*c);
  const int failed = forward_all(*c);
  return failed ? failed : receive_all(*c);
}
int backward(const rg_call *c, const rg_gradients *g) {
#if !defined(RG_BF16)
  if (c->lists) return backward_listed(*c, *g);
#endif
  const Flushing flushing;
  if (c->windows) return backward_windows(*c, *g);
  return backward_all(*c, *g);
}
int recur(const rg_recurrence *c) { return recur_all(*c); }
#if !defined(RG_BF16)
int recur_back(const rg_recurrence *c, const rg_recurrence_gradients *g) { return recur_back_all(*c, *g); }
#endif
}  // namespace RG_SPACE
