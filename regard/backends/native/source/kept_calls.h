// The interface between Python and kept calls.
#pragma once
#include "interpreter.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RG_OPTIONS 13  // arguments of a call after q, k and v

// What holds for calls that differ from a kept call in the number of keys, in the strides of k and v between batch rows and
// between heads, and in the position of the first query: the steps of a text, and calls whose batch rows have keys of their own.
typedef struct {
  int32_t least_keys, most_keys;
  int64_t left, right;                  // a query at position p looks at p - left <= key <= p + right; RG_NO_LIMIT: no limit
  int64_t start, stop;                  // and at keys of this span
  int64_t products_per_key, products_per_thread;  // for the number of threads
} rg_growth;

// A call to keep.
typedef struct {
  rg_object *argument[3 + RG_OPTIONS];  // tensors like which others may be, and options
  rg_object *function;                  // of q, k, v, pattern and q_start: returns the output, or None. NULL: the kernel computes
                                        // `call`, and all that follows is read
  rg_object *memory;                    // all that `call` points at, and the next two
  rg_object *layout, *keywords;         // positional and keyword arguments of empty_strided for the output
  const rg_call *call;
  int32_t most_threads;
  int32_t must_be_sound;                // whether an output with NaN or infinity is computed again by Python
  int64_t first_key, first_value;       // how many bytes behind the first number of k and v the kernel reads its first
  const rg_growth *growth;              // NULL: calls with as many keys
  int32_t keys_by_row;                  // with `growth`: the option `pattern` is the structure of RowKeys, which are read in each
                                        // call; its span is not read
} rg_kept_call;

// A function of Python: its arguments are q, k, v and the options, in the order of rg_kept_call. It returns the output; None
// where only Python computes the call; `unknown` where a call of this layout and these options has not been kept.
rg_object *rg_repeat(void);
int32_t rg_keep_call(const rg_kept_call *);  // 0, or 1 where it is not kept
void rg_forget_calls(void);

#ifdef __cplusplus
}
#endif
