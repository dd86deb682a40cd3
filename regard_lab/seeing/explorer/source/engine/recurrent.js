// Recurrent translators, computed in a page: a bidirectional encoder, and a decoder that attends to
// its states before each step (Bahdanau et al. 2015) or after it (Luong et al. 2015).

import {embedded, meanVector} from "./layers.js";
import {filled, softmax} from "./numbers.js";
import {pattern} from "./patterns.js";
import {Writer} from "./writer.js";
import {isWord} from "./model.js";

const sigmoid = (x) => 1 / (1 + Math.exp(-x));

/** Vectors of some texts side by side: of each text those of every part. */
function joined(parts, texts) {
  const widths = parts.map((one) => one.length / texts);
  const wide = widths.reduce((sum, one) => sum + one, 0);
  const all = new Float32Array(texts * wide);
  for (let text = 0; text < texts; text += 1)
    for (let part = 0, to = text * wide; part < parts.length; to += widths[part], part += 1)
      all.set(parts[part].subarray(text * widths[part], (text + 1) * widths[part]), to);
  return all;
}

/** The row at a place of each text. */
function rowsAt(x, at, rows, texts) {
  const width = x.length / rows / texts;
  return joined(
    filled(texts, (text) => x.subarray((text * rows + at) * width, (text * rows + at + 1) * width)),
    1,
  );
}

/** The columns of a matrix from one to another, or of its transpose. */
function columns(matrix, width, from, to, turned = false) {
  const rows = matrix.length / width;
  const size = to - from;
  return Float32Array.from({length: rows * size}, (_, at) => {
    const [row, column] = turned
      ? [at % rows, Math.floor(at / rows)]
      : [Math.floor(at / size), at % size];
    return matrix[row * width + from + column];
  });
}

export class RecurrentTranslator extends Writer {
  constructor(content, tensors) {
    super(content, tensors);
    const {attention, hidden, reach, window} = content.config;
    const learned = (name) => tensors[`cell.attention.learned.${name}`];
    this.allowed = pattern(reach === "local-m" ? `sliding_window(${2 * window})` : "full");
    this.before = attention === "bahdanau";
    this.energy = learned("energy");
    // A score compares what it makes of the decoder's state with what it makes of a state of the
    // encoder.
    const [ofQuery, ofKey] = {
      bahdanau: () => [learned("query_weight"), learned("key_weight")],
      "luong-concat": () => [
        columns(learned("weight"), 2 * hidden, 0, hidden),
        columns(learned("weight"), 2 * hidden, hidden, 2 * hidden),
      ],
      "luong-general": () => [columns(learned("weight"), hidden, 0, hidden, true), null],
      "luong-dot": () => [null, null],
    }[attention]();
    Object.assign(this, {
      ofQuery,
      ofKey,
      centre: reach === "local-p" && [learned("centre_weight"), learned("centre_energy")],
    });
  }

  get shapes() {
    return {cross: [1, 1]};
  }

