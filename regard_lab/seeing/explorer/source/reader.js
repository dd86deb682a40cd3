// "What does this word depend on?": the lenses beside raw attention, for one word at a time.

import {html, nothing} from "lit-html";
import {explain} from "./background.js";
import {signed, weightColours} from "./colours.js";
import {badge, choice, headChoice} from "./controls.js";
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
const SHOWN = 200; // words of a text that are shown around the chosen one

export function readerView(app, weights) {
  const {header} = app.source;
  return header.written && (app.engine || Object.keys(header.explained).length)
    ? explainedReader(app)
    : attentionReader(app, weights);
}

function explainedReader(app) {
  const {header} = app.source;
  const words = header.texts[header.written];
  const can = (at) =>
    header.explained[at] || (app.engine && words[at] !== "<begin>" && words[at] !== "<end>");
  const place = can(app.state.place ?? header.chosen)
    ? (app.state.place ?? header.chosen)
    : header.chosen;
  const choose = (at) => app.set({place: at, row: at, said: saidOf(header.explained[at])});
  const lenses = header.explained[place];
  if (!lenses) explain(app);
  const chooser = html`<h2>What does this word depend on?</h2>
    ${
      app.engine && header.texts.target
        ? nothing
        : html` <p class="hint">Choose a ${header.texts.source ? "written word" : "word"}:</p>
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
      ? panel(app, attention, html`<h3>${LENSES.attention.title}</h3>`)
      : nothing;
  return html`${chooser}
    <p class="question">
      Why <strong><bdi>${first.word}</bdi></strong> rather than ${either(first.others)}? Log odds
      ${first.log_odds.toFixed(2)}, probability ${first.probability.toFixed(3)} among these.
    </p>
    <div class="columns">
      ${panel(
        app,
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
      The words that <bdi>${first.word}</bdi> is compared with are those that the model found most
      probable beside it, unless others were asked for. “<bdi>&lt;begin&gt;</bdi>” and
      “<bdi>&lt;end&gt;</bdi>” are never erased.
    </p> `;
}

function either(words) {
  return words.map(
    (word, at) => html`${at ? (at === words.length - 1 ? " or " : ", ") : ""}<bdi>${word}</bdi>`,
  );
}

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
  if (one.lens !== "attention" && one.lens !== "rollout")
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
  return one.lens === "attention" || one.lens === "rollout"
    ? score.toFixed(2)
    : `${score < 0 ? "−" : "+"}${Math.abs(score).toFixed(2)}`;
}

function panel(app, one, heading) {
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
            <div class="words">
              ${words.map(([word, score]) => scored(app, one, word, score, top))}
            </div>`
        : nothing,
    )}
    <p class="hint">${LENSES[one.lens].says} <span class="faint">${one.cost}.</span></p>
  </section>`;
}

/** A word with its number below; for erasure also what the probability would be without it. */
function scored(app, one, word, score, top) {
  const plain = one.lens === "attention" || one.lens === "rollout";
  const colours = plain ? weightColours(top ? score / top : 0) : signed(score, top);
  let title = `${word}: ${number(one, score)}`;
  if (one.lens === "erase") {
    const without = 1 / (1 + Math.exp(-(one.log_odds - score)));
    title +=
      `; without it the probability of ${one.word} is ${without.toFixed(3)} ` +
      `instead of ${one.probability.toFixed(3)}`;
  }
  return html`<span class="scored" title=${title}
    ><span class="word" .style=${colours}><bdi>${word}</bdi></span>
    <small>${number(one, score)}</small></span
  >`;
}

/** Without a model nothing can be erased: where each head looks from one word. */
function attentionReader(app, weights) {
  const {state} = app;
  const {rows, columns} = app.words;
  const row = weights.row(state.row);
  const top = row[largest(row, 1)[0]];
  const [from, to] = around(state.row, rows.length);
  const [first, last] = rows === columns ? [from, to] : around(largest(row, 1)[0], columns.length);
  return html`
    <h2>Where does this word look?</h2>
    <p class="hint">
      ${app.engine || app.source.header.changes ? "Attention weights" : "These are weights without a model, and"}
      say where a word looks and not what the model uses. ${app.attention.sums ?? ""}
    </p>
    <div class="bar">${headChoice(app)} ${badge(weights)}</div>
    <p class="hint">Choose a word (${app.attention.row_title})${cut(from, to, rows.length)}:</p>
    <div class="words" role="group" aria-label="Words">
      ${rows.slice(from, to).map(
        (word, at) =>
          html`<button
            class="word"
            aria-pressed=${from + at === state.row ? "true" : "false"}
            @click=${() => app.set({row: from + at})}
          >
            <bdi>${word}</bdi>
          </button>`,
      )}
    </div>
    <section class="panel">
      <h3><bdi>${rows[state.row]}</bdi> looks at</h3>
      <div class="words">
        ${columns.slice(first, last).map(
          (word, at) =>
            html`<span class="scored">
              <span class="word" .style=${weightColours(top ? row[first + at] / top : 0)}
                ><bdi>${word}</bdi></span
              >
              <small>${row[first + at].toFixed(2)}</small></span
            >`,
        )}
      </div>
      <p class="hint">
        ${cut(first, last, columns.length)} The row sums to ${sum(row).toFixed(3)}; entropy
        ${weights.entropy(state.row).toFixed(2)} nats.
      </p>
    </section>
  `;
}

function around(place, count) {
  if (count <= SHOWN) return [0, count];
  const from = Math.min(Math.max(place - SHOWN / 2, 0), count - SHOWN);
  return [from, from + SHOWN];
}

function cut(from, to, count) {
  return to - from < count ? ` Words ${from} to ${to - 1} of ${count} are shown.` : "";
}

function sum(values) {
  let total = 0;
  for (const value of values) total += value;
  return total;
}
