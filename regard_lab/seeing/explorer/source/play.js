// Play: what a changed text or model asks of the engine, and that its answer is shown.

import {EMPTY} from "./state.js";

/**
 * Ask the engine about a changed state and show its answer; a newer change replaces those that
 * wait. What the chosen word depends on is asked by the screen that shows the answer.
 */
export async function play(app, changes, began = performance.now()) {
  Object.assign(app.state, changes);
  if (app.playing) return (app.waits = began);
  app.playing = true;
  do {
    app.waits = null;
    app.began = began;
    try {
      const origin = app.follows === null ? null : app.origin;
      const asked = app.state.text.trim();
      const run = asked ? await app.engine.play(app.stored, app.state, origin) : null;
      app.state.busy = run ? "" : EMPTY;
      if (run && app.waits === null) await app.replace(run);
      window.regard.shown.push(performance.now() - began);
    } catch (error) {
      app.state.busy = error.message;
    }
    began = app.waits ?? began;
  } while (app.waits !== null);
  app.playing = false;
  return app.draw();
}
