// The model of the page in a thread of its own.

import {Run} from "./run.js";
import {questionOf} from "./state.js";

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
    const nested = ([size, ...rest], weights) =>
      Array.from({length: size}, (_, at) => {
        const part = weights.subarray(
          (at * weights.length) / size,
          ((at + 1) * weights.length) / size,
        );
        return rest.length ? nested(rest, part) : part[0];
      });
    const maps = Object.entries(attention).map(([kind, {shape, weights}]) => [
      kind,
      nested(shape, weights),
    ]);
    return {target, probabilities, text, unknown, attention: Object.fromEntries(maps)};
  }

  /** The run of a state of the page, and that of the text without changes. */
  async play(stored, state) {
    const {changed, ...given} = questionOf(state);
    if (this.plain?.given.source !== given.source)
      this.plain = new Run(stored, given, await this.ask("run", given));
    const {plain} = this;
    if (!Object.keys(changed).length) return plain;
    const question = {...given, ...changed};
    const against =
      plain.answer.follows === undefined ? plain.answer.ids.target : [plain.answer.follows];
    return new Run(stored, question, await this.ask("run", {...question, against}), plain);
  }
}
