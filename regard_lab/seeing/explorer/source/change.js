// "What if": what a change does to each word. A page that contains its model computes the change;
// another contains the erasure of each word.

import {html, nothing} from "lit-html";
import {choice} from "./controls.js";
import {causes} from "./pills.js";
import {digits, short} from "./shares.js";
import {chosenPlace} from "./state.js";
import {listed} from "./tables.js";
import {readOf} from "./wordpairs.js";

const BOTH =
  "Probabilities are among all words, after the words that stand before; " +
  "of a word in several sub-words the product.";

/** What each kind of model is asked while a word of its text changes. */
const KINDS = {
  written: {one: "Written word", says: BOTH},
  next: {
    one: "Next word",
    says:
      `${BOTH} Words up to the changed one were predicted before it was read, ` +
      "so their probability stays.",
  },
  masked: {
    one: "Masked word",
    says: "Each masked word is named by what is most probable there in the text as it is.",
  },
  vectors: {
    one: "Word",
    says:
      "The cosine is between the vectors that the last layer gives a word before and after: " +
      "1 is the same direction. Of a word in several sub-words their mean is taken.",
  },
};

/**
 * What "What if" shows: the words that are changed, and those that are followed: their numbers,
 * before and now.
 */
function changing(app) {
  const {state, source} = app;
  const {
    changes: {follows = "words", unchanged, erased, now},
  } = source.header;
  const {texts} = (source.base ?? source).header; // stored examples name none
  const ofWords = texts.target ? "written" : "next";
  const kind = follows === "words" ? ofWords : follows;
  const words = texts.text?.map((word, at) => {
    const other = source.header.texts.text[at];
    return other === word ? word : `${word} → ${other}`;
  });
  const follow = {
    written: () => texts.target,
    next: () => [...words.slice(1), `${unchanged.likeliest.at(-1)[0][0]} (what follows)`],
    masked: () => unchanged.likeliest.map(([[best]], at) => `${best} (masked place ${at + 1})`),
    vectors: () => words,
  }[kind]();
  const last = follow.length - 1;
  const first = {next: last, masked: 0, vectors: state.row}[kind];
  const chosen = Math.min(kind === "written" ? chosenPlace(app) : (state.next ?? first), last);
  const places = Object.keys(erased).map(Number);
  const numbers = (one) => (kind === "vectors" ? one.similarities : one.probabilities);
  const left = (at) => (kind === "vectors" && at === chosen ? 1 : numbers(erased[at])[chosen]);
  const least = places.reduce((best, at) => (left(at) < left(best) ? at : best), places[0]);
  return {
    kind,
    ...KINDS[kind],
    read: readOf({texts}),
    follow,
    chosen,
    numbers,
    unchanged,
    erased,
    places,
    place: places.includes(state.changed) ? state.changed : least, // the word that matters most
    changed: now,
  };
}

/** "What if it were changed?" */
export function changeView(app) {
  const found = changing(app);
  const {kind, read, follow, chosen, numbers, unchanged, erased, places, place, changed} = found;
  const now = changed ?? erased[place];
  const waits =
    app.engine && app.source.answer.erasable.length
      ? "Each word is erased in turn…"
      : "There is no word that can be erased.";
  if (!now) return html`<p class="hint">${waits}</p>`;
  const row = (word, one, at) =>
    kind === "vectors"
      ? [word, meter(numbers(one)[at], digits)]
      : [
          word,
          short(numbers(unchanged)[at]),
          meter(numbers(one)[at]),
          one.likeliest[at].map(([other, p]) => `${other} ${short(p)}`).join(", "),
        ];
  const heads = kind === "vectors" ? ["Cosine"] : ["Before", "Now", "Most probable now"];
  const table = (label, first, rows, current) => listed(label, [first, ...heads], rows, 0, current);
  const each = `each ${found.one.toLowerCase()}`;
  return html`
    <div class="bar">
      ${
        changed
          ? nothing
          : choice(
              "Without",
              places.map((at) => [at, read[at]]),
              place,
              (at) => app.set({changed: Number(at), said: `Without “${read[at]}”`}),
            )
      }
      ${choice(found.one, [...follow.entries()], chosen, (at) =>
        app.set({[kind === "written" ? "place" : "next"]: at}),
      )}
    </div>
    <div class="columns">
      <section class="panel">
        <h3 data-change>
          ${changed ? causes(app) : html`Without “<bdi>${read[place]}</bdi>”`}: ${each}
        </h3>
        ${table(
          each,
          "Word",
          follow.map((word, at) => row(word, now, at)),
          chosen,
        )}
      </section>
      ${
        changed
          ? nothing
          : html`<section class="panel">
              <h3>“<bdi>${follow[chosen]}</bdi>” without each word</h3>
              ${table(
                "Erasures",
                "Without",
                places.map((at) => row(read[at], erased[at], chosen)),
                places.indexOf(place),
              )}
            </section>`
      }
    </div>
    <p class="hint">
      ${found.says} An erased word keeps its place and has the mean embedding of the words that are
      read.
    </p>
  `;
}

/** A number from 0 to 1 beside its bar; a table has heads for its meaning. */
function meter(number, written = short) {
  return html`<meter min="0" max="1" value=${String(number)} aria-label="of 1"></meter>
    ${written(number)}`;
}
