// The numbers of one step of the walk-through as a table.

import {html, nothing} from "lit-html";
import {inked} from "./colours.js";
import {filled, top as largest} from "./engine/numbers.js";
import {listed, scrolled} from "./tables.js";

const ACROSS = 16; // columns of a single row of numbers

const CELLS = 1024; // numbers of a step that are shown

const LIKELIEST = 20; // entries of a vocabulary that are shown

export function numbers(walk, step, shown) {
  if (step.words)
    return html`<ol class="words">
      ${step.words.map((word) => html`<li class="word"><bdi>${word}</bdi></li>`)}
    </ol>`;
  const {values, rows, columns} = shown;
  const one = step.axes[step.only];
  const labels = (axis) => walk.record.labels[axis.labels];
  const note = one
    ? html`<p class="hint">
        Too many to store for all words; these are of “<bdi>${labels(one)?.[one.chosen]}</bdi>”.
      </p>`
    : nothing;
  if (!rows && labels(columns) && columns.size > 2 * LIKELIEST)
    return html`${note}${likeliest(step, shown, labels(columns))}`;
  const wraps = !rows && !labels(columns); // a vector
  const size = wraps ? ACROSS : columns.size;
  const count = rows?.size ?? (wraps ? Math.ceil(Math.min(columns.size, CELLS) / ACROSS) : 1);
  const across = Math.min(size, columns.size, Math.max(Math.floor(CELLS / count), 1));
  const left = columns.size - (wraps ? Math.min(columns.size, CELLS) : across);
  const last = (row) => Math.min((row + 1) * ACROSS, columns.size) - 1;
  const head = (row) => {
    if (wraps) return `${row * ACROSS} to ${last(row)}`;
    return rows ? (labels(rows)?.[row] ?? String(row)) : "";
  };
  const line = (row) => values.subarray(row * size, row * size + across);
  return html`${note}
  ${scrolled(
    "Numbers of the step",
    html`<table class="numbers">
      <thead>
        <tr>
          <td></td>
          ${filled(
            across,
            (at) =>
              html`<th scope="col">
                ${wraps ? `+${at}` : html`<bdi>${labels(columns)?.[at] ?? at}</bdi>`}
              </th>`,
          )}
        </tr>
      </thead>
      <tbody>
        ${filled(
          count,
          (row) =>
            html`<tr>
              ${head(row) ? html`<th scope="row"><bdi>${head(row)}</bdi></th>` : html`<td></td>`}
              ${Array.from(line(row), (value) => cell(step, value, shown.most))}
            </tr>`,
        )}
      </tbody>
    </table>`,
  )}
  ${left ? html`<p class="hint">… ${left} more ${columns.unit} in each row.</p>` : nothing}`;
}

function cell(step, value, most) {
  return html`<td .style=${shade(step, value, most)} title=${String(value)}>${number(value)}</td>`;
}

function shade(step, value, most) {
  if (value === -Infinity || step.scale === "none") return "";
  return inked(step.scale === "weights" ? value : most ? value / most : 0);
}

export function number(value) {
  if (value === -Infinity) return "−∞";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value).replace("-", "−");
  const text = Math.abs(value) < 1000 ? value.toFixed(3) : value.toPrecision(3);
  return (Number(text) === 0 ? text.replace("-", "") : text).replace("-", "−");
}

function likeliest(step, {values, most}, labels) {
  const top = largest(values, LIKELIEST);
  return html`${listed(
      "The largest numbers of the step",
      ["Id", "Sub-word", "Number"],
      top.map((id) => [
        id,
        labels[id],
        html`<span .style=${shade(step, values[id], most)} title=${String(values[id])}
          >${number(values[id])}</span
        >`,
      ]),
      1,
    )}
    <p class="hint">The ${LIKELIEST} largest of ${values.length.toLocaleString("en")}.</p>`;
}
