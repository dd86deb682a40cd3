// "What does this word depend on?": the lenses beside raw attention, for one word at a time.

import {html, nothing} from "lit-html";
import {explain} from "./background.js";
import {DEPENDENCE, inked} from "./colours.js";
import {choice} from "./controls.js";
import {top as largest} from "./engine/numbers.js";
import {ODDS, listed} from "./shares.js";
import {ENDS} from "./stories.js";
import {isSpecial} from "./wordpairs.js";

const LENSES = {
  erase: {
    title: "Erasure",
    says:
      "Each word is erased in turn. The number is how far the log odds of the word fall: orange " +
      "where it depends on what was erased, grey where that speaks against it.",
  },
  gradients: {
    title: "Integrated gradients",
    says:
      "The log odds are divided among the words that were read: orange where the word depends " +
      "on them, grey where they speak against it.",
  },
  attention: {
    title: "Raw attention",
    says: "Blue: where all heads look on average while the word is written.",
  },
  rollout: {
    title: "Attention rollout",
    says:
      "Attention multiplied through all layers. " +
      "A weak lens: it ignores what the layers compute.",
  },
};
const NAMED = 2; // words that the sentence above the words names

/** The words that are explained, which of them can be, and the place of the one that is. */
export function explainedOf({engine, source: {header}, state}) {
  const words = header.texts[header.written];
  const isEnd = (at) => ENDS.includes(words[at]);
  const isWord = (at) => header.explained[at] || (engine && !isSpecial(words[at]));
  const can = (at) => isWord(at) && !isEnd(at);
  const asked = state.place ?? header.chosen;
  const ends = isEnd(asked);
  return {words, can, ends, place: ends || can(asked) ? asked : header.chosen};
}

export function readerView(app) {
  const {header} = app.source;
  const {words, can, ends, place} = explainedOf(app);
  const choose = (at) => app.set({place: at, row: at, said: saidOf(header.explained[at])});
  const lenses = header.explained[place];
  if (!lenses) explain(app);
  const chooser = header.texts.target
    ? nothing // words of the translation are pressed above
    : html` <p class="hint">Choose a word:</p>
        <div class="words" role="group" aria-label="Words to explain">
          ${words.map((word, at) =>
            can(at)
              ? html`<button
                  class="word"
                  aria-pressed=${at === Number(place) ? "true" : "false"}
                  @click=${() => choose(at)}
                >
                  <bdi>${word}</bdi>
                </button>`
              : html`<span class="word plain"><bdi>${word}</bdi></span>`,
          )}
        </div>`;
  const says = (text) =>
    html`${chooser}
      <p class="hint" role="status">${text}</p>`;
  if (ends) return says("What the end depends on is shown above.");
  if (!lenses?.length)
    return says(lenses ? "Nothing was read before this word." : "Computing what it depends on…");
  const attention = lenses.find((one) => one.lens === "attention");
  const others = lenses.filter((one) => one !== attention);
  const first = others.find((one) => one.lens === (app.state.lens ?? "erase")) ?? others[0];
  const one = first ?? attention;
  return html`${chooser}
    <p class="question">
      Why <strong><bdi>${one.word}</bdi></strong> rather than
      ${listed(
        one.others.map((other) => html`<bdi>${other}</bdi>`),
        "or",
      )}?
      Probability among these ${one.probability.toFixed(3)}, log odds ${one.log_odds.toFixed(2)}.
    </p>
    <div class="columns">
      ${
        first
          ? panel(
              first,
              html`<h3>${isShare(first) ? "Looks at" : "Depends on"}</h3>
                ${choice(
                  "Lens",
                  others.map(({lens}) => [lens, LENSES[lens].title]),
                  first.lens,
                  (lens) => app.set({lens}),
                )}`,
            )
          : nothing
      }
      ${attention ? panel(attention, html`<h3>Looks at</h3>`) : nothing}
    </div>
    <p class="hint">${ODDS} The word is compared with the most probable others.</p> `;
}

/** Whether a lens gives shares of attention. */
const isShare = ({lens}) => lens === "attention" || lens === "rollout";

const saidOf = (lenses) => (lenses?.length ? summary(lenses[0]) : "");

/** One sentence: which words matter most by a lens. */
function summary(one) {
  const {title} = LENSES[one.lens];
  const [does, to] = isShare(one) ? ["looks", "at"] : ["depends", "on"];
  const named = (words) =>
    largest(
      words.map(([, score]) => score),
      NAMED,
    )
      .filter((at) => words[at][1] > 0)
      .map((at) => `“${words[at][0]}” (${number(one, words[at][1])})`)
      .join(", then ") || "none of these words";
  const sides = [
    [one.source, "in the source"],
    [one.written, "in what was written"],
  ].filter(([words]) => words.length);
  const told = sides
    .map(([words, where]) => `${sides.length > 1 ? `${where} ` : ""}${to} ${named(words)}`)
    .join("; ");
  const both =
    sides.length > 1 && one.lens === "attention" ? " The weights of each side sum to 1." : "";
  return `${title}: “${one.word}” ${does} most ${told}.${both}`;
}

function number(one, score) {
  return isShare(one) ? score.toFixed(2) : `${score < 0 ? "−" : "+"}${Math.abs(score).toFixed(2)}`;
}

function panel(one, heading) {
  const top = Math.max(...[...one.source, ...one.written].map(([, score]) => Math.abs(score)), 0);
  const sides = [
    ["In the source", one.source],
    ["In what was already written", one.written],
  ];
  return html`<section class="panel" data-lens=${one.lens}>
    <div class="bar">${heading}</div>
    <p class="summary">${summary(one)}</p>
    ${sides.map(([title, words]) =>
      words.length
        ? html`<h4>${title}</h4>
            <div class="words">${words.map(([word, score]) => scored(one, word, score, top))}</div>`
        : nothing,
    )}
    <p class="hint">${LENSES[one.lens].says} <span class="faint">${one.cost}.</span></p>
  </section>`;
}

/** A word with its number below. */
function scored(one, word, score, top) {
  const colours = inked(top ? score / top : 0, isShare(one) ? undefined : DEPENDENCE);
  return html`<span class="scored"
    ><span class="word" .style=${colours}><bdi>${word}</bdi></span>
    <small>${number(one, score)}</small></span
  >`;
}
