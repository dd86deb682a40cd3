// The data of a page: the header as JSON, and arrays in base64 that are unpacked when they are
// needed.

import {top as largest} from "./engine/numbers.js";

const KEPT = 48; // unpacked heads that are kept

/** The page's own data. */
export function embedded(root = document) {
  const header = JSON.parse(root.getElementById("regard-header").textContent);
  return new Source(header, root.getElementById("regard-arrays").textContent);
}

export {largest};

export class Source {
  constructor(header, arrays) {
    this.header = header;
    this.arrays = arrays;
    this.kept = new Map();
  }

  /** The inflated bytes of one array. */
  async bytes([start, length]) {
    const text = atob(this.arrays.slice(start, start + length));
    const deflated = new Uint8Array(text.length);
    for (let at = 0; at < text.length; at += 1) deflated[at] = text.charCodeAt(at);
    const stream = new Blob([deflated]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  /** The words of rows and columns of a kind of attention. */
  words(attention) {
    const {texts} = this.header;
    return {rows: texts[attention.rows], columns: texts[attention.columns]};
  }

  /** The weights of one head, or of the mean over a layer's heads if `head` is "mean". */
  head(kind, layer, head) {
    const key = `${kind}/${layer}/${head}`;
    let found = this.kept.get(key);
    if (found)
      this.kept.delete(key); // the newest is last
    else found = head === "mean" ? this.#mean(kind, layer) : this.#one(kind, layer, head);
    this.kept.set(key, found);
    if (this.kept.size > KEPT) this.kept.delete(this.kept.keys().next().value);
    return found;
  }

  async #one(kind, layer, head) {
    const attention = this.header.attentions[kind];
    const [, , rows, columns] = attention.shape;
    if (attention.exact) {
      const bytes = await this.bytes(attention.exact[layer][head]);
      return new Weights(new Float32Array(bytes.buffer), rows, columns, true);
    }
    const bytes = await this.bytes(attention.bytes[layer][head]);
    const weights = new Float32Array(bytes.length);
    for (let at = 0; at < bytes.length; at += 1) weights[at] = DECODED[bytes[at]];
    return new Weights(weights, rows, columns, false);
  }

  async #mean(kind, layer) {
    const heads = this.header.attentions[kind].shape[1];
    const all = [];
    for (let head = 0; head < heads; head += 1) all.push(await this.#one(kind, layer, head));
    const sum = new Float32Array(all[0].values.length);
    for (const one of all)
      for (let at = 0; at < sum.length; at += 1) sum[at] += one.values[at] / heads;
    return new Weights(sum, all[0].rows, all[0].columns, all[0].exact);
  }

  /** The thumbnails of all heads, one byte for each cell on a square-root scale. */
  async thumbnails(kind) {
    const {shape, place} = this.header.attentions[kind].thumbnails;
    return {rows: shape[0], columns: shape[1], bytes: await this.bytes(place)};
  }
}

const DECODED = Float32Array.from({length: 256}, (_, byte) => (byte / 255) ** 2);

/** The weights of a head, by rows. */
export class Weights {
  constructor(values, rows, columns, exact) {
    Object.assign(this, {values, rows, columns, exact});
  }

  row(at) {
    return this.values.subarray(at * this.columns, (at + 1) * this.columns);
  }

  at(row, column) {
    return this.values[row * this.columns + column];
  }

  entropy(row) {
    let sum = 0;
    for (const weight of this.row(row)) if (weight > 0) sum -= weight * Math.log(weight);
    return sum;
  }

  /** The sum of the weights that each key receives. */
  get received() {
    this.sums ??= this.#received();
    return this.sums;
  }

  #received() {
    const sums = new Float32Array(this.columns);
    for (let row = 0, at = 0; row < this.rows; row += 1)
      for (let column = 0; column < this.columns; column += 1, at += 1)
        sums[column] += this.values[at];
    return sums;
  }

