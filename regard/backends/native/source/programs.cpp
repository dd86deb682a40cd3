// Runs programs: the layers of a network over a few rows, operation by operation. Everything that an operation relies on is
// checked before the first of them. This file is compiled without vector instructions.
#include "processor.h"
#include "programs.h"

#include <math.h>
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

int check_panels(const rg_program &p, const rg_operation &o) {
  if (o.head_dim < 1 || o.head_dim % 32 || p.width[o.into] % o.head_dim) return RG_BAD_SIZES;
  return check_product(p, o);
}

int check_norm(const rg_program &p, const rg_operation &o) {
  const int32_t width = p.width[o.into];
  if (p.width[o.from] != width) return RG_BAD_SIZES;
  if (o.weight && !holds(o.weight_size, width)) return RG_BAD_TENSOR;
  return !o.bias || holds(o.bias_size, width) ? RG_OK : RG_BAD_TENSOR;
}

int check_embedding(const rg_program &p, const rg_operation &o) {
  const int32_t width = p.width[o.into];
  if (!p.ids || !o.weight || (o.bias && !holds(o.bias_size, (int64_t)p.places * width))) return RG_BAD_TENSOR;
  for (int32_t row = 0; row < p.rows; row++)
    if (p.ids[row] < 0 || p.ids[row] >= o.weight_size / width) return RG_BAD_ID;
  return RG_OK;
}

int check_rotation(const rg_program &p, const rg_operation &o) {
  if (!p.cos || !p.sin || o.head_dim < 2 || o.head_dim % 2 || p.width[o.into] % o.head_dim) return RG_BAD_SIZES;
  return p.rotated == o.head_dim ? RG_OK : RG_BAD_SIZES;
}

// Heads of `dim` numbers in the rows of a buffer, as (batch, length, heads, dim).
rg_tensor in_rows(float *numbers, int32_t batch, int32_t length, int64_t heads, int32_t dim) {
  const int64_t row = heads * dim, text = row * length;
  return {numbers, text, dim, row, text * batch, RG_FLOAT32};
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
    if (o.back == RG_AMONG_ROWS) {
      call.k = in_rows(memory[o.keys], call.batch, call.q_len, call.kv_heads, call.head_dim);
      call.v = in_rows(memory[o.values], call.batch, call.q_len, call.kv_heads, call.v_dim);
      call.first_key = 0;
      call.keys = call.q_len;
    }
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
    call.windows = nullptr;
    call.schedules = 1;
    call.schedule = &schedule;
    call.schedule_of = nullptr;
  }
};

// Keys and values that an attention reads from buffers.
int check_own_keys(const rg_program &p, const rg_operation &o) {
  if (!has_buffer(p, o.keys) || !has_buffer(p, o.values)) return RG_BAD_OPTIONS;
  const rg_call &c = *o.call;
  if (c.batch < 1 || c.q_len < 1 || (int64_t)c.batch * c.q_len != p.rows) return RG_BAD_SIZES;
  if (p.width[o.keys] != (int64_t)c.kv_heads * c.head_dim || p.width[o.values] != (int64_t)c.kv_heads * c.v_dim) return RG_BAD_SIZES;
  return RG_OK;
}

int check_attention(const rg_program &p, const rg_operation &o, float *const *memory) {
  if (!o.call || o.back < RG_AMONG_ROWS) return RG_BAD_OPTIONS;
  const bool has_own_keys = o.back != RG_AS_IT_IS;
  if (has_own_keys)
    if (int wrong = check_own_keys(p, o)) return wrong;
  Attending attending;
  attending.write(p, o, memory, nullptr);
  const rg_call &c = attending.call;
  if (int wrong = check_call(&c)) return wrong;
  if (c.q.type != RG_FLOAT32 || c.out.type != RG_FLOAT32 || c.dropout || c.statistics || c.log_sum_exp || c.row_sums) return RG_BAD_OPTIONS;
  if ((int64_t)c.batch * c.q_len != p.rows) return RG_BAD_SIZES;
  if (p.width[o.from] != (int64_t)c.heads * c.head_dim || p.width[o.into] != (int64_t)c.heads * c.v_dim) return RG_BAD_SIZES;
  // Queries and outputs lie as (batch, q_len, heads, dim) in the rows of their buffers.
  const int64_t q_row = p.width[o.from], out_row = p.width[o.into];
  const bool are_rows = c.q.head == c.head_dim && c.q.row == q_row && c.q.batch == q_row * c.q_len && c.out.head == c.v_dim &&
                        c.out.row == out_row && c.out.batch == out_row * c.q_len;
  if (!are_rows) return RG_BAD_TENSOR;
  if (!has_own_keys) return RG_OK;
  return c.k.type == RG_FLOAT32 && c.v.type == RG_FLOAT32 ? RG_OK : RG_BAD_TENSOR;
}

