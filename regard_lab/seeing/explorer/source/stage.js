// The two lines of the first screen in the room that they have, and the links between their words.

const SVG = "http://www.w3.org/2000/svg";
const SMALLEST = 18; // pixels of letters; smaller lines are wrapped
const LARGEST = 1.85; // of the letters of the page
const WRAPPED = 1.3;
const SLACK = 0.88; // room that a longer translation finds

/** Letters as large as one row of each line allows, kept while the text and the room stay. */
export function fit(stage, key, arcs) {
  const wanted = `${key}/${stage.clientWidth}`;
  const lines = [...stage.querySelectorAll(".line")];
  const wide = () => Math.max(...lines.map((line) => line.scrollWidth));
  const over = () => lines.some((line) => line.scrollWidth > line.clientWidth + 1);
  if (stage.fitted === wanted && !over()) return;
  stage.fitted = wanted;
  stage.classList.remove("wrapped");
  for (const line of lines) line.style.minHeight = "";
  stage.style.setProperty("--s", "40px");
  const letters = parseFloat(getComputedStyle(stage).fontSize);
  const room = lines.length > 1 ? SLACK : 0.97;
  const size = Math.min(LARGEST * letters, (40 * stage.clientWidth * room) / wide());
  stage.style.setProperty("--s", `${size}px`);
  const wraps = size < SMALLEST || over(); // words have a least width, of a finger
  stage.classList.toggle("wrapped", wraps);
  stage.classList.toggle("arcs", arcs);
  if (wraps) stage.style.setProperty("--s", `${WRAPPED * letters}px`);
  beside(stage, wraps);
  const written = stage.querySelector(".line.written");
  if (wraps && written) written.style.minHeight = `${written.offsetHeight}px`;
}

/** What follows a text begins where the text ends, if there is room. */
function beside(stage, wraps) {
  const options = stage.querySelector(".options.follows");
  if (!options) return;
  options.style.marginLeft = "";
  const last = [...stage.querySelectorAll(".given .w")].at(-1);
  const left = last.offsetLeft + last.offsetWidth;
  const most = stage.clientWidth - options.scrollWidth;
  if (!wraps) options.style.marginLeft = `${Math.max(Math.min(left, most), 0)}px`;
}

/** A link for each strength above 0, and a dotted one where a word mattered before. */
export function link(stage, {strengths, ghosts, pointed, arcs}) {
  const svg = stage.querySelector("svg");
  const frame = stage.getBoundingClientRect();
  const box = (word) => {
    const {left, width, top, bottom} = word.querySelector(".t").getBoundingClientRect();
    return {x: left + width / 2 - frame.left, top: top - frame.top, bottom: bottom - frame.top};
  };
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
      path.setAttribute("d", (arcs ? arc : curve)(box(chosen), box(word)));
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

/** From a word of the lower line to one of the upper line. */
function curve(from, to) {
  const bend = Math.max((from.top - to.bottom) * 0.55, 24);
  return `M${from.x} ${from.top}C${from.x} ${from.top - bend} ${to.x} ${to.bottom + bend} ${to.x} ${to.bottom}`;
}

/** Between two words of one line: above them, or from row to row where the line is wrapped. */
function arc(from, to) {
  const apart = from.top > to.bottom || to.top > from.bottom;
  if (apart) {
    const [above, below] = from.top < to.top ? [from, to] : [to, from];
    const middle = (above.bottom + below.top) / 2;
    return `M${above.x} ${above.bottom}C${above.x} ${middle} ${below.x} ${middle} ${below.x} ${below.top}`;
  }
  const height = Math.min(Math.max(26, Math.abs(from.x - to.x) * 0.24), 110);
  return `M${from.x} ${from.top}C${from.x} ${from.top - height} ${to.x} ${to.top - height} ${to.x} ${to.top}`;
}
