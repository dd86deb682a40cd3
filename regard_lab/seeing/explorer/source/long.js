// One head of a long text: a coarse map, statistics of every row, and the largest links. Only what is in sight is drawn.

import {html, render} from "lit-html";
import {pixels} from "./colours.js";
import {HALFWAY, ramp} from "./controls.js";
import {context, drawn, font, moved, pointAt, themeColours} from "./surface.js";

const LINE = 22;
const HEIGHT = 520;
const MAP = 380;
const LISTED = 30; // rows that look at a position

export class LongApp {
  constructor(element, source) {
    Object.assign(this, {element, source, header: source.header, row: 0, said: "", found: ""});
  }

  async load() {
    const {arrays, rows, links} = this.header.long;
    const bytes = Object.fromEntries(await Promise.all(
      Object.entries(arrays).map(async ([name, place]) => [name, await this.source.bytes(place)])));
    for (const name of ["entropy", "distance", "largest", "first", "received"]) this[name] = new Float32Array(bytes[name].buffer);
    this.rows = new Int32Array(bytes.rows.buffer);
    this.keys = joined(bytes.keys, rows * links);
    this.weights = Float32Array.from(bytes.weights, (byte) => (byte / 255) ** 2);
    this.map = bytes.map;
    await this.draw();
  }

  /** The word of a position, with its number. */
  word(position) {
    const word = this.header.words[position];
    return word === undefined ? String(position) : `${word} (${position})`;
  }

  links(row) {
    const {links} = this.header.long;
    const found = [];
    for (let at = row * links; at < (row + 1) * links && this.keys[at] >= 0; at += 1)
      found.push({key: this.keys[at], weight: this.weights[at]});
    return found;
  }

  /** The computed rows that look most at a position, among the links that are kept. */
  incoming(position) {
    const {links} = this.header.long;
    const found = [];
    for (let at = 0; at < this.keys.length; at += 1)
      if (this.keys[at] === position) found.push({row: Math.floor(at / links), weight: this.weights[at]});
    return found.sort((a, b) => b.weight - a.weight).slice(0, LISTED);
  }

  choose(row, reveal = true) {
    this.row = Math.min(Math.max(row, 0), this.rows.length - 1);
    this.said = telling(this);
    if (reveal) {
      const box = this.element.querySelector(".links");
      const top = this.row * LINE;
      if (top < box.scrollTop || top > box.scrollTop + HEIGHT - LINE) box.scrollTop = top - HEIGHT / 2;
    }
    return this.draw();
  }

  async draw() {
    render(page(this), this.element);
    this.element.dataset.ready = "yes";
  }
}

/** Whole numbers from their bytes, which are stored first by first, second by second. */
function joined(bytes, count) {
  const numbers = new Int32Array(count);
  for (let at = 0; at < count; at += 1)
    numbers[at] = bytes[at] | (bytes[count + at] << 8) | (bytes[2 * count + at] << 16) | (bytes[3 * count + at] << 24);
  return numbers;
}

