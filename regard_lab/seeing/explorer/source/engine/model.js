// What all models share: their parts by name, questions that they refuse, and answers between
// words.

import {meanVector, Weights} from "./layers.js";
import {cosine, filled, logSumExp, sinusoid, softmax, top} from "./numbers.js";
import {pattern} from "./patterns.js";
import {BEGIN, END, PAD, Tokeniser, unknownWords} from "./text.js";

export const OTHERS = 3; // sub-words that a word is compared with, and that are named beside it

const NEAR = 24; // words that are near a word

export const MOST = 40; // words that are erased one by one

// Texts of one pass of the lens; between two passes a newer question may end it.
export const AT_ONCE = 4;

export const range = ([, first, end]) => filled(end - first, (at) => first + at);

export const isWord = (id) => id !== PAD && id !== BEGIN && id !== END;

export const wordsOf = (spans) => spans.map(([word]) => word);

/** What all models share: their parts by name, embeddings, and answers between words. */
export class Model {
  constructor({config, tokeniser, words, symbols, classes}, tensors) {
    Object.assign(this, {
      config,
      classes,
      weights: new Weights(tensors),
      tokeniser: new Tokeniser(tokeniser),
      known: words && new Set(words),
      symbols,
    });
    const {dim, positions} = config;
    const learned = tensors["positions.weight"];
    const kept = [];
    this.table = tensors["embedding.weight"];
    this.positions = learned
      ? (at) => learned.subarray(at * dim, (at + 1) * dim)
      : positions === "sinusoidal"
        ? (at) => (kept[at] ??= sinusoid(at, dim))
        : null;
    this.room = learned ? learned.length / dim : Infinity;
  }

  unknown(text) {
    return unknownWords(this.tokeniser.reads(text), this.known, this.symbols);
  }

  /** Which pairs a pattern allows each of some heads: 2 for each that is, else 0. */
  pairs({text, rows, columns, heads}) {
    const allows = pattern(text);
    return heads.map((head) => {
      const states = new Uint8Array(rows * columns);
      for (let row = 0; row < rows; row += 1)
        for (const column of allows(row, columns, head)) states[row * columns + column] = 2;
      return states;
    });
  }

  /** The mean of some rows; twice, because that of a single one is the mean of all. */
  meanOf(table, rows) {
    return meanVector(table, [...rows, ...rows], this.config.dim);
  }

  /** The words of the training whose embeddings are nearest to that of a word, itself first. */
  near({word}) {
    const vector = (one) => this.meanOf(this.table, this.tokeniser.encode(one));
    const words = [...this.known];
    const own = vector(word);
    const near = words.map((one) => cosine(own, vector(one)));
    return top(near, NEAR).map((at) => words[at]);
  }

  /**
   * Refuse a question that this model cannot have. shapes: (layers, heads) of each kind of
   * attention.
   */
  check(length, {off = [], scale = 1, temperature = 1, patterns = {}}, shapes) {
    const wrong = off.find(
      ([kind, layer, head]) =>
        !(layer >= 0 && layer < shapes[kind]?.[0] && head >= 0 && head < shapes[kind]?.[1]),
    );
    if (wrong)
      throw new Error(
        `There is no head ${wrong.join(".")}; heads are ${Object.entries(shapes)
          .map(([kind, [layers, heads]]) => `${kind}.0.0 to ${kind}.${layers - 1}.${heads - 1}`)
          .join(", ")}.`,
      );
    for (const [name, one] of [
      ["factor of the scores", scale],
      ["temperature", temperature],
    ])
      if (!(one > 0 && one < Infinity))
        throw new Error(`The ${name} is ${one}; give a number above 0.`);
    for (const kind of Object.keys(patterns))
      if (!shapes[kind])
        throw new Error(
          `There is no attention \u201c${kind}\u201d here; ` +
            `there is ${Object.keys(shapes).join(", ")}.`,
        );
    if (length > this.room)
      throw new Error(
        `The text has ${length} sub-words; this model has ${this.room} positions. Shorten it.`,
      );
  }

  /** The places of some words, by their index. */
  places(spans, words) {
    return words.flatMap((at) => (spans[at] ? range(spans[at]) : []));
  }

  /**
   * Probabilities of ids after rows of logits: for each word the product, and what is most probable
   * at its first place.
   */
  chances(logits, spans, ids, before = [], names = new Map()) {
    const named = (first, id) => {
      const key = `${first} ${id}`;
      if (!names.has(key))
        names.set(key, this.tokeniser.continued([...before, ...ids.slice(0, first)], id));
      return names.get(key);
    };
    const size = this.config.vocab_size;
    const shares = ids.map((_, row) => softmax(logits.subarray(row * size, (row + 1) * size)));
    return {
      probabilities: spans.map((span) =>
        range(span).reduce((product, at) => product * shares[at][ids[at]], 1),
      ),
      likeliest: spans.map(([, first]) =>
        top(shares[first], OTHERS).map((id) => [named(first, id), shares[first][id]]),
      ),
    };
  }

  /** The words that are most probable beside a written one. */
  others(row, besides) {
    return top(row, OTHERS, (id) => id !== besides && isWord(id));
  }

  row(logits, at) {
    return logits.subarray(at * this.config.vocab_size, (at + 1) * this.config.vocab_size);
  }

  /** What `run` computed of a question, computed again unless it was the last one. */
  lastOf(given) {
    if (this.last?.key !== JSON.stringify(given)) this.run(given);
    return this.last;
  }

  /**
   * How far the log odds of a word fall without each head, and without all heads of a layer, by
   * kind of attention.
   */
  async effects({place, others = null, ...asked}, pause) {
    const last = this.lastOf(asked);
    const about = this.about(last, place, others);
    const kinds = {};
    if (!about) return {kinds};
    const odds = (off) => about.odds({...last.given, off: [...(last.given.off ?? []), ...off]});
    const own = odds([]);
    for (const [kind, [layers, heads]] of Object.entries(this.shapes)) {
      kinds[kind] = {heads: [], layers: []};
      for (let layer = 0; layer < layers; layer += 1) {
        const all = filled(heads, (head) => [kind, layer, head]);
        const falls = [];
        for (const off of [all, ...all.map((one) => [one])]) {
          if (await pause()) return null;
          falls.push(own - odds(off));
        }
        kinds[kind].layers.push(falls.shift());
        kinds[kind].heads.push(falls);
      }
    }
    return {word: about.word, others: about.others, own, kinds};
  }

  /**
   * The first ids of words that could stand in the place of a written one, as the model writes
   * them.
   */
  firstIds(ids, first, words) {
    const before = this.tokeniser.decode(ids.slice(0, first));
    const gap = this.tokeniser
      .decode(ids.slice(0, first + 1))
      .slice(before.length)
      .startsWith(" ")
      ? " "
      : "";
    return words.map((word) => {
      const tail = this.tokeniser.encodeTarget(`${before}${gap}${word}`);
      return tail[this.tokeniser.words(tail).at(-1)[1]];
    });
  }
}

export const logOdds = (row, of, others) => row[of] - logSumExp(others.map((id) => row[id]));

/** A record of a lens, as a page shows it. */
export function record(lens, {word, others, place, odds}, source, written, passes) {
  return {
    lens,
    word,
    others,
    place,
    log_odds: odds,
    probability: 1 / (1 + Math.exp(-odds)),
    source,
    written,
    cost: `${passes} pass${passes === 1 ? "" : "es"}`,
  };
}
