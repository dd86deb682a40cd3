// Functions of Python for a few rows, which return None where PyTorch has to compute; see few_rows.cpp.
#pragma once
#include "interpreter.h"

#define RG_FEW_ROWS 15        // of a product; PyTorch multiplies more in less time
#define RG_MOST_SCORES 65536  // numbers whose exponentials are added; PyTorch is as fast for more

#ifdef __cplusplus
extern "C" {
#endif

rg_object *rg_project(void);      // of x, weight and bias
rg_object *rg_rotate(void);       // of heads, cosines, sines, the first position, and whether back
rg_object *rg_log_sum_exp(void);  // of numbers (rows, n)

#ifdef __cplusplus
}
#endif
