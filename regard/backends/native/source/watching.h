// Statistics that a row collects while its keys stream by: entropy, mean distance, and the keys with the largest weights.
//
// They are sums with weights 2^(score - highest), and scores, so they depend on the row alone as its output does.

struct Entry {  // a key of a row, for the largest weights
  real score;
  int32_t key;
  bool before(const Entry &x) const { return score > x.score || (score == x.score && key < x.key); }
};
static_assert(sizeof(Entry) == 2 * sizeof(real), "Memory counts an entry as two numbers");

// Put x at the first place of a heap whose first entry is the last in order, and let it down to where it belongs.
static void let_down(Entry *heap, int count, Entry x) {
  int i = 0;
  for (int child; (child = 2 * i + 1) < count; i = child) {
    if (child + 1 < count && heap[child].before(heap[child + 1])) child++;
    if (!x.before(heap[child])) break;
    heap[i] = heap[child];
  }
  heap[i] = x;
}

// What the rows of a stack have collected so far.
struct Watch {
  real *entropy = nullptr, *distance = nullptr;  // the sums of w (score - highest), of w |key - query|
  Entry *top = nullptr;                          // [rows][most], heaps
  int32_t *count = nullptr;                      // [rows], entries of each heap
  int most = 0;

  static bool wanted(const rg_call &c) {
    const rg_statistics *s = c.statistics;
    return s && (s->entropy || s->distance || s->top);
  }
  static size_t numbers(const rg_call &c, int rows) { return wanted(c) ? (size_t)rows * (3 + 2 * c.statistics->top) : 0; }
  Watch(const rg_call &c, real *memory, int rows) {
    if (!wanted(c)) return;
    most = c.statistics->top;
    entropy = memory, distance = memory + rows, count = (int32_t *)(memory + 2 * rows), top = (Entry *)(memory + 3 * rows);
  }
  explicit operator bool() const { return entropy; }
  void clear(int rows) {
    if (entropy) std::memset(entropy, 0, 3 * rows * sizeof(real));
  }

  // The highest score of a row rises from `before` to `now`; its weights, with the sum `total`, are multiplied by `by`.
  void raise(int r, real total, real before, real now, real by) {
    entropy[r] = before == -INF ? 0 : by * (entropy[r] + total * (before - now));
    distance[r] *= by;
  }

  real least(int r) const { return count[r] < most ? -INF : top[(long)r * most].score; }
  void offer(int r, Entry x) {
    Entry *heap = top + (long)r * most;
    if (count[r] == most) {
      if (x.before(heap[0])) let_down(heap, most, x);
      return;
    }
    int i = count[r]++;
    for (; i && heap[(i - 1) / 2].before(x); i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = x;
  }
  // The scores of some keys, from key + begin on, that are above those which the row keeps. NaN is above all.
  void offer_all(int r, const real *s, int begin, int end, long key) {
    for (int j = begin; j < end; j += W)
      for (uint32_t bits = not_below(load(s + j), least(r)); bits; bits &= bits - 1) {
        const int at = j + __builtin_ctz(bits);
        offer(r, {s[at] == s[at] ? s[at] : INF, (int32_t)(key + at)});
      }
  }

  // Add what later keys gave a row, with the highest scores and sums of weights of both.
  void merge(int r, const Watch &later, real high, real total, real later_high, real later_total) {
    const real now = std::max(high, later_high), a = exp2(high - now), b = exp2(later_high - now);
    raise(r, total, high, now, a);
    entropy[r] += later_total == 0 ? 0 : b * (later.entropy[r] + later_total * (later_high - now));
    distance[r] += b * later.distance[r];
    for (int i = 0; i < later.count[r]; i++) offer(r, later.top[(long)r * most + i]);
  }

  // Write the statistics of a row, whose place in the arrays of the call is `line`.
  void finish(const rg_call &c, int r, long line, real total, real highest) {
    const rg_statistics &s = *c.statistics;
    const real sure = std::log2(total) - entropy[r] / total, nats = sure < 0 ? 0 : LN2 * sure;
    if (s.entropy) ((real *)s.entropy)[line] = total == 0 ? 0 : nats;
    if (s.distance) ((real *)s.distance)[line] = total == 0 ? 0 : distance[r] / total;
    Entry *heap = top + (long)r * most;
    for (int n = count[r] - 1; n > 0; n--) {
      const Entry last = heap[n];
      heap[n] = heap[0];
      let_down(heap, n, last);
    }
    real *weights = (real *)s.top_weights + line * most;
    int64_t *keys = s.top_keys + line * most;
    for (int i = 0; i < most; i++) {
      const bool found = i < count[r];
      weights[i] = found ? exp2(heap[i].score - highest) / total : 0;
      keys[i] = found ? heap[i].key - c.first_key : -1;
    }
  }
};
