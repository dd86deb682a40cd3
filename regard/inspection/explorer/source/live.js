// What a local page asks its server for: to read another sentence with the same model.

import {html, nothing} from "lit-html";
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

async function read(app, event) {
  event.preventDefault();
  const text = new FormData(event.target).get("text");
  app.set({busy: "Reading…"});
  try {
    const response = await fetch("read", {
      method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify({text}),
    });
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error);
    app.state.busy = "";
    await app.replace(new Source(answer.header, answer.arrays));
  } catch (error) {
    app.set({busy: error instanceof TypeError ? "The server has ended; start regard view again." : error.message});
  }
}
