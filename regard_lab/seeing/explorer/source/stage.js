// The two lines of the first screen in the room that they have, and the links between their words.

import {clamped} from "./engine/numbers.js";
import {svg} from "./surface.js";

const SMALLEST = 16; // pixels of letters; smaller lines are wrapped
const BESIDE = 6; // pixels between a word and a link beside its row
const LEAST = 13; // pixels of letters that are still read
const LARGEST = 1.85; // of the letters of the page
const WRAPPED = 1.3;
const TAKEN = 80; // pixels by which a gap that has a link counts as farther away
const HIGH = 110; // pixels of an arc between words of a row
const LOW = 26; // the same between rows of words
const SLACK = 0.88; // room that a longer translation finds

/** Letters as large as one row of each line allows, kept while the text and the room stay. */
export function fit(stage, key, arcs) {
  const wanted = `${key}/${stage.clientWidth}`;
  const lines = [...stage.querySelectorAll(".line")];
  if (stage.fitted === wanted) {
    lines.forEach(shrink);
    if (!lines.some(isOver)) return;
  }
  stage.fitted = wanted;
  stage.classList.remove("wrapped");
  for (const line of lines) line.removeAttribute("style");
  stage.style.setProperty("--s", "40px");
  const letters = parseFloat(getComputedStyle(stage).fontSize);
  const room = lines.length > 1 ? SLACK : 0.97;
  const longest = Math.max(...lines.map(widthOf));
  const size = Math.min(LARGEST * letters, (40 * stage.clientWidth * room) / longest);
  stage.style.setProperty("--s", `${size}px`);
  const wraps = size < SMALLEST || lines.some(isOver); // words have a least width, of a finger
  stage.classList.toggle("wrapped", wraps);
  stage.classList.toggle("arcs", arcs);
  if (wraps) stage.style.setProperty("--s", `${WRAPPED * letters}px`);
  for (const line of lines) line.style.minHeight = `${line.offsetHeight}px`;
}

/** How wide the words of a line are; a field above them may be wider. */
const widthOf = (line) =>
  Math.max(...[...line.children].map((one) => one.offsetLeft + one.offsetWidth));
const isOver = (line) => widthOf(line) > line.clientWidth + 1;

/** A longer line has smaller letters, as long as they are legible: nothing below it moves. */
function shrink(line) {
  line.style.removeProperty("--s");
  const room = parseFloat(line.style.minHeight) + 1;
  smaller(line, "--s", () => isOver(line) || line.offsetHeight > room);
}

/** A longer sentence in the room of its element, in smaller letters. */
export function fitText(element) {
  element.style.fontSize = element.style.height = "";
  const {minHeight} = getComputedStyle(element);
  element.style.height = minHeight;
  const room = parseFloat(minHeight) + 1;
  smaller(element, "font-size", () => element.scrollHeight > room);
}

/** Take letters of an element smaller by pixels while they are too large. */
function smaller(element, property, isTooLarge) {
  let size = parseFloat(getComputedStyle(element).fontSize);
  while (size > LEAST && isTooLarge()) element.style.setProperty(property, `${(size -= 1)}px`);
}

/** A link for each strength above 0. */
export function link(stage, {strengths, pointed, asker}) {
  const frame = stage.getBoundingClientRect();
  const box = (word) => {
    const {left, right, top, bottom} = word.querySelector(".t").getBoundingClientRect();
    return {
      x: (left + right) / 2 - frame.left,
      left: left - frame.left,
      right: right - frame.left,
      top: top - frame.top,
      bottom: bottom - frame.top,
    };
  };
  const boxes = [...stage.querySelectorAll(".line .w")].map(box);
  const chosen = stage.querySelector(
    asker === undefined ? ".written .chosen, .options .chosen" : ".given .chosen",
  );
  const words = [...stage.querySelectorAll(".given .w")];
  const paths = [];
  const taken = [];
  if (chosen)
    for (const word of words) {
      const at = Number(word.dataset.at);
      const strength = strengths[at] ?? 0;
      if (word === chosen || !strength) continue;
      const [from, to] = [box(chosen), box(word)];
      const apart = from.top > to.bottom || to.top > from.bottom;
      const path = svg("path", {
        d: apart ? through(from, to, boxes, taken) : arc(stage, from, to),
      });
      path.style.strokeWidth = 1 + 7 * strength;
      path.style.opacity = (0.3 + 0.6 * strength) * (pointed === null || pointed === at ? 1 : 0.35);
      paths.push(path);
    }
  stage.querySelector("svg").replaceChildren(...paths);
}

/**
 * From a word up or down to one of another row; where rows lie between them, through the gaps
 * between their words.
 */
function through(one, other, boxes, taken) {
  const [below, above] = one.top > other.top ? [one, other] : [other, one];
  const between = boxes.filter((box) => box.bottom <= below.top && box.top >= above.bottom);
  let [x, y] = [below.x, below.top];
  let path = `M${x} ${y}`;
  const to = (nextX, nextY) => {
    const bend = Math.max((y - nextY) * 0.55, 4);
    path += `C${x} ${y - bend} ${nextX} ${nextY + bend} ${nextX} ${nextY}`;
    [x, y] = [nextX, nextY];
  };
  while (between.length) {
    const last = between.at(-1);
    const row = [];
    while (between.at(-1)?.bottom > last.top) row.push(between.pop());
    const top = Math.min(...row.map((box) => box.top));
    const bottom = Math.max(...row.map((box) => box.bottom));
    const straight = x + ((above.x - x) * (y - top)) / (y - above.bottom);
    to(gapNear(straight, row, taken), bottom);
    path += `V${top}`;
    y = top;
  }
  to(above.x, above.bottom);
  return path;
}

/**
 * The middle of the gap between words of a row that is nearest, or a place beside the row; a gap
 * that another link has taken counts as farther away.
 */
function gapNear(x, row, taken) {
  const edges = row.flatMap(({left, right}) => [left, right]).sort((one, other) => one - other);
  const gaps = [Math.min(x, edges[0] - BESIDE), Math.max(x, edges.at(-1) + BESIDE)];
  for (let at = 1; at + 1 < edges.length; at += 2) gaps.push((edges[at] + edges[at + 1]) / 2);
  const away = (gap) => Math.abs(gap - x) + (taken.includes(gap) ? TAKEN : 0);
  const nearest = gaps.reduce((best, gap) => (away(gap) < away(best) ? gap : best));
  taken.push(nearest);
  return nearest;
}

/** Between two words of one row: above the only line, or in the gap between two. */
function arc(stage, from, to) {
  const above = stage.matches(".arcs");
  const most = stage.matches(".wrapped") ? LOW : HIGH;
  const height = clamped(Math.abs(from.x - to.x) * 0.24, 26, most) * (above ? -1 : 1);
  const y = above ? from.top : from.bottom;
  return `M${from.x} ${y}C${from.x} ${y + height} ${to.x} ${y + height} ${to.x} ${y}`;
}
