// Writes the schedules that the kernels read, for calls that say as data which keys the queries of each batch row may look at:
// a span of keys, a boolean for each key, and a window around each query. It uses no vector instructions.
#pragma once
#include "regard_native.h"

#include <string.h>

#include <algorithm>

namespace visible {

// The keys start <= key < stop.
struct Span {
  int64_t start, stop;
  bool empty() const { return start >= stop; }
};

// Neighbouring queries.
struct Queries {
  int32_t first, end;
};

// The booleans of one batch row and head: one for each key, or one for each query and key. Without booleans every key is
// allowed.
class Mask {
 public:
  Mask(const rg_visible &x, int32_t row, int32_t head)
      : first(x.mask ? x.mask + row * x.mask_row + head * x.mask_head : nullptr), by_query(x.mask_query), by_key(x.mask_key) {}

  bool differs_by_query() const { return first && by_query; }

  bool allows(int64_t query, int64_t key) const { return !first || first[query * by_query + key * by_key]; }

  // Whether some of the queries may look at a key.
  bool allows_any(Queries queries, int64_t key) const {
    if (!differs_by_query()) return allows(0, key);
    for (int32_t i = queries.first; i < queries.end; i++)
      if (allows(i, key)) return true;
    return false;
  }

  // The smallest part of a span that holds all its keys that some of the queries may look at.
  Span hull(Queries queries, Span span) const {
    while (!span.empty() && !allows_any(queries, span.start)) span.start++;
    while (!span.empty() && !allows_any(queries, span.stop - 1)) span.stop--;
    return span;
  }

  bool allows_all(Queries queries, Span span) const {
    if (!first) return true;
    const int32_t end = differs_by_query() ? queries.end : queries.first + 1;
    for (int32_t i = queries.first; i < end; i++)
      for (int64_t key = span.start; key < span.stop; key++)
        if (!allows(i, key)) return false;
    return true;
  }

  // A bit for each key of a span that a query may look at, 32 in a word.
  void write_bits(int32_t query, Span span, uint32_t *words) const {
    const int64_t count = (span.stop - span.start + 31) / 32;
    memset(words, 0, sizeof(uint32_t) * count);
    for (int64_t key = span.start; key < span.stop; key++) {
      const int64_t at = key - span.start;
      words[at / 32] |= (uint32_t)allows(query, key) << (at % 32);
    }
  }

 private:
  const uint8_t *first;
  int64_t by_query, by_key;
};

// The number between the start and the stop of a span that is nearest to x; the start if the span is empty.
inline int64_t clamp(int64_t x, Span span) { return std::max(std::min(x, span.stop), span.start); }

// The span of a batch row within the keys of the call.
inline Span span_of(const rg_visible &x, int32_t row) {
  const Span all = {0, x.keys};
  const int64_t start = x.start ? clamp(x.start[row * x.start_row], all) : 0;
  const int64_t stop = x.stop ? clamp(x.stop[row * x.stop_row], all) : x.keys;
  return {start, std::max(start, stop)};
}

// The first key in the window of a query, and the key after its last; a side may be RG_NO_LIMIT. Positions and limits are far
// below 2^62, as the callers check.
inline int64_t begin_of(const rg_visible &x, int64_t position, Span keys) {
  return x.left == RG_NO_LIMIT ? keys.start : clamp(position - x.left, keys);
}
inline int64_t end_of(const rg_visible &x, int64_t position, Span keys) {
  return x.right == RG_NO_LIMIT ? keys.stop : clamp(position + x.right + 1, keys);
}

// Writes the schedule of one batch row and head.
class Writer {
 public:
  Writer(const rg_visible &x, int32_t row, int32_t head, int64_t words_before) : call(x), mask(x, row, head), words_end(words_before) {
    const int64_t blocks = ((int64_t)x.q_len + RG_ROWS_OF_BITS - 1) / RG_ROWS_OF_BITS, number = (int64_t)row * x.heads + head;
    block = x.block + 4 * blocks * number;
    run = x.run + 4 * blocks * number;
    lo = x.lo + number * x.q_len;
    hi = x.hi + number * x.q_len;
    span = span_of(x, row);
    const Queries all = {0, x.q_len};
    const Span every = {0, x.keys}, hull_of_mask = mask.differs_by_query() ? every : mask.hull(all, every);
    has_holes = mask.differs_by_query() || !mask.allows_all(all, hull_of_mask);
    // Results have the same bits as those of a plan that was made for these keys alone: the sums of a row begin at the same
    // key, and row blocks, whose size decides in which order gradients are added, have the same size.
    origin = std::max(span.start, hull_of_mask.empty() ? 0 : hull_of_mask.start);
    if (has_holes && x.left != RG_NO_LIMIT) origin = std::max(origin, -x.left);
    if (!mask.differs_by_query()) span = mask.hull(all, span);
    position = x.position[row * x.position_row];
  }

