// Links from each query to the keys that carry most of its weight; what is not drawn is shown as
// hidden.

import {html, nothing} from "lit-html";
import {badge, headChoice, saveButton} from "./controls.js";
import {rowTable} from "./heatmap.js";
import {LINE, MOST, paint, reveal, TALLEST} from "./lines.js";
import {drawn, moved, pointAt} from "./surface.js";

export function linksView(app, weights) {
  const {state, words} = app;
  const lines = Math.max(weights.rows, weights.columns);
  const height = Math.min(lines * LINE + 8, TALLEST);
  const {hidden, links} = weights.links(state.row, state.share, MOST);
  return html`
    <div class="bar">
      ${headChoice(app)} ${badge(weights)} ${saveButton("lines")}
      <label class="choice"
        ><span>Weight shown: ${Math.round(100 * state.share)} %</span>
        <input
          type="range"
          min="5"
          max="100"
          step="5"
          .value=${String(Math.round(100 * state.share))}
          @input=${(event) => app.set({share: Number(event.target.value) / 100})}
      /></label>
      <span class="badge" data-hidden>hidden: ${(100 * hidden).toFixed(0)} % of this row</span>
    </div>
    <p class="hint">
      On the left ${app.attention.row_title}, on the right ${app.attention.column_title}. Each word
      is linked to as few words as carry the chosen share of its weight, at most ${MOST}.
      ${app.attention.says}
    </p>
    <div
      class="links"
      @scroll=${(event) => paint(app, event.currentTarget.querySelector("canvas"), weights)}
      tabindex="-1"
    >
      <div
        class="tall"
        ${drawn((element) => {
          element.style.height = `${lines * LINE + 8}px`;
          element.parentElement.style.maxHeight = `${height + 2}px`;
        })}
      >
        <canvas
          class="lines"
          tabindex="0"
          role="application"
          aria-roledescription="links"
          aria-label="Links; up and down arrows choose a word. ${telling(app, weights)}"
          ${drawn((canvas) => {
            canvas.tall = height;
            reveal(canvas.parentElement.parentElement, state.row);
            paint(app, canvas, weights);
          })}
          @click=${(event) => choose(app, event, weights)}
          @keydown=${(event) => onKey(app, event, weights)}
        ></canvas>
      </div>
    </div>
    <p class="readout">${telling(app, weights)}</p>
    <details class="twin">
      <summary>The row of <bdi>${words.rows[state.row]}</bdi> as a table</summary>
      ${rowTable(app, weights)}
    </details>
    ${links.length === 0 ? html`<p class="hint">This word looks at nothing.</p>` : ""}
  `;
}

function telling(app, weights) {
  const {rows, columns} = app.words;
  const {links, hidden} = weights.links(app.state.row, app.state.share, MOST);
  const named = links
    .slice(0, 5)
    .map(({key, weight}) => `${columns[key]} (${weight.toFixed(2)})`)
    .join(", ");
  return (
    `${rows[app.state.row]} looks at ${named || "nothing"}; ` +
    `${(100 * hidden).toFixed(0)} % of its weight is hidden.`
  );
}

function choose(app, event, weights) {
  const box = event.currentTarget.parentElement.parentElement;
  const row = Math.floor((pointAt(event)[1] + box.scrollTop - 4) / LINE);
  if (row >= 0 && row < weights.rows) app.set({row});
}

function onKey(app, event, weights) {
  const next = moved(event, [app.state.row, 0], [weights.rows, 1]);
  if (next !== null)
    app.set({row: next[0], said: ""}).then(() => app.set({said: telling(app, weights)}));
}
