// "Who may look at whom?": the pairs that a pattern allows, their number, and how it grows with the
// length.

import {html, nothing} from "lit-html";
import {choice, saveButton} from "./controls.js";
import {filled} from "./engine/numbers.js";
import {cellAt, geometry, mapCanvas, moveCursor, paintMap} from "./heatmap.js";
import {maskForm, maskOf, playMask} from "./masks.js";
import {moved, readOut} from "./surface.js";
import {LISTED, listed} from "./tables.js";

const STATES = ["no pair is allowed", "some pairs are allowed", "all pairs are allowed"];
const GROWTH = [
  "Length",
  "Allowed pairs",
  "Share of all",
  "Computed here",
  "Backend",
  "Keys of a query",
];
const DRAWING =
  "Draw with the mouse, or press the space bar, to allow pairs and to forbid them; " +
  "the text of the pattern follows.";

export function patternView(app) {
  const {patterns} = app.source.header;
  const at = Math.min(app.state.pattern, patterns.length - 1);
  const one = app.engine ? played(app, at) : patterns[at];
  if (!one) return html`<p class="hint">Listing the pairs…</p>`;
  const panelAt = Math.min(app.state.panel, one.panels.length - 1);
  const key = [app.source.header.title, at, panelAt, one.panels[panelAt].text].join("/");
  // pairs that come during a stroke wait for its end
  const kept = () =>
    app.pairs?.stroke || (app.pairs?.key === key && app.pairs.source === app.source)
      ? app.pairs
      : null;
  if (!kept()) load(app, one, panelAt, key);
  const shown = kept(); // at once for computed pairs, so that the map keeps the focus
  const panel = one.panels[panelAt];
  return html`
    <div class="bar">
      ${
        patterns.length > 1
          ? choice(
              "Used in",
              patterns.map(({name}, number) => [number, name]),
              at,
              (pattern) => app.set({pattern: Number(pattern), panel: 0}),
            )
          : nothing
      }
      ${
        one.panels.length > 1
          ? choice(
              "Heads",
              one.panels.map(({heads}, number) => [number, heads.join(", ")]),
              panelAt,
              (number) => app.set({panel: Number(number)}),
            )
          : nothing
      }
      ${one.drawable ? maskForm(app, one.drawable) : nothing} ${saveButton(app, "pattern")}
    </div>
    <p class="summary">
      <code><bdi>${panel.text}</bdi></code
      >: ${grouped(panel.pairs)} of ${grouped(one.q_len * one.k_len)} pairs
      (${percent(panel.pairs, one.q_len * one.k_len)}).
    </p>
    <p class="hint">
      Rows: queries. Columns: keys.
      ${one.rows.length ? "Sub-words, as the model reads them. " : ""}${
        one.q_start
          ? `Queries are at positions ${one.q_start} to ${one.q_start + one.q_len - 1}. `
          : ""
      }${one.tile > 1 ? `Each cell stands for ${one.tile} × ${one.tile} pairs. ` : ""}${one.note}${
        one.drawable ? DRAWING : ""
      }
    </p>
    <div class="beside">
      <div>
        ${shown ? pairsMap(app, shown) : html`<p class="hint">Unpacking…</p>`}
        ${legend(one.tile > 1)}
      </div>
      <div>
        ${one.growth.length ? growth(one) : nothing}
        ${
          shown
            ? html`<details class="twin" open>
                <summary>The ${one.tile > 1 ? "rows" : "queries"} as a table</summary>
                ${table(shown)}
              </details>`
            : nothing
        }
      </div>
    </div>
  `;
}

/**
 * The same for the text of the page, and for the pattern that a reader gave or drew. Its pairs come
 * from the engine; until they are there, those that were shown last stay.
 */