  // Returns how many words of bits are used up to the end of this schedule. Bits for which there is no room are not written.
  int64_t write(rg_schedule &schedule) {
    write_bounds();
    const int32_t rows = has_holes ? RG_ROWS_OF_BITS : RG_MOST_ROWS;
    int32_t number = 0;
    for (int32_t first = 0; first < call.q_len; first += rows, number++)
      write_block(number, first, std::min(first + rows, call.q_len));
    schedule.blocks = schedule.runs = number;
    schedule.bounds = call.q_len;
    schedule.words = (int32_t)std::min<int64_t>(words_end, INT32_MAX);
    schedule.origin = (int32_t)std::min<int64_t>(origin, call.keys);
    schedule.block = block, schedule.run = run;
    schedule.lo = lo, schedule.hi = hi;
    schedule.bits = call.bits;
    return words_end;
  }

 private:
  const rg_visible &call;
  Mask mask;
  Span span;         // from the first key that some query may look at to the last
  int64_t position;  // of the first query
  int64_t origin;    // the key at which the panels of the row begin
  bool has_holes;    // whether the mask hides keys between others
  int64_t words_end;
  int32_t *block, *run, *lo, *hi;
  // Where the bits of the last block lie whose queries all have the same keys, `alike_keys`; later blocks with these keys share
  // them. -1: there is none yet.
  int64_t alike_place = -1;
  Span alike_keys = {0, 0};

  void write_bounds() {
    for (int32_t i = 0; i < call.q_len; i++) {
      const int64_t first = begin_of(call, position + i, span);
      lo[i] = (int32_t)first;
      hi[i] = (int32_t)std::max(first, end_of(call, position + i, span));
    }
  }

  void write_block(int32_t number, int32_t first, int32_t end) {
    // Both bounds grow with the query, so this span holds the keys of all queries.
    const Queries queries = {first, end};
    const Span keys = mask.hull(queries, {lo[first], hi[end - 1]});
    for (int32_t i = first; i < end; i++) lo[i] = (int32_t)clamp(lo[i], keys), hi[i] = (int32_t)clamp(hi[i], keys);
    const bool within = lo[end - 1] == keys.start && hi[first] == keys.stop, alike = within && !mask.differs_by_query();
    int32_t kind = within ? RG_WHOLE : RG_BOUNDED, place = first;
    if (!mask.allows_all(queries, keys)) {
      kind = RG_BITS;
      const bool as_before = alike && alike_place >= 0 && keys.start == alike_keys.start && keys.stop == alike_keys.stop;
      place = (int32_t)(as_before ? alike_place : words_end);
      if (!as_before) write_bits(keys, first, end, alike);
      if (alike) alike_place = place, alike_keys = keys;
    }
    int32_t *b = block + 4 * number, *r = run + 4 * number;
    b[0] = first, b[1] = end, b[2] = number, b[3] = number + !keys.empty();
    r[0] = (int32_t)keys.start, r[1] = (int32_t)keys.stop, r[2] = kind, r[3] = place;
  }

  // Writes the bits of a block. Each of its rows has bits for all keys of the block.
  void write_bits(Span keys, int32_t first, int32_t end, bool alike) {
    const int64_t words = (keys.stop - keys.start + 31) / 32, begin = words_end;
    words_end += words * (end - first);
    if (words_end > call.words) return;
    uint32_t *bits = call.bits + begin;
    for (int32_t i = first; i < end; i++) {
      uint32_t *of_row = bits + (i - first) * words;
      if (i == first || mask.differs_by_query())
        mask.write_bits(i, keys, of_row);
      else
        memcpy(of_row, bits, sizeof(uint32_t) * words);
    }
    for (int32_t i = first; i < end && !alike; i++) keep(bits + (i - first) * words, keys, lo[i], hi[i]);
  }

