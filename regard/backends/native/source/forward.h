// The forward pass: a running softmax over the chunks of a row block, each row with its own highest score.
//
// A span of RG_SPAN keys is summed apart and then merged, whether one thread computes all spans or several share them.
#pragma once
#include "few.h"
#include "options.h"
#include "panels.h"
#include "watching.h"

namespace RG_SPACE {
namespace {
struct Work {  // one stack of rows of one call
  const rg_call &c;
  const rg_schedule &s;
  int batch, head;  // head: of the first row
  Block block;
  Stack stack;

  int group() const { return c.heads / c.kv_heads; }
  int head_of(int r) const { return head + stack.head(r); }
  int row_of(int r) const { return block.first + stack.row(r); }
  long line_of(int r) const { return ((long)batch * c.heads + head_of(r)) * c.q_len + row_of(r); }
  Vectors keys() const { return {c.k, c.k_scale, batch, head / group(), c.first_key, c.keys, c.head_dim}; }
  Vectors values() const { return {c.v, c.v_scale, batch, head / group(), c.first_key, c.keys, c.v_dim}; }

  // Whether the values are the first numbers of the keys, as in latent attention, so that both are packed at once.
  bool shared() const {
    const auto same = [this](const rg_tensor &a, const rg_tensor &b) {
      return a.data == b.data && a.type == b.type && (c.batch == 1 || a.batch == b.batch) &&
             (c.kv_heads == 1 || a.head == b.head) && (c.keys == 1 || a.row == b.row);
    };
    return c.v_dim <= c.head_dim && same(c.k, c.v) && (c.k.type != RG_INT8 || same(c.k_scale, c.v_scale));
  }
};

constexpr int SPARE = 16;  // numbers behind a row of outputs, so that rows share no cache set where v_dim is a power of 2

// Of each row over some keys, with weights w = 2^(score - highest): the sums of w and of w times the values.
struct Sums {
  real *output, *total, *highest;
  int width;  // row length of output: v_dim as whole registers, and SPARE
  Watch watch;

  static size_t numbers(const rg_call &c, int rows, int width) {
    return (size_t)rows * (width + 2) + Watch::numbers(c, rows);
  }
  Sums(const rg_call &c, real *memory, int rows, int width)
      : output(memory), total(memory + (size_t)rows * width), highest(total + rows), width(width),
        watch(c, highest + rows, rows) {}
  real *row(int r) const { return output + (long)r * width; }
  void clear(int rows) {
    std::memset(output, 0, (size_t)rows * width * sizeof(real));
    begin(rows);
  }
  void begin(int rows) {  // the same where outputs are written first and added to later
    for (int r = 0; r < rows; r++) total[r] = 0, highest[r] = -INF;
    watch.clear(rows);
  }
  void scale(int r, real by) const {
    for (int i = 0; i < width - SPARE; i += W) store(row(r) + i, load(row(r) + i) * all(by));
  }

