// The weights of one head as a map: queries down, keys across, on one canvas whatever the number of
// words.

import {html} from "lit-html";
import {axesOf, badge, colourChoice, headChoice, legend, saveButton} from "./controls.js";
import {entry, pixels, scaled} from "./colours.js";
import {clamped, top as largest} from "./engine/numbers.js";
import {digits} from "./shares.js";
import {context, drawn, fitted, font, moved, pointAt, readOut, themeColours} from "./surface.js";
import {listed} from "./tables.js";

const LARGEST_CELL = 44;
const NAMED_CELL = 9; // the smallest cell whose word is written
const LABELS = 110; // pixels for words beside the map
const LISTED = 20; // keys of the table

export function heatmapView(app, weights) {
  const {state, words} = app;
  const said = telling(app, weights, state.row, columnOf(app, weights));
  return html`
    <div class="bar">
      ${headChoice(app)} ${colourChoice(app)} ${badge(weights)} ${saveButton(app, "heatmap")}
    </div>
    <p class="hint">
      ${axesOf(app.attention)}${app.attention.unwritten ? " Grey cells did not exist yet." : ""}
    </p>
    <div class="beside">
      <div>
        ${mapCanvas("heatmap", {
          role: "heat map",
          label: "Weights",
          said,
          paints: (canvas) => draw(app, canvas, weights),
          points: (event) => point(app, event, weights),
          keys: (event) => onKey(app, event, weights),
        })}
        ${legend(app)}
      </div>
      <details class="twin" open>
        <summary>The row of <bdi>${words.rows[state.row]}</bdi> as a table</summary>
        ${rowTable(app, weights)}
      </details>
    </div>
  `;
}

/**
 * A map that is used by keyboard as a grid, with a frame around the chosen cell, and what is said
 * of that cell.
 */
export function mapCanvas(name, {role, label, said, paints, points, keys, begins, ends}) {
  return html`<div class="map" tabindex="-1">
      <canvas
        class=${name}
        tabindex="0"
        role="application"
        aria-roledescription=${role}
        aria-label="${label}; arrow keys move. ${said}"
        ${drawn(paints)}
        @pointermove=${points}
        @click=${points}
        @pointerdown=${begins}
        @pointerup=${ends}
        @pointerleave=${ends}
        @keydown=${keys}
      ></canvas>
      <div class="cursor" aria-hidden="true"></div>
    </div>
    <p class="readout" data-readout>${said}</p>`;
}

/** The column that is chosen; until one is, that of the row's largest weight. */
const columnOf = ({state}, weights) => state.column ?? largest(weights.row(state.row), 1)[0];

function telling(app, weights, row, column) {
  const {rows, columns} = app.words;
  if (isUnwritten(app, weights, row, column))
    return `“${rows[row]}” (${row}) could not look at “${columns[column]}” (${column}).`;
  const weight = weights.at(row, column);
  let rank = 1;
  for (const other of weights.row(row)) if (other > weight) rank += 1;
  return (
    `“${rows[row]}” (${row}) looks at “${columns[column]}” (${column}) ` +
    `with weight ${digits(weight)}, rank ${rank} of ${columns.length}.`
  );
}

function isUnwritten(app, weights, row, column) {
  return app.attention.unwritten && column > row && weights.at(row, column) === 0;
}

/**
 * Where the map is on its canvas, and how large a cell is: at least a pixel, or, of a map with bars
 * beside its rows, as small as it takes for the bars to be in sight.
 */
export function geometry(canvas, weights, bars = false) {
  const room = Math.max(canvas.parentElement.clientWidth - 2, 240);
  const tight = room < 520;
  const named = (cell) => cell >= NAMED_CELL;
  // slanted words reach over the right edge of the map
  const [words, overhang] = tight ? [80, 30] : [LABELS, 56];
  const margin = bars ? overhang : 12;
  let cell = Math.min((room - words - overhang) / weights.columns, LARGEST_CELL);
  const ratio = window.devicePixelRatio || 1;
  if (!named(cell))
    cell = Math.max(
      Math.min((room - 26 - margin) / weights.columns, NAMED_CELL - 0.5),
      bars ? 0.1 : 1 / ratio,
    );
  cell = cell >= 2 ? Math.floor(cell * ratio) / ratio : cell;
  return named(cell)
    ? {cell, left: words, right: overhang, top: 78, named: true, ratio}
    : {cell, left: 24, right: margin, top: 24, named: false, ratio};
}

/** A pixel for each weight; none where a word did not exist yet. */
function paintWeights(app, weights) {
  const {rows, columns} = weights;
  const {scale} = app.state;
  const table = pixels();
  return imageOf({rows, columns}, (target) => {
    for (let row = 0, at = 0; row < rows; row += 1) {
      const values = weights.row(row);
      const most = scale === "largest" ? values[largest(values, 1)[0]] : 1;
      for (let column = 0; column < columns; column += 1, at += 1)
        if (!isUnwritten(app, weights, row, column))
          target[at] = table[entry(scaled(values[column], scale, most))];
    }
  });
}

/** An image with a pixel for each cell; `fill` sets the pixels. */
export function imageOf({rows, columns}, fill) {
  const image = new OffscreenCanvas(columns, rows);
  const data = new ImageData(columns, rows);
  fill(new Uint32Array(data.data.buffer), data.data);
  image.getContext("2d").putImageData(data, 0, 0);
  return image;
}