function played(app, at) {
  const {answer, header} = app.source;
  const {model} = header;
  const stored = header.patterns[at];
  const drawable = model.kinds.find(({name}) => stored.name.startsWith(`${name},`));
  const {kind, rows: queries, columns: keys} = drawable;
  const side = (name) => answer.pieces[name === "read" ? "target" : name];
  const mask = maskOf(app, kind);
  const text = mask || stored.text;
  const rows = side(queries);
  const columns = side(keys);
  const heads = text.includes("per_head")
    ? header.attentions.find((one) => one.kind === kind).shape[1]
    : 1;
  const shape = [rows.length, columns.length];
  const places = filled(heads, (head) => head);
  const key = [at, text, ...shape].join("/");
  if (app.listing !== key) {
    app.listing = key;
    pairs(app, drawable, text, shape, places).then((all) => {
      if (app.listing !== key) return;
      app.listed = {key, at, all};
      app.draw();
    });
  }
  const {listed} = app;
  if (listed?.key !== key) return listed?.at === at ? listed.one : null;
  const panel = (head) => ({
    heads: heads > 1 ? [head] : [],
    text,
    states: listed.all[head].slice(), // a reader draws in it
    shape,
    pairs: listed.all[head].reduce((sum, one) => sum + one, 0) / 2,
  });
  return (listed.one = {
    ...stored,
    text,
    rows,
    columns,
    q_len: rows.length,
    k_len: columns.length,
    drawable,
    growth: mask ? [] : stored.growth.slice(1),
    panels: places.map(panel),
  });
}

/** Which pairs a text allows each of some heads: 2 for each that is. */
async function pairs(app, {unwritten}, text, [rows, columns], heads) {
  const whole = unwritten ? `causal & (${text})` : text;
  try {
    return await app.engine.ask("pairs", {text: whole, rows, columns, heads});
  } catch {
    // the form says what is wrong with the text
    return heads.map(() => new Uint8Array(rows * columns));
  }
}

const PART = "\\(query_set\\([\\d., ]+\\) & key_set\\([\\d., ]+\\)\\)";
const JOINED = new RegExp(`( \\| ${PART})+$`);
const CUT = new RegExp(`( & ~${PART})+$`);

/** A pattern without what was drawn. */
function undrawn(text) {
  const whole = text.replace(CUT, "");
  const inside = whole !== text && whole.includes("|") ? whole.replace(/^\((.*)\)$/s, "$1") : whole;
  return inside.replace(JOINED, "");
}

/** The first and the last of each run of neighbouring places. */
function runs(places) {
  const found = [];
  for (const at of places)
    if (found.at(-1)?.[1] === at - 1) found.at(-1)[1] = at;
    else found.push([at, at]);
  return found;
}

/** Cells of a row or a column as the text of patterns has them, such as "2, 4..6". */
const listedRuns = (places) =>
  runs(places)
    .map(([first, last]) => (first === last ? first : `${first}..${last}`))
    .join(", ");

/** The columns of a row of pairs that a test chooses. */
const columnsWhere = ({columns}, chooses) => filled(columns, (at) => at).filter(chooses);

/**
 * The text of the pairs that are shown: those that the pattern lacks are joined, those that it has
 * too many are taken away.
 */
async function drawnText(app, shown) {
  const {states, rows, columns, one, panel} = shown;
  const plain = undrawn(panel.text);
  const [own] = await pairs(app, one.drawable, plain, [rows, columns], [panel.heads[0] ?? 0]);
  const parts = [[], []];
  [2, 0].forEach((state, way) => {
    const byKeys = new Map(); // queries whose keys are alike share a part
    for (let row = 0; row < rows; row += 1) {
      const from = row * columns;
      const keys = listedRuns(
        columnsWhere(shown, (at) => states[from + at] === state && own[from + at] !== state),
      );
      if (keys) byKeys.set(keys, [...(byKeys.get(keys) ?? []), row]);
    }
    for (const [keys, queries] of byKeys)
      parts[way].push(`(query_set(${listedRuns(queries)}) & key_set(${keys}))`);
  });
  const joined = [plain, ...parts[0]].join(" | ");
  return [
    parts[1].length && joined.includes("|") ? `(${joined})` : joined,
    ...parts[1].map((one) => `~${one}`),
  ].join(" & ");
}

