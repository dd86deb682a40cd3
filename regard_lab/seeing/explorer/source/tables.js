// Tables beside pictures, which scroll by themselves and are reached by keyboard.

import {html} from "lit-html";

/** A table that scrolls in its own region; the label names the region for screen readers. */
export function scrolled(label, table) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}>${table}</div>`;
}

/** The head of a table: the names of its columns. */
export function columnHeads(...names) {
  return html`<thead>
    <tr>
      ${names.map((name) => html`<th scope="col">${name}</th>`)}
    </tr>
  </thead>`;
}
