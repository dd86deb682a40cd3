// Runs programs: the layers of a network over a few rows, operation by operation. Everything that an operation relies on is
// checked before the first of them. This file is compiled without vector instructions.
#include "processor.h"
#include "programs.h"

#include <stdlib.h>
#include <string.h>

namespace {
constexpr int64_t MOST_NUMBERS = INT64_C(1) << 40;

bool has_buffer(const rg_program &p, int32_t buffer) { return buffer >= 0 && buffer < p.buffers; }

bool holds(int64_t size, int64_t needed) { return needed <= size && size <= MOST_NUMBERS; }

int check_product(const rg_program &p, const rg_operation &o) {
  const int64_t numbers = (int64_t)p.width[o.from] * p.width[o.into];
  if (o.from == o.into || !o.weight || !holds(o.weight_size, numbers)) return RG_BAD_TENSOR;
  return !o.bias || holds(o.bias_size, p.width[o.into]) ? RG_OK : RG_BAD_TENSOR;
}

int check_norm(const rg_program &p, const rg_operation &o) {
  const int32_t width = p.width[o.into];
  if (p.width[o.from] != width) return RG_BAD_SIZES;
  if (o.weight && !holds(o.weight_size, width)) return RG_BAD_TENSOR;
  return !o.bias || holds(o.bias_size, width) ? RG_OK : RG_BAD_TENSOR;
}

int check_embedding(const rg_program &p, const rg_operation &o) {
  const int32_t width = p.width[o.into];
  if (!p.ids || !o.weight || (o.bias && !holds(o.bias_size, width))) return RG_BAD_TENSOR;
  for (int32_t row = 0; row < p.rows; row++)
    if (p.ids[row] < 0 || p.ids[row] >= o.weight_size / width) return RG_BAD_ID;
  return RG_OK;
}

int check_rotation(const rg_program &p, const rg_operation &o) {
  if (!p.cos || !p.sin || o.head_dim < 2 || o.head_dim % 2 || p.width[o.into] % o.head_dim) return RG_BAD_SIZES;
  return p.rotated == o.head_dim ? RG_OK : RG_BAD_SIZES;
}

// The call of an attention, whose queries and outputs are rows of buffers. `keeps`: its keys and values are appended to a
// text, as the entry at the program's place, before it reads that text.
struct Attending {
  rg_call call;
  rg_schedule schedule;
  int32_t block[4], run[4];
  bool keeps;

