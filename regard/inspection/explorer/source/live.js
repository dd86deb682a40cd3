// What a changed text does: the form for another sentence, and words of the source that are erased or replaced. A local
// page asks its server; a page that stands alone contains the erasure of each word.

import {html, nothing} from "lit-html";
import {choice} from "./controls.js";
import {Source} from "./data.js";

export function liveForm(app) {
  const {live} = app.source.header;
  if (!live.read) return nothing;
  return html`<form class="live" @submit=${(event) => read(app, event)}>
    <label for="sentence">${live.label}</label>
    <input id="sentence" name="text" .value=${live.text} maxlength="4000" autocomplete="off" />
    <button ?disabled=${app.state.busy !== ""}>Read</button>
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
    throw new Error("The server has ended; start regard view again.");
  }
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

async function read(app, event) {
  event.preventDefault();
  const text = new FormData(event.target).get("text");
  app.set({busy: "Reading…"});
  try {
    const answer = await ask("read", {text});
    app.state.busy = "";
    await app.replace(new Source(answer.header, answer.arrays));
  } catch (error) {
    app.set({busy: error.message});
  }
}

/** "What if a word were missing, or another one?" */
export function changeView(app) {
  const {header} = app.source;
  const {unchanged, erased} = header.changes;
  const places = Object.keys(erased).map(Number);
  const {source, target} = header.texts;
  const written = Math.min(app.state.row, target.length - 1);
  const chances = (at) => erased[at].probabilities[written];
  const place = places.includes(app.state.changed) ? app.state.changed // at first the word that matters most
    : places.reduce((least, at) => (chances(at) < chances(least) ? at : least), places[0]);
  const swap = app.swap?.source === app.source && app.swap.place === place ? app.swap : null;
  const now = swap?.answer ?? erased[place];
  if (place === undefined) return html`<h2>What if a word were missing?</h2><p class="hint">The source has no word that can be erased.</p>`;
  return html`
    <h2>What if a word were missing, or another one?</h2>
    <p class="hint">Choose a word of the source:</p>
    <div class="words" role="group" aria-label="Words of the source">
      ${source.map((word, at) => places.includes(at)
        ? html`<button class="word" aria-pressed=${at === place ? "true" : "false"} @click=${() => choose(app, at)}><bdi>${word}</bdi></button>`
        : html`<span class="word plain"><bdi>${word}</bdi></span>`)}
    </div>
    <div class="bar">
      ${header.live?.change ? html`<form class="live swap" @submit=${(event) => change(app, event, place)}>
        <label for="swap">Another word for “<bdi>${source[place]}</bdi>”</label>
        <input id="swap" name="word" maxlength="60" autocomplete="off" />
        <button ?disabled=${swap?.busy === true}>Replace</button>
        <button type="button" @click=${() => choose(app, place)}>Erase</button>
        <span role="alert">${swap?.said ?? nothing}</span></form>`
        : html`<p class="hint">This page stands alone: it contains the erasure of each word. With <code>regard view</code> words can
          also be replaced.</p>`}
      ${choice("Written word", target.map((word, at) => [at, word]), written, (row) => app.set({row}))}</div>
    <section class="panel">
      <p class="summary" data-change>${telling(header, now, place, written)}</p>
      <h3>Written from the source as it is</h3><p class="sentence"><bdi>${unchanged.translation.join(" ")}</bdi></p>
      <h3>${now.word ? html`Written with “<bdi>${now.word}</bdi>”` : html`Written without “<bdi>${source[place]}</bdi>”`}</h3>
      <p class="sentence">${marked(unchanged.translation, now.translation)}</p>
    </section>
    <div class="columns">
      <section class="panel"><h3>Each written word</h3>${table("Written words", ["Word", "Before", "Now", "Most probable now"], target.map((word, at) =>
        [word, unchanged.probabilities[at], now.probabilities[at], now.likeliest[at].map(([other, p]) => `${other} ${p.toFixed(2)}`).join(", ")]), written)}</section>
      <section class="panel"><h3>“<bdi>${target[written]}</bdi>” without each word</h3>${table("Erasures", ["Without", "Before", "Now", "Most probable now"], places.map((at) =>
        [source[at], unchanged.probabilities[written], erased[at].probabilities[written], erased[at].likeliest[written].map(([other, p]) => `${other} ${p.toFixed(2)}`).join(", ")]), places.indexOf(place))}</section>
    </div>
    <p class="hint">Probabilities are among all words, after the words that were written before; of a word in several sub-words the
      product. An erased word keeps its place and has the mean embedding of the sentence's words, as in the Reader. The
      translations are written by greedy search.</p>
  `;
}

function telling({texts, changes}, now, place, written) {
  const [before, after] = [changes.unchanged.probabilities[written], now.probabilities[written]];
  const how = now.word ? `With “${now.word}” in the place of “${texts.source[place]}”` : `Without “${texts.source[place]}”`;
  const [likeliest, chance] = now.likeliest[written][0];
  return `${how}, the probability of “${texts.target[written]}” is ${after.toFixed(3)} instead of ${before.toFixed(3)}${after < chance ? `; most probable there is “${likeliest}” (${chance.toFixed(3)})` : ""}.`;
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
      <td>${before.toFixed(3)}</td><td><meter min="0" max="1" value=${String(now)} aria-label="probability"></meter> ${now.toFixed(3)}</td>
      <td><bdi>${likeliest}</bdi></td></tr>`)}</tbody></table></div>`;
}

function choose(app, place) {
  app.swap = null;
  const {header} = app.source;
  const written = Math.min(app.state.row, header.texts.target.length - 1);
  app.set({changed: place, said: telling(header, header.changes.erased[place], place, written)});
}

async function change(app, event, place) {
  event.preventDefault();
  const {source} = app;
  const word = new FormData(event.target).get("word");
  app.swap = {source, place, busy: true, said: "Translating…"};
  app.draw();
  let swap;
  try {
    swap = {source, place, answer: await ask("change", {text: source.header.live.text, place, word}), said: ""};
  } catch (error) {
    swap = {source, place, said: error.message};
  }
  if (app.source !== source || app.swap?.place !== place) return; // another sentence or word was chosen meanwhile
  app.swap = swap;
  const {header} = source;
  app.set({said: swap.answer ? telling(header, swap.answer, place, Math.min(app.state.row, header.texts.target.length - 1)) : swap.said});
}
