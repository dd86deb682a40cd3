// The text, what is written, and what is changed, above every view.

import {html, nothing} from "lit-html";
import {maskForm} from "./masks.js";
import {chosenPlace, play} from "./play.js";
import {numbers, PLAIN} from "./thread.js";

const OFFERED = 12; // known words that are offered while typing

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
  const written = (one, at) =>
    word("target", at, one, at === chosenPlace(app), () => app.set({row: at, place: at}));
  const off = state.off.replaceAll(",", ", ");
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
        @input=${({target, timeStamp}) =>
          play(app, {text: target.value, erase: "", place: undefined}, timeStamp)}
      />
      <datalist id="known">
        ${offered(state.text, engine.words).map((text) => html`<option value=${text}></option>`)}
      </datalist>
      <span role="alert">${state.busy}</span>
    </form>
    ${unknown.length ? guessed(unknown) : nothing}
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
                ${texts.target.map(written)}
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
        ${state.off ? html`<span class="badge">off: ${off}</span>` : nothing}
        <button type="button" ?disabled=${!changed} @click=${() => play(app, PLAIN)}>
          As trained
        </button>
      </div>
    </details>`;
}

function guessed(unknown) {
  return html`<p class="unknown" role="status">
    Not in the training of this model: <bdi>${unknown.join(", ")}</bdi>; what it makes of such words
    is a guess.
  </p>`;
}

const power = (exponent) => (2 ** exponent).toFixed(3).replace(/\.?0+$/, "");

/** A slider of a number above 0, by powers of two. */
export function factor(app, name, label, says) {
  return html`<label class="choice"
    ><span>${label} ${Number(app.state[name]).toFixed(2)}</span
    ><input
      type="range"
      min="-3"
      max="3"
      step="0.1"
      .value=${String(Math.log2(app.state[name]))}
      aria-label=${says}
      @input=${({target, timeStamp}) => play(app, {[name]: power(target.value)}, timeStamp)}
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
