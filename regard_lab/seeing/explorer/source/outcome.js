// What a change has done, in one sentence: what was changed, and what the model makes of it.

import {html} from "lit-html";
import {experimentsOf} from "./experiments.js";
import {offers} from "./offers.js";
import {isChanged} from "./past.js";
import {listed, probability, share} from "./shares.js";
import {gone} from "./state.js";
import {quoted} from "./stories.js";
import {differences, followed, replacedWords} from "./wordpairs.js";

export function outcome(app, story) {
  if (!app.engine) return stored(app, story);
  if (!isChanged(app)) return untouched(app, story);
  if (!app.state.text.trim()) return html`There is nothing to read: write a sentence.`;
  const done = causes(app);
  const now = effects(app, story);
  return html`${done.length > 1 ? html`Together, ${listed(done.map(stated))}` : done.map(begun)}:
  ${now.length ? listed(now) : html`nothing changes`}.`;
}

const stated = ([how, what]) => html`${how} ${what}`;
const begun = ([how, what]) => stated([how.charAt(0).toUpperCase() + how.slice(1), what]);

/** Before any change. */
function untouched(app, {kind, word}) {
  const list = experimentsOf(app);
  if (!list) return html`Looking for three experiments on this model…`;
  if (!list.length) return html`No experiment was found for this text.`;
  if (kind === "masked" && word === undefined)
    return html`Hide one word. These are the ones that the model guesses most surely:`;
  return html`Experiments on ${quoted(word, true)}, found by trying words and heads of this model:`;
}

/** A page without a model that can be asked: which heads were found. */
function searched({word}, found) {
  if (!found) return html`All heads are searched…`;
  if (!found.length) return "";
  return html`All heads were searched for the one in which ${quoted(word, true)} looks most at
  another word:`;
}

/** A stored page: what is written without the word that is pointed at. */
function stored(app, story) {
  const {pointed, words} = story.given;
  const without = app.source.header.changes?.erased[pointed];
  const found = offers(app, story);
  if (story.kind !== "written") return searched(story, found);
  if (!without?.translation?.length)
    return found.length
      ? "What is written without the words that matter most:"
      : "No word of the sentence matters much for this one.";
  return html`Without ${quoted(words[pointed])} the model writes:
    <em><bdi>${without.translation.join(" ")}</bdi></em>`;
}

/** What was changed: pairs of the word that begins a part of a sentence, and the rest of it. */
function causes({state, origin}) {
  const {texts} = origin.header;
  const read = texts.source ?? texts.text;
  const done = [];
  if (state.text !== origin.given.source)
    for (const {before, after} of replacedWords(origin.given.source, state.text))
      done.push(["with", html`${quoted(after)} instead of ${quoted(before)}`]);
  const erased = gone(state).map((at) => quoted(read[at] ?? String(at)));
  if (erased.length) done.push(["without", listed(erased)]);
  const off = state.off ? state.off.split(",") : [];
  const heads = off.map((one) => one.split(".").slice(1).join("."));
  if (off.length)
    done.push(["with", html`${off.length > 1 ? "heads" : "head"} ${listed(heads)} switched off`]);
  if (Number(state.factor) !== 1) done.push(["with", `attention scores × ${state.factor}`]);
  if (Number(state.warmth) !== 1) done.push(["at", `temperature ${state.warmth}`]);
  if (state.masks) done.push(["with", "another pattern"]);
  return done;
}

/** What the model makes of it: other words, or another probability of the chosen word. */
function effects(app, {kind, chosen, word, own, options}) {
  const {origin, source} = app;
  if (kind === "written") {
    const [before, after] = [origin.header.texts.target, source.header.texts.target];
    const moved = differences(before, after).map(became);
    if (moved.length) return moved;
    const was = origin.answer.probabilities[followed(chosen, after, before)];
    return [html`the same is written, and ${beside(word, own, was)}`];
  }
  if (kind === "vectors") return turned(source.header.changes, chosen, word);
  if (!options.length) return [];
  const [[best, p]] = options;
  const was = firstOf(kind, origin.answer);
  if (!was)
    return [html`the model guesses ${quoted(best, true)} with probability ${probability(p)}`];
  return best === was[0]
    ? [beside(best, p, was[1])]
    : [html`${quoted(was[0])} becomes ${quoted(best, true)}, with probability ${probability(p)}`];
}

/** How far the vector of a word is from the one before. */
function turned({now}, chosen, word) {
  if (!now) return [html`its vectors are not compared with those of the text before`];
  const cosine = share(now.similarities[chosen]);
  return [html`the cosine of the vector of ${quoted(word, true)} with the one before is ${cosine}`];
}

/** The probability of a word beside the one before. */
function beside(word, now, was) {
  const [p, before] = [now, was].map(probability);
  return p === before
    ? html`${quoted(word, true)} keeps probability ${p}`
    : html`${quoted(word, true)} has probability ${p} instead of ${before}`;
}

function firstOf(kind, {likeliest, target, probabilities}) {
  if (kind === "next") return likeliest.at(-1)[0];
  if (kind === "masked") return likeliest[0]?.[0];
  const at = probabilities.indexOf(Math.max(...probabilities));
  return [target[at], probabilities[at]];
}

function became({before, after}) {
  if (!after.length) return html`${quoted(before.join(" "))} is gone`;
  if (!before.length) return html`${quoted(after.join(" "))} is added`;
  return html`${quoted(before.join(" "))} becomes ${quoted(after.join(" "))}`;
}
