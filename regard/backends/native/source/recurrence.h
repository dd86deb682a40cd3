// Recurrent mechanisms: a memory S of head_dim by v_dim numbers between chunks of RC positions, and a triangular system
// inside each. With e_ij the decay from key j to position i, N_ij = k_i e_ij . k_j for j < i and P_ij = q_i e_ij . k_j:
//
//   x_i = v_i - (e_i0 S)' k_i - sum of N_ij u_j over j < i,   u_j = b_j x_j   (without the delta rule x = v)
//   o_i = (e_i0 S)' q_i + sum of P_ij u_j over j <= i,        S' = e_n0 S + sum of (e_nj k_j) u_j'
//
// Decays enter as sums of logarithms over the steps between two positions, so nothing is divided by them and -inf is
// legal. With a decay for each channel, pairs across the middle m of a block have e_ij = e_im e_mj, and the halves follow;
// blocks of DIRECT positions are computed pair by pair. Every sum has one order, whatever the threads and registers.
//
// The namespaces with -DRG_BF16 compute calls whose q, k and outputs are bfloat16 and whose keys have one decay or none. Products
// of q and k with k are made from their words (words.h), which loses nothing: lengths, scale and decays are multiplied in
// afterwards. So is (e_i0 S)' q_i, for which S is rounded to bfloat16, as the weights of softmax are. The memory itself, the
// system and u stay float32, so that no rounding is passed on from chunk to chunk.
//
// Matrices lie row by row, an odd number of cache lines apart, so that their rows do not share a set of the cache.
#pragma once
#include "tasks.h"

