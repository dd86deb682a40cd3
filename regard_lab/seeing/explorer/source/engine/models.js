// The models of regard_lab.models, computed in a page: what they write or read, all weights, and
// what each word depends on.

import {
  Attention,
  Settings,
  Weights,
  embedded,
  feedForward,
  meanVector,
  residual,
} from "./layers.js";
import {
  ACTIVATIONS,
  filled,
  logSumExp,
  merged,
  normed,
  sinusoid,
  slopes,
  softmax,
  top,
} from "./numbers.js";
import {BEGIN, END, PAD, Tokeniser, UNKNOWN, unknownWords} from "./text.js";

const OTHERS = 3; // sub-words that a word is compared with, and that are named beside it
const MOST = 40; // words that are erased one by one
const AT_ONCE = 4; // texts of one pass of the lens; between two passes a newer question may end it

const range = ([, first, end]) => filled(end - first, (at) => first + at);
export const isWord = (id) => id !== PAD && id !== BEGIN && id !== END;
const wordsOf = (spans) => spans.map(([word]) => word);

/** What all models share: their parts by name, embeddings, and answers between words. */
class Model {
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
          `There is no attention \u201c${kind}\u201d here; there is ${Object.keys(shapes).join(", ")}.`,
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

const logOdds = (row, of, others) => row[of] - logSumExp(others.map((id) => row[id]));

/** A record of a lens, as a page shows it. */
function record(lens, {word, others, place, odds}, source, written, passes) {
  return {
    lens,
    word,
    others,
    place,
    log_odds: odds,
    probability: 1 / (1 + Math.exp(-odds)),
    source,
    written,
    note: "",
    cost: `${passes} pass${passes === 1 ? "" : "es"}`,
  };
}

/**
 * A model that translates. A subclass has `encode`, `start` and `step`: the source, what the
 * decoder keeps, and logits.
 */
export class Writer extends Model {
  constructor(content, tensors) {
    super(content, tensors);
    this.targetTable = tensors["target_embedding.weight"] ?? this.table;
  }

  embedded(table, ids, options) {
    const {dim} = this.config;
    return embedded(table, ids, {
      dim,
      factor: Math.sqrt(dim),
      positions: this.positions,
      ...options,
    });
  }

  #greedy(encoded, most, settings) {
    const memories = this.start(encoded, 1, 1, most);
    const written = [];
    for (let next = BEGIN; written.length < most;) {
      next = top(
        this.step([next], memories, 1, settings),
        1,
        (id) => id !== PAD && id !== BEGIN,
      )[0];
      if (next === END) return {written, finished: true};
      written.push(next);
    }
    return {written, finished: false};
  }