  // Clears the bits of keys outside of a row's bounds.
  static void keep(uint32_t *words, Span keys, int64_t lo, int64_t hi) {
    const int64_t begin = clamp(lo, keys) - keys.start, end = std::max(begin, clamp(hi, keys) - keys.start);
    for (int64_t word = 0; word * 32 < keys.stop - keys.start; word++) {
      const int64_t from = std::max<int64_t>(begin - word * 32, 0), to = std::min<int64_t>(end - word * 32, 32);
      const uint32_t below_to = to >= 32 ? ~0u : to > 0 ? (1u << to) - 1 : 0;
      const uint32_t below_from = from >= 32 ? ~0u : (1u << from) - 1;
      words[word] &= below_to & ~below_from;
    }
  }
};

// Writes all schedules of a call, and returns how many words of bits they need. If there is no room for so many, some bits are
// missing.
inline int64_t write_all(const rg_visible &x) {
  int64_t words = 0;
  for (int32_t row = 0; row < x.rows; row++)
    for (int32_t head = 0; head < x.heads; head++) words = Writer(x, row, head, words).write(x.schedule[row * x.heads + head]);
  return words;
}

// ---- numbers of hidden keys

// The absolute value of a bfloat16. For float16, whose finite numbers are all within the limits: 0 if it is finite.
inline float absolute(uint16_t bits, int type) {
  uint32_t wide = (uint32_t)(bits & 0x7fff) << 16;
  if (type == RG_FLOAT16) wide = (bits & 0x7c00) == 0x7c00 ? 0x7f800000 | (bits & 0x3ff) << 13 : 0;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

template <class Number>
bool extreme(const Number *x, int32_t dim, double limit) {
  bool any = false;
  for (int32_t i = 0; i < dim; i++) any |= !(x[i] <= (Number)limit && x[i] >= -(Number)limit);
  return any;
}

inline bool extreme(const rg_tensor &x, int64_t at, int32_t dim, double limit) {
  if (x.type == RG_FLOAT32) return extreme((const float *)x.data + at, dim, limit);
  if (x.type == RG_FLOAT64) return extreme((const double *)x.data + at, dim, limit);
  bool any = false;
  for (int32_t i = 0; i < dim; i++) any |= !(absolute(((const uint16_t *)x.data)[at + i], x.type) <= (float)limit);
  return any;
}

// The keys that some query of a batch row and head may look at, by the bounds that a Writer wrote.
class VisibleKeys {
 public:
  VisibleKeys(const rg_visible &x, int32_t row, int32_t head) : mask(x, row, head) {
    const int64_t number = (int64_t)row * x.heads + head;
    lo = x.lo + number * x.q_len;
    hi = x.hi + number * x.q_len;
    // From one query to the next, a bound grows by at most one key, so there is no gap between the keys of all queries.
    for (int32_t i = 0; i < x.q_len; i++)
      if (lo[i] < hi[i]) queries.first = std::min(queries.first, i), queries.end = i + 1;
  }

  bool has(int64_t key) const {
    if (queries.first >= queries.end) return false;
    if (!mask.differs_by_query()) return lo[queries.first] <= key && key < hi[queries.end - 1] && mask.allows(0, key);
    for (int32_t i = queries.first; i < queries.end; i++)
      if (lo[i] <= key && key < hi[i] && mask.allows(i, key)) return true;
    return false;
  }

 private:
  Mask mask;
  const int32_t *lo, *hi;
  Queries queries = {INT32_MAX, 0};  // from the first that may look at a key to the last
};

inline bool visible_to_any_head(const rg_visible &call, int32_t row, int64_t key, const VisibleKeys &first_head) {
  if (first_head.has(key)) return true;
  for (int32_t head = 1; head < call.heads; head++)
    if (VisibleKeys(call, row, head).has(key)) return true;
  return false;
}

inline bool hides_extreme(const rg_visible &call, const rg_tensor &x, int32_t batch, int32_t heads, int32_t dim, double limit) {
  for (int32_t b = 0; b < batch; b++) {
    const int32_t row = call.rows == 1 ? 0 : b;
    const VisibleKeys first_head(call, row, 0);
    for (int64_t key = 0; key < call.keys; key++) {
      if (visible_to_any_head(call, row, key, first_head)) continue;
      for (int32_t h = 0; h < heads; h++)
        if (extreme(x, b * x.batch + h * x.head + key * x.row, dim, limit)) return true;
    }
  }
  return false;
}

}  // namespace visible
