// The statistics `weights` (all weights of some rows) and `received` (the sum of the weights of each key over the rows). Both
// need the log-sum-exp of every row, so the scores are computed once more, without values.
//
// The rows of a head are divided into parts that depend on the problem alone, each with sums of its own, which are added
// in order: so the sums do not depend on the number of threads, nor on the other batch rows and heads.
#pragma once
#include "tasks.h"

namespace RG_SPACE {
namespace {
constexpr int SHARED_ROWS = 1024;  // of a part, at least
constexpr int SHARES = 8;          // parts of the rows of a head, at most

struct Share {
  int batch, head, heads, from, to;  // blocks [from, to) of the schedule
  real *received;                    // [heads][keys]
  bool owns;                         // memory of its own, which is added to the result in the end
};

static bool list_shares(const rg_call &c, List<Share> &list) {
  return each_stack(c, [&](int batch, int head, int heads, int blocks) {
    const int parts = std::max(1, std::min({SHARES, blocks, c.q_len / SHARED_ROWS}));
    const auto end = [&](int part) { return (int)((long)blocks * part / parts); };
    for (int i = 0; i < parts; i++)
      if (!list.add({batch, head, heads, end(i), end(i + 1), nullptr, i > 0})) return false;
    return true;
  });
}

struct WeightRoom {
  real *q, *scores, *panel, *raw, *sums;
  RowSum *row_sum;
  static size_t numbers(const rg_call &c, int rows, int heads) {
    return (size_t)rows * (words(c.head_dim) + LDS + 2) + (size_t)NR * (2 * words(c.head_dim) + heads) + 6 * 32;
  }
  WeightRoom(Workspace &w, const rg_call &c, int rows, int heads)
      : q(w.take((size_t)rows * words(c.head_dim))), scores(w.take((size_t)rows * LDS)), panel(w.take((size_t)NR * words(c.head_dim))),
        raw(w.take((size_t)NR * words(c.head_dim))), sums(w.take((size_t)NR * heads)), row_sum((RowSum *)w.take((size_t)2 * rows)) {}
};

// The place of a row in the weights that are wanted, or NULL.
static real *weights_of(const Work &w, int r) {
  const rg_statistics &s = *w.c.statistics;
  if (!s.weights) return nullptr;
  const int head = s.head_slot[w.head_of(r)], row = s.row_slot[w.row_of(r)];
  if (head < 0 || row < 0) return nullptr;
  return (real *)s.weights + (((long)w.batch * s.weight_heads + head) * s.weight_rows + row) * w.c.keys;
}

// The weights of a tile of rows and one panel, from their scores: added to `sums` of their head, and copied where wanted.
static void weigh_panel(const Work &w, const Tiles &tiles, const Panel &panel, int t, int p, WeightRoom &room) {
  const rg_call &c = w.c;
  const long begin = std::max<long>(0, c.first_key - panel.key), end = std::min<long>(NR, (long)c.first_key + c.keys - panel.key);
  for (int r = t * MR; r < t * MR + w.stack.tile_rows(t); r++) {
    real *row = room.scores + (long)r * LDS, *s = row + p * NR;
    if (c.softcap > 0) cap_row(c, s, 0, NR);
    if (c.bias.data) Bias(c, w.batch, w.head_of(r), w.row_of(r)).add(panel.key, s, NR);
    if (tiles.state[t][p] == PART) mask_row(tiles, t, r, p, p + 1, row);
    real *sum = room.sums + (long)(r / w.stack.block_rows) * NR;
    for (int v = 0; v < NV; v++) {
      const vf x = exp2(load(s + v * W) - all(room.row_sum[r].highest)) * all(room.row_sum[r].share);
      store(sum + v * W, load(sum + v * W) + x);
      store(s + v * W, x);
    }
    if (real *into = weights_of(w, r))
      for (long j = begin; j < end; j++) into[panel.key - c.first_key + j] = s[j];
  }
}

static void receive_chunk(const Work &w, const Tiles &tiles, const Panel *panels, WeightRoom &room, const Share &share,
                          const bool *needed) {
  const rg_call &c = w.c;
  const Vectors keys = w.keys();
  const int d = words(c.head_dim);
  for (int p = 0; p < PANELS; p++) {
    bool packed = false;
    for (int t = 0; t < w.stack.tiles(); t++) {
      if (!needed[t] || tiles.state[t][p] == EMPTY) continue;
      if (!packed) {
        long row;
        const real *k = keys.rows(panels[p].key, NR, room.raw, &row);
        transpose(k, row, NR, d, room.panel), packed = true;
        std::memset(room.sums, 0, (size_t)NR * share.heads * sizeof(real));
      }
      const long r = (long)t * MR;
      score_tile(w.stack.tile_rows(t), d, room.q + r * d, d, room.panel, 0, NR, room.scores + r * LDS + p * NR, score_factor(c).rest);
      weigh_panel(w, tiles, panels[p], t, p, room);
    }
    if (!packed || !share.received) continue;
    const long first = panels[p].key - c.first_key, begin = std::max(0L, -first), end = std::min<long>(NR, c.keys - first);
    for (int h = 0; h < share.heads; h++)
      for (long j = begin; j < end; j++) share.received[(long)h * c.keys + first + j] += room.sums[h * NR + j];
  }
}

// Which tiles of rows are needed: all where sums are wanted, else those with a row whose weights are.
static bool needed_tiles(const Work &w, const Share &share, bool *needed) {
  bool any = false;
  for (int t = 0; t < w.stack.tiles(); t++) {
    needed[t] = share.received;
    for (int r = t * MR; !needed[t] && r < t * MR + w.stack.tile_rows(t); r++) needed[t] = weights_of(w, r);
    any |= needed[t];
  }
  return any;
}

static bool receive_block(const Work &w, const Share &share) {
  bool needed[TILES];
  if (w.block.run == w.block.run_end || !needed_tiles(w, share, needed)) return true;
  const int rows = w.stack.rows;
  Workspace &memory = workspace();
  if (!memory.reserve(sizeof(real) * WeightRoom::numbers(w.c, rows, share.heads) + 1024)) return false;
  WeightRoom room(memory, w.c, rows, share.heads);
  read_queries(w, room.q);
  for (int r = 0; r < rows; r++) room.row_sum[r] = read_sum(w.c, w.line_of(r));
  Panel panels[PANELS];
  Tiles tiles;
  int chunk_key;
  Walk walk(w.s, w.block, first_key(w));
  while (walk.next(panels, INT64_MAX / 2, &chunk_key)) {
    tiles.lay(w.s, w.stack, panels);
    receive_chunk(w, tiles, panels, room, share, needed);
  }
  return true;
}

static bool compute_share(const rg_call &c, Share &share) {
  if (c.statistics->received) {
    share.received = share.owns ? (real *)std::calloc((size_t)share.heads * c.keys, sizeof(real))
                                : (real *)c.statistics->received + ((long)share.batch * c.heads + share.head) * c.keys;
    if (!share.received) return false;
  }
  for (int b = share.from; b < share.to; b++)
    if (!receive_block(Stacked{share.batch, share.head, share.heads, b}.work(c), share)) return false;
  return true;
}

static int receive_all(const rg_call &c) {
  if (!c.statistics || !(c.statistics->received || c.statistics->weights)) return RG_OK;
  List<Share> shares;
  if (!list_shares(c, shares)) return RG_NO_MEMORY;
  const int failed = run_tasks(c.threads, shares.count, [&](long i) { return compute_share(c, shares.items[i]); });
  for (long i = 0; i < shares.count; i++) {
    const Share &one = shares.items[i];
    if (!one.owns || !one.received) continue;
    real *into = (real *)c.statistics->received + ((long)one.batch * c.heads + one.head) * c.keys;
    for (long n = 0; n < (long)one.heads * c.keys; n++) into[n] += one.received[n];
    std::free(one.received);
  }
  return failed ? RG_NO_MEMORY : RG_OK;
}
}  // namespace
}  // namespace RG_SPACE
