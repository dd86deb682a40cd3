// "What does each head do?": all heads of all layers as small maps on one canvas, sorted by what is
// measured of them.

import {html} from "lit-html";
import {effects} from "./background.js";
import {axesOf, choice, colourChoice, kindChoice, legend, rowIn, saveButton} from "./controls.js";
import {headsOf} from "./data.js";
import {clamped, placeIn} from "./engine/numbers.js";
import {headSwitch} from "./form.js";
import {chosenPlace} from "./state.js";
import {DEPENDENCE, css, entry, pixels} from "./colours.js";
import {ODDS, headName, listed as joined, probability} from "./shares.js";
import {context, drawn, font, moved, pointAt, themeColours} from "./surface.js";
import {listed} from "./tables.js";

const SORTS = {
  layer: {title: "layer and head", says: ""},
  entropy: {
    title: "entropy",
    says: "low: each word looks at few others; high: at all alike",
    unit: "nats",
  },
  distance: {
    title: "distance",
    says: "the mean distance between a word and what it looks at",
    unit: "words",
  },
  first: {
    title: "weight of the first word",
    says: "a head that looks there does little (an attention sink)",
  },
  received: {
    title: "most received",
    says: "the largest share of all weight that one word receives",
  },
  effect: {
    title: "effect on the word",
    says: "how far the log odds of the word fall when the head gives nothing",
  },
  apart: {
    title: "distance from the other",
    says: "the mean Jensen-Shannon distance from the same head of the other",
  },
};
// Measures whose largest values come first; so do those that are not named here.
const FALLING = new Set(["apart", "effect"]);

/**
 * What a measure is called, and what it says; a relation is measured on the links that the text
 * has.
 */
function sortOf(attention, name) {
  if (SORTS[name] || !Object.hasOwn(attention.links, name))
    return SORTS[name] ?? {title: name, says: ""};
  const [links, chance] = attention.links[name];
  return {
    title: `relation: ${name}`,
    says:
      `the mean weight on the right word, over ${links} link${links === 1 ? "" : "s"} of this ` +
      `text that rules for English find; ${chance.toFixed(2)} if all words had the same weight; ` +
      "one text says little about a head in general",
  };
}
const GAP = 14;
const LABEL = 20; // pixels above a map, of its name and of the bar of its effect
const ROOMY = 135; // pixels of a map above which its head has its whole name
const EDGE = 3; // pixels beside the maps, for the frame of the chosen one
const SMALLEST = 56; // pixels of a map
const NAMED = 3; // heads of the model that a sentence names

export function headsView(app) {
  const {state, attention} = app;
  effects(app);
  const measures = ["layer", ...Object.keys(attention.statistics)];
  // an effect is computed after the heads are shown
  const by = measures.includes(state.sort) ? state.sort : "layer";
  const sort = sortOf(attention, by);
  const order = sorted(attention, by);
  const way = falls(by) ? "highest" : "lowest";
  const told = sort.says ? `Sorted by ${sort.title} (${sort.says}), the ${way} first. ` : "";
  const [layers, heads] = attention.shape;
  const framed = order.findIndex(([layer, head]) => layer === state.layer && head === state.head);
  const chosen = Math.max(framed, 0); // where arrows begin
  return html`
    <div class="bar">
      ${kindChoice(app)}
      ${choice(
        "Sort by",
        measures.map((name) => [name, sortOf(attention, name).title]),
        by,
        (sort) => app.set({sort}),
      )}
      ${colourChoice(app, false)} ${headSwitch(app)} ${saveButton(app, "heads")}
    </div>
    <p class="hint">
      ${axesOf(attention)} ${told}Press a head to see it large. Layers and heads are counted from 0:
      ${layers - 1}.${heads - 1} is short for ${headName(layers - 1, heads - 1)}.
    </p>
    ${needed(app)} ${legend(app, false)}
    <canvas
      class="heads"
      tabindex="0"
      role="application"
      aria-roledescription="map of heads"
      aria-label="Heads; arrow keys move, Enter opens a head. ${telling(attention, order, chosen)}"
      data-chosen=${chosen}
      ${drawn((canvas) => draw(app, canvas, order, framed, by))}
      @click=${(event) => open(app, order, hit(event))}
      @keydown=${(event) => onKey(app, event, order, chosen)}
    ></canvas>
    <details class="twin">
      <summary>The same as a table</summary>
      ${table(app, attention, order, measures)}
    </details>
  `;
}

function sorted(attention, name) {
  const order = headsOf(attention);
  const values = attention.statistics[name];
  const way = falls(name) ? -1 : 1;
  // heads that were not measured are last
  const value = ([layer, head]) => values[layer][head] ?? way * Infinity;
  return values
    ? order.sort((a, b) => (value(a) === value(b) ? 0 : way * (value(a) - value(b))))
    : order;
}

