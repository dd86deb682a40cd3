// Windows that divide the positions of a call: each is computed as a call of its own.
//
// The rows of a window do not follow each other in memory, so they are copied to where they do, and stay in the core's cache
// until the window is computed. Its results are copied back. Every window is computed by one thread.
#pragma once
#include "tasks.h"

namespace RG_SPACE {
namespace {
static const int32_t *cells_of(const rg_windows &x, int window) { return x.cell + x.first[window]; }
static int count_of(const rg_windows &x, int window) { return x.first[window + 1] - x.first[window]; }

static int most_cells(const rg_windows &x) {
  int most = 0;
  for (int w = 0; w < x.windows; w++) most = std::max(most, count_of(x, w));
  return most;
}

// Memory of one thread for windows, beside that of the calls that compute them.
static Workspace &workspace_of_windows() {
  static thread_local Workspace kept;
  return kept;
}

// One window of a key/value head, and the query heads that share it.
struct Window {
  const rg_call &c;
  int batch, kv_head, cells;
  const int32_t *cell;

  int group() const { return c.heads / c.kv_heads; }
  int first_head() const { return kv_head * group(); }
  long line(int h, int r) const { return ((long)batch * c.heads + first_head() + h) * c.q_len + cell[r]; }
};

// Copies bytes without a call of a function, which would take longer than a row of a head.
static inline void copy_bytes(const char *from, char *into, size_t bytes) {
  size_t n = 0;
  for (; n + sizeof(vf) <= bytes; n += sizeof(vf)) store((real *)(into + n), load((const real *)(from + n)));
  if (n < bytes) std::memcpy(into + n, from + n, bytes - n);
}

// A copy of the rows of a window, or room for them.
struct Copied {
  rg_tensor x;
  int heads, dim;

  static size_t numbers(int heads, int cells, int dim) { return (size_t)heads * cells * dim; }  // of the widest type
  Copied(Workspace &memory, int heads, int cells, int dim, int type) : x(), heads(heads), dim(dim) {
    const int64_t row = dim, head = row * cells;
    x = {memory.take(numbers(heads, cells, dim)), head * heads, head, row, head * heads, type};
  }
  size_t row_bytes() const { return (size_t)dim * WIDTH_OF[x.type]; }

  void take(const rg_tensor &from, const Window &w, int first_head) const {
    for (int h = 0; h < heads; h++)
      for (int r = 0; r < w.cells; r++)
        copy_bytes(at(from, w.batch, first_head + h, w.cell[r]), (char *)at(x, 0, h, r), row_bytes());
  }
  void give(const rg_tensor &into, const Window &w, int first_head) const {
    for (int h = 0; h < heads; h++)
      for (int r = 0; r < w.cells; r++)
        copy_bytes(at(x, 0, h, r), (char *)at(into, w.batch, first_head + h, w.cell[r]), row_bytes());
  }
};

// The numbers of a bias by distance for the pairs of a window, and their gradient: a matrix for each query head, whose rows are
// whole registers. They are kept for the next window if it has the same distances.
struct WindowBias {
  real *numbers = nullptr, *gradient = nullptr;
  int64_t start = 0;  // of the only batch row of a window's call
  int32_t *steps;     // from the first cell to each of the window that the matrices are for
  int cells = 0;      // of that window; 0: none

  static int line(int cells) { return up(cells, LANES); }
  static size_t matrix(int cells) { return (size_t)cells * line(cells); }
  static size_t numbers_for(const rg_call &c, int most) {
    const size_t steps = up(most, LANES);
    return c.bias.data ? steps + 2 * c.heads / c.kv_heads * matrix(most) : steps;
  }
  WindowBias(Workspace &memory, const rg_call &c, int most, bool learns) : steps((int32_t *)memory.take(most)) {
    if (!c.bias.data) return;
    const size_t all_heads = c.heads / c.kv_heads * matrix(most);
    numbers = memory.take(all_heads);
    if (learns) gradient = memory.take(all_heads);
  }

  bool is_for(const Window &w) const {
    if (cells != w.cells) return false;
    for (int r = 0; r < cells; r++)
      if (steps[r] != w.cell[r] - w.cell[0]) return false;
    return true;
  }

