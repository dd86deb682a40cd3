// The backward pass of recurrent mechanisms: chunks in reverse order, each from the memory before it, which was kept.
#pragma once
#include "recurrence.h"

namespace RG_SPACE {
namespace {
// The gradients of the chunks of one value head, from the last to the first.
struct Back {
  Chunk k;
  const rg_recurrence &c;
  const rg_recurrence_gradients &g;
  const Extent z;
  real *s, *ds, *st, *dst;      // the memory before the chunk and the gradient of that behind it; both as panels
  real *x, *u, *xt, *du, *dout; // x_i, u_i, x as panels, the gradient of u, that of the outputs of one query head
  real *q, *qg, *pairs, *G;     // queries, these times e_i0, P_ij, and the gradient of the pairs (see `send`)
  real *dq, *dk, *dg;           // dg: the gradient of the log decays
  real *from_row;               // the gradient of queries or keys times e_i0
  real *by_row, *by_key;        // parts of dg from e_i0 of each row and e_nj of each key, before they are summed over positions
  real *T;                      // two matrices for send_by_channel
  real *whole;                  // the part of dg from e_n0
  alignas(64) real bd[RC];      // the gradient of the strengths
  alignas(64) real crossing[RC];  // the part of dg from e_ij of one decay for each key: the sum over pairs that position i lies between

  static size_t numbers(const Extent &z) {
    return Chunk::numbers(z) + 2 * z.dp * z.es + 2 * (size_t)z.dp * z.ep + RC * (size_t)(4 * z.es + z.ep + 11 * z.ds + 2 * RS) + z.dp + 4096;
  }
  Back(Workspace &w, const rg_recurrence &call, const rg_recurrence_gradients &gradients)
      : k(w, call), c(call), g(gradients), z(call) {
    s = w.take(z.dp * z.es), ds = w.take(z.dp * z.es), st = w.take(z.dp * z.ep), dst = w.take(z.dp * z.ep);
    for (real **to : {&x, &u, &du, &dout}) *to = w.take(RC * z.es);
    for (real **to : {&q, &qg, &dq, &dk, &dg, &from_row, &by_row, &by_key}) *to = w.take(RC * z.ds);
    xt = w.take(RC * z.ep), pairs = w.take(RC * RS), G = w.take(RC * RS), T = w.take(2 * RC * z.ds), whole = w.take(z.dp);
  }

  // The gradient G of row_i e_ij . k_j u_j by the pairs, to those of the rows, the keys, the strengths and the decays.
  // own: whether a row meets its own key. from_row: the gradient of the rows times their decays from the start, rows_g.
  void send(const real *rows, const real *rows_g, const real *P, int own, real *drows) {
    alignas(64) real sums[RC] = {};
    const bool by_channel = k.by_channel();
    for (int i = RC - 1; i >= 0; i--) {
      real *Gi = G + i * RS;
      if (i >= k.m) {
        std::memset(Gi, 0, RC * sizeof(real));
        continue;
      }
      Lanes before{};
      for (int j = 0; j < RC; j += W) {
        if (j > i) {
          store(Gi + j, vf{});
          continue;
        }
        const vf e = first_lanes(load(Gi + j), i - j + own), y = load(k.b + j), w = e * load(P + i * RS + j);
        store(bd + j, own ? load(bd + j) : load(bd + j) + w), store(sums + j, madd(w, y, load(sums + j)));
        store(Gi + j, by_channel ? e * y : e * y * load(k.between + i * RS + j));
        before.part[j / W % REGISTERS] += first_lanes(load(sums + j), i - j);  // of the pairs with j < i <= their row
      }
      crossing[i] += sum(before);
    }
    if (by_channel) {
      send_by_channel(rows, own, drows);
    } else {
      multiply(k.m, k.m, z.dp, G, RS, 1, k.k, z.ds, drows, z.ds, &ONE, 0, 1, LOWER);
      multiply(k.m, k.m, z.dp, G, 1, RS, rows, z.ds, dk, z.ds, &ONE, 0, 1, UPPER);
    }
    for (int i = 0; i < k.m; i++)
      for (int j = 0; j < z.dp; j += W) {
        const long o = i * z.ds + j;
        const vf d = load(from_row + o), e = by_channel ? load(k.from_start + o) : all(k.first[i]);
        store(drows + o, madd(d, e, load(drows + o))), store(by_row + o, madd(d, load(rows_g + o), load(by_row + o)));
      }
  }