function falls(name) {
  return FALLING.has(name) || !SORTS[name];
}

const shown = (number, digits) =>
  number === null ? "\u2013" : `${number < 0 ? "\u2212" : ""}${Math.abs(number).toFixed(digits)}`;

/** Which word the effects are on, and those of whole layers. */
function needed(app) {
  const {source, attention} = app;
  const {effects: found} = source;
  const place = chosenPlace(app);
  if (!app.engine || (found?.place === place && !attention.statistics.effect)) return "";
  if (found?.place !== place)
    return html`<p class="hint" role="status" data-effects>
      Switching off one head after the other…
    </p>`;
  const named = joined(found.others.map((one) => html`<bdi>${one}</bdi>`));
  const rather = named.length ? html` rather than ${named}` : "";
  const all = ofModel(source.header.attentions);
  const [before, without] = [0, effectOf(all[0])].map(
    (fall) => 1 / (1 + Math.exp(fall - found.own)),
  );
  return html`<p class="summary" data-most>
      Of all ${all.length} heads of this model, the log odds of “<bdi>${found.word}</bdi>”${rather}
      fall most without ${joined(all.slice(0, NAMED).map((one) => ofOne(app, one)))}.
      ${without < 0.5 ? "" : "No head decides it alone."} Without the first, its probability among
      these words is ${probability(without)} instead of ${probability(before)}.
    </p>
    <p class="hint" data-effects>
      ${ODDS} One head at a time is switched off, and its effect is how far the log odds fall from
      ${shown(found.own, 2)}: if two heads do the same, both may have none. The bar above a map is
      its effect: orange, or grey if the word gains. Without all heads of a layer of this attention
      they fall by
      ${attention.layers.map((one, layer) => `${shown(one, 2)} (layer ${layer})`).join(", ")}.
    </p>`;
}

/** The heads of every kind of attention, those with the largest effects first. */
function ofModel(attentions) {
  const all = attentions.flatMap((attention, kind) =>
    sorted(attention, "effect").map(([layer, head]) => ({kind, layer, head, attention})),
  );
  return all.sort((one, other) => effectOf(other) - effectOf(one));
}

const effectOf = ({attention, layer, head}) => attention.statistics.effect[layer][head];

/** A head of the model, which a press shows large. */
function ofOne(app, one) {
  const {kind, layer, head, attention} = one;
  const show = () => app.set({kind, layer, head, row: rowIn(app, kind), view: "map"});
  return html`<button class="link" @click=${show}>
      ${app.source.header.attentions.length > 1 ? `${attention.name}, ` : ""}${headName(layer, head)}
    </button>
    (by ${shown(effectOf(one), 2)})`;
}

function telling(attention, order, at) {
  const [layer, head] = order[at];
  const measures = Object.entries(attention.statistics).map(
    ([name, values]) => `${sortOf(attention, name).title} ${shown(values[layer][head], 2)}`,
  );
  return `Head ${head} of layer ${layer}: ${measures.join(", ")}.`;
}

/** How many maps stand beside each other, and how large each is. */
function layout(canvas, attention, order) {
  const width = Math.max(canvas.parentElement.clientWidth - 2, 200);
  const room = width - 2 * EDGE + GAP;
  const heads = attention.shape[1];
  const most = Math.max(Math.min(Math.floor(room / (SMALLEST + GAP)), heads), 1);
  let across = most;
  while (heads % across) across -= 1; // a layer begins at the left
  if (2 * across <= most) across = most;
  const side = Math.min(Math.floor(room / across) - GAP, 150);
  const [, , rows, columns] = attention.shape;
  const tall = clamped(Math.round((side * rows) / columns), 24, 2 * side);
  return {width, side, tall, across, down: Math.ceil(order.length / across)};
}

