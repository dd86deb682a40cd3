// From a number to a colour: weights from 0 to 1, and signed relevance. The tables are those of the Python pictures.

import * as palettes from "./palettes.js";

export const PALETTES = {cividis: "Cividis (blue to yellow)", viridis: "Viridis (purple to yellow)"};
export const SCALES = {
  linear: "0 to 1",
  root: "square root: small weights are visible",
  largest: "0 to the largest weight of each row",
};

/** The entry of a table for a number from 0 to 1, as matplotlib chooses it. */
export function entry(value) {
  return value >= 1 ? 255 : value > 0 ? Math.floor(value * 256) : 0;
}

/** Where a weight is on the scale, from 0 to 1. */
export function scaled(weight, scale, largest) {
  if (scale === "root") return Math.sqrt(weight);
  return scale === "largest" ? (largest > 0 ? weight / largest : 0) : weight;
}

/** The 256 colours of a palette as pixels of ImageData. */
export function pixels(name) {
  const table = palettes[name];
  const result = new Uint32Array(256);
  const bytes = new Uint8Array(result.buffer);
  for (let at = 0; at < 256; at += 1) {
    bytes.set(table.subarray(3 * at, 3 * at + 3), 4 * at);
    bytes[4 * at + 3] = 255;
  }
  return result;
}

export function css(name, value) {
  const at = 3 * entry(value);
  const [red, green, blue] = palettes[name].subarray(at, at + 3);
  return `rgb(${red},${green},${blue})`;
}

/** The style of a relevance, white for 0: blue speaks for the word, red against it. */
export function signed(score, largest) {
  const share = largest ? score / largest : 0;
  const at = 3 * entry(0.5 + 0.45 * share); // the very ends are too dark to read on
  const [red, green, blue] = palettes.signed.subarray(at, at + 3);
  return style(red, green, blue);
}

/** The style of a weight. */
export function weightColours(name, value) {
  const at = 3 * entry(value);
  const [red, green, blue] = palettes[name].subarray(at, at + 3);
  return style(red, green, blue);
}

/** A background and the ink to write on it. It is set as a property, which the page's content policy allows. */
function style(red, green, blue) {
  return `background:rgb(${red},${green},${blue});color:${isDark(red, green, blue) ? "#fff" : "#000"}`;
}

/** Whether white is easier to read on it than black: WCAG's relative luminance. */
function isDark(red, green, blue) {
  const linear = (part) => (part <= 10 ? part / 3294.6 : ((part / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue) < 0.179;
}
