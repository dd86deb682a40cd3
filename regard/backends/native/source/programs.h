// What programs.cpp, few_rows.cpp and entry.cpp need of each other.
#pragma once
#include "regard_native.h"

int32_t check_call(const rg_call *);  // RG_OK, or what is wrong
bool has_kernel();
void in_threads(int32_t threads, void (*work)(void *), void *data);  // of the pool; in this thread alone where it is missing

// Columns first to end, whole blocks of 16 but the last, of y = x weightᵀ + bias.
void project_columns(const rg_operation &, int32_t rows, const float *x, int32_t in, float *y, int32_t out, int32_t first, int32_t end);
void log_sum_exps(const float *x, int64_t rows, int32_t n, float *out);  // of each row
// y = x · cos + direction · (halves of x exchanged) · sin; y may be x
void rotate_head(const float *x, float *y, int32_t dim, const float *cos, const float *sin, float direction);
