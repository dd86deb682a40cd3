// Controls that several views have: labelled choices, which head is shown, and whether its numbers
// are exact.

import {html, nothing} from "lit-html";
import {SCALES, css} from "./colours.js";
import {filled, top} from "./engine/numbers.js";
import {headSwitch} from "./form.js";
import {saveMap} from "./picture.js";
import {headName} from "./shares.js";
import {chosenPlace} from "./state.js";

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

/** The choice of a kind of attention, of which the last layer is shown. */
export function kindChoice(app) {
  const {attentions} = app.source.header;
  if (attentions.length < 2) return nothing;
  return choice(
    "Attention",
    attentions.map((one, at) => [at, one.name]),
    app.state.kind,
    (kind) => app.set({kind, layer: attentions[kind].shape[0] - 1, row: rowIn(app, kind)}),
  );
}

/** The row of another attention: of the chosen word, or else of what that word looks at most. */
export function rowIn(app, kind) {
  const {state, source, weights, attention} = app;
  const {rows} = source.header.attentions[kind];
  if (rows === "target") return chosenPlace(app);
  if (rows === attention.rows || rows !== attention.columns) return state.row;
  return state.within ?? top(weights.row(state.row), 1)[0];
}

/** The choices of attention, layer and head, for every view of one head. */
export function headChoice(app) {
  const {state} = app;
  const [layers, heads] = app.attention.shape;
  const numbers = (count) => filled(count, (at) => [at, at]);
  const all = heads > 1 ? [["mean", `mean of ${heads}`]] : [];
  return html`
    ${kindChoice(app)} ${choice("Layer", numbers(layers), state.layer, (layer) => app.set({layer}))}
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

const HALFWAY = "(0.25 is in the middle)"; // of the square-root scale

/** The colours of weights on the chosen scale. */
export function legend({state: {scale}}, rows = true) {
  return ramp(["0", rows && scale === "largest" ? "the row's largest weight" : "1"], {
    note: scale === "root" ? HALFWAY : "",
  });
}

/** A button that saves the map of a view, the canvas of this class. */
export function saveButton(app, name) {
  const {layer, head, saved} = app.state;
  const one = head === "mean" ? `mean of layer ${layer}` : headName(layer, head);
  const shown = {heads: [app.attention?.name], pattern: []}[name] ?? [app.attention.name, one];
  const file = `${[name, ...shown].join(", ")}.png`;
  const save = async () => {
    await saveMap(app.element.querySelector(`canvas.${name}`), file);
    app.set({saved: file, said: `Saved as ${file}`});
  };
  return html`<button @click=${save}>Save this map as PNG</button>
    ${saved === file ? html`<span class="hint">Saved as ${file}</span>` : nothing}`;
}

/** What rows and columns of maps are, and what rows sum to; older pages say nothing of it. */
export function axesOf({name, row_title: rows, column_title: columns, sums, says}) {
  return `${name}. Rows: ${rows}. Columns: ${columns}. ${sums || "The weights of each row sum to 1."} ${says}`;
}

/** Whether the numbers of a head are exact. */
export function badge({exact}) {
  return html`<span class="badge">weights ${exact ? "are exact" : "off by at most 0.004"}</span>`;
}
