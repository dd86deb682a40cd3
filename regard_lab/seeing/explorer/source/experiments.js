// Three experiments that a reader can press, found by trying them on the model: the word that is
// replaced, the word that is erased, and the head that is switched off, each time the one that
// moves the prediction most.

import {headsOf} from "./data.js";
import {top} from "./engine/numbers.js";
import {act, isChanged, untouchedOf} from "./past.js";
import {headName, probability, share} from "./shares.js";
import {chosenPlace, gone} from "./state.js";
import {LEAST, OPTIONS, kindOf, named, options, outcomes} from "./stories.js";
import {differences, exchanged, followed, readOf} from "./wordpairs.js";

const SURE = 0.98; // the least probability of a word of a translation that is worth showing
const COUNT = 3; // experiments that are shown
const LITTLE = 3; // words that differ: the replaced one, its article, and the one asked about
const LONG = 4; // letters of a word that says what a text is about
const PLACES = 2; // words that are replaced
const RUNS = 2; // places where a translation may differ after one word was replaced
const WORDS = 40; // words that are erased one by one
const HEADS = 160; // heads that are switched off one by one

/**
 * The experiments that are shown; null while those of the word that is chosen in the unchanged text
 * are to be found.
 */
export function experimentsOf(app) {
  const {tried, origin} = app;
  return tried?.origin === origin && (isChanged(app) || tried.asked === askedOf(app))
    ? tried.list
    : null;
}

/** The word that experiments are about: the one that is chosen in the unchanged text. */
export function askedOf(app) {
  const kind = kindOf(app);
  if (kind === "vectors") return app.state.row;
  if (kind === "written") return isChanged(app) ? app.origin.header.chosen : chosenPlace(app);
  return isChanged(app) ? 0 : app.state.pick;
}

/** What the model predicts without each word of its text, one after the other. */
export async function probe(app, run, kind, stops) {
  const values = outcomes(kind, run.answer);
  const probed = new Map();
  if (values) {
    const ids = top(values, OPTIONS);
    const without = gone(run.given.erase ? {erase: run.given.erase.join(".")} : {});
    for (const at of run.answer.erasable.slice(-WORDS)) {
      if (without.includes(at)) continue;
      const answer = await app.engine.ask("run", {...run.given, erase: [...without, at]});
      if (stops()) return;
      const other = outcomes(kind, answer);
      probed.set(at, {p: ids.map((id) => other[id]), instead: best(kind, answer)});
    }
  }
  run.probed = probed;
}

/** What is most probable, by name. */
const best = (kind, answer) => options(kind, answer)[0][0];

/**
 * Search for experiments on the text as it was typed: {title, says, on, press}, where `on` says
 * of a state whether it is pressed.
 */
export async function search(app, kind, stops) {
  const {origin} = app;
  if (kind === "vectors") return ofVectors(app, origin);
  const values = kind === "written" ? null : outcomes(kind, origin.answer);
  if (kind === "masked" && !values) return guesses(app, origin, stops);
  const about =
    kind === "written"
      ? await ofWritten(app, origin)
      : await ofPrediction(app, origin, kind, values, stops);
  if (!about || stops()) return [];
  const order = about.falls.sort(([, one], [, other]) => one - other);
  const places = order.slice(0, PLACES);
  const swap = await replaced(app, origin, about, places, stops);
  const off = stops() ? null : await switched(app, origin, about, stops);
  const left = swap && about.whole && !off ? places.filter(([at]) => at !== swap.at) : [];
  const second = await replaced(app, origin, about, left, stops);
  const swaps = [swap, second?.flips && second].filter(Boolean);
  const moving = order.filter(([, p]) => probability(p) !== "1.000");
  const erased = (moving.length ? moving : order)
    .slice(0, COUNT - swaps.length - (off ? 1 : 0))
    .map(([at, p]) => erasure(app, origin, about, at, p));
  return [...swaps, ...erased, off].filter(Boolean);
}

/**
 * How a written word is measured: its probability when the same is written. falls: places of words,
 * and the probability without each; ask: what a run is asked besides; p, now and cost: of an answer
 * the word's probability, what stands in its place, and how much else has changed.
 */
