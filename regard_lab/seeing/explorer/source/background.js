// What a page with a model computes while nobody waits for it: what the chosen word depends on,
// what each head does for it, and experiments. One question is asked at a time, and a newer one
// ends it.

import {askedOf, experimentsOf, probe, search} from "./experiments.js";
import {Run} from "./run.js";
import {chosenPlace} from "./state.js";
import {kindOf} from "./stories.js";

const NONE = {lenses: [], changes: []};

/**
 * Compute what the chosen word depends on, then experiments, unless the page knows them. The first
 * screen asks for it whenever it is drawn and something is missing.
 */
export async function explain(app) {
  const {source} = app;
  const {header} = source;
  const place = chosenPlace(app);
  if (!(source instanceof Run) || app.asking) return undefined;
  if (header.explained[place]) return tryOut(app);
  const began = app.began ?? performance.now();
  app.asking = source;
  let answer = NONE;
  try {
    answer = await app.engine.ask("lens", {...source.given, place, others: source.others(place)});
  } catch (error) {
    app.state.busy = error.message;
  }
  app.asking = null;
  if (app.playing) return undefined;
  if (app.source !== source || !answer) return explain(app);
  source.explain(place, answer);
  header.explained[place] ??= [];
  app.began = null;
  await app.draw();
  window.regard.coloured.push(performance.now() - began);
  return tryOut(app);
}

/** What each word does for a prediction, and experiments. */
async function tryOut(app) {
  const {source, origin} = app;
  const kind = kindOf(app);
  const key = keyOf(app);
  const asked = askedOf(app);
  const known = experimentsOf(app) !== null;
  const probes = kind !== "written" && kind !== "vectors" && !source.probed;
  if (app.asking || app.playing || (known && !probes)) return;
  app.asking = source;
  const stops = () => app.source !== source || app.playing || keyOf(app) !== key;
  try {
    if (probes) {
      await probe(app, source, kind, stops);
      if (!stops()) await app.draw();
    }
    if (!stops() && !known) {
      const list = await search(app, kind, stops);
      if (!stops()) app.tried = {origin, asked, list};
    }
  } catch (error) {
    app.state.busy = error.message;
    if (!known) app.tried = {origin, asked, list: []}; // the same would fail again
  }
  const stopped = stops();
  app.asking = null;
  if (app.playing) return;
  await app.draw();
  if (stopped) await explain(app); // of what is shown by now
}

const keyOf = ({state, source}) =>
  [source.given.source, state.place ?? source.header.chosen, state.pick, state.row].join("/");

/** Compute what each head does for the chosen word, unless the page knows it. */
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
