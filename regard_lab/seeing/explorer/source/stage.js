// The two lines of the first screen in the room that they have, and the links between their words.

import {clamped} from "./engine/numbers.js";

const SVG = "http://www.w3.org/2000/svg";
const SMALLEST = 18; // pixels of letters; smaller lines are wrapped
const BESIDE = 6; // pixels between a word and a link beside its row
const LEAST = 13; // pixels of letters that are still read
const LARGEST = 1.85; // of the letters of the page
const WRAPPED = 1.3;
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
  beside(stage, wraps);
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

/** What follows a text begins where the text ends, if there is room. */
function beside(stage, wraps) {
  const options = stage.querySelector(".options.follows");
  if (!options) return;
  options.style.marginLeft = "";
  const last = [...stage.querySelectorAll(".given .w")].at(-1);
  const left = last.offsetLeft + last.offsetWidth;
  const most = stage.clientWidth - options.scrollWidth;
  if (!wraps) options.style.marginLeft = `${clamped(left, 0, Math.max(most, 0))}px`;
}

/** A link for each strength above 0, and a dotted one where a word mattered before. */
export function link(stage, {strengths, ghosts, pointed, arcs}) {
  const svg = stage.querySelector("svg");
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
    arcs ? ".given .chosen" : ".written .chosen, .options .chosen",
  );
  const words = [...stage.querySelectorAll(".given .w")];
  const paths = [];
  if (chosen)
    for (const word of words) {
      const at = Number(word.dataset.at);
      const strength = strengths[at] ?? 0;
      const ghost = ghosts.includes(at);
      if (word === chosen || (!strength && !ghost)) continue;
      const path = document.createElementNS(SVG, "path");
      const [from, to] = [box(chosen), box(word)];
      const apart = from.top > to.bottom || to.top > from.bottom;
      path.setAttribute("d", apart ? through(from, to, boxes) : arc(from, to));
      if (ghost && !strength) path.setAttribute("class", "ghost");
      else {
        path.style.strokeWidth = 1 + 7 * strength;
        path.style.opacity =
          (0.3 + 0.6 * strength) * (pointed === null || pointed === at ? 1 : 0.35);
      }
      paths.push(path);
    }
  svg.replaceChildren(...paths);
}

/**
 * From a word up or down to one of another row; where rows lie between them, through the gaps
 * between their words.
 */
function through(one, other, boxes) {
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
    to(gapNear(straight, row), bottom);
    path += `V${top}`;
    y = top;
  }
  to(above.x, above.bottom);
  return path;
}

/** The middle of the gap between words of a row, or of the room beside them, that is nearest. */
function gapNear(x, row) {
  const edges = row.flatMap(({left, right}) => [left, right]).sort((one, other) => one - other);
  const gaps = [edges[0] - BESIDE, edges.at(-1) + BESIDE];
  for (let at = 1; at + 1 < edges.length; at += 2) gaps.push((edges[at] + edges[at + 1]) / 2);
  return gaps.reduce((best, gap) => (Math.abs(gap - x) < Math.abs(best - x) ? gap : best));
}

/** Between two words of one row: above them. */
function arc(from, to) {
  const height = clamped(Math.abs(from.x - to.x) * 0.24, 26, 110);
  return `M${from.x} ${from.top}C${from.x} ${from.top - height} ${to.x} ${to.top - height} ${to.x} ${to.top}`;
}