async function ofWritten(app, origin) {
  const place = Math.min(askedOf(app), origin.answer.texts.target.length - 1);
  const {given, header} = origin;
  if (!header.explained[place]) {
    const answer = await app.engine.ask("lens", {...given, place, others: origin.others(place)});
    if (!answer) return null;
    origin.explain(place, answer);
    header.explained[place] ??= [];
  }
  const before = origin.answer.texts.target;
  return {
    word: before[place],
    own: origin.answer.probabilities[place],
    falls: Object.entries(header.changes.erased).map(([at, {probabilities}]) => [
      Number(at),
      probabilities[place],
    ]),
    ask: {against: origin.answer.ids.target},
    p: ({against}) => against.probabilities[place],
    now: ({texts}) => texts.target[followed(place, before, texts.target)],
    cost: (answer) => apart(before, answer),
    whole: true, // a translation: the search ends with a word that changes it alone
  };
}

/**
 * How many written words differ; Infinity for another sentence, or one that the model is not sure
 * of.
 */
function apart(words, {texts: {target}, probabilities}) {
  const runs = differences(words, target);
  if (target.length !== words.length || runs.length > RUNS) return Infinity;
  if (Math.min(...probabilities) < SURE) return Infinity;
  const alike = runs.every(({before, after}) =>
    after.every((word, at) => isCapital(word) === isCapital(before[at] ?? "")),
  );
  if (!alike) return Infinity;
  return runs.reduce((sum, {after}) => sum + after.length, 0);
}

/** Whether a list of numbers comes before another: by the first number that differs. */
function before(one, other) {
  const at = one.findIndex((number, place) => number !== other[place]);
  return at >= 0 && one[at] < other[at];
}

/** How a prediction is measured: the probability of its next word, class or guess. */
async function ofPrediction(app, origin, kind, values, stops) {
  if (!origin.probed) await probe(app, origin, kind, stops);
  if (!origin.probed) return null;
  const pick = askedOf(app);
  const id = top(values, OPTIONS)[pick];
  return {
    word: options(kind, origin.answer)[pick][0],
    own: values[id],
    falls: [...origin.probed].map(([at, {p}]) => [at, p[pick]]),
    ask: {},
    p: (answer) => outcomes(kind, answer)[id],
    now: (answer) => best(kind, answer),
    cost: () => 0,
  };
}

/**
 * A word in the place of another, of those that the model has near it: one that changes the
 * prediction and little else, by the most.
 */
async function replaced(app, origin, about, order, stops) {
  if (!app.engine.words.length) return null;
  let most = null;
  const words = readOf(origin.header);
  for (const [at] of order) {
    const word = words[at];
    if (!/^\p{L}+$/u.test(word)) continue;
    for (const other of await candidates(app, about.whole ? words : [word], about.whole ? at : 0)) {
      const text = exchanged(origin, at, other);
      if (stops()) return null;
      if (!text || !isLike(other, word)) continue;
      const answer = await app.engine.ask("run", {...origin.given, source: text, ...about.ask});
      const p = about.p(answer);
      const cost = about.cost(answer);
      const now = about.now(answer);
      const one = {p, text, at, word, other, now, rank: [now === about.word ? 1 : 0, cost, p]};
      if (cost < Infinity && (!most || before(one.rank, most.rank))) most = one;
      if (about.whole && most && most.now !== about.word && most.rank[1] <= LITTLE)
        return swap(app, origin, about, most);
    }
  }
  return most && swap(app, origin, about, most);
}

/**
 * Words to put in the place of one: those of its kind, then the first of each kind. Where the page
 * names no kinds, those near it in the model's table, then those near the other words of the text,
 * the closest first, because what is said of one thing stands near its name.
 */
async function candidates(app, words, place) {
  const {alike = []} = app.origin.header.model;
  const kind = alike.find((all) => all.includes(words[place]));
  if (kind) return [...kind, ...alike.map(([first]) => first)];
  const order = words
    .map((word, at) => [word, Math.abs(at - place)])
    .filter(([word]) => /^\p{L}+$/u.test(word) && word.length >= LONG)
    .sort(([, one], [, other]) => one - other);
  const found = new Set();
  for (const [word] of order)
    for (const other of await app.engine.ask("near", {word})) found.add(other);
  return found;
}

