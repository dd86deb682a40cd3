// From a number to a colour: weights from 0 to 1, signed numbers, and what a word depends on. All
// rise from the background of the page.

import {STOPS} from "./palette.js";

export const SCALES = {
  linear: "0 to 1",
  root: "square root: small weights are visible",
  largest: "0 to the largest weight of each row",
};
const tables = {};

/** The colours of each scale, three bytes an entry, for the theme that is shown. */
function shownTables() {
  const {theme} = document.documentElement.dataset;
  const name =
    theme === "dark" || (theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches)
      ? "dark"
      : "light";
  tables[name] ??= Object.fromEntries(
    Object.entries(STOPS[name]).map(([kind, stops]) => [kind, between(stops)]),
  );
  return tables[name];
}

/** 256 colours between the stops. */
function between(stops) {
  const parts = stops.map((stop) => [1, 3, 5].map((at) => parseInt(stop.slice(at, at + 2), 16)));
  return Uint8Array.from({length: 768}, (_, at) => {
    const place = (Math.floor(at / 3) / 255) * (stops.length - 1);
    const below = Math.min(Math.floor(place), stops.length - 2);
    const [low, high] = [parts[below][at % 3], parts[below + 1][at % 3]];
    return low + (high - low) * (place - below);
  });
}

/** The entry of a table for a number from 0 to 1, as matplotlib chooses it. */
export function entry(value) {
  return value >= 1 ? 255 : value > 0 ? Math.floor(value * 256) : 0;
}

/** Where a weight is on the scale, from 0 to 1. */
export function scaled(weight, scale, largest) {
  if (scale === "root") return Math.sqrt(weight);
  return scale === "largest" ? (largest > 0 ? weight / largest : 0) : weight;
}

/** The 256 colours of weights as pixels of ImageData. */
export function pixels() {
  const {weight} = shownTables();
  const result = new Uint32Array(256);
  const bytes = new Uint8Array(result.buffer);
  for (let at = 0; at < 256; at += 1) {
    bytes.set(weight.subarray(3 * at, 3 * at + 3), 4 * at);
    bytes[4 * at + 3] = 255;
  }
  return result;
}

export const NUMBERS = ["weight", "against"]; // the scales of numbers above 0 and below
export const DEPENDENCE = ["depends", "opposes"];

/** Red, green and blue of a share from -1 to 1: blue for a weight, orange for a dependence. */
export function rgb(share, [above, below] = NUMBERS) {
  const at = 3 * entry(Math.abs(share));
  return shownTables()[share < 0 ? below : above].subarray(at, at + 3);
}

export function css(share, scales) {
  return `rgb(${rgb(share, scales)})`;
}

/**
 * The style of a share: a background and the ink to write on it. It is set as a property, which the
 * page's policy allows.
 */
export function inked(share, scales) {
  const colour = rgb(share, scales);
  return `background:rgb(${colour});color:${isDark(...colour) ? "#fff" : "#000"}`;
}

/** Whether white is easier to read on it than black: WCAG's relative luminance. */
function isDark(red, green, blue) {
  const linear = (part) => (part <= 10 ? part / 3294.6 : ((part / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue) < 0.179;
}
