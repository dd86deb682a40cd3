// Two columns of words on a canvas, and lines between them as wide as the weights.

import {clamped} from "./engine/numbers.js";
import {context, fitted, font, themeColours} from "./surface.js";

export const LINE = 22; // pixels of a word's line

export const MOST = 16; // links of a query

export const TALLEST = 640; // pixels of the canvas; longer texts are scrolled

/** Scroll so that a row is in sight, if it is not. */
export function reveal(box, row) {
  const top = row * LINE;
  if (box.revealed === row) return;
  box.revealed = row;
  if (top < box.scrollTop || top + LINE > box.scrollTop + box.clientHeight)
    box.scrollTop = top - box.clientHeight / 2;
}

export function paint(app, canvas, weights) {
  const box = canvas.parentElement.parentElement;
  const width = Math.max(box.clientWidth - 2, 240);
  const pen = context(canvas, width, canvas.tall);
  const theme = themeColours(canvas);
  const {rows, columns} = app.words;
  const side = clamped(width * 0.24, 70, 190);
  const y = (at) => at * LINE + LINE / 2 + 4 - box.scrollTop;
  const first = Math.max(Math.floor(box.scrollTop / LINE) - 1, 0);
  const last = first + Math.ceil(canvas.tall / LINE) + 2;
  const draw = (row, colour, strength) =>
    drawLinks(
      pen,
      weights.links(row, app.state.share, MOST).links,
      y(row),
      y,
      [side + 6, width - side - 6],
      colour,
      strength,
    );
  const dimmed = weights.rows > 1 ? 0.35 : 1;
  for (let row = first; row < Math.min(last, weights.rows); row += 1)
    if (row !== app.state.row) draw(row, theme.faint, dimmed);
  if (app.state.row >= first - 40 && app.state.row <= last + 40)
    draw(app.state.row, theme.accent, 1);
  const write = (words, x, align, chosen) => {
    pen.textAlign = align;
    for (let at = first; at < Math.min(last, words.length); at += 1) {
      font(pen, 13, at === chosen ? "bold" : "normal");
      pen.fillStyle = at === chosen ? theme.accent : theme.ink;
      pen.fillText(fitted(pen, words[at], side - 6), x, y(at));
    }
  };
  write(rows, side, "right", app.state.row);
  write(columns, width - side, "left", -1);
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
