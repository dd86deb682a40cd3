// What the models are made of: attention with its memory, feed-forward, residuals. Arrays hold the
// rows of several texts of one length, one text after the other.

import {ACTIVATIONS, added, biased, filled, linear} from "./numbers.js";
import {pattern} from "./patterns.js";
import {accelerated} from "./simd.js";

/** The named tensors of a model. */
export class Weights {
  constructor(tensors) {
    this.tensors = tensors;
    this.fast = accelerated(tensors);
  }

  of(name) {
    return {weight: this.tensors[`${name}.weight`], bias: this.tensors[`${name}.bias`]};
  }

  project(name, x, width) {
    const {weight, bias} = this.of(name);
    return this.multiply(x, weight, bias, width);
  }

  /** x W' + b for all rows of x. */
  multiply(x, weight, bias, width) {
    const y = this.fast?.(x, weight, width);
    return y ? biased(y, bias) : linear(x, weight, bias, width);
  }
}

/**
 * What a reader changes: heads that give nothing, a factor of all scores, what logits are divided
 * by, other patterns; and whether weights are kept.
 */
export class Settings {
  constructor({off = [], scale = 1, temperature = 1, patterns = {}, keeps = false} = {}) {
    Object.assign(this, {scale, temperature, patterns, allows: {}});
    this.off = new Set(off.map((one) => one.join(" ")));
    this.kept = keeps ? {} : null; // by kind of attention, then by layer
  }

  /**
   * The keys that the queries of an attention may look at; what reads from left to right stays so.
   */
  allowed({kind, causal, allowed}) {
    if (!this.patterns[kind]) return allowed;
    return (this.allows[kind] ??= pattern(
      causal ? `causal & (${this.patterns[kind]})` : this.patterns[kind],
    ));
  }

  /** Logits over the temperature, in place. */
  tempered(logits) {
    if (this.temperature !== 1)
      for (let at = 0; at < logits.length; at += 1) logits[at] /= this.temperature;
    return logits;
  }

  /** The kept weights of a kind of attention, all layers in one array. */
  weights(kind) {
    const layers = this.kept[kind];
    const {heads, rows, columns} = layers[0];
    const size = heads * rows * columns;
    const weights = new Float32Array(layers.length * size);
    layers.forEach((one, layer) => weights.set(one.weights, layer * size));
    return {shape: [layers.length, heads, rows, columns], weights};
  }
}

/** The keys and values of some texts, with room for as many positions. */
export class Memory {
  constructor(texts, room, width) {
    Object.assign(this, {
      room,
      width,
      count: 0,
      keys: new Float32Array(texts * room * width),
      values: new Float32Array(texts * room * width),
    });
  }
}

/**
 * Attention of one layer. kind: which attention of the model it is; the address of a head is (kind,
 * layer, head).
 */
export class Attention {
  constructor(
    weights,
    name,
    {kind, layer, dim, heads, headDim, text, causal = false, base = 0, slopes = null},
  ) {
    const kvHeads = weights.of(`${name}.to_k`).weight.length / dim / headDim;
    Object.assign(this, {
      weights,
      name,
      kind,
      layer,
      dim,
      heads,
      headDim,
      kvHeads,
      causal,
      base,
      slopes,
      turns: [],
      allowed: pattern(causal ? `causal & (${text})` : text),
    });
  }

  memory(texts, room) {
    return new Memory(texts, room, this.kvHeads * this.headDim);
  }

  /** Append the keys and values of x to a memory. */
  remember(x, texts, memory) {
    const keys = this.#rotated(this.#project("to_k", x), texts, this.kvHeads, memory.count);
    const values = this.#project("to_v", x);
    const {room, width, count} = memory;
    const size = keys.length / texts;
    for (let text = 0; text < texts; text += 1) {
      const to = (text * room + count) * width;
      memory.keys.set(keys.subarray(text * size, (text + 1) * size), to);
      memory.values.set(values.subarray(text * size, (text + 1) * size), to);
    }
    memory.count += size / width;
    return memory;
  }

