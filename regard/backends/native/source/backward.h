// The backward pass. With weights P, dP = dout vᵀ and delta = rowsum(dout · out) - dlog_sum_exp:
//
//     dS = P (dP - delta),   dq = scale dS k,   dk = scale dSᵀ q,   dv = Pᵀ dout
//
// The weights are computed again from scores and log-sum-exp. Gradients of keys are sums over rows, so the rows of one
// key/value head are divided into parts that depend on the problem alone; each part has its own sums, which are added in
// order. So gradients do not depend on the number of threads. In bfloat16 P, dS and dout are rounded, and read twice: by
// rows for dq and dP, and as pairs of rows for dk and dv.
#pragma once
#include "forward.h"

namespace RG_SPACE {
namespace {
constexpr int BACK_ROWS = HALF ? 192 : 96;  // at once, so that two matrices of scores stay in the core's cache
static_assert(BACK_ROWS % MR == 0, "tiles of a part of a block are whole");

struct KeySums {  // gradients of the keys first <= key < end from one part of the rows
  long first, end;
  real *dk, *dv;
  int k_width, v_width;
  real *table;  // gradient of a bias by distance, for each head of the group; NULL: none
};

struct BackwardRoom {
  real *q, *grad;                          // grad: dout
  real *scores, *slopes;                   // scores become weights, slopes are first dP, then dS
  real *tile;                              // of bfloat16 calls: scores and slopes of a tile before they are rounded
  real *k_panel, *v_panel, *raw, *keys, *dq;
  real *q_lines, *grad_lines;              // of pairs of rows; if the numbers are no bfloat16, q and grad themselves
  real *weight_lines, *slope_lines;        // likewise, of one panel
  uint16_t *rounded;                       // dout
  int k_width, v_width;                    // head_dim and v_dim, as whole tiles
  int q_row, grad_row;                     // row lengths of q and grad
  int k_line, v_line;                      // and of lines of head_dim and v_dim numbers
  static size_t numbers(const rg_call &c) {
    const size_t k = up(c.head_dim, NR), v = up(c.v_dim, NR), most = std::max(k, v);
    return BACK_ROWS * (2 * k + v + (HALF ? 1 : 2) * LDS) + NR * (k + v + most) + CHUNK * (k + GAP) + 9 * 32 +
           (HALF ? BACK_ROWS * (k + 2 * v + 2 * GAP + 2 * NR) + 2 * MR * LDS + 7 * 32 : 0);
  }
  BackwardRoom(Workspace &w, const rg_call &c)
      : k_width(up(c.head_dim, NR)), v_width(up(c.v_dim, NR)), q_row(HALF ? words(c.head_dim) : k_width),
        grad_row(HALF ? words(c.v_dim) : v_width), k_line(k_width + GAP), v_line(v_width + GAP) {
    q = w.take((size_t)BACK_ROWS * k_width), grad = w.take((size_t)BACK_ROWS * v_width);
    scores = HALF ? nullptr : w.take((size_t)BACK_ROWS * LDS), slopes = w.take((size_t)BACK_ROWS * LDS);
    k_panel = w.take((size_t)NR * k_width), v_panel = w.take((size_t)NR * v_width);
    raw = w.take((size_t)NR * std::max(k_width, v_width)), keys = w.take((size_t)CHUNK * k_line);
    dq = w.take((size_t)BACK_ROWS * k_width);
    q_lines = q, grad_lines = grad, weight_lines = scores, slope_lines = slopes, rounded = nullptr, tile = nullptr;
    if (!HALF) return;
    q_lines = w.take((size_t)BACK_ROWS * k_line), grad_lines = w.take((size_t)BACK_ROWS * v_line);
    weight_lines = w.take((size_t)BACK_ROWS * NR), slope_lines = w.take((size_t)BACK_ROWS * NR);
    rounded = (uint16_t *)w.take((size_t)BACK_ROWS * v_width), tile = w.take((size_t)2 * MR * LDS);
  }
};

// Some rows of a block of one head.
struct BackWork {
  Work w;
  const rg_gradients &g;
  int from;  // the first row, counted in the block
  int row_of(int r) const { return w.block.first + from + r; }
};

// Whether the panel of keys begins with the lines of the panel of values, so that it serves as both.
static bool shares_panel(const BackWork &b) { return b.w.shared() && (!HALF || b.w.c.v_dim % 2 == 0); }

static real dot(const real *a, const real *b, int n) {  // n is a multiple of NR; the order is that of 32 lanes
  Lanes z{};
  for (int i = 0; i < n; i += W) z.part[i / W % REGISTERS] = madd(load(a + i), load(b + i), z.part[i / W % REGISTERS]);
  return sum(z);
}

// Reads the queries and gradients of the rows, and gives delta of each row and the sum by which its scores become weights.
static void read_rows(const BackWork &b, BackwardRoom &room, real *delta, RowSum *row_sum) {
  const rg_call &c = b.w.c;
  for (int r = 0; r < b.w.stack.rows; r++) {
    const int row = b.row_of(r), head = b.w.head;
    const long line = ((long)b.w.batch * c.heads + head) * c.q_len + row;
    real *q = room.q + (long)r * room.q_row, *grad = room.grad + (long)r * room.grad_row;
    real *dout = HALF ? room.raw + room.v_width : grad;
    read_query(b.w, head, row, q, room.q_row);
    read_row(b.g.dout.type, at(b.g.dout, b.w.batch, head, row), c.v_dim, 1, dout, room.v_width);
    read_row(c.out.type, at(c.out, b.w.batch, head, row), c.v_dim, 1, room.raw, room.v_width);
#if defined(RG_BF16)
    char *rounded = (char *)(room.rounded + (long)r * room.v_width);
    write_row(RG_BFLOAT16, rounded, c.v_dim, dout, 1);
    read_row(RG_BFLOAT16, rounded, c.v_dim, 1, dout, room.v_width);
    read_words(rounded, c.v_dim, grad, room.grad_row);
#endif
    row_sum[r] = read_sum(c, line);
    const bool empty = row_sum[r].empty();
    if (empty) {  // whatever its query and gradient hold reaches no key
      std::memset(grad, 0, room.grad_row * sizeof(real));
      std::memset(q, 0, room.q_row * sizeof(real));
    }
    delta[r] = empty ? 0 : dot(dout, room.raw, room.v_width) - (b.g.dlog_sum_exp ? ((const real *)b.g.dlog_sum_exp)[line] : 0);
  }
#if defined(RG_BF16)
  const auto row = [&](const uint16_t *x, int r) { return r < b.w.stack.rows && !row_sum[r].empty() ? x : nullptr; };
  const auto query = [&](int r) { return row((const uint16_t *)at(c.q, b.w.batch, b.w.head, b.row_of(r)), r); };
  const auto grad = [&](int r) { return row(room.rounded + (long)r * room.v_width, r); };
  for (int r = 0; r < b.w.stack.rows; r += 2) {
    pair_lines(query(r), query(r + 1), c.head_dim, room.q_lines + (long)words(r) * room.k_line, room.k_width);
    pair_lines(grad(r), grad(r + 1), c.v_dim, room.grad_lines + (long)words(r) * room.v_line, room.v_width);
  }
#endif
}

// Of one row and the lanes [begin, end) of a panel: scores become the weights that dropout keeps, and `slope`, which is dP,
// becomes dS. So does `plain`, for the gradient of the bias: the caller multiplies `slope` by the derivative of the softcap.
static inline void differentiate_row(const BackWork &b, int r, long key, const Dropout &dropout, real *score, real *slope,
                                     int begin, int end, RowSum row_sum, real delta, real *plain) {
  const rg_call &c = b.w.c;
  const uint64_t state = c.dropout > 0 ? Dropout::row_state(c, b.w.batch, b.w.head, b.row_of(r)) : 0;
  for (int j = begin; j < end; j += W) {
    const vf weight = exp2(load(score + j) - all(row_sum.highest)) * all(row_sum.share);
    vf dp = load(slope + j), kept = weight;
    if (c.dropout > 0) {
      dp = dropout.kept(dp, state, key + j) * all(dropout.factor);
      kept = dropout.kept(weight, state, key + j) * all(dropout.factor);
    }
    const vf ds = weight * (dp - all(delta));
    if (plain) store(plain + j, ds);
    store(score + j, kept);
    store(slope + j, ds);
  }
}

// Scores as the forward pass bends them; `bent` gets the derivative of the softcap.
static inline void bend_row(const BackWork &b, int r, long key, real *score, int begin, int end, real *bent) {
  const rg_call &c = b.w.c;
  if (c.softcap > 0) {
    for (int j = begin; j < end; j += W) {
      const vf t = tanh(load(score + j) * all((real)(1 / c.softcap)));
      store(bent + j, all(1) - t * t);
      store(score + j, t * all((real)c.softcap * LOG2E));
    }
  }
  if (c.bias.data) Bias(c, b.w.batch, b.w.head, b.row_of(r)).add(key + begin, score + begin, end - begin);
}

// Add a panel's dS of one row to the gradient of the bias.
static inline void add_to_bias(const BackWork &b, int r, long key, const real *plain, KeySums &sums) {
  const rg_call &c = b.w.c;
  const long begin = std::max<long>(0, c.first_key - key), end = std::min<long>(NR, (long)c.first_key + c.keys - key);
  const int row = b.row_of(r);
  real *into = nullptr;
  if (sums.table)
    into = sums.table + (b.w.head % b.w.group()) * b.g.dtable.head + c.bias.at[b.w.batch] - row;
  else
    into = numbers_at<real>(b.g.dbias, b.w.batch, b.w.head, row);
  into += key - c.first_key;
  for (long j = begin; j < end; j++) into[j] += plain[j];
}

#if defined(RG_BF16)
// Weights and dS of m rows of a panel become words: both those of pairs of rows, and dS also those of pairs of keys.
static void round_tile(int m, int r0, int p, BackwardRoom &room) {
  const real *weights = room.tile, *slopes = weights + MR * LDS;
  for (int i = 0; i < m; i += 2, weights += 2 * LDS, slopes += 2 * LDS) {
    vf w[2][NV]{}, ds[2][NV]{};
    for (int h = 0; h < std::min(2, m - i); h++)
      for (int v = 0; v < NV; v++) w[h][v] = load(weights + h * LDS + v * W), ds[h][v] = load(slopes + h * LDS + v * W);
    for (int v = 0; v < NV; v++) {
      store_row_pairs(room.weight_lines + (long)words(r0 + i) * NR + v * W, NR, w[0][v], w[1][v]);
      store_row_pairs(room.slope_lines + (long)words(r0 + i) * NR + v * W, NR, ds[0][v], ds[1][v]);
    }
    for (int h = 0; h < std::min(2, m - i); h++) store_pairs<NV>(room.slopes + (long)(r0 + i + h) * LDS + words(p * NR), ds[h]);
  }
}
#endif

static void differentiate_tile(const BackWork &b, const Tiles &tiles, int t, int p, long key, BackwardRoom &room,
                               const real *delta, const RowSum *row_sum, KeySums &sums) {
  const rg_call &c = b.w.c;
  const int m = b.w.stack.tile_rows(t), r0 = t * MR;
  real *s = HALF ? room.tile : room.scores + (long)r0 * LDS + p * NR, *x = HALF ? s + MR * LDS : room.slopes + (long)r0 * LDS + p * NR;
  if (tiles.state[t][p] == EMPTY) {
    for (int i = 0; i < m; i++)
      std::memset(s + i * LDS, 0, NR * sizeof(real)), std::memset(x + i * LDS, 0, NR * sizeof(real));
#if defined(RG_BF16)
    round_tile(m, r0, p, room);
#endif
    return;
  }
  const Dropout dropout(c);
  const bool learns = b.g.dbias.data || b.g.dtable.data;
  const int begin = tiles.begin(t, p), end = tiles.stop(t, p);
  real bent[NR], plain[NR] = {};
  score_tile(m, words(c.head_dim), room.q + (long)r0 * room.q_row, room.q_row, room.k_panel, begin, end, s,
             score_factor(c).rest);
  score_tile(m, words(c.v_dim), room.grad + (long)r0 * room.grad_row, room.grad_row, shares_panel(b) ? room.k_panel : room.v_panel,
             begin, end, x, 1);
  for (int i = 0; i < m; i++, s += LDS, x += LDS) {
    if (c.softcap > 0 || c.bias.data) bend_row(b, r0 + i, key, s, begin, end, bent);
    if (tiles.state[t][p] == PART) mask_row(tiles, t, r0 + i, p, p + 1, s - p * NR);
    differentiate_row(b, r0 + i, key, dropout, s, x, begin, end, row_sum[r0 + i], delta[r0 + i], learns ? plain : nullptr);
    if (learns) add_to_bias(b, r0 + i, key, plain, sums);
    if (c.softcap > 0)
      for (int j = begin; j < end; j += W) store(x + j, load(x + j) * load(bent + j));
    for (int j = 0; j < NR; j += W)
      if (j < begin || j >= end) store(s + j, vf{}), store(x + j, vf{});
  }
#if defined(RG_BF16)
  round_tile(m, r0, p, room);
#endif
}

// Add a panel's part of dk and dv, from those of the tiles [t0, t1) that have pairs with a key.
static void add_to_keys(const BackWork &b, const Tiles &tiles, const Panel &panel, int p, int t0, int t1, BackwardRoom &room,
                        KeySums &sums) {
  const Vectors keys = b.w.keys();
  const int begin = keys.begin(panel.key), end = keys.end(panel.key, NR);
  const auto add = [&](const real *left, const real *lines, int line, real *into, int width) {
    for (int n = 0; n < width; n += NR)
      for (int key = begin; key < end; key += MR) {
        const int m = std::min(MR, end - key), lane = key - panel.key, from = p * NR + lane;
        int first = t0, last = t1;
        while (first < last && !tiles.meets(first, from, from + m)) first++;
        while (first < last && !tiles.meets(last - 1, from, from + m)) last--;
        if (first == last) continue;
        const int r0 = first * MR, rows = std::min(last * MR, b.w.stack.rows) - r0;
        const long place = HALF ? words(r0) * NR : (long)r0 * LDS + p * NR;
        tile<COLUMNS, ONTO>(m, words(rows), left + place + lane, 0, lines + (long)words(r0) * line + n, line,
                            into + (key - sums.first) * width + n, width);
      }
  };
  add(room.weight_lines, room.grad_lines, room.v_line, sums.dv, room.v_width);
  add(room.slope_lines, room.q_lines, room.k_line, sums.dk, room.k_width);
}

static void backward_chunk(const BackWork &b, const Tiles &tiles, const Panel *panels, BackwardRoom &room, const real *delta,
                           const RowSum *row_sum, KeySums &sums) {
  const Vectors keys = b.w.keys(), values = b.w.values();
  const int tiles_count = b.w.stack.tiles();
  const bool shared = shares_panel(b);
  const bool in_place = !HALF && keys.x.type == REAL && keys.dim == room.k_width && keys.x.row <= 2 * room.k_width;
  for (int p = 0; p < PANELS; p++) {
    int t0 = tiles_count, t1 = 0;
    for (int t = 0; t < tiles_count; t++)
      if (tiles.first[t] <= p && p < tiles.end[t]) t0 = std::min(t0, t), t1 = t + 1;
    real *own = room.keys + (long)words(p * NR) * room.k_line;
    if (t0 >= t1) continue;
    long row;
    const int count = keys.count(panels[p].key, NR);
    if (!shared) {
      const real *v = values.rows(panels[p].key, count, room.raw, &row);
      transpose(v, row, count, words(b.w.c.v_dim), room.v_panel);
    }
    const real *k = keys.rows(panels[p].key, count, room.raw, &row);
    transpose(k, row, count, words(b.w.c.head_dim), room.k_panel);
#if defined(RG_BF16)
    for (int j = 0, key = panels[p].key; j < NR; j += 2)
      pair_lines(keys.halves_of(key + j), keys.halves_of(key + j + 1), keys.dim, own + (long)words(j) * room.k_line, room.k_width);
#endif
    if (!HALF && !in_place)
      for (int j = 0; j < count; j++)
        read_row(REAL, (const char *)(k + j * row), b.w.c.head_dim, 1, own + (long)j * room.k_width, room.k_width);
    for (int t = t0; t < t1; t++) differentiate_tile(b, tiles, t, p, panels[p].key, room, delta, row_sum, sums);
    add_to_keys(b, tiles, panels[p], p, t0, t1, room, sums);
  }
  for (int n = 0; n < room.k_width; n += NR)
    for (int t = 0; t < tiles_count; t++) {
      if (tiles.first[t] >= tiles.end[t]) continue;
      const int from = pair_begin(tiles.lane[t]), to = pair_end(tiles.lane_end[t]);
      const real *k = in_place ? (const real *)keys.row(panels[0].key + from) : room.keys + (long)words(from) * room.k_line;
      tile<ROWS, ONTO>(b.w.stack.tile_rows(t), words(to - from), room.slopes + (long)t * MR * LDS + words(from), LDS, k + n,
                       in_place ? keys.x.row : room.k_line, room.dq + (long)t * MR * room.k_width + n, room.k_width);
    }
}

static void backward_rows(const BackWork &b, BackwardRoom &room, KeySums &sums) {
  const rg_call &c = b.w.c;
  real delta[BACK_ROWS];
  RowSum row_sum[BACK_ROWS];
  read_rows(b, room, delta, row_sum);
  std::memset(room.dq, 0, (size_t)b.w.stack.rows * room.k_width * sizeof(real));
  if (b.w.block.run < b.w.block.run_end) {
    Panel panels[PANELS];
    Tiles tiles;
    int chunk_key;
    Walk walk(b.w.s, b.w.block, first_key(b.w));
    while (walk.next(panels, INT64_MAX / 2, &chunk_key)) {
      tiles.lay(b.w.s, b.w.stack, panels, b.from);
      backward_chunk(b, tiles, panels, room, delta, row_sum, sums);
    }
  }
  for (int r = 0; r < b.w.stack.rows; r++)
    write_row(REAL, (char *)numbers_at<real>(b.g.dq, b.w.batch, b.w.head, b.row_of(r)), c.head_dim,
              room.dq + (long)r * room.k_width, c.scale);
}
}  // namespace
}  // namespace RG_SPACE
