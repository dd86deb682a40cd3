// From a schedule to work: the panels of a row block, and which tiles of rows have pairs in them.
//
// A panel is NR neighbouring keys, counted from the origin of the schedule. A chunk is CHUNK keys, a span RG_SPAN. All
// three lie at fixed keys, so that sums over the keys of a row have one order however the rows are divided into blocks.
#pragma once
#include "packing.h"

namespace RG_SPACE {
namespace {
static_assert(RG_SPAN % CHUNK == 0 && CHUNK % LANES == 0 && LANES % NR == 0, "panels, chunks and spans nest");

struct Run {
  int32_t first, end, kind, place;
};
struct Block {
  int32_t first, end, run, run_end;
  int rows() const { return end - first; }
};
static inline Block block_of(const rg_schedule &s, int b) { return ((const Block *)s.block)[b]; }
static inline Run run_of(const rg_schedule &s, int r) { return ((const Run *)s.run)[r]; }

struct Panel {
  int key;           // of its first lane; lanes outside all runs are masked
  int run, run_end;  // the runs that meet it; none: it is empty
  int kind;          // RG_WHOLE or RG_BOUNDED if one run of that kind covers it, else RG_BITS
};

struct Walk {  // the chunks of a block that meet one of its runs, in order
  const rg_schedule &s;
  int run, run_end;
  long next_key;
  Walk(const rg_schedule &s, const Block &b, long from) : s(s), run(b.run), run_end(b.run_end), next_key(from) {}

  // Fills the panels of the next chunk that begins before `until`, at the slots of their keys; false at the end.
  bool next(Panel *panels, long until, int *chunk_key) {
    while (run < run_end && run_of(s, run).end <= next_key) run++;
    if (run == run_end) return false;
    const long key = std::max<long>(next_key, run_of(s, run).first);
    if (key >= until) return false;
    long at = s.origin + floor_to(key - s.origin, CHUNK);
    *chunk_key = (int)at;
    int r = run;
    for (int p = 0; p < PANELS; p++, at += NR) {
      while (r < run_end && run_of(s, r).end <= at) r++;
      int e = r;
      while (e < run_end && run_of(s, e).first < at + NR) e++;
      panels[p] = {(int)at, r, e, RG_BITS};
      if (e == r + 1 && run_of(s, r).first <= at && at + NR <= run_of(s, r).end) panels[p].kind = run_of(s, r).kind;
    }
    next_key = at;
    return true;
  }
  static long floor_to(long x, long m) { return x - ((x % m) + m) % m; }
};

constexpr uint32_t EVERY = (uint32_t)((1ull << NR) - 1);  // lane of a panel

// The keys of a panel that lies in one run with bounds, as `visible` gives them.
static inline uint32_t between(const rg_schedule &s, const Panel &p, int row) {
  const int place = run_of(s, p.run).place + row;
  const long lo = std::max<long>((long)s.lo[place] - p.key, 0), hi = std::min<long>((long)s.hi[place] - p.key, NR);
  return lo < hi ? (uint32_t)((1ull << hi) - (1ull << lo)) : 0;
}

// The keys of a panel that a row may look at, one bit for each lane; `row` is counted from the first of its block.
static uint32_t visible(const rg_schedule &s, const Panel &p, int row) {
  uint32_t found = 0;
  for (int r = p.run; r < p.run_end; r++) {
    const Run one = run_of(s, r);
    long lo = one.first, hi = one.end;
    if (one.kind == RG_BOUNDED) lo = std::max<long>(lo, s.lo[one.place + row]), hi = std::min<long>(hi, s.hi[one.place + row]);
    lo = std::max<long>(lo - p.key, 0), hi = std::min<long>(hi - p.key, NR);
    if (lo >= hi) continue;
    uint32_t some = (uint32_t)((1ull << hi) - (1ull << lo));
    if (one.kind == RG_BITS) {
      const long words = ((long)one.end - one.first + 31) / 32, skip = p.key - one.first;  // below 0: lanes before the run
      const uint32_t *w = s.bits + one.place + row * words;
      const long from = std::max<long>(skip, 0), word = from / 32, off = from % 32;
      uint64_t both = w[word];
      if (word + 1 < words) both |= (uint64_t)w[word + 1] << 32;
      const uint32_t bits = (uint32_t)(both >> off);
      some &= skip < 0 ? bits << -skip : bits;
    }
    found |= some;
  }
  return found;
}

enum State : uint8_t { EMPTY, PART, FULL };

// Rows that are computed together: the rows of one block, for one query head or for several that share keys.
struct Stack {
  int rows, block_rows;
  int tiles() const { return (rows + MR - 1) / MR; }
  int tile_rows(int t) const { return std::min(MR, rows - t * MR); }
  // The head of row r of the stack, counted from its first head, and the row, counted from the first of its block.
  int head(int r) const { return rows == block_rows ? 0 : r / block_rows; }
  int row(int r) const { return rows == block_rows ? r : r % block_rows; }
};

constexpr int TILES = (RG_MOST_ROWS + MR - 1) / MR;

// Which tiles of rows have pairs in each panel of a chunk, and the masks of those that have some.
struct Tiles {
  State state[TILES][PANELS];
  uint32_t mask[RG_MOST_ROWS][PANELS];
  int first[TILES], end[TILES];  // panels from the first that is not empty to the last
  int lane[TILES], lane_end[TILES];  // lanes of the chunk from the first with a pair to the last

