// The page: its first screen, and below it the view that is chosen. State is kept here and in the
// page's address.

import {html, nothing, render} from "lit-html";
import {SCALES} from "./colours.js";
import {compareView} from "./compare.js";
import {choice} from "./controls.js";
import {embedded} from "./data.js";
import {placeIn} from "./engine/numbers.js";
import {firstScreen} from "./first.js";
import {headsView} from "./heads.js";
import {heatmapView} from "./heatmap.js";
import {changeView} from "./change.js";
import {patternView} from "./pattern.js";
import {PLAIN} from "./state.js";
import {Engine} from "./thread.js";
import {explainedOf, readerView} from "./reader.js";
import {rove, stops} from "./rove.js";
import {named} from "./stories.js";
import {walkView} from "./walk.js";
import {followed, lastWord} from "./wordpairs.js";

/** Whether words are explained by lenses. */
const explains = ({written, model, explained}) =>
  Boolean(written && (model || Object.keys(explained).length));
const weighs = (header) => header.attentions.length > 0;
const VIEWS = {
  reader: {
    title: "Reader",
    asks: "What does this word depend on?",
    draw: readerView,
    fits: explains,
  },
  heads: {title: "Heads", asks: "What does each head do?", draw: headsView, fits: weighs},
  map: {title: "Heat map", asks: "Which word looks at which?", draw: heatmapView, fits: weighs},
  change: {
    title: "What if",
    asks: "What if it were changed?",
    draw: changeView,
    fits: (header) => Boolean(header.changes),
  },
  pattern: {
    title: "Pattern",
    asks: "Who may look at whom?",
    draw: patternView,
    fits: (header) => header.patterns.length > 0,
  },
  walk: {
    title: "Walk-through",
    asks: "How is it computed?",
    draw: walkView,
    fits: (header) => Boolean(header.walk ?? header.live?.walk),
  },
  compare: {title: "Compare", asks: "How do two heads differ?", draw: compareView, fits: weighs},
};
/** What a page shows before a reader chooses. */
const FIRST = {
  view: "reader",
  kind: 0,
  layer: 0,
  head: "mean",
  row: 0,
  pick: 0,
  by: "depends",
  scale: "linear",
  theme: "system",
  sort: "layer",
  pattern: 0,
  panel: 0,
  step: 0,
};
// in the address
const KEPT = [
  ...Object.keys({...FIRST, ...PLAIN}),
  ..."place within whole lens changed next column pair followed other against text from".split(" "),
];

export class App {
  /** state: what the page was told to show; engine: the model of the page, if it contains one. */
  constructor(element, source, state, engine = null) {
    Object.assign(this, {element, source, engine, stored: source.stored, past: [], hot: null});
    this.origin = source.base ?? (engine ? source : undefined); // the text before experiments
    // how the chosen word is found again; null in another text
    this.follows = engine ? "words" : null;
    this.state = {...FIRST, row: firstRow(source.header), said: "", busy: ""};
    this.state.layer = (source.header.attentions[0]?.shape[0] ?? 1) - 1;
    Object.assign(this.state, engine ? {text: source.given.source, ...PLAIN} : {}, state);
    this.#repair();
  }

  get attention() {
    return this.source.header.attentions[this.state.kind];
  }

  get words() {
    return this.source.words(this.attention);
  }

  /** Change the state and draw again. */
  set(changes) {
    if ("place" in changes) this.picked = null;
    Object.assign(this.state, changes);
    this.#repair();
    this.#remember();
    return this.draw();
  }

  /**
   * Replace what is shown, as after reading another sentence; chosen words were those of the
   * sentence before.
   */
  replace(source) {
    const {source: before, engine, follows} = this;
    Object.assign(this, {source, follows: engine ? "words" : null});
    if (!engine || source.given.source !== before.given.source)
      for (const name of ["changed", "next", "pair", "followed", "column", "within"])
        delete this.state[name];
    if (follows !== null) this.#follow(before, follows);
    else {
      this.origin = source.base ?? (engine ? source : undefined);
      Object.assign(this, {past: [], picked: null});
      const kind = engine ? this.state.kind : 0;
      const row = firstRow(source.header);
      Object.assign(this.state, {kind, row, pick: 0, place: undefined});
    }
    const from = this.origin?.given.source;
    return this.set({said: source.header.title, from: from === this.state.text ? undefined : from});
  }

