// What a reader has changed, in order, so that it can be taken back.

import {play} from "./play.js";
import {PLAIN, chosenPlace} from "./state.js";

const KEPT = ["text", ...Object.keys(PLAIN)];

/** A list in a text, with one entry more, or without it. */
export function flipped(list, one, by) {
  const all = list ? list.split(by) : [];
  return (all.includes(one) ? all.filter((other) => other !== one) : [...all, one]).join(by);
}

/** The text as it was typed, and the model as it was trained. */
export const untouchedOf = ({origin}) => ({...PLAIN, text: origin.given.source});

/** Whether a text or its model is changed. */
export function isChanged({state, origin}) {
  return (
    Object.keys(PLAIN).some((name) => String(state[name]) !== PLAIN[name]) ||
    (origin !== undefined && state.text !== origin.given.source)
  );
}

/**
 * Change the text or the model by a press; the chosen word is followed through the change. What a
 * slider or a pattern changes is no step of its own: it is taken back with the press before it.
 */
export function act(app, changes) {
  const before = Object.fromEntries(KEPT.map((name) => [name, app.state[name]]));
  app.past.push({...before, place: chosenPlace(app)});
  app.field = null;
  return play(app, changes);
}

/** Take the last change back; what a link had changed is taken back at once. */
export function undo(app) {
  if (!isChanged(app)) return undefined;
  const last = app.past.pop() ?? untouchedOf(app);
  const {place, ...before} = last;
  app.follows = place ?? "words";
  app.field = null;
  return play(app, before);
}
