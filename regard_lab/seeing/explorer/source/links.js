// Links from each query to the keys that carry most of its weight; what is not drawn is shown as
// hidden. A translation can be read step by step: what had been written, where the model looked
// then, and what it wrote.

import {html, nothing} from "lit-html";
import {badge, headChoice} from "./controls.js";
import {rowTable} from "./heatmap.js";
import {context, drawn, fitted, font, moved, pointAt, themeColours} from "./surface.js";

const LINE = 22; // pixels of a word's line
const MOST = 16; // links of a query
const TALLEST = 640; // pixels of the canvas; longer texts are scrolled

export function linksView(app, weights) {
  const {state, words} = app;
  const lines = Math.max(weights.rows, weights.columns);
  const height = Math.min(lines * LINE + 8, TALLEST);
  const {hidden, links} = weights.links(state.row, state.share, MOST);
  return html`
    <h2>Links</h2>
    <div class="bar">
      ${headChoice(app)} ${badge(weights)}
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
      <span class="badge" data-hidden
        >hidden: ${(100 * hidden).toFixed(0)} % of this row,
        ${(100 * allHidden(weights, state.share)).toFixed(0)} % of all</span
      >
    </div>
    <p class="hint">
      On the left ${app.attention.row_title}, on the right ${app.attention.column_title}. Each word
      is linked to as few words as carry the chosen share of its weight, at most ${MOST}. Choose a
      word on the left.
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

/** The share of all weight that is not drawn; kept until head or share change. */
function allHidden(weights, share) {
  if (weights.hiddenShare !== share) {
    let [hidden, total] = [0, 0];
    for (let row = 0; row < weights.rows; row += 1) {
      hidden += weights.links(row, share, MOST).hidden;
      for (const weight of weights.row(row)) total += weight;
    }
    weights.hiddenShare = share;
    weights.hiddenMass = total ? hidden / total : 0;
  }
  return weights.hiddenMass;
}

function telling(app, weights) {
  const {rows, columns} = app.words;
  const {links, hidden} = weights.links(app.state.row, app.state.share, MOST);
  const named = links
    .slice(0, 5)
    .map(({key, weight}) => `${columns[key]} (${weight.toFixed(2)})`)
    .join(", ");
  return `${rows[app.state.row]} looks at ${named || "nothing"}; ${(100 * hidden).toFixed(0)} % of its weight is hidden.`;
}

/** Scroll so that a row is in sight, if it is not. */
function reveal(box, row) {
  const top = row * LINE;
  if (box.revealed === row) return;
  box.revealed = row;
  if (top < box.scrollTop || top + LINE > box.scrollTop + box.clientHeight)
    box.scrollTop = top - box.clientHeight / 2;
}

function paint(app, canvas, weights, until = Infinity) {
  const box = canvas.parentElement.parentElement;
  const width = Math.max(box.clientWidth - 2, 240);
  const pen = context(canvas, width, canvas.tall);
  const theme = themeColours(canvas);
  const {rows, columns} = app.words;
  const side = Math.min(Math.max(width * 0.24, 70), 190);
  const y = (at) => at * LINE + LINE / 2 + 4 - box.scrollTop;
  const first = Math.max(Math.floor(box.scrollTop / LINE) - 1, 0);
  const last = first + Math.ceil(canvas.tall / LINE) + 2;
  canvas.side = side;
  const dim = weights.rows > 1;
  for (let row = first; row < Math.min(last, weights.rows); row += 1)
    if (row !== app.state.row && row < until)
      drawLinks(
        pen,
        weights.links(row, app.state.share, MOST).links,
        y(row),
        y,
        [side + 6, width - side - 6],
        theme.faint,
        dim ? 0.35 : 1,
      );
  if (app.state.row >= first - 40 && app.state.row <= last + 40)
    drawLinks(
      pen,
      weights.links(app.state.row, app.state.share, MOST).links,
      y(app.state.row),
      y,
      [side + 6, width - side - 6],
      theme.accent,
      1,
    );
  if (until < Infinity)
    bars(pen, weights.row(app.state.row), first, last, y, width - side, side, theme);
  writeWords(pen, rows, first, last, y, side, "right", theme, app.state.row, side, until);
  writeWords(pen, columns, first, last, y, width - side, "left", theme, -1, side);
}

function drawLinks(pen, links, from, y, [left, right], colour, strength) {
  pen.strokeStyle = colour;
  for (const {key, weight} of links) {
    pen.globalAlpha =
      strength < 1
        ? strength * Math.min(0.15 + 0.85 * weight, 1)
        : Math.min(0.45 + 0.55 * weight, 1);
    pen.lineWidth = 0.8 + 4 * weight + (strength < 1 ? 0 : 0.5);
    pen.beginPath();
    pen.moveTo(left, from);
    pen.bezierCurveTo((left + right) / 2, from, (left + right) / 2, y(key), right, y(key));
    pen.stroke();
  }
  pen.globalAlpha = 1;
}

/** A bar behind each word on the right, as long as its weight. */
function bars(pen, weights, first, last, y, x, side, theme) {
  pen.fillStyle = theme.accent;
  pen.globalAlpha = 0.25;
  for (let at = first; at < Math.min(last, weights.length); at += 1)
    pen.fillRect(x, y(at) - LINE / 2 + 2, side * weights[at], LINE - 4);
  pen.globalAlpha = 1;
}

function writeWords(
  pen,
  words,
  first,
  last,
  y,
  x,
  align,
  theme,
  chosen,
  room = x,
  until = Infinity,
) {
  pen.textAlign = align;
  for (let at = first; at < Math.min(last, words.length); at += 1) {
    font(pen, 13, at === chosen ? "bold" : "normal");
    pen.fillStyle = at === chosen ? theme.accent : theme.ink;
    pen.globalAlpha = at > until ? 0.45 : 1; // later words are not written yet
    pen.fillText(fitted(pen, words[at], room - 6), x, y(at));
  }
  pen.globalAlpha = 1;
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
    ${likeliest ? html`<p class="hint">Most probable there: ${likeliest.map(([word, p], at) => html`${at ? ", " : ""}<bdi>${word}</bdi> ${p.toFixed(3)}`)}.</p>` : nothing}
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

function stepTelling(app, weights) {
  const {row, share} = app.state;
  const {rows, columns} = app.words;
  const {links} = weights.links(row, share, MOST);
  const named = links
    .slice(0, 4)
    .map(({key, weight}) => `“${columns[key]}” (${weight.toFixed(2)})`)
    .join(", ");
  const chance = app.source.header.changes?.unchanged.probabilities[row];
  return `Step ${row + 1}: after ${row ? `“${rows.slice(Math.max(row - 3, 0), row).join(" ")}”` : "<begin>"} it looks at ${named || "nothing"} and writes “${rows[row]}”${chance === undefined ? "" : ` with probability ${chance.toFixed(3)}`}.`;
}

/** The weight of each source word at a step, and the sum of its weights up to there. */
function coverage(weights, row, words) {
  const sums = new Float64Array(weights.columns);
  for (let at = 0; at <= row; at += 1)
    weights.row(at).forEach((weight, column) => (sums[column] += weight));
  return html`<div class="scroll" tabindex="0" role="region" aria-label="The step as a table">
    <table data-coverage>
      <thead>
        <tr>
          <th scope="col">Source word</th>
          <th scope="col">Weight now</th>
          <th scope="col">Sum so far</th>
        </tr>
      </thead>
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
    </table>
  </div>`;
}
