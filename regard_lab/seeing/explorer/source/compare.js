// Two heads: of one kind of attention, or of what the page compares (another run, another sentence,
// or both). Their difference, and how far their rows are apart. Words that have no partner are left
// out, and their weight is stated.

import {html, nothing} from "lit-html";
import {badge, choice, headChoice, ramp, saveButton} from "./controls.js";
import {Source, Weights, headsOf} from "./data.js";
import {filled, placeIn, top as largest} from "./engine/numbers.js";
import {rgb} from "./colours.js";
import {cellAt, geometry, imageOf, mapCanvas, moveCursor, paintMap} from "./heatmap.js";
import {digits, headName} from "./shares.js";
import {moved} from "./surface.js";
import {listed} from "./tables.js";

export function compareView(app, weights) {
  const {state, source} = app;
  const {second} = source.header;
  const other = otherHead(app);
  const names = other.attention ? namesOf(other) : [];
  const found =
    app.compared?.key === key(app) && app.compared.source === source ? app.compared : null;
  if (!found && other.attention) load(app, weights, other);
  return html`
    <div class="bar">
      ${headChoice(app)} ${badge(weights)}
      ${
        second
          ? choice(
              "With",
              [
                ["other", second.said],
                ["own", "another head of the same"],
              ],
              other.outside ? "other" : "own",
              (against) => app.set({against, other: undefined}),
            )
          : nothing
      }
      ${
        names.length
          ? choice(second ? "Its head" : "With", names, `${other.layer}.${other.head}`, (value) =>
              app.set({other: value.split(".")}),
            )
          : nothing
      }
      ${found ? [badge(found.second), saveButton(app, "difference")] : nothing}
    </div>
    ${
      other.outside
        ? html`<p class="hint">
            The page shows: <bdi>${source.header.title}</bdi>; the other is:
            <bdi>${second.header.title}</bdi>
            ${second.header.notes.map((note) => html`<bdi>${note}</bdi> `)}
          </p>`
        : nothing
    }
    <p class="hint">
      Blue: the first has more weight there; red: the second. Bars at the right: the Jensen-Shannon
      distance of the rows, from 0 (equal) to 1 (no key in common).
    </p>
    ${
      !other.attention
        ? html`<p class="hint">The other has no ${app.attention.name.toLowerCase()}.</p>`
        : found
          ? difference(app, found)
          : html`<p class="hint">Comparing…</p>`
    }
    ${bothWrote(app, other) ? written(source.header, second) : nothing}
  `;
}

/** The heads that can be compared with, and of another page the means of layers. */
function namesOf({attention, outside}) {
  const [, heads] = attention.shape;
  return headsOf(attention).flatMap(([layer, head]) => {
    const own = [`${layer}.${head}`, headName(layer, head)];
    const mean = [`${layer}.mean`, `mean of the ${heads} heads of layer ${layer}`];
    return outside && head === 0 && heads > 1 ? [mean, own] : [own];
  });
}

/**
 * The head that is compared with: by default the same one of the other, or head 0 of layer 0 of the
 * same.
 */
function otherHead(app) {
  const {header} = app.source;
  const outside = Boolean(header.second) && app.state.against !== "own";
  const attentions = outside ? header.second.header.attentions : header.attentions;
  const kind = outside
    ? attentions.findIndex(({name}) => name === app.attention.name)
    : app.state.kind;
  const attention = attentions[kind];
  if (!attention) return {outside, attention, kind};
  const [layers, heads] = attention.shape;
  const [layer, head] = app.state.other ?? (outside ? [app.state.layer, app.state.head] : [0, 0]);
  return {
    outside,
    attention,
    kind,
    layer: placeIn(layer, layers),
    head: outside && head === "mean" && heads > 1 ? "mean" : placeIn(head, heads),
  };
}

function key(app) {
  const {outside, kind, layer, head} = otherHead(app);
  return [app.state.kind, app.state.layer, app.state.head, outside, kind, layer, head].join("/");
}

async function load(app, first, {outside, attention, kind, layer, head}) {
  const wanted = key(app);
  const {source} = app;
  const from = outside
    ? (source.second ??= new Source(source.header.second.header, source.arrays))
    : source;
  const second = await from.head(kind, layer, head);
  if (wanted !== key(app) || app.source !== source || app.state.view !== "compare") return;
  const {matched} = source.header.second ?? {};
  const every = (count) => filled(count, (at) => at);
  const [rows, columns] = [
    [app.attention.rows, first.rows],
    [app.attention.columns, first.columns],
  ].map(([text, count]) => (outside ? matched[text] : [every(count), every(count)]));
  const parts = [shared(first, rows[0], columns[0]), shared(second, rows[1], columns[1])];
  const values = parts[0].weights.values.map((value, at) => value - parts[1].weights.values[at]);
  const largest = values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  const distances = rows[0].map((_, row) =>
    apart(...parts.map(({weights, rest}) => [...weights.row(row), rest[row]])),
  );
  app.compared = {
    key: wanted,
    source,
    first: parts[0].weights,
    second: parts[1].weights,
    values,
    largest,
    distances,
    outside,
    places: rows[0],
    hidden: parts.map(({rest}) => mean(rest)),
    left: first.rows - rows[0].length,
    words: {
      rows: paired(app.words.rows, from.words(attention).rows, rows),
      columns: paired(app.words.columns, from.words(attention).columns, columns),
    },
  };
  app.draw();
}

/** The words of both, which may differ where one was replaced by another. */
function paired(words, others, [places, partners]) {
  return places.map((at, number) =>
    words[at] === others[partners[number]]
      ? words[at]
      : `${words[at]} / ${others[partners[number]]}`,
  );
}