  /**
   * What x reads from a memory. start: the position of the first row of each text; one memory may
   * serve all texts.
   */
  read(x, texts, start, memory, settings) {
    const {heads, headDim, kvHeads, slopes} = this;
    const rows = x.length / this.dim / texts;
    const {count, width} = memory;
    const q = this.#rotated(this.#project("to_q", x), texts, heads, start);
    const y = new Float32Array(q.length);
    const kept = settings.kept && new Float32Array(heads * rows * count);
    const scores = new Float64Array(count);
    const allowed = settings.allowed(this);
    const scale = settings.scale / Math.sqrt(headDim);
    // between the keys of two texts
    const apart = memory.keys.length === memory.room * width ? 0 : memory.room * width;
    for (let head = 0; head < heads; head += 1) {
      const off = settings.off.has(`${this.kind} ${this.layer} ${head}`);
      const kv = Math.floor((head * kvHeads) / heads) * headDim;
      for (let row = 0; row < texts * rows; row += 1) {
        const place = row % rows;
        const keys = allowed(start + place, count, head);
        const from = (row * heads + head) * headDim;
        const first = ((row - place) / rows) * apart + kv;
        let [most, sum] = [-Infinity, 0];
        for (let at = 0; at < keys.length; at += 1) {
          const key = first + keys[at] * width;
          let score = 0;
          for (let i = 0; i < headDim; i += 1) score += q[from + i] * memory.keys[key + i];
          scores[at] = score =
            score * scale - (slopes ? slopes[head] * Math.abs(keys[at] - start - place) : 0);
          if (score > most) most = score;
        }
        for (let at = 0; at < keys.length; at += 1) sum += scores[at] = Math.exp(scores[at] - most);
        for (let at = 0; at < keys.length; at += 1) {
          const weight = scores[at] / sum;
          const key = first + keys[at] * width;
          if (kept) kept[(head * rows + row) * count + keys[at]] = weight;
          if (!off)
            for (let i = 0; i < headDim; i += 1) y[from + i] += weight * memory.values[key + i];
        }
      }
    }
    if (kept)
      (settings.kept[this.kind] ??= [])[this.layer] = {heads, rows, columns: count, weights: kept};
    return this.weights.project(`${this.name}.to_output`, y, heads * headDim);
  }

  #project(part, x) {
    return this.weights.project(`${this.name}.${part}`, x, this.dim);
  }

  /** Heads rotated to their positions: pair (c, c + half) by the angle p base^(-2c / size). */
  #rotated(x, texts, heads, start) {
    if (!this.base) return x;
    const size = this.headDim;
    const half = size / 2;
    const rows = x.length / size / heads;
    for (let row = 0; row < rows; row += 1) {
      const turn = (this.turns[start + (row % (rows / texts))] ??= this.#turn(
        start + (row % (rows / texts)),
      ));
      for (let from = row * heads * size, end = from + heads * size; from < end; from += size)
        for (let c = 0; c < half; c += 1) {
          const one = x[from + c];
          const two = x[from + c + half];
          x[from + c] = one * turn[c] - two * turn[c + half];
          x[from + c + half] = one * turn[c + half] + two * turn[c];
        }
    }
    return x;
  }

  /** The cosines of a position's angles, and the sines. */
  #turn(position) {
    const half = this.headDim / 2;
    return Float32Array.from({length: 2 * half}, (_, at) =>
      (at < half ? Math.cos : Math.sin)(position * this.base ** (-(at % half) / half)),
    );
  }
}

/** The last row of each text: (texts, dim). */
export function lastRows(x, texts, dim) {
  const rows = x.length / dim / texts;
  return Float32Array.from(
    {length: texts * dim},
    (_, at) => x[(Math.floor(at / dim) * rows + rows - 1) * dim + (at % dim)],
  );
}

export function feedForward(weights, name, activation, x, dim) {
  const activate = ACTIVATIONS[activation];
  const wide = weights.project(`${name}.widen`, x, dim);
  const gate = weights.of(`${name}.gate`).weight ? weights.project(`${name}.gate`, x, dim) : null;
  for (let at = 0; at < wide.length; at += 1)
    wide[at] = gate ? wide[at] * activate(gate[at]) : activate(wide[at]);
  return weights.project(`${name}.narrow`, wide, wide.length / (x.length / dim));
}

/** x + part(norm(x)), or with the norm last norm(x + part(x)). */
export function residual(x, norm, first, part) {
  return first ? added(x, part(norm(x))) : norm(added(x, part(x)));
}

/**
 * Rows of a table with positions added. erased: for each text the places whose vector is `mean`.
 */
export function embedded(
  table,
  ids,
  {dim, start = 0, factor = 1, positions = null, erased = [null], mean = null},
) {
  const x = new Float32Array(erased.length * ids.length * dim);
  erased.forEach((gone, text) =>
    ids.forEach((id, row) => {
      const from = gone?.has(row) ? mean : table.subarray(id * dim, (id + 1) * dim);
      const add = positions?.(start + row);
      for (let i = 0, to = (text * ids.length + row) * dim; i < dim; i += 1, to += 1)
        x[to] = Math.fround(from[i] * factor) + (add ? add[i] : 0);
    }),
  );
  return x;
}

/** The mean of the vectors of some ids; of the whole table where a text has one word or none. */
export function meanVector(table, ids, dim) {
  const mean = new Float64Array(dim);
  const rows = ids.length > 1 ? ids : filled(table.length / dim, (id) => id);
  for (const id of rows)
    for (let i = 0; i < dim; i += 1) mean[i] += table[id * dim + i] / rows.length;
  return Float32Array.from(mean);
}
