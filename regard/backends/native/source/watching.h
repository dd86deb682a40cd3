// Statistics that a row collects while its keys stream by: entropy, mean distance, and the keys with the largest weights.
//
// They are sums with weights 2^(score - highest), and scores, so they depend on the row alone as its output does.
#pragma once
#include "packing.h"

namespace RG_SPACE {
namespace {
// The largest scores of a row in descending order and their keys, in whole registers.
struct Top {
  real *score;
  whole *key;
};

// Registers of a Top. Of equal scores that which was there stays first, so keys must come in order; a score below all others
// goes behind the last one that is kept.
template <int N>
struct Sorted {
  vf score[N];
  vi key[N];

  explicit Sorted(const Top &x) {
#pragma GCC unroll 4
    for (int i = 0; i < N; i++) score[i] = load(x.score + i * W), key[i] = load(x.key + i * W);
  }
  void keep(const Top &x) const {
#pragma GCC unroll 4
    for (int i = 0; i < N; i++) store(x.score + i * W, score[i]), store(x.key + i * W, key[i]);
  }
  // Put a score into its place; `higher` and its key stand before the first register. Those behind move on by one lane.
  void insert(vf x, vi number, vf higher, vi higher_key) {
#pragma GCC unroll 4
    for (int i = N - 1; i >= 0; i--) {
      const vf before = moved_on(i ? score[i - 1] : higher, score[i]);
      const vi before_key = moved_on(i ? key[i - 1] : higher_key, key[i]);
      const vi stays = score[i] >= x, follows = before < x;
      score[i] = stays ? score[i] : follows ? before : x;
      key[i] = stays ? key[i] : follows ? before_key : number;
    }
  }
};
constexpr int MOST_SORTED = 4;  // registers at a time

static inline void put(const Top &top, real x, whole number, int registers) {
  for (int i = registers - 1; i >= 0 && !(top.score[i * W + W - 1] >= x); i--) {
    Sorted<1> one({top.score + i * W, top.key + i * W});
    one.insert(all(x), vi{} + number, i ? all(top.score[i * W - 1]) : all(INF), i ? vi{} + top.key[i * W - 1] : vi{});
    one.keep({top.score + i * W, top.key + i * W});
  }
}

// Insert those of some scores, from key + begin on, that are above the last of the `most` that are kept. NaN is above all.
template <int N>
static void insert_all(const Top &top, int most, const real *s, int begin, int end, long key) {
  for (int j = begin; j < end; j += W) {
    uint32_t bits = not_below(load(s + j), top.score[most - 1]);
    if (!bits) continue;
    Sorted<N> sorted(top);
    for (; bits; bits &= bits - 1) {
      const int at = j + __builtin_ctz(bits);
      const real x = s[at] == s[at] ? s[at] : INF;
      if constexpr (N < MOST_SORTED)
        sorted.insert(all(x), vi{} + (whole)(key + at), all(INF), vi{});
      else
        put(top, x, (whole)(key + at), up(most, W) / W);
    }
    if constexpr (N < MOST_SORTED) sorted.keep(top);
  }
}

// What the rows of a stack have collected so far.
struct Watch {
  real *entropy = nullptr, *distance = nullptr;  // the sums of w (score - highest), of w |key - query|
  real *scores = nullptr;                        // [rows][2 room], as in Top
  bool adds = false;                             // whether entropy or distance are wanted
  int most = 0, room = 0;                        // of the largest scores that are kept; the same as whole registers

  static bool wanted(const rg_call &c) {
    const rg_statistics *s = c.statistics;
    return s && (s->entropy || s->distance || s->top);
  }
  static size_t numbers(const rg_call &c, int rows) {
    return wanted(c) ? (size_t)rows * (2 + (c.statistics->top ? 2 * up(c.statistics->top, W) : 0)) : 0;
  }
  Watch(const rg_call &c, real *memory, int rows) {
    if (!wanted(c)) return;
    most = c.statistics->top, room = up(most, W), adds = c.statistics->entropy || c.statistics->distance;
    entropy = memory, distance = memory + rows, scores = memory + 2 * rows;
  }
  explicit operator bool() const { return entropy; }

  Top top(int r) const {
    real *own = scores + (long)r * 2 * room;
    return {own, (whole *)(own + room)};
  }
  void clear(int rows) {
    if (!entropy) return;
    std::memset(entropy, 0, 2 * rows * sizeof(real));
    for (int r = 0; most && r < rows; r++) {
      const Top own = top(r);
      for (int j = 0; j < room; j += W) store(own.score + j, all(-INF)), store(own.key + j, vi{} - 1);
    }
  }

  // The highest score of a row rises from `before` to `now`; its weights, with the sum `total`, are multiplied by `by`.
  void raise(int r, real total, real before, real now, real by) const {
    entropy[r] = before == -INF ? 0 : by * (entropy[r] + total * (before - now));
    distance[r] *= by;
  }

  // The lowest of the scores that are kept.
  real least(int r) const { return top(r).score[most - 1]; }

  // The scores of some keys, from key + begin on, that are above the lowest that is kept. NaN is above all.
  void insert(int r, const real *s, int begin, int end, long key) const {
    if (room == W) return insert_all<1>(top(r), most, s, begin, end, key);
    if (room == 2 * W) return insert_all<2>(top(r), most, s, begin, end, key);
    if (room == 3 * W) return insert_all<3>(top(r), most, s, begin, end, key);
    insert_all<MOST_SORTED>(top(r), most, s, begin, end, key);
  }

  // Add what later keys gave a row, with the highest scores and sums of weights of both.
  void merge(int r, const Watch &later, real high, real total, real later_high, real later_total) const {
    const real now = std::max(high, later_high), a = exp2(high - now), b = exp2(later_high - now);
    raise(r, total, high, now, a);
    entropy[r] += b * (later.entropy[r] + later_total * (later_high - now));
    distance[r] += b * later.distance[r];
    if (!most) return;
    const Top own = top(r), other = later.top(r);
    for (int i = 0; i < most && other.key[i] >= 0; i++) put(own, other.score[i], other.key[i], room / W);
  }

  // Write the statistics of a row, whose place in the arrays of the call is `line`.
  void finish(const rg_call &c, int r, long line, real total, real highest) const {
    const rg_statistics &s = *c.statistics;
    const real sure = std::log2(total) - entropy[r] / total, nats = sure < 0 ? 0 : LN2 * sure;
    if (s.entropy) ((real *)s.entropy)[line] = total == 0 ? 0 : nats;
    if (s.distance) ((real *)s.distance)[line] = total == 0 ? 0 : distance[r] / total;
    for (int j = 0; j < room; j += W) {
      const Top own = top(r);
      const vf weights = exp2(load(own.score + j) - all(highest)) / all(total);
      for (int i = 0; i < std::min(W, most - j); i++) {
        const bool found = own.key[j + i] >= 0;
        ((real *)s.top_weights)[line * most + j + i] = found || total != total ? weights[i] : 0;
        s.top_keys[line * most + j + i] = found ? own.key[j + i] - c.first_key : -1;
      }
    }
  }
};
}  // namespace
}  // namespace RG_SPACE
