// Play: the model of the page in a worker, the text and the words above every view, and what is
// changed: words erased, heads switched off, scores scaled, other patterns. All of it stands in the
// page's address.

import {html, nothing} from "lit-html";
import {Run} from "./data.js";

const OFFERED = 12; // known words that are offered while typing
export const PLAIN = {erase: "", off: "", factor: "1", warmth: "1", masks: ""}; // the state of a model as it was trained

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
   * "lens" or "written".
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

const numbers = (text) => text.split(".").map(Number);

/** What a state asks of the engine: its text, and what is changed. */
function questionOf({text, erase, off, factor, warmth, masks}) {
  const heads = off
    .split(",")
    .filter(Boolean)
    .map((one) => one.split("."))
    .map(([kind, layer, head]) => [kind, Number(layer), Number(head)]);
  const patterns = Object.fromEntries(
    masks
      .split(";")
      .filter((one) => one.includes(":"))
      .map((one) => one.split(/:(.*)/s).map((part) => part.trim())),
  );
  return {
    source: text,
    changed: {
      ...(erase ? {erase: numbers(erase)} : {}),
      ...(heads.length ? {off: heads} : {}),
      ...(Number(factor) !== 1 ? {scale: Number(factor)} : {}),
      ...(Number(warmth) !== 1 ? {temperature: Number(warmth)} : {}),
      ...(Object.keys(patterns).length ? {patterns} : {}),
    },
  };
}

/** Play: a newer change replaces those that wait; words are shown before the lens is computed. */
export async function play(app, changes, began = performance.now()) {
  Object.assign(app.state, changes);
  if (app.playing) return (app.waits = began);
  app.playing = true;
  do {
    app.waits = null;
    try {
      const run = app.state.text.trim() ? await app.engine.play(app.stored, app.state) : null;
      app.state.busy = run ? "" : "The sentence is empty; write one.";
      if (run && app.waits === null) await app.replace(run);
      window.regard.shown.push(performance.now() - began);
    } catch (error) {
      app.state.busy = error.message;
    }
    began = app.waits ?? began;
  } while (app.waits !== null);
  app.playing = false;
  await app.draw();
  return lens(app, began);
}

const NONE = {lenses: [], changes: []};

export const chosenPlace = ({state, source}) => Number(state.place ?? source.header.chosen);

/** Compute what the chosen word depends on, unless the page knows it; a newer question ends it. */
export async function lens(app, began = performance.now()) {
  const {source} = app;
  const {header} = source;
  const place = chosenPlace(app);
  if (!(source instanceof Run) || header.explained[place] || app.asking === source) return;
  app.asking = source;
  let answer = NONE;
  try {
    answer = await app.engine.ask("lens", {...source.given, place, others: source.others(place)});
  } catch (error) {
    app.state.busy = error.message;
  }
  app.asking = null;
  if (app.source !== source || app.playing) return;
  if (!answer) return lens(app, began);
  source.explain(place, answer);
  header.explained[place] ??= [];
  await app.draw();
  window.regard.coloured.push(performance.now() - began);
}

/**
 * Compute which heads the chosen word needs, unless the page knows it; a newer question ends it.
 */
export async function effects(app) {
  const {source} = app;
  const place = chosenPlace(app);
  if (!(source instanceof Run) || source.effects?.place === place) return;
  if (source.effects) source.measure(null, {kinds: {}}); // those of another word
  if (app.asking || app.playing) return;
  app.asking = source;
  let found = {kinds: {}};
  try {
    found = await app.engine.ask("effects", {...source.given, place, others: source.others(place)});
  } catch (error) {
    app.state.busy = error.message;
  }
  app.asking = null;
  if (found) source.measure(place, found);
  if (app.source === source && !app.playing) await app.draw();
}

const flipped = (list, one, by) => {
  const all = list ? list.split(by) : [];
  return (all.includes(one) ? all.filter((other) => other !== one) : [...all, one]).join(by);
};