  /**
   * Greedy translation of a source in which words are erased, with the weights of every head
   * between words.
   */
  run(asked) {
    const {against, ...kept} = asked;
    const {source, erase = [], ...given} = kept;
    const {tokeniser} = this;
    const plain = new Settings(given);
    const settings = new Settings({...given, keeps: true});
    const ids = [...tokeniser.encode(source), END];
    const sourceSpans = tokeniser.words(ids);
    this.check(ids.length, given, this.shapes);
    const gone = new Set(this.places(sourceSpans.slice(0, -1), erase));
    const encoded = this.encode(ids, [gone], settings);
    const {written, finished} = this.#greedy(
      encoded,
      Math.min(2 * ids.length + 16, this.room - 1),
      plain,
    );
    const all = [...written, END];
    const spans = tokeniser.words(all);
    const logits = this.step(
      [BEGIN, ...written],
      this.start(encoded, 1, 1, all.length),
      1,
      settings,
    );
    const read = [
      ["<begin>", 0, 1],
      ...spans.slice(0, -1).map(([word, first, end]) => [word, first + 1, end + 1]),
    ];
    this.last = {
      key: JSON.stringify(kept),
      given,
      ids,
      sourceSpans,
      gone,
      encoded,
      all,
      spans,
      logits,
      settings,
    };
    return {
      texts: {source: wordsOf(sourceSpans), target: wordsOf(spans), read: wordsOf(read)},
      text: tokeniser.decode(written),
      finished,
      target: wordsOf(spans),
      ...this.chances(logits, spans, all),
      unknown: this.unknown(source),
      erasable: sourceSpans.slice(0, -1).map((_, at) => at),
      ids: {source: ids, target: written},
      logits,
      pieces: {source: tokeniser.pieces(ids), target: tokeniser.pieces([BEGIN, ...written])},
      attention: Object.fromEntries(
        Object.keys(settings.kept).map((kind) => [
          kind,
          merged(
            settings.weights(kind),
            ...{
              cross: [spans, sourceSpans],
              encoder: [sourceSpans, sourceSpans],
              decoder: [spans, read],
            }[kind],
          ),
        ]),
      ),
      against: against && this.#against(encoded, [...against, END], plain),
    };
  }

  /** The probabilities of other written ids, such as those of the text as it is. */
  #against(encoded, ids, settings) {
    const logits = this.step(
      [BEGIN, ...ids.slice(0, -1)],
      this.start(encoded, 1, 1, ids.length),
      1,
      settings,
    );
    return this.chances(logits, this.tokeniser.words(ids), ids);
  }

  /**
   * The erasure of each source word: how far the log odds of every written word fall, and what is
   * probable then.
   */
  async #erasures({given, ids, sourceSpans, gone, all, spans, logits}, asked, pause) {
    const settings = new Settings(given);
    const size = this.config.vocab_size;
    const others = spans.map(
      ([, first], at) => asked[at] ?? this.others(this.row(logits, first), all[first]),
    );
    const odds = (some) =>
      spans.map(([, first], at) => logOdds(this.row(some, first), all[first], others[at]));
    const own = odds(logits);
    const falls = [];
    const changes = [];
    const names = new Map();
    const words = sourceSpans.slice(0, -1).slice(0, MOST);
    for (let from = 0; from < words.length; from += AT_ONCE) {
      if (await pause()) return null;
      const erased = words
        .slice(from, from + AT_ONCE)
        .map((span) => new Set([...gone, ...range(span)]));
      const texts = erased.length;
      const memories = this.start(this.encode(ids, erased, settings), texts, texts, all.length);
      const after = this.step([BEGIN, ...all.slice(0, -1)], memories, texts, settings);
      erased.forEach((_, text) => {
        const rows = after.subarray(text * all.length * size, (text + 1) * all.length * size);
        falls.push(odds(rows).map((one, at) => own[at] - one));
        changes.push(this.chances(rows, spans, all, [], names));
      });
    }
    return {own, others, falls, changes};
  }

  /**
   * A written word, and its log odds by settings; the source is encoded again where a head of the
   * encoder is off.
   */
  about({given, ids, gone, encoded, all, spans, logits}, place, words) {
    const [word, first] = spans[Math.min(place, spans.length - 1)] ?? spans.at(-1);
    const read = [BEGIN, ...all.slice(0, first)];
    const of = all[first];
    const known = given.off?.length ?? 0;
    const others = words
      ? this.firstIds(all, first, words)
      : this.others(this.row(logits, first), of);
    return {
      word,
      others: others.map((id) => this.tokeniser.continued(read, id)),
      odds: (now) => {
        const settings = new Settings(now);
        const again = now.off.slice(known).some(([kind]) => kind === "encoder");
        const memories = this.start(
          again ? this.encode(ids, [gone], settings) : encoded,
          1,
          1,
          read.length,
        );
        return logOdds(this.step(read, memories, 1, settings, {lastOnly: true}), of, others);
      },
    };
  }

  /**
   * What one written word depends on, by every lens; and each word of the source erased. others:
   * words to compare with.
   */
  async lens({place, others = null, ...asked}, pause) {
    const last = this.lastOf(asked);
    const {given, ids, sourceSpans, encoded, all, spans, settings} = last;
    const {tokeniser} = this;
    const wanted =
      others && spans[place] ? {[place]: this.firstIds(all, spans[place][1], others)} : {};
    const key = JSON.stringify(wanted);
    const found = last.found?.key === key ? last.found : await this.#erasures(last, wanted, pause);
    if (!found) return null;
    last.found = {...found, key};
    const at = spans[place] ? Math.min(place, spans.length - 2) : 0;
    const answer = {
      changes: found.changes,
      others: found.others,
      falls: found.falls,
      own: found.own,
      lenses: [],
    };
    if (at < 0) return answer;
    const [word, first] = spans[at];
    const read = [BEGIN, ...all.slice(0, first)];
    const readSpans = tokeniser.words(read);
    const {dim} = this.config;
    const about = {
      word,
      place: at,
      odds: found.own[at],
      others: found.others[at].map((id) => tokeniser.continued(read, id)),
    };
    const writtenFalls = readSpans.map(() => 0);
    const plain = new Settings(given);
    const mean = meanVector(this.targetTable, read.filter(isWord), dim);
    for (let from = 1; from < readSpans.length; from += AT_ONCE) {
      if (await pause()) return null;
      const erased = readSpans.slice(from, from + AT_ONCE).map((span) => new Set(range(span)));
      const after = this.step(
        read,
        this.start(encoded, 1, erased.length, read.length),
        erased.length,
        plain,
        {erased, mean, lastOnly: true},
      );
      erased.forEach(
        (_, text) =>
          (writtenFalls[from + text] =
            about.odds - logOdds(this.row(after, text), all[first], found.others[at])),
      );
    }
    const source = sourceSpans.map(([one], number) => [one, found.falls[number]?.[at] ?? 0]);
    answer.lenses.push(
      record(
        "erase",
        about,
        source,
        readSpans.map(([one], number) => [one, writtenFalls[number]]),
        source.length + readSpans.length - 1,
      ),
    );
    for (const [name, [toSource, toRead]] of Object.entries(byWeights(settings, first, ids.length)))
      answer.lenses.push(
        record(
          name,
          about,
          summed(toSource, sourceSpans),
          toRead ? summed(toRead, readSpans) : [],
          1,
        ),
      );
    return answer;
  }
}

