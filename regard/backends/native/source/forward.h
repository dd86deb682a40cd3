// The forward pass: a running softmax over the chunks of a row block, each row with its own highest score.
//
// A span of RG_SPAN keys is summed apart and then merged, whether one thread computes all spans or several share them.

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

// Of each row over some keys, with weights w = 2^(score - highest): the sums of w and of w times the values.
struct Sums {
  real *output, *total, *highest;
  int width;  // row length of output
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
    for (int r = 0; r < rows; r++) total[r] = 0, highest[r] = -INF;
    watch.clear(rows);
  }
  void scale(int r, real by) const {
    for (int i = 0; i < width - 16; i += W) store(row(r) + i, load(row(r) + i) * all(by));
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

// Whether queries are packed as panels and keys are read as they lie: where rows are fewer than keys and than the numbers of
// a key, and fill their registers, that is less work than to pack the keys.
static bool packs_queries(const rg_call &c, int rows) {
  return FEW < rows && 2 * rows <= c.head_dim && 4L * rows <= c.keys && up(rows, W) - rows <= W / 3;
}

struct ForwardRoom {  // what one thread needs for a stack
  real *q, *scores, *panel, *turned, *raw, *values;
  int padded;  // v_dim, as whole registers
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

// Scores are multiplied by it, so that they come out as powers of 2, or as they are where a softcap bends them first.
static real score_factor(const rg_call &c) { return c.softcap > 0 ? (real)c.scale : (real)c.scale * LOG2E; }

// The words of a query, which carries the factor of its scores if it is not bfloat16; zeros up to `padded` words.
static void read_query(const Work &w, int head, int row, real *out, int padded) {
  const char *from = at(w.c.q, w.batch, head, row);
#if defined(RG_BF16)
  read_words(from, w.c.head_dim, out, padded);
#else
  read_row(w.c.q.type, from, w.c.head_dim, score_factor(w.c), out, padded);
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
                       score_factor(w.c));
    transpose(room.turned, LDS, NR, rows, room.scores + (long)r * LDS + p * NR, LDS);
  }
}

// Whether a chunk of keys is copied to where its values are read.
static bool packs_chunk(const Work &w) {
  return !HALF && w.c.k.type != REAL && w.shared() && !few(w.stack.rows, w.keys()) && !few(w.stack.rows, w.values());
}