/** The weights between words that both have, and for each row the weight of the other words. */
function shared(weights, rows, columns) {
  const kept = new Float32Array(rows.length * columns.length);
  const rest = rows.map((row, at) => {
    const given = weights.row(row);
    let left = 0;
    for (const weight of given) left += weight;
    columns.forEach((column, to) => {
      kept[at * columns.length + to] = given[column];
      left -= given[column];
    });
    return Math.max(left, 0);
  });
  return {weights: new Weights(kept, rows.length, columns.length, weights.exact), rest};
}

function mean(numbers) {
  return numbers.length ? numbers.reduce((sum, one) => sum + one, 0) / numbers.length : 0;
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
  if (!found.first.rows || !found.first.columns)
    return html`<p class="hint">The two have no words in common there.</p>`;
  const said = telling(app, found);
  const most = found.largest.toFixed(3);
  return html` <p class="summary" data-distance>
      Mean distance of the rows: ${mean(found.distances).toFixed(3)}; the largest difference of a
      weight is ${most}.
    </p>
    ${
      found.outside
        ? html`<p class="hint" data-hidden>
            Hidden: ${percent(found.hidden[0])} of the first and ${percent(found.hidden[1])} of the
            second are on words without a partner in the other; they count as one more word. Rows of
            the first without a partner: ${found.left}.
          </p>`
        : nothing
    }
    <div class="beside">
      <div>
        ${mapCanvas("difference", {
          role: "map of differences",
          label: "Differences",
          said,
          paints: (canvas) => draw(app, canvas, found),
          points: (event) => event.type === "click" && choose(app, event, found),
          keys: (event) => {
            const next = moved(event, place(app, found), [found.first.rows, found.first.columns]);
            if (next) app.set({pair: next}).then(() => app.set({said: telling(app, found)}));
          },
        })}
        ${ramp([`the second has ${most} more`, `the first has ${most} more`], {
          place: (share) => 2 * share - 1,
        })}
      </div>
      <details class="twin" open>
        <summary>
          The row of <bdi>${found.words.rows[place(app, found)[0]]}</bdi> as a table
        </summary>
        ${table(app, found)}
      </details>
    </div>`;
}

const percent = (share) => `${(100 * share).toFixed(0)} %`;

/** The chosen cell; until then that of the largest difference in the row of the chosen word. */
function place({state}, {first, values, places}) {
  if (state.pair) {
    const [row, column] = state.pair;
    return [Math.min(row, first.rows - 1), Math.min(column, first.columns - 1)];
  }
  const row = Math.max(places.indexOf(state.row), 0);
  const apart = values.slice(row * first.columns, (row + 1) * first.columns).map(Math.abs);
  return [row, largest(apart, 1)[0]];
}

function telling(app, found) {
  const {first, second, distances, words} = found;
  const [row, column] = place(app, found);
  const [one, other] = [first, second].map((head) => digits(head.at(row, column)));
  return (
    `“${words.rows[row]}” looks at “${words.columns[column]}” with ${one} in the first and ` +
    `${other} in the second; distance of the row ${distances[row].toFixed(3)}.`
  );
}

const signedDigits = (number) => `${number < 0 ? "−" : ""}${digits(Math.abs(number))}`;

function table(app, found) {
  const [row] = place(app, found);
  const {first, second, words} = found;
  return listed(
    "The row as a table",
    ["Word", "First", "Second", "Difference"],
    words.columns.map((word, at) => [
      word,
      digits(first.at(row, at)),
      digits(second.at(row, at)),
      signedDigits(first.at(row, at) - second.at(row, at)),
    ]),
  );
}

/** Whether the page compares two stored translations with what each makes of its words. */
function bothWrote({engine, source: {header}}, {outside}) {
  const {texts, changes, second} = header;
  return outside && !engine && texts.target && changes && second.header.changes;
}

/** What both make of each written word, where both wrote the same. */
function written(header, second) {
  const pairs = (second.matched.target ?? [[], []])[0].map((at, number) => [
    at,
    second.matched.target[1][number],
  ]);
  const texts = [header.texts.target, second.header.texts.target];
  const word = (at, to) => paired(...texts, [[at], [to]])[0];
  return html`<details class="twin" open data-written>
    <summary>The probability of each written word</summary>
    ${listed(
      "Probabilities of written words",
      ["Word", "First", "Second"],
      pairs.map(([at, to]) => [
        word(at, to),
        digits(header.changes.unchanged.probabilities[at]),
        digits(second.header.changes.unchanged.probabilities[to]),
      ]),
    )}
  </details>`;
}

function draw(app, canvas, found) {
  const {first, values, largest, distances, words} = found;
  const room = geometry(canvas, first, true);
  const {cell, right} = room;
  const image = imageOf(first, (_, bytes) =>
    values.forEach((value, at) => bytes.set([...rgb(largest ? value / largest : 0), 255], 4 * at)),
  );
  paintMap(canvas, room, first, words, (pen, frame, theme) => {
    const [left, top, width] = frame;
    pen.drawImage(image, ...frame);
    pen.fillStyle = theme.faint;
    distances.forEach((distance, row) =>
      pen.fillRect(
        left + width + 4,
        top + row * cell,
        (right - 6) * distance,
        Math.max(cell - 1, 1),
      ),
    );
  });
  moveCursor(canvas, ...place(app, found));
}

function choose(app, event, {first}) {
  const [row, column] = cellAt(event, first);
  if (row !== undefined) app.set({pair: [row, column]});
}
