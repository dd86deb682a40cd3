// Which keys the queries of each batch row may look at, where a call brings that as data: spans of keys, a boolean for each
// key, and a window around each query. This file writes the schedules that the kernels read. It uses no vectors.
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

// Keys of one batch row by a boolean for each; all of them where there are no booleans.
class Mask {
 public:
  Mask(const rg_visible &x, int32_t row) : first(x.mask ? x.mask + row * x.mask_row : nullptr), step(x.mask_key) {}

  bool allows(int64_t key) const { return !first || first[key * step]; }

  // From the first allowed key of a span to its last; the span itself where all are allowed.
  Span hull(Span span) const {
    while (!span.empty() && !allows(span.start)) span.start++;
    while (!span.empty() && !allows(span.stop - 1)) span.stop--;
    return span;
  }

  bool allows_all(Span span) const {
    if (!first) return true;
    for (int64_t key = span.start; key < span.stop; key++)
      if (!allows(key)) return false;
    return true;
  }

  // A bit for each key of a span, 32 in a word.
  void write_bits(Span span, uint32_t *words) const {
    const int64_t count = (span.stop - span.start + 31) / 32;
    memset(words, 0, sizeof(uint32_t) * count);
    for (int64_t key = span.start; key < span.stop; key++) {
      const int64_t at = key - span.start;
      words[at / 32] |= (uint32_t)allows(key) << (at % 32);
    }
  }

 private:
  const uint8_t *first;
  int64_t step;
};

// The nearest number from the start of a span to its stop; its start if the span is empty.
inline int64_t clamp(int64_t x, Span span) { return std::max(std::min(x, span.stop), span.start); }

// The span of a batch row within the keys of the call.
inline Span span_of(const rg_visible &x, int32_t row) {
  const Span all = {0, x.keys};
  const int64_t start = x.start ? clamp(x.start[row * x.start_row], all) : 0;
  const int64_t stop = x.stop ? clamp(x.stop[row * x.stop_row], all) : x.keys;
  return {start, std::max(start, stop)};
}

// The end of a window whose limit may be RG_NO_LIMIT. Positions and limits are far below 2^62, as the callers check.
inline int64_t begin_of(const rg_visible &x, int64_t position, Span keys) {
  return x.left == RG_NO_LIMIT ? keys.start : clamp(position - x.left, keys);
}
inline int64_t end_of(const rg_visible &x, int64_t position, Span keys) {
  return x.right == RG_NO_LIMIT ? keys.stop : clamp(position + x.right + 1, keys);
}

// Writes the schedule of one batch row.
class Writer {
 public:
  Writer(const rg_visible &x, int32_t row, int64_t words_before)
      : call(x), mask(x, row), words_end(words_before), lo(x.lo + (int64_t)row * x.q_len), hi(x.hi + (int64_t)row * x.q_len) {
    const int64_t blocks = ((int64_t)x.q_len + RG_ROWS_OF_BITS - 1) / RG_ROWS_OF_BITS;
    block = x.block + 4 * blocks * row;
    run = x.run + 4 * blocks * row;
    span = span_of(x, row);
    const Span every = {0, x.keys}, seen_of_mask = mask.hull(every);
    has_holes = !mask.allows_all(seen_of_mask);
    // Where the sums of a row begin, and the size of row blocks, which orders the sums of gradients, are those of a plan that
    // was made for these keys alone: results have the same bits.
    origin = std::max(span.start, seen_of_mask.empty() ? 0 : seen_of_mask.start);
    if (has_holes && x.left != RG_NO_LIMIT) origin = std::max(origin, -x.left);
    span = mask.hull(span);
    position = x.position[row * x.position_row];
  }

  // The words of bits that are used after this row. Where they exceed the room, the bits are not written.
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
  int64_t origin;    // where its panels begin
  bool has_holes;    // whether the mask hides keys between others
  int64_t words_end;
  int32_t *block, *run, *lo, *hi;
  int64_t alike_place = -1;  // bits of a block whose queries may all look at the same keys, which the next block may share
  Span alike_keys = {0, 0};

  void write_bounds() {
    for (int32_t i = 0; i < call.q_len; i++) {
      const int64_t first = begin_of(call, position + i, span);
      lo[i] = (int32_t)first;
      hi[i] = (int32_t)std::max(first, end_of(call, position + i, span));
    }
  }

  void write_block(int32_t number, int32_t first, int32_t end) {
    // Both bounds grow with the query, so these hold the keys of all.
    const Span keys = mask.hull({lo[first], hi[end - 1]});
    for (int32_t i = first; i < end; i++) lo[i] = (int32_t)clamp(lo[i], keys), hi[i] = (int32_t)clamp(hi[i], keys);
    const bool alike = lo[end - 1] == keys.start && hi[first] == keys.stop;
    int32_t kind = alike ? RG_WHOLE : RG_BOUNDED, place = first;
    if (!mask.allows_all(keys)) {
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

  // The bits of the rows of a block, each of which has all its words.
  void write_bits(Span keys, int32_t first, int32_t end, bool alike) {
    const int64_t words = (keys.stop - keys.start + 31) / 32, begin = words_end;
    words_end += words * (end - first);
    if (words_end > call.words) return;
    uint32_t *of_row = call.bits + begin;
    mask.write_bits(keys, of_row);
    for (int32_t i = first + 1; i < end; i++) memcpy(of_row + (i - first) * words, of_row, sizeof(uint32_t) * words);
    for (int32_t i = first; i < end && !alike; i++) keep(of_row + (i - first) * words, keys, lo[i], hi[i]);
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

// The words of bits that the schedules of a call need. Where they exceed its room, some bits are missing.
inline int64_t write_all(const rg_visible &x) {
  int64_t words = 0;
  for (int32_t row = 0; row < x.rows; row++) words = Writer(x, row, words).write(x.schedule[row]);
  return words;
}

// ---- numbers of hidden keys

// The size of a number of a half-precision type, or more: what matters is whether it is NaN or infinite.
inline float size_of(uint16_t bits, int type) {
  uint32_t wide = (uint32_t)(bits & 0x7fff) << 16;
  if (type == RG_FLOAT16) wide = (bits & 0x7c00) == 0x7c00 ? 0x7f800000 | (bits & 0x3ff) << 13 : 0;
  float size;
  memcpy(&size, &wide, sizeof size);
  return size;
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
  for (int32_t i = 0; i < dim; i++) any |= !(size_of(((const uint16_t *)x.data)[at + i], x.type) <= (float)limit);
  return any;
}

inline bool hides_extreme(const rg_visible &call, const rg_tensor &x, int32_t batch, int32_t heads, int32_t dim, double limit) {
  for (int32_t b = 0; b < batch; b++) {
    const int32_t row = call.rows == 1 ? 0 : b;
    const Mask mask(call, row);
    const Span span = span_of(call, row);
    for (int64_t key = 0; key < call.keys; key++) {
      if (key >= span.start && key < span.stop && mask.allows(key)) continue;
      for (int32_t h = 0; h < heads; h++)
        if (extreme(x, b * x.batch + h * x.head + key * x.row, dim, limit)) return true;
    }
  }
  return false;
}

}  // namespace visible
