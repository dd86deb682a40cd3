// The model of the page in a thread of its own.

import {filled} from "./engine/numbers.js";
import {Run} from "./run.js";
import {questionOf} from "./state.js";

/** What a run is compared with: what was written, what followed, or the text that was read. */
function comparedWith({given, header, answer: {follows, ids}}) {
  if (follows !== undefined) return [follows];
  return header.texts.target ? ids.target : given.source;
}

/** Numbers as lists of lists. */
function nested({shape, weights}) {
  const cut = (list, size) =>
    filled(list.length / size, (at) => list.slice(at * size, (at + 1) * size));
  return shape.slice(1).reduceRight(cut, [...weights]);
}

/** The model of the page, in a thread of its own. */
export class Engine {
  constructor({model}, root = document) {
    const read = (id) => root.getElementById(id).textContent;
    const [text, packed] = [read("regard-model"), read("regard-tensors")];
    const waiting = (this.waiting = new Map());
    this.model = model;
    this.words = JSON.parse(text).words ?? [];
    this.worker = window.regardWorker; // which the page has started
    this.worker.onmessage = ({data: {id, answer, error}}) => {
      const {done, fail} = waiting.get(id);
      waiting.delete(id);
      if (error === undefined) done(answer);
      else fail(new Error(error));
    };
    this.ready = this.#ask("load", {text, packed, digest: model.digest});
    this.ready.catch(() => {}); // whoever asks next is told
    this.last = 0;
  }

  #ask(what, given) {
    return new Promise((done, fail) => {
      const id = (this.last = (this.last ?? 0) + 1);
      this.waiting.set(id, {done, fail});
      this.worker.postMessage({...given, id, ask: what});
    });
  }

  /**
   * What the model makes of a question {source, erase, off, scale, temperature, patterns}: "run",
   * "lens", "effects" or "written"; or of {word}: "near". null if a newer question has ended it.
   */
  async ask(what, given) {
    await this.ready;
    return this.#ask(what, given);
  }

  /** The same as plain values, for tests and for the console. */
  async run(given) {
    const {target, probabilities, text, unknown, attention} = await this.ask("run", given);
    const maps = Object.entries(attention).map(([kind, one]) => [kind, nested(one)]);
    return {target, probabilities, text, unknown, attention: Object.fromEntries(maps)};
  }

  /**
   * The run of a state of the page, beside the run that it has changed; without one, beside that of
   * its text as it is.
   */
  async play(stored, state, origin = null) {
    const {changed, ...given} = questionOf(state);
    const base = origin ?? new Run(stored, given, await this.ask("run", given));
    if (base.given.source === given.source && !Object.keys(changed).length) return base;
    const question = {...given, ...changed};
    const answer = await this.ask("run", {...question, against: comparedWith(base)});
    // the words of a text that is read are compared one by one
    const [words, before] = [answer.texts.text, base.header.texts.text];
    const alike = !words || words.length === before.length;
    return new Run(stored, question, answer, alike ? base : null);
  }
}