function page(app) {
  const {header} = app;
  const {length, rows, links} = header.long;
  return html`
    <header class="top"><h1><bdi>${header.title}</bdi></h1>
      <div class="bar">
        ${rows < length
          ? html`<span class="badge">sampled: ${rows.toLocaleString("en")} of ${length.toLocaleString("en")} rows, each exact; sums over rows are of these</span>`
          : html`<span class="badge">all ${rows.toLocaleString("en")} rows, statistics exact</span>`}
        <span class="badge">the ${links} largest links of each row; their weights are rounded to 0.004 or better</span>
      </div>
      <form class="live" @submit=${(event) => search(app, event)}>
        <label for="find">Find a word or a position</label><input id="find" name="text" autocomplete="off" />
        <button>Next</button><span role="alert">${app.found}</span></form>
    </header>
    <main>
      <h2>Where does each position look?</h2>
      <div class="long">
        <section><h3>The whole head</h3>
          <p class="hint">Queries down, keys across; each cell is the mean weight that its rows give its keys together.</p>
          <canvas class="coarse" tabindex="0" role="application" aria-roledescription="map"
            aria-label="The whole head; arrow keys move. ${telling(app)}" ${drawn((canvas) => paintMap(app, canvas))}
            @click=${(event) => app.choose(rowAt(app, pointAt(event)[1] / MAP))}
            @keydown=${(event) => onMapKey(app, event)}></canvas>
          ${ramp(["0", "1"], {note: HALFWAY})}
          <h3>Entropy along the text</h3>
          <p class="hint">From 0 to ${highest(app).toFixed(2)} nats: the mean of each part, and paler its largest.</p>
          <canvas class="strip" role="img" aria-label="Entropy of the rows along the text, mean and largest of each part"
            ${drawn((canvas) => paintStrip(app, canvas))}></canvas>
        </section>
        <section class="rows"><h3>Rows</h3>
          <p class="hint">Position and word, entropy as a bar, and the largest links with the positions in brackets.</p>
          <div class="links" tabindex="-1" @scroll=${(event) => paintRows(app, event.currentTarget.querySelector("canvas"))}>
            <div class="tall" ${drawn((element) => {
              element.style.height = `${rows * LINE}px`;
              element.parentElement.style.height = `${HEIGHT}px`;
            })}><canvas tabindex="0" role="application" aria-roledescription="rows"
              aria-label="Rows; up and down arrows choose one. ${telling(app)}"
              ${drawn((canvas) => paintRows(app, canvas))}
              @click=${(event) => app.choose(Math.floor((pointAt(event)[1] + event.currentTarget.closest(".links").scrollTop) / LINE), false)}
              @keydown=${(event) => onRowKey(app, event)}></canvas></div></div>
        </section>
        ${details(app)}
      </div>
    </main>
    <p class="said" role="status" aria-live="polite">${app.said}</p>
    <footer><p>Attention alone is not an explanation: a model can look at a word without using it. Made by regard
      ${header.version}; this page loads nothing from a network.</p></footer>`;
}

function telling(app) {
  const {row} = app;
  const links = app.links(row);
  const named = links.slice(0, 3).map(({key, weight}) => `${app.word(key)} with ${weight.toFixed(3)}`).join(", ");
  return `${app.word(app.rows[row])} looks at ${named || "nothing"}; entropy ${app.entropy[row].toFixed(2)} nats.`;
}

function details(app) {
  const {row} = app;
  const links = app.links(row);
  const hidden = links.length ? Math.max(0, 1 - links.reduce((sum, one) => sum + one.weight, 0)) : 0;
  const position = app.rows[row];
  return html`<section><h3><bdi>${app.word(position)}</bdi></h3>
    <p>Entropy ${app.entropy[row].toFixed(3)} nats, mean distance ${app.distance[row].toFixed(1)}, largest weight
      ${app.largest[row].toFixed(4)}, weight of the first position ${app.first[row].toFixed(4)}, received
      ${app.received[position].toFixed(3)}.</p>
    <p><span class="badge" data-hidden>hidden: ${(100 * hidden).toFixed(0)} % of this row is on other keys</span></p>
    <div class="columns">
      ${list("Looks at", "The largest links of the row", links.map(({key, weight}) => [app.word(key), weight]), "It looks at nothing.")}
      ${list("Is looked at by (among the kept links)", "The rows that look at this position",
        app.incoming(position).map((one) => [app.word(app.rows[one.row]), one.weight]), "No row has it among its largest links.")}
    </div>
  </section>`;
}

function list(title, label, rows, none) {
  if (!rows.length) return html`<div><h4>${title}</h4><p class="hint">${none}</p></div>`;
  return html`<div><h4>${title}</h4><div class="scroll" tabindex="0" role="region" aria-label=${label}><table>
    <thead><tr><th scope="col">Word</th><th scope="col">Weight</th></tr></thead>
    <tbody>${rows.map(([word, weight]) => html`<tr><th scope="row"><bdi>${word}</bdi></th><td>${weight.toFixed(4)}</td></tr>`)}</tbody>
  </table></div></div>`;
}

/** The largest entropy of the rows. */
function highest(app) {
  return (app.highest ??= app.entropy.reduce((most, one) => Math.max(most, one), 1e-9));
}

