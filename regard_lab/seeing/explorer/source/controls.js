// Controls that several views have: labelled choices, which head is shown, and whether its numbers
// are exact.

import {html, nothing} from "lit-html";
import {SCALES, css} from "./colours.js";
import {filled} from "./engine/numbers.js";
import {headSwitch} from "./form.js";
import {saveMap} from "./picture.js";

const SHADES = 33; // of the colours of a scale

/** A labelled list of choices: pairs of a value and what it is called. */
export function choice(label, choices, chosen, change) {
  return html`<label class="choice"
    ><span>${label}</span>
    <select @change=${(event) => change(event.target.value)}>
      ${choices.map(
        ([value, name]) =>
          html`<option value=${value} .selected=${String(value) === String(chosen)}>
            ${name}
          </option>`,
      )}
    </select></label
  >`;
}

/** The choices of attention, layer and head, for every view of one head. */
export function headChoice(app, {mean = true, kinds = true} = {}) {
  const {state, source} = app;
  const [layers, heads] = app.attention.shape;
  const numbers = (count) => filled(count, (at) => [at, at]);
  const all = mean && heads > 1 ? [["mean", `mean of ${heads}`]] : [];
  return html`
    ${
      kinds && source.header.attentions.length > 1
        ? choice(
            "Attention",
            source.header.attentions.map((one, at) => [at, one.name]),
            state.kind,
            (kind) => app.set({kind, layer: source.header.attentions[kind].shape[0] - 1}),
          )
        : nothing
    }
    ${choice("Layer", numbers(layers), state.layer, (layer) => app.set({layer}))}
    ${choice("Head", [...all, ...numbers(heads)], state.head, (head) => app.set({head}))}
    ${headSwitch(app)}
  `;
}

/** The choice of the scale; a scale of each row needs maps whose rows are known. */
export function colourChoice(app, rows = true) {
  const {state} = app;
  const scales = Object.entries(SCALES).filter(([name]) => rows || name !== "largest");
  return html` ${choice("Scale", scales, state.scale, (scale) => app.set({scale}))} `;
}

/**
 * The colours of a scale between what its two ends mean; a share of the scale, from 0 to 1, has a
 * place in the table.
 */
export function ramp([from, to], {place = (share) => share, note = ""} = {}) {
  const colours = filled(SHADES, (at) => css(place(at / (SHADES - 1))));
  return html`<p class="legend">
    <span>${from}</span
    ><i
      class="ramp"
      role="img"
      aria-label="Colours from ${from} to ${to}"
      .style="background:linear-gradient(to right,${colours})"
    ></i
    ><span>${to}</span>${note ? html`<span>${note}</span>` : nothing}
  </p>`;
}

export const HALFWAY = "(0.25 is in the middle)"; // of the square-root scale

/** The colours of weights on the chosen scale. */
export function legend({state: {scale}}, rows = true) {
  return ramp(["0", rows && scale === "largest" ? "the row's largest weight" : "1"], {
    note: scale === "root" ? HALFWAY : "",
  });
}

/** A button that saves the map of a view, the canvas of this class. */
export function saveButton(name) {
  const save = ({currentTarget}) =>
    saveMap(currentTarget.closest("main").querySelector(`canvas.${name}`), name);
  return html`<button @click=${save}>Save the map as PNG</button>`;
}

/** What the rows sum to; older stored pages say nothing of it, and their rows sum to 1. */
export function sums(attention) {
  return attention.sums || "The weights of each row sum to 1.";
}

/** Whether the numbers of a head are exact. */
export function badge({exact}) {
  return html`<span class="badge">${exact ? "exact" : "rounded to 0.004 or better"}</span>`;
}
