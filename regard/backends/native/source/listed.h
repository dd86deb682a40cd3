// Keys that are listed for each row: read where they lie, one after the other, for the query heads that share a list.
//
// A row takes its scores with all its keys first, then adds their values in ascending order, so that its bits depend on its
// own set of keys alone. Gradients of keys are sums over rows, divided as in backward.h: into parts that depend on the problem
// alone, which are added in order.
#pragma once
#include "tasks.h"

namespace RG_SPACE {
namespace {
constexpr int TOGETHER = 4;                 // query heads at most
constexpr int HELD = VECTOR_REGISTERS / 8;  // registers of a sum of each of them
constexpr int FETCHED = 6;                  // a key is prefetched when so many others come before it
constexpr int SPARSE = 8;                   // words of 64 blocks for each number of a list: with more, lists are sorted

struct Listing {
  const rg_call &c;
  const rg_lists &l;
  int batch, head, heads;  // query heads head .. head + heads - 1 of one list and one key/value head
  int k_width, v_width;    // head_dim and v_dim, in whole LANES
  int kv() const { return head / (c.heads / c.kv_heads); }
  long line(int i, int row) const { return ((long)batch * c.heads + head + i) * c.q_len + row; }

  // Calls take(block) for the blocks of a row that have keys in [lo, hi), each once and ascending. Blocks are marked as bits,
  // and read in order; where a list is short beside its bounds, they are sorted instead.
  template <class Take>
  void each_block(int row, int64_t lo, int64_t hi, uint64_t *marks, const Take &take) const {
    const int64_t *listed = l.block + (l.lists > 1 ? head / (c.heads / l.lists) : 0) * l.list + (l.batches > 1 ? batch : 0) * l.batch +
                            row / l.rows * (long)l.count;
    if (lo >= hi) return;
    const int64_t first = lo / l.keys, blocks = (hi - 1) / l.keys + 1 - first, words = (blocks + 63) / 64;
    if (words > (int64_t)SPARSE * l.count) {
      int64_t *sorted = (int64_t *)marks, *end = sorted;
      for (int i = 0; i < l.count; i++)
        if ((uint64_t)listed[i] - (uint64_t)first < (uint64_t)blocks) *end++ = listed[i];
      std::sort(sorted, end, [](int64_t a, int64_t b) { return a < b; });  // the lambda keeps the code in this namespace
      std::for_each(sorted, std::unique(sorted, end), take);
      return;
    }
    std::memset(marks, 0, words * sizeof(uint64_t));
    for (int i = 0; i < l.count; i++) {
      const uint64_t at = (uint64_t)listed[i] - (uint64_t)first;
      if (at < (uint64_t)blocks) marks[at / 64] |= UINT64_C(1) << at % 64;
    }
    for (int64_t word = 0; word < words; word++)
      for (uint64_t bits = marks[word]; bits; bits &= bits - 1) take(first + word * 64 + __builtin_ctzll(bits));
  }

  int64_t low(int row) const { return std::max(l.lo[bound(row)], c.first_key); }
  int64_t high(int row) const { return std::min<int64_t>(l.hi[bound(row)], (int64_t)c.first_key + c.keys); }

  // The keys of a row that are within its bounds, ascending, counted from first_key; returns how many.
  int keys_of(int row, uint64_t *marks, int32_t *into) const {
    const int64_t lo = low(row), hi = high(row);
    int n = 0;
    each_block(row, lo, hi, marks, [&](int64_t block) {
      const int64_t from = block * l.keys;
      for (int64_t key = std::max(from, lo); key < std::min(from + l.keys, hi); key++) into[n++] = (int32_t)(key - c.first_key);
    });
    return n;
  }

