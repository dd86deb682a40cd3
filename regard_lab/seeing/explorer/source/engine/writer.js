// Models that write a translation: greedy search, erasures, and the lenses of a written word.

import {embedded, meanVector, Settings} from "./layers.js";
import {AT_ONCE, isWord, logOdds, Model, MOST, range, record, wordsOf} from "./model.js";
import {merged, top} from "./numbers.js";
import {BEGIN, END, PAD} from "./text.js";
import {byWeights, summed} from "./rollout.js";

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
    const target = wordsOf(spans);
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
      texts: {source: wordsOf(sourceSpans), target, read: wordsOf(read)},
      text: tokeniser.decode(written),
      finished,
      target,
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
