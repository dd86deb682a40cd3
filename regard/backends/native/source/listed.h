// Keys that are listed for each row: read where they lie, one after the other, for the query heads that share a list.
//
// A row takes its scores with all its keys first, then adds their values in ascending order, so that its bits depend on its
// own set of keys alone. Gradients of keys are sums over rows, divided as in backward.h: into parts that depend on the problem
// alone, which are added in order.

constexpr int TOGETHER = 4;                 // query heads at most
constexpr int HELD = W == 16 ? 4 : 2;       // registers of a sum of each of them
constexpr int FETCHED = 6;                  // keys that are asked for ahead
constexpr int SPARSE = 8;                   // words of 64 blocks for each number of a list: with more, lists are sorted

struct Listing {
  const rg_call &c;
  const rg_lists &l;
  int batch, head, heads;  // query heads head .. head + heads - 1 of one list and one key/value head
  int k_width, v_width;    // head_dim and v_dim, in whole LANES
  int kv() const { return head / (c.heads / c.kv_heads); }
  long most() const { return (long)l.count * l.keys; }
  long line(int i, int row) const { return ((long)batch * c.heads + head + i) * c.q_len + row; }

  // The keys of a row that are within its bounds, each once and ascending, counted from first_key; returns how many.
  // Blocks are marked as bits, and read in order; where a list is short beside its bounds, they are sorted instead.
  int keys_of(int row, uint64_t *room, int32_t *into) const {
    const int64_t *listed = l.block + (l.lists > 1 ? head / (c.heads / l.lists) : 0) * l.list + (l.batches > 1 ? batch : 0) * l.batch +
                            row / l.rows * (long)l.count;
    const long bound = (l.bounds > 1 ? (long)batch * c.q_len : 0) + row;
    const int64_t lo = std::max(l.lo[bound], c.first_key), hi = std::min<int64_t>(l.hi[bound], (int64_t)c.first_key + c.keys);
    if (lo >= hi) return 0;
    const int64_t first = lo / l.keys, blocks = (hi - 1) / l.keys + 1 - first, words = (blocks + 63) / 64;
    int n = 0;
    const auto take = [&](int64_t block) {
      const int64_t from = block * l.keys;
      for (int64_t key = std::max(from, lo); key < std::min(from + l.keys, hi); key++) into[n++] = (int32_t)(key - c.first_key);
    };
    if (words > (int64_t)SPARSE * l.count) {
      int64_t *sorted = (int64_t *)room, *end = sorted;
      for (int i = 0; i < l.count; i++)
        if ((uint64_t)(listed[i] - first) < (uint64_t)blocks) *end++ = listed[i];
      std::sort(sorted, end, [](int64_t a, int64_t b) { return a < b; });  // the lambda keeps the code in this namespace
      std::for_each(sorted, std::unique(sorted, end), take);
      return n;
    }
    std::memset(room, 0, words * sizeof(uint64_t));
    for (int i = 0; i < l.count; i++) {
      const uint64_t at = (uint64_t)(listed[i] - first);
      if (at < (uint64_t)blocks) room[at / 64] |= UINT64_C(1) << at % 64;
    }
    for (int64_t word = 0; word < words; word++)
      for (uint64_t bits = room[word]; bits; bits &= bits - 1) take(first + word * 64 + __builtin_ctzll(bits));
    return n;
  }
};

static inline vf load_of(const real *p, int n) { return n >= W ? load(p) : n > 0 ? load_some(p, n) : vf{}; }

