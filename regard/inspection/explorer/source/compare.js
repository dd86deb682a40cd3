// Two heads of one kind of attention: their difference, and how far their rows are apart.

import {html} from "lit-html";
import {badge, choice, headChoice} from "./controls.js";
import * as palettes from "./palettes.js";
import {context, drawn, fitted, font, moved, pointAt, themeColours} from "./surface.js";

const TALLEST = 620;

export function compareView(app, weights) {
  const {state} = app;
  const [layers, heads] = app.attention.shape;
  const other = otherHead(app);
  const names = [];
  for (let layer = 0; layer < layers; layer += 1)
    for (let head = 0; head < heads; head += 1) names.push([`${layer}.${head}`, `layer ${layer}, head ${head}`]);
  const found = app.compared?.key === key(app) ? app.compared : null;
  if (!found) load(app, weights, other);
  return html`
    <h2>Compare two heads</h2>
    <div class="bar">${headChoice(app)} ${badge(weights)}
      ${choice("With", names, other.join("."), (value) => app.set({other: value.split(".").map(Number)}))}</div>
    <p class="hint">Blue: the first head has more weight there; red: the second. Beside each row its Jensen-Shannon
      distance, from 0 (equal) to 1 (no key in common).</p>
    ${found ? difference(app, found) : html`<p class="hint">Comparing…</p>`}
  `;
}

function otherHead(app) {
  const [layers, heads] = app.attention.shape;
  const [layer, head] = app.state.other ?? [0, 0];
  return [Math.min(layer, layers - 1), Math.min(head, heads - 1)];
}

function key(app) {
  return [app.source.header.title, app.state.kind, app.state.layer, app.state.head, ...otherHead(app)].join("/");
}

async function load(app, first, [layer, head]) {
  const wanted = key(app);
  const second = await app.source.head(app.state.kind, layer, head);
  if (wanted !== key(app) || app.state.view !== "compare") return;
  const values = first.values.map((value, at) => value - second.values[at]);
  const largest = values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  const distances = Array.from({length: first.rows}, (_, row) => apart(first.row(row), second.row(row)));
  app.compared = {key: wanted, first, second, values, largest, distances};
  app.draw();
}

/** The Jensen-Shannon distance with base 2: the root of the divergence. */
export function apart(one, other) {
  let sum = 0;
  for (let at = 0; at < one.length; at += 1) {
    const middle = (one[at] + other[at]) / 2;
    if (one[at] > 0) sum += (one[at] * Math.log2(one[at] / middle)) / 2;
    if (other[at] > 0) sum += (other[at] * Math.log2(other[at] / middle)) / 2;
  }
  return Math.sqrt(Math.max(sum, 0));
}

function difference(app, found) {
  const mean = found.distances.reduce((sum, one) => sum + one, 0) / found.distances.length;
  const said = telling(app, found);
  return html`
    <p class="summary">Mean distance of the rows: ${mean.toFixed(3)}; the largest difference of a weight is
      ${found.largest.toFixed(3)}.</p>
    <canvas class="difference" tabindex="0" role="application" aria-roledescription="map of differences"
      aria-label="Differences; arrow keys move. ${said}" ${drawn((canvas) => draw(app, canvas, found))}
      @click=${(event) => choose(app, event, found)}
      @keydown=${(event) => {
        const next = moved(event, [app.state.row, app.state.column], [found.first.rows, found.first.columns]);
        if (next) app.set({row: next[0], column: next[1]}).then(() => app.set({said: telling(app, found)}));
      }}></canvas>
    <p class="readout">${said}</p>`;
}

function telling(app, {first, second, distances}) {
  const {row, column} = app.state;
  const {rows, columns} = app.words;
  return `${rows[row]} looks at ${columns[column]} with ${first.at(row, column).toFixed(4)} in the first head and ${second.at(row, column).toFixed(4)} in the second; distance of the row ${distances[row].toFixed(3)}.`;
}

function draw(app, canvas, {first, values, largest, distances}) {
  const theme = themeColours(canvas);
  const room = Math.max(canvas.parentElement.clientWidth - 2, 240);
  const left = 90;
  const cell = Math.max(Math.min((room - left - 70) / first.columns, TALLEST / first.rows, 30), 0.5);
  const [width, height] = [cell * first.columns, cell * first.rows];
  const pen = context(canvas, Math.min(left + width + 64, room), height + 4);
  canvas.place = {left, cell};
  const image = new OffscreenCanvas(first.columns, first.rows);
  const data = new ImageData(first.columns, first.rows);
  values.forEach((value, at) => {
    const entry = 3 * Math.min(Math.floor((0.5 + 0.45 * (largest ? value / largest : 0)) * 256), 255);
    data.data.set([...palettes.signed.subarray(entry, entry + 3), 255], 4 * at);
  });
  image.getContext("2d").putImageData(data, 0, 0);
  pen.imageSmoothingEnabled = cell < 1;
  pen.drawImage(image, left, 2, width, height);
  font(pen, Math.min(Math.max(cell * 0.6, 8), 12));
  const every = Math.ceil(11 / cell);
  for (let row = 0; row < first.rows; row += every) {
    pen.fillStyle = theme.ink;
    pen.textAlign = "right";
    pen.fillText(fitted(pen, app.words.rows[row], left - 8), left - 5, 2 + (row + 0.5) * cell);
    pen.fillStyle = theme.accent;
    pen.fillRect(left + width + 4, 2 + row * cell, 50 * distances[row], Math.max(cell * every - 1, 1));
  }
  pen.strokeStyle = theme.accent;
  pen.lineWidth = 2;
  pen.strokeRect(left + app.state.column * cell, 2 + app.state.row * cell, Math.max(cell, 4), Math.max(cell, 4));
}

function choose(app, event, {first}) {
  const {left, cell} = event.currentTarget.place;
  const [x, y] = pointAt(event);
  const [row, column] = [Math.floor((y - 2) / cell), Math.floor((x - left) / cell)];
  if (row >= 0 && row < first.rows && column >= 0 && column < first.columns) app.set({row, column});
}