static void score_chunk(const Work &w, const Tiles &tiles, const Panel *panels, ForwardRoom &room) {
  const Vectors keys = w.keys();
  const int d = words(w.c.head_dim);
  const real factor = score_factor(w.c);
  const bool in_registers = few(w.stack.rows, keys), whole = packs_chunk(w);
  for (int p = 0; p < PANELS; p++) {
    bool packed = false;
    const int key = panels[p].key;
    if (in_registers && keys.begin(key) == key && keys.end(key, NR) == key + NR) {
      if (tiles.state[0][p] != EMPTY) score_few(w.stack.rows, keys, key, room.q, room.scores + p * NR, factor);
      continue;
    }
    bool some = false, between = false;
    for (int t = 0; t < w.stack.tiles(); t++) {
      some |= tiles.state[t][p] != EMPTY;
      between |= tiles.first[t] <= p && p < tiles.end[t];
    }
    if (!some && !(whole && between)) continue;
    long row;
    const real *k = keys.rows(key, NR, whole ? room.values + (long)p * NR * d : room.raw, &row);
    if (packs_queries(w.c, w.stack.rows)) {
      if (some) score_keys(w, tiles, p, k, row, room);
      continue;
    }
    for (int t = 0; t < w.stack.tiles(); t++) {
      if (tiles.state[t][p] == EMPTY) continue;
      if (!packed) transpose(k, row, NR, d, room.panel), packed = true;
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

// Scores become weights 2^(score - highest), those that dropout drops become 0 afterwards; returns their sum before that. The
// weights of bfloat16 calls become the words of pairs of them, whose place is words(lane).
template <bool DROPS, bool WATCHES>
static inline real weigh(real *s, int begin, int end, Weighing &x) {
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
  return sum(total);
}

static inline real weigh_row(const Work &w, int r, const Dropout &dropout, int chunk_key, real *s, int begin, int end,
                             Sums &sums) {
  const rg_call &c = w.c;
  const bool drops = c.dropout > 0;
  Weighing x{sums.highest[r], dropout, drops ? Dropout::row_state(c, w.batch, w.head_of(r), w.row_of(r)) : 0, chunk_key, 0, 0, 0};
  if (!sums.watch.adds) return drops ? weigh<true, false>(s, begin, end, x) : weigh<false, false>(s, begin, end, x);
  if (c.statistics->distance) x.corner = (real)(chunk_key - (c.start[w.batch] + w.row_of(r)));
  const real total = drops ? weigh<true, true>(s, begin, end, x) : weigh<false, true>(s, begin, end, x);
  sums.watch.entropy[r] += x.entropy, sums.watch.distance[r] += x.distance;
  return total;
}

// The highest of some scores, to which the bias is added on the way.
static inline real bend_and_find(const Work &w, int r, int chunk_key, const Tiles &tiles, int t, bool masked, real *s,
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
  if (masked) mask_row(tiles, t, r, tiles.first[t], tiles.end[t], s);
  for (int j = begin; j < end; j += W) {
    vf x = load(s + j);
    if (bias) {
      x = Bias::sum(x, load(bias + j - begin));
      store(s + j, x);
    }
    most = larger(most, x);
  }
  return largest(most);
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

static void weigh_tile(const Work &w, const Tiles &tiles, int t, int chunk_key, real *scores, Sums &sums) {
  const int p0 = tiles.first[t], p1 = tiles.end[t], begin = tiles.begin(t), end = tiles.stop(t);
  const Dropout dropout(w.c);
  bool masked = false;
  for (int p = p0; p < p1; p++) masked |= tiles.state[t][p] != FULL;
  const int r0 = t * MR, m = w.stack.tile_rows(t);
  real top[MR];
  for (int i = 0; i < m; i++)
    top[i] = bend_and_find(w, r0 + i, chunk_key, tiles, t, masked, scores + (long)(r0 + i) * LDS, begin, end);
  raise(sums, r0, m, top);
  for (int r = r0; r < r0 + m; r++) {
    real *s = scores + (long)r * LDS;
    if (sums.watch.most && !(top[r - r0] <= sums.watch.least(r))) sums.watch.insert(r, s, begin, end, chunk_key);
    sums.total[r] += weigh_row(w, r, dropout, chunk_key, s, begin, end, sums);
  }
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
      const auto add = room.padded - n < NR ? tile<ROWS, true, 1> : tile<ROWS, true>;
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
      if (tiles.first[t] < tiles.end[t]) weigh_tile(w, tiles, t, chunk_key, room.scores, sums);
    add_values(w, tiles, chunk_key, room, sums);
  }
}

static void finish(const Work &w, Sums &sums) {
  const real factor = w.c.dropout > 0 ? Dropout(w.c).factor : 1;
  for (int r = 0; r < w.stack.rows; r++) {
    const real total = sums.total[r];
    if (total == 0) sums.scale(r, 0), std::memset(sums.row(r), 0, sums.width * sizeof(real));
    if (w.c.log_sum_exp)
      ((real *)w.c.log_sum_exp)[w.line_of(r)] = total == 0 ? -INF : LN2 * (sums.highest[r] + std::log2(total));
    if (sums.watch) sums.watch.finish(w.c, r, w.line_of(r), total, sums.highest[r]);
    const real by = total == 0 ? 0 : factor / total;
    if (w.c.unsound && !finite(sums.row(r), w.c.v_dim, by)) __atomic_store_n(w.c.unsound, 1, __ATOMIC_RELAXED);
    write_row(w.c.out.type, (char *)at(w.c.out, w.batch, w.head_of(r), w.row_of(r)), w.c.v_dim, sums.row(r), by);
  }
}

static long span_end(const rg_schedule &s, long key) { return s.origin + Walk::floor_to(key - s.origin, RG_SPAN) + RG_SPAN; }
static long first_key(const Work &w) { return run_of(w.s, w.block.run).first; }
static long last_key(const Work &w) { return run_of(w.s, w.block.run_end - 1).end; }

static bool forward_stack(const Work &w) {
  const int rows = w.stack.rows, width = up(w.c.v_dim, W) + 16;
  Workspace &memory = workspace();
  if (!memory.reserve(sizeof(real) * (ForwardRoom::numbers(w.c, rows) + 2 * Sums::numbers(w.c, rows, width)) + 1024)) return false;
  ForwardRoom room(memory, w.c, rows);
  Sums sums(w.c, memory.take(Sums::numbers(w.c, rows, width)), rows, width);
  Sums part(w.c, memory.take(Sums::numbers(w.c, rows, width)), rows, width);
  if (w.block.run == w.block.run_end) {
    sums.clear(rows);
    return finish(w, sums), true;
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
  return finish(w, sums), true;
}
