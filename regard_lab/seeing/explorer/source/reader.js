// "What does this word depend on?": the lenses beside raw attention, for one word at a time.

import {html, nothing} from "lit-html";
import {explain} from "./background.js";
import {signed, weightColours} from "./colours.js";
import {choice} from "./controls.js";
import {largest} from "./data.js";

const LENSES = {
  erase: {
    title: "Erasure",
    says:
      "Each word is erased in turn. A positive number is how much " +
      "the model's preference for the word falls.",
  },
  gradients: {
    title: "Integrated gradients",
    says:
      "The preference for the word is divided among the words that were read. " +
      "Negative numbers speak against it.",
  },
  attention: {
    title: "Raw attention",
    says:
      "Where all heads look on average while the word is written. " +
      "It does not say what the model uses.",
  },
  rollout: {
    title: "Attention rollout",
    says:
      "Attention multiplied through all layers. " +
      "A weak lens: it ignores what the layers compute.",
  },
};
const NAMED = 2; // words that the sentence above the words names

export function readerView(app) {
  const {header} = app.source;
  const words = header.texts[header.written];
  const can = (at) =>
    header.explained[at] || (app.engine && words[at] !== "<begin>" && words[at] !== "<end>");
  const asked = app.state.place ?? header.chosen;
  const place = can(asked) ? asked : header.chosen;
  const choose = (at) => app.set({place: at, row: at, said: saidOf(header.explained[at])});
  const lenses = header.explained[place];
  if (!lenses) explain(app);
  const chooser = html`${
    header.texts.target
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
          </div>`
  }`;
  if (!lenses?.length)
    return html`${chooser}
      <p class="hint" role="status">
        ${lenses ? "Nothing was read before this word." : "Computing what it depends on…"}
      </p>`;
  const first = lenses.find((one) => one.lens === (app.state.lens ?? "erase")) ?? lenses[0];
  const attention = lenses.find((one) => one.lens === "attention");
  const besides =
    attention && attention !== first
      ? panel(attention, html`<h3>${LENSES.attention.title}</h3>`)
      : nothing;
  return html`${chooser}
    <p class="question">
      Why <strong><bdi>${first.word}</bdi></strong> rather than ${either(first.others)}? Log odds
      ${first.log_odds.toFixed(2)}, probability ${first.probability.toFixed(3)} among these.
    </p>
    <div class="columns">
      ${panel(
        first,
        html`<h3>By a lens</h3>
          ${choice(
            "Lens",
            lenses.map((one) => [one.lens, LENSES[one.lens].title]),
            first.lens,
            (lens) => app.set({lens}),
          )}`,
      )}
      ${besides}
    </div>
    <p class="hint">
      It is compared with the words that the model found most probable beside it, unless others were
      asked for.
    </p> `;
}

function either(words) {
  return words.map(
    (word, at) => html`${at ? (at === words.length - 1 ? " or " : ", ") : ""}<bdi>${word}</bdi>`,
  );
}

/** Whether a lens gives shares of attention. */
const isShare = ({lens}) => lens === "attention" || lens === "rollout";

const saidOf = (lenses) => (lenses?.length ? summary(lenses[0]) : "");

/** One sentence: which words matter most by a lens. */
function summary(one) {
  const {title} = LENSES[one.lens];
  const named = (words) =>
    largest(
      words.map(([, score]) => score),
      NAMED,
    )
      .filter((at) => words[at][1] > 0)
      .map((at) => `“${words[at][0]}” (${number(one, words[at][1])})`)
      .join(", then ") || "none of these words";
  if (!isShare(one))
    return `${title}: “${one.word}” depends most on ${named([...one.source, ...one.written])}.`;
  const sides = [
    [one.source, "in the source"],
    [one.written, "in what was written"],
  ].filter(([words]) => words.length);
  const told = sides
    .map(([words, where]) => `${sides.length > 1 ? `${where} ` : ""}at ${named(words)}`)
    .join("; ");
  const both = sides.length > 1 ? " The weights of each side sum to 1." : "";
  return `${title}: “${one.word}” looks most ${told}.${both}`;
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
  const colours = isShare(one) ? weightColours(top ? score / top : 0) : signed(score, top);
  return html`<span class="scored"
    ><span class="word" .style=${colours}><bdi>${word}</bdi></span>
    <small>${number(one, score)}</small></span
  >`;
}