  // Add the sums over later keys.
  void merge(const Sums &later, int rows) {
    for (int r = 0; r < rows; r++) {
      if (later.total[r] == 0) continue;
      if (watch) watch.merge(r, later.watch, highest[r], total[r], later.highest[r], later.total[r]);
      if (total[r] == 0) {
        std::memcpy(row(r), later.row(r), width * sizeof(real));
        total[r] = later.total[r], highest[r] = later.highest[r];
        continue;
      }
      const real most = std::max(highest[r], later.highest[r]);
      const real a = exp2(highest[r] - most), b = exp2(later.highest[r] - most);
      for (int i = 0; i < width; i += W)
        store(row(r) + i, load(row(r) + i) * all(a) + load(later.row(r) + i) * all(b));
      total[r] = total[r] * a + later.total[r] * b, highest[r] = most;
    }
  }
};

// Writes the log-sum-exp of a row with weights 2^(score - highest), and the two numbers that it is made of: where all scores of
// a row are large, the log-sum-exp is rounded too coarsely to compute its weights again.
static void write_sum(const rg_call &c, long line, real highest, real total) {
  if (c.log_sum_exp) ((real *)c.log_sum_exp)[line] = total == 0 ? -INF : natural(highest, total);
  if (!c.row_sums) return;
  real *row_sums = (real *)c.row_sums;
  row_sums[line] = highest, row_sums[(long)c.batch * c.heads * c.q_len + line] = total;
}

struct RowSum {  // weights are 2^(score - highest) * share
  real highest, share;
  bool empty() const { return share == 0; }
};

static RowSum read_sum(const rg_call &c, long line) {
  const real sum = ((const real *)c.log_sum_exp)[line];
  if (sum == -INF) return {INF, 0};  // 2^(score - INF) is 0 for every finite score
  if (!c.row_sums) return {drawn_in(all(sum))[0] * LOG2E, 1};
  const real *row_sums = (const real *)c.row_sums;
  return {row_sums[line], 1 / row_sums[(long)c.batch * c.heads * c.q_len + line]};
}

// Whether queries are packed as panels and keys are read as they lie: where rows are fewer than keys and than the numbers of
// a key, and fill their registers, that is less work than to pack the keys.
static bool packs_queries(const rg_call &c, int rows) {
  return FEW < rows && 2 * rows <= c.head_dim && 4L * rows <= c.keys && up(rows, W) - rows <= W / 3;
}

struct ForwardRoom {  // what one thread needs for a stack
  real *q, *scores;
  real *panel;   // of keys, or of all queries where packs_queries
  real *turned;  // scores of packed queries: a row for each key
  real *raw;     // keys of a panel as words
  real *values;  // of a chunk as words
  int padded;    // v_dim, as whole registers
  static size_t panels(const rg_call &c, int rows) { return (size_t)(packs_queries(c, rows) ? up(rows, NR) : NR) * words(c.head_dim); }
  static size_t numbers(const rg_call &c, int rows) {
    return (size_t)rows * (words(c.head_dim) + LDS) + panels(c, rows) + (size_t)NR * (LDS + words(c.head_dim)) +
           (size_t)CHUNK * (up(std::max(c.v_dim, c.head_dim), W) + GAP) + 6 * 32;
  }
  ForwardRoom(Workspace &w, const rg_call &c, int rows)
      : q(w.take((size_t)rows * words(c.head_dim))), scores(w.take((size_t)rows * LDS)), panel(w.take(panels(c, rows))),
        turned(w.take((size_t)NR * LDS)), raw(w.take((size_t)NR * words(c.head_dim))),
        values(w.take((size_t)CHUNK * (up(std::max(c.v_dim, c.head_dim), W) + GAP))), padded(up(c.v_dim, W)) {}
};

// The factor of products of queries and keys. Scores are powers of 2 then; before a softcap they are natural, and cap_row makes
// them powers of 2. Queries that are not bfloat16 carry a part of it, and each product is multiplied by the rest. They carry all of
// a factor up to 1, so that the rest is 1. Of a larger one they carry less than 1, so that a finite query stays finite: one that is
// infinite would make sums of products NaN, or give them the wrong sign. The rest is a power of 2 then, which rounds nothing.
struct ScoreFactor {
  real carried, rest;
};
static ScoreFactor score_factor(const rg_call &c) {
  const real factor = c.softcap > 0 ? (real)c.scale : (real)c.scale * LOG2E;
  if (HALF) return {1, factor};
  if (std::fabs(factor) <= 1) return {factor, 1};
  int exponent;
  const real carried = std::frexp(factor, &exponent);
  return {carried, std::ldexp((real)1, exponent)};
}

// The words of a query, which carries its part of the factor of scores if it is not bfloat16; zeros up to `padded` words.
static void read_query(const Work &w, int head, int row, real *out, int padded) {
  const char *from = at(w.c.q, w.batch, head, row);
#if defined(RG_BF16)
  read_words(from, w.c.head_dim, out, padded);
#else
  read_row(w.c.q.type, from, w.c.head_dim, score_factor(w.c).carried, out, padded);
#endif
}

static void read_queries(const Work &w, real *q) {
  const int d = words(w.c.head_dim);
  for (int r = 0; r < w.stack.rows; r++) {
    const char *out = at(w.c.out, w.batch, w.head_of(r), w.row_of(r));  // it is written when the row is done
    for (int byte = 0; byte < w.c.v_dim * WIDTH_OF[w.c.out.type]; byte += 64) __builtin_prefetch(out + byte, 1, 2);
    read_query(w, w.head_of(r), w.row_of(r), q + (long)r * d, d);
  }
}

// Queries as panels of NR rows each, which follow each other.
static void pack_queries(const Work &w, ForwardRoom &room) {
  const int d = words(w.c.head_dim);
  for (int r = 0; r < w.stack.rows; r += NR)
    transpose(room.q + (long)r * d, d, std::min(NR, w.stack.rows - r), d, room.panel + (long)r * d);
}

// Scores of a panel of keys, which are `row` apart, with packed queries: rows and keys change places in the tiles, and each
// score is the same sum.
static void score_keys(const Work &w, const Tiles &tiles, int p, const real *k, long row, ForwardRoom &room) {
  const int d = words(w.c.head_dim);
  for (int r = 0; r < w.stack.rows; r += NR) {
    const int rows = std::min(NR, w.stack.rows - r);
    bool meets = false;
    for (int t = r / MR; t * MR < r + rows; t++) meets |= tiles.state[t][p] != EMPTY;
    if (!meets) continue;
    for (int j = 0; j < NR; j += MR)
      score_tile<true>(std::min(MR, NR - j), d, k + j * row, row, room.panel + (long)r * d, 0, up(rows, W), room.turned + j * LDS,
                       score_factor(w.c).rest);
    transpose(room.turned, LDS, NR, rows, room.scores + (long)r * LDS + p * NR, LDS);
  }
}

// Whether the keys of a chunk, whose first numbers are its values, are copied as reals to `values`, where both are read.
static bool packs_chunk(const Work &w) {
  return !HALF && w.c.k.type != REAL && w.shared() && !few(w.stack.rows, w.keys()) && !few(w.stack.rows, w.values());
}

static void score_chunk(const Work &w, const Tiles &tiles, const Panel *panels, ForwardRoom &room) {
  const Vectors keys = w.keys();
  const int d = words(w.c.head_dim);
  const real factor = score_factor(w.c).rest;
  const bool in_registers = few(w.stack.rows, keys), whole = packs_chunk(w);
  for (int p = 0; p < PANELS; p++) {
    bool packed = false;
    const int key = panels[p].key;
    if (in_registers) {
      if (tiles.state[0][p] != EMPTY)
        score_few(w.stack.rows, keys, key, tiles.begin(0, p), tiles.stop(0, p), room.q, room.scores + p * NR, factor);
      continue;
    }
    bool some = false, between = false;
    for (int t = 0; t < w.stack.tiles(); t++) {
      some |= tiles.state[t][p] != EMPTY;
      between |= tiles.first[t] <= p && p < tiles.end[t];
    }
    if (!some && !(whole && between)) continue;
    long row;
    const bool query_panels = packs_queries(w.c, w.stack.rows);
    const int count = query_panels || whole ? NR : keys.count(key, NR);
    const real *k = keys.rows(key, count, whole ? room.values + (long)p * NR * d : room.raw, &row);
    if (query_panels) {
      if (some) score_keys(w, tiles, p, k, row, room);
      continue;
    }
    for (int t = 0; t < w.stack.tiles(); t++) {
      if (tiles.state[t][p] == EMPTY) continue;
      if (!packed) transpose(k, row, count, d, room.panel), packed = true;
      score_tile(w.stack.tile_rows(t), d, room.q + (long)t * MR * d, d, room.panel, tiles.begin(t, p), tiles.stop(t, p),
                 room.scores + (long)t * MR * LDS + p * NR, factor);
    }
  }
}

// How the scores of one row and chunk become weights.
struct Weighing {
  real highest;            // subtracted from scores
  const Dropout &dropout;
  uint64_t row;            // state of the hash of the row
  long key;                // of the chunk's first lane
  real corner;             // its distance from the query
  real entropy, distance;  // sums, as in Watch
};

// Scores become weights 2^(score - highest), and then those that dropout drops become 0; returns their sum before dropout, as
// lanes. The weights of bfloat16 calls become the words of their pairs, whose place is words(lane).
template <bool DROPS, bool WATCHES>
static inline vf weigh(real *s, int begin, int end, Weighing &x) {
  const vf less = all(x.highest == -INF ? 0 : x.highest);
  Lanes total{}, entropy{}, distance{};
  const auto step = [&](int at, int lane) __attribute__((always_inline)) {
    const vf score = WATCHES ? larger(all(-EXPONENT), load(s + at) - less) : load(s + at) - less;
    vf w = exp2(score);
    total.part[lane] += w;
    if constexpr (WATCHES) {
      const vf far = lane_numbers() + all(x.corner + (real)at);
      entropy.part[lane] = madd(w, score, entropy.part[lane]);
      distance.part[lane] = madd(w, larger(far, -far), distance.part[lane]);
    }
    if constexpr (DROPS) w = x.dropout.kept(w, x.row, x.key + at);
    if constexpr (!HALF) store(s + at, w);
    return w;
  };
  for (int j = begin / LANES * LANES; j < end; j += LANES) {
    [[maybe_unused]] vf w[REGISTERS]{};
    if (begin <= j && j + LANES <= end) {
#pragma GCC unroll 8
      for (int i = 0; i < REGISTERS; i++) w[i] = step(j + i * W, i);
    } else {
#pragma GCC unroll 8
      for (int i = 0; i < REGISTERS; i++)
        if (begin <= j + i * W && j + i * W < end) w[i] = step(j + i * W, i);
    }
#if defined(RG_BF16)
    store_pairs<REGISTERS>(s + words(j), w);  // these places hold no score that is still read
#endif
  }
  if constexpr (WATCHES) x.entropy = sum(entropy), x.distance = sum(distance);
  return folded(total);
}

static inline vf weigh_row(const Work &w, int r, const Dropout &dropout, int chunk_key, real *s, int begin, int end, Sums &sums, int at) {
  const rg_call &c = w.c;
  const bool drops = c.dropout > 0;
  Weighing x{sums.highest[at], dropout, drops ? Dropout::row_state(c, w.batch, w.head_of(r), w.row_of(r)) : 0, chunk_key, 0, 0, 0};
  if (!sums.watch.adds) return drops ? weigh<true, false>(s, begin, end, x) : weigh<false, false>(s, begin, end, x);
  if (c.statistics->distance) x.corner = (real)(chunk_key - (c.start[w.batch] + w.row_of(r)));
  const vf total = drops ? weigh<true, true>(s, begin, end, x) : weigh<false, true>(s, begin, end, x);
  sums.watch.entropy[at] += x.entropy, sums.watch.distance[at] += x.distance;
  return total;
}

// The scores [begin, end) of a row as the softmax takes them: capped, with the bias, and -inf where they are masked. Returns the
// highest in each lane.
static inline vf cap_bias_and_mask(const Work &w, int r, int chunk_key, const Tiles &tiles, int t, bool masked, real *s,
                                 int begin, int end) {
  const rg_call &c = w.c;
  vf most = all(-INF);
  if (c.softcap > 0) cap_row(c, s, begin, end);
  const real *bias = nullptr;
  if (c.bias.data) {
    const Bias own(c, w.batch, w.head_of(r), w.row_of(r));
    bias = masked ? nullptr : own.dense(chunk_key + begin, end - begin);
    if (!bias) own.add(chunk_key + begin, s + begin, end - begin);
  }
  if (masked) {  // in one loop: reading a register of scores back is slow while a part of it is being written
    for (int j = begin; j < end; j += W) {
      const int p = j / NR;
      vf x = load(s + j);
      if (tiles.state[t][p] != FULL) {
        x = shown(x, tiles.state[t][p] == EMPTY ? 0 : tiles.mask[r][p] >> j % NR);
        store(s + j, x);
      }
      most = larger(most, x);
    }
    return most;
  }
  for (int j = begin; j < end; j += W) {
    vf x = load(s + j);
    if (bias) {
      x = Bias::sum(x, load(bias + j - begin));
      store(s + j, x);
    }
    most = larger(most, x);
  }
  return most;
}

// The highest scores of m rows rise to those of a chunk; what was summed before is multiplied by 2^(before - now).
static void raise(Sums &sums, int r0, int m, const real *top) {
  real before[up(MR, W)] = {}, now[up(MR, W)] = {}, by[up(MR, W)];
  bool rises = false;
  for (int i = 0; i < m; i++) {
    before[i] = sums.highest[r0 + i], now[i] = top[i] <= before[i] ? before[i] : top[i];
    rises |= before[i] != now[i] && before[i] != -INF;
    sums.highest[r0 + i] = now[i];
  }
  if (!rises) return;  // where a row had no weights before, all its sums are 0
  for (int i = 0; i < m; i += W) {
    const vf x = load(before + i), y = load(now + i);
    store(by + i, exp2(x == y ? vf{} : x - y));
  }
  for (int i = 0; i < m; i++) {
    const int r = r0 + i;
    if (sums.watch && before[i] != now[i]) sums.watch.raise(r, sums.total[r], before[i], now[i], by[i]);
    sums.total[r] *= by[i];
    sums.scale(r, by[i]);
  }
}

// The scores of a tile become weights; `at` is the place of its first row in `sums`.
static void weigh_tile(const Work &w, const Tiles &tiles, int t, int chunk_key, real *scores, Sums &sums, int at) {
  const int p0 = tiles.first[t], p1 = tiles.end[t], begin = tiles.begin(t), end = tiles.stop(t);
  const Dropout dropout(w.c);
  bool masked = false;
  for (int p = p0; p < p1; p++) masked |= tiles.state[t][p] != FULL;
  const int r0 = t * MR, m = w.stack.tile_rows(t);
  constexpr int ROOM = up(MR, W);
  vf lanes[ROOM];
  for (int i = m; i < ROOM; i++) lanes[i] = vf{};
  real of_rows[ROOM];  // the highest scores, later the sums of the weights
  for (int i = 0; i < m; i++)
    lanes[i] = cap_bias_and_mask(w, r0 + i, chunk_key, tiles, t, masked, scores + (long)i * LDS, begin, end);
  for (int i = 0; i < m; i += W) store(of_rows + i, joined(lanes + i, [](vf a, vf b) { return larger(a, b); }));
  raise(sums, at, m, of_rows);
  for (int i = 0; i < m; i++) {
    real *s = scores + (long)i * LDS;
    if (sums.watch.most && !(of_rows[i] <= sums.watch.least(at + i))) sums.watch.insert(at + i, s, begin, end, chunk_key);
    lanes[i] = weigh_row(w, r0 + i, dropout, chunk_key, s, begin, end, sums, at + i);
  }
  for (int i = 0; i < m; i += W) store(of_rows + i, joined(lanes + i, [](vf a, vf b) { return a + b; }));
  for (int i = 0; i < m; i++) sums.total[at + i] += of_rows[i];
}

// The words of the values of a chunk, line by line: in place where whole tiles can be read and are read few times, else copied.
static const real *chunk_values(const Work &w, const Vectors &values, int chunk_key, int begin, int end, real *room, int padded, long *row) {
#if defined(RG_BF16)
  *row = padded + GAP;
  for (int j = begin; j < end; j += 2)
    pair_lines(values.halves_of(j), values.halves_of(j + 1), values.dim, room + words(j - begin) * *row, padded);
  return room;
#endif
  if (packs_chunk(w)) return *row = w.c.head_dim, room + (long)(begin - chunk_key) * w.c.head_dim;
  const bool dense = values.x.row <= 2 * padded || w.stack.rows <= 2 * MR;
  if (values.x.type == REAL && padded == values.dim && dense)
    return *row = values.x.row, (const real *)values.row(begin);
  *row = padded;
  for (int j = begin; j < end; j++) values.read(j, room + (long)(j - begin) * padded, padded);
  return room;
}

static void add_values(const Work &w, const Tiles &tiles, int chunk_key, ForwardRoom &room, Sums &sums) {
  int begin = CHUNK, end = 0;
  for (int t = 0; t < w.stack.tiles(); t++)
    if (tiles.first[t] < tiles.end[t]) begin = std::min(begin, tiles.lane[t]), end = std::max(end, tiles.lane_end[t]);
  if (begin >= end) return;
  const Vectors values = w.values();
  begin = pair_begin(begin) + chunk_key, end = pair_end(end) + chunk_key;
  if (few(w.stack.rows, values))
    return add_few(w.stack.rows, values, begin, end, room.scores + words(begin - chunk_key), sums.output, sums.width);
  long row;
  const real *v = chunk_values(w, values, chunk_key, begin, end, room.values, room.padded, &row);
  for (int n = 0; n < room.padded; n += NR)
    for (int t = 0; t < w.stack.tiles(); t++) {
      if (tiles.first[t] >= tiles.end[t]) continue;
      const int from = chunk_key + pair_begin(tiles.lane[t]), to = chunk_key + pair_end(tiles.lane_end[t]);
      const auto add = tile_of<ROWS, ONTO>(room.padded - n);
      add(w.stack.tile_rows(t), words(to - from), room.scores + (long)t * MR * LDS + words(from - chunk_key), LDS,
          v + words(from - begin) * row + n, row, sums.row(t * MR) + n, sums.width);
    }
}

// The sums over the keys of the walk that lie before `until`.
static void sum_keys(const Work &w, Walk &walk, long until, ForwardRoom &room, Sums &sums) {
  Panel panels[PANELS];
  Tiles tiles;
  int chunk_key;
  sums.clear(w.stack.rows);
  while (walk.next(panels, until, &chunk_key)) {
    tiles.lay(w.s, w.stack, panels);
    score_chunk(w, tiles, panels, room);
    for (int t = 0; t < w.stack.tiles(); t++)
      if (tiles.first[t] < tiles.end[t]) weigh_tile(w, tiles, t, chunk_key, room.scores + (long)t * MR * LDS, sums, t * MR);
    add_values(w, tiles, chunk_key, room, sums);
  }
}

// Write row r of the stack, x times `by`. A lane of `zeros` becomes NaN if one of its numbers is not finite.
static inline void finish_row(const Work &w, int r, const real *x, real by, vf &zeros) {
  const rg_call &c = w.c;
  char *row = (char *)at(c.out, w.batch, w.head_of(r), w.row_of(r));
  if (c.out.type != REAL) {
    if (c.unsound && !finite(x, c.v_dim, by)) zeros = all(INF) - all(INF);
    return write_row(c.out.type, row, c.v_dim, x, by);
  }
  int i = 0;
  for (; i + W <= c.v_dim; i += W) {
    const vf y = load(x + i) * all(by);
    store((real *)row + i, y);
    zeros += y - y;
  }
  if (i < c.v_dim) {
    const vf y = load_some(x + i, c.v_dim - i) * all(by);
    store_some((real *)row + i, y, c.v_dim - i);
    zeros += y - y;
  }
}

// Finish the rows from .. from + rows - 1 of the stack; row from + i has the sums number i.
static void finish(const Work &w, Sums &sums, int from, int rows) {
  const real factor = w.c.dropout > 0 ? Dropout(w.c).factor : 1;
  vf zeros{};
  for (int i = 0; i < rows; i++) {
    const int r = from + i;
    const real total = sums.total[i];
    if (total == 0) std::memset(sums.row(i), 0, sums.width * sizeof(real));
    write_sum(w.c, w.line_of(r), sums.highest[i], total);
    if (sums.watch) sums.watch.finish(w.c, i, w.line_of(r), total, sums.highest[i]);
    finish_row(w, r, sums.row(i), total == 0 ? 0 : factor / total, zeros);
  }
  if (w.c.unsound && not_below(zeros, 0)) __atomic_store_n(w.c.unsound, 1, __ATOMIC_RELAXED);
}

static long span_end(const rg_schedule &s, long key) { return s.origin + Walk::floor_to(key - s.origin, RG_SPAN) + RG_SPAN; }
static long first_key(const Work &w) { return run_of(w.s, w.block.run).first; }
static long last_key(const Work &w) { return run_of(w.s, w.block.run_end - 1).end; }

// ---- rows whose keys all lie in one chunk, as in short texts, windows of images, and images that look at a text
//
// The keys are packed once, and each tile of rows goes from its queries to its outputs while its numbers are in the first
// cache. The order of every sum is that of sum_keys.

constexpr long MOST_CACHED = 1 << 16;  // numbers of keys and values that stay in the second cache

struct ChunkRoom {
  real *q, *scores, *panels, *raw, *values, *sums;
  int padded, width;  // v_dim as whole registers, row length of the sums
  static size_t numbers(const Work &w) {
    const int d = words(w.c.head_dim), padded = up(w.c.v_dim, W);
    return (size_t)MR * (d + LDS) + (size_t)(CHUNK + NR) * d + (size_t)CHUNK * (padded + GAP) + Sums::numbers(w.c, MR, padded + SPARE) + 6 * 32;
  }
  ChunkRoom(Workspace &m, const Work &w)
      : q(m.take((size_t)MR * words(w.c.head_dim))), scores(m.take((size_t)MR * LDS)),
        panels(m.take((size_t)CHUNK * words(w.c.head_dim))), raw(m.take((size_t)NR * words(w.c.head_dim))),
        values(m.take((size_t)CHUNK * (up(w.c.v_dim, W) + GAP))), sums(nullptr), padded(up(w.c.v_dim, W)), width(padded + SPARE) {
    sums = m.take(Sums::numbers(w.c, MR, width));
  }
};

static bool in_one_chunk(const Work &w) {
  const long first = first_key(w), last = last_key(w);
  if (Walk::floor_to(first - w.s.origin, CHUNK) != Walk::floor_to(last - 1 - w.s.origin, CHUNK)) return false;
  const bool small = (last - first) * (w.c.head_dim + w.c.v_dim) <= MOST_CACHED;
  return small && w.stack.rows > FEW && !packs_queries(w.c, w.stack.rows) && !packs_chunk(w);
}

// Prefetches the queries that the next tile reads and the outputs that this one writes: call number `part` of `parts`, one for
// each panel. Without it stores to rows that lie apart wait for memory, and all later ones with them.
static void prefetch_tile(const Work &w, int t, int part, int parts) {
  const int out_bytes = w.c.v_dim * WIDTH_OF[w.c.out.type], q_bytes = w.c.head_dim * WIDTH_OF[w.c.q.type];
  for (int r = t * MR + part; r < std::min((t + 1) * MR, w.stack.rows); r += parts) {
    const char *out = at(w.c.out, w.batch, w.head_of(r), w.row_of(r));
    for (int byte = 0; byte < out_bytes; byte += 64) {
#if defined(__x86_64__)  // __builtin_prefetch(p, 1) does not take the line for writing, unless the compiler has more flags
      __asm__ volatile("prefetchw %0" : : "m"(out[byte]));
#else
      __builtin_prefetch(out + byte, 1, 3);
#endif
    }
    if (r + MR >= w.stack.rows) continue;
    const char *q = at(w.c.q, w.batch, w.head_of(r + MR), w.row_of(r + MR));
    for (int byte = 0; byte < q_bytes; byte += 64) __builtin_prefetch(q + byte, 0, 3);
  }
}

// The queries of a tile.
static void read_tile(const Work &w, int t, real *q) {
  const int d = words(w.c.head_dim), r0 = t * MR, m = w.stack.tile_rows(t);
#if !defined(RG_BF16)
  if (w.c.q.type == REAL) {
    const vf factor = all(score_factor(w.c).carried);
    for (int i = 0; i < m; i++) {
      const real *from = (const real *)at(w.c.q, w.batch, w.head_of(r0 + i), w.row_of(r0 + i));
      real *into = q + (long)i * d;
      int n = 0;
      for (; n + W <= d; n += W) store(into + n, load(from + n) * factor);
      if (n < d) store_some(into + n, load_some(from + n, d - n) * factor, d - n);
    }
    return;
  }
#endif
  for (int i = 0; i < m; i++) read_query(w, w.head_of(r0 + i), w.row_of(r0 + i), q + (long)i * d, d);
}

static void forward_chunk(const Work &w, ChunkRoom &room) {
  Panel panels[PANELS];
  Tiles tiles;
  int chunk_key;
  Walk(w.s, w.block, first_key(w)).next(panels, last_key(w), &chunk_key);
  tiles.lay(w.s, w.stack, panels);
  const Vectors keys = w.keys(), values = w.values();
  const int d = words(w.c.head_dim);
  int begin = CHUNK, end = 0;
  for (int t = 0; t < w.stack.tiles(); t++)
    if (tiles.first[t] < tiles.end[t]) begin = std::min(begin, tiles.lane[t]), end = std::max(end, tiles.lane_end[t]);
  for (int p = begin / NR; p * NR < end; p++) {
    long row;
    const int count = keys.count(panels[p].key, NR);
    const real *k = keys.rows(panels[p].key, count, room.raw, &row);
    transpose(k, row, count, d, room.panels + (long)p * NR * d);
  }
  begin = pair_begin(begin) + chunk_key, end = pair_end(end) + chunk_key;
  long row = 0;
  const real *v = begin < end ? chunk_values(w, values, chunk_key, begin, end, room.values, room.padded, &row) : nullptr;
  Sums sums(w.c, room.sums, MR, room.width);
  for (int t = 0; t < w.stack.tiles(); t++) {
    const int m = w.stack.tile_rows(t);
    sums.begin(MR);
    if (tiles.first[t] < tiles.end[t]) {
      read_tile(w, t, room.q);
      for (int p = tiles.first[t]; p < tiles.end[t]; p++) {
        prefetch_tile(w, t, p - tiles.first[t], tiles.end[t] - tiles.first[t]);
        if (tiles.state[t][p] != EMPTY)
          score_tile(m, d, room.q, d, room.panels + (long)p * NR * d, tiles.begin(t, p), tiles.stop(t, p), room.scores + p * NR,
                     score_factor(w.c).rest);
      }
      weigh_tile(w, tiles, t, chunk_key, room.scores, sums, 0);
      const int from = chunk_key + pair_begin(tiles.lane[t]), to = chunk_key + pair_end(tiles.lane_end[t]);
      for (int n = 0; n < room.padded; n += NR) {
        const auto write = tile_of<ROWS, FIRST>(room.padded - n);
        write(m, words(to - from), room.scores + words(from - chunk_key), LDS, v + words(from - begin) * row + n, row, sums.output + n, sums.width);
      }
    }
    finish(w, sums, t * MR, m);
  }
}

// ---- one or two rows over few keys, as in the first steps of decoding
//
// Keys and values are multiplied where they lie. A panel of keys as columns would be more work than all the rest. The order of
// every sum is that of sum_keys.

constexpr int LEAST_ROWS = 2, LEAST_KEYS = 8, LEAST_DIM = 256;

static long lane_in_group(const Work &w, long key) { return key - w.s.origin - Walk::floor_to(key - w.s.origin, LANES); }

static bool over_few_keys(const Work &w) {
  const rg_call &c = w.c;
  if (HALF || w.stack.rows > LEAST_ROWS || w.block.run + 1 != w.block.run_end) return false;
  const Run run = run_of(w.s, w.block.run);
  const long keys = (long)run.end - run.first;
  if (run.kind != RG_WHOLE || keys > LEAST_KEYS || lane_in_group(w, run.first) + keys > LANES) return false;
  if (c.softcap > 0 || c.bias.data || c.dropout > 0 || c.statistics) return false;
  return c.k.type == REAL && c.v.type == REAL && c.head_dim <= LEAST_DIM && c.v_dim <= LEAST_DIM && c.v_dim % W == 0;
}

// Products of a query with COUNT keys.
template <int COUNT>
static void score_each(const real *q, const real *keys, long row, int dim, real *s) {
  real sum[COUNT] = {};
  for (int c = 0; c < dim; c++)
#pragma GCC unroll 8
    for (int i = 0; i < COUNT; i++) sum[i] = std::fma(keys[i * row + c], q[c], sum[i]);
  for (int i = 0; i < COUNT; i++) s[i] = sum[i];
}
template <int COUNT = LEAST_KEYS>
static void score_each(int count, const real *q, const real *keys, long row, int dim, real *s) {
  if constexpr (COUNT > 1)
    if (count < COUNT) return score_each<COUNT - 1>(count, q, keys, row, dim, s);
  score_each<COUNT>(q, keys, row, dim, s);
}

static void forward_few_keys(const Work &w) {
  const rg_call &c = w.c;
  const Run run = run_of(w.s, w.block.run);
  const int count = run.end - run.first, lane = (int)lane_in_group(w, run.first);
  const int begin = lane / W * W, end = up(lane + count, W);
  const Vectors keys = w.keys(), values = w.values();
  const real *k = (const real *)keys.row(run.first), *v = (const real *)values.row(run.first);
  const Dropout dropout(c);
  const real rest = score_factor(c).rest;
  alignas(64) real q[LEAST_DIM], scores[LANES], memory[LEAST_DIM + 2 * SPARE];
  Sums sums(c, memory, 1, c.v_dim + SPARE);
  for (int r = 0; r < w.stack.rows; r++) {
    read_query(w, w.head_of(r), w.row_of(r), q, words(c.head_dim));
    for (real &score : scores) score = -INF;
    score_each(count, q, k, keys.x.row, c.head_dim, scores + lane);
    for (int i = lane; i < lane + count; i++) scores[i] *= rest;
    sums.begin(1);
    real &most = *sums.highest;
    for (int i = lane; i < lane + count; i++) most = scores[i] <= most ? most : scores[i];
    Weighing x{most, dropout, 0, 0, 0, 0, 0};
    *sums.total += sum(weigh<false, false>(scores, begin, end, x));
    for (int n = 0; n < c.v_dim; n += W) {
      vf of_keys{};
      for (int i = 0; i < count; i++) of_keys = madd(load(v + i * values.x.row + n), all(scores[lane + i]), of_keys);
      store(sums.output + n, vf{} + of_keys);  // as sums that begin with 0: none is -0
    }
    finish(w, sums, r, 1);
  }
}

static bool forward_stack(const Work &w) {
  const int rows = w.stack.rows, width = up(w.c.v_dim, W) + SPARE;
  if (over_few_keys(w)) return forward_few_keys(w), true;
  Workspace &memory = workspace();
  if (w.block.run < w.block.run_end && in_one_chunk(w)) {
    if (!memory.reserve(sizeof(real) * ChunkRoom::numbers(w) + 1024)) return false;
    ChunkRoom room(memory, w);
    return forward_chunk(w, room), true;
  }
  if (!memory.reserve(sizeof(real) * (ForwardRoom::numbers(w.c, rows) + 2 * Sums::numbers(w.c, rows, width)) + 1024)) return false;
  ForwardRoom room(memory, w.c, rows);
  Sums sums(w.c, memory.take(Sums::numbers(w.c, rows, width)), rows, width);
  Sums part(w.c, memory.take(Sums::numbers(w.c, rows, width)), rows, width);
  if (w.block.run == w.block.run_end) {
    sums.clear(rows);
    return finish(w, sums, 0, rows), true;
  }
  read_queries(w, room.q);
  if (packs_queries(w.c, rows)) pack_queries(w, room);
  Walk walk(w.s, w.block, first_key(w));
  long until = span_end(w.s, first_key(w));
  sum_keys(w, walk, until, room, sums);
  for (; until < last_key(w); until += RG_SPAN) {
    sum_keys(w, walk, until + RG_SPAN, room, part);
    sums.merge(part, rows);
  }
  return finish(w, sums, 0, rows), true;
}
}  // namespace
}  // namespace RG_SPACE