int check(const rg_program &p, const rg_operation &o, float *const *memory) {
  if (!has_buffer(p, o.into) || !has_buffer(p, o.from)) return RG_BAD_OPTIONS;
  switch (o.kind) {
    case RG_EMBED: return check_embedding(p, o);
    case RG_PROJECT: return check_product(p, o);
    case RG_PROJECT_PANELS: return check_panels(p, o);
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

void rotate(const rg_program &p, const rg_operation &o, float *head) {
  for (int32_t row = 0; row < p.rows; row++) {
    const int64_t turn = (int64_t)(row % p.places) * p.rotated;
    for (float *const end = head + p.width[o.into]; head < end; head += o.head_dim)
      rotate_head(head, head, o.head_dim, p.cos + turn, p.sin + turn, 1);
  }
}

int run(const rg_program &p, float *const *memory) {
  for (int32_t i = 0; i < p.operations; i++)
    if (int wrong = check(p, p.operation[i], memory)) return wrong;
  const auto operate = FLOAT32_KERNEL(operate);
  for (int32_t i = 0; i < p.operations; i++) {
    const rg_operation &o = p.operation[i];
    if (o.kind == RG_ROTATE) {
      rotate(p, o, memory[o.into]);
    } else if (o.kind != RG_ATTEND) {
      operate(&o, &p, memory);
    } else if (int wrong = attend(p, o, memory)) {
      return wrong;
    }
  }
  return RG_OK;
}

int check_sizes(const rg_program &p) {
  if (!has_kernel()) return RG_NO_KERNEL;
  if (p.operations < 1 || !p.operation || p.buffers < 1 || p.buffers > RG_MOST_BUFFERS || !p.width || !p.given) return RG_BAD_OPTIONS;
  if (p.rows < 1 || p.rows > RG_MOST_PROGRAM_ROWS || p.place < 0 || p.place == INT32_MAX || p.places < 1) return RG_BAD_SIZES;
  for (int32_t i = 0; i < p.buffers; i++)
    if (p.width[i] < 1 || p.width[i] > 1 << 24) return RG_BAD_SIZES;
  return RG_OK;
}

// The memory of the buffers of a program whose sizes were checked: what was given, and the rest of its own.
struct Buffers {
  float *memory[RG_MOST_BUFFERS];
  float *own;

  explicit Buffers(const rg_program &p) {
    int64_t numbers = 0;
    for (int32_t i = 0; i < p.buffers; i++)
      if (!p.given[i]) numbers += (int64_t)p.rows * p.width[i];
    own = (float *)malloc((size_t)(numbers + 1) * sizeof(float));
    float *next = own;
    for (int32_t i = 0; own && i < p.buffers; i++) {
      memory[i] = p.given[i] ? (float *)p.given[i] : next;
      if (!p.given[i]) next += (int64_t)p.rows * p.width[i];
    }
  }
  ~Buffers() { free(own); }
  Buffers(const Buffers &) = delete;
  Buffers &operator=(const Buffers &) = delete;
};

int check_writing(const rg_writing &w) {
  if (!w.program || !w.ids || !w.log_probs || (w.nevers && !w.never)) return RG_BAD_OPTIONS;
  const rg_program &p = *w.program;
  if (int wrong = check_sizes(p)) return wrong;
  if (!has_buffer(p, w.logits)) return RG_BAD_OPTIONS;
  if (w.beam < 1 || p.rows % w.beam || (w.parents ? !w.totals || !w.floors : w.beam > 1)) return RG_BAD_OPTIONS;
  if (p.places > 1 || w.steps < 1 || w.steps > RG_MOST_STEPS || w.nevers < 0 || p.place > INT32_MAX - w.steps) return RG_BAD_SIZES;
  for (int32_t i = 0; i < w.nevers; i++)
    if (w.never[i] < 0 || w.never[i] >= p.width[w.logits]) return RG_BAD_ID;
  return RG_OK;
}

// The continuation of a row by an id. `log_prob` is that of the id, `total` that of the whole text.
struct Candidate {
  int32_t row;
  int64_t id;
  double log_prob, total;
};

// The likeliest id of each row, the first of equally likely ones. Returns false where an id ends its text.
bool choose_likeliest(const rg_writing &w, const float *logits, const float *log_sum_exp) {
  const int32_t rows = w.program->rows, count = w.program->width[w.logits];
  for (int32_t row = 0; row < rows; row++, logits += count) {
    int32_t best = 0;
    for (int32_t i = 1; i < count; i++)
      if (logits[i] > logits[best]) best = i;
    if (best == w.end) return false;
    const int64_t at = (int64_t)w.written * rows + row;
    w.ids[at] = best;
    w.log_probs[at] = logits[best] - log_sum_exp[row];
  }
  return true;
}

// Insert a candidate among at most `most` that are sorted by their totals; of equal ones the earlier comes first.
void insert(Candidate *sorted, int32_t &held, int32_t most, const Candidate &candidate) {
  int32_t place = held < most ? held++ : most - 1;
  for (; place > 0 && sorted[place - 1].total < candidate.total; place--) sorted[place] = sorted[place - 1];
  sorted[place] = candidate;
}

// The likeliest continuations of the rows of a text, from `first` on, each of which takes one row. Returns false where one of them
// could end the text, or there are too few.
bool choose_in_beam(const rg_writing &w, int32_t first, const float *logits, const float *log_sum_exp) {
  const int32_t rows = w.program->rows, count = w.program->width[w.logits], most = w.beam;
  Candidate sorted[RG_MOST_PROGRAM_ROWS];
  int32_t held = 0;
  for (int32_t row = first; row < first + w.beam; row++) {
    const float *const of_row = logits + (int64_t)row * count;
    float least = -INFINITY;  // a little below the logit whose total would be that of the last candidate
    for (int32_t i = 0; i < count; i++) {
      if (of_row[i] < least) continue;
      const double log_prob = (double)of_row[i] - (double)log_sum_exp[row], total = w.totals[row] + log_prob;
      if (held == most && !(total > sorted[most - 1].total)) continue;
      insert(sorted, held, most, {row, i, log_prob, total});
      if (held < most) continue;
      const double last = sorted[most - 1].total - w.totals[row] + (double)log_sum_exp[row];
      least = (float)(last - 1e-3 - 1e-6 * fabs(last));
    }
  }
  if (held < most) return false;
  for (int32_t rank = 0; rank < held; rank++) {
    const Candidate &c = sorted[rank];
    if (!isfinite(c.total) || c.id == w.end) return false;
    const int64_t at = (int64_t)w.written * rows + first + rank;
    w.ids[at] = c.id;
    w.log_probs[at] = c.log_prob;
    w.parents[at] = c.row;
  }
  return true;
}

// Choose the ids of a step. Returns false where somebody else has to choose: a text or its search may end, or a score is not
// finite.
bool choose(const rg_writing &w, float *logits) {
  const int32_t rows = w.program->rows, count = w.program->width[w.logits];
  float log_sum_exp[RG_MOST_PROGRAM_ROWS];
  for (int32_t row = 0; row < rows; row++)
    for (int32_t i = 0; i < w.nevers; i++) logits[(int64_t)row * count + w.never[i]] = -INFINITY;
  log_sum_exps(logits, rows, count, log_sum_exp);
  for (int32_t row = 0; row < rows; row++)
    if (!isfinite(log_sum_exp[row])) return false;
  if (!w.parents) return choose_likeliest(w, logits, log_sum_exp);
  for (int32_t first = 0; first < rows; first += w.beam)
    if (!choose_in_beam(w, first, logits, log_sum_exp)) return false;
  double totals[RG_MOST_PROGRAM_ROWS];
  for (int32_t row = 0; row < rows; row++) {
    const int64_t at = (int64_t)w.written * rows + row;
    totals[row] = w.totals[w.parents[at]] + w.log_probs[at];
    if (row % w.beam == 0 && totals[row] <= w.floors[row / w.beam]) return false;
  }
  memcpy(w.totals, totals, (size_t)rows * sizeof *totals);
  return true;
}

// The entries of a row, before and at `place`: to or from a block of memory.
void copy_entries(const rg_tensor &text, int32_t row, int32_t heads, int32_t dim, int32_t place, float *block, bool back) {
  for (int32_t head = 0; head < heads; head++)
    for (int32_t entry = 0; entry <= place; entry++, block += dim) {
      float *const numbers = (float *)text.data + row * text.batch + head * text.head + entry * text.row;
      memcpy(back ? numbers : block, back ? block : numbers, (size_t)dim * sizeof(float));
    }
}

// Let each row have the entries of its parent.
int follow_parents(const rg_program &p, const int32_t *parents) {
  for (int32_t i = 0; i < p.operations; i++) {
    const rg_operation &o = p.operation[i];
    if (o.kind != RG_ATTEND || o.back < 0) continue;
    const rg_call &c = *o.call;
    const rg_tensor texts[] = {c.k, c.v};
    const int32_t dims[] = {c.head_dim, c.v_dim};
    for (int32_t t = 0; t < 2; t++) {
      const int64_t numbers = (int64_t)c.kv_heads * (p.place + 1) * dims[t];
      float *const blocks = (float *)malloc((size_t)(p.rows * numbers) * sizeof(float));
      if (!blocks) return RG_NO_MEMORY;
      for (int32_t row = 0; row < p.rows; row++)
        if (parents[row] != row) copy_entries(texts[t], parents[row], c.kv_heads, dims[t], p.place, blocks + row * numbers, false);
      for (int32_t row = 0; row < p.rows; row++)
        if (parents[row] != row) copy_entries(texts[t], row, c.kv_heads, dims[t], p.place, blocks + row * numbers, true);
      free(blocks);
    }
  }
  return RG_OK;
}

// Write steps with a copy of the program, whose operations are a copy too.
int write(rg_writing &w, rg_program &p, rg_operation *operations) {
  const Buffers buffers(p);
  if (!buffers.own) return RG_NO_MEMORY;
  p.operation = operations;
  while (w.written < w.steps) {
    for (int32_t i = 0; w.vectors && i < p.operations; i++) {
      rg_operation &o = operations[i];
      if (o.kind != RG_EMBED) continue;
      o.bias = w.vectors + (int64_t)w.written * p.width[o.into];
      o.bias_size = p.width[o.into];
    }
    if (int wrong = run(p, buffers.memory)) return wrong;
    if (!choose(w, buffers.memory[w.logits])) {
      w.scored = 1;
      return RG_OK;
    }
    const int64_t first = (int64_t)w.written * p.rows;
    if (w.parents)
      if (int wrong = follow_parents(p, w.parents + first)) return wrong;
    w.written++;
    p.place++;
    p.ids = w.ids + first;
    if (p.cos) p.cos += p.rotated;
    if (p.sin) p.sin += p.rotated;
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

#define PUBLIC __attribute__((visibility("default")))
extern "C" {
PUBLIC int32_t rg_run(const rg_program *program) {
  if (!program) return RG_BAD_OPTIONS;
  if (int wrong = check_sizes(*program)) return wrong;
  const Buffers buffers(*program);
  return buffers.own ? run(*program, buffers.memory) : RG_NO_MEMORY;
}

PUBLIC int32_t rg_write(rg_writing *writing) {
  if (!writing) return RG_BAD_OPTIONS;
  writing->written = writing->scored = 0;
  if (int wrong = check_writing(*writing)) return wrong;
  rg_program program = *writing->program;
  const size_t size = (size_t)program.operations * sizeof(rg_operation);
  rg_operation *const operations = (rg_operation *)malloc(size);
  if (!operations) return RG_NO_MEMORY;
  memcpy(operations, program.operation, size);
  const int code = write(*writing, program, operations);
  free(operations);
  return code;
}
}