// out[i][key] = x[i] . row of the key, for M vectors of `width` numbers whose ends are zeros
template <int M>
static void dots(const real *x, int width, const real *rows, long stride, int n, const int32_t *keys, int count, real *out, long line) {
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
    for (int i = 0; i < M; i++) out[i * line + k] = sum(sums[i]);
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
  uint64_t *room;  // of SPARSE words for each number of a list
  long line;       // of scores
  static size_t numbers(const rg_call &c) {
    return TOGETHER * (2 * (size_t)up(c.head_dim, LANES) + 2 * (size_t)up(c.v_dim, LANES) + 2 * line_of(c)) + line_of(c) + room_of(c) + 9 * 32;
  }
  static size_t line_of(const rg_call &c) { return ((size_t)c.lists->count * c.lists->keys + W - 1) / W * W; }
  static size_t room_of(const rg_call &c) { return (size_t)c.lists->count * SPARSE * sizeof(uint64_t) / sizeof(real); }
  ListedRoom(Workspace &w, const Listing &a) : line((long)line_of(a.c)) {
    q = w.take((size_t)TOGETHER * a.k_width), dq = w.take((size_t)TOGETHER * a.k_width);
    out = w.take((size_t)TOGETHER * a.v_width), grad = w.take((size_t)TOGETHER * a.v_width);
    scores = w.take((size_t)TOGETHER * line), slopes = w.take((size_t)TOGETHER * line);
    keys = (int32_t *)w.take((size_t)line), room = (uint64_t *)w.take(room_of(a.c));
  }
  void read(const Listing &a, int row) {
    for (int i = 0; i < a.heads; i++)
      read_row(REAL, at(a.c.q, a.batch, a.head + i, row), a.c.head_dim, (real)a.c.scale * LOG2E, q + i * a.k_width, a.k_width);
  }
};

static void forward_row(const Listing &a, ListedRoom &room, int row) {
  const rg_call &c = a.c;
  const int count = a.keys_of(row, room.room, room.keys), whole_registers = up(count, W);
  room.read(a, row);
  std::memset(room.out, 0, sizeof(real) * a.heads * a.v_width);
  real total[TOGETHER], highest[TOGETHER];
  with_heads(a.heads, [&](auto m) {
    dots<m()>(room.q, a.k_width, numbers_at<real>(c.k, a.batch, a.kv(), 0), c.k.row, c.head_dim, room.keys, count, room.scores, room.line);
    for (int i = 0; i < a.heads; i++) {
      real *s = room.scores + i * room.line;
      for (int k = count; k < whole_registers; k++) s[k] = -INF;
      vf most = all(-INF);
      for (int k = 0; k < whole_registers; k += W) most = larger(most, load(s + k));
      highest[i] = largest(most), total[i] = 0;
      Lanes sums{};
      for (int k = 0; k < whole_registers; k += W) {
        const vf weight = exp2(load(s + k) - all(highest[i]));
        sums.part[k / W % REGISTERS] += weight;
        store(s + k, weight);
      }
      if (count) total[i] = sum(sums);
    }
    add_rows<m()>(room.out, a.v_width, numbers_at<real>(c.v, a.batch, a.kv(), 0), c.v.row, c.v_dim, room.keys, count, room.scores, room.line);
  });
  for (int i = 0; i < a.heads; i++) {
    const bool empty = count == 0;
    if (c.log_sum_exp) ((real *)c.log_sum_exp)[a.line(i, row)] = empty ? -INF : LN2 * (highest[i] + std::log2(total[i]));
    const real by = empty ? 0 : 1 / total[i];
    if (c.unsound && !finite(room.out + i * a.v_width, c.v_dim, by)) __atomic_store_n(c.unsound, 1, __ATOMIC_RELAXED);
    write_row(c.out.type, (char *)at(c.out, a.batch, a.head + i, row), c.v_dim, room.out + i * a.v_width, by);
  }
}

