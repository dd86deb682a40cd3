// The answer of the first screen: one sentence in plain probabilities.

import {html, nothing} from "lit-html";
import {top} from "./engine/numbers.js";
import {maskOf} from "./masks.js";
import {causes} from "./pills.js";
import {ceiling, floor, listed, probability, share} from "./shares.js";
import {LEAST, options, pointedAt, quoted} from "./stories.js";
import {followed} from "./wordpairs.js";

const NAMED = 2; // words that the sentence names

/** That the model has not seen words of its text. */
export function guessed({source}) {
  const words = source.answer?.unknown;
  if (!words?.length) return "";
  return html`<strong class="unknown"
    >The model does not know ${listed(words.map((word) => quoted(word)))}: what it makes of
    ${words.length > 1 ? "them" : "it"} is a guess.</strong
  > `;
}

/** What a model does with a word, for each kind of prediction. */
const ACTS = {
  written: "write",
  next: "continue with",
  sorted: "answer",
  masked: "guess",
};

export function headline(app, story, strong) {
  const {by, word} = story;
  if (word === undefined)
    return "Press a word to hide it. The model then guesses what stands there.";
  const at = pointedAt(app, story);
  const most = at === null ? top(strong, NAMED, (place) => strong[place] > 0) : [at];
  if (by === "looks") return looking(app, story, most, at !== null);
  if (!by) return html`This page holds no attention weights of ${quoted(word, true)}.`;
  const now = at === null && app.source !== app.origin ? changed(app, story) : null;
  if (now)
    return most.length || story.waits ? now : html`${now} <small>${remaining(story)}</small>`;
  if (story.waits && !most.length)
    return html`What does ${quoted(word, true)} depend on? Each word is erased in turn…`;
  return story.kind === "vectors" ? turning(story, most) : depending(story, most, strong);
}

/** What a change has done to the chosen word; null where it stays what it was. */
function changed(app, story) {
  if (!app.engine) return null;
  const before = beforeOf(app, story);
  if (before === null) return null;
  const [was, p, now] = before;
  const {kind, word, relative} = story;
  const falls = `${now < p ? "falls" : "rises"} from ${probability(p)} to ${probability(now)}`;
  if (was === word) {
    if (Math.abs(now - p) < LEAST * (relative ? p : 1)) return null;
    return html`${causes(app)}, the model is ${now < p ? "less" : "more"} sure of
    ${quoted(word, true)}: its probability ${falls}.`;
  }
  const acts = html`${causes(app)}, the model ${ACTS[kind].replace(/\w+/, "$&s")}
  ${quoted(word, true)}`;
  return probability(now) === probability(p)
    ? html`${acts} where ${quoted(was)} stood before.`
    : html`${acts}: the probability of ${quoted(was)} ${falls}.`;
}

/** The word that stood in the place of the chosen one before a change, its probability, and now. */
function beforeOf({origin, past: [first], source: {answer}}, {kind, written, chosen}) {
  if (kind === "written") {
    const {words, before} = written;
    const asked = first && followed(first.place, before, words) === chosen;
    const at = asked ? first.place : followed(chosen, words, before);
    return [before[at], origin.answer.probabilities[at], answer.against.probabilities[at]];
  }
  if (chosen > 0 || (kind !== "next" && kind !== "sorted")) return null;
  const [[was, p]] = options(kind, origin.answer);
  const now =
    kind === "next"
      ? answer.against.probabilities.at(-1)
      : answer.probabilities[answer.target.indexOf(was)];
  return [was, p, now];
}