/**
 * A map on its canvas: `paint` draws what is inside its frame, a rectangle; beside it stand words,
 * or numbers of words, of which a cell has `unit`.
 */
export function paintMap(canvas, place, size, words, paint, unit = 1) {
  const {cell, left, right, top, named, ratio} = place;
  const theme = themeColours(canvas);
  const frame = [left, top, size.columns * cell, size.rows * cell];
  const pen = context(canvas, left + frame[2] + right, top + frame[3] + 2);
  canvas.place = place;
  pen.fillStyle = theme.unseen;
  pen.fillRect(...frame);
  pen.imageSmoothingEnabled = cell * ratio < 1;
  paint(pen, frame, theme);
  pen.strokeStyle = theme.line;
  pen.strokeRect(left - 0.5, top - 0.5, frame[2] + 1, frame[3] + 1);
  if (named) labels(pen, words, place, theme);
  else axes(pen, size, place, theme, unit);
}

function draw(app, canvas, weights) {
  const place = geometry(canvas, weights);
  const room = canvas.parentElement.clientWidth;
  const key = [app.state.scale, themeColours(canvas).unseen, place.cell, room].join();
  if (canvas.painted !== weights || canvas.key !== key) {
    Object.assign(canvas, {painted: weights, key});
    const image = paintWeights(app, weights);
    paintMap(canvas, place, weights, app.words, (pen, frame) => pen.drawImage(image, ...frame));
  }
  moveCursor(canvas, app.state.row, columnOf(app, weights));
}

function labels(pen, {rows, columns}, {cell, left, right, top}, theme) {
  font(pen, clamped(cell * 0.62, 8, 13));
  pen.fillStyle = theme.ink;
  pen.textAlign = "right";
  rows.forEach((word, at) =>
    pen.fillText(fitted(pen, word, left - 8), left - 5, top + (at + 0.5) * cell),
  );
  pen.textAlign = "left";
  const edge = left + columns.length * cell + right;
  columns.forEach((word, at) => {
    const room = Math.SQRT2 * (edge - left - (at + 0.5) * cell) - 8;
    pen.save();
    pen.translate(left + (at + 0.5) * cell, top - 5);
    pen.rotate(-Math.PI / 4);
    pen.fillText(fitted(pen, word, Math.min(96, room)), 0, 0);
    pen.restore();
  });
}

/** Numbers of words where there is no room for words. */
function axes(pen, {rows, columns}, {cell, left, top}, theme, unit) {
  font(pen, 10);
  pen.fillStyle = theme.faint;
  const step = [10, 20, 50, 100, 200, 500, 1000].find((one) => one * cell >= 40) ?? 5000;
  pen.textAlign = "center";
  for (let at = 0; at < columns; at += step)
    pen.fillText(String(at * unit), left + (at + 0.5) * cell, top - 8);
  pen.textAlign = "right";
  for (let at = 0; at < rows; at += step)
    pen.fillText(String(at * unit), left - 3, top + (at + 0.5) * cell);
}

export function moveCursor(canvas, row, column) {
  const {cell, left, top} = canvas.place;
  const {style} = canvas.parentElement.querySelector(".cursor");
  const size = Math.max(cell, 6);
  const [x, y] = [left + (column + 0.5) * cell, top + (row + 0.5) * cell];
  style.transform = `translate(${x - size / 2}px, ${y - size / 2}px)`;
  style.width = `${size}px`;
  style.height = `${size}px`;
}

/** The row and the column of the map under the pointer; nothing beside it. */
export function cellAt(event, {rows, columns}) {
  const {cell, left, top} = event.currentTarget.place;
  const [x, y] = pointAt(event);
  const [row, column] = [Math.floor((y - top) / cell), Math.floor((x - left) / cell)];
  return row >= 0 && column >= 0 && row < rows && column < columns ? [row, column] : [];
}

/**
 * The cell under the pointer is read out at once; a click chooses it, which draws the page again.
 */
function point(app, event, weights) {
  const canvas = event.currentTarget;
  const [row, column] = cellAt(event, weights);
  if (row === undefined) return;
  moveCursor(canvas, row, column);
  if (event.type === "click") app.set({row, column, said: telling(app, weights, row, column)});
  else readOut(canvas.parentElement.nextElementSibling, telling(app, weights, row, column));
}

function onKey(app, event, weights) {
  const {row} = app.state;
  const next = moved(event, [row, columnOf(app, weights)], [weights.rows, weights.columns]);
  if (next === null) return;
  app.set({row: next[0], column: next[1], said: telling(app, weights, ...next)});
}

function rowTable(app, weights) {
  const {row} = app.state;
  const {columns} = app.words;
  const values = weights.row(row);
  const keys = largest(values, LISTED);
  const rest = Math.max(
    0,
    values.reduce((sum, one) => sum + one, 0) - keys.reduce((sum, key) => sum + values[key], 0),
  );
  const left = columns.length - LISTED;
  const others = left > 0 ? `The other ${left} keys together: ${digits(rest)}. ` : "";
  return html`${listed(
      "The largest weights of the row",
      ["Rank", "Place", "Word", "Weight"],
      keys.map((key, rank) => [rank + 1, key, columns[key], digits(values[key])]),
      2,
    )}
    <p class="hint">${others}Entropy of the row: ${weights.entropy(row).toFixed(3)} nats.</p>`;
}