function swap(app, origin, about, {text, at, word, other, now, p}) {
  return {
    at,
    flips: now !== about.word,
    title: `“${word}” → “${other}”`,
    says: becomes(about, now, p),
    ...alone(app, {text}),
  };
}

/** Another word, that begins with a capital letter only if this one does. */
function isLike(other, word) {
  return other.toLowerCase() !== word.toLowerCase() && isCapital(other) === isCapital(word);
}

/** German writes nouns so: a noun in the place of an adjective is another sentence. */
const isCapital = (word) => word.charAt(0) !== word.charAt(0).toLowerCase();

function erasure(app, origin, about, at, p) {
  return {
    title: `Erase “${named(readOf(origin.header)[at])}”`,
    says: becomes(about, about.word, p),
    ...alone(app, {erase: String(at)}),
  };
}

/**
 * Whether an experiment is all that is changed, and the press that begins it from the text and the
 * model as they were, or returns to them.
 */
function alone(app, changes) {
  const untouched = untouchedOf(app);
  const changed = {...untouched, ...changes};
  const on = (state) => Object.keys(changed).every((name) => String(state[name]) === changed[name]);
  return {on, press: () => act(app, on(app.state) ? untouched : changed)};
}

/** The head without which the prediction loses most; null where no head changes it visibly. */
async function switched(app, origin, about, stops) {
  const all = origin.header.attentions.flatMap((one) =>
    headsOf(one).map((head) => [one.kind, ...head]),
  );
  if (all.length > HEADS) return null;
  let most = null;
  for (const head of all) {
    const answer = await app.engine.ask("run", {...origin.given, off: [head], ...about.ask});
    if (stops()) return null;
    const p = about.p(answer);
    if (!most || p < most.p) most = {p, head, now: about.now(answer)};
  }
  if (most.now === about.word && most.p > about.own * (1 - LEAST)) return null;
  const {head} = most;
  const [kind, ...number] = head;
  return {
    title: `Switch off ${headName(...number)}`,
    says: `${kind === "text" ? "" : `${PARTS[kind]}: `}${becomes(about, most.now, most.p)}`,
    ...alone(app, {off: head.join(".")}),
  };
}

const PARTS = {cross: "cross-attention", encoder: "in the encoder", decoder: "in the decoder"};

/** What stands in the place of a word, or how its probability differs from that before. */
function becomes({word, own}, now, p) {
  if (now !== word) return `“${named(word)}” becomes “${named(now)}”`;
  const [before, after] = [own, p].map(probability);
  const moves = p < own ? "falls to" : "rises to";
  return `“${named(word)}” ${before === after ? "stays at" : moves} ${after}`;
}

/** Without a hidden word: the words that the model guesses most surely. */
async function guesses(app, origin, stops) {
  const tried = [];
  for (const at of origin.answer.erasable.slice(-WORDS)) {
    const word = origin.answer.texts.text[at];
    if (!/\p{L}/u.test(word)) continue;
    const {likeliest} = await app.engine.ask("run", {...origin.given, erase: [at]});
    if (stops()) return [];
    tried.push({at, word, guess: likeliest[0][0]});
  }
  return tried
    .sort((one, other) => other.guess[1] - one.guess[1])
    .slice(0, COUNT)
    .map(({at, word, guess: [guess, p]}) => ({
      title: `Hide “${word}”`,
      says: `the model guesses “${guess}”, ${probability(p)}`,
      ...alone(app, {erase: String(at)}),
    }));
}

/** Of an encoder: the words that turn a vector furthest. */
function ofVectors(app, origin) {
  const {header} = origin;
  const {text} = header.texts;
  const row = Math.min(app.state.row, text.length - 1);
  const word = named(text[row]);
  const order = Object.entries(header.changes.erased)
    .map(([at, {similarities}]) => [Number(at), similarities[row]])
    .filter(([at]) => at !== row)
    .sort(([, one], [, other]) => one - other);
  return order.slice(0, COUNT).map(([at, cosine]) => ({
    title: `Erase “${named(text[at])}”`,
    says: `the vector of “${word}” changes: cosine ${share(cosine)}`,
    ...alone(app, {erase: String(at)}),
  }));
}