  void write(const rg_program &p, const rg_operation &o, float *const *memory, int32_t *unsound) {
    call = *o.call;
    keeps = o.back >= 0;
    call.q.data = memory[o.from];
    call.out.data = memory[o.into];
    call.unsound = unsound;
    call.threads = 1;
    if (!keeps) return;
    call.first_key = 0;
    call.keys = p.place + 1;
    call.q_len = 1;
    const int32_t first = o.back < p.place ? (int32_t)(p.place - o.back) : 0;
    const int32_t rows_and_runs[] = {0, 1, 0, 1}, keys[] = {first, p.place + 1, RG_WHOLE, 0};
    memcpy(block, rows_and_runs, sizeof block);
    memcpy(run, keys, sizeof run);
    memset(&schedule, 0, sizeof schedule);
    schedule.blocks = schedule.runs = 1;
    schedule.block = block;
    schedule.run = run;
    call.lists = nullptr;
    call.schedules = 1;
    call.schedule = &schedule;
    call.schedule_of = nullptr;
  }
};

int check_attention(const rg_program &p, const rg_operation &o, float *const *memory) {
  if (!o.call) return RG_BAD_OPTIONS;
  Attending attending;
  attending.write(p, o, memory, nullptr);
  const rg_call &c = attending.call;
  if (int wrong = check_call(&c)) return wrong;
  if (c.q.type != RG_FLOAT32 || c.out.type != RG_FLOAT32 || c.dropout || c.statistics || c.log_sum_exp || c.row_sums) return RG_BAD_OPTIONS;
  if ((int64_t)c.batch * c.q_len != p.rows) return RG_BAD_SIZES;
  if (p.width[o.from] != (int64_t)c.heads * c.head_dim || p.width[o.into] != (int64_t)c.heads * c.v_dim) return RG_BAD_SIZES;
  // Queries and outputs lie as (batch, q_len, heads, dim) in the rows of their buffers.
  const int64_t q_row = p.width[o.from], out_row = p.width[o.into];
  const bool in_rows = c.q.head == c.head_dim && c.q.row == q_row && c.q.batch == q_row * c.q_len && c.out.head == c.v_dim &&
                       c.out.row == out_row && c.out.batch == out_row * c.q_len;
  if (!in_rows) return RG_BAD_TENSOR;
  if (!attending.keeps) return RG_OK;
  if (!has_buffer(p, o.keys) || !has_buffer(p, o.values)) return RG_BAD_OPTIONS;
  if (p.width[o.keys] != (int64_t)c.kv_heads * c.head_dim || p.width[o.values] != (int64_t)c.kv_heads * c.v_dim) return RG_BAD_SIZES;
  return c.k.type == RG_FLOAT32 && c.v.type == RG_FLOAT32 ? RG_OK : RG_BAD_TENSOR;
}

int check(const rg_program &p, const rg_operation &o, float *const *memory) {
  if (!has_buffer(p, o.into) || !has_buffer(p, o.from)) return RG_BAD_OPTIONS;
  switch (o.kind) {
    case RG_EMBED: return check_embedding(p, o);
    case RG_PROJECT: return check_product(p, o);
    case RG_NORM:
    case RG_RMS_NORM: return check_norm(p, o);
    case RG_ACTIVATE: return o.activation >= RG_RELU && o.activation <= RG_SILU ? RG_OK : RG_BAD_OPTIONS;
    case RG_MULTIPLY: return p.width[o.from] == p.width[o.into] ? RG_OK : RG_BAD_SIZES;
    case RG_ROTATE: return check_rotation(p, o);
    case RG_ATTEND: return check_attention(p, o, memory);
  }
  return RG_BAD_OPTIONS;
}

// Write the vectors of all rows at the last position of a text: heads of `dim` numbers.
void keep(const float *rows, int32_t count, int32_t heads, int32_t dim, const rg_tensor &text, int32_t place) {
  float *first = (float *)text.data + place * text.row;
  for (int32_t row = 0; row < count; row++)
    for (int32_t head = 0; head < heads; head++, rows += dim)
      memcpy(first + row * text.batch + head * text.head, rows, (size_t)dim * sizeof(float));
}

int attend(const rg_program &p, const rg_operation &o, float *const *memory) {
  int32_t unsound = 0;
  Attending attending;
  attending.write(p, o, memory, &unsound);
  const rg_call &c = attending.call;
  if (attending.keeps) {
    keep(memory[o.keys], c.batch, c.kv_heads, c.head_dim, c.k, p.place);
    keep(memory[o.values], c.batch, c.kv_heads, c.v_dim, c.v, p.place);
  }
  if (int wrong = rg_forward(&c)) return wrong;
  return unsound ? RG_NOT_FINITE : RG_OK;
}

int run(const rg_program &p, float *const *memory) {
  for (int32_t i = 0; i < p.operations; i++)
    if (int wrong = check(p, p.operation[i], memory)) return wrong;
  const auto operate = FLOAT32_KERNEL(operate);
  for (int32_t i = 0; i < p.operations; i++) {
    const rg_operation &o = p.operation[i];
    if (o.kind == RG_ROTATE) {
      float *const heads = memory[o.into], *const end = heads + (int64_t)p.rows * p.width[o.into];
      for (float *head = heads; head < end; head += o.head_dim) rotate_head(head, head, o.head_dim, p.cos, p.sin, 1);
    } else if (o.kind != RG_ATTEND) {
      operate(&o, &p, memory);
    } else if (int wrong = attend(p, o, memory)) {
      return wrong;
    }
  }
  return RG_OK;
}
}  // namespace

void project_columns(const rg_operation &p, int32_t rows, const float *x, int32_t in, float *y, int32_t out, int32_t first, int32_t end) {
  const auto project = FLOAT32_KERNEL(project);
  project(&p, rows, x, in, y, out, first, end);
}

void log_sum_exps(const float *x, int64_t rows, int32_t n, float *out) {
  FLOAT32_KERNEL(log_sum_exps)(x, rows, n, out);
}

void rotate_head(const float *x, float *y, int32_t dim, const float *cos, const float *sin, float direction) {
  const int32_t half = dim / 2;
  for (int32_t i = 0; i < half; i++) {
    const float first = x[i], second = x[i + half];
    y[i] = first * cos[i] + second * (direction * sin[i]);
    y[i + half] = second * cos[i + half] + first * (direction * sin[i + half]);
  }
}

extern "C" __attribute__((visibility("default"))) int32_t rg_run(const rg_program *program) {
  if (!program) return RG_BAD_OPTIONS;
  const rg_program &p = *program;
  if (!has_kernel()) return RG_NO_KERNEL;
  if (p.operations < 1 || !p.operation || p.buffers < 1 || p.buffers > RG_MOST_BUFFERS || !p.width || !p.given) return RG_BAD_OPTIONS;
  if (p.rows < 1 || p.rows > RG_MOST_PROGRAM_ROWS || p.place < 0 || p.place == INT32_MAX) return RG_BAD_SIZES;
  int64_t numbers = 0;
  for (int32_t i = 0; i < p.buffers; i++) {
    if (p.width[i] < 1 || p.width[i] > 1 << 24) return RG_BAD_SIZES;
    if (!p.given[i]) numbers += (int64_t)p.rows * p.width[i];
  }
  float *const own = (float *)malloc((size_t)(numbers + 1) * sizeof(float)), *next = own;
  if (!own) return RG_NO_MEMORY;
  float *memory[RG_MOST_BUFFERS];
  for (int32_t i = 0; i < p.buffers; i++) {
    memory[i] = p.given[i] ? (float *)p.given[i] : next;
    if (!p.given[i]) next += (int64_t)p.rows * p.width[i];
  }
  const int code = run(p, memory);
  free(own);
  return code;
}
