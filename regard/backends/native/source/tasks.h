// Division of a call among threads. What is computed together is chosen from the problem alone; threads only take turns.
#pragma once
#include "backward.h"

namespace RG_SPACE {
namespace {
// Calls task(0) .. task(count - 1), which return false if memory is missing, and returns how many did.
//
// Relaxed order is enough, even on processors such as Arm that reorder memory more than x86. Each task number goes to one
// thread only. A task reads only what was written before the threads began and what it wrote itself. What tasks write is read
// after all threads have ended, and the pool's threads begin and end at barriers. Several threads write only the counts here
// and `rg_call.unsound`, which are also read after the last barrier.
template <class Task>
static int run_tasks(int threads, long count, const Task &task) {
  struct Turns {
    const Task &task;
    long count, next;
    int failed;
  } turns{task, count, 0, 0};
  const auto work = [](void *data) {
    const Flushing flushing;
    Turns &t = *(Turns *)data;
    int failed = 0;
#if defined(RG_PLANTED_RACE)  // what the sanitizer of threads must notice
    for (long i; (i = t.next++) < t.count;) failed += !t.task(i);
#else
    for (long i; (i = __atomic_fetch_add(&t.next, 1, __ATOMIC_RELAXED)) < t.count;) failed += !t.task(i);
#endif
    if (failed) __atomic_fetch_add(&t.failed, failed, __ATOMIC_RELAXED);
  };
  rg_in_threads((int)std::min<long>(threads, count), work, &turns);
  return turns.failed;
}

template <class T>
struct List {  // a list of plain structs, without exceptions
  T *items = nullptr;
  long count = 0, room = 0;
  bool add(const T &x) {
    if (count == room) {
      T *more = (T *)std::realloc(items, (room = room ? 2 * room : 64) * sizeof(T));
      if (!more) return false;
      items = more;
    }
    items[count++] = x;
    return true;
  }
  ~List() { std::free(items); }
};

static const rg_schedule &schedule_of(const rg_call &c, int batch, int head) {
  return c.schedule[c.schedule_of ? c.schedule_of[(long)batch * c.heads + head] : 0];
}

// How many query heads are stacked: all that share a key/value head, if their blocks are short and alike, else one.
static int stacked_heads(const rg_call &c, int batch, int first) {
  const int group = c.heads / c.kv_heads;
  const rg_schedule &s = schedule_of(c, batch, first);
  for (int h = first; h < first + group; h++)
    if (&schedule_of(c, batch, h) != &s) return 1;
  for (int b = 0; b < s.blocks; b++)
    if (block_of(s, b).rows() * group > RG_MOST_ROWS) return 1;
  return group;
}

struct Stacked {  // a block of the schedule, for the query heads head .. head + heads - 1
  int batch, head, heads, block;
  Work work(const rg_call &c) const {
    const rg_schedule &s = schedule_of(c, batch, head);
    const Block b = block_of(s, block);
    return {c, s, batch, head, b, {b.rows() * heads, b.rows()}};
  }
};

// Calls add(batch, head, heads, blocks) for the heads that are computed together, until it returns false.
template <class Add>
static bool each_stack(const rg_call &c, Add &&add) {
  const int group = c.heads / c.kv_heads;
  for (int batch = 0; batch < c.batch; batch++)
    for (int first = 0; first < c.heads; first += group) {
      const int heads = stacked_heads(c, batch, first);
      for (int h = first; h < first + group; h += heads)
        if (!add(batch, h, heads, schedule_of(c, batch, h).blocks)) return false;
    }
  return true;
}

static bool list_stacks(const rg_call &c, List<Stacked> &list) {
  return each_stack(c, [&](int batch, int head, int heads, int blocks) {
    for (int b = blocks - 1; b >= 0; b--)  // the last rows of a causal call have most keys: they come first
      if (!list.add({batch, head, heads, b})) return false;
    return true;
  });
}

struct Piece {  // a span of keys of a stack, where threads share one
  long stack, from, numbers;
};

static bool list_pieces(const rg_call &c, const List<Stacked> &stacks, List<Piece> &pieces, size_t *numbers) {
  *numbers = 0;
  for (long i = 0; i < stacks.count; i++) {
    const Work w = stacks.items[i].work(c);
    if (w.block.run == w.block.run_end) continue;
    for (long from = first_key(w); from < last_key(w); from = span_end(w.s, from)) {
      if (!pieces.add({i, from, (long)*numbers})) return false;
      *numbers += Sums::numbers(c, w.stack.rows, up(c.v_dim, W) + SPARE);
    }
  }
  return true;
}

static bool sum_piece(const Work &w, const Piece &piece, real *memory) {
  const int rows = w.stack.rows;
  Workspace &own = workspace();
  if (!own.reserve(sizeof(real) * ForwardRoom::numbers(w.c, rows) + 1024)) return false;
  ForwardRoom room(own, w.c, rows);
  read_queries(w, room.q);
  if (packs_queries(w.c, rows)) pack_queries(w, room);
  Walk walk(w.s, w.block, piece.from);
  Sums sums(w.c, memory + piece.numbers, rows, room.padded + SPARE);
  sum_keys(w, walk, span_end(w.s, piece.from), room, sums);
  return true;
}

// Few stacks and many keys, as in decoding: threads share the spans of a stack, which are merged in their order.
static int forward_by_pieces(const rg_call &c, const List<Stacked> &stacks) {
  List<Piece> pieces;
  size_t numbers;
  if (!list_pieces(c, stacks, pieces, &numbers)) return RG_NO_MEMORY;
  real *memory = (real *)std::malloc(numbers * sizeof(real) + 64);
  if (!memory) return RG_NO_MEMORY;
  int failed = run_tasks(c.threads, pieces.count, [&](long i) {
    return sum_piece(stacks.items[pieces.items[i].stack].work(c), pieces.items[i], memory);
  });
  for (long i = 0, p = 0; i < stacks.count && !failed; i++) {
    const Work w = stacks.items[i].work(c);
    const int width = up(c.v_dim, W) + SPARE;
    if (p == pieces.count || pieces.items[p].stack != i) {
      failed += !forward_stack(w);  // it has no keys
      continue;
    }
    Sums sums(c, memory + pieces.items[p++].numbers, w.stack.rows, width);
    for (; p < pieces.count && pieces.items[p].stack == i; p++)
      sums.merge(Sums(c, memory + pieces.items[p].numbers, w.stack.rows, width), w.stack.rows);
    finish(w, sums, 0, w.stack.rows);
  }
  std::free(memory);
  return failed ? RG_NO_MEMORY : RG_OK;
}

static int forward_all(const rg_call &c) {
  List<Stacked> stacks;
  if (!list_stacks(c, stacks)) return RG_NO_MEMORY;
  if (c.threads > 1 && stacks.count < 4L * c.threads && c.keys > RG_SPAN) return forward_by_pieces(c, stacks);
  const int failed = run_tasks(c.threads, stacks.count, [&](long i) { return forward_stack(stacks.items[i].work(c)); });
  return failed ? RG_NO_MEMORY : RG_OK;
}

// ---- backward: parts of the rows of one key/value head

constexpr int PARTS = 8;          // at least, over all key/value heads, so that threads have work
constexpr int PART_STEPS = 4;     // of BACK_ROWS rows, at least in each part

struct Part {
  int batch, kv_head;
  long from, to;  // steps of BACK_ROWS rows, counted over the heads of the group
  long parts_of_head;  // in the first part of a key/value head: how many it has; 0 in the others
  KeySums sums;
  real *memory;  // of the sums, until they are added; NULL where they lie in the workspace of a thread
};

// Numbers of sums of the only part of a head, up to which they lie in the workspace of a thread: they are added at once, while
// they are in the core's cache. To allocate and free memory for them takes longer than a part of a short text.
constexpr long MOST_KEPT_SUMS = 1 << 16;

// Calls step(head, block, from row) for the steps [from, to) of a key/value head.
template <class Step>
static long each_step(const rg_call &c, int batch, int kv_head, long from, long to, Step step) {
  const int group = c.heads / c.kv_heads;
  long n = 0;
  for (int h = kv_head * group; h < (kv_head + 1) * group; h++) {
    const rg_schedule &s = schedule_of(c, batch, h);
    for (int b = 0; b < s.blocks; b++)
      for (int at = 0; at < block_of(s, b).rows(); at += BACK_ROWS, n++)
        if (from <= n && n < to) step(h, block_of(s, b), at);
  }
  return n;
}

static bool list_parts(const rg_call &c, List<Part> &parts) {
  const int k_width = up(c.head_dim, NR), v_width = up(c.v_dim, NR);
  const long each = (PARTS + (long)c.batch * c.kv_heads - 1) / ((long)c.batch * c.kv_heads);
  for (int batch = 0; batch < c.batch; batch++)
    for (int kv = 0; kv < c.kv_heads; kv++) {
      const long steps = each_step(c, batch, kv, 0, 0, [](int, Block, int) {});
      const long count = std::max(1L, std::min(each, steps / PART_STEPS));
      for (long i = 0; i < count; i++) {
        Part part{batch, kv, steps * i / count, steps * (i + 1) / count, i ? 0 : count, {INT64_MAX, 0, nullptr, nullptr, k_width, v_width, nullptr}, nullptr};
        each_step(c, batch, kv, part.from, part.to, [&](int h, Block b, int) {
          if (b.run == b.run_end) return;
          const rg_schedule &s = schedule_of(c, batch, h);
          part.sums.first = std::min<long>(part.sums.first, run_of(s, b.run).first);
          part.sums.end = std::max<long>(part.sums.end, run_of(s, b.run_end - 1).end);
        });
        // whole panels are added, so the sums hold the keys of the first and last panel too
        part.sums.first = std::max<long>(part.sums.first - LANES, c.first_key);
        part.sums.end = std::min<long>(part.sums.end + LANES, (long)c.first_key + c.keys);
        if (!parts.add(part)) return false;
      }
    }
  return true;
}

static void add_tables(const rg_call &c, const rg_gradients &g, const Part *part, long count) {
  const int group = c.heads / c.kv_heads;
  real *into = numbers_at<real>(g.dtable, part->batch, (long)part->kv_head * group, 0);
  for (long i = 0; i < count; i++)
    for (long n = 0; n < g.dtable.head * group; n++) into[n] += part[i].sums.table[n];
}

static size_t numbers_of_row(const rg_call &c) { return up(std::max(c.head_dim, c.v_dim), NR); }

// Add the parts of a key/value head in their order, and free them. dk has the factor of the scores as far as queries carry it, and
// must have the scale. row: room for a sum of the parts.
static void add_parts(const rg_call &c, const rg_gradients &g, Part *part, long count, real *row) {
  const real factor = HALF ? (real)c.scale : (c.softcap > 0 ? (real)1 : LN2) * score_factor(c).rest;
  for (int key = c.first_key; key < c.first_key + c.keys; key++)
    for (int which = 0; which < 2; which++) {  // dk, then dv
      const int width = which ? part->sums.v_width : part->sums.k_width, dim = which ? c.v_dim : c.head_dim;
      const real *found = row;
      int added = 0;
      for (long i = 0; i < count; i++) {
        const KeySums &s = part[i].sums;
        if (key < s.first || key >= s.end) continue;
        const real *x = (which ? s.dv : s.dk) + (key - s.first) * width;
        for (int n = 0; added && n < width; n += W) store(row + n, load(found + n) + load(x + n));
        found = added++ ? row : x;
      }
      if (!added) std::memset(row, 0, width * sizeof(real));
      const rg_tensor &into = which ? g.dv : g.dk;
      write_row(REAL, (char *)numbers_at<real>(into, part->batch, part->kv_head, key - c.first_key), dim, found, which ? (real)1 : factor);
    }
  if (g.dtable.data) add_tables(c, g, part, count);
  for (long i = 0; i < count; i++) std::free(part[i].memory), part[i].memory = nullptr;
}

static bool compute_part(const rg_call &c, const rg_gradients &g, Part &part) {
  KeySums &sums = part.sums;
  const long keys = std::max(0L, sums.end - sums.first);
  const long numbers = keys * (sums.k_width + sums.v_width), table = g.dtable.data ? g.dtable.head * (c.heads / c.kv_heads) : 0;
  const long all_numbers = numbers + table + 16;
  const bool alone = part.parts_of_head == 1, is_kept = alone && all_numbers <= MOST_KEPT_SUMS;
  Workspace &own = workspace();
  if (!own.reserve(sizeof(real) * (BackwardRoom::numbers(c) + numbers_of_row(c) + (is_kept ? all_numbers : 0)) + 1024)) return false;
  if (is_kept) {
    sums.dk = own.take(all_numbers);
    std::memset(sums.dk, 0, all_numbers * sizeof(real));
  } else {
    sums.dk = part.memory = (real *)std::calloc(all_numbers, sizeof(real));
    if (!sums.dk) return false;
  }
  sums.dv = sums.dk + keys * sums.k_width;
  if (table) sums.table = sums.dk + numbers;
  BackwardRoom room(own, c);
  each_step(c, part.batch, part.kv_head, part.from, part.to, [&](int h, Block b, int at) {
    const int rows = std::min(BACK_ROWS, b.rows() - at);
    backward_rows({{c, schedule_of(c, part.batch, h), part.batch, h, b, {rows, rows}}, g, at}, room, sums);
  });
  if (alone) add_parts(c, g, &part, 1, own.take(numbers_of_row(c)));
  return true;
}

// Add the parts of a key/value head that has several, of which this is the first.
static bool add_several(const rg_call &c, const rg_gradients &g, Part *part) {
  Workspace &own = workspace();
  if (!own.reserve(sizeof(real) * numbers_of_row(c) + 1024)) return false;
  add_parts(c, g, part, part->parts_of_head, own.take(numbers_of_row(c)));
  return true;
}

static int backward_all(const rg_call &c, const rg_gradients &g) {
  List<Part> parts;
  if (!list_parts(c, parts)) return RG_NO_MEMORY;
  int failed = run_tasks(c.threads, parts.count, [&](long i) { return compute_part(c, g, parts.items[i]); });
  if (!failed)
    failed = run_tasks(c.threads, parts.count, [&](long i) {
      return parts.items[i].parts_of_head < 2 || add_several(c, g, parts.items + i);
    });
  for (long i = 0; i < parts.count; i++) std::free(parts.items[i].memory);
  return failed ? RG_NO_MEMORY : RG_OK;
}
}  // namespace
}  // namespace RG_SPACE
