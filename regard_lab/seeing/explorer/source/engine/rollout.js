// What attention weights alone say of a word: raw attention, and attention rolled out through all
// layers.

import {range} from "./model.js";
import {filled} from "./numbers.js";

export const summed = (numbers, spans) =>
  spans.map((span) => [span[0], range(span).reduce((sum, at) => sum + numbers[at], 0)]);

/** The mean of layers' heads: a list of (rows, columns), one for each layer. */
function means({shape: [layers, heads, rows, columns], weights}) {
  return filled(layers, (layer) =>
    Float64Array.from({length: rows * columns}, (_, at) => {
      let sum = 0;
      for (let head = 0; head < heads; head += 1)
        sum += weights[(layer * heads + head) * rows * columns + at] / heads;
      return sum;
    }),
  );
}

export function product(left, right, rows, inner, columns) {
  return Float64Array.from({length: rows * columns}, (_, at) => {
    let sum = 0;
    for (let i = 0, row = Math.floor(at / columns); i < inner; i += 1)
      sum += left[row * inner + i] * right[i * columns + (at % columns)];
    return sum;
  });
}

const identity = (size) =>
  Float64Array.from({length: size * size}, (_, at) => (at % (size + 1) ? 0 : 1));

const halved = (one, other) => one.map((value, at) => (value + (other ? other[at] : 0)) / 2);

/**
 * Raw attention of the step that writes an id, and attention rolled out through all layers (Abnar
 * and Zuidema 2020).
 */
export function byWeights(settings, row, sources) {
  const own = settings.kept.decoder ?? settings.kept.text;
  const layers = own
    ? means(settings.weights(own === settings.kept.text ? "text" : "decoder"))
    : [];
  const cross = settings.kept.cross ? means(settings.weights("cross")) : [];
  const {rows} = (own ?? settings.kept.cross)[0];
  const average = (stack, columns) =>
    Float64Array.from({length: columns}, (_, at) =>
      stack.reduce((sum, one) => sum + one[row * columns + at] / stack.length, 0),
    );
  let encoded = identity(sources);
  let toSource = new Float64Array(rows * sources);
  let toRead = identity(rows);
  if (settings.kept.encoder)
    for (const one of means(settings.weights("encoder")))
      encoded = product(halved(one, identity(sources)), encoded, sources, sources, sources);
  layers.forEach((one, layer) => {
    const mixing = halved(one, identity(rows));
    [toSource, toRead] = [
      product(mixing, toSource, rows, rows, sources),
      product(mixing, toRead, rows, rows, rows),
    ];
    if (cross[layer])
      [toSource, toRead] = [
        halved(toSource, product(cross[layer], encoded, rows, sources, sources)),
        halved(toRead),
      ];
  });
  const attention = [average(cross, sources), own ? average(layers, rows) : null];
  if (!own) return {attention}; // a recurrent decoder has no weights that could be rolled out
  const last = (numbers, columns) => numbers.subarray(row * columns, (row + 1) * columns);
  return {attention, rollout: [last(toSource, sources), last(toRead, rows)]};
}
