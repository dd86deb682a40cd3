// What a change has done, in one sentence: what was changed, and what the model makes of it.

import {html} from "lit-html";
import {experimentsOf} from "./experiments.js";
import {offers} from "./offers.js";
import {isChanged} from "./past.js";
import {causes} from "./pills.js";
import {listed, probability, share} from "./shares.js";
import {options as expected, quoted} from "./stories.js";
import {differences} from "./wordpairs.js";

export function outcome(app, story) {
  if (!app.engine) return stored(app, story);
  if (!isChanged(app)) return untouched(app, story);
  if (!app.state.text.trim()) return html`There is nothing to read: write a sentence.`;
  return html`${causes(app)}: ${listed(effects(app, story))}.`;
}

/** Before any change. */
function untouched(app, {kind, word}) {
  const list = experimentsOf(app);
  if (!list) return html`Looking for experiments…`;
  if (!list.length) return html`No experiment was found for this text.`;
  if (kind === "masked" && word === undefined)
    return html`Hide one word. These are the ones that the model guesses most surely:`;
  return html`Experiments on ${quoted(word, true)}, found by trying many changes:`;
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

/** What the model makes of it: other words, or the same. The answer above has the probabilities. */
function effects({origin, source}, {kind, chosen, word, options}) {
  if (kind === "vectors") return turned(source.header.changes, chosen, word);
  if (kind === "written") {
    const moved = differences(origin.header.texts.target, source.header.texts.target).map(became);
    return moved.length ? moved : ["the same is written"];
  }
  if (!options.length) return ["hide a word to see what the model guesses"];
  const [[best, p]] = options;
  const [[was]] = [...expected(kind, origin.answer), []];
  const likely = html`${quoted(best, true)}, with probability ${probability(p)}`;
  if (was === undefined) return [html`the model guesses ${likely}`];
  return [best === was ? html`still ${likely}` : html`${quoted(was)} becomes ${likely}`];
}

/** How far the vector of a word is from the one before. */
function turned({now}, chosen, word) {
  if (!now?.similarities.length)
    return [html`its vectors are not compared with those of the text before`];
  const cosine = share(now.similarities[chosen]);
  return [html`the cosine of the vector of ${quoted(word, true)} with the one before is ${cosine}`];
}

function became({before, after}) {
  if (!after.length) return html`${quoted(before.join(" "))} is gone`;
  if (!before.length) return html`${quoted(after.join(" "))} is added`;
  return html`${quoted(before.join(" "))} becomes ${quoted(after.join(" "))}`;
}