/** A Transformer that translates. */
export class Translator extends Writer {
  constructor(content, tensors) {
    super(content, tensors);
    const {dim, heads, positions} = content.config;
    const {config} = this;
    const make = (name, kind, layer, text, rotates) =>
      new Attention(this.weights, name, {
        kind,
        layer,
        dim,
        heads,
        headDim: dim / heads,
        text,
        causal: kind === "decoder",
        base: rotates && positions === "rotary" ? 10_000 : 0,
      });
    this.encoder = filled(config.encoder_layers, (layer) =>
      make(`encoder.${layer}.attention`, "encoder", layer, config.encoder_pattern, true),
    );
    this.decoder = filled(config.decoder_layers, (layer) => ({
      own: make(`decoder.${layer}.self_attention`, "decoder", layer, config.decoder_pattern, true),
      cross: make(`decoder.${layer}.cross_attention`, "cross", layer, config.cross_pattern, false),
    }));
  }

  get shapes() {
    const {encoder_layers: encoder, decoder_layers: decoder, heads} = this.config;
    return {encoder: [encoder, heads], decoder: [decoder, heads], cross: [decoder, heads]};
  }

  #norm(name) {
    return (x) => normed(x, this.weights.of(`${name}.norm`));
  }

  #part(name, x, part) {
    return residual(x, this.#norm(name), this.config.norm === "pre", part);
  }

  #last(name, x) {
    return this.config.norm === "pre" ? normed(x, this.weights.of(name)) : x;
  }

  /** The encoded source, once for each set of erased places: (texts * ids, dim). */
  encode(ids, erased, settings) {
    const {dim, activation} = this.config;
    const texts = erased.length;
    let x = this.embedded(this.table, ids, {
      erased,
      mean: meanVector(this.table, ids.filter(isWord), dim),
    });
    this.encoder.forEach((attention, layer) => {
      const name = `encoder.${layer}`;
      x = this.#part(`${name}.around_attention`, x, (x) =>
        attention.read(
          x,
          texts,
          0,
          attention.remember(x, texts, attention.memory(texts, ids.length)),
          settings,
        ),
      );
      x = this.#part(`${name}.around_feed_forward`, x, (x) =>
        feedForward(this.weights, `${name}.feed_forward`, activation, x, dim),
      );
    });
    return this.#last("encoder_norm", x);
  }

  /**
   * What the decoder keeps: the keys and values of encoded sources, and room for those of targets.
   */
  start(encoded, sources, texts, room) {
    return this.decoder.map(({own, cross}) => ({
      own: own.memory(texts, room),
      cross: cross.remember(
        encoded,
        sources,
        cross.memory(sources, encoded.length / this.config.dim / sources),
      ),
    }));
  }

  /** Logits after each of some target ids, or after the last alone: (texts * ids, vocabulary). */
  step(ids, memories, texts, settings, {erased, mean, lastOnly = false} = {}) {
    const {dim, activation, tied} = this.config;
    const start = memories[0].own.count;
    let x = this.embedded(this.targetTable, ids, {
      start,
      erased: erased ?? Array(texts).fill(null),
      mean,
    });
    this.decoder.forEach(({own, cross}, layer) => {
      const name = `decoder.${layer}`;
      const memory = memories[layer];
      x = this.#part(`${name}.around_self_attention`, x, (x) =>
        own.read(x, texts, start, own.remember(x, texts, memory.own), settings),
      );
      x = this.#part(`${name}.around_cross_attention`, x, (x) =>
        cross.read(x, texts, start, memory.cross, settings),
      );
      x = this.#part(`${name}.around_feed_forward`, x, (x) =>
        feedForward(this.weights, `${name}.feed_forward`, activation, x, dim),
      );
    });
    if (lastOnly) {
      const rows = x.length / dim / texts;
      x = Float32Array.from(
        {length: texts * dim},
        (_, at) => x[(Math.floor(at / dim) * rows + rows - 1) * dim + (at % dim)],
      );
    }
    return settings.tempered(
      this.weights.multiply(
        this.#last("decoder_norm", x),
        tied ? this.targetTable : this.weights.of("to_vocabulary").weight,
        null,
        dim,
      ),
    );
  }
}

