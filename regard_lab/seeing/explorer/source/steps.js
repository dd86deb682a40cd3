// A translation read step by step: what had been written, where the model looked then, and what it
// wrote.

import {html, nothing} from "lit-html";
import {badge, headChoice} from "./controls.js";
import {LINE, MOST, paint, reveal, TALLEST} from "./lines.js";
import {choose} from "./links.js";
import {drawn, moved} from "./surface.js";
import {columnHeads, scrolled} from "./tables.js";

/** "Where does it look while it writes?": the steps of a translation, one for each written word. */
export function stepsView(app, weights) {
  const {state, words, source} = app;
  const {row} = state;
  const height = Math.min(Math.max(weights.rows, weights.columns) * LINE + 8, TALLEST);
  const {hidden} = weights.links(row, state.share, MOST);
  const said = stepTelling(app, weights);
  const go = (to) =>
    app
      .set({row: Math.min(Math.max(to, 0), weights.rows - 1)})
      .then(() => app.set({said: stepTelling(app, weights)}));
  const likeliest = source.header.changes?.unchanged.likeliest[row];
  return html`
    <h2>Where does it look while it writes?</h2>
    <div class="bar">
      ${headChoice(app, {kinds: false})} ${badge(weights)}
      <button @click=${() => go(row - 1)} ?disabled=${row === 0}>Previous step</button>
      <button @click=${() => go(row + 1)} ?disabled=${row === weights.rows - 1}>Next step</button>
      <span class="badge">step ${row + 1} of ${weights.rows}</span>
      <span class="badge" data-hidden>hidden: ${(100 * hidden).toFixed(0)} % of this row</span>
    </div>
    ${app.attention.says ? html`<p class="hint">${app.attention.says}</p>` : nothing}
    <p class="summary" data-step>${said}</p>
    ${likeliest ? html`<p class="hint">Most probable there: ${listed(likeliest)}.</p>` : nothing}
    <div
      class="links"
      @scroll=${(event) => paint(app, event.currentTarget.querySelector("canvas"), weights, row)}
      tabindex="-1"
    >
      <div
        class="tall"
        ${drawn((element) => {
          element.style.height = `${Math.max(weights.rows, weights.columns) * LINE + 8}px`;
          element.parentElement.style.maxHeight = `${height + 2}px`;
        })}
      >
        <canvas
          class="steps"
          tabindex="0"
          role="application"
          aria-roledescription="steps of a translation"
          aria-label="Steps; up and down arrows change the step. ${said}"
          ${drawn((canvas) => {
            canvas.tall = height;
            reveal(canvas.parentElement.parentElement, row);
            paint(app, canvas, weights, row);
          })}
          @click=${(event) => choose(app, event, weights)}
          @keydown=${(event) => {
            const next = moved(event, [row, 0], [weights.rows, 1]);
            if (next !== null) go(next[0]);
          }}
        ></canvas>
      </div>
    </div>
    <p class="hint">
      Left: what is written; later words are faint. Right: the source, with a bar as long as its
      weight at this step. A word in several sub-words has several steps, whose rows are averaged.
    </p>
    <details class="twin">
      <summary>The step as a table</summary>
      ${coverage(weights, row, words)}
    </details>
  `;
}

/** Words with their probabilities. */
function listed(likeliest) {
  return likeliest.map(
    ([word, p], at) => html`${at ? ", " : ""}<bdi>${word}</bdi> ${p.toFixed(3)}`,
  );
}

function stepTelling(app, weights) {
  const {row, share} = app.state;
  const {rows, columns} = app.words;
  const {links} = weights.links(row, share, MOST);
  const named = links
    .slice(0, 4)
    .map(({key, weight}) => `“${columns[key]}” (${weight.toFixed(2)})`)
    .join(", ");
  const chance = app.source.header.changes?.unchanged.probabilities[row];
  const before = row ? `“${rows.slice(Math.max(row - 3, 0), row).join(" ")}”` : "<begin>";
  const likely = chance === undefined ? "" : ` with probability ${chance.toFixed(3)}`;
  return (
    `Step ${row + 1}: after ${before} it looks at ${named || "nothing"} ` +
    `and writes “${rows[row]}”${likely}.`
  );
}

/** The weight of each source word at a step, and the sum of its weights up to there. */
function coverage(weights, row, words) {
  const sums = new Float64Array(weights.columns);
  for (let at = 0; at <= row; at += 1)
    weights.row(at).forEach((weight, column) => (sums[column] += weight));
  return scrolled(
    "The step as a table",
    html`<table data-coverage>
      ${columnHeads("Source word", "Weight now", "Sum so far")}
      <tbody>
        ${words.columns.map(
          (word, at) =>
            html`<tr>
              <th scope="row"><bdi>${word}</bdi></th>
              <td>${weights.at(row, at).toFixed(4)}</td>
              <td>${sums[at].toFixed(4)}</td>
            </tr>`,
        )}
      </tbody>
    </table>`,
  );
}