/** Whether a head is switched off, and a button that switches it. */
export function headSwitch(app) {
  const {
    state: {layer, head, off},
    attention,
  } = app;
  if (!app.engine || head === "mean") return nothing;
  const name = `${attention.kind}.${layer}.${head}`;
  return html`<button
    aria-pressed=${String(off.split(",").includes(name))}
    @click=${() => play(app, {off: flipped(off, name, ",")})}
  >
    Switched off
  </button>`;
}

/** The text, what is written, and what is changed, above every view. */
export function playForm(app) {
  const {
    state,
    source: {header, answer, base},
    engine,
  } = app;
  const {texts, model} = header;
  const shown = (base ?? app.source).header.texts;
  const words = texts.source ?? texts.text;
  const gone = state.erase ? numbers(state.erase) : [];
  const unknown = answer.unknown ?? [];
  const changed = Object.keys(PLAIN).some((name) => String(state[name]) !== PLAIN[name]);
  const light = (text, at) => {
    app.lit = at === null ? null : {text, at};
    app.light?.();
  };
  const hover = (text, at) => ({enter: () => light(text, at), leave: () => light(text, null)});
  const word = (text, at, label, pressed, click) => {
    const {enter, leave} = hover(text, at);
    return html`<button
      class="word ${text === "target" ? "" : "erased"}"
      aria-pressed=${String(pressed)}
      @click=${click}
      @pointerenter=${enter}
      @pointerleave=${leave}
      @focus=${enter}
      @blur=${leave}
    >
      <bdi>${label}</bdi>
    </button>`;
  };
  const own = texts.source ? "source" : "text";
  const next = (likeliest) => likeliest.map(([one, p]) => html`<bdi>${one}</bdi> ${p.toFixed(3)} `);
  return html`<form class="live" @submit=${(event) => event.preventDefault()}>
      <label for="sentence">${model.label}</label>
      <input
        id="sentence"
        name="text"
        .value=${state.text}
        maxlength="1000"
        autocomplete="off"
        spellcheck="false"
        list="known"
        @input=${(event) => play(app, {text: event.target.value, erase: "", place: undefined}, event.timeStamp)}
      />
      <datalist id="known">
        ${offered(state.text, engine.words).map((text) => html`<option value=${text}></option>`)}
      </datalist>
      <span role="alert">${state.busy}</span>
    </form>
    ${unknown.length ? html`<p class="unknown" role="status">Not in the training of this model: <bdi>${unknown.join(", ")}</bdi>; what it makes of such words is a guess.</p>` : nothing}
    <div class="played">
      <span>reads</span>
      <div class="words" role="group" aria-label="Words that are read; press one to erase it">
        ${words.map((one, at) =>
          answer.erasable.includes(at)
            ? word(own, at, shown[own][at] ?? one, gone.includes(at), () =>
                play(app, {erase: flipped(state.erase, String(at), ".")}),
              )
            : html`<span class="word plain"><bdi>${one}</bdi></span>`,
        )}
      </div>
      ${
        texts.target
          ? html`<span>writes</span>
              <div
                class="words"
                role="group"
                aria-label="Words that are written; press one to explain it"
              >
                ${texts.target.map((one, at) => word("target", at, one, at === Number(state.place ?? header.chosen), () => app.set({row: at, place: at})))}
              </div>`
          : answer.follows !== undefined
            ? html`<span>next</span>
                <p>${next(answer.likeliest.at(-1))}</p>`
            : answer.likeliest.length
              ? html`<span>masked</span>
                  <p>${answer.likeliest.map((one) => html`${next(one)}<br />`)}</p>`
              : answer.target.length
                ? html`<span>class</span>
                    <p>${next(answer.target.map((one, at) => [one, answer.probabilities[at]]))}</p>`
                : nothing
      }
    </div>
    <details class="tweaks" ?open=${changed}>
      <summary>Change the model${changed ? " (changed)" : ""}</summary>
      <div class="bar">
        ${factor(app, "factor", "Scores \u00d7", "Factor of all attention scores")}
        ${factor(app, "warmth", "Temperature", "What the logits of words are divided by")}
        ${model.kinds.map((one) => maskForm(app, one))}
        ${state.off ? html`<span class="badge">off: ${state.off.split(",").join(", ")}</span>` : nothing}
        <button type="button" ?disabled=${!changed} @click=${() => play(app, PLAIN)}>
          As trained
        </button>
      </div>
    </details>`;
}