async function draw(app, canvas, order, chosen, sort) {
  const {kind, scale} = app.state;
  const {attention} = app;
  const thumbnails = await app.source.thumbnails(kind);
  if (!canvas.isConnected || app.state.view !== "heads") return;
  const {width, side, tall, across, down} = layout(canvas, attention, order);
  canvas.grid = {side, tall, across};
  app.light = () =>
    canvas.isConnected && app.state.view === "heads" && draw(app, canvas, order, chosen, sort);
  const pen = context(canvas, width, down * (tall + LABEL + GAP));
  const theme = themeColours(canvas);
  const {effect} = attention.statistics;
  const all = app.source.header.attentions.map((one) => one.statistics.effect ?? []);
  const most = Math.max(...all.flat(2).map(Math.abs));
  const small = new OffscreenCanvas(thumbnails.columns, thumbnails.rows);
  const table = pixels();
  pen.imageSmoothingEnabled = false;
  order.forEach(([layer, head], at) => {
    const left = EDGE + (at % across) * (side + GAP);
    const top = Math.floor(at / across) * (tall + LABEL + GAP);
    paint(small, thumbnails, layer * attention.shape[1] + head, table, scale);
    pen.drawImage(small, left, top + LABEL, side, tall);
    font(pen, 11);
    pen.fillStyle = theme.faint;
    const value = attention.statistics[sort];
    const name = side < ROOMY ? `${layer}.${head}` : headName(layer, head);
    pen.fillText(`${name}${value ? `  ${shown(value[layer][head], 2)}` : ""}`, left, top + 7);
    if (effect && most) {
      pen.fillStyle = css(0.75 * Math.sign(effect[layer][head]), DEPENDENCE);
      pen.fillRect(left, top + LABEL - 5, (side * Math.abs(effect[layer][head])) / most, 3);
    }
    // a map begins with the colour of the page, so it needs an edge
    const frame = at === chosen ? 2 : 0.5;
    pen.strokeStyle = at === chosen ? theme.accent : theme.line;
    pen.lineWidth = at === chosen ? 3 : 1;
    pen.strokeRect(left - frame, top + LABEL - frame, side + 2 * frame, tall + 2 * frame);
    light(pen, app, [left, top + LABEL, side, tall], theme);
    if (!app.state.off?.split(",").includes(`${attention.kind}.${layer}.${head}`)) return;
    pen.strokeStyle = theme.lit;
    pen.lineWidth = 2;
    pen.beginPath(); // a head that is switched off is crossed out
    pen.moveTo(left, top + LABEL + tall);
    pen.lineTo(left + side, top + LABEL);
    pen.stroke();
  });
}

/** The row and the column of the word under the pointer. */
function light(pen, {lit, attention}, [left, top, side, tall], theme) {
  if (!lit) return;
  const [, , rows, columns] = attention.shape;
  pen.strokeStyle = theme.lit;
  pen.lineWidth = 1.5;
  if (attention.rows === lit.text)
    pen.strokeRect(left - 1, top + (tall * lit.at) / rows, side + 2, Math.max(tall / rows, 3));
  const column = (at) =>
    pen.strokeRect(left + (side * at) / columns, top - 1, Math.max(side / columns, 3), tall + 2);
  if (attention.columns === lit.text) column(lit.at);
  const read = attention.columns === "read" && lit.text === "target"; // after the beginning
  if (read && lit.at + 1 < columns) column(lit.at + 1);
}

function paint(small, {rows, columns, bytes}, number, table, scale) {
  const image = new ImageData(columns, rows);
  const target = new Uint32Array(image.data.buffer);
  const from = number * rows * columns;
  for (let at = 0; at < target.length; at += 1) {
    const root = bytes[from + at] / 255;
    target[at] = table[entry(scale === "root" ? root : root * root)];
  }
  small.getContext("2d").putImageData(image, 0, 0);
}

function hit(event) {
  const {side, tall, across} = event.currentTarget.grid;
  const [x, y] = pointAt(event);
  const column = placeIn((x - EDGE) / (side + GAP), across);
  return Math.floor(y / (tall + LABEL + GAP)) * across + column;
}

function open(app, order, at) {
  if (order[at]) app.set({layer: order[at][0], head: order[at][1], view: "map"});
}

function onKey(app, event, order, chosen) {
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    open(app, order, chosen);
    return;
  }
  const {across} = event.currentTarget.grid;
  const place = [Math.floor(chosen / across), chosen % across];
  const next = moved(event, place, [Math.ceil(order.length / across), across]);
  if (next === null) return;
  const at = Math.min(next[0] * across + next[1], order.length - 1);
  app.set({layer: order[at][0], head: order[at][1], said: telling(app.attention, order, at)});
}

function table(app, attention, order, measures) {
  const names = measures.filter((name) => name !== "layer");
  const value = (name, layer, head) => shown(attention.statistics[name][layer][head], 3);
  return listed(
    "Heads as a table",
    ["Layer", "Head", ...names.map((name) => sortOf(attention, name).title)],
    order.map(([layer, head]) => [
      layer,
      html`<button
        class="link"
        aria-label="Open ${headName(layer, head)}"
        @click=${() => app.set({layer, head, view: "map"})}
      >
        ${head}
      </button>`,
      ...names.map((name) => value(name, layer, head)),
    ]),
    1,
  );
}
