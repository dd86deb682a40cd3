// The pattern that a reader gives a kind of attention, as text and by a slider of its window.

import {html} from "lit-html";
import {play} from "./play.js";
import {questionOf} from "./state.js";

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
  const window = which === "causal_window" ? `${reach} back` : `\u00b1${reach}`;
  const reached = size === undefined ? "all" : window;
  return html`<label class="choice"
      ><span>Pattern, ${name.toLowerCase()}</span
      ><input
        size="22"
        placeholder=${own}
        .value=${mask}
        @change=${(event) => playMask(app, kind, event.target.value)}
    /></label>
    <label class="choice"
      ><span>Window ${reached}</span
      ><input
        type="range"
        min="0"
        max=${most}
        .value=${String(reach)}
        aria-label="Window, ${name.toLowerCase()}"
        @input=${({target, timeStamp}) => playMask(app, kind, widened(+target.value), timeStamp)}
    /></label>`;
}
