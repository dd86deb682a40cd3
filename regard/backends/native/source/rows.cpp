// Layers over a few rows: products with matrices that are read where they lie, norms and activations.
//
// The bits of a row depend neither on the other rows nor on the width of registers. This file is compiled once for each
// width, like kernel.cpp.
#include "row_panels.h"

namespace RG_SPACE {
namespace {
// Rows and outputs whose sums are in registers at once.
constexpr int ROWS_AT_ONCE = W == 16 ? 4 : 2;
constexpr int outputs_at_once(int rows) {
  if (W < 8) return rows == 1 ? 2 : 1;
  return rows > 2 || W < 16 ? 2 : rows == 2 ? 4 : 8;
}

// The products of R rows of x with O rows of a matrix, number by number in LANES lanes, whose sums are folded to registers.
template <int R, int O>
static inline void multiply_rows(const real *x, long x_row, const real *matrix, int in, vf *const *folds) {
  Lanes sum[R][O];
#pragma GCC unroll 4
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int o = 0; o < O; o++)
#pragma GCC unroll 8
      for (int part = 0; part < REGISTERS; part++) sum[r][o].part[part] = vf{};
  int i = 0;
  for (; i + LANES <= in; i += LANES)
#pragma GCC unroll 8
    for (int part = 0; part < REGISTERS; part++) {
      vf numbers[R];
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) numbers[r] = in_register(load(x + r * x_row + i + part * W));
#pragma GCC unroll 8
      for (int o = 0; o < O; o++) {
        const vf weights = load(matrix + (long)o * in + i + part * W);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) sum[r][o].part[part] = madd(weights, numbers[r], sum[r][o].part[part]);
      }
    }
  // Each index is a constant after unrolling: otherwise the sums would lie in memory, also in the loop above.
#pragma GCC unroll 8
  for (int part = 0; part < REGISTERS; part++) {
    const int from = i + part * W, count = std::min(W, in - from);
    if (count <= 0) break;
#pragma GCC unroll 8
    for (int o = 0; o < O; o++) {
      const vf weights = load_some(matrix + (long)o * in + from, count);
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) sum[r][o].part[part] = madd(weights, load_some(x + r * x_row + from, count), sum[r][o].part[part]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int o = 0; o < O; o++) folds[r][o] = folded(sum[r][o]);
}

// Columns begin to end of y = x matrixᵀ + bias for R rows, added to what y holds if `adds`.
template <int R>
static void project_rows(const rg_operation &p, const real *x, int in, real *y, int out, int begin, int end) {
  const real *matrix = (const real *)p.weight, *bias = (const real *)p.bias;
  for (int first = begin; first < end; first += W) {
    const int count = std::min(W, end - first);
    vf products[R][W];
    vf *folds[R];
    constexpr int O = outputs_at_once(R);
    int o = 0;
    const auto place = [&] {
      for (int r = 0; r < R; r++) folds[r] = products[r] + o;
      return matrix + (long)(first + o) * in;
    };
    for (; o + O <= count; o += O) multiply_rows<R, O>(x, in, place(), in, folds);
    for (; o < count; o++) multiply_rows<R, 1>(x, in, place(), in, folds);
    for (int r = 0; r < R; r++) {
      for (int rest = count; rest < W; rest++) products[r][rest] = vf{};
      vf sums = joined(products[r], [](vf a, vf b) { return a + b; });
      real *to = y + (long)r * out + first;
      if (count == W) {
        if (bias) sums += load(bias + first);
        store(to, p.adds ? load(to) + sums : sums);
      } else {
        if (bias) sums += load_some(bias + first, count);
        store_some(to, p.adds ? load_some(to, count) + sums : sums, count);
      }
    }
  }
}

template <int R = ROWS_AT_ONCE>
static void project_rest(const rg_operation &p, int rows, const real *x, int in, real *y, int out, int begin, int end) {
  if constexpr (R > 1)
    if (rows < R) return project_rest<R - 1>(p, rows, x, in, y, out, begin, end);
  project_rows<R>(p, x, in, y, out, begin, end);
}

