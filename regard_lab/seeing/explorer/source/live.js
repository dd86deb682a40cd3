// What a changed text does: another sentence, words erased, heads switched off, scores scaled, other patterns. A page that
// contains its model computes it; a page of regard view asks its server; any other contains the erasure of each word.

import {html, nothing} from "lit-html";
import {signed} from "./colours.js";
import {choice} from "./controls.js";
import {Run, Source, largest} from "./data.js";

const READING = "Reading…";
const OFFERED = 12; // known words that are offered while typing
export const PLAIN = {erase: "", off: "", factor: "1", masks: ""}; // the state of a model as it was trained

/** The model of the page, in a thread of its own. */
export class Engine {
  constructor({model}, root = document) {
    const read = (id) => root.getElementById(id).textContent, [text, packed] = [read("regard-model"), read("regard-tensors")];
    const waiting = (this.waiting = new Map());
    this.model = model;
    this.words = JSON.parse(text).words ?? [];
    this.worker = new Worker(URL.createObjectURL(new Blob([read("regard-engine")], {type: "text/javascript"})));
    this.worker.onmessage = ({data: {id, answer, error}}) => {
      const {done, fail} = waiting.get(id);
      waiting.delete(id);
      if (error === undefined) done(answer);
      else fail(new Error(error));
    };
    this.ready = this.#ask("load", {text, packed, digest: model.digest});
    this.ready.catch(() => {}); // whoever asks next is told
    this.last = 0;
  }

  #ask(what, given) {
    return new Promise((done, fail) => {
      const id = (this.last = (this.last ?? 0) + 1);
      this.waiting.set(id, {done, fail});
      this.worker.postMessage({...given, id, ask: what});
    });
  }

  /** What the model makes of a question {source, erase, off, scale, patterns}: "run", "lens" or "written". */
  async ask(what, given) {
    await this.ready;
    return this.#ask(what, given);
  }

  /** The same as plain values, for tests and for the console. */
  async run(given) {
    const {target, probabilities, text, unknown, attention} = await this.ask("run", given);
    const nested = ([size, ...rest], weights) => Array.from({length: size}, (_, at) => {
      const part = weights.subarray(at * weights.length / size, (at + 1) * weights.length / size);
      return rest.length ? nested(rest, part) : part[0];
    });
    const maps = Object.entries(attention).map(([kind, {shape, weights}]) => [kind, nested(shape, weights)]);
    return {target, probabilities, text, unknown, attention: Object.fromEntries(maps)};
  }

  /** The run of a state of the page, and that of the text without changes. */
  async play(stored, state) {
    const {changed, ...given} = questionOf(state), plain = new Run(stored, given, await this.ask("run", given));
    if (!Object.keys(changed).length) return plain;
    const question = {...given, ...changed}, against = plain.answer.follows === undefined ? plain.answer.ids.target : [plain.answer.follows];
    return new Run(stored, question, await this.ask("run", {...question, against}), plain);
  }
}

const numbers = (text) => text.split(".").map(Number);

/** What a state asks of the engine: its text, and what is changed. */
function questionOf({text, erase, off, factor, masks}) {
  const heads = off.split(",").filter(Boolean).map((one) => one.split(".")).map(([kind, layer, head]) => [kind, Number(layer), Number(head)]);
  const patterns = Object.fromEntries(masks.split(";").filter((one) => one.includes(":")).map((one) => one.split(/:(.*)/s).map((part) => part.trim())));
  return {source: text, changed: {
    ...(erase ? {erase: numbers(erase)} : {}), ...(heads.length ? {off: heads} : {}),
    ...(Number(factor) !== 1 ? {scale: Number(factor)} : {}), ...(Object.keys(patterns).length ? {patterns} : {}),
  }};
}