/** A slider of a number above 0, by powers of two. */
function factor(app, name, label, says) {
  return html`<label class="choice"
    ><span>${label} ${Number(app.state[name]).toFixed(2)}</span
    ><input
      type="range"
      min="-3"
      max="3"
      step="0.1"
      .value=${String(Math.log2(app.state[name]))}
      aria-label=${says}
      @input=${(event) => play(app, {[name]: (2 ** event.target.value).toFixed(3).replace(/\.?0+$/, "")}, event.timeStamp)}
  /></label>`;
}

/** The pattern that a reader gave a kind of attention; empty for that of the model. */
export function maskOf({state}, kind) {
  return questionOf(state).changed.patterns?.[kind] ?? "";
}

export function playMask(app, kind, text, began) {
  const {
    state,
    source: {
      header: {model},
    },
  } = app;
  const others = state.masks.split(";").filter((one) => one && !one.startsWith(`${kind}:`));
  const given = text.replaceAll(";", "").trim();
  const own = given === model.patterns[kind] ? "" : given;
  return play(app, {masks: [...others, ...(own ? [`${kind}:${own}`] : [])].join(";")}, began);
}

const WINDOW = /\b(sliding_window|causal_window)\((\d+)\)/;

/** The pattern of a kind of attention as text, and how far its window reaches. */
export function maskForm(app, {kind, name, columns}) {
  const own = app.source.header.model.patterns[kind];
  const mask = maskOf(app, kind);
  const text = mask || own;
  const [, which, size] = text.match(WINDOW) ?? [];
  const most = Math.max(
    app.source.answer.pieces[columns === "read" ? "target" : columns].length - 1,
    1,
  );
  const reach =
    size === undefined ? most : Math.min(which === "sliding_window" ? size >> 1 : size - 1, most);
  const widened = (to) => {
    if (to === most && !WINDOW.test(own))
      return text.replace(/^(.*) & sliding_window\(\d+\)$/s, "$1").replace(/^\((.*)\)$/s, "$1");
    const window = `${which ?? "sliding_window"}(${which === "causal_window" ? to + 1 : 2 * to})`;
    return size === undefined
      ? `${text.includes("|") ? `(${text})` : text} & ${window}`
      : text.replace(WINDOW, window);
  };
  return html`<label class="choice"
      ><span>Pattern, ${name.toLowerCase()}</span
      ><input
        size="22"
        placeholder=${own}
        .value=${mask}
        @change=${(event) => playMask(app, kind, event.target.value)}
    /></label>
    <label class="choice"
      ><span
        >Window
        ${size === undefined ? "all" : which === "causal_window" ? `${reach} back` : `\u00b1${reach}`}</span
      ><input
        type="range"
        min="0"
        max=${most}
        .value=${String(reach)}
        aria-label="Window, ${name.toLowerCase()}"
        @input=${(event) => playMask(app, kind, widened(Number(event.target.value)), event.timeStamp)}
    /></label>`;
}

/** The text with its last word completed to words that the training had. */
function offered(text, words) {
  const [, before, last] = text.match(/^(.*?)([\p{L}\p{N}']+)$/su) ?? [null, "", ""];
  const found = [];
  for (let at = 0; last && at < words.length && found.length < OFFERED; at += 1)
    if (words[at].length > last.length && words[at].toLowerCase().startsWith(last.toLowerCase()))
      found.push(`${before}${words[at]}`);
  return found;
}
