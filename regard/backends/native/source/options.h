// What happens to scores and weights beside the softmax: a softcap, a bias, and dropout.
#pragma once
#include "packing.h"

namespace RG_SPACE {
namespace {
// A score s becomes softcap * tanh(s / softcap), in powers of 2.
static inline void cap_row(const rg_call &c, real *s, int begin, int end) {
  const vf into = all((real)(1 / c.softcap)), out_of = all((real)c.softcap * LOG2E);
  for (int j = begin; j < end; j += W) store(s + j, tanh(load(s + j) * into) * out_of);
}

// Scores are powers of 2, so a bias is multiplied by LOG2E = 1.44, and the largest finite numbers would become infinite. What a
// number exceeds FAR by is divided by NEARER before: it stays finite, and larger numbers stay larger. Infinities and NaN stay
// what they are.
constexpr real FAR = SINGLE ? (real)2.3e38 : (real)1.2e308, NEARER = 32, MOST = SINGLE ? (real)3.4028234e38 : (real)1.7976931348623157e308;

static inline vf drawn_in(vf x) {
  const vf near = smaller(all(FAR), larger(all(-FAR), x));
  return madd(x - near, all(1 / NEARER), near);
}

// The natural logarithm of what is 2^x times a sum, where drawn_in may have drawn x in.
static inline real natural(real x, real sum) {
  const real found = LN2 * (x + std::log2(sum)), near = std::min(FAR, std::max(-FAR, found));
  if (found == near || !(std::fabs(found) <= MOST)) return found;
  return std::min(MOST, std::max(-MOST, near + NEARER * (found - near)));
}

struct Bias {  // of one row: the numbers of the keys from first_key on
  const real *row;
  long key, first_key, keys;

  Bias(const rg_call &c, int batch, int head, int q) : key(c.bias.key), first_key(c.first_key), keys(c.keys) {
    row = (const real *)c.bias.data + c.bias.at[batch] + head * c.bias.head + q * c.bias.row;
  }

  // The numbers of n keys from `at` on, or NULL if they do not lie beside each other.
  const real *dense(long at, int n) const {
    const long skip = at - first_key;
    return key == 1 && skip >= 0 && skip + n <= keys ? row + skip : nullptr;
  }

  // Add it to n scores, a multiple of W, of the keys from `at` on; lanes of keys that do not exist are left alone. A bias
  // of -inf masks the pair, whatever its score is.
  void add(long at, real *s, int n) const {
    const long skip = at - first_key;
    if (key == 0) {
      for (int j = 0; j < n; j += W) store(s + j, sum(load(s + j), all(row[0])));
    } else if (skip >= 0 && skip + n <= keys) {
      for (int j = 0; j < n; j += W) store(s + j, sum(load(s + j), load(row + skip + j)));
    } else {
      for (int j = 0; j < n; j += W) add_register(skip + j, s + j);
    }
  }

  // The same for one register, the keys of which begin `skip` keys after the first one.
  void add_register(long skip, real *s) const {
    const int begin = (int)std::max(0L, -skip), end = (int)std::min<long>(W, keys - skip);
    if (begin == 0 && end > 0) return store(s, sum(load(s), end < W ? load_some(row + skip, end) : load(row + skip)));
    for (int j = begin; j < end; j++) s[j] = sum(all(s[j]), all(row[skip + j]))[0];
  }

  static vf sum(vf score, vf bias) {
    const vf found = madd(drawn_in(bias), all(LOG2E), score);
    return bias == all(-INF) ? bias : found;
  }
};

// Dropout by the counter hash of dropout.py: a weight is kept if mix(state of its row + (key + 1) * stride) is at least
// dropout * 2^53, times 2^11.
constexpr uint64_t STRIDES[] = {0x9E3779B97F4A7C15u, 0xC2B2AE3D27D4EB4Fu, 0x165667B19E3779F9u, 0x85EBCA77C2B2AE63u};
constexpr uint64_t MIX[] = {0xBF58476D1CE4E5B9u, 0x94D049BB133111EBu};

template <class T>
static inline T mixed(T x) {
  x = (x ^ (x >> 30)) * MIX[0];
  x = (x ^ (x >> 27)) * MIX[1];
  return x ^ (x >> 31);
}

struct Dropout {
  uint64_t least;  // the smallest state of the hash whose weight is kept
  real factor;     // of kept weights
  explicit Dropout(const rg_call &c)
      : least(c.dropout < 1 ? (uint64_t)(c.dropout * 9007199254740992.0) << 11 : UINT64_MAX),
        factor(c.dropout < 1 ? (real)(1 / (1 - c.dropout)) : 0) {}

  static uint64_t row_state(const rg_call &c, int batch, int head, int q) {
    uint64_t state = c.dropout_seed;
    state = mixed(state + ((uint64_t)batch + 1) * STRIDES[0]);
    state = mixed(state + ((uint64_t)head + 1) * STRIDES[1]);
    return mixed(state + ((uint64_t)(c.start[batch] + q) + 1) * STRIDES[2]);
  }

  // x where the weight of its key is kept, 0 elsewhere; the keys of the lanes begin at `key`.
  vf kept(vf x, uint64_t row, long key) const {
    constexpr int LENGTH = W / HALVES;
    vu state[HALVES];
    const uint64_t first = row + (uint64_t)(key + 1) * STRIDES[3];
    for (int half = 0; half < HALVES; half++) {
      for (int i = 0; i < LENGTH; i++) state[half][i] = (uint64_t)(half * LENGTH + i) * STRIDES[3];
      state[half] = mixed(state[half] + first);
    }
    return kept_where(state, least, x);
  }
};
}  // namespace
}  // namespace RG_SPACE