  // The same as whole registers.
  int begin(int t) const { return lane[t] / W * W; }
  int stop(int t) const { return up(lane_end[t], W); }
  // Whether a row of the tile has a pair in some lanes, as far as these tell.
  bool meets(int t, int from, int to) const { return lane[t] < to && from < lane_end[t]; }
  // Those of them that lie in a panel, counted from its first lane.
  int begin(int t, int p) const { return std::max(0, begin(t) - p * NR); }
  int stop(int t, int p) const { return std::min(NR, stop(t) - p * NR); }

  // Finds all this for the rows of a stack, the first of which is row `from_row` of its block.
  void lay(const rg_schedule &s, const Stack &stack, const Panel *panels, int from_row = 0) {
    for (int t = 0; t < stack.tiles(); t++) {
      first[t] = PANELS, end[t] = 0, lane[t] = 0, lane_end[t] = 0;
      Extent extent{-1, 0, 0, 0, 0};
      for (int p = 0; p < PANELS; p++) {
        uint32_t any = ~0u;
        state[t][p] = classify(s, stack, panels[p], t, p, from_row, extent, &any);
        if (state[t][p] == EMPTY) continue;
        any &= EVERY;
        if (first[t] == PANELS) first[t] = p, lane[t] = p * NR + __builtin_ctz(any);
        end[t] = p + 1, lane_end[t] = p * NR + 32 - __builtin_clz(any);
      }
    }
  }

 private:
  struct Extent {  // of the bounds of a tile's rows in one run
    int run, lo_least, lo_most, hi_least, hi_most;
  };

  // The state of tile t in panel p, which is number `slot` of the chunk. Writes the masks of its rows; `pairs` gets the lanes in
  // which a row of a PART has a pair.
  State classify(const rg_schedule &s, const Stack &stack, const Panel &p, int t, int slot, int from_row, Extent &x, uint32_t *pairs) {
    if (p.run == p.run_end) return EMPTY;
    if (p.kind == RG_WHOLE) return FULL;
    const int r0 = t * MR, m = stack.tile_rows(t);
    if (p.kind == RG_BOUNDED) {
      if (x.run != p.run) x = extent_of(s, stack, p.run, r0, m, from_row);
      if (x.lo_most <= p.key && x.hi_least >= p.key + NR) return FULL;
      if (x.lo_least >= p.key + NR || x.hi_most <= p.key) return EMPTY;
    }
    uint32_t any = 0, each = ~0u;
    const bool alike = p.run_end == p.run + 1 && run_of(s, p.run).kind == RG_WHOLE;  // the end of a run: one mask for all rows
    for (int r = r0; r < r0 + m; r++) {
      const int row = from_row + stack.row(r);
      const uint32_t bits = alike && r > r0 ? mask[r0][slot] : p.kind == RG_BOUNDED ? between(s, p, row) : visible(s, p, row);
      mask[r][slot] = bits, any |= bits, each &= bits;
    }
    *pairs = any;
    return any == 0 ? EMPTY : each == EVERY ? FULL : PART;
  }

  static Extent extent_of(const rg_schedule &s, const Stack &stack, int run, int r0, int m, int from_row) {
    Extent x{run, INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN};
    const int place = run_of(s, run).place + from_row;
    for (int r = r0; r < r0 + m; r++) {
      const int lo = s.lo[place + stack.row(r)], hi = s.hi[place + stack.row(r)];
      if (lo >= hi) {
        x.lo_most = INT32_MAX;  // an empty row: the tile is full nowhere
        continue;
      }
      x.lo_least = std::min(x.lo_least, lo), x.lo_most = std::max(x.lo_most, lo);
      x.hi_least = std::min(x.hi_least, hi), x.hi_most = std::max(x.hi_most, hi);
    }
    return x;
  }
};

// -inf over the masked scores of a row, in panels [p0, p1)
static inline void mask_row(const Tiles &tiles, int t, int r, int p0, int p1, real *s) {
  for (int p = p0; p < p1; p++) {
    if (tiles.state[t][p] == FULL) continue;
    const uint32_t bits = tiles.state[t][p] == EMPTY ? 0 : tiles.mask[r][p];
    real *x = s + p * NR;
    for (int v = 0; v < NV; v++) store(x + v * W, shown(load(x + v * W), bits >> (v * W)));
  }
}
}  // namespace
}  // namespace RG_SPACE