function depending({kind, given, word, own, without}, [at, second], strong) {
  const act = ACTS[kind];
  const read = (place) => quoted(given.words[place]);
  const chosen = quoted(word, true);
  if (at === undefined) return undecided({given, own, without, chosen, kind});
  const one = without(at);
  const too = given.gone.length ? " too" : "";
  if (!one) return html`This page does not hold what the model does without ${read(at)}.`;
  if (!(strong[at] > 0))
    return html`Without ${read(at)}${too}, the model would still ${act} ${chosen}, with probability
    ${probability(one.p)}.`;
  const more =
    second === undefined
      ? nothing
      : html` <small
          >Without ${read(second)}, it falls to ${probability(without(second).p)}.</small
        >`;
  const falls = html`falls from ${probability(own)} to ${probability(one.p)}.${more}`;
  if (one.instead === word || one.instead === undefined)
    return html`Without ${read(at)}${too}, the model would be less sure of ${chosen}: its
    probability ${falls}`;
  return html`Without ${read(at)}${too}, the model would ${act} ${quoted(one.instead)}: the
  probability of ${chosen} ${falls}`;
}

/** Of a word that a change has made: that no word that is left decides it alone. */
function remaining({given, own, without, word}) {
  const stays = bounds(given, own, without);
  return stays && html`Erase any one word, and ${quoted(word)} stays ${stays}.`;
}

/** Between what bounds a probability stays without any one word. */
function bounds(given, own, without) {
  const all = given.words.map((_, at) => without(at)?.p).filter((p) => p !== undefined);
  if (!all.length) return "";
  const least = Math.min(own, ...all);
  const bounded = least < 0.001 ? `below ${ceiling(own)}` : `above ${floor(least)}`;
  return least >= 0.9995 ? "at 1.000" : bounded;
}

/** No word that is read decides alone. */
function undecided({given, own, without, chosen, kind}) {
  const stays = bounds(given, own, without);
  if (!stays) return html`There is no word that could be erased.`;
  const where = kind === "written" ? "the sentence" : "the text";
  const any = given.gone.length ? "any other word too" : "any one of them";
  return html`No ${given.gone.length ? "other" : "single"} word of ${where} decides ${chosen}: erase
  ${any} and its probability stays ${stays}.`;
}

function turning({given, word, without, waits}, [at, second]) {
  const chosen = quoted(word, true);
  const cosine = (place) => share(without(place).p);
  if (at === undefined || !without(at))
    return waits
      ? html`What does ${chosen} depend on?`
      : html`No other word alone changes the vector of ${chosen} much.`;
  const more =
    second === undefined
      ? nothing
      : html` <small>Without ${quoted(given.words[second])}, it is ${cosine(second)}.</small>`;
  return html`Without ${quoted(given.words[at])}, the vector of ${chosen} changes: its cosine with
  the vector before is ${cosine(at)}.${more}`;
}

function looking(app, {kind, given, word, looks}, [at, second], pointed) {
  const chosen = quoted(given.words[looks.at] ?? word, true);
  const who = looker(kind, chosen, looks.at !== undefined);
  const seen = (place) => html`${quoted(given.words[place])} (${share(looks.values[place])})`;
  if (at === undefined) return html`${who} looks at no word in particular, in ${looks.says}.`;
  const then = second === undefined ? nothing : html`, then at ${seen(second)}`;
  return html`${who} looks ${pointed ? "" : "most "}at ${seen(at)}${then}, in
    ${looks.says}${reach(app, looks.at)}.
    <small>Attention says where a word looks, not what it uses.</small>`;
}

/** How far a word that is read may look, where the encoder's pattern is a window. */
function reach(app, at) {
  if (at === undefined || !app.engine) return "";
  const pattern = maskOf(app, "encoder") || app.source.header.model.patterns.encoder;
  const size = pattern?.match(/^sliding_window\((\d+)\)$/)?.[1] >> 1;
  return size ? `; a layer sees only the nearest ${size} before and after` : "";
}

/** Who looks: a word, or the model before it writes one. reads: whether the word is read. */
function looker(kind, chosen, reads) {
  if (kind === "written")
    return reads ? html`In the encoder, ${chosen}` : html`While it writes ${chosen}, the model`;
  return kind === "next" && !reads ? "Before the next word, the model" : chosen;
}
