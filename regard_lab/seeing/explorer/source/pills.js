// What a reader has changed: in one line, a button for each change, which takes it back; and in the
// words of a sentence.

import {html} from "lit-html";
import {act, flipped} from "./past.js";
import {headName, listed} from "./shares.js";
import {gone, switchedOff} from "./state.js";
import {named, quoted} from "./stories.js";
import {readOf, replacedWords} from "./wordpairs.js";

export function pills(app) {
  return html`<div class="pills" role="toolbar" aria-label="What is changed; press one to undo it">
    ${changesOf(app).map(
      ({pill, before}) => html`<button @click=${() => act(app, before)}>${pill}</button>`,
    )}
  </div>`;
}

/** The changes at the beginning of a sentence. */
export function causes(app) {
  const all = changesOf(app);
  if (all.length > 1)
    return html`Together, ${listed(all.map(({how, what}) => html`${how} ${what}`))}`;
  return all.map(({how, what}) => html`${how === "with" ? "With" : "Without"} ${what}`);
}

/** pill: what a button says; before: the values before; how and what: the words of a sentence. */
function changesOf({state, origin, source}) {
  const read = readOf(source.header);
  const text = origin.given.source;
  const replaced = replacedWords(text, state.text);
  const words = replaced.map(({before, after}) => `“${before}” → “${after}”`);
  const instead = ({before, after}) => html`${quoted(after)} instead of ${quoted(before)}`;
  const changes = [];
  const add = (pill, before, how, what = pill) => changes.push({pill, before, how, what});
  if (words.length) add(words.join(", "), {text}, "with", listed(replaced.map(instead)));
  for (const at of gone(state)) {
    const word = read[at] ?? String(at);
    add(
      `without “${named(word)}”`,
      {erase: flipped(state.erase, String(at), ".")},
      "without",
      quoted(word),
    );
  }
  for (const [kind, ...numbers] of switchedOff(state)) {
    const head = headName(...numbers);
    const off = flipped(state.off, [kind, ...numbers].join("."), ",");
    add(`${head} off`, {off}, "with", `${head} switched off`);
  }
  const {factor, warmth} = state;
  if (Number(factor) !== 1)
    add(`scores × ${factor}`, {factor: "1"}, "with", `attention scores × ${factor}`);
  if (Number(warmth) !== 1) add(`temperature ${warmth}`, {warmth: "1"}, "with");
  if (state.masks) add("another pattern", {masks: ""}, "with");
  return changes;
}
