// "What if": what a change does to each word. A page that contains its model computes the change;
// another contains the erasure of each word.

import {html, nothing} from "lit-html";
import {choice} from "./controls.js";
import {largest} from "./data.js";
import {digits, short} from "./shares.js";
import {listed} from "./tables.js";

const BOTH =
  "Probabilities are among all words, after the words that stand before; " +
  "of a word in several sub-words the product.";

/** What each kind of model is asked while a word of its text changes. */
const KINDS = {
  written: {
    of: "source",
    one: "Written word",
    says: BOTH,
    ends: "",
  },
  next: {
    of: "text",
    one: "Next word",
    says: BOTH,
    ends:
      "Words up to the changed one were predicted before it was read, " +
      "so their probability stays.",
  },
  masked: {
    of: "text",
    one: "Masked word",
    says:
      "Probabilities are among all words. " +
      "Each masked word is named by what is most probable there in the text as it is.",
    ends: "",
  },
  vectors: {
    of: "text",
    one: "Word",
    says:
      "The cosine is between the vectors that the last layer gives a word before and after: " +
      "1 is the same direction. Of a word in several sub-words their mean is taken.",
    ends: "",
  },
};

/**
 * What "What if" shows: the words that are changed, and those that are followed: their numbers,
 * before and now.
 */
function changing(app) {
  const {header} = app.source;
  const {
    changes: {follows = "words", unchanged, erased},
  } = header;
  const {texts} = (app.source.base ?? app.source).header; // stored examples name none
  const kind = follows !== "words" ? follows : texts.target ? "written" : "next";
  const follow = {
    written: () => texts.target,
    next: () => [...texts.text.slice(1), unchanged.likeliest.at(-1)[0][0]],
    masked: () => unchanged.likeliest.map(([[best]]) => best),
    vectors: () => texts.text,
  }[kind]();
  const first = kind === "next" ? 1 : 0; // before the first word of a text nothing was predicted
  const places = Object.keys(erased).map(Number);
  const all = app.source.header.changes.now;
  const chosen = places.includes(app.state.changed) ? app.state.changed : null;
  const written = followed(app, {kind, first, places, chosen, last: follow.length - 1});
  const named = (at) =>
    kind === "masked"
      ? `${follow[at]} (masked place ${at + 1})`
      : first && at === follow.length - 1
        ? `${follow[at]} (what follows)`
        : follow[at];
  const numbers = (one) => (kind === "vectors" ? one.similarities : one.probabilities);
  const left = (at) => numbers(erased[at])[written];
  const moving = places.filter((at) =>
    kind === "next" ? at <= written : kind !== "vectors" || at !== written,
  );
  const among = moving.length ? moving : places;
  const place =
    chosen ??
    among[
      largest(
        among.map((at) => -left(at)),
        1,
      )[0]
    ]; // at first the word that matters most
  return {
    kind,
    ...KINDS[kind],
    source: texts.source ?? texts.text,
    follow,
    written,
    named,
    numbers,
    unchanged,
    erased,
    places,
    place,
    all,
  };
}

/**
 * The index of the word whose number is told. Until one is chosen it is one that the changed word
 * can move: words up to the changed one are predicted before it is read.
 */
function followed({state}, {kind, first, places, chosen, last}) {
  const within = (at) => Math.min(Math.max(Number(at), 0), last);
  if (kind === "written") return within(state.row);
  if (state.next !== undefined) return within(state.next);
  if (kind !== "next") return within(kind === "masked" ? 0 : state.row);
  const shown = state.row - first; // the word that the other views show, or what follows the text
  const at = shown >= Math.min(...places) ? within(shown) : last;
  return Math.max(at, chosen ?? 0); // the word after the changed one is at its index
}