async function load(app, one, panelAt, key) {
  const panel = one.panels[panelAt];
  const [rows, columns] = panel.shape;
  const states = panel.states ?? (await app.source.bytes(panel.place));
  app.pairs = {key, source: app.source, one, panel, rows, columns, states};
  if (!panel.states) app.draw();
}

function pairsMap(app, shown) {
  const said = telling(shown, ...cell(app, shown));
  return mapCanvas("pattern", {
    role: "map of pairs",
    label: "Pairs",
    said,
    paints: (canvas) => draw(app, canvas, shown),
    points: (event) => point(app, event, shown),
    begins: (event) => begin(app, event, shown),
    ends: () => finish(app, shown),
    keys: (event) => {
      const place = cell(app, shown); // two keys may be faster than the page is drawn
      if (event.key === " " && shown.one.drawable) {
        event.preventDefault();
        paint(shown, place, !shown.states[place[0] * shown.columns + place[1]]);
        finish(app, shown);
      }
      const next = moved(event, place, [shown.rows, shown.columns]);
      if (next) app.set({pair: next, said: telling(shown, ...next)});
    },
  });
}

function cell(app, {rows, columns}) {
  const [row, column] = app.state.pair ?? [0, 0];
  return [Math.min(row, rows - 1), Math.min(column, columns - 1)];
}

/** The keys that a query may look at as spans, such as "3 to 7, 9", and how many they are. */
function spans(shown, row) {
  const {states, columns, one} = shown;
  const keys = columnsWhere(shown, (at) => states[row * columns + at]);
  const found = runs(keys);
  const named = found
    .slice(0, 6)
    .map(([from, to]) => {
      const [first, last] = [from * one.tile, Math.min((to + 1) * one.tile, one.k_len) - 1];
      return first === last ? `${first}` : `${first} to ${last}`;
    })
    .join(", ");
  const more = found.length - 6;
  return {count: keys.length, named: named + (more > 0 ? ` and ${more} more spans` : "")};
}

function telling(shown, row, column) {
  const {one, states, columns, rows} = shown;
  const state = states[row * columns + column];
  if (one.tile > 1) {
    const range = (at, count) => `${at * one.tile} to ${Math.min((at + 1) * one.tile, count) - 1}`;
    return `Queries ${range(row, one.q_len)}, keys ${range(column, one.k_len)}: ${STATES[state]}.`;
  }
  const named = (words, at) => (words.length ? `${at} “${words[at]}”` : `${at}`);
  const {count, named: keys} = spans(shown, row);
  let seen = 0;
  for (let at = 0; at < rows; at += 1) seen += states[at * columns + column] ? 1 : 0;
  const [query, key] = [named(one.rows, row), named(one.columns, column)];
  return (
    `Query ${query} ${state ? "may" : "may not"} look at key ${key}. It may look at ${count} of ` +
    `${columns} keys${count ? `: ${keys}` : ""}; ${seen} of ${rows} queries may look at this key.`
  );
}

function draw(app, canvas, shown) {
  const {one, rows, columns, states} = shown;
  const place = geometry(canvas, {rows, columns});
  if (!one.rows.length) Object.assign(place, {named: false, left: 40, right: 16, top: 24});
  const side = place.cell;
  const gap = side >= 8 ? 1 : 0; // cells are painted apart if they are large enough to be counted
  const paint = (pen, frame, theme) => {
    const [left, top] = frame;
    const image = new OffscreenCanvas(columns, rows);
    const dots = image.getContext("2d");
    for (let row = 0; row < rows; row += 1)
      for (let column = 0; column < columns; column += 1) {
        const state = states[row * columns + column];
        if (!state) continue;
        const [to, x, y, size] = gap
          ? [pen, left + column * side, top + row * side, side - gap]
          : [dots, column, row, 1];
        to.globalAlpha = state === 1 ? 0.45 : 1;
        to.fillStyle = theme.accent;
        to.fillRect(x, y, size, size);
      }
    pen.globalAlpha = 1;
    if (!gap) pen.drawImage(image, ...frame);
  };
  paintMap(canvas, place, {rows, columns}, one, paint, one.tile);
  moveCursor(canvas, ...cell(app, shown));
}