function paintMap(app, canvas) {
  const {side, length} = app.header.long;
  const pen = context(canvas, MAP, MAP);
  if (!app.image) {
    app.image = new OffscreenCanvas(side, side);
    const data = new ImageData(side, side);
    const target = new Uint32Array(data.data.buffer);
    const table = pixels();
    app.map.forEach((byte, at) => (target[at] = table[byte])); // on the square-root scale
    app.image.getContext("2d").putImageData(data, 0, 0);
  }
  pen.imageSmoothingEnabled = false;
  pen.drawImage(app.image, 0, 0, MAP, MAP);
  pen.fillStyle = "#e8441f";
  pen.fillRect(0, (app.rows[app.row] / length) * MAP, MAP, 1.5);
}

function paintStrip(app, canvas) {
  const [width, height] = [MAP, 54];
  const pen = context(canvas, width, height);
  const theme = themeColours(canvas);
  const {length} = app.rows;
  for (let x = 0; x < width; x += 1) {
    const from = Math.floor((x * length) / width);
    const to = Math.max(from + 1, Math.floor(((x + 1) * length) / width));
    let [sum, most] = [0, 0];
    for (let at = from; at < Math.min(to, length); at += 1) {
      sum += app.entropy[at];
      most = Math.max(most, app.entropy[at]);
    }
    const bar = (value) => (value / highest(app)) * (height - 2);
    pen.fillStyle = theme.line;
    pen.fillRect(x, height - bar(most), 1, bar(most));
    pen.fillStyle = theme.accent;
    pen.fillRect(x, height - bar(sum / (to - from)), 1, bar(sum / (to - from)));
  }
}

function paintRows(app, canvas) {
  const box = canvas.closest(".links");
  const width = Math.max(box.clientWidth - 2, 240);
  const pen = context(canvas, width, Math.min(HEIGHT, app.rows.length * LINE));
  const theme = themeColours(canvas);
  const first = Math.floor(box.scrollTop / LINE);
  const last = Math.min(first + Math.ceil(HEIGHT / LINE) + 1, app.rows.length);
  font(pen, 13);
  for (let row = first; row < last; row += 1) {
    const y = row * LINE - box.scrollTop + LINE / 2;
    if (row === app.row) {
      pen.fillStyle = theme.unseen;
      pen.fillRect(0, y - LINE / 2, width, LINE);
    }
    pen.fillStyle = theme.ink; // nothing is measured: what is too long is painted over
    pen.fillText(`${app.rows[row]}  ${app.header.words[app.rows[row]] ?? ""}`.slice(0, 40), 4, y);
    pen.fillStyle = row === app.row ? theme.unseen : theme.paper;
    pen.fillRect(width * 0.3 - 8, y - LINE / 2, width, LINE);
    pen.fillStyle = theme.accent;
    pen.fillRect(width * 0.3, y - 5, (app.entropy[row] / highest(app)) * width * 0.14, 10);
    pen.fillStyle = theme.faint;
    const named = app.links(row).slice(0, 4).map(({key, weight}) => `${app.word(key)} ${weight.toFixed(2)}`).join(",  ");
    pen.fillText(named.slice(0, 160), width * 0.46, y);
  }
}

/** The computed row that is nearest to a share of the text. */
function rowAt(app, share) {
  const wanted = share * app.header.long.length;
  let [low, high] = [0, app.rows.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (app.rows[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}

function onMapKey(app, event) {
  const {side, length} = app.header.long;
  const next = moved(event, [Math.floor((app.rows[app.row] / length) * side), 0], [side, 1]);
  if (next) app.choose(rowAt(app, (next[0] + 0.5) / side));
}

function onRowKey(app, event) {
  const next = moved(event, [app.row, 0], [app.rows.length, 1]);
  if (next) app.choose(next[0]);
}

/** The next row after the chosen one whose word contains the text, or whose position is the number. */
function search(app, event) {
  event.preventDefault();
  const text = new FormData(event.target).get("text").trim().toLowerCase();
  const {rows, header} = app;
  app.found = "";
  for (let step = 1; text && step <= rows.length; step += 1) {
    const row = (app.row + step) % rows.length;
    const word = header.words[rows[row]];
    if (String(rows[row]) === text || word?.toLowerCase().includes(text)) return app.choose(row);
  }
  app.found = text ? "Not found." : "";
  return app.draw();
}