/** "What if it were changed?" */
export function changeView(app) {
  const found = changing(app);
  const {kind, source, follow, written, named, numbers, unchanged, erased, places, place, all} =
    found;
  const now = all ?? erased[place];
  const waits =
    app.engine && app.source.answer.erasable.length
      ? "Each word is erased in turn…"
      : `The ${found.of} has no word that can be erased.`;
  if (!now)
    return html`<h2>What if a word were missing?</h2>
      <p class="hint">${waits}</p>`;
  const row = (word, one, at) =>
    kind === "vectors"
      ? [word, [], numbers(one)[at], []]
      : [
          word,
          [numbers(unchanged)[at]],
          numbers(one)[at],
          [one.likeliest[at].map(([other, p]) => `${other} ${short(p)}`).join(", ")],
        ];
  const heads = (first) =>
    kind === "vectors" ? [first, "Cosine"] : [first, "Before", "Now", "Most probable now"];
  const each = `Each ${found.one.toLowerCase()}`;
  const one = html`“<bdi>${named(written)}</bdi>”`;
  return html`
    <h2>${app.engine ? "What if it were changed?" : "What if a word were missing?"}</h2>
    ${
      app.engine
        ? html`<p class="hint">
            Press words above to erase them, switch heads off in “Heads”, or change the model.
          </p>`
        : nothing
    }
    <div class="bar">
      ${
        all
          ? nothing
          : choice(
              "Without",
              places.map((at) => [at, source[at]]),
              place,
              (at) => choose(app, Number(at)),
            )
      }
      ${choice(
        found.one,
        follow.map((_, at) => [at, named(at)]),
        written,
        (row) => app.set(kind === "written" ? {row} : {next: row}),
      )}
    </div>
    <p class="summary" data-change>${telling(found, now, place)}</p>
    <div class="columns">
      <section class="panel">
        <h3>${each} ${all ? "now" : html`without “<bdi>${source[place]}</bdi>”`}</h3>
        ${table(
          each,
          heads("Word"),
          follow.map((_, at) => row(named(at), now, at)),
          written,
        )}
      </section>
      ${
        all
          ? nothing
          : html`<section class="panel">
              <h3>${one} without each word</h3>
              ${table(
                "Erasures",
                heads("Without"),
                places.map((at) => row(source[at], erased[at], written)),
                places.indexOf(place),
              )}
            </section>`
      }
    </div>
    <p class="hint">
      ${found.says} An erased word keeps its place and has the mean embedding of the words of the
      ${found.of}. ${found.ends}
    </p>
  `;
}

function telling({kind, source, follow, named, numbers, written, unchanged, all}, now, place) {
  const after = numbers(now)[written];
  const how = all ? "As changed" : `Without “${source[place]}”`;
  if (kind === "vectors") {
    const others = follow.map((_, at) => at).filter((at) => at !== place);
    const most =
      others[
        largest(
          others.map((at) => -numbers(now)[at]),
          1,
        )[0]
      ];
    const also =
      most === undefined
        ? ""
        : most === written
          ? "; that of no other word moves more"
          : `; of the other words that of “${named(most)}” moves most ` +
            `(${numbers(now)[most].toFixed(3)})`;
    return (
      `${how}, the vector of “${named(written)}” has a cosine of ${after.toFixed(3)} ` +
      `with the one before${also}.`
    );
  }
  if (kind === "next" && !all && written < place)
    return (
      `The probability of “${named(written)}” stays ${digits(after)}: ` +
      `the model predicts it before it reads “${source[place]}”.`
    );
  const [likeliest, chance] = now.likeliest[written][0];
  const before = numbers(unchanged)[written];
  const instead =
    after < chance ? `; most probable there is “${likeliest}” (${digits(chance)})` : "";
  return (
    `${how}, the probability of “${named(written)}” ` +
    (digits(after) === digits(before)
      ? `stays ${digits(after)}${instead}.`
      : `is ${digits(after)} instead of ${digits(before)}${instead}.`)
  );
}

function table(label, heads, rows, chosen) {
  const cells = ([word, before, now, likeliest]) => [
    word,
    ...before.map(digits),
    html`<meter
        min="0"
        max="1"
        value=${String(now)}
        aria-label=${heads.length > 2 ? "probability" : "cosine"}
      ></meter>
      ${digits(now)}`,
    ...likeliest,
  ];
  return listed(label, heads, rows.map(cells), 0, chosen);
}

function choose(app, place) {
  app.state.changed = place; // the word that is followed may depend on it
  const found = changing(app);
  app.set({changed: place, said: telling(found, found.erased[place], place)});
}
