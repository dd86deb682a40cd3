// Play: what changes of the text and of the model ask of the engine, and what each word and head
// does.

import {tryOut} from "./experiments.js";
import {Run} from "./run.js";
import {numbers} from "./thread.js";

/** Play: a newer change replaces those that wait; words are shown before the lens is computed. */
export async function play(app, changes, began = performance.now()) {
  Object.assign(app.state, changes);
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

const NONE = {lenses: [], changes: []};

export const chosenPlace = ({state, source}) => Number(state.place ?? source.header.chosen);

/** The places of the words that are erased. */
export const gone = ({erase}) => (erase ? numbers(erase) : []);

/** Compute what the chosen word depends on, unless the page knows it; a newer question ends it. */
export async function lens(app, began = performance.now()) {
  const {source} = app;
  const {header} = source;
  const place = chosenPlace(app);
  if (!(source instanceof Run) || app.asking) return undefined;
  if (header.explained[place]) return tryOut(app);
  app.asking = source;
  let answer = NONE;
  try {
    answer = await app.engine.ask("lens", {...source.given, place, others: source.others(place)});
  } catch (error) {
    app.state.busy = error.message;
  }
  app.asking = null;
  if (app.source !== source || app.playing) return app.playing ? undefined : lens(app, began);
  if (!answer) return lens(app, began);
  source.explain(place, answer);
  header.explained[place] ??= [];
  await app.draw();
  window.regard.coloured.push(performance.now() - began);
  return tryOut(app);
}

/**
 * Compute which heads the chosen word needs, unless the page knows it; a newer question ends it.
 */
export async function effects(app) {
  const {source} = app;
  const place = chosenPlace(app);
  if (!(source instanceof Run) || source.effects?.place === place) return;
  if (source.effects) source.measure(null, {kinds: {}}); // those of another word
  if (app.asking || app.playing) return;
  app.asking = source;
  let found = {kinds: {}};
  try {
    found = await app.engine.ask("effects", {...source.given, place, others: source.others(place)});
  } catch (error) {
    app.state.busy = error.message;
  }
  app.asking = null;
  if (found) source.measure(place, found);
  if (app.source === source && !app.playing) await app.draw();
}
