// The data of a page: the header as JSON, and arrays in base64 that are unpacked when they are
// needed.

import {filled} from "./engine/numbers.js";

const KEPT = 48; // unpacked heads that are kept

/** The page's own data. */
export function embedded(root = document) {
  const header = JSON.parse(root.getElementById("regard-header").textContent);
  return new Source(header, root.getElementById("regard-arrays").textContent);
}

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
    const all = await Promise.all(filled(heads, (head) => this.#one(kind, layer, head)));
    const [{rows, columns, exact}] = all;
    return new Weights(meanOf(all.map(({values}) => values)), rows, columns, exact);
  }

  /** The thumbnails of all heads, one byte for each cell on a square-root scale. */
  async thumbnails(kind) {
    const {shape, place} = this.header.attentions[kind].thumbnails;
    return {rows: shape[0], columns: shape[1], bytes: await this.bytes(place)};
  }
}

const DECODED = Float32Array.from({length: 256}, (_, byte) => (byte / 255) ** 2);

/** The heads of a kind of attention: layer and index of each. */
export const headsOf = ({shape: [layers, heads]}) =>
  filled(layers * heads, (at) => [Math.floor(at / heads), at % heads]);

/** The mean of arrays of numbers. */
export function meanOf(all) {
  const mean = new Float32Array(all[0].length);
  for (const one of all)
    for (let at = 0; at < mean.length; at += 1) mean[at] += one[at] / all.length;
  return mean;
}

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
}
