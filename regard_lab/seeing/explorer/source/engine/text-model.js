// Language models and encoders of regard_lab.models: what they read, mask or sort, and what
// follows.

import {
  Attention,
  embedded,
  feedForward,
  lastRows,
  meanVector,
  residual,
  Settings,
} from "./layers.js";
import {AT_ONCE, isWord, logOdds, Model, MOST, OTHERS, range, record, wordsOf} from "./model.js";
import {ACTIVATIONS, cosine, filled, merged, normed, slopes, softmax, top} from "./numbers.js";
import {BEGIN, END, PAD, UNKNOWN} from "./text.js";
import {byWeights, summed} from "./rollout.js";

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
    const pooled = this.meanOf(
      x,
      filled(rows, (row) => row),
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
    const plain = this.#read(source);
    const spans = tokeniser.words(plain);
    const words = wordsOf(spans);
    const inner = spans.map((_, at) => at).slice(1, causal ? undefined : -1);
    this.check(plain.length, given, this.shapes);
    const gone = new Set(
      this.places(
        spans,
        erase.filter((at) => inner.includes(at)),
      ),
    );
    const mean = meanVector(this.table, plain.filter(isWord), dim);
    const ids =
      this.head === "words" ? plain.map((id, at) => (gone.has(at) ? UNKNOWN : id)) : plain;
    const x = this.vectors(ids, settings, {erased: [this.head === "words" ? null : gone], mean});
    const answer = {
      texts: {text: words},
      unknown: this.unknown(source),
      erasable: inner,
      ids: {source: ids, target: []},
      pieces: {text: tokeniser.pieces(ids)},
    };
    answer.attention = {text: merged(settings.weights("text"), spans, spans)};
    this.last = {key: JSON.stringify(kept), given, ids, spans, gone, mean, x, inner};
    Object.assign(answer, this.#said(ids, spans, x, gone, settings));
    if (against && causal) answer.against = this.#next(answer.logits, ids, spans, against.at(-1));
    else if (against) {
      const before = this.#read(against);
      const vectors = this.vectors(before, new Settings());
      answer.against = this.#similarities(vectors, x, tokeniser.words(before), spans);
    }
    return answer;
  }

  /** The cosine of each word's vectors; a word may have other pieces in the other text. */
  #similarities(one, other, spans, now = spans) {
    const vector = (x, span) => this.meanOf(x, range(span));
    return {
      similarities: spans.map((span, at) =>
        cosine(vector(one, span), vector(other, now[at] ?? span)),
      ),
    };
  }

  #read(text) {
    return [BEGIN, ...this.tokeniser.encode(text), ...(this.causal ? [] : [END])];
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
      some.forEach((_, text) => {
        const rows = after.subarray(text * size, (text + 1) * size);
        changes.push(
          this.causal // words up to the erased one were predicted before it was read
            ? this.#next(this.scores(rows, settings), ids, spans, own.follows)
            : this.#similarities(x, rows, spans),
        );
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
    const ends = (x) => this.scores(lastRows(x, x.length / dim / read.length, dim), plain);
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