function point(app, event, shown) {
  const canvas = event.currentTarget;
  const [row, column] = cellAt(event, shown);
  if (row === undefined) return;
  moveCursor(canvas, row, column);
  if (shown.stroke) {
    paint(shown, [row, column], shown.stroke.allow);
    draw(app, canvas, shown);
  }
  const said = telling(shown, row, column);
  if (event.type === "click") {
    if (event.pointerType === "touch" && shown.one.drawable)
      paint(shown, [row, column], !shown.states[row * shown.columns + column]);
    finish(app, shown);
    app.set({pair: [row, column], said});
  } else readOut(canvas.parentElement.nextElementSibling, said);
}

/**
 * A stroke allows pairs if it begins where none is allowed, else it forbids them; a finger scrolls,
 * and its tap draws.
 */
function begin(app, event, shown) {
  const [row, column] = cellAt(event, shown);
  if (row === undefined || !shown.one.drawable || event.button || event.pointerType === "touch")
    return;
  shown.stroke = {allow: !shown.states[row * shown.columns + column]};
  point(app, event, shown);
}

function paint(shown, [row, column], allow) {
  if (shown.one.drawable.unwritten && column > row) return; // it does not exist yet
  shown.states[row * shown.columns + column] = allow ? 2 : 0;
  shown.drawn = true;
}

async function finish(app, shown) {
  shown.stroke = null;
  if (!shown.drawn) return;
  shown.drawn = false;
  playMask(app, shown.one.drawable.kind, await drawnText(app, shown));
}

function legend(tiled) {
  return html`<p class="legend">
    <i class="allowed"></i><span>${tiled ? "all allowed" : "may look"}</span>
    ${tiled ? html`<i class="allowed some"></i><span>some allowed</span>` : nothing}
    <i class="masked"></i><span>${tiled ? "none allowed" : "may not look"}</span>
  </p>`;
}

/** How many pairs there are at other lengths, and what a backend computes. */
function growth(one) {
  return html`<h3>How it grows with the length</h3>
    <div data-growth>
      ${listed(
        "Pairs by length",
        GROWTH,
        one.growth.map(({length, pairs, of, computed, backend}, at) => {
          const shown = at === 0 && !one.drawable; // the size that is drawn
          return [
            `${grouped(length)}${shown ? " (shown)" : ""}`,
            grouped(pairs),
            percent(pairs, of),
            computed === null ? "—" : percent(computed, 1),
            backend,
            mean(pairs / (of / (shown ? one.k_len : length))),
          ];
        }),
      )}
    </div>
    <p class="hint">
      Computed here: the share of all pairs that regard computes on this machine's CPU, for heads of
      64 numbers. Where allowed pairs grow as fast as the length, attention takes linear time.
    </p>`;
}

function table(shown) {
  const {one, rows} = shown;
  const tiled = one.tile > 1;
  const words = one.rows.length > 0;
  const lines = filled(Math.min(rows, LISTED), (row) => {
    const {count, named} = spans(shown, row);
    return [row * one.tile, ...(words ? [one.rows[row]] : []), count, named || "none"];
  });
  const heads = [
    tiled ? "Queries from" : "Query",
    ...(words ? ["Word"] : []),
    tiled ? "Tiles" : "Keys",
    "Which",
  ];
  return listed("Queries as a table", heads, lines, words ? 1 : 0, -1, rows);
}

function grouped(number) {
  return number.toLocaleString("en");
}

function mean(number) {
  return number.toLocaleString("en", {maximumFractionDigits: 1});
}

function percent(part, whole) {
  const share = (100 * part) / whole;
  return `${share >= 0.1 || share === 0 ? share.toFixed(1) : share.toPrecision(2)} %`;
}