/** Play: a newer change replaces those that wait; words are shown before the lens is computed. */
export async function play(app, changes, began = performance.now()) {
  Object.assign(app.state, changes);
  app.played = app.state;
  if (app.playing) return (app.waits = began);
  app.playing = true;
  do {
    app.waits = null;
    try {
      const run = app.state.text.trim() ? await app.engine.play(app.stored, app.state) : null;
      app.state.busy = run ? "" : "The sentence is empty; write one.";
      if (run && app.waits === null) await app.replace(run);
      window.regard.shown.push(performance.now() - began);
    } catch (error) {
      app.state.busy = error.message;
    }
    began = app.waits ?? began;
  } while (app.waits !== null);
  app.playing = false;
  await app.draw();
  return lens(app, began);
}

/** Compute what the chosen word depends on, unless the page knows it; a newer question ends it. */
export async function lens(app, began = performance.now()) {
  const {source} = app, {header} = source, place = Number(app.state.place ?? header.chosen);
  if (!(source instanceof Run) || header.explained[place] || app.asking === source) return;
  app.asking = source;
  const answer = await app.engine.ask("lens", {...source.given, place, others: source.others(place)}).catch(() => null);
  app.asking = null;
  if (app.source !== source || app.playing) return;
  if (!answer) return lens(app, began);
  source.explain(place, answer);
  header.explained[place] ??= [];
  await app.draw();
  window.regard.coloured.push(performance.now() - began);
}

const flipped = (list, one, by) => {
  const all = list ? list.split(by) : [];
  return (all.includes(one) ? all.filter((other) => other !== one) : [...all, one]).join(by);
};

/** Whether a head is switched off, and a button that switches it. */
export function headSwitch(app) {
  const {state: {layer, head, off}, attention} = app;
  if (!app.engine || head === "mean") return nothing;
  const name = `${attention.kind}.${layer}.${head}`;
  return html`<button aria-pressed=${String(off.split(",").includes(name))} @click=${() => play(app, {off: flipped(off, name, ",")})}>Switched off</button>`;
}

