// Controls that change the text and the model: another text, heads, and the drawer of the model.

import {html, nothing} from "lit-html";
import {maskForm} from "./masks.js";
import {act, flipped, isChanged, untouchedOf} from "./past.js";
import {play} from "./play.js";
import {headName} from "./shares.js";

const OFFERED = 12; // known words that are offered while typing

/** Whether a head is switched off, and a button that switches it. */
export function headSwitch(app) {
  const {
    state: {layer, head, off},
    attention,
  } = app;
  if (!app.engine || head === "mean") return nothing;
  const name = `${attention.kind}.${layer}.${head}`;
  return html`<button @click=${() => act(app, {off: flipped(off, name, ",")})}>
    Switch ${off.split(",").includes(name) ? "on" : "off"} ${headName(layer, head)}
  </button>`;
}

/** Another text, in the place of the orientation; the translation follows each letter. */
export function sentenceForm(app) {
  const {state, engine, source} = app;
  const typed = ({target, timeStamp}) => {
    app.follows = null; // another text
    play(app, {text: target.value, erase: "", place: undefined}, timeStamp);
  };
  const close = (event) => {
    event.preventDefault();
    app.set({types: false});
  };
  return textForm(source.header.model.label, state.text, {
    typed,
    submit: close,
    known: offered(state.text, engine.words),
    longest: 1000,
    button: html`<button>Close</button>`,
  });
}

/** A form of one text. known: words that are offered; longest: in characters. */
export function textForm(label, text, {typed, submit, known = [], longest = 4000, button}) {
  return html`<form class="live" @submit=${submit}>
    <label for="sentence">${label}</label>
    <input
      id="sentence"
      name="text"
      .value=${text}
      maxlength=${longest}
      autocomplete="off"
      spellcheck="false"
      list="known"
      @input=${typed}
    />
    <datalist id="known">${known.map((one) => html`<option value=${one}></option>`)}</datalist>
    ${button}
  </form>`;
}

/** What is changed in the model, in a drawer above the page; what is off is listed. */
export function drawer(app) {
  const {
    state,
    source: {
      header: {model},
    },
  } = app;
  const changed = isChanged(app);
  return html`<details class="tweaks">
    <summary>Change the model</summary>
    <div class="sheet" data-apart>
      ${factor(app, "factor", "Scores \u00d7", "Factor of all attention scores")}
      ${factor(app, "warmth", "Temperature", "What the logits of words are divided by")}
      ${model.kinds.map((one) => maskForm(app, one))}
      <button type="button" ?disabled=${!changed} @click=${() => act(app, untouchedOf(app))}>
        Undo all changes
      </button>
    </div>
  </details>`;
}

const power = (exponent) => (2 ** exponent).toFixed(3).replace(/\.?0+$/, "");

/** A slider of a number above 0, by powers of two. */
export function factor(app, name, label, says) {
  return html`<label class="choice"
    ><span>${label} ${app.state[name]}</span
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
export function offered(text, words) {
  const [, before, last] = text.match(/^(.*?)([\p{L}\p{N}']+)$/su) ?? [null, "", ""];
  const begins = (word) =>
    word.length > last.length && word.toLowerCase().startsWith(last.toLowerCase());
  const found = last ? words.filter(begins) : [];
  return found.slice(0, OFFERED).map((word) => before + word);
}