  /**
   * The keys of a row with the largest weights: as few as reach a share of the row's sum, and at
   * most `most`.
   */
  links(row, share, most) {
    const weights = this.row(row);
    const order = largest(weights, most);
    let total = 0;
    for (const weight of weights) total += weight;
    const links = [];
    let covered = 0;
    for (const key of order) {
      if (!(weights[key] > 0) || covered >= share * total - 1e-9) break;
      covered += weights[key];
      links.push({key, weight: weights[key]});
    }
    return {links, hidden: Math.max(0, total - covered)};
  }
}

const THUMBNAIL = 48; // rows and columns of a thumbnail

/**
 * What the engine computed of a text, as the page shows data that it contains; its numbers are
 * exact.
 */
export class Run extends Source {
  /** given: what was asked; base: the run without changes, if this one has any. */
  constructor(stored, given, answer, base = null) {
    const {header, arrays} = stored;
    const {model} = header;
    const attentions = model.kinds.map((one) => new Computed(one, answer.attention[one.kind]));
    const {texts, text, finished} = answer;
    const title = texts.target ? `${given.source} \u2192 ${text}` : given.source;
    super(
      {
        ...header,
        title,
        texts,
        attentions,
        explained: {},
        written: model.written,
        changes: model.follows && changesOf(model, answer, base?.answer ?? answer),
      },
      arrays,
    );
    Object.assign(this, {stored, given, answer, base});
    this.header.chosen = this.#chosen();
    if (base)
      Object.assign(this, {second: base}).header.second = {
        said: "the model as trained",
        header: base.header,
        matched: matchedTexts(texts, base.answer.texts),
      };
    if (finished === false)
      this.header.notes = [...header.notes, "The model does not end this text."];
  }

  /**
   * The word that is shown first: the one that was asked about, a pronoun that occurs once, or the
   * first.
   */
  #chosen() {
    const {model, texts} = this.header;
    if (model.written !== "target") return Math.max(texts[model.written || "text"].length - 1, 0);
    if (
      model.asked?.source === this.given.source &&
      texts.target[model.asked.place] === model.asked.word
    )
      return model.asked.place;
    const pronouns = texts.target.flatMap((word, at) =>
      model.pronouns.includes(word.toLowerCase()) ? [at] : [],
    );
    return pronouns.length === 1 ? pronouns[0] : 0;
  }

  /**
   * The words that a written word is compared with; null for those that the model finds most
   * probable.
   */
  others(place) {
    const {model, texts} = this.header;
    const word = texts.target?.[place];
    if (place !== this.header.chosen || !word) return null;
    if (
      model.asked?.place === place &&
      model.asked.word === word &&
      model.asked.source === this.given.source
    )
      return model.asked.others;
    return model.pronouns.includes(word.toLowerCase())
      ? model.pronouns.filter((one) => one !== word.toLowerCase())
      : null;
  }

  /** Add what the lens found for a word. */
  explain(place, {lenses, changes}) {
    const {header, answer} = this;
    if (lenses.length) header.explained[place] = lenses;
    if (header.changes)
      changes.forEach(
        (one, at) => (header.changes.erased[answer.erasable[at]] = {...NOTHING, ...one}),
      );
  }

  /** Add what each head does for a word. */
  measure(place, {kinds, ...about}) {
    this.effects = {place, ...about};
    for (const one of this.header.attentions) {
      const {heads, layers} = kinds[one.kind] ?? {};
      one.layers = layers;
      if (heads) one.statistics.effect = heads;
      else delete one.statistics.effect;
    }
  }

  head(kind, layer, head) {
    const {
      shape: [, heads, rows, columns],
      weights,
    } = this.header.attentions[kind];
    const size = rows * columns;
    const values = new Float32Array(size);
    for (
      let one = head === "mean" ? 0 : head, end = head === "mean" ? heads : head + 1;
      one < end;
      one += 1
    )
      for (let at = 0, from = (layer * heads + one) * size; at < size; at += 1)
        values[at] += weights[from + at] / (head === "mean" ? heads : 1);
    return new Weights(values, rows, columns, true);
  }

  async thumbnails(kind) {
    const {
      shape: [layers, heads, rows, columns],
      weights,
    } = this.header.attentions[kind];
    const [down, across] = [Math.min(rows, THUMBNAIL), Math.min(columns, THUMBNAIL)];
    const bytes = new Uint8Array(layers * heads * down * across);
    for (let at = 0; at < weights.length; at += 1) {
      const column = at % columns;
      const row = Math.floor(at / columns) % rows;
      const head = Math.floor(at / columns / rows);
      const to =
        (head * down + Math.floor((row * down) / rows)) * across +
        Math.floor((column * across) / columns);
      bytes[to] = Math.max(bytes[to], Math.round(255 * Math.sqrt(weights[at])));
    }
    await new Promise(requestAnimationFrame); // words are drawn a frame before heads
    return {rows: down, columns: across, bytes};
  }
}

