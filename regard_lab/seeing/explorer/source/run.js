// What the engine computed of a text, in the form of data that a page contains.

import {Source, Weights, meanOf} from "./data.js";
import {filled} from "./engine/numbers.js";
import {common, lastWord} from "./wordpairs.js";

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
        said: "the same before the change",
        header: base.header,
        matched: matchedTexts(texts, base.answer.texts),
      };
    if (finished === false)
      this.header.notes = [...header.notes, "The model does not end this text."];
  }

  /**
   * The word that is shown first: the one that was asked about, a pronoun that occurs once, or the
   * one of which the model is least sure.
   */
  #chosen() {
    const {model, texts} = this.header;
    if (model.written !== "target") return lastWord(texts.text);
    const asked = this.#asked();
    if (asked) return asked.place;
    const pronouns = texts.target.flatMap((word, at) =>
      model.pronouns.includes(word.toLowerCase()) ? [at] : [],
    );
    return pronouns.length === 1 ? pronouns[0] : this.#leastSure();
  }

  /** The written word of which the model is least sure; its end is none. */
  #leastSure() {
    const {probabilities} = this.answer;
    const words = Math.max(probabilities.length - 1, 1);
    return probabilities
      .slice(0, words)
      .reduce((least, p, at, all) => (p < all[least] ? at : least), 0);
  }

  /**
   * The words that a written word is compared with, if it is one of those that were asked for; null
   * for those that the model finds most probable beside it.
   */
  others(place) {
    const {asked} = this.header.model;
    if (!asked?.others) return null;
    const all = [asked.word, ...asked.others];
    const word = this.header.texts.target[place];
    return all.includes(word) ? all.filter((one) => one !== word) : null;
  }

  /** The question with which the page was made, if its word is written of this text. */
  #asked() {
    const {
      model: {asked},
      texts,
    } = this.header;
    const same = asked?.source === this.given.source && texts.target?.[asked.place] === asked.word;
    return same ? asked : null;
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
    const of = (one) => weights.subarray((layer * heads + one) * size).subarray(0, size);
    const values = head === "mean" ? meanOf(filled(heads, of)) : of(head);
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

/** For each text, the places of its words that both runs have, in order. */
function matchedTexts(texts, others) {
  return Object.fromEntries(
    Object.entries(texts).map(([name, one]) => {
      const pairs = common(one, others[name]);
      return [name, [0, 1].map((side) => pairs.map((pair) => pair[side]))];
    }),
  );
}

const NOTHING = {probabilities: [], likeliest: [], translation: null, similarities: []};

/**
 * What the model makes of the text as it is, and now; erased words are added when the lens has
 * them.
 */
function changesOf({follows}, answer, base) {
  const said = (one) => ({
    ...NOTHING,
    ...one,
    translation: one.finished === undefined ? [] : one.texts.target.slice(0, -1),
  });
  const stays = {similarities: base.texts[base.texts.target ? "target" : "text"].map(() => 1)};
  return {
    follows,
    unchanged: {...said(base), ...stays},
    now: answer === base ? null : {...said(answer), ...answer.against},
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