// dk and dv: sums of the keys of this key/value head, k_width and v_width numbers each
static void backward_row(const Listing &a, const rg_gradients &g, ListedRoom &room, int row, real *dk, real *dv) {
  const rg_call &c = a.c;
  const int count = a.keys_of(row, room.room, room.keys), whole_registers = up(count, W);
  room.read(a, row);
  std::memset(room.dq, 0, sizeof(real) * a.heads * a.k_width);
  if (count) with_heads(a.heads, [&](auto m) {
    for (int i = 0; i < a.heads; i++)
      read_row(g.dout.type, at(g.dout, a.batch, a.head + i, row), c.v_dim, 1, room.grad + i * a.v_width, a.v_width);
    const real *k = numbers_at<real>(c.k, a.batch, a.kv(), 0), *v = numbers_at<real>(c.v, a.batch, a.kv(), 0);
    dots<m()>(room.q, a.k_width, k, c.k.row, c.head_dim, room.keys, count, room.scores, room.line);
    dots<m()>(room.grad, a.v_width, v, c.v.row, c.v_dim, room.keys, count, room.slopes, room.line);
    for (int i = 0; i < a.heads; i++) {
      real *s = room.scores + i * room.line, *d = room.slopes + i * room.line;
      for (int j = count; j < whole_registers; j++) s[j] = -INF, d[j] = 0;
      const real log2_sum = ((const real *)c.log_sum_exp)[a.line(i, row)] * LOG2E;
      real delta = 0;
      read_row(c.out.type, at(c.out, a.batch, a.head + i, row), c.v_dim, 1, room.out, a.v_width);
      Lanes sums{};
      for (int e = 0; e < a.v_width; e += W)
        sums.part[e / W % REGISTERS] = madd(load(room.out + e), load(room.grad + i * a.v_width + e), sums.part[e / W % REGISTERS]);
      delta = sum(sums) - (g.dlog_sum_exp ? ((const real *)g.dlog_sum_exp)[a.line(i, row)] : 0);
      for (int j = 0; j < whole_registers; j += W) {
        const vf weight = exp2(load(s + j) - all(log2_sum));
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

constexpr int LISTED_ROWS = 64;  // of one task
constexpr int LISTED_PARTS = 8;  // of the rows in the backward pass, over all key/value heads

// Calls one(listing) for the query heads of a key/value head, those of one list together.
template <class One>
static void each_listing(const rg_call &c, int batch, int kv, const One &one) {
  const int group = c.heads / c.kv_heads, alike = std::min(std::min(c.heads / c.lists->lists, group), TOGETHER);
  for (int h = kv * group; h < (kv + 1) * group; h += alike)
    one(Listing{c, *c.lists, batch, h, std::min(alike, (kv + 1) * group - h), up(c.head_dim, LANES), up(c.v_dim, LANES)});
}

static int forward_listed(const rg_call &c) {
  const long blocks = (c.q_len + LISTED_ROWS - 1) / LISTED_ROWS;
  const int failed = share(c.threads, blocks * c.batch * c.kv_heads, [&](long i) {
    const int first = (int)(i % blocks) * LISTED_ROWS, kv = (int)(i / blocks % c.kv_heads), batch = (int)(i / blocks / c.kv_heads);
    Workspace &own = workspace();
    if (!own.reserve(sizeof(real) * ListedRoom::numbers(c) + 1024)) return false;
    each_listing(c, batch, kv, [&](const Listing &a) {
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
  int failed = share(c.threads, pairs * parts, [&](long i) {
    const long part = i % parts;
    const int kv = (int)(i / parts % c.kv_heads), batch = (int)(i / parts / c.kv_heads);
    real *dk = sums[i] = (real *)std::calloc(numbers, sizeof(real)), *dv = dk + c.keys * k_width;
    Workspace &own = workspace();
    if (!dk || !own.reserve(sizeof(real) * ListedRoom::numbers(c) + 1024)) return false;
    each_listing(c, batch, kv, [&](const Listing &a) {
      own.used = 0;
      ListedRoom room(own, a);
      for (long row = c.q_len * part / parts; row < c.q_len * (part + 1) / parts; row++) backward_row(a, g, room, (int)row, dk, dv);
    });
    return true;
  });
  if (!failed) share(c.threads, pairs, [&](long i) {
    real *sum = sums[i * parts];
    for (long part = 1; part < parts; part++)
      for (size_t n = 0; n < numbers; n += W) store(sum + n, load(sum + n) + load(sums[i * parts + part] + n));
    for (int key = 0; key < c.keys; key++) {
      const int kv = (int)(i % c.kv_heads), batch = (int)(i / c.kv_heads);
      write_row(REAL, (char *)numbers_at<real>(g.dk, batch, kv, key), c.head_dim, sum + key * k_width, LN2);  // queries carry the scale
      write_row(REAL, (char *)numbers_at<real>(g.dv, batch, kv, key), c.v_dim, sum + c.keys * k_width + key * v_width, 1);
    }
    return true;
  });
  for (long i = 0; i < pairs * parts; i++) std::free(sums[i]);
  std::free(sums);
  return failed ? RG_NO_MEMORY : RG_OK;
}