const summed = (numbers, spans) =>
  spans.map((span) => [span[0], range(span).reduce((sum, at) => sum + numbers[at], 0)]);

/** The mean of layers' heads: a list of (rows, columns), one for each layer. */
function means({shape: [layers, heads, rows, columns], weights}) {
  return filled(layers, (layer) =>
    Float64Array.from({length: rows * columns}, (_, at) => {
      let sum = 0;
      for (let head = 0; head < heads; head += 1)
        sum += weights[(layer * heads + head) * rows * columns + at] / heads;
      return sum;
    }),
  );
}

function product(left, right, rows, inner, columns) {
  return Float64Array.from({length: rows * columns}, (_, at) => {
    let sum = 0;
    for (let i = 0, row = Math.floor(at / columns); i < inner; i += 1)
      sum += left[row * inner + i] * right[i * columns + (at % columns)];
    return sum;
  });
}

const identity = (size) =>
  Float64Array.from({length: size * size}, (_, at) => (at % (size + 1) === 0 ? 1 : 0));
const halved = (one, other) => one.map((value, at) => (value + (other ? other[at] : 0)) / 2);

/**
 * Raw attention of the step that writes an id, and attention rolled out through all layers (Abnar
 * and Zuidema 2020).
 */
function byWeights(settings, row, sources) {
  const own = settings.kept.decoder ?? settings.kept.text;
  const layers = own
    ? means(settings.weights(own === settings.kept.text ? "text" : "decoder"))
    : [];
  const cross = settings.kept.cross ? means(settings.weights("cross")) : [];
  const {rows} = (own ?? settings.kept.cross)[0];
  const average = (stack, columns) =>
    Float64Array.from({length: columns}, (_, at) =>
      stack.reduce((sum, one) => sum + one[row * columns + at] / stack.length, 0),
    );
  let encoded = identity(sources);
  let toSource = new Float64Array(rows * sources);
  let toRead = identity(rows);
  if (settings.kept.encoder)
    for (const one of means(settings.weights("encoder")))
      encoded = product(halved(one, identity(sources)), encoded, sources, sources, sources);
  layers.forEach((one, layer) => {
    const mixing = halved(one, identity(rows));
    [toSource, toRead] = [
      product(mixing, toSource, rows, rows, sources),
      product(mixing, toRead, rows, rows, rows),
    ];
    if (cross[layer])
      [toSource, toRead] = [
        halved(toSource, product(cross[layer], encoded, rows, sources, sources)),
        halved(toRead),
      ];
  });
  const attention = [average(cross, sources), own ? average(layers, rows) : null];
  if (!own) return {attention}; // a recurrent decoder has no weights that could be rolled out
  const last = (numbers, columns) => numbers.subarray(row * columns, (row + 1) * columns);
  return {attention, rollout: [last(toSource, sources), last(toRead, rows)]};
}