 private:
  long bound(int row) const { return (l.bounds > 1 ? (long)batch * c.q_len : 0) + row; }
};

static inline vf load_of(const real *p, int n) { return n >= W ? load(p) : n > 0 ? load_some(p, n) : vf{}; }

// out[i][key] = by * x[i] . row of the key, for M vectors of `width` numbers whose ends are zeros
template <int M>
static void dots(const real *x, int width, const real *rows, long stride, int n, const int32_t *keys, int count, real *out, long line,
                 real by) {
  for (int k = 0; k < count; k++) {
    const real *row = rows + keys[k] * stride;
    if (k + FETCHED < count)
      for (int c = 0; c < n; c += 64 / (int)sizeof(real)) __builtin_prefetch(rows + keys[k + FETCHED] * stride + c);
    Lanes sums[M]{};
    for (int c = 0; c < n; c += LANES)
#pragma GCC unroll 4
      for (int r = 0; r < REGISTERS; r++) {
        const vf y = load_of(row + c + r * W, n - c - r * W);
#pragma GCC unroll 4
        for (int i = 0; i < M; i++) sums[i].part[r] = madd(load(x + i * width + c + r * W), y, sums[i].part[r]);
      }
    for (int i = 0; i < M; i++) out[i * line + k] = sum(sums[i]) * by;
  }
}

// into[i] += weights[i][key] row of the key, HELD registers of columns at a time
template <int M>
static void add_rows(real *into, int width, const real *rows, long stride, int n, const int32_t *keys, int count, const real *weights, long line) {
  for (int c = 0; c < n; c += HELD * W) {
    vf sums[M][HELD]{};
    for (int k = 0; k < count; k++) {
      const real *row = rows + keys[k] * stride + c;
#pragma GCC unroll 4
      for (int r = 0; r < HELD; r++) {
        const vf y = load_of(row + r * W, n - c - r * W);
#pragma GCC unroll 4
        for (int i = 0; i < M; i++) sums[i][r] = madd(all(weights[i * line + k]), y, sums[i][r]);
      }
    }
    for (int i = 0; i < M; i++)
      for (int r = 0; r < HELD && c + r * W < width; r++) store(into + i * width + c + r * W, load(into + i * width + c + r * W) + sums[i][r]);
  }
}

// row of the key += sum of weights[i][key] x[i]; rows of `width` numbers follow each other
template <int M>
static void add_to_rows(real *rows, int width, int n, const int32_t *keys, int count, const real *x, const real *weights, long line) {
  for (int k = 0; k < count; k++) {
    real *row = rows + (long)keys[k] * width;
    for (int c = 0; c < n; c += W) {
      vf y = load(row + c);
#pragma GCC unroll 4
      for (int i = 0; i < M; i++) y = madd(all(weights[i * line + k]), load(x + i * width + c), y);
      store(row + c, y);
    }
  }
}

template <class F, int M = TOGETHER>
static void with_heads(int heads, F f) {
  if constexpr (M > 1)
    if (heads < M) return with_heads<F, M - 1>(heads, f);
  f(std::integral_constant<int, M>());
}

struct ListedRoom {
  real *q, *out, *grad, *dq, *scores, *slopes;
  int32_t *keys;
  uint64_t *marks;  // for each_block: SPARSE words for each number of a list
  long line;       // of scores
  static size_t numbers(const rg_call &c) {
    return TOGETHER * (2 * (size_t)up(c.head_dim, LANES) + 2 * (size_t)up(c.v_dim, LANES) + 2 * line_of(c)) + line_of(c) + marks_of(c) + 9 * 32;
  }
  static size_t line_of(const rg_call &c) { return (std::min((size_t)c.lists->count * c.lists->keys, (size_t)c.keys) + W - 1) / W * W; }
  static size_t marks_of(const rg_call &c) { return (size_t)c.lists->count * SPARSE * sizeof(uint64_t) / sizeof(real); }
  ListedRoom(Workspace &w, const Listing &a) : line((long)line_of(a.c)) {
    q = w.take((size_t)TOGETHER * a.k_width), dq = w.take((size_t)TOGETHER * a.k_width);
    out = w.take((size_t)TOGETHER * a.v_width), grad = w.take((size_t)TOGETHER * a.v_width);
    scores = w.take((size_t)TOGETHER * line), slopes = w.take((size_t)TOGETHER * line);
    keys = (int32_t *)w.take((size_t)line), marks = (uint64_t *)w.take(marks_of(a.c));
  }
  void read(const Listing &a, int row) {
    for (int i = 0; i < a.heads; i++)
      read_row(REAL, at(a.c.q, a.batch, a.head + i, row), a.c.head_dim, score_factor(a.c).carried, q + i * a.k_width, a.k_width);
  }
};

static void forward_row(const Listing &a, ListedRoom &room, int row) {
  const rg_call &c = a.c;
  const int count = a.keys_of(row, room.marks, room.keys), whole_registers = up(count, W);
  room.read(a, row);
  std::memset(room.out, 0, sizeof(real) * a.heads * a.v_width);
  real total[TOGETHER], highest[TOGETHER];
  with_heads(a.heads, [&](auto m) {
    dots<m()>(room.q, a.k_width, numbers_at<real>(c.k, a.batch, a.kv(), 0), c.k.row, c.head_dim, room.keys, count, room.scores, room.line,
              score_factor(c).rest);
    for (int i = 0; i < a.heads; i++) {
      real *s = room.scores + i * room.line;
      for (int k = count; k < whole_registers; k++) s[k] = -INF;
      vf most = all(-INF);
      for (int k = 0; k < whole_registers; k += W) most = larger(most, load(s + k));
      highest[i] = largest(most), total[i] = 0;
      Lanes sums{};
      for (int k = 0; k < whole_registers; k += W) {
        const vf weight = exp2(load(s + k) - all(highest[i] == -INF ? 0 : highest[i]));
        sums.part[k / W % REGISTERS] += weight;
        store(s + k, weight);
      }
      if (count) total[i] = sum(sums);
    }
    add_rows<m()>(room.out, a.v_width, numbers_at<real>(c.v, a.batch, a.kv(), 0), c.v.row, c.v_dim, room.keys, count, room.scores, room.line);
  });
  for (int i = 0; i < a.heads; i++) {
    if (total[i] == 0) std::memset(room.out + i * a.v_width, 0, sizeof(real) * a.v_width);
    write_sum(c, a.line(i, row), highest[i], total[i]);
    const real by = total[i] == 0 ? 0 : 1 / total[i];
    if (c.unsound && !finite(room.out + i * a.v_width, c.v_dim, by)) __atomic_store_n(c.unsound, 1, __ATOMIC_RELAXED);
    write_row(c.out.type, (char *)at(c.out, a.batch, a.head + i, row), c.v_dim, room.out + i * a.v_width, by);
  }
}

// dk and dv: sums of the keys of this key/value head, k_width and v_width numbers each
static void backward_row(const Listing &a, const rg_gradients &g, ListedRoom &room, int row, real *dk, real *dv) {
  const rg_call &c = a.c;
  const int count = a.keys_of(row, room.marks, room.keys), whole_registers = up(count, W);
  room.read(a, row);
  std::memset(room.dq, 0, sizeof(real) * a.heads * a.k_width);
  if (count) with_heads(a.heads, [&](auto m) {
    for (int i = 0; i < a.heads; i++)
      read_row(g.dout.type, at(g.dout, a.batch, a.head + i, row), c.v_dim, 1, room.grad + i * a.v_width, a.v_width);
    const real *k = numbers_at<real>(c.k, a.batch, a.kv(), 0), *v = numbers_at<real>(c.v, a.batch, a.kv(), 0);
    dots<m()>(room.q, a.k_width, k, c.k.row, c.head_dim, room.keys, count, room.scores, room.line, score_factor(c).rest);
    dots<m()>(room.grad, a.v_width, v, c.v.row, c.v_dim, room.keys, count, room.slopes, room.line, 1);
    for (int i = 0; i < a.heads; i++) {
      real *s = room.scores + i * room.line, *d = room.slopes + i * room.line;
      for (int j = count; j < whole_registers; j++) s[j] = -INF, d[j] = 0;
      const RowSum row_sum = read_sum(c, a.line(i, row));
      if (row_sum.empty()) {  // all its scores overflowed
        std::memset(s, 0, sizeof(real) * whole_registers), std::memset(d, 0, sizeof(real) * whole_registers);
        std::memset(room.q + i * a.k_width, 0, sizeof(real) * a.k_width);
        std::memset(room.grad + i * a.v_width, 0, sizeof(real) * a.v_width);
        continue;
      }
      read_row(c.out.type, at(c.out, a.batch, a.head + i, row), c.v_dim, 1, room.out, a.v_width);
      Lanes sums{};
      for (int e = 0; e < a.v_width; e += W)
        sums.part[e / W % REGISTERS] = madd(load(room.out + e), load(room.grad + i * a.v_width + e), sums.part[e / W % REGISTERS]);
      const real delta = sum(sums) - (g.dlog_sum_exp ? ((const real *)g.dlog_sum_exp)[a.line(i, row)] : 0);
      for (int j = 0; j < whole_registers; j += W) {
        const vf weight = exp2(load(s + j) - all(row_sum.highest)) * all(row_sum.share);
        store(s + j, weight), store(d + j, weight * (load(d + j) - all(delta)));
      }
    }
    add_rows<m()>(room.dq, a.k_width, k, c.k.row, c.head_dim, room.keys, count, room.slopes, room.line);
    add_to_rows<m()>(dk, a.k_width, c.head_dim, room.keys, count, room.q, room.slopes, room.line);
    add_to_rows<m()>(dv, a.v_width, c.v_dim, room.keys, count, room.grad, room.scores, room.line);
  });
  for (int i = 0; i < a.heads; i++)
    write_row(REAL, (char *)numbers_at<real>(g.dq, a.batch, a.head + i, row), c.head_dim, room.dq + i * a.k_width, (real)c.scale);
}

// ---- large blocks for many rows: tiles as in forward.h, in chunks of the listed panels alone, wherever their keys lie

constexpr int LEAST_TILED = 16;  // blocks with at least so many rows and keys are computed in tiles

constexpr int SHARING = 16;            // neighbouring blocks of rows, for which keys are packed once
constexpr long MOST_PACKED = 1 << 20;  // numbers; with more keys each block of rows packs them for itself

struct Slots {  // the panels of a chunk: the first key of each, how many it has, and its number among those of all blocks
  int key[PANELS], keys[PANELS], count = 0;
  long number[PANELS];
};

struct Packed {  // the panels of the blocks that a call holds, as far as they were needed
  long first, panels;  // block, and panels of a block
  size_t count;        // of panels; 0: each is packed where it is needed
  real *room = nullptr;
  uint8_t *is_packed = nullptr;  // for each panel
  Packed(const rg_call &c) : first(c.first_key / c.lists->keys), panels((c.lists->keys + NR - 1) / NR) {
    count = (size_t)(((long)c.first_key + c.keys - 1) / c.lists->keys + 1 - first) * panels;
    if ((long)count * NR * words(c.head_dim) > MOST_PACKED) count = 0;
  }
};

struct RowBounds {  // of the keys of the rows of a tile
  int64_t lo_least = INT64_MAX, hi_least = INT64_MAX, lo_most = 0, hi_most = 0;
  void add(int64_t lo, int64_t hi) {
    lo_most = std::max(lo_most, lo < hi ? lo : INT64_MAX);  // beside an empty row no panel is full
    if (lo < hi) lo_least = std::min(lo_least, lo), hi_least = std::min(hi_least, hi), hi_most = std::max(hi_most, hi);
  }
};

// Which rows may look at which keys of a chunk, as `Tiles::lay` finds it for a schedule.
static void lay_slots(const Work &w, const Listing &a, const RowBounds *bounds, const Slots &slots, Tiles &tiles) {
  for (int t = 0; t < w.stack.tiles(); t++) {
    const RowBounds &b = bounds[t];
    const int r0 = t * MR, end = r0 + w.stack.tile_rows(t);
    tiles.first[t] = PANELS, tiles.end[t] = 0, tiles.lane[t] = 0, tiles.lane_end[t] = 0;
    for (int p = 0; p < PANELS; p++) {
      uint32_t any = 0;
      if (p < slots.count && b.lo_most <= slots.key[p] && slots.key[p] + NR <= b.hi_least && slots.keys[p] == NR) {
        any = EVERY, tiles.state[t][p] = FULL;
      } else if (p < slots.count && b.lo_least < slots.key[p] + slots.keys[p] && slots.key[p] < b.hi_most) {
        for (int r = r0; r < end; r++) {
          const int64_t key = slots.key[p], lo = std::max(a.low(w.row_of(r)) - key, (int64_t)0);
          const int64_t hi = std::min(a.high(w.row_of(r)) - key, (int64_t)slots.keys[p]);
          any |= tiles.mask[r][p] = lo < hi ? (uint32_t)((UINT64_C(1) << hi) - (UINT64_C(1) << lo)) : 0;
        }
        tiles.state[t][p] = PART;
      }
      if (any == 0) {
        tiles.state[t][p] = EMPTY;
        continue;
      }
      if (tiles.first[t] == PANELS) tiles.first[t] = p, tiles.lane[t] = p * NR + __builtin_ctz(any);
      tiles.end[t] = p + 1, tiles.lane_end[t] = p * NR + 32 - __builtin_clz(any);
    }
  }
}

static void score_slots(const Work &w, const Slots &slots, const Tiles &tiles, const Packed &packed, ForwardRoom &room) {
  const Vectors keys = w.keys();
  const int d = words(w.c.head_dim);
  const bool query_panels = packs_queries(w.c, w.stack.rows);
  for (int p = 0; p < slots.count; p++) {
    const bool shared = packed.count && !query_panels;
    real *panel = shared ? packed.room + slots.number[p] * NR * d : room.panel;
    if (!shared || !packed.is_packed[slots.number[p]]) {
      long row;
      const real *k = keys.rows(slots.key[p], NR, room.raw, &row);
      if (query_panels) {
        score_keys(w, tiles, p, k, row, room);
        continue;
      }
      transpose(k, row, NR, d, panel);
      if (shared) packed.is_packed[slots.number[p]] = 1;
    }
    for (int t = 0; t < w.stack.tiles(); t++)
      if (tiles.state[t][p] != EMPTY)
        score_tile(w.stack.tile_rows(t), d, room.q + (long)t * MR * d, d, panel, tiles.begin(t, p), tiles.stop(t, p),
                   room.scores + (long)t * MR * LDS + p * NR, score_factor(w.c).rest);
  }
}

static void add_slots(const Work &w, const Slots &slots, const Tiles &tiles, ForwardRoom &room, Sums &sums) {
  const Vectors values = w.values();
  for (int p = 0, e; p < slots.count; p = e) {  // panels whose keys follow each other
    int n = slots.keys[p];
    for (e = p + 1; e < slots.count && slots.keys[e - 1] == NR && slots.key[e] == slots.key[e - 1] + NR; e++) n += slots.keys[e];
    long row = values.x.row;
    const real *v = (const real *)values.row(slots.key[p]);
    if (room.padded != values.dim || row > 2 * room.padded) {
      row = room.padded, v = room.values;
      for (int j = std::max(0, values.first_key - slots.key[p]); j < n; j++) values.read(slots.key[p] + j, room.values + j * row, room.padded);
    }
    for (int column = 0; column < room.padded; column += NR)
      for (int t = 0; t < w.stack.tiles(); t++) {
        const int from = std::max(tiles.lane[t], p * NR), to = std::min(tiles.lane_end[t], p * NR + n);
        if (from >= to) continue;
        const auto add = tile_of<ROWS, ONTO>(room.padded - column);
        add(w.stack.tile_rows(t), to - from, room.scores + (long)t * MR * LDS + from, LDS, v + (from - p * NR) * row + column, row,
            sums.row(t * MR) + column, sums.width);
      }
  }
}

// The rows [first, end) of the heads of a listing, which have one list.
static void forward_blocks(const Listing &a, int first, int end, const Packed &packed, Workspace &own) {
  static const rg_schedule none{};  // a Work has one, which nothing reads here
  const rg_call &c = a.c;
  const Work w{c, none, a.batch, a.head, {first, end, 0, 0}, {(end - first) * a.heads, end - first}};
  const int rows = w.stack.rows, width = up(c.v_dim, W) + SPARE;
  ForwardRoom room(own, c, rows);
  Sums sums(c, own.take(Sums::numbers(c, rows, width)), rows, width);
  uint64_t *bits = (uint64_t *)own.take(ListedRoom::marks_of(c));
  int64_t lo = INT64_MAX, hi = 0;
  RowBounds bounds[TILES];
  for (int r = 0; r < rows; r++) bounds[r / MR].add(a.low(w.row_of(r)), a.high(w.row_of(r)));
  for (int t = 0; t < w.stack.tiles(); t++) lo = std::min(lo, bounds[t].lo_least), hi = std::max(hi, bounds[t].hi_most);
  read_queries(w, room.q);
  if (packs_queries(c, rows)) pack_queries(w, room);
  sums.clear(rows);
  Slots slots;
  Tiles tiles;
  const auto compute = [&] {
    lay_slots(w, a, bounds, slots, tiles);
    score_slots(w, slots, tiles, packed, room);
    for (int t = 0; t < w.stack.tiles(); t++)
      if (tiles.first[t] < tiles.end[t]) weigh_tile(w, tiles, t, 0, room.scores + (long)t * MR * LDS, sums, t * MR);
    add_slots(w, slots, tiles, room, sums);
    slots.count = 0;
  };
  a.each_block(first, lo, hi, bits, [&](int64_t block) {
    const int64_t from = block * a.l.keys, to = std::min(from + a.l.keys, hi);
    for (long n = std::max<long>(0, lo - from) / NR; from + n * NR < to; n++) {
      if (slots.count == PANELS) compute();
      slots.number[slots.count] = (block - packed.first) * packed.panels + n, slots.key[slots.count] = (int)(from + n * NR);
      slots.keys[slots.count++] = (int)std::min<int64_t>(NR, to - from - n * NR);
    }
  });
  if (slots.count) compute();
  finish(w, sums, 0, rows);
}

constexpr int LISTED_ROWS = 64;  // of one task
constexpr int LISTED_PARTS = 8;  // of the rows in the backward pass, over all key/value heads

// Calls one(listing) for the query heads of a key/value head, those of one list together.
template <class One>
static void each_listing(const rg_call &c, int batch, int kv, int most, const One &one) {
  const int group = c.heads / c.kv_heads, alike = std::max(1, std::min(std::min(c.heads / c.lists->lists, group), most));
  for (int h = kv * group; h < (kv + 1) * group; h += alike)
    one(Listing{c, *c.lists, batch, h, std::min(alike, (kv + 1) * group - h), up(c.head_dim, LANES), up(c.v_dim, LANES)});
}

static int forward_tiled(const rg_call &c) {
  // The rows of a list are computed in `pieces` blocks of at most `each` rows.
  const int rows = c.lists->rows, pieces = (rows + RG_MOST_ROWS - 1) / RG_MOST_ROWS, each = (rows + pieces - 1) / pieces;
  const long blocks = ((c.q_len + (long)rows - 1) / rows) * pieces, tasks = (blocks + SHARING - 1) / SHARING;
  const int width = up(c.v_dim, W) + SPARE, most = RG_MOST_ROWS;
  const int failed = run_tasks(c.threads, tasks * c.batch * c.kv_heads, [&](long i) {
    const int kv = (int)(i / tasks % c.kv_heads), batch = (int)(i / tasks / c.kv_heads);
    const long task = tasks - 1 - i % tasks;  // the last rows of a causal call have most keys: they come first
    Packed packed(c);
    const size_t panels = packed.count * NR * words(c.head_dim), marks = (packed.count + sizeof(real) - 1) / sizeof(real);
    const size_t queries = (size_t)most * words(c.head_dim);  // as panels, which fewer rows may need
    const size_t numbers =
        ForwardRoom::numbers(c, most) + Sums::numbers(c, most, width) + ListedRoom::marks_of(c) + queries + panels + marks;
    Workspace &own = workspace();
    if (!own.reserve(sizeof(real) * numbers + 4096)) return false;
    packed.room = own.take(panels), packed.is_packed = (uint8_t *)own.take(marks);
    std::memset(packed.is_packed, 0, packed.count);
    const size_t used = own.used;
    for (long at = task * SHARING; at < std::min((task + 1) * SHARING, blocks); at++) {
      const long begin = at / pieces * rows, first = begin + at % pieces * each;
      const long end = std::min(std::min(first + each, begin + rows), (long)c.q_len);
      if (first < end)
        each_listing(c, batch, kv, RG_MOST_ROWS / each, [&](const Listing &a) {
          own.used = used;
          forward_blocks(a, (int)first, (int)end, packed, own);
        });
    }
    return true;
  });
  return failed ? RG_NO_MEMORY : RG_OK;
}

static int forward_listed(const rg_call &c) {
  if (std::min(c.lists->rows, c.lists->keys) >= LEAST_TILED) return forward_tiled(c);
  const long blocks = (c.q_len + LISTED_ROWS - 1) / LISTED_ROWS;
  const int failed = run_tasks(c.threads, blocks * c.batch * c.kv_heads, [&](long i) {
    const int first = (int)(i % blocks) * LISTED_ROWS, kv = (int)(i / blocks % c.kv_heads), batch = (int)(i / blocks / c.kv_heads);
    Workspace &own = workspace();
    if (!own.reserve(sizeof(real) * ListedRoom::numbers(c) + 1024)) return false;
    each_listing(c, batch, kv, TOGETHER, [&](const Listing &a) {
      own.used = 0;
      ListedRoom room(own, a);
      for (int row = first; row < std::min(first + LISTED_ROWS, c.q_len); row++) forward_row(a, room, row);
    });
    return true;
  });
  return failed ? RG_NO_MEMORY : RG_OK;
}

static int backward_listed(const rg_call &c, const rg_gradients &g) {
  const long pairs = (long)c.batch * c.kv_heads, k_width = up(c.head_dim, LANES), v_width = up(c.v_dim, LANES);
  const long parts = std::max(1L, std::min((LISTED_PARTS + pairs - 1) / pairs, (long)c.q_len / LISTED_ROWS));
  const size_t numbers = (size_t)c.keys * (k_width + v_width);
  const auto sums = (real **)std::calloc(pairs * parts, sizeof(real *));
  if (!sums) return RG_NO_MEMORY;
  int failed = run_tasks(c.threads, pairs * parts, [&](long i) {
    const long part = i % parts;
    const int kv = (int)(i / parts % c.kv_heads), batch = (int)(i / parts / c.kv_heads);
    real *dk = sums[i] = (real *)std::calloc(numbers, sizeof(real)), *dv = dk + c.keys * k_width;
    Workspace &own = workspace();
    if (!dk || !own.reserve(sizeof(real) * ListedRoom::numbers(c) + 1024)) return false;
    each_listing(c, batch, kv, TOGETHER, [&](const Listing &a) {
      own.used = 0;
      ListedRoom room(own, a);
      for (long row = c.q_len * part / parts; row < c.q_len * (part + 1) / parts; row++) backward_row(a, g, room, (int)row, dk, dv);
    });
    return true;
  });
  if (!failed) run_tasks(c.threads, pairs, [&](long i) {
    real *sum = sums[i * parts];
    for (long part = 1; part < parts; part++)
      for (size_t n = 0; n < numbers; n += W) store(sum + n, load(sum + n) + load(sums[i * parts + part] + n));
    for (int key = 0; key < c.keys; key++) {
      const int kv = (int)(i % c.kv_heads), batch = (int)(i / c.kv_heads);
      write_row(REAL, (char *)numbers_at<real>(g.dk, batch, kv, key), c.head_dim, sum + key * k_width, LN2 * score_factor(c).rest);  // queries carry the other part
      write_row(REAL, (char *)numbers_at<real>(g.dv, batch, kv, key), c.v_dim, sum + c.keys * k_width + key * v_width, 1);
    }
    return true;
  });
  for (long i = 0; i < pairs * parts; i++) std::free(sums[i]);
  std::free(sums);
  return failed ? RG_NO_MEMORY : RG_OK;
}
}  // namespace
}  // namespace RG_SPACE
