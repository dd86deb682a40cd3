// What is shown, as a file: the first screen as SVG or PNG, and the map of a view as PNG.

import {svg, themeColours} from "./surface.js";

const EDGE = 16; // pixels around a picture
const SHARP = 2; // pixels of a PNG for each pixel of the screen

/** The answer, the two lines and their links, as they stand on the screen. */
export async function saveFirst(app, kind) {
  const screen = app.element.querySelector(".screen");
  const {text, width, height} = drawing(screen);
  const file = `regard.${kind}`;
  app.set({copied: `Saved as ${file}.`});
  if (kind === "svg") return save(new Blob([text], {type: "image/svg+xml"}), file);
  const image = new Image();
  image.src = `data:image/svg+xml,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = new OffscreenCanvas(SHARP * width, SHARP * height);
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return save(await canvas.convertToBlob(), file);
}

/** A map on the colour of the page. */
export async function saveMap(canvas, file) {
  const copy = new OffscreenCanvas(canvas.width, canvas.height);
  const pen = copy.getContext("2d");
  pen.fillStyle = themeColours(canvas).paper;
  pen.fillRect(0, 0, copy.width, copy.height);
  pen.drawImage(canvas, 0, 0);
  save(await copy.convertToBlob(), file);
}

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** An SVG of the words and links of a screen: each word where it stands, in its font and colour. */
function drawing(screen) {
  const stage = screen.querySelector(".stage");
  const frame = stage.getBoundingClientRect();
  const top = screen.querySelector(".answer").getBoundingClientRect().top;
  const [width, height] = [frame.width + 2 * EDGE, frame.bottom - top + 2 * EDGE];
  const root = svg("svg", {width, height, viewBox: `0 0 ${width} ${height}`});
  const [left, above] = [EDGE - frame.left, EDGE - top];
  const pen = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const paint = (colour) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = pen.getImageData(0, 0, 1, 1).data;
    return alpha ? `rgb(${red},${green},${blue})` : "none"; // readers of SVG know no color-mix
  };
  root.append(svg("rect", {width, height, fill: paint(themeColours(stage).paper)}));
  const links = svg("g", {transform: `translate(${EDGE} ${frame.top + above})`, fill: "none"});
  for (const path of stage.querySelectorAll("path")) {
    const {stroke, strokeWidth, opacity} = getComputedStyle(path);
    links.append(
      svg("path", {
        d: path.getAttribute("d"),
        stroke: paint(stroke),
        "stroke-width": strokeWidth,
        "stroke-linecap": "round",
        opacity,
      }),
    );
  }
  root.append(links);
  for (const box of stage.querySelectorAll(".t, .n, .was, .options i")) {
    const {x, y, width, height} = box.getBoundingClientRect();
    const fill = paint(getComputedStyle(box).backgroundColor);
    root.append(svg("rect", {x: x + left, y: y + above, width, height, rx: 5, fill}));
  }
  for (const part of [
    screen.querySelector(".answer"),
    ...stage.querySelectorAll(".note, .line, .options"),
  ])
    words(part, (text, {x, y}, parent) => {
      const {color, fontFamily, fontSize, fontWeight} = getComputedStyle(parent);
      pen.font = `${fontWeight} ${fontSize} ${fontFamily}`;
      const {fontBoundingBoxAscent: ascent} = pen.measureText(text);
      const set = svg("text", {
        x: x + left,
        y: y + above + ascent,
        fill: paint(color),
        "font-family": fontFamily,
        "font-size": fontSize,
        "font-weight": fontWeight,
        "text-decoration": parent.closest(".was, .gone .t") ? "line-through" : "none",
      });
      set.textContent = text.replace(/\p{C}/gu, "\uFFFD"); // XML has no control characters
      root.append(set);
    });
  return {text: new XMLSerializer().serializeToString(root), width, height};
}

/** Call a function for each word of an element, with its box and its parent. */
function words(part, draw) {
  const walker = document.createTreeWalker(part, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  while (walker.nextNode()) {
    const node = walker.currentNode;
    for (const {0: text, index} of node.data.matchAll(/\S+/g)) {
      range.setStart(node, index);
      range.setEnd(node, index + text.length);
      const box = range.getBoundingClientRect();
      if (box.width) draw(text, box, node.parentElement);
    }
  }
}