  void send_by_channel(const real *rows, int own, real *drows) {
    for (int s = 0; s < k.m; s += DIRECT)
      for (int o = 0; o < z.dp; o += W) {
        vf e[DIRECT];
        const auto place = [&](const real *matrix, int i) { return const_cast<real *>(matrix) + (s + i) * z.ds + o; };
        for (int i = 0; i < DIRECT && s + i < k.m; i++) {
          const vf row = load(place(rows, i)), a = load(place(k.a, i));
          vf drow = load(place(drows, i)), run{};
          for (int j = 0; j < i; j++) {
            const vf w = all(G[(s + i) * RS + s + j]), key = load(place(k.k, j)), t = w * row * (e[j] *= a);
            drow = madd(w, e[j] * key, drow), run = madd(t, key, run);
            store(place(dk, j), load(place(dk, j)) + t), store(place(dg, j + 1), load(place(dg, j + 1)) + run);
          }
          e[i] = all(1);
          if (own) {
            const vf w = all(G[(s + i) * RS + s + i]);
            drow = madd(w, load(place(k.k, i)), drow), store(place(dk, i), madd(w, row, load(place(dk, i))));
          }
          store(place(drows, i), drow);
        }
      }
    k.start_halves();
    real *dr = T, *dc = T + RC * z.ds, *r = k.right, *l = k.left;
    for (int half = DIRECT; half < k.m; half *= 2) {
      for (int s = 0; s + half < k.m; s += 2 * half) {
        const int mid = s + half;
        const real *held = G + mid * RS + s, *rise = k.rise + mid * z.ds, *fall = k.fall + s * z.ds;
        k.times(rows + mid * z.ds, rise, half, r), k.times(k.k + s * z.ds, fall, half, l);
        multiply(half, half, z.dp, held, RS, 1, l, z.ds, dr, z.ds);
        multiply(half, half, z.dp, held, 1, RS, r, z.ds, dc, z.ds);
        for (int o = 0; o < z.dp; o += W) {
          vf later{}, earlier{};
          for (int n = 0; n < half; n++) {
            const int i = half - 1 - n;
            const long at_row = (long)i * z.ds + o, at_key = (long)n * z.ds + o;
            real *drow = drows + mid * z.ds + at_row, *dkey = dk + s * z.ds + at_key;
            real *g_row = dg + mid * z.ds + at_row, *g_key = dg + s * z.ds + at_key;
            const vf of_row = load(dr + at_row), of_key = load(dc + at_key);
            store(drow, madd(of_row, load(rise + at_row), load(drow)));
            store(dkey, madd(of_key, load(fall + at_key), load(dkey)));
            later = madd(of_row, load(r + at_row), later);
            store(g_row, load(g_row) + later), store(g_key, load(g_key) + earlier);
            earlier = madd(of_key, load(l + at_key), earlier);
          }
        }
      }
      if (2 * half < RC) k.double_halves(half);
    }
  }

  // a matrix (m, v_dim) times the transpose of another, whose rows are in panels
  void by_panels(const real *a, const real *panels, int columns, real *to, long stride, real sign, bool lower) const {
    for (int p = 0; p < columns; p += NR)
      multiply(k.m, z.ep, NR, a, z.es, 1, panels + (long)p * z.ep, NR, to + p, stride, nullptr, 0, sign, WHOLE, lower ? p : 0);
  }

  static void put(const rg_tensor &x, int batch, int head, int row, const real *from, int n, real factor, bool add) {
    real *to = numbers_at<real>(x, batch, head, row);
    for (int i = 0; i < n; i++) to[i] = add ? to[i] + factor * from[i] : factor * from[i];
  }