  #times(x, weight) {
    return weight ? this.weights.multiply(x, weight, null, this.config.hidden) : x;
  }

  /**
   * The state [h], or [h, c] of an LSTM, after one step. name: of the cell's tensors; x: its input,
   * or W x + b if that is known.
   */
  #advance(name, texts, [h, c], x, known = null) {
    const {weights} = this;
    const part = (kind) => weights.tensors[name(kind)];
    const size = h.length / texts;
    const into = known ?? weights.multiply(x, part("weight_ih"), part("bias_ih"), x.length / texts);
    const own = weights.multiply(h, part("weight_hh"), part("bias_hh"), size);
    const next = new Float32Array(h.length);
    const memory = c && new Float32Array(h.length);
    const wide = into.length / texts;
    for (let at = 0; at < h.length; at += 1) {
      const first = Math.floor(at / size) * wide + (at % size);
      const sum = (gate) => into[first + gate * size] + own[first + gate * size];
      if (c) {
        memory[at] = sigmoid(sum(1)) * c[at] + sigmoid(sum(0)) * Math.tanh(sum(2));
        next[at] = sigmoid(sum(3)) * Math.tanh(memory[at]);
      } else {
        const kept = sigmoid(sum(1));
        const offered = Math.tanh(into[first + 2 * size] + sigmoid(sum(0)) * own[first + 2 * size]);
        next[at] = (1 - kept) * offered + kept * h[at];
      }
    }
    return c ? [next, memory] : [next];
  }

  /** The states of one direction of a layer, (texts * ids, size), and the last. */
  #direction(name, x, texts, width, backwards) {
    const {
      weights,
      config: {hidden, cell},
    } = this;
    const rows = x.length / width / texts;
    const size = hidden / 2;
    const states = new Float32Array(texts * rows * size);
    const into = weights.multiply(
      x,
      weights.tensors[name("weight_ih")],
      weights.tensors[name("bias_ih")],
      width,
    );
    let state = filled(cell === "lstm" ? 2 : 1, () => new Float32Array(texts * size));
    for (let step = 0; step < rows; step += 1) {
      const at = backwards ? rows - 1 - step : step;
      state = this.#advance(name, texts, state, null, rowsAt(into, at, rows, texts));
      for (let text = 0; text < texts; text += 1)
        states.set(state[0].subarray(text * size, (text + 1) * size), (text * rows + at) * size);
    }
    return {states, last: state[0]};
  }

  encode(ids, erased) {
    const {dim, hidden, encoder_layers: layers} = this.config;
    const texts = erased.length;
    let x = this.embedded(this.table, ids, {
        erased,
        mean: meanVector(this.table, ids.filter(isWord), dim),
      }),
      both;
    for (let layer = 0; layer < layers; layer += 1) {
      both = ["", "_reverse"].map((way) =>
        this.#direction(
          (kind) => `encoder.layers.${kind}_l${layer}${way}`,
          x,
          texts,
          layer ? hidden : dim,
          way,
        ),
      );
      x = joined(
        both.map(({states}) => states),
        x.length / (layer ? hidden : dim),
      );
    }
    return {
      states: x,
      last: joined(
        both.map(({last}) => last),
        texts,
      ),
    };
  }

  /**
   * The memory of the sources, and the first state of the decoder: tanh of what the last states of
   * the encoder give.
   */
  start({states, last}, sources, texts) {
    const {hidden, decoder_layers: layers, cell} = this.config;
    const first = this.weights.project("to_first_state", last, hidden).map(Math.tanh);
    const wide = first.length / sources;
    const part = (number, layer) =>
      joined(
        filled(texts, (text) => {
          const from = (sources === 1 ? 0 : text) * wide + (number * layers + layer) * hidden;
          return first.subarray(from, from + hidden);
        }),
        1,
      );
    return {
      values: states,
      keys: this.#times(states, this.ofKey),
      count: states.length / hidden / sources,
      shared: sources === 1,
      place: 0,
      fed: new Float32Array(texts * this.config.dim),
      layers: filled(layers, (layer) =>
        cell === "lstm" ? [part(0, layer), part(1, layer)] : [part(0, layer)],
      ),
    };
  }

  /** What each text's state reads from the memory; the weights go into `kept`. */
  #attend(queries, memory, texts, settings, kept) {
    const {hidden, window} = this.config;
    const {count, place, shared, keys: all, values} = memory;
    const q = this.#times(queries, this.ofQuery);
    const context = new Float32Array(queries.length);
    const tanhs = this.centre && this.#times(queries, this.centre[0]).map(Math.tanh);
    const off = settings.off.has("cross 0 0");
    for (let text = 0; text < texts; text += 1) {
      const from = text * hidden;
      const base = shared ? 0 : text * count * hidden;
      const dot = (numbers, energy) =>
        energy.reduce((sum, one, i) => sum + one * numbers[from + i], 0);
      const middle = this.centre ? count * sigmoid(dot(tanhs, this.centre[1])) : null;
      let keys = settings.allowed({kind: "cross", allowed: this.allowed})(place, count, 0);
      if (middle !== null) keys = keys.filter((at) => Math.abs(at - middle) <= window);
      const weights = softmax(
        Array.from(keys, (at) => {
          let score = 0;
          for (let i = 0, key = base + at * hidden; i < hidden; i += 1)
            score += this.energy
              ? this.energy[i] * Math.tanh(q[from + i] + all[key + i])
              : q[from + i] * all[key + i];
          return score * settings.scale - (middle === null ? 0 : 2 * ((at - middle) / window) ** 2);
        }),
      );
      keys.forEach((at, number) => {
        if (kept) kept[place * count + at] = weights[number];
        if (!off)
          for (let i = 0, value = base + at * hidden; i < hidden; i += 1)
            context[from + i] += weights[number] * values[value + i];
      });
    }
    return context;
  }

  step(ids, memory, texts, settings, {erased, mean, lastOnly = false} = {}) {
    const {
      config: {dim, hidden, input_feeding: feeds, tied},
      before,
    } = this;
    const rows = ids.length;
    const x = this.embedded(this.targetTable, ids, {
      erased: erased ?? Array(texts).fill(null),
      mean,
    });
    const outputs = [];
    const kept = settings.kept && new Float32Array(rows * memory.count);
    for (let row = 0; row < rows; row += 1) {
      const word = rowsAt(x, row, rows, texts);
      const top = () => memory.layers.at(-1)[0];
      let context = before ? this.#attend(top(), memory, texts, settings, kept) : null;
      let into = before
        ? joined([word, context], texts)
        : feeds
          ? joined([word, memory.fed], texts)
          : word;
      memory.layers = memory.layers.map((state, layer) => {
        const next = this.#advance((kind) => `cell.cell.${kind}_l${layer}`, texts, state, into);
        [into] = next;
        return next;
      });
      context ??= this.#attend(top(), memory, texts, settings, kept);
      if (!before)
        memory.fed = this.weights
          .project("cell.combine", joined([context, top()], texts), 2 * hidden)
          .map(Math.tanh);
      outputs.push(before ? this.#maxout(joined([top(), context, word], texts)) : memory.fed);
      memory.place += 1;
    }
    if (kept) settings.kept.cross = [{heads: 1, rows, columns: memory.count, weights: kept}];
    const shown = lastOnly ? outputs.at(-1) : joined(outputs, texts);
    return settings.tempered(
      this.weights.multiply(
        shown,
        tied ? this.targetTable : this.weights.of("to_vocabulary").weight,
        null,
        dim,
      ),
    );
  }

  /** The larger number of each pair: Goodfellow et al. 2013. */
  #maxout(x) {
    const {dim, hidden} = this.config;
    const wide = this.weights.project("readout.linear", x, 2 * hidden + dim);
    return Float32Array.from({length: wide.length / 2}, (_, at) =>
      Math.max(wide[2 * at], wide[2 * at + 1]),
    );
  }
}
