// What the first screen offers in a page without a model: the word that decides, or the head that
// looks most at one word, and the mean of its layer.

import {headsOf} from "./data.js";
import {headName, probability, share} from "./shares.js";
import {LEAST, named} from "./stories.js";
import {isSpecial} from "./wordpairs.js";

const MOST = 2_000_000; // weights that are searched

/** Three things to press; null while heads are searched. */
export function offers(app, story) {
  return story.kind === "written" ? erasures(app, story) : heads(app, story);
}

/** The words without which the written word would lose most. */
function erasures(app, {given, without, word, own}) {
  if (!without) return [];
  return given.words
    .map((one, at) => ({one, at, p: without(at)?.p}))
    .filter(({p}) => p < own - LEAST)
    .sort((one, other) => one.p - other.p)
    .slice(0, 3)
    .map(({one, at, p}) => ({
      title: `Without “${named(one)}”`,
      says: `“${named(word)}” falls to ${probability(p)}`,
      on: ({changed}) => changed === at,
      press: () => given.press(at),
    }));
}

/** The head in which the chosen word looks most at another one. */
function heads(app, {chosen, word}) {
  const {attention, state, words} = app;
  const [layers, count, rows, columns] = attention.shape;
  if (layers * count * rows * columns > MOST) return [];
  const key = [state.kind, chosen].join("/");
  if (app.strongest?.key !== key || app.strongest.source !== app.source) search(app, key, chosen);
  if (!app.strongest.found) return null;
  const {layer, head, at, weight} = app.strongest.found;
  const other = words.columns[at];
  const isShown = (now) => Number(now.layer) === layer && now.head === head;
  const show = {
    title: `Show ${headName(layer, head)}`,
    says: `there “${named(word)}” looks most at “${named(other)}” (${share(weight)})`,
    on: isShown,
    press: () => app.set(isShown(state) ? {head: "mean"} : {layer, head}),
  };
  return [show];
}

async function search(app, key, row) {
  const asked = {key, source: app.source};
  app.strongest = asked;
  asked.found = await strongest(app, row);
  if (app.strongest === asked) app.drawFirst();
}

/** The head of the chosen kind of attention in which a word looks most at another one. */
async function strongest({source, state, attention, words}, row) {
  const same = attention.rows === attention.columns;
  let most = {weight: -1};
  for (const [layer, head] of headsOf(attention)) {
    const weights = (await source.head(state.kind, layer, head)).row(row);
    weights.forEach((weight, at) => {
      const other = !(same && at === row) && !isSpecial(words.columns[at]);
      if (other && weight > most.weight) most = {weight, layer, head, at};
    });
  }
  return most;
}