namespace RG_SPACE {
namespace {
constexpr int SOLVED = 6;  // rows of the system that are solved together, with every register alike
constexpr int RC = RG_CHUNK, RS = RC + LINE;  // positions of a chunk; row length of matrices (RC, RC)
constexpr int DIRECT = 16;                    // positions of a block whose pairs with a decay for each channel are computed one by one
constexpr int RM = W == 16 ? 8 : 6;           // rows of a tile
constexpr int STEP_ROWS = 16;                 // rows of a memory that a step reads together, since wide ones lie pages apart

// c[M][N registers] = weight[i] c + s (a b); a[i * ai + k * ak], b[k * bk + column]. No weight: c is overwritten.
// WORDS: a and b are words of bfloat16 numbers.
template <int M, int N = NV, bool WORDS = false>
static __attribute__((noinline)) void small_product(int m, int K, const real *a, long ai, long ak, const real *b, long bk, real *c,
                                            long ci, const real *weight, long wi, real s) {
  if constexpr (M > 1)
    if (m < M) return small_product<M - 1, N, WORDS>(m, K, a, ai, ak, b, bk, c, ci, weight, wi, s);
  vf x[M][N];
#pragma GCC unroll 8
  for (int i = 0; i < M; i++)
#pragma GCC unroll 4
    for (int j = 0; j < N; j++) x[i][j] = vf{};
  for (int k = 0; k < K; k++, a += ak, b += bk) {
    vf y[N];
#pragma GCC unroll 4
    for (int j = 0; j < N; j++) y[j] = load(b + j * W);
#pragma GCC unroll 8
    for (int i = 0; i < M; i++) {
      const vf t = WORDS ? everywhere(a + i * ai) : all(a[i * ai]);
#pragma GCC unroll 4
      for (int j = 0; j < N; j++) x[i][j] = WORDS ? step(t, y[j], x[i][j]) : madd(t, y[j], x[i][j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < M; i++)
#pragma GCC unroll 4
    for (int j = 0; j < N; j++) {
      real *p = c + i * ci + j * W;
      store(p, weight ? madd(all(weight[i * wi]), load(p), all(s) * x[i][j]) : all(s) * x[i][j]);
    }
}

// The same for so many columns, which are whole registers, or for all of a tile where there are more.
template <bool WORDS, int N = NV>
static auto small_product_of(int columns) {
  if constexpr (N > 1)
    if (columns <= (N - 1) * W) return small_product_of<WORDS, N - 1>(columns);
  return small_product<RM, N, WORDS>;
}

static const real ONE = 1;
enum Shape { WHOLE, LOWER, UPPER };  // of the left factor: its inner axis ends, or begins, at the diagonal

// The same for `columns` columns and all rows from `from` on; columns are whole registers.
template <bool WORDS = false>
static void multiply(int m, int K, int columns, const real *a, long ai, long ak, const real *b, long bk, real *c, long ci,
                     const real *weight = nullptr, long wi = 0, real s = 1, Shape shape = WHOLE, int from = 0) {
  for (int j = 0; j < columns; j += NR)
    for (int i = from; i < m; i += RM) {
      const int begin = shape == UPPER ? i : 0, end = shape == LOWER ? std::min(K, i + RM) : K;
      const auto tile = small_product_of<WORDS>(columns - j);
      tile(m - i, end - begin, a + i * ai + begin * ak, ai, ak, b + begin * bk + j, bk, c + i * ci + j, ci,
           weight ? weight + i * wi : nullptr, wi, s);
    }
}

static inline vf decay(vf log) {  // exp of a log decay
  const vf x = log * all(LOG2E);
  return exp2(x > all(EXPONENT) ? all(EXPONENT) : x);
}

static inline vf first_lanes(vf x, int n) { return lane_numbers() < all((real)n) ? x : vf{}; }

// A matrix x (m, n) as panels of NR of its rows, [ceil(m / NR)][n][NR]
static void in_panels(const real *x, long stride, int m, int n, real *panels) {
  for (int i = 0; i < m; i += NR) transpose(x + i * stride, stride, std::min(NR, m - i), n, panels + (long)i * n);
}

struct Extent {  // sizes of one call
  int d, e;     // head_dim, v_dim
  int dp, ep;   // head_dim as whole tiles, v_dim as whole registers
  int wp;       // words of dp numbers
  long ds, es;  // strides of rows of head_dim and v_dim numbers
  long ws;      // stride of rows of wp words
  explicit Extent(const rg_recurrence &c)
      : d(c.head_dim), e(c.v_dim), dp(up(d, NR)), ep(up(e, W)), wp(words(dp)), ds(odd_lines(dp)), es(odd_lines(ep)), ws(odd_lines(wp)) {}
  static long odd_lines(int n) { return (up(n, LINE) / LINE | 1) * LINE; }
};

// Prefetches the rows of another chunk: rows lie pages apart, where the processor does not look ahead by itself.
static void prefetch_rows(const rg_recurrence &c, const rg_tensor &x, int batch, int head, int from, int n) {
  for (int i = std::max(from, 0); x.data && i < std::min(from + RC, c.length); i++)
    for (int byte = 0; byte < n * WIDTH_OF[x.type]; byte += 64) __builtin_prefetch(at(x, batch, head, i) + byte, 0, 2);
}

// A query or key of n numbers, times a factor and brought to length 1 if the call wants that; `padded` numbers are written. Returns
// the length by which they were divided.
static real read_vector(const rg_recurrence &c, const rg_tensor &x, int batch, int head, int row, real factor, real *to, int padded) {
  const int n = c.head_dim;
  read_row(x.type, at(x, batch, head, row), n, factor, to, padded);
  if (c.unit == 0) return 1;
  typedef double eight __attribute__((vector_size(8 * sizeof(double))));
  typedef real eight_reals __attribute__((vector_size(8 * sizeof(real)), aligned(sizeof(real)), may_alias));
  eight sums{};
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    const eight y = __builtin_convertvector(*(const eight_reals *)(to + i), eight);
    sums += y * y;
  }
  double squares = 0;
  for (int lane = 0; lane < 8; lane++) squares += sums[lane];
  for (; i < n; i++) squares += (double)to[i] * to[i];
  const real length = (real)std::sqrt(squares / ((double)factor * factor) + c.unit);
  for (i = 0; i + W <= n; i += W) store(to + i, load(to + i) / all(length));
  for (; i < n; i++) to[i] /= length;
  return length;
}

// What a chunk needs beside the memory, for one value head.
struct Chunk {
  const rg_recurrence &c;
  const Extent z;
  int batch, head, row, m;  // value head, first position, positions
  real *k, *kg, *kd;           // keys: as they are, times e_i0 (decayed from the start), times e_nj (decayed to the end)
  real *kw;                    // keys as words, not brought to any length; k itself where words are numbers
  real *kt;                    // these as panels
  real *log;                   // log decays by channel
  real *whole;                 // e_n0, the decay of the memory over the chunk: one number, or one for each channel
  real *kk, *system;           // of a delta rule: N_ij, and N_ij b_j
  real *between;               // e_ij where a key has one decay
  real *a;                     // by channel: the decay of each position
  real *rise, *fall, *right, *left, *panel;  // by channel: see start_halves and pairs_by_channel
  real *from_start, *to_end;   // by channel: e_i0 and e_nj
  alignas(64) real first[RC], last[RC];  // e_i0 and e_nj where a key has one decay
  alignas(64) real b[RC];      // strengths
  alignas(64) real of_key[RC];  // what the words of a key are still to be multiplied by

  bool by_channel() const { return !HALF && c.decays == 2; }
  int key_head() const { return head / (c.kv_heads / c.key_heads); }
  int group() const { return std::max(1, c.heads / c.kv_heads); }
  int query_head(int j) const { return c.heads < c.kv_heads ? head / (c.kv_heads / c.heads) : head * group() + j; }

  static size_t numbers(const Extent &z) { return RC * (size_t)(12 * z.ds + z.ws + 2 * z.dp + 3 * RS) + z.dp + 1024; }
  Chunk(Workspace &w, const rg_recurrence &call) : c(call), z(call) {
    for (real **x : {&k, &kg, &kd, &log, &a, &rise, &fall, &left, &from_start, &to_end}) *x = w.take(RC * z.ds);
    if (!call.decays) kg = kd = k;
    kw = HALF ? w.take(RC * z.ws) : k;
    right = w.take(2 * RC * z.ds), kt = w.take(RC * z.dp), panel = w.take(RC * z.dp), whole = w.take(z.dp);
    for (real **x : {&kk, &system, &between}) *x = w.take(RC * RS);
  }

  void read(int batch_, int head_, int row_) {
    batch = batch_, head = head_, row = row_, m = std::min(RC, c.length - row);
    for (int i = 0; i < RC; i++) {
      if (i < m) {
        of_key[i] = 1 / read_vector(c, c.k, batch, key_head(), row + i, 1, k + i * z.ds, z.dp);
        if (HALF) read_words(at(c.k, batch, key_head(), row + i), z.d, kw + i * z.ws, z.wp);
      } else {
        std::memset(k + i * z.ds, 0, z.dp * sizeof(real)), of_key[i] = 0;
      }
      b[i] = i >= m ? 0 : c.strength.data ? *numbers_at<real>(c.strength, batch, head, row + i) : 1;
    }
    by_channel() ? read_channels() : read_head();
  }

  void prefetch_keys(int from) const {
    prefetch_rows(c, c.k, batch, key_head(), from, z.d);
    if (by_channel()) prefetch_rows(c, c.log_decay, batch, head, from, z.d);
  }

  void read_head() {
    alignas(64) real logs[RC], sum = 0;
    for (int j = 0; j < RC; j++) logs[j] = -INF, first[j] = 0;
    for (int i = 0; i < m; i++) {
      const real g = c.decays ? *numbers_at<real>(c.log_decay, batch, head, row + i) : 0;
      first[i] = sum += g;
      for (int j = 0; j <= i; j += W) store(logs + j, load(logs + j) + all(g));
      logs[i] = 0;
      for (int j = 0; j < RC; j += W) store(between + i * RS + j, decay(load(logs + j)));
    }
    for (int j = 0; j < RC; j += W) store(first + j, decay(load(first + j)));
    std::memcpy(last, between + (m - 1) * RS, sizeof last);
    whole[0] = first[m - 1];
    for (int i = 0; i < m && c.decays; i++)
      for (int j = 0; j < z.dp; j += W) {
        const vf x = load(k + i * z.ds + j);
        store(kg + i * z.ds + j, x * all(first[i])), store(kd + i * z.ds + j, x * all(last[i]));
      }
    in_panels(kw, z.ws, m, z.wp, kt);
    if (c.delta) pairs(kw, kk, of_key), write_system();
  }

  void read_channels() {
    for (int i = 0; i < RC; i++)
      if (i < m)
        read_row(REAL, (const char *)numbers_at<real>(c.log_decay, batch, head, row + i), z.d, 1, log + i * z.ds, z.dp);
      else
        std::memset(log + i * z.ds, 0, z.dp * sizeof(real));
    for (int j = 0; j < z.dp; j += W) {
      vf sum{};
      for (int i = 0; i < RC; i++) {
        const long o = i * z.ds + j;
        const vf l = load(log + o), e = decay(sum += l);
        store(a + o, decay(l)), store(kg + o, load(k + o) * e), store(from_start + o, e);
        if (i == m - 1) store(whole + j, e);
      }
      sum = vf{};
      for (int i = m - 1; i >= 0; i--) {
        const long o = i * z.ds + j;
        const vf e = decay(sum);
        store(kd + o, load(k + o) * e), store(to_end + o, e), sum += load(log + o);
      }
    }
    if (c.delta) pairs(k, kk), write_system();
  }

  // The rows times the decays from the start of the chunk
  void decayed(const real *rows, real *to) const {
    for (int i = 0; i < m; i++)
      for (int j = 0; j < z.dp; j += W) {
        const long o = i * z.ds + j;
        const vf e = by_channel() ? load(from_start + o) : all(first[i]);
        store(to + o, load(rows + o) * e);
      }
  }

  // Clears kk from the diagonal on, and writes system = kk times the strengths of the keys.
  void write_system() {
    for (int i = 0; i < m; i++)
      for (int j = 0; j < RC; j += W) {
        const vf n = first_lanes(load(kk + i * RS + j), i - j);
        store(kk + i * RS + j, n), store(system + i * RS + j, n * load(b + j));
      }
  }

  // row_i e_ij . k_j for j <= i, 0 for other j. Rows of words are multiplied by their factors.
  void pairs(const real *rows, real *to, const real *factor = nullptr) {
    if (by_channel()) {
      pairs_by_channel(rows, to);
    } else {
      for (int p = 0; p < m; p += NR)
        multiply<HALF>(m, z.wp, NR, rows, z.ws, 1, kt + (long)p * z.wp, NR, to + p, RS, nullptr, 0, 1, WHOLE, p);
    }
    for (int i = 0; i < m; i++)
      for (int j = 0; j < RC; j += W) {
        real *p = to + i * RS + j;
        vf x = j > i ? vf{} : first_lanes(load(p), i - j + 1);
        if (HALF) x *= all(factor[i]) * load(of_key + j);
        store(p, by_channel() || j > i ? x : x * load(between + i * RS + j));
      }
  }

  // Decays of each block of `half` positions: `rise` from its start to each position, `fall` from each key to its end.
  void start_halves() {
    for (int s = 0; s < RC; s += DIRECT)
      for (int j = 0; j < z.dp; j += W) {
        vf p = all(1), r = all(1);
        for (int i = s; i < s + DIRECT; i++) store(rise + i * z.ds + j, p = p * load(a + i * z.ds + j));
        for (int i = s + DIRECT - 1; i >= s; i--) store(fall + i * z.ds + j, r), r = r * load(a + i * z.ds + j);
      }
  }
  // Decays of blocks of `half` positions become those of blocks of 2 * half.
  void double_halves(int half) {
    for (int s = 0; s < RC; s += 2 * half)
      for (int j = 0; j < z.dp; j += W) {
        const vf x = load(rise + (s + half - 1) * z.ds + j), y = load(rise + (s + 2 * half - 1) * z.ds + j);
        for (int i = 0; i < half; i++) {
          real *l = fall + (s + i) * z.ds + j, *r = rise + (s + half + i) * z.ds + j;
          store(l, load(l) * y), store(r, load(r) * x);
        }
      }
  }
  // to = x * y, number by number
  void times(const real *x, const real *y, int rows, real *to) const {
    for (int i = 0; i < rows; i++)
      for (int j = 0; j < z.dp; j += W) store(to + i * z.ds + j, load(x + i * z.ds + j) * load(y + i * z.ds + j));
  }

  void pairs_by_channel(const real *rows, real *to) {
    for (int s = 0; s < m; s += DIRECT)
      for (int i = s; i < std::min(m, s + DIRECT); i++)  // left[j]: k_j times the decays from j to i
        for (int j = s; j <= i; j++) {
          real *held = left + j * z.ds;
          if (i == j) {
            std::memcpy(held, k + j * z.ds, z.dp * sizeof(real));
          } else {
            for (int o = 0; o < z.dp; o += W) store(held + o, load(held + o) * load(a + i * z.ds + o));
          }
          to[i * RS + j] = dot(rows + i * z.ds, held, z.dp);
        }
    start_halves();
    for (int half = DIRECT; half < m; half *= 2) {
      for (int s = 0; s + half < m; s += 2 * half) {
        const int mid = s + half;
        times(rows + mid * z.ds, rise + mid * z.ds, half, right), times(k + s * z.ds, fall + s * z.ds, half, left);
        for (int p = 0; p < half; p += NR) {
          const int width = std::min(NR, half - p);
          transpose(left + p * z.ds, z.ds, width, z.dp, panel);
          alignas(64) real found[RC * NR];
          multiply(half, z.dp, NR, right, z.ds, 1, panel, NR, found, NR);
          for (int i = 0; i < half; i++) std::memcpy(to + (mid + i) * RS + s + p, found + i * NR, width * sizeof(real));
        }
      }
      if (2 * half < RC) double_halves(half);
    }
  }

  // x = (I + system)^-1 x, or with its transpose, in place; `columns` columns
  void solve(real *x, int columns, bool back) const {
    for (int p = 0; p < columns; p += NR) solve_columns<NV>(columns - p, x + p, back);
  }
  // The same for so many columns, or for all of a tile where there are more.
  template <int N>
  void solve_columns(int columns, real *x, bool back) const {
    if constexpr (N > 1)
      if (columns <= (N - 1) * W) return solve_columns<N - 1>(columns, x, back);
    solve_tile<N>(x, back);
  }
  template <int N>
  void solve_tile(real *rows, bool back) const {
    const int count = (m + SOLVED - 1) / SOLVED;
    for (int t = 0; t < count; t++) {
      const int i = (back ? count - 1 - t : t) * SOLVED, n = std::min(SOLVED, m - i), end = i + n;
      real *own = rows + i * z.es;
      if (back && end < m)
        small_product<RM, N>(n, m - end, system + end * RS + i, 1, RS, rows + end * z.es, z.es, own, z.es, &ONE, 0, -1);
      if (!back && i) small_product<RM, N>(n, i, system + i * RS, RS, 1, rows, z.es, own, z.es, &ONE, 0, -1);
      back ? solve_rows<N, true>(n, i, own) : solve_rows<N, false>(n, i, own);
    }
  }
  // The same for n rows from row i on, whose equations have nothing of other rows left.
  template <int N, bool BACK, int M = SOLVED>
  void solve_rows(int n, int i, real *rows) const {
    if constexpr (M > 1)
      if (n < M) return solve_rows<N, BACK, M - 1>(n, i, rows);
    vf x[M][N];
#pragma GCC unroll 8
    for (int r = 0; r < M; r++)
#pragma GCC unroll 4
      for (int j = 0; j < N; j++) x[r][j] = load(rows + r * z.es + j * W);
    const real *own = system + i * RS + i;
#pragma GCC unroll 8
    for (int step = 0; step < M; step++) {
      const int r = BACK ? M - 1 - step : step;
#pragma GCC unroll 8
      for (int t = BACK ? r + 1 : 0; t < (BACK ? M : r); t++) {
        const vf w = all(BACK ? -own[t * RS + r] : -own[r * RS + t]);
#pragma GCC unroll 4
        for (int j = 0; j < N; j++) x[r][j] = madd(w, x[t][j], x[r][j]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < M; r++)
#pragma GCC unroll 4
      for (int j = 0; j < N; j++) store(rows + r * z.es + j * W, x[r][j]);
  }

  void read_values(const rg_tensor &x, int of_head, real *to) const {
    for (int i = 0; i < m; i++) read_row(x.type, at(x, batch, of_head, row + i), z.e, 1, to + i * z.es, z.ep);
  }
  void read_queries(int j, real *to) const {
    for (int i = 0; i < RC; i++)
      if (i < m)
        read_vector(c, c.q, batch, query_head(j), row + i, (real)c.scale, to + i * z.ds, z.dp);
      else
        std::memset(to + i * z.ds, 0, z.dp * sizeof(real));
  }
  // The same as words, and what each is still to be multiplied by; `room` has place for one query.
  void read_query_words(int j, real *to, real *factor, real *room) const {
    for (int i = 0; i < m; i++) {
      read_words(at(c.q, batch, query_head(j), row + i), z.d, to + i * z.ws, z.wp);
      factor[i] = (real)c.scale;
      if (c.unit) factor[i] /= read_vector(c, c.q, batch, query_head(j), row + i, 1, room, z.dp);
    }
  }
  // u_j = b_j x_j
  void strengthened(const real *x, real *u) const {
    for (int i = 0; i < m; i++)
      for (int j = 0; j < z.ep; j += W) store(u + i * z.es + j, load(x + i * z.es + j) * all(b[i]));
  }
  long weight_stride() const { return by_channel() ? 1 : 0; }
};

// The memory of a head, (head_dim, v_dim) without gaps, and the same with rows and columns of whole tiles
static void open_memory(const Extent &z, const real *from, real *to) {
  std::memset(to, 0, z.dp * z.es * sizeof(real));
  for (int i = 0; i < z.d; i++) std::memcpy(to + i * z.es, from + (long)i * z.e, z.e * sizeof(real));
}
static void close_memory(const Extent &z, const real *from, real *to) {
  for (int i = 0; i < z.d; i++) std::memcpy(to + (long)i * z.e, from + i * z.es, z.e * sizeof(real));
}

// What queries read: the words of a memory, whose rows are rounded in pairs, or where words are numbers the memory itself.
static const real *memory_words(const Extent &z, const real *s, real *room) {
  if (!HALF) return s;
  for (int i = 0; i < z.dp; i += 2)
    for (int j = 0; j < z.ep; j += W) {
      const real *pair = s + i * z.es + j;
      store_row_pairs(room + i / PAIR * z.es + j, (int)z.es, load(pair), load(pair + z.es));
    }
  return room;
}

static bool recur_head(const rg_recurrence &c, int batch, int head) {
  const Extent z(c);
  Workspace &w = workspace();
  if (!w.reserve(sizeof(real) * (Chunk::numbers(z) + (z.dp + z.wp) * z.es + RC * (3 * z.ds + 3 * z.es + RS) + 4096))) return false;
  Chunk k(w, c);
  real *s = w.take(z.dp * z.es), *x = w.take(RC * z.es), *u = w.take(RC * z.es), *o = w.take(RC * z.es);
  real *q = w.take(RC * z.ds), *qg = w.take(RC * z.ds), *pairs = w.take(RC * RS), *room = w.take(z.wp * z.es);
  alignas(64) real factor[RC];  // of the words of each query; then of what it reads from the memory
  const long unit = (long)batch * c.kv_heads + head, chunks = (c.length + RC - 1) / RC;
  open_memory(z, (const real *)c.before + unit * z.d * z.e, s);
  for (int t = 0; t < chunks; t++) {
    k.read(batch, head, t * RC);
    if (c.kept) close_memory(z, s, (real *)c.kept + (unit * chunks + t) * z.d * z.e);
    k.read_values(c.v, head, x);
    k.prefetch_keys(k.row + RC);
    if (c.delta) {
      multiply(k.m, z.dp, z.ep, k.kg, z.ds, 1, s, z.es, x, z.es, &ONE, 0, -1);
      k.solve(x, z.ep, false);
      if (c.solved)
        for (int i = 0; i < k.m; i++)
          std::memcpy((real *)c.solved + (unit * c.length + k.row + i) * z.e, x + i * z.es, z.e * sizeof(real));
    }
    k.strengthened(x, u);
    prefetch_rows(c, c.v, batch, head, k.row + RC, z.e);
    const real *memory = memory_words(z, s, room);
    for (int j = 0; j < k.group(); j++) {
      const int out = c.heads < c.kv_heads ? head : k.query_head(j);
      HALF ? k.read_query_words(j, q, factor, qg) : k.read_queries(j, q);
      prefetch_rows(c, c.q, batch, k.query_head(j), k.row + RC, z.d), prefetch_rows(c, c.out, batch, out, k.row, z.e);
      k.pairs(q, pairs, factor);
      if (!HALF && c.decays) k.decayed(q, qg);
      for (int i = 0; HALF && i < k.m; i++) factor[i] *= k.first[i];
      multiply<HALF>(k.m, z.wp, z.ep, HALF || !c.decays ? q : qg, z.ws, 1, memory, z.es, o, z.es);
      multiply(k.m, k.m, z.ep, pairs, RS, 1, u, z.es, o, z.es, HALF ? factor : &ONE, HALF, 1, LOWER);
      for (int i = 0; i < k.m; i++)
        write_row(c.out.type, (char *)at(c.out, batch, out, k.row + i), z.e, o + i * z.es, 1);
    }
    multiply(z.dp, k.m, z.ep, k.kd, 1, z.ds, u, z.es, s, z.es, k.whole, k.weight_stride());
  }
  close_memory(z, s, (real *)c.after + unit * z.d * z.e);
  return true;
}

// One position:
//   r = (a S)' k,  u = b (v - r),  o = (a S)' q + (q . k) u,  S' = a S + k u'
// S is read row by row, as it lies in memory, once for the sums and, from the cache, once to be written. Each number of r and
// o is one sum over the rows in order.
struct Step {
  const rg_recurrence &c;
  const int batch, head, d = c.head_dim, e = c.v_dim, ep = up(e, W), group = std::max(1, c.heads / c.kv_heads);
  const real *s;
  real *to, *k, *q, *a, *ak, *aq, *u, *r, *o, b, qk = 0;  // o: (group, ep)

  static size_t numbers(const rg_recurrence &c) {
    const size_t group = std::max(1, c.heads / c.kv_heads);
    return c.head_dim * (4 + group) + up(c.v_dim, W) * (2 + group);
  }
  Step(const rg_recurrence &call, int batch_, int head_, real *room) : c(call), batch(batch_), head(head_) {
    const long unit = (long)batch * c.kv_heads + head;
    s = (const real *)c.before + unit * d * e, to = (real *)c.after + unit * d * e;
    u = room, r = u + ep, o = r + ep, k = o + (long)group * ep, a = k + d, ak = a + d, aq = ak + d, q = aq + d;
    read_vector(c, c.k, batch, head / (c.kv_heads / c.key_heads), 0, 1, k, d);
    read_row(c.v.type, at(c.v, batch, head, 0), e, 1, u, ep);
    for (int j = 0; j < group; j++)
      read_vector(c, c.q, batch, c.heads < c.kv_heads ? head / (c.kv_heads / c.heads) : head * group + j, 0, (real)c.scale,
                  q + (long)j * d, d);
    b = c.strength.data ? *numbers_at<real>(c.strength, batch, head, 0) : 1;
    const real *log = c.decays ? numbers_at<real>(c.log_decay, batch, head, 0) : nullptr;
    const real same = log && c.decays == 1 ? decay(all(log[0]))[0] : 1;
    for (int i = 0; i < d; i++) {
      a[i] = c.decays == 2 ? decay(all(log[i]))[0] : same;
      ak[i] = a[i] * k[i], aq[i] = a[i] * q[i], qk = std::fma(q[i], k[i], qk);
    }
    std::memset(r, 0, (1 + group) * (size_t)ep * sizeof(real));
  }

  real *out_of(int j) const { return o + (long)j * ep; }

  // sums[t] += x[t][i] * row i of a memory, over rows [from, end), for two vectors x, in N registers of columns from `col` on.
  struct Sums {
    const real *x[2];
    real *to[2];
  };
  template <int N>
  void add_block(const real *memory, const Sums &sums, int from, int end, int col) const {
    const int last = std::min(W, e - col - (N - 1) * W);  // columns of the last register
    vf y[2][N];
#pragma GCC unroll 8
    for (int t = 0; t < N; t++) y[0][t] = load(sums.to[0] + col + t * W), y[1][t] = load(sums.to[1] + col + t * W);
    const auto add = [&](int i, auto whole) {
      const vf x0 = all(sums.x[0][i]), x1 = all(sums.x[1][i]);
      const real *row = memory + (long)i * e + col;
#pragma GCC unroll 8
      for (int t = 0; t < N; t++) {
        const vf z = whole() || t < N - 1 ? load(row + t * W) : load_some(row + t * W, last);
        y[0][t] = madd(z, x0, y[0][t]), y[1][t] = madd(z, x1, y[1][t]);
      }
    };
    if (last == W)
      for (int i = from; i < end; i++) add(i, std::true_type());
    else
      for (int i = from; i < end; i++) add(i, std::false_type());
#pragma GCC unroll 8
    for (int t = 0; t < N; t++) store(sums.to[0] + col + t * W, y[0][t]), store(sums.to[1] + col + t * W, y[1][t]);
  }
  template <int N>
  void add_columns(const real *memory, const Sums &sums, int from, int end, int col) const {
    for (; col + (N - 1) * W < e; col += N * W) add_block<N>(memory, sums, from, end, col);
    if constexpr (N > 1) add_columns<N / 2>(memory, sums, from, end, col);
  }
  void add(const real *memory, const Sums &sums) const {
    constexpr int N = VECTOR_REGISTERS / 4;
    const int rows = e > N * W ? STEP_ROWS : d;
    for (int i = 0; i < d; i += rows) add_columns<N>(memory, sums, i, std::min(d, i + rows), 0);
  }

  void run() const {
    add(s, {{ak, aq}, {r, o}});
    for (int j = 0; j < ep; j += W) {
      const vf x = all(b) * (load(u + j) - (c.delta ? load(r + j) : vf{}));
      store(u + j, x), store(o + j, madd(all(qk), x, load(o + j)));
    }
    for (int i = 0; i < d; i++) {
      const vf of_s = all(a[i]), of_k = all(k[i]);
      const long row = (long)i * e;
      int j = 0;
      for (; j + W <= e; j += W) store(to + row + j, madd(of_k, load(u + j), of_s * load(s + row + j)));
      if (j < e) store_some(to + row + j, madd(of_k, load(u + j), of_s * load_some(s + row + j, e - j)), e - j);
    }
    for (int j = 1; j < group; j += 2) {  // the other queries of the group read what was written; one of them perhaps twice
      const int next = std::min(j + 1, group - 1);
      add(to, {{q + (long)j * d, q + (long)next * d}, {out_of(j), next == j ? r : out_of(next)}});
    }
    for (int j = 0; j < group; j++)
      write_row(c.out.type, (char *)at(c.out, batch, c.heads < c.kv_heads ? head : head * group + j, 0), e, out_of(j), 1);
  }
};

static int recur_all(const rg_recurrence &c) {
  const auto one = [&](long unit) {
    const FlushToZero flushing;  // decayed numbers would become denormal, and computing with those takes a hundred times longer
    const int batch = (int)(unit / c.kv_heads), head = (int)(unit % c.kv_heads);
    if (c.length > 1 || c.kept) return recur_head(c, batch, head);
    Workspace &w = workspace();
    const size_t numbers = Step::numbers(c);
    if (!w.reserve(sizeof(real) * numbers + 1024)) return false;
    Step(c, batch, head, w.take(numbers)).run();
    return true;
  };
  return run_tasks(c.threads, (long)c.batch * c.kv_heads, one) ? RG_NO_MEMORY : RG_OK;
}
}  // namespace
}  // namespace RG_SPACE
