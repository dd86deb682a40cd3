// What a reader has changed, in one line: a button for each change, which takes it back.

import {html} from "lit-html";
import {act, flipped} from "./past.js";
import {gone, switchedOff} from "./state.js";
import {named} from "./stories.js";
import {replacedWords} from "./wordpairs.js";

export function pills(app) {
  return html`<div class="pills" role="toolbar" aria-label="What is changed; press one to undo it">
    ${changesOf(app).map(
      ([says, before]) => html`<button @click=${() => act(app, before)}>${says}</button>`,
    )}
  </div>`;
}

/** Pairs of what is changed and the values that it had before. */
function changesOf({state, origin}) {
  const {texts} = origin.header;
  const read = texts.source ?? texts.text;
  const {source} = origin.given;
  const replaced = replacedWords(source, state.text)
    .map(({before, after}) => `“${before}” → “${after}”`)
    .join(", ");
  const erased = gone(state).map((at) => [
    `without “${named(read[at] ?? String(at))}”`,
    {erase: flipped(state.erase, String(at), ".")},
  ]);
  const off = switchedOff(state).map(([kind, layer, head]) => [
    `head ${layer}.${head} off`,
    {off: flipped(state.off, [kind, layer, head].join("."), ",")},
  ]);
  return [
    ...(replaced ? [[replaced, {text: source}]] : []),
    ...erased,
    ...off,
    ...(Number(state.factor) === 1 ? [] : [[`scores × ${state.factor}`, {factor: "1"}]]),
    ...(Number(state.warmth) === 1 ? [] : [[`temperature ${state.warmth}`, {warmth: "1"}]]),
    ...(state.masks ? [["another pattern", {masks: ""}]] : []),
  ];
}