static void project_all(const rg_operation &p, int rows, const real *x, int in, real *y, int out, int begin, int end) {
  for (; rows > 0; rows -= ROWS_AT_ONCE, x += (long)ROWS_AT_ONCE * in, y += (long)ROWS_AT_ONCE * out)
    project_rest(p, std::min(rows, ROWS_AT_ONCE), x, in, y, out, begin, end);
}

// The sum of f(i, count) over i = 0, W, 2 W, ... below n, with count = min(W, n - i) lanes; f returns zeros in the others.
template <class F>
static real sum_of(int n, F f) {
  Lanes sum;
  for (int part = 0; part < REGISTERS; part++) sum.part[part] = vf{};
  for (int i = 0; i < n; i += W) sum.part[i / W % REGISTERS] += f(i, std::min(W, n - i));
  return RG_SPACE::sum(sum);
}

static inline vf load_up_to(const real *p, int count) { return count == W ? load(p) : load_some(p, count); }
static inline void store_up_to(real *p, vf x, int count) { count == W ? store(p, x) : store_some(p, x, count); }

// y = (x - mean) / sqrt(variance + p.number) · weight + bias, row by row
static void norm_rows(const rg_operation &p, int rows, const real *x, real *y, int dim) {
  const real *weight = (const real *)p.weight, *bias = (const real *)p.bias;
  for (; rows > 0; rows--, x += dim, y += dim) {
    const real mean = sum_of(dim, [&](int i, int count) { return load_up_to(x + i, count); }) / (real)dim;
    const auto centred = [&](int i, int count) {
      const vf from_mean = load_up_to(x + i, count) - all(mean);
      if (count == W) return from_mean;
      vf kept{};
      for (int lane = 0; lane < count; lane++) kept[lane] = from_mean[lane];
      return kept;
    };
    const real squares = sum_of(dim, [&](int i, int count) {
      const vf from_mean = centred(i, count);
      return from_mean * from_mean;
    });
    const real factor = (real)1 / std::sqrt(squares / (real)dim + (real)p.number);
    for (int i = 0; i < dim; i += W) {
      const int count = std::min(W, dim - i);
      vf out = centred(i, count) * all(factor);
      if (weight) out *= load_up_to(weight + i, count);
      if (bias) out += load_up_to(bias + i, count);
      store_up_to(y + i, out, count);
    }
  }
}

// y = x / sqrt(mean of squares + p.number) · weight, row by row
static void rms_norm_rows(const rg_operation &p, int rows, const real *x, real *y, int dim) {
  const real *weight = (const real *)p.weight;
  for (; rows > 0; rows--, x += dim, y += dim) {
    const real squares = sum_of(dim, [&](int i, int count) {
      const vf numbers = load_up_to(x + i, count);
      return numbers * numbers;
    });
    const real factor = (real)1 / std::sqrt(squares / (real)dim + (real)p.number);
    for (int i = 0; i < dim; i += W) {
      const int count = std::min(W, dim - i);
      vf out = load_up_to(x + i, count) * all(factor);
      if (weight) out *= load_up_to(weight + i, count);
      store_up_to(y + i, out, count);
    }
  }
}

// x (1 + erf(x / √2)) / 2, by equation 7.1.26 of Abramowitz and Stegun, whose erf has an error of 1.5e-7
static inline vf gelu(vf x) {
  const vf z = larger(x, -x) * all((real)0.7071067811865476);
  const vf t = all(1) / madd(all((real)0.3275911), z, all(1));
  vf terms = all((real)1.061405429);
  for (real term : {(real)-1.453152027, (real)1.421413741, (real)-0.284496736, (real)0.254829592}) terms = madd(terms, t, all(term));
  const vf erf = all(1) - terms * t * exp2(z * z * all(-LOG2E));
  return all((real)0.5) * x * (all(1) + (x < all(0) ? -erf : erf));
}