  /**
   * The chosen word stays chosen through changes: the same word, or what has replaced it. It is
   * followed from the text in which it was chosen: from letter to letter of a word that is being
   * written it would drift.
   */
  #follow({header: {texts, chosen}}, follows) {
    const {target} = this.source.header.texts;
    if (!target) return;
    if (follows !== "words") this.picked = [follows, target];
    const last = texts.target.length - 1;
    this.picked ??= [Math.min(this.state.place ?? chosen, last), texts.target];
    const place = followed(...this.picked, target);
    Object.assign(this.state, {place, row: place});
  }

  async draw() {
    const {kind, layer, head} = this.state;
    const turn = (this.turn = (this.turn ?? 0) + 1);
    const weights = this.attention ? await this.source.head(kind, layer, head) : null;
    if (turn !== this.turn) return; // a newer change is being drawn
    document.documentElement.dataset.theme = this.state.theme;
    this.weights = weights;
    render(page(this, weights), this.element);
    this.drawFirst();
    this.element.dataset.ready = "yes";
  }

  /** The first screen alone, as while the pointer is on a word. */
  drawFirst() {
    render(firstScreen(this), this.element.querySelector(".first"));
    stops(this.element);
  }

  /** Indices that do not exist become the nearest ones that do. */
  #repair() {
    const {state} = this;
    const {header} = this.source;
    if (!Object.hasOwn(VIEWS, state.view) || !VIEWS[state.view].fits(header))
      state.view = Object.keys(VIEWS).find((name) => VIEWS[name].fits(header));
    state.kind = placeIn(state.kind, header.attentions.length);
    const [layers, heads, rows, columns] = this.attention?.shape ?? [1, 1, 1, 1];
    state.layer = placeIn(state.layer, layers);
    state.head = heads === 1 ? 0 : state.head === "mean" ? "mean" : placeIn(state.head, heads);
    state.row = placeIn(state.row, rows);
    for (const [name, count] of Object.entries({
      column: columns,
      changed: Infinity,
      within: Infinity,
      next: Infinity,
    }))
      if (state[name] !== undefined) state[name] = placeIn(state[name], count);
    for (const name of ["pair", "followed", "other"])
      if (typeof state[name] === "string")
        state[name] = state[name]
          .split(",")
          .map((one) => (one === "mean" ? one : placeIn(one, Infinity)));
    state.pick = placeIn(state.pick, 3);
    state.pattern = placeIn(state.pattern, header.patterns.length);
    state.step = placeIn(state.step, Infinity);
    state.panel = placeIn(state.panel, header.patterns[state.pattern]?.panels.length ?? 1);
    if (!Object.hasOwn(SCALES, state.scale)) state.scale = "linear";
    if (!["system", "light", "dark"].includes(state.theme)) state.theme = "system";
  }

  #remember() {
    const chosen = kept(this.state);
    // a notebook's widget tells Python
    if (parent !== window) parent.postMessage({regard: chosen}, "*");
    try {
      history.replaceState(null, "", `#${new URLSearchParams(chosen)}`);
    } catch {
      // a frame of a notebook has no address of its own
    }
  }
}

/** The word that is shown first: the one of the page, or where it explains none the last word. */
function firstRow({written, chosen, attentions: [first], texts}) {
  return written || !first ? chosen : lastWord(texts[first.rows]);
}

function fromAddress(hash) {
  return kept(Object.fromEntries(new URLSearchParams(hash.slice(1))));
}

/**
 * What a page shows, or may be told to show by its address or by the frame that contains it;
 * `#repair` checks the values.
 */
function kept(given) {
  const known = KEPT.filter((name) => given[name] !== undefined);
  return Object.fromEntries(known.map((name) => [name, String(given[name])]));
}

/** What a view asks, by the name of the word that lenses explain. */
function asksOf(app, {asks, draw}) {
  const {place, words} = draw === readerView ? explainedOf(app) : {};
  return place === undefined ? asks : asks.replace("this word", () => `“${named(words[place])}”`);
}

function page(app, weights) {
  const {state, source} = app;
  const views = Object.entries(VIEWS).filter(([, view]) => view.fits(source.header));
  const shown = VIEWS[state.view];
  return html`
    <main>
      <div class="first"></div>
      <nav role="tablist" aria-label="Views" @keydown=${rove}>
        ${views.map(
          ([name, view]) =>
            html`<button
              role="tab"
              aria-selected=${String(name === state.view)}
              aria-controls="view"
              @click=${() => app.set({view: name})}
            >
              ${view.title}
            </button>`,
        )}
      </nav>
      <div id="view" role="tabpanel" aria-label=${shown.title}>
        <h2>${asksOf(app, shown)}</h2>
        ${shown.draw(app, weights)}
      </div>
    </main>
    <p class="said" role="status" aria-live="polite">${state.said}</p>
    <footer>
      ${source.header.notes.map((note) => html`<p>${note}</p>`)}
      <p>
        Attention alone is not an explanation: a model can look at a word without using it. Made by
        regard ${source.header.version}; this page loads nothing from a network.
      </p>
      ${choice(
        "Colours",
        Object.entries({system: "of the system", light: "light", dark: "dark"}),
        state.theme,
        (theme) => app.set({theme}),
      )}
    </footer>
  `;
}

/**
 * A page that contains its model: the text of the address, or its own, is run before anything is
 * shown.
 */
async function openModel(element, stored) {
  element.textContent = "Unpacking the model\u2026";
  const engine = new Engine(stored.header);
  const state = fromAddress(location.hash);
  const own = {text: stored.header.model.text, ...PLAIN};
  window.regard = {
    run: (given) => engine.run(given),
    engine,
    shown: [],
    coloured: [],
  };
  let [run, busy] = [null, ""];
  try {
    const {from} = state; // the text of which a word was replaced
    const origin = from && (await engine.play(stored, {...own, text: from}));
    run = await engine.play(stored, {...own, ...state}, origin);
  } catch (error) {
    busy = error.message;
    for (const name of ["from", ...Object.keys(own)]) delete state[name];
    // what the address asks for cannot be computed; the sentence says so
    run = await engine.play(stored, own);
  }
  if (!(await engine.ready).checked)
    busy ||=
      "This address is not secure (https), so the browser could not check the hash of the model.";
  element.replaceChildren();
  const app = new App(element, run, state, engine);
  await app.set({busy});
  window.regard.opened = performance.now();
  return app;
}

async function open(element) {
  const stored = embedded();
  if (stored.header.model) return openModel(element, stored);
  element.replaceChildren();
  const app = new App(element, stored, fromAddress(location.hash));
  await app.draw();
  return app;
}

const element = document.getElementById("regard-explorer");
if (element)
  open(element).then(
    (app) => {
      addEventListener("resize", () => app.draw());
      addEventListener("message", ({source: sender, data}) => {
        if (sender === parent && parent !== window && data?.regard instanceof Object)
          app.set(kept(data.regard));
      });
    },
    (error) => {
      element.textContent = error.message;
      element.setAttribute("role", "alert");
      element.dataset.ready = "failed";
    },
  );
