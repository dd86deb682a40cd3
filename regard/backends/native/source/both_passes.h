// Both passes of calls with gradients, as functions of Python; see both_passes.cpp.
#pragma once
#include "interpreter.h"

#ifdef __cplusplus
extern "C" {
#endif

// What is common to the calls of one plan that have the same number of keys and the same position of their first query.
typedef struct {
  const rg_call *call;                         // without tensors; its schedules are not read with `keys_by_row`
  rg_object *output, *log_sum_exp, *row_sums;  // positional arguments of empty_strided for these tensors
  rg_object *keywords;                         // keyword arguments for them and for the gradients: dtype and device
  int32_t most_threads;
  int32_t keys_by_row;                         // the queries look at the keys of a RowKeys, which each call brings
  int64_t left, right;                         // with `keys_by_row`: the window of the RowKeys,
  int64_t position;                            // and the position of the first query
  double limit;                                // of the numbers of keys that no query may look at; 0: they are not read
} rg_both_passes;

// A function of the address of an rg_both_passes, q, k, v, and RowKeys or None. It returns the output, the log-sum-exp and the
// sums of the rows, and whether all numbers are sound; None where only Python computes the call.
rg_object *rg_forward_with_sums(void);
// A function of the same address, q, k, v, output, log-sum-exp, sums, the gradient of the output, that of the log-sum-exp or
// None, and RowKeys or None. It returns the gradients of q, k and v, or None.
rg_object *rg_gradients_of_inputs(void);

#ifdef __cplusplus
}
#endif
