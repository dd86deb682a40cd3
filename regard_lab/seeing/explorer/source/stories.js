// What the first screen tells of a page, for each kind of model: the words that are read, what is
// made of them, and what each word that is read does for the one that is chosen.

import {html} from "lit-html";
import {clamped, softmax, top} from "./engine/numbers.js";
import {eraseAt} from "./field.js";
import {headName} from "./shares.js";
import {chosenPlace, gone} from "./state.js";

const MOST = 60; // words of a line that are shown around the chosen one
export const OPTIONS = 3; // next words, classes or guesses that are shown
export const LEAST = 0.02; // of a probability, the smallest fall that is shown
const MEAN = "the mean of all heads";
const UNKNOWN = 1; // the id of a masked sub-word
const BEGINS = ["<begin>", "<s>"]; // as tokenisers write them
export const ENDS = ["<end>", "</s>", "<|endoftext|>"];

/** What a page makes of its text: "written", "next", "sorted", "masked", "vectors" or "looks". */
export function kindOf({engine, source}) {
  const {texts, changes} = source.header;
  if (texts.target) return "written";
  if (!engine)
    return changes
      ? {words: "next", masked: "masked", vectors: "vectors"}[changes.follows]
      : "looks";
  const {follows, logits, target, likeliest} = source.answer;
  if (follows !== undefined) return "next";
  if (!logits) return "vectors";
  return target.length && !likeliest.length ? "sorted" : "masked";
}

/**
 * The probability of each id that could follow a text, or stand at its masked place, or of each
 * class; null where no word is masked.
 */
export function outcomes(kind, {logits, ids, probabilities}) {
  if (kind === "sorted") return probabilities;
  const rows = ids.source.length;
  const row = kind === "next" ? rows - 1 : ids.source.indexOf(UNKNOWN);
  const size = logits.length / rows;
  return row < 0 ? null : softmax(logits.subarray(row * size, (row + 1) * size));
}

/** The same by name, the most probable first. */
export function options(kind, {likeliest, target, probabilities}) {
  if (kind === "next") return likeliest.at(-1);
  if (kind === "masked") return likeliest[0] ?? [];
  return top(probabilities, OPTIONS).map((at) => [target[at], probabilities[at]]);
}

/**
 * The story of a page; null where there is no attention to tell of. given: the words that are read;
 * written or options: what is made of them; chosen, word and own: the one that is asked about, and
 * its probability; without: the same without a word, relative to `own` if `relative`; waits:
 * whether that is still to be computed; looks: shares of attention, `at` of a word that is read;
 * arcs: whether links join one line; asker: the place of the chosen word among those that are read;
 * hint: what can be pressed while links show attention.
 */
export function storyOf(app) {
  if (!app.attention) return null;
  const kind = kindOf(app);
  const story = {kind, ...KINDS[kind](app, kind)};
  const modes = [story.without ? "depends" : null, story.looks ? "looks" : null].filter(Boolean);
  const by = modes.includes(app.state.by) ? app.state.by : modes[0];
  const looker = by === "looks" ? story.looks.at : undefined;
  const shown = {...story, modes, by, asker: story.arcs ? story.chosen : looker};
  if (by === "looks" && story.given.asks) shown.hint = LOOKS[kind];
  return shown;
}

const KINDS = {written, next: predicted, sorted: predicted, masked: predicted, vectors, looks};

const holds = ({source}, what) =>
  `${what} of ${source.header.model.parameters.toLocaleString("en")} parameters runs here.`;

/** A translation: which words of the sentence the chosen word depends on. */
function written(app) {
  const {engine, source, origin} = app;
  const {texts, changes, explained, attentions} = source.header;
  const place = Math.min(chosenPlace(app), texts.target.length - 1);
  const cross = attentions.find(({rows, columns}) => rows === "target" && columns === "source");
  // the views show an attention that has a row of the written word
  const shows = app.attention.rows === "target" || !cross;
  const kind = shows ? app.state.kind : attentions.indexOf(cross);
  const attended = explained[place]?.find(({lens}) => lens === "attention");
  const erased = (at) => {
    const one = changes?.erased[at];
    return one && {p: one.probabilities[place], instead: one.likeliest[place]?.[0][0]};
  };
  let looks = attended && {values: attended.source.map(([, weight]) => weight), says: MEAN};
  if (engine && cross) looks = {values: meanRow(cross, place), says: MEAN};
  else if (!looks && app.attention === cross) looks = ofHead(app, place);
  return {
    orientation: engine
      ? `${holds(app, "A translator")} ${asks("a word of the translation", "sentence")}`
      : "Press a word of the translation to see what it depends on. Press a word of the sentence to see what is written without it.",
    given: {label: "Sentence", words: texts.source, ...presses(app, "source")},
    written: {
      label: "Translation",
      words: texts.target,
      before: origin?.header.texts.target ?? texts.target,
      press: (at) => app.set({place: at, row: at, within: undefined, kind}),
    },
    chosen: place,
    word: texts.target[place],
    own: (engine ? source.answer : changes?.unchanged)?.probabilities[place],
    without: changes && erased,
    waits: Boolean(engine) && !explained[place],
    looks: within(app, "source") ?? looks,
  };
}