  // Make the matrices those of a window, when the gradient of the one before was added.
  void read(const Window &w) {
    cells = w.cells;
    for (int r = 0; r < cells; r++) steps[r] = w.cell[r] - w.cell[0];
    const rg_bias &bias = w.c.bias;
    const real *table = (const real *)bias.data + bias.at[w.batch];
    for (int h = 0; h < w.group(); h++)
      for (int i = 0; i < cells; i++)
        for (int j = 0; j < cells; j++)
          numbers[h * matrix(cells) + (long)i * line(cells) + j] = table[(w.first_head() + h) * bias.head + steps[j] - steps[i]];
    if (gradient) std::memset(gradient, 0, w.group() * matrix(cells) * sizeof(real));
  }

  // Add the gradient to that of the table, whose rows of query heads are `width` apart and whose distance 0 is at `zero`.
  void add(const rg_call &c, real *table, long width, long zero) const {
    for (int h = 0; h < c.heads / c.kv_heads; h++)
      for (int i = 0; i < cells; i++)
        for (int j = 0; j < cells; j++)
          table[h * width + zero + steps[j] - steps[i]] += gradient[h * matrix(cells) + (long)i * line(cells) + j];
  }
};

// What one thread needs for the windows of a call, the largest of which has `most` cells.
struct WindowRoom {
  Workspace &memory;
  Block *blocks;   // of the largest window
  Run run;         // of all blocks: every key
  rg_schedule schedule;
  WindowBias bias;
  real *sums, *slopes;  // log-sum-exp and the sums of rows; the gradient of log-sum-exp
  size_t used;     // of the memory before the copies of a window

  static size_t bytes(const rg_call &c, int most, bool backward) {
    const size_t group = c.heads / c.kv_heads, k = c.head_dim, v = c.v_dim;
    const size_t numbers = (group * k + k + group * v + v) + (backward ? group * k + k + group * v + v : 0) + 4 * group;
    return sizeof(real) * (numbers * most + WindowBias::numbers_for(c, most)) + sizeof(Block) * (most / RG_MOST_ROWS + 1) + 32 * 64;
  }
  WindowRoom(Workspace &memory, const rg_call &c, int most, bool learns)
      : memory(memory), blocks((Block *)memory.take((most / RG_MOST_ROWS + 1) * sizeof(Block) / sizeof(real) + 1)), run(), schedule(),
        bias(memory, c, most, learns), sums(memory.take((size_t)3 * (c.heads / c.kv_heads) * most)),
        slopes(memory.take((size_t)(c.heads / c.kv_heads) * most)), used(memory.used) {}

  // A window as a call without its tensors.
  rg_call call(const Window &w) {
    memory.used = used;
    run = {0, w.cells, RG_WHOLE, 0};
    schedule = {};
    schedule.runs = 1, schedule.run = (const int32_t *)&run, schedule.block = (const int32_t *)blocks;
    for (int row = 0; row < w.cells; row += RG_MOST_ROWS)
      blocks[schedule.blocks++] = {row, std::min(row + RG_MOST_ROWS, w.cells), 0, 1};
    rg_call own = w.c;
    own.batch = own.kv_heads = own.threads = own.schedules = 1;
    own.heads = w.group();
    own.q_len = own.keys = w.cells;
    own.windows = nullptr, own.schedule = &schedule, own.schedule_of = nullptr;
    if (own.bias.data) {
      const int64_t matrix = WindowBias::matrix(w.cells);
      own.bias = {bias.numbers, &bias.start, matrix, WindowBias::line(w.cells), 1, matrix * own.heads};
    }
    return own;
  }