  void chunk(int batch, int head, int t) {
    const long unit = (long)batch * c.kv_heads + head, chunks = (c.length + RC - 1) / RC;
    k.read(batch, head, t * RC);
    open_memory(z, (const real *)c.kept + (unit * chunks + t) * z.d * z.e, s);
    if (c.delta)
      for (int i = 0; i < k.m; i++)
        read_row(REAL, (const char *)((const real *)c.solved + (unit * c.length + k.row + i) * z.e), z.e, 1, x + i * z.es, z.ep);
    else
      k.read_values(c.v, head, x);
    k.strengthened(x, u);
    k.prefetch_keys(k.row - RC);
    if (!c.delta) prefetch_rows(c, c.v, batch, head, k.row - RC, z.e);
    in_panels(s, z.es, z.dp, z.ep, st), in_panels(ds, z.es, z.dp, z.ep, dst), in_panels(x, z.es, k.m, z.ep, xt);
    for (real *to : {dk, dg, by_row}) std::memset(to, 0, RC * z.ds * sizeof(real));
    std::memset(bd, 0, sizeof bd), std::memset(crossing, 0, sizeof crossing);
    by_panels(u, dst, z.dp, by_key, z.ds, 1, false);  // the gradient of kd
    multiply(k.m, z.dp, z.ep, k.kd, z.ds, 1, ds, z.es, du, z.es);
    for (int i = 0; i < z.dp; i++) {
      const real w = k.whole[k.by_channel() ? i : 0];
      whole[i] = w * dot(ds + i * z.es, s + i * z.es, z.ep);
      for (int j = 0; j < z.ep; j += W) store(ds + i * z.es + j, load(ds + i * z.es + j) * all(w));
    }
    const bool shared = head % (c.kv_heads / c.key_heads);  // an earlier value head has written to the same keys
    for (int j = 0; g.dout.data && j < k.group(); j++) {
      const int out = c.heads < c.kv_heads ? head : k.query_head(j);
      k.read_queries(j, q), k.pairs(q, pairs), k.decayed(q, qg), k.read_values(g.dout, out, dout);
      prefetch_rows(c, c.q, batch, k.query_head(j), k.row - RC, z.d), prefetch_rows(c, g.dout, batch, out, k.row - RC, z.e);
      multiply(k.m, k.m, z.ep, pairs, 1, RS, dout, z.es, du, z.es, &ONE, 0, 1, UPPER);
      multiply(z.dp, k.m, z.ep, qg, 1, z.ds, dout, z.es, ds, z.es, &ONE, 0, 1);
      by_panels(dout, st, z.dp, from_row, z.ds, 1, false);
      by_panels(dout, xt, up(k.m, NR), G, RS, 1, true);
      std::memset(dq, 0, RC * z.ds * sizeof(real));
      send(q, qg, pairs, 1, dq);
      for (int i = 0; i < k.m; i++)
        put(g.dq, batch, k.query_head(j), k.row + i, dq + i * z.ds, z.d, (real)c.scale, shared && c.heads < c.kv_heads);
    }
    for (int i = 0; i < k.m; i++) bd[i] += dot(du + i * z.es, x + i * z.es, z.ep);
    k.strengthened(du, du);
    if (c.delta) {
      k.solve(du, z.ep, true);
      multiply(z.dp, k.m, z.ep, k.kg, 1, z.ds, du, z.es, ds, z.es, &ONE, 0, -1);
      by_panels(du, st, z.dp, from_row, z.ds, -1, false);
      by_panels(du, xt, up(k.m, NR), G, RS, -1, true);
      send(k.k, k.kg, k.kk, 0, dk);
    }
    for (int i = 0; i < k.m; i++) {
      put(g.dv, batch, head, k.row + i, du + i * z.es, z.e, 1, false);
      if (g.dstrength.data) put(g.dstrength, batch, head, k.row + i, bd + i, 1, 1, false);
      for (int j = 0; j < z.dp; j += W) {
        const long o = i * z.ds + j;
        const vf e = k.by_channel() ? load(k.to_end + o) : all(k.last[i]), d = load(by_key + o);
        store(dk + o, madd(d, e, load(dk + o))), store(by_key + o, d * load(k.kd + o));
      }
      put(g.dk, batch, key_head_of(head), k.row + i, dk + i * z.ds, z.d, 1, shared);
    }
    if (!g.dlog_decay.data) return;
    if (k.by_channel())
      for (int j = 0; j < z.dp; j += W) {
        vf later{}, earlier = load(whole + j);
        for (int i = k.m - 1; i >= 0; i--) {
          const long o = i * z.ds + j;
          later += load(by_row + o), store(dg + o, load(dg + o) + later);
        }
        for (int i = 0; i < k.m; i++) {
          const long o = i * z.ds + j;
          store(dg + o, load(dg + o) + earlier), earlier += load(by_key + o);
        }
      }
    real later = 0, earlier = 0;
    for (int i = 0; i < z.dp; i++) earlier += whole[i];
    for (int i = k.m - 1; i >= 0 && !k.by_channel(); i--) later += total(by_row + i * z.ds), dg[i * z.ds] = crossing[i] + later;
    for (int i = 0; i < k.m; i++) {
      if (!k.by_channel()) dg[i * z.ds] += earlier, earlier += total(by_key + i * z.ds);
      put(g.dlog_decay, batch, head, k.row + i, dg + i * z.ds, k.by_channel() ? z.d : 1, 1, false);
    }
  }
  int key_head_of(int head) const { return head / (c.kv_heads / c.key_heads); }
  real total(const real *x) const {
    Lanes t{};
    for (int i = 0; i < z.dp; i += W) t.part[i / W % REGISTERS] += load(x + i);
    return sum(t);
  }

  void head(int batch, int head) {
    const long unit = (long)batch * c.kv_heads + head, size = (long)z.d * z.e;
    if (g.dafter)
      open_memory(z, (const real *)g.dafter + unit * size, ds);
    else
      std::memset(ds, 0, z.dp * z.es * sizeof(real));
    for (int t = (c.length - 1) / RC; t >= 0; t--) chunk(batch, head, t);
    close_memory(z, ds, (real *)g.dbefore + unit * size);
  }
};

// The value heads that share a key head are one task, since their gradients of keys and queries are added in order.
static int recur_back_all(const rg_recurrence &c, const rg_recurrence_gradients &g) {
  const int shared = c.kv_heads / c.key_heads;
  const auto one = [&](long unit) {
    const FlushToZero flushing;
    Workspace &w = workspace();
    if (!w.reserve(sizeof(real) * Back::numbers(Extent(c)) + 8192)) return false;
    Back back(w, c, g);
    for (int i = 0; i < shared; i++) back.head((int)(unit / c.key_heads), (int)(unit % c.key_heads) * shared + i);
    return true;
  };
  return run_tasks(c.threads, (long)c.batch * c.key_heads, one) ? RG_NO_MEMORY : RG_OK;
}
}  // namespace
}  // namespace RG_SPACE