/** A language model, or an encoder: masked words, classes or vectors. */
export class TextModel extends Model {
  constructor(content, tensors) {
    super(content, tensors);
    const {config} = this;
    const {dim, heads, head_dim: headDim, positions} = config;
    const {kind} = content;
    const causal = kind === "language-model";
    const inTurn = (layer) =>
      Array.isArray(config.pattern)
        ? config.pattern[layer % config.pattern.length]
        : config.pattern;
    Object.assign(this, {causal, head: causal ? "next" : config.head});
    this.blocks = filled(
      config.layers,
      (layer) =>
        new Attention(this.weights, `blocks.${layer}.attention`, {
          kind: "text",
          layer,
          dim,
          heads,
          headDim,
          text: inTurn(layer),
          causal,
          base: positions === "rotary" ? config.rotary_base : 0,
          slopes: positions === "alibi" ? slopes(heads) : null,
        }),
    );
  }

  get shapes() {
    return {text: [this.config.layers, this.config.heads]};
  }

  #normed(name, x) {
    return normed(x, this.weights.of(name), this.config.norm, this.config.epsilon);
  }

  /** The vectors of the last layer, (texts * ids, dim). */
  vectors(ids, settings, {erased = [null], memories = null, mean = null} = {}) {
    const {dim, activation, positions} = this.config;
    const texts = erased.length;
    const start = memories?.[0].count ?? 0;
    let x = embedded(this.table, ids, {
      dim,
      start,
      factor: positions === "sinusoidal" ? Math.sqrt(dim) : 1,
      positions: this.positions,
      erased,
      mean,
    });
    this.blocks.forEach((attention, layer) => {
      const name = `blocks.${layer}`;
      const norm = (part) => (x) => this.#normed(`${name}.${part}_norm`, x);
      const memory = memories?.[layer] ?? attention.memory(texts, ids.length);
      x = residual(x, norm("attention"), true, (x) =>
        attention.read(x, texts, start, attention.remember(x, texts, memory), settings),
      );
      x = residual(x, norm("feed_forward"), true, (x) =>
        feedForward(this.weights, `${name}.feed_forward`, activation, x, dim),
      );
    });
    return this.#normed("norm", x);
  }

  /** Logits (texts * ids, vocabulary) of vectors. */
  scores(x, settings) {
    const {dim, tied} = this.config;
    if (this.causal)
      return settings.tempered(
        this.weights.multiply(
          x,
          tied ? this.table : this.weights.of("to_vocabulary").weight,
          null,
          dim,
        ),
      );
    const hidden = this.weights.project("head.dense", x, dim);
    const {weight, bias} = this.weights.of("head");
    return settings.tempered(
      this.weights.multiply(
        this.#normed("head.norm", activated(hidden)),
        weight ?? this.table,
        bias,
        dim,
      ),
    );
  }

  /** Logits of the classes of a text. */
  sorted(x, settings) {
    const {dim, pooling} = this.config;
    const rows = pooling === "first" ? 1 : x.length / dim;
    const pooled = Float32Array.from(
      {length: dim},
      (_, i) => filled(rows, (row) => x[row * dim + i]).reduce((sum, one) => sum + one, 0) / rows,
    );
    return settings.tempered(
      this.weights.project(
        "head.to_classes",
        this.weights.project("head.dense", pooled, dim).map(Math.tanh),
        dim,
      ),
    );
  }

  /**
   * Reads a text in which words are erased; with the head of masked words they are masked, as in
   * training.
   */
  run(asked) {
    const {against, ...kept} = asked;
    const {source, erase = [], ...given} = kept;
    const {tokeniser, causal} = this;
    const {dim} = this.config;
    const settings = new Settings({...given, keeps: true});
    let ids = [BEGIN, ...tokeniser.encode(source), ...(causal ? [] : [END])];
    const spans = tokeniser.words(ids);
    const words = wordsOf(spans);
    const inner = spans.map((_, at) => at).slice(1, causal ? undefined : -1);
    this.check(ids.length, given, this.shapes);
    const gone = new Set(
      this.places(
        spans,
        erase.filter((at) => inner.includes(at)),
      ),
    );
    const mean = meanVector(this.table, ids.filter(isWord), dim);
    if (this.head === "words") ids = ids.map((id, at) => (gone.has(at) ? UNKNOWN : id));
    const x = this.vectors(ids, settings, {erased: [this.head === "words" ? null : gone], mean});
    const answer = {
      texts: {text: words},
      text: source,
      unknown: this.unknown(source),
      erasable: inner,
      ids: {source: ids, target: []},
      pieces: {text: tokeniser.pieces(ids)},
    };
    answer.attention = {text: merged(settings.weights("text"), spans, spans)};
    this.last = {key: JSON.stringify(kept), given, ids, spans, gone, mean, x, inner};
    Object.assign(answer, this.#said(ids, spans, x, gone, settings));
    return against && causal
      ? {...answer, against: this.#next(answer.logits, ids, spans, against.at(-1))}
      : answer;
  }

  /** What the head makes of the vectors. */
  #said(ids, spans, x, gone, settings) {
    if (this.head === "none") return {target: [], probabilities: [], likeliest: []};
    if (this.head === "classes") {
      const logits = this.sorted(x, settings);
      const probabilities = [...softmax(logits)];
      return {
        logits,
        probabilities,
        target: probabilities.map((_, at) => this.classes[at] ?? `class ${at}`),
        likeliest: [],
      };
    }
    const logits = this.scores(x, settings);
    if (this.causal) return {logits, ...this.#next(logits, ids, spans)};
    const places = [...gone].sort((one, other) => one - other);
    const best = places.map((at) => softmax(this.row(logits, at)));
    const likeliest = best.map((shares, at) =>
      top(shares, OTHERS).map((id) => [
        this.tokeniser.continued(ids.slice(0, places[at]), id),
        shares[id],
      ]),
    );
    return {
      logits,
      likeliest,
      target: likeliest.map(([[word]]) => word),
      probabilities: likeliest.map(([[, p]]) => p),
    };
  }

  /** The probability of each word from the second, and of what is most probable after the text. */
  #next(logits, ids, spans, follows = top(this.row(logits, ids.length - 1), 1)[0]) {
    const shifted = [
      ...spans.slice(1).map(([word, first, end]) => [word, first - 1, end - 1]),
      [this.tokeniser.continued(ids, follows), ids.length - 1, ids.length],
    ];
    return {
      target: wordsOf(shifted),
      follows,
      ...this.chances(logits, shifted, [...ids.slice(1), follows], [ids[0]]),
    };
  }

  /** The text that a language model writes after a text, by greedy search. */
  written({source, most = 24, ...given}) {
    const settings = new Settings(given);
    const ids = [BEGIN, ...this.tokeniser.encode(source)];
    const room = Math.min(ids.length + most, this.room);
    const memories = this.blocks.map((one) => one.memory(1, room));
    const found = [];
    let next = ids;
    while (found.length < most && memories[0].count + next.length <= room) {
      const x = this.vectors(next, settings, {memories});
      next = [
        top(
          this.scores(x.subarray(x.length - this.config.dim), settings),
          1,
          (id) => id !== PAD && id !== BEGIN,
        )[0],
      ];
      if (next[0] === END) break;
      found.push(next[0]);
    }
    return {text: this.tokeniser.decode(found), ids: found};
  }

  /**
   * A word that a language model reads, as the lens has it; of an encoder the most probable class
   * or first masked word.
   */
  about({given, ids, spans, gone, mean, x}, place) {
    const at = Math.min(place, spans.length - 1);
    const {dim} = this.config;
    const masked = this.head === "words" ? Math.min(...gone) : 0;
    const row = (all) => all.subarray(masked * dim, (masked + 1) * dim);
    if (this.head === "none" || (this.causal ? !(at >= 2) : masked === Infinity)) return null;
    if (!this.causal) {
      const [erased, scores] =
        this.head === "words"
          ? [null, (all, settings) => this.scores(row(all), settings)]
          : [gone, (all, settings) => this.sorted(all, settings)];
      const logits = scores(x, new Settings(given));
      const [of] = top(logits, 1);
      const others = Array.from(logits, (_, id) => id).filter((id) => id !== of);
      const word =
        this.head === "words"
          ? this.tokeniser.continued(ids.slice(0, masked), of)
          : (this.classes[of] ?? `class ${of}`);
      return {
        word,
        others: [],
        odds: (now) =>
          logOdds(
            scores(
              this.vectors(ids, new Settings(now), {erased: [erased], mean}),
              new Settings(now),
            ),
            of,
            others,
          ),
      };
    }
    const [word, first] = spans[at];
    const read = ids.slice(1, first);
    const of = ids[first];
    const erased = [new Set([...gone].map((one) => one - 1))];
    const last = (now) =>
      this.scores(
        this.vectors(read, new Settings(now), {erased, mean}).subarray(-dim),
        new Settings(now),
      );
    const others = this.others(last(given), of);
    return {
      word,
      others: others.map((id) => this.tokeniser.continued(read, id)),
      odds: (now) => logOdds(last(now), of, others),
    };
  }

  /** Each word erased: probabilities of next words, or how far vectors move. */
  async #erasures({given, ids, spans, gone, mean, x, inner}, pause) {
    const settings = new Settings(given);
    const size = ids.length * this.config.dim;
    const changes = [];
    const own = this.causal ? this.#next(this.scores(x, settings), ids, spans) : null;
    for (let from = 0, words = inner.slice(0, MOST); from < words.length; from += AT_ONCE) {
      if (await pause()) return null;
      const some = words.slice(from, from + AT_ONCE);
      const erased = some.map((at) => new Set([...gone, ...range(spans[at])]));
      const after = this.vectors(ids, settings, {erased, mean});
      some.forEach((word, text) => {
        const rows = after.subarray(text * size, (text + 1) * size);
        if (!this.causal)
          return changes.push({
            similarities: spans.map((span) => cosine(x, rows, span, this.config.dim)),
          });
        const {probabilities, likeliest} = this.#next(
          this.scores(rows, settings),
          ids,
          spans,
          own.follows,
        );
        return changes.push({probabilities, likeliest}); // words up to the erased one were predicted before it was read
      });
    }
    return changes;
  }

  /**
   * What one word of a language model's text depends on; place counts "<begin>", which this lens
   * does not read.
   */
  async lens({place, others: _, ...asked}, pause) {
    const last = this.lastOf(asked);
    const {given, ids, spans, inner} = last;
    const changes = (last.changes ??= await this.#erasures(last, pause));
    if (!changes) return null;
    const at = Math.min(place, spans.length - 1);
    if (!this.causal || at < 2) return {changes, lenses: []};
    const [word, first] = spans[at];
    const read = ids.slice(1, first);
    const of = ids[first];
    const readSpans = this.tokeniser.words(read);
    const settings = new Settings({...given, keeps: true});
    const plain = new Settings(given);
    const {dim} = this.config;
    const mean = meanVector(this.table, read.filter(isWord), dim);
    const ends = (x) =>
      this.scores(
        Float32Array.from(
          {length: x.length / read.length},
          (_, i) => x[(Math.floor(i / dim) * read.length + read.length - 1) * dim + (i % dim)],
        ),
        plain,
      );
    const before = ends(this.vectors(read, settings));
    const others = this.others(before, of);
    const odds = logOdds(before, of, others);
    const falls = [];
    for (let from = 0; from < readSpans.length; from += AT_ONCE) {
      if (await pause()) return null;
      const erased = readSpans.slice(from, from + AT_ONCE).map((span) => new Set(range(span)));
      const after = ends(this.vectors(read, plain, {erased, mean}));
      erased.forEach((_, text) => falls.push(odds - logOdds(this.row(after, text), of, others)));
    }
    const about = {
      word,
      place: at - inner[0],
      odds,
      others: others.map((id) => this.tokeniser.continued(read, id)),
    };
    const lenses = [
      record(
        "erase",
        about,
        [],
        readSpans.map(([one], number) => [one, falls[number]]),
        readSpans.length + 1,
      ),
    ];
    for (const [name, [, toRead]] of Object.entries(byWeights(settings, read.length - 1, 0)))
      lenses.push(record(name, about, [], summed(toRead, readSpans), 1));
    return {changes, lenses};
  }
}

const activated = (x) => x.map((one) => ACTIVATIONS.gelu(one));

/** The cosine between the mean vectors of a word before and after. */
function cosine(before, after, [, first, end], dim) {
  let [both, one, other] = [0, 0, 0];
  for (let i = 0; i < dim; i += 1) {
    let [a, b] = [0, 0];
    for (let row = first; row < end; row += 1) {
      a += before[row * dim + i];
      b += after[row * dim + i];
    }
    both += a * b;
    one += a * a;
    other += b * b;
  }
  return both / Math.sqrt(one * other) || 0;
}