/** What can be pressed while links show attention. */
const LOOKS = {
  written:
    "Press a word of the sentence to see where it looks in the encoder, a word of the translation to see where the model looks while writing it.",
  next: "Press a word of the text to see where it looks.",
};

/** What can be pressed, in a page with a model. */
const asks = (what, text) =>
  `Press ${what} to see what it depends on, a word of the ${text} to erase or replace it.`;

/** What each kind of model is called, and what can be pressed. */
const ASKS = {
  next: ["A language model", asks("a next word", "text")],
  sorted: ["A classifier", asks("a class", "text")],
  masked: ["A model", "Press a word to hide or replace it. The model guesses what is hidden."],
};
const HELD = {
  next: "This page holds what a language model expects after this text.",
  masked:
    "A word is hidden here, and the page holds what a model guesses. Of several it shows the first.",
};

/** What follows a text, its class, or what stands at a masked place. */
function predicted(app, kind) {
  const {engine, source, state} = app;
  const {texts, changes} = source.header;
  const listed = engine
    ? options(kind, source.answer)
    : options(kind, {likeliest: changes.unchanged.likeliest}).slice(0, 1);
  const pick = Math.min(state.pick, Math.max(listed.length - 1, 0));
  const at = kind === "next" ? -1 : 0; // where a stored page holds it
  const without = (word) => {
    if (engine) {
      const one = source.probed?.get(word);
      return one && {p: one.p[pick], instead: one.instead};
    }
    const one = changes.erased[word];
    return one && {p: one.probabilities.at(at), instead: one.likeliest.at(at)?.[0][0]};
  };
  const row = texts.text.length - 1;
  return {
    orientation: engine
      ? `${holds(app, ASKS[kind][0])} ${ASKS[kind][1]}`
      : `${HELD[kind]} Press a word to see what changes without it.`,
    given: {label: "Text", words: texts.text, ...presses(app, kind === "next" && "text")},
    options: listed,
    optionsLabel: {next: "Next word", sorted: "Class", masked: "Guess"}[kind],
    chosen: pick,
    word: listed[pick]?.[0],
    own: listed[pick]?.[1],
    without: listed.length ? without : null,
    relative: kind !== "sorted",
    waits: Boolean(engine) && listed.length > 0 && !source.probed,
    looks: kind === "next" ? (within(app, "text") ?? fromRow(app, row)) : null,
  };
}

/** An encoder without a head: how far the vector of a word turns without each other word. */
function vectors(app) {
  const {engine, source, state} = app;
  const {texts, changes} = source.header;
  const row = Math.min(state.row, texts.text.length - 1);
  const without = (at) => {
    const one = changes.erased[at];
    return one && at !== row ? {p: one.similarities[row], instead: null} : undefined;
  };
  return {
    orientation: engine
      ? `${holds(app, "An encoder")} Press a word to see what its vector depends on, and again to erase or replace it.`
      : "An encoder reads this text and gives each word a vector. Press a word to see what its vector depends on.",
    given: {
      label: "Text",
      words: texts.text,
      ...presses(app),
      press: (at) => (at === row && engine ? eraseAt(app, at) : app.set({row: at})),
      can: () => true,
    },
    chosen: row,
    arcs: true,
    word: texts.text[row],
    own: 1,
    without,
    waits: Boolean(engine) && !Object.keys(changes.erased).length,
    looks: fromRow(app, row),
  };
}

/** Weights without a model: where a word looks. */
function looks(app) {
  const {state, attention} = app;
  const {rows, columns} = app.words;
  const same = attention.rows === attention.columns;
  const press = (row) => app.set({row});
  return {
    orientation:
      "This page holds attention weights without their model. Press a word to see where it looks.",
    given: {
      label: same ? "Words" : "Keys",
      words: columns,
      gone: [],
      can: () => same,
      press,
    },
    written: same ? null : {label: "Queries", words: rows, before: rows, press},
    chosen: state.row,
    arcs: same,
    word: rows[state.row],
    without: null,
    looks: ofHead(app, state.row),
  };
}