static vf activated(vf x, int activation) {
  const real slope = (real)0.7978845608028654, cubic = (real)0.044715;
  if (activation == RG_RELU) return larger(all(0), x);  // NaN stays NaN
  if (activation == RG_GELU) return gelu(x);
  if (activation == RG_GELU_TANH) {
    const vf inner = all(slope) * (x + all(cubic) * x * x * x);
    return all((real)0.5) * x * (all(1) + tanh(inner));
  }
  return x / (all(1) + exp2(smaller(all(EXPONENT), x * all(-LOG2E))));  // RG_SILU
}

static void activate_all(real *x, long numbers, int activation) {
  for (long i = 0; i < numbers; i += W) {
    const int count = (int)std::min<long>(W, numbers - i);
    store_up_to(x + i, activated(load_up_to(x + i, count), activation), count);
  }
}

static void multiply_all(real *x, const real *by, long numbers) {
  for (long i = 0; i < numbers; i++) x[i] *= by[i];
}

// log Σ exp(x) of n numbers: NaN if one of them is NaN, which `larger` would skip; ±infinity if the largest is.
static real log_sum_exp(const real *x, int n) {
  vf most = all(-INF);
  bool has_nan = false;
  for (int i = 0; i < n; i += W) {
    const int count = std::min(W, n - i);
    vf numbers = load_up_to(x + i, count);
    for (int lane = count; lane < W; lane++) numbers[lane] = -INF;
    has_nan |= not_below(numbers, INF) != 0;
    most = larger(most, numbers);
  }
  const real top = largest(most);
  if (has_nan) return (real)__builtin_nan("");
  if (top == INF || top == -INF) return top;
  const real total = sum_of(n, [&](int i, int count) {
    vf numbers = load_up_to(x + i, count);
    for (int lane = count; lane < W; lane++) numbers[lane] = -INF;
    return exp2((numbers - all(top)) * all(LOG2E));
  });
  return top + (real)(std::log2((double)total) * 0.6931471805599453);  // newer C libraries have another log
}

// x = a row of a table · p.number, plus the row of p.bias of its place
static void embed_row(const rg_operation &p, long id, long place, real *x, int dim) {
  const real *row = (const real *)p.weight + id * dim, *bias = (const real *)p.bias;
  for (int i = 0; i < dim; i++) x[i] = row[i] * (real)p.number;
  for (int i = 0; bias && i < dim; i++) x[i] += bias[place * dim + i];
}
}  // namespace

void project(const rg_operation *p, int32_t rows, const float *x, int32_t in, float *y, int32_t out, int32_t first, int32_t end) {
  project_all(*p, rows, (const real *)x, in, (real *)y, out, first, end);
}

void log_sum_exps(const float *x, int64_t rows, int32_t n, float *out) {
  for (int64_t row = 0; row < rows; row++) out[row] = (float)log_sum_exp((const real *)x + row * n, n);
}

// Any operation except rotation and attention, on all rows of its buffers; `programs.cpp` has checked it.
void operate(const rg_operation *p, const rg_program *program, float *const *memory) {
  const int rows = program->rows, width = program->width[p->into];
  real *into = (real *)memory[p->into];
  const real *from = (const real *)memory[p->from];
  switch (p->kind) {
    case RG_EMBED:
      for (int r = 0; r < rows; r++) embed_row(*p, program->ids[r], r % program->places, into + (long)r * width, width);
      return;
    case RG_PROJECT: return project_all(*p, rows, from, program->width[p->from], into, width, 0, width);
    case RG_PROJECT_PANELS: return project_by_panels(*p, rows, from, program->width[p->from], into, width);
    case RG_NORM: return norm_rows(*p, rows, from, into, width);
    case RG_RMS_NORM: return rms_norm_rows(*p, rows, from, into, width);
    case RG_ACTIVATE: return activate_all(into, (long)rows * width, p->activation);
    case RG_MULTIPLY: return multiply_all(into, from, (long)rows * width);
  }
}
}  // namespace RG_SPACE