/** The text, what is written, and what is changed, above every view. */
export function playForm(app) {
  const {state, source: {header, answer, base}, engine} = app, {texts, model} = header, shown = (base ?? app.source).header.texts;
  const words = texts.source ?? texts.text, gone = state.erase ? numbers(state.erase) : [], unknown = answer.unknown ?? [];
  const changed = Object.keys(PLAIN).some((name) => String(state[name]) !== PLAIN[name]);
  const light = (text, at) => { app.lit = at === null ? null : {text, at}; app.light?.(); };
  const hover = (text, at) => ({enter: () => light(text, at), leave: () => light(text, null)});
  const word = (text, at, label, pressed, click) => {
    const {enter, leave} = hover(text, at);
    return html`<button class="word ${text === "target" ? "" : "erased"}" aria-pressed=${String(pressed)} @click=${click} @pointerenter=${enter} @pointerleave=${leave}
      @focus=${enter} @blur=${leave}><bdi>${label}</bdi></button>`;
  };
  const own = texts.source ? "source" : "text", next = (likeliest) => likeliest.map(([one, p]) => html`<bdi>${one}</bdi> ${p.toFixed(3)} `);
  return html`<form class="live" @submit=${(event) => event.preventDefault()}>
      <label for="sentence">${model.label}</label>
      <input id="sentence" name="text" .value=${state.text} maxlength="1000" autocomplete="off" spellcheck="false" list="known"
        @input=${(event) => play(app, {text: event.target.value, erase: "", place: undefined}, event.timeStamp)} />
      <datalist id="known">${offered(state.text, engine.words).map((text) => html`<option value=${text}></option>`)}</datalist>
      <span role="alert">${state.busy}</span></form>
    ${unknown.length ? html`<p class="unknown" role="status">Not in the training of this model: <bdi>${unknown.join(", ")}</bdi>; what it makes of such words is a guess.</p>` : nothing}
    <div class="played"><span>reads</span><div class="words" role="group" aria-label="Words that are read; press one to erase it">
      ${words.map((one, at) => answer.erasable.includes(at) ? word(own, at, shown[own][at] ?? one, gone.includes(at), () => play(app, {erase: flipped(state.erase, String(at), ".")}))
        : html`<span class="word plain"><bdi>${one}</bdi></span>`)}</div>
    ${texts.target ? html`<span>writes</span><div class="words" role="group" aria-label="Words that are written; press one to explain it">
      ${texts.target.map((one, at) => word("target", at, one, at === Number(state.place ?? header.chosen), () => app.set({row: at, place: at})))}</div>`
      : answer.follows !== undefined ? html`<span>next</span><p>${next(answer.likeliest.at(-1))}</p>`
      : answer.likeliest.length ? html`<span>masked</span><p>${answer.likeliest.map((one) => html`${next(one)}<br />`)}</p>`
      : answer.target.length ? html`<span>class</span><p>${next(answer.target.map((one, at) => [one, answer.probabilities[at]]))}</p>` : nothing}</div>
    <details class="tweaks" ?open=${changed}><summary>Change the model${changed ? " (changed)" : ""}</summary><div class="bar">
      <label class="choice"><span>Scores \u00d7 ${Number(state.factor).toFixed(2)}</span><input type="range" min="-3" max="3" step="0.1" .value=${String(Math.log2(state.factor))}
        aria-label="Factor of all attention scores" @input=${(event) => play(app, {factor: (2 ** event.target.value).toFixed(3).replace(/\.?0+$/, "")}, event.timeStamp)} /></label>
      ${model.kinds.map(({kind, name}) => html`<label class="choice"><span>Pattern, ${name.toLowerCase()}</span><input size="22" placeholder=${model.patterns[kind]}
        .value=${questionOf(state).changed.patterns?.[kind] ?? ""} @change=${(event) => play(app, {masks: withMask(state.masks, kind, event.target.value)})} /></label>`)}
      ${state.off ? html`<span class="badge">off: ${state.off.split(",").join(", ")}</span>` : nothing}
      <button type="button" ?disabled=${!changed} @click=${() => play(app, PLAIN)}>As trained</button></div></details>`;
}

function withMask(masks, kind, text) {
  const others = masks.split(";").filter((one) => one && !one.startsWith(`${kind}:`));
  return [...others, ...(text.trim() ? [`${kind}:${text.trim().replaceAll(";", "")}`] : [])].join(";");
}