  // The sums of the rows, those of all heads of a kind after each other, as a call has them.
  void describe_sums(const Window &w, rg_call &own) const {
    own.log_sum_exp = w.c.log_sum_exp ? sums : nullptr;
    own.row_sums = w.c.row_sums ? sums + (long)w.group() * w.cells : nullptr;
  }
};

// Calls copy(number of the window, number of the call) for the sums of all rows.
template <class Copy>
static void each_line(const Window &w, Copy &&copy) {
  for (int h = 0; h < w.group(); h++)
    for (int r = 0; r < w.cells; r++) copy((long)h * w.cells + r, w.line(h, r));
}

static void give_sums(const Window &w, const WindowRoom &room) {
  const long rows = (long)w.group() * w.cells, all_rows = (long)w.c.batch * w.c.heads * w.c.q_len;
  real *log_sum_exp = (real *)w.c.log_sum_exp, *row_sums = (real *)w.c.row_sums;
  each_line(w, [&](long from, long into) {
    if (log_sum_exp) log_sum_exp[into] = room.sums[from];
    if (row_sums) row_sums[into] = room.sums[rows + from], row_sums[all_rows + into] = room.sums[2 * rows + from];
  });
}

static void take_sums(const Window &w, const rg_gradients &g, const WindowRoom &room) {
  const long rows = (long)w.group() * w.cells, all_rows = (long)w.c.batch * w.c.heads * w.c.q_len;
  const real *log_sum_exp = (const real *)w.c.log_sum_exp, *row_sums = (const real *)w.c.row_sums;
  const real *slopes = (const real *)g.dlog_sum_exp;
  each_line(w, [&](long into, long from) {
    room.sums[into] = log_sum_exp[from];
    if (row_sums) room.sums[rows + into] = row_sums[from], room.sums[2 * rows + into] = row_sums[all_rows + from];
    if (slopes) room.slopes[into] = slopes[from];
  });
}

static bool forward_window(const Window &w, WindowRoom &room) {
  const rg_call &c = w.c;
  if (c.bias.data && !room.bias.is_for(w)) room.bias.read(w);
  rg_call own = room.call(w);
  room.describe_sums(w, own);
  const Copied q(room.memory, w.group(), w.cells, c.head_dim, c.q.type), k(room.memory, 1, w.cells, c.head_dim, c.k.type);
  const Copied v(room.memory, 1, w.cells, c.v_dim, c.v.type), out(room.memory, w.group(), w.cells, c.v_dim, c.out.type);
  q.take(c.q, w, w.first_head()), k.take(c.k, w, w.kv_head), v.take(c.v, w, w.kv_head);
  own.q = q.x, own.k = k.x, own.v = v.x, own.out = out.x;
  const bool sound = each_stack(own, [&](int, int head, int heads, int blocks) {
    for (int b = 0; b < blocks; b++)
      if (!forward_stack(Stacked{0, head, heads, b}.work(own))) return false;
    return true;
  });
  out.give(c.out, w, w.first_head());
  give_sums(w, room);
  return sound;
}

static bool backward_call(const rg_call &c, const rg_gradients &g) {
  List<Part> parts;
  bool sound = list_parts(c, parts);
  for (long i = 0; sound && i < parts.count; i++) sound = compute_part(c, g, parts.items[i]);
  for (long i = 0; sound && i < parts.count; i++)
    if (parts.items[i].parts_of_head > 1) sound = add_several(c, g, parts.items + i);
  for (long i = 0; i < parts.count; i++) std::free(parts.items[i].memory);
  return sound;
}

// table: where the gradient of the table of this key/value head is added; NULL: the bias does not learn.
static bool backward_window(const Window &w, const rg_gradients &g, WindowRoom &room, real *table) {
  const rg_call &c = w.c;
  if (c.bias.data && !room.bias.is_for(w)) {
    if (table) room.bias.add(c, table, g.dtable.head, c.bias.at[w.batch]);
    room.bias.read(w);
  }
  rg_call own = room.call(w);
  room.describe_sums(w, own);
  take_sums(w, g, room);
  Workspace &m = room.memory;
  const int group = w.group(), d = c.head_dim, dv = c.v_dim, head = w.first_head();
  const Copied q(m, group, w.cells, d, c.q.type), k(m, 1, w.cells, d, c.k.type), v(m, 1, w.cells, dv, c.v.type);
  const Copied out(m, group, w.cells, dv, c.out.type), dout(m, group, w.cells, dv, g.dout.type);
  const Copied of_q(m, group, w.cells, d, REAL), of_k(m, 1, w.cells, d, REAL), of_v(m, 1, w.cells, dv, REAL);
  q.take(c.q, w, head), k.take(c.k, w, w.kv_head), v.take(c.v, w, w.kv_head);
  out.take(c.out, w, head), dout.take(g.dout, w, head);
  own.q = q.x, own.k = k.x, own.v = v.x, own.out = out.x;
  rg_gradients of_own{dout.x, g.dlog_sum_exp ? room.slopes : nullptr, of_q.x, of_k.x, of_v.x, {}, {}};
  if (table) of_own.dbias = {room.bias.gradient, 0, own.bias.head, own.bias.row, own.bias.size, REAL};
  const bool sound = backward_call(own, of_own);
  of_q.give(g.dq, w, head), of_k.give(g.dk, w, w.kv_head), of_v.give(g.dv, w, w.kv_head);
  return sound;
}

// Calls compute(part, batch, kv_head, first window, end) for parts of the windows of each key/value head, in threads. Their
// number depends on the problem alone.
template <class Compute>
static int each_part_of_windows(const rg_call &c, long parts, const Compute &compute) {
  const long windows = c.windows->windows;
  return run_tasks(c.threads, parts * c.batch * c.kv_heads, [&](long i) {
    const long part = i % parts, head = i / parts;
    return compute(i, (int)(head / c.kv_heads), (int)(head % c.kv_heads), (int)(windows * part / parts), (int)(windows * (part + 1) / parts));
  });
}

constexpr long WINDOW_PARTS = 32;  // at least, over all key/value heads, so that threads have work

static long parts_of_windows(const rg_call &c, long least) {
  const long heads = (long)c.batch * c.kv_heads;
  return std::min((long)c.windows->windows, (least + heads - 1) / heads);
}

static int forward_windows(const rg_call &c) {
  const rg_windows &x = *c.windows;
  const int most = most_cells(x);
  const int failed = each_part_of_windows(c, parts_of_windows(c, WINDOW_PARTS), [&](long, int batch, int kv, int first, int end) {
    Workspace &memory = workspace_of_windows();
    if (!memory.reserve(WindowRoom::bytes(c, most, false))) return false;
    WindowRoom room(memory, c, most, false);
    for (int w = first; w < end; w++)
      if (!forward_window({c, batch, kv, count_of(x, w), cells_of(x, w)}, room)) return false;
    return true;
  });
  return failed ? RG_NO_MEMORY : RG_OK;
}

// Each part has a gradient of the table; they are added in their order.
static int backward_windows(const rg_call &c, const rg_gradients &g) {
  const rg_windows &x = *c.windows;
  const int most = most_cells(x), group = c.heads / c.kv_heads;
  const bool learns = g.dtable.data;
  const long parts = parts_of_windows(c, learns ? PARTS : WINDOW_PARTS), heads = (long)c.batch * c.kv_heads;
  const long table = learns ? g.dtable.head * group : 0;
  real *tables = learns ? (real *)std::calloc(parts * heads * table, sizeof(real)) : nullptr;
  if (learns && !tables) return RG_NO_MEMORY;
  const int failed = each_part_of_windows(c, parts, [&](long i, int batch, int kv, int first, int end) {
    Workspace &memory = workspace_of_windows();
    if (!memory.reserve(WindowRoom::bytes(c, most, true))) return false;
    WindowRoom room(memory, c, most, learns);
    real *own = learns ? tables + i * table : nullptr;
    for (int w = first; w < end; w++)
      if (!backward_window({c, batch, kv, count_of(x, w), cells_of(x, w)}, g, room, own)) return false;
    if (learns) room.bias.add(c, own, g.dtable.head, c.bias.at[batch]);
    return true;
  });
  for (long i = 0; learns && i < parts * heads; i++) {
    const long head = i / parts;
    real *into = numbers_at<real>(g.dtable, head / c.kv_heads, head % c.kv_heads * group, 0);
    for (long n = 0; n < table; n++) into[n] += tables[i * table + n];
  }
  std::free(tables);
  return failed ? RG_NO_MEMORY : RG_OK;
}
}  // namespace
}  // namespace RG_SPACE
