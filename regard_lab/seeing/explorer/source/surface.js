// Canvases: sharp at any pixel ratio, drawn after lit-html has placed them, and used by keyboard as
// grids.

import {placeIn} from "./engine/numbers.js";
import {Directive, directive} from "lit-html/directive.js";

const FONT = "system-ui, sans-serif";

/** `${drawn(canvas => …)}` on a canvas: calls the function whenever the page is drawn. */
export const drawn = directive(
  class extends Directive {
    render() {}

    update({element}, [draw]) {
      queueMicrotask(() => element.isConnected && draw(element));
    }
  },
);

/**
 * Set a canvas to a size in CSS pixels and return its context, scaled to the pixels of the screen.
 */
export function context(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [across, down] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== across) canvas.width = across;
  if (canvas.height !== down) canvas.height = down;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.textBaseline = "middle";
  return pen;
}

/** An element of SVG. */
export function svg(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

export function font(pen, size, weight = "normal") {
  pen.font = `${weight} ${size}px ${FONT}`;
}

/** The colours of the page's theme, for canvases. */
export function themeColours(element) {
  const style = getComputedStyle(element);
  const read = (name) => style.getPropertyValue(name).trim();
  return {
    ink: read("--ink"),
    faint: read("--faint"),
    line: read("--line"),
    accent: read("--accent"),
    unseen: read("--unseen"),
    lit: read("--followed"),
    paper: read("--paper"),
  };
}

/** A text cut so that it fits a width. */
export function fitted(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (pen.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return `${text.slice(0, low)}…`;
}

/**
 * Write over the text that lit-html has placed in an element: in its own node, where the next
 * drawing looks for it.
 */
export function readOut(element, text) {
  for (const node of element.childNodes) if (node.nodeType === Node.TEXT_NODE) node.data = text;
}

/** Where the pointer is on an element, in CSS pixels. */
export function pointAt(event) {
  const box = event.currentTarget.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

const STEPS = {
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  PageUp: [-10, 0],
  PageDown: [10, 0],
};

/** The place in a grid that a key leads to, or null if it is no key of grids. */
export function moved(event, [row, column], [rows, columns]) {
  let next = null;
  if (event.key in STEPS) next = [row + STEPS[event.key][0], column + STEPS[event.key][1]];
  else if (event.key === "Home") next = [event.ctrlKey ? 0 : row, 0];
  else if (event.key === "End") next = [event.ctrlKey ? rows - 1 : row, columns - 1];
  if (next === null) return null;
  event.preventDefault();
  return [placeIn(next[0], rows), placeIn(next[1], columns)];
}
