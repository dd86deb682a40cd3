// A page of the local server: its form for another sentence, and what it asks.

import {html} from "lit-html";
import {Source} from "./data.js";
import {textForm} from "./form.js";
import {EMPTY} from "./state.js";

const READING = "Reading\u2026";

export function liveForm(app) {
  const {label, text} = app.source.header.live;
  const button = html`<button ?disabled=${app.state.busy === READING}>Read this text</button>`;
  return textForm(label, text, {submit: (event) => read(app, event), button});
}

/** The answer of the local server about a text; an error has a sentence that can be shown. */
export async function ask(what, text) {
  const response = await fetch(what, {
    method: "POST",
    headers: {"Content-Type": "application/json"},
    body: JSON.stringify({text}),
  }).catch(() => {
    throw new Error("The server has ended; start it again.");
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

export async function read(app, event) {
  event.preventDefault();
  const text = new FormData(event.target).get("text");
  if (!text.trim()) {
    app.set({busy: EMPTY});
    return;
  }
  app.set({busy: READING});
  try {
    const answer = await ask("read", text);
    app.state.busy = "";
    await app.replace(new Source(answer.header, answer.arrays));
  } catch (error) {
    app.set({busy: error.message});
  }
}