/**
 * For each text, the places of its words that both runs have, in order: the longest common
 * subsequence.
 */
function matchedTexts(texts, others) {
  return Object.fromEntries(
    Object.entries(texts).map(([name, one]) => {
      const other = others[name];
      const longest = Array.from({length: one.length + 1}, () => new Uint16Array(other.length + 1));
      const pairs = [[], []];
      for (let i = one.length - 1; i >= 0; i -= 1)
        for (let j = other.length - 1; j >= 0; j -= 1)
          longest[i][j] =
            one[i] === other[j]
              ? longest[i + 1][j + 1] + 1
              : Math.max(longest[i + 1][j], longest[i][j + 1]);
      for (let [i, j] = [0, 0]; i < one.length && j < other.length;) {
        if (one[i] === other[j]) {
          pairs[0].push(i++);
          pairs[1].push(j++);
        } else if (longest[i + 1][j] >= longest[i][j + 1]) i += 1;
        else j += 1;
      }
      return [name, pairs];
    }),
  );
}

const NOTHING = {probabilities: [], likeliest: [], translation: null, similarities: []};

/**
 * What the model makes of the text as it is, and now; erased words are added when the lens has
 * them.
 */
function changesOf({follows}, answer, base) {
  const said = (one, numbers = one) => ({
    ...NOTHING,
    ...numbers,
    translation: one.finished === undefined ? [] : one.texts.target.slice(0, -1),
  });
  const stays = {similarities: base.texts[base.texts.target ? "target" : "text"].map(() => 1)};
  return {
    follows,
    unchanged: {...said(base), ...stays},
    now: answer === base ? null : {...said(answer, answer.against), ...stays},
    erased: {},
  };
}

/** The weights of one kind of attention, with what heads are sorted by. */
class Computed {
  constructor(names, {shape, weights}) {
    Object.assign(this, {links: {}, says: "", ...names, shape, weights});
  }

  get sums() {
    const [, , , columns] = this.shape;
    const {weights} = this;
    for (let from = 0; from < weights.length; from += columns)
      if (
        Math.abs(weights.subarray(from, from + columns).reduce((sum, one) => sum + one, 0) - 1) >
        0.01
      )
        return "Rows of words that may look at no word sum to 0.";
    return "";
  }

  get statistics() {
    return (this.measured ??= this.#measured());
  }

  /** As head_statistics of Python. */
  #measured() {
    const [layers, heads, rows, columns] = this.shape;
    const texts = [this.rows, this.columns].sort().join();
    const near = this.rows === this.columns || texts === "read,target";
    const found = {entropy: [], first: [], received: [], ...(near ? {distance: []} : {})};
    for (let layer = 0; layer < layers; layer += 1) {
      for (const all of Object.values(found)) all.push([]);
      for (let head = 0; head < heads; head += 1) {
        const sums = new Float64Array(columns);
        let [entropy, first, distance] = [0, 0, 0];
        for (let row = 0; row < rows; row += 1)
          for (let column = 0; column < columns; column += 1) {
            const weight = this.weights[((layer * heads + head) * rows + row) * columns + column];
            if (weight > 0) entropy -= (weight * Math.log(weight)) / rows;
            if (column === 0) first += weight / rows;
            distance += (weight * Math.abs(row - column)) / rows;
            sums[column] += weight / rows;
          }
        for (const [name, value] of Object.entries({
          entropy,
          first,
          distance,
          received: Math.max(...sums),
        }))
          found[name]?.[layer].push(value);
      }
    }
    return found;
  }
}