/** The text with its last word completed to words that the training had. */
function offered(text, words) {
  const [, before, last] = text.match(/^(.*?)([\p{L}\p{N}']+)$/su) ?? [null, "", ""], found = [];
  for (let at = 0; last && at < words.length && found.length < OFFERED; at += 1)
    if (words[at].length > last.length && words[at].toLowerCase().startsWith(last.toLowerCase())) found.push(`${before}${words[at]}`);
  return found;
}

export function liveForm(app) {
  const {live} = app.source.header;
  if (!live.read) return nothing;
  return html`<form class="live" @submit=${(event) => read(app, event)}>
    <label for="sentence">${live.label}</label>
    <input id="sentence" name="text" .value=${live.text} maxlength="4000" autocomplete="off" />
    <button ?disabled=${app.state.busy === READING}>Read</button>
    <span role="alert">${app.state.busy}</span>
  </form>`;
}

/** The answer of the local server; an error has a sentence that can be shown. */
export async function ask(what, question) {
  let response;
  try {
    response = await fetch(what, {
      method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(question),
    });
  } catch {
    throw new Error("The server has ended; start it again.");
  }
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

async function read(app, event) {
  event.preventDefault();
  const text = new FormData(event.target).get("text");
  if (!text.trim()) {
    app.set({busy: "The sentence is empty; write one."});
    return;
  }
  app.set({busy: READING});
  try {
    const answer = await ask("read", {text});
    app.state.busy = "";
    await app.replace(new Source(answer.header, answer.arrays));
  } catch (error) {
    app.set({busy: error.message});
  }
}

/** What each kind of model is asked while a word of its text changes. */
const KINDS = {
  written: {
    of: "source", one: "Written word", each: "Each written word", table: "Written words", moves: "",
    says: "Probabilities are among all words, after the words that were written before; of a word in several sub-words the product.",
    ends: "The translations are written by greedy search.",
  },
  next: {
    of: "text", one: "Next word", each: "Each next word", table: "Next words", moves: "How the probability of each next word moves",
    says: "Probabilities are among all words, after the words that were read before; of a word in several sub-words the product.",
    ends: "Words up to the changed one were predicted before it was read, so their probability stays.",
  },
  masked: {
    of: "text", one: "Masked word", each: "Each masked word", table: "Masked words", moves: "How the probability of what was most probable moves",
    says: "Probabilities are among all words. Each masked word is named by what is most probable there in the text as it is.", ends: "",
  },
  vectors: {
    of: "text", one: "Word", each: "Each word", table: "Words", moves: "How far the vector of each word stays where it was",
    says: "The cosine is between the vectors that the last layer gives a word before and after: 1 is the same direction. Of a word in several sub-words their mean is taken.",
    ends: "The model predicts no words here, so its vectors are compared.",
  },
};

/** What "What if" shows: the words that are changed, and those that are followed: their numbers, before and now. */
function changing(app) {
  const {header} = app.source;
  const {changes: {follows = "words", unchanged, erased}} = header, {texts} = (app.source.base ?? app.source).header; // stored examples name none
  const kind = follows !== "words" ? follows : texts.target ? "written" : "next";
  const follow = {
    written: () => texts.target, next: () => [...texts.text.slice(1), unchanged.likeliest.at(-1)[0][0]],
    masked: () => unchanged.likeliest.map(([[best]]) => best), vectors: () => texts.text,
  }[kind]();
  const first = kind === "next" ? 1 : 0; // before the first word of a text nothing was predicted
  const places = Object.keys(erased).map(Number), all = app.source.header.changes.now;
  const chosen = places.includes(app.state.changed) ? app.state.changed : null;
  const written = followed(app, {kind, first, places, chosen, last: follow.length - 1});
  const named = (at) => kind === "masked" ? `${follow[at]} (masked place ${at + 1})`
    : first && at === follow.length - 1 ? `${follow[at]} (what follows)` : follow[at];
  const numbers = (one) => (kind === "vectors" ? one.similarities : one.probabilities);
  const left = (at) => numbers(erased[at])[written];
  const moving = places.filter((at) => (kind === "next" ? at <= written : kind !== "vectors" || at !== written));
  const among = moving.length ? moving : places;
  const place = chosen ?? among[largest(among.map((at) => -left(at)), 1)[0]]; // at first the word that matters most
  return {kind, ...KINDS[kind], source: texts.source ?? texts.text, follow, written, named, numbers, unchanged, erased, places, place, all};
}

/** The index of the word whose number is told. Until one is chosen it is one that the changed word can move: words up to
 *  the changed one are predicted before it is read. */
function followed({state}, {kind, first, places, chosen, last}) {
  const within = (at) => Math.min(Math.max(Number(at), 0), last);
  if (kind === "written") return within(state.row);
  if (state.next !== undefined) return within(state.next);
  if (kind !== "next") return within(kind === "masked" ? 0 : state.row);
  const shown = state.row - first; // the word that the other views show, or what follows the text
  return Math.max(shown >= Math.min(...places) ? within(shown) : last, chosen ?? 0); // the word after the changed one is at its index
}

/** "What if a word were missing, or another one?" */
export function changeView(app) {
  const {header} = app.source;
  const found = changing(app);
  const {kind, source, follow, written, named, numbers, unchanged, erased, places, place, all} = found;
  const swap = app.swap?.source === app.source && app.swap.place === place ? app.swap : null;
  const now = all ?? swap?.answer ?? erased[place];
  if (!now) return html`<h2>What if a word were missing?</h2><p class="hint">${app.engine && app.source.answer.erasable.length ? "Computing…" : `The ${found.of} has no word that can be erased.`}</p>`;
  const row = (word, one, at) => kind === "vectors" ? [word, [], numbers(one)[at], []]
    : [word, [numbers(unchanged)[at]], numbers(one)[at], [one.likeliest[at].map(([other, p]) => `${other} ${p.toFixed(2)}`).join(", ")]];
  const heads = (first) => kind === "vectors" ? [first, "Cosine"] : [first, "Before", "Now", "Most probable now"];
  return html`
    <h2>${app.engine ? "What if it were changed?" : "What if a word were missing, or another one?"}</h2>
    <p class="hint">${app.engine ? "Press words above to erase them, switch heads off, or change the model." : `Choose a word of the ${found.of}:`}</p>
    ${app.engine ? nothing : html`<div class="words" role="group" aria-label="Words of the ${found.of}">
      ${source.map((word, at) => places.includes(at)
        ? html`<button class="word" aria-pressed=${at === place ? "true" : "false"} @click=${() => choose(app, at)}><bdi>${word}</bdi></button>`
        : html`<span class="word plain"><bdi>${word}</bdi></span>`)}
    </div>`}
    <div class="bar">
      ${app.engine ? nothing : header.live?.change ? html`<form class="live swap" @submit=${(event) => change(app, event, place)}>
        <label for="swap">Another word for “<bdi>${source[place]}</bdi>”</label>
        <input id="swap" name="word" maxlength="60" autocomplete="off" />
        <button ?disabled=${swap?.busy === true}>Replace</button>
        <button type="button" @click=${() => choose(app, place)}>Erase</button>
        <span role="alert">${swap?.said ?? nothing}</span></form>`
        : header.live ? nothing : html`<p class="hint">This page stands alone: it contains the erasure of each word. On a local page, as <code>regard view</code>
          serves it, words can also be replaced.</p>`}
      ${choice(found.one, follow.map((_, at) => [at, named(at)]), written,
        (row) => app.set(kind === "written" ? {row} : {next: row}))}</div>
    <section class="panel">
      <p class="summary" data-change>${telling(found, now, place)}</p>
      ${unchanged.translation.length ? html`<h3>Written from the source as it is</h3><p class="sentence"><bdi>${unchanged.translation.join(" ")}</bdi></p>
        ${now.translation ? html`<h3>${all ? "Written now" : now.word ? html`Written with “<bdi>${now.word}</bdi>”` : html`Written without “<bdi>${source[place]}</bdi>”`}</h3><p class="sentence">${marked(unchanged.translation, now.translation)}</p>` : nothing}` : nothing}
      ${found.moves ? html`<h3>${found.moves}</h3>${moves(found, now)}` : nothing}
    </section>
    <div class="columns">
      <section class="panel"><h3>${found.each}</h3>${table(found.table, heads("Word"), follow.map((_, at) => row(named(at), now, at)), written)}</section>
      ${all ? nothing : html`<section class="panel"><h3>“<bdi>${named(written)}</bdi>” without each word</h3>${table("Erasures", heads("Without"),
        places.map((at) => row(source[at], erased[at], written)), places.indexOf(place))}</section>`}
    </div>
    <p class="hint">${found.says} An erased word keeps its place and has the mean embedding of the ${kind === "written" ? "sentence" : "text"}'s words. ${found.ends}</p>
  `;
}

function telling({kind, source, follow, named, numbers, written, unchanged, all}, now, place) {
  const after = numbers(now)[written];
  const how = all ? "As changed" : now.word ? `With “${now.word}” in the place of “${source[place]}”` : `Without “${source[place]}”`;
  if (kind === "vectors") {
    const others = follow.map((_, at) => at).filter((at) => at !== place);
    const most = others[largest(others.map((at) => -numbers(now)[at]), 1)[0]];
    const also = most === undefined ? "" : most === written ? "; that of no other word moves more"
      : `; of the other words that of “${named(most)}” moves most (${numbers(now)[most].toFixed(3)})`;
    return `${how}, the vector of “${named(written)}” has a cosine of ${after.toFixed(3)} with the one before${also}.`;
  }
  if (kind === "next" && !all && written < place) return `The probability of “${named(written)}” stays ${after.toFixed(3)}: the model predicts it before it reads “${source[place]}”.`;
  const [likeliest, chance] = now.likeliest[written][0];
  const before = numbers(unchanged)[written];
  return `${how}, the probability of “${named(written)}” is ${digits(after, before)} instead of ${digits(before, after)}${after < chance ? `; most probable there is “${likeliest}” (${chance.toFixed(3)})` : ""}.`;
}

/** A probability with three decimals, or with six if it does not differ from the other by three. */
function digits(one, other) {
  return one.toFixed(3) === other.toFixed(3) ? one.toFixed(6) : one.toFixed(3);
}

/** Each followed word with the change of its number; the sign says the direction, not the colour alone. */
function moves({kind, follow, named, numbers, unchanged}, now) {
  const by = follow.map((_, at) => numbers(now)[at] - numbers(unchanged)[at]);
  const most = Math.max(...by.map(Math.abs), 0.1); // small moves stay pale
  const told = (at) => kind === "vectors" ? numbers(now)[at].toFixed(3) : by[at] === 0 ? "0" : Math.abs(by[at]) < 0.0005 ? "0.000" : `${by[at] < 0 ? "−" : "+"}${Math.abs(by[at]).toFixed(3)}`;
  return html`<div class="words" data-moves>${follow.map((_, at) => html`<span class="scored"><span class="word" .style=${signed(by[at], most)}><bdi>${named(at)}</bdi></span>
    <small>${told(at)}</small></span>`)}</div>`;
}

/** A translation in which words that the other one does not have are marked, not by colour alone. */
function marked(before, now) {
  const known = new Set(before);
  return now.map((word) => (known.has(word) ? html`<bdi>${word}</bdi> ` : html`<mark><bdi>${word}</bdi></mark> `));
}

function table(label, heads, rows, chosen) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table>
    <thead><tr>${heads.map((head) => html`<th scope="col">${head}</th>`)}</tr></thead>
    <tbody>${rows.map(([word, before, now, likeliest], at) => html`<tr class=${at === chosen ? "chosen" : ""}><th scope="row"><bdi>${word}</bdi></th>
      ${before.map((one) => html`<td>${one.toFixed(3)}</td>`)}<td><meter min="0" max="1" value=${String(now)} aria-label=${heads.length > 2 ? "probability" : "cosine"}></meter> ${now.toFixed(3)}</td>
      ${likeliest.map((one) => html`<td><bdi>${one}</bdi></td>`)}</tr>`)}</tbody></table></div>`;
}

function choose(app, place) {
  app.swap = null;
  app.state.changed = place; // the word that is followed may depend on it
  const found = changing(app);
  app.set({changed: place, said: telling(found, found.erased[place], place)});
}

async function change(app, event, place) {
  event.preventDefault();
  const {source} = app;
  const word = new FormData(event.target).get("word");
  app.swap = {source, place, busy: true, said: "Computing…"};
  app.draw();
  let swap;
  try {
    swap = {source, place, answer: await ask("change", {text: source.header.live.text, place, word}), said: ""};
  } catch (error) {
    swap = {source, place, said: error.message};
  }
  if (app.source !== source || app.swap?.place !== place) return; // another sentence or word was chosen meanwhile
  app.swap = swap;
  app.set({said: swap.answer ? telling(changing(app), swap.answer, place) : swap.said});
}
