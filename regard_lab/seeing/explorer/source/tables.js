// Tables beside pictures, which scroll by themselves and are reached by keyboard.

import {html} from "lit-html";

/** A table that scrolls in its own region; the label names the region for screen readers. */
export function scrolled(label, table) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}>${table}</div>`;
}

export const LISTED = 100; // rows of a table

/**
 * A table of the first rows, which are lists of cells; the cells of one column are the heads of
 * their rows. A row may be chosen. all: how many rows there are.
 */
export function listed(label, heads, rows, headed = 0, chosen = -1, all = rows.length) {
  const table = scrolled(
    label,
    html`<table>
      <thead>
        <tr>
          ${heads.map((name) => html`<th scope="col">${name}</th>`)}
        </tr>
      </thead>
      <tbody>
        ${rows.slice(0, LISTED).map(
          (cells, row) =>
            html`<tr class=${row === chosen ? "chosen" : ""}>
              ${cells.map((cell, at) =>
                at === headed
                  ? html`<th scope="row"><bdi>${cell}</bdi></th>`
                  : html`<td><bdi>${cell}</bdi></td>`,
              )}
            </tr>`,
        )}
      </tbody>
    </table>`,
  );
  return all > LISTED
    ? html`${table}
        <p class="hint">The first ${LISTED} of ${all}.</p>`
    : table;
}
