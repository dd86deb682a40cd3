// The field below an erased word, in which a reader writes another one.

import {html, nothing} from "lit-html";
import {clamped} from "./engine/numbers.js";
import {offered} from "./form.js";
import {act, flipped, undo} from "./past.js";
import {play} from "./play.js";
import {gone} from "./state.js";
import {drawn} from "./surface.js";
import {exchanged, readOf} from "./wordpairs.js";

const OTHER_SIGNS = /[^\p{L}\p{M}\p{N}'’]/gu; // a sign more would be a word more

/** Erase a word and open the field in its place, or put the word back. */
export async function eraseAt(app, at) {
  const {
    source,
    state: {erase: erased},
  } = app;
  const shown = act(app, {erase: flipped(erased, String(at), ".")});
  const returns = gone({erase: erased}).includes(at);
  if (returns || exchanged(source, at, "") === null) return shown;
  const word = readOf(source.header)[at];
  const field = {at, word, source, erased, written: "", near: []};
  app.field = field;
  await shown;
  // on a touch screen the keyboard would hide the answer
  if (matchMedia("(pointer: fine)").matches) app.element.querySelector(".field")?.focus();
  if (!app.engine.words.length) return undefined;
  field.near = await app.engine.ask("near", {word});
  return app.drawFirst();
}

/**
 * The field, in the gap below the words, where it covers none; and known words: those near the
 * erased one, or those that begin with its letters.
 */
export function field(app) {
  if (!app.field) return nothing;
  const {at, word, written, near} = app.field;
  const known = written ? offered(written, app.engine.words) : near.slice(1);
  return html`<input
      class="field"
      aria-label="Write another word in the place of “${word}”"
      placeholder="instead of “${word}”"
      maxlength="40"
      autocomplete="off"
      autocapitalize="none"
      spellcheck="false"
      list="near"
      @input=${(event) => typed(app, event)}
      @keydown=${(event) => onKey(app, event)}
      @blur=${() => close(app)}
      ${drawn((element) => below(element, at))}
    /><datalist id="near">${known.map((one) => html`<option value=${one}></option>`)}</datalist>`;
}

function typed(app, {target, timeStamp}) {
  const {at, source, erased} = app.field;
  const word = target.value.replace(OTHER_SIGNS, "");
  target.value = word;
  app.field.written = word;
  const text = word ? exchanged(source, at, word) : source.given.source;
  const erase = word ? erased : flipped(erased, String(at), ".");
  return play(app, {text, erase}, timeStamp);
}

function onKey(app, event) {
  if (event.key !== "Enter" && event.key !== "Escape") return;
  event.stopPropagation();
  event.preventDefault(); // Enter would press the word
  const word = app.element.querySelector(`.given [data-at="${app.field.at}"]`);
  if (event.key === "Escape") undo(app);
  word.focus(); // which closes the field
  app.hot = null; // the answer speaks of the change
  app.drawFirst();
}

function close(app) {
  if (!app.field) return;
  app.field = null;
  app.drawFirst();
}

/** The field begins below its word, within the edges of the lines. */
function below(element, at) {
  const stage = element.closest(".stage");
  const word = stage.querySelector(`.given [data-at="${at}"]`);
  const most = stage.clientWidth - element.offsetWidth;
  element.style.left = `${clamped(word.offsetLeft, 0, most)}px`;
}