/** Where a text's row looks: by all heads where the engine has them, else by the chosen head. */
function fromRow(app, row, kind = 0) {
  const attention = app.source.header.attentions[kind];
  return app.engine ? {values: meanRow(attention, row), says: MEAN} : ofHead(app, row);
}

/** The weights of the head that the other views show. */
function ofHead({weights, state, attention}, row) {
  if (!weights) return null;
  const heads = attention.shape[1];
  const says =
    state.head === "mean"
      ? `the mean of ${heads} heads of layer ${state.layer}`
      : headName(state.layer, state.head);
  return {values: [...weights.row(Math.min(row, weights.rows - 1))], says};
}

/** A row of weights, the mean of all layers and heads. */
function meanRow({shape: [layers, heads, rows, columns], weights}, row) {
  const mean = new Array(columns).fill(0);
  for (let head = 0; head < layers * heads; head += 1)
    for (let at = 0, from = (head * rows + row) * columns; at < columns; at += 1)
      mean[at] += weights[from + at] / (layers * heads);
  return mean;
}

/** The attention between the words that are read. */
const innerKind = ({source}, text) =>
  source.header.attentions.findIndex(({rows, columns}) => rows === text && columns === text);

/** Where a word that is read looks among them, once it was pressed while links show attention. */
function within(app, text) {
  const {state, source, engine} = app;
  const kind = innerKind(app, text);
  if (state.within === undefined || kind < 0 || (!engine && state.kind !== kind)) return null;
  const at = Math.min(state.within, source.header.texts[text].length - 1);
  return {...fromRow(app, at, kind), at};
}

/**
 * Words that a press erases, or in a page without a model points at. While links show attention, a
 * press shows where the word looks.
 */
function presses(app, text) {
  const {engine, source, state} = app;
  const kind = innerKind(app, text);
  if ((state.by === "looks" || !source.header.changes) && kind >= 0)
    return {
      gone: engine ? gone(state) : [],
      asks: true,
      can: () => true,
      press: (at) => app.set({within: at, row: at, kind}),
    };
  if (engine)
    return {
      gone: gone(state),
      can: (at) => source.answer.erasable.includes(at),
      press: (at) => eraseAt(app, at),
    };
  return {
    gone: [],
    pointed: state.changed,
    can: (at) => Boolean(source.header.changes?.erased[at]),
    press: (at) => app.set({changed: state.changed === at ? undefined : at}),
  };
}

/** The word that is read to which a reader points, unless it is erased or the one asked about. */
export function pointedAt({hot}, {given: {pointed, gone}, asker}) {
  const at = hot ?? pointed ?? null;
  return gone.includes(at) || at === asker ? null : at;
}

/** The part of a line that is shown, around a word. */
export function around(place, count) {
  if (count <= MOST) return [0, count];
  const from = clamped(place - MOST / 2, 0, count - MOST);
  return [from, from + MOST];
}

/** A word as the first screen writes it. */
export const named = (word) => {
  if (BEGINS.includes(word)) return "beginning";
  return ENDS.includes(word) ? "end" : word;
};

/** A word in a sentence of the first screen; the chosen one has the colour of its links. */
export const quoted = (word, chosen = false) =>
  html`<em class=${chosen ? "c" : ""}
    ><bdi>${ENDS.includes(word) ? "the end" : named(word)}</bdi></em
  >`;

/**
 * How strong the link to each word that is read is, from 0 to 1, and whether it is drawn: what is
 * lost without the word, or its share of attention beside the largest.
 */
export function strengths({by, given, own, without, relative, kind, looks: seen, asker}) {
  if (by === "looks") {
    const values = seen.values.map((weight) => (weight < 0.03 ? 0 : weight));
    const most = Math.max(...values.filter((_, at) => at !== asker), 0.01);
    return values.map((weight, at) => (at === asker ? 0 : 0.85 * Math.min(weight / most, 1)));
  }
  return given.words.map((_, at) => {
    const one = given.gone.includes(at) ? null : without?.(at);
    if (!one) return 0;
    const lost = kind === "vectors" ? 1 - one.p : relative ? 1 - one.p / own : own - one.p;
    return lost < LEAST ? 0 : Math.min(lost, 1);
  });
}
