// The whole computation step by step: the line of each step, its formula, its shape, and its
// numbers for one word.

import {html, nothing} from "lit-html";
import {choice} from "./controls.js";
import {Source} from "./data.js";
import {mathml} from "./mathml.js";
import {numbers} from "./numbers.js";
import {ask} from "./server.js";
import {quoted} from "./stories.js";
import {drawn} from "./surface.js";

export function walkView(app) {
  const walk = walkOf(app);
  if (!walk)
    return html`<p class="hint" role="status">${app.walkFailed ?? "Computing every step…"}</p>`;
  const {steps, note} = walk.record;
  if (!steps.length) return html`<p class="hint">${note}</p>`;
  const at = Math.min(app.state.step, steps.length - 1);
  const step = steps[at];
  const shownSteps = walkedOf(app, walk);
  const place = shownSteps.indexOf(at);
  const sections = [...new Set(shownSteps.map((one) => steps[one].section))];
  const word = followed(app, walk.record);
  const key = `${at}/${word.join()}`;
  const {stepShown} = app;
  const isShown = stepShown?.key === key && stepShown.walk === walk;
  if (!isShown && !step.words) load(app, walk, step, word, key);
  const isStored =
    app.engine &&
    app.source.header.walk &&
    (app.source.base || app.source.given.source !== app.source.header.model.text);
  return html`
    ${isStored ? stored(app.source.header.model.text) : nothing}
    <div class="bar">
      ${choice(
        "Part",
        sections.map((name, number) => [number, name]),
        sections.indexOf(step.section),
        (number) =>
          go(
            app,
            walk,
            shownSteps.find((one) => steps[one].section === sections[number]),
          ),
      )}
      <button @click=${() => go(app, walk, shownSteps[place - 1])} ?disabled=${place === 0}>
        Previous step
      </button>
      <button
        @click=${() => go(app, walk, shownSteps[place + 1])}
        ?disabled=${place === shownSteps.length - 1}
      >
        Next step
      </button>
      <span class="badge">step ${place + 1} of ${shownSteps.length}</span>
      ${other(app, walk.record, at)} ${follower(app, walk.record, step, word)}
    </div>
    <section
      class="panel step"
      tabindex="0"
      aria-roledescription="step"
      aria-label="Left and right arrows change the step. ${heading(step)}"
      @keydown=${(event) => onKey(app, event, walk, shownSteps, place)}
    >
      <h3>${step.title}</h3>
      ${step.says ? html`<p>${step.says}</p>` : nothing} ${step.formula ? formula(step) : nothing}
      <pre><code>${step.line}</code></pre>
      <p class="hint" data-shape>${shape(step)}</p>
      ${isShown || step.words ? numbers(walk, step, stepShown) : html`<p class="hint">Unpacking…</p>`}
    </section>
    <p class="hint">
      ${note} ${walk.record.checks} results were compared with the model's own; the largest
      difference is ${walk.record.difference.toExponential(1)}. Numbers are computed with 64 bits
      and stored with 32. Sentences that name a word are about ${about(app, walk.record)}.
    </p>
  `;
}

/** The word that sentences are about; of a translation, also the one that is written after it. */
function about({source}, {words, word}) {
  const next = source.header.texts.target && words[word + 1];
  return html`${quoted(words[word])}${next ? html`, after which ${quoted(next)} is written` : nothing}`;
}

/** Another word for a step whose numbers are stored for each word. */
function follower(app, record, step, word) {
  const axis = step.axes[followedAxis(step)];
  const side = axis ? sides(record).indexOf(axis.labels) : -1;
  if (side < 0) return nothing;
  return choice(
    side ? "Source word" : "Word followed",
    record.labels[axis.labels].map((name, number) => [number, name]),
    word[side],
    (number) => app.set({followed: Object.assign([...word], {[side]: Number(number)})}),
  );
}

/** The axis of a step that has the numbers of each word, of which one is shown; -1 without one. */
function followedAxis({only, axes}) {
  if (only !== undefined || axes.length < 2) return -1;
  return axes.findIndex(({chosen}) => chosen !== null);
}

/** The indices of the steps that are walked. A link to another step walks all. */
function walkedOf({state}, {record: {steps, main}}) {
  return state.whole || !main.includes(state.step) ? [...steps.keys()] : main;
}

/** A button that walks all steps, or the main ones. */
function other(app, {steps, main}, at) {
  if (main.length === steps.length) return nothing;
  const all = !app.state.whole && main.includes(at);
  const changes = all
    ? {whole: "yes"}
    : {whole: undefined, step: main.findLast((one) => one <= at)};
  return html`<button @click=${() => app.set(changes)}>
    ${all ? `Walk all ${steps.length} steps` : `Walk the ${main.length} main steps`}
  </button>`;
}

function stored(text) {
  return html`<p class="hint">
    These steps were stored for “<bdi>${text}</bdi>” and the model as trained.
  </p>`;
}

function formula({formula: nested}) {
  const place = drawn((element) => element.replaceChildren(mathml(nested)));
  return html`<div class="formula" ${place}></div>`;
}

/**
 * The steps of the page, or those that the local server computes of its text when this view is
 * opened.
 */
function walkOf(app) {
  const {source} = app;
  if (source.header.walk) return (source.walk ??= {record: source.header.walk, source});
  if (source.walk || app.walkAsked === source) return source.walk;
  app.walkAsked = source;
  app.walkFailed = undefined;
  ask("walk", source.given?.source ?? source.header.live.text).then(
    (answer) => {
      source.walk = {record: answer.walk, source: new Source({}, answer.arrays)};
      app.draw();
    },
    (error) => {
      app.walkFailed = error.message;
      app.draw();
    },
  );
  return undefined;
}

/**
 * The lists of words that can be followed: those that are written or read, and those of the source.
 */
function sides({steps, labels, words}) {
  const own = labels.findIndex(
    (one) => one.length === words.length && one.every((word, at) => word === words[at]),
  );
  const found = new Set(own < 0 ? [] : [own]);
  for (const {axes} of steps)
    for (const axis of axes)
      if (axis.unit === "words" && axis.chosen !== null && axis.labels !== null)
        found.add(axis.labels);
  return [...found];
}

/** The index of the followed word on each side. */
export function followed(app, record) {
  return sides(record).map((labels, side) => {
    const first =
      side === 0
        ? record.word
        : record.steps
            .flatMap(({axes}) => axes)
            .find((axis) => axis.labels === labels && axis.chosen !== null).chosen;
    const chosen = app.state.followed?.[side] ?? first;
    return Math.min(chosen, record.labels[labels].length - 1);
  });
}

/** The numbers of a step for the followed word, as rows and columns. */
async function load(app, walk, step, word, key) {
  if (app.stepAsked === key && app.stepFor === walk) return;
  Object.assign(app, {stepAsked: key, stepFor: walk});
  const bytes = await walk.source.bytes(step.place);
  const values = new Float32Array(bytes.buffer);
  const at = followedAxis(step);
  let {axes} = step;
  let picked = values;
  if (step.only !== undefined) {
    axes = axes.filter((_, number) => number !== step.only);
  } else if (at >= 0) {
    const index = word[sides(walk.record).indexOf(axes[at].labels)] ?? word[0];
    picked = selected(
      values,
      axes.map(({size}) => size),
      at,
      Math.min(index, axes[at].size - 1),
    );
    axes = axes.filter((_, number) => number !== at);
  }
  let most = 0;
  for (const value of values) if (Number.isFinite(value)) most = Math.max(most, Math.abs(value));
  const columns = axes.at(-1);
  const rows = axes.at(-2);
  app.stepShown = {key, walk, values: picked, rows, columns, most};
  app.draw();
}

/** The numbers at one index of an axis. */
export function selected(values, sizes, axis, index) {
  const inner = sizes.slice(axis + 1).reduce((product, size) => product * size, 1);
  const outer = sizes.slice(0, axis).reduce((product, size) => product * size, 1);
  const found = new Float32Array(outer * inner);
  for (let at = 0; at < outer; at += 1) {
    const from = (at * sizes[axis] + index) * inner;
    found.set(values.subarray(from, from + inner), at * inner);
  }
  return found;
}

function shape(step) {
  const sizes = step.axes
    .map(
      ({size, unit}) =>
        `${size.toLocaleString("en")} ${size === 1 ? unit.replace(/s$/, "") : unit}`,
    )
    .join(" × ");
  return step.words || step.axes.length < 2 ? sizes : `${sizes}; shown for one word`;
}

function heading(step) {
  return `${step.section}: ${step.title}.`;
}

function go(app, walk, step) {
  const all = walkedOf(app, walk);
  const said = `Step ${all.indexOf(step) + 1} of ${all.length}. `;
  app.set({step, said: said + heading(walk.record.steps[step])});
}

function onKey(app, event, walk, all, place) {
  if (event.target !== event.currentTarget) return undefined; // the table below scrolls by itself
  const {steps} = walk.record;
  const begins = (way) => {
    const section = (at) => steps[all[at]].section;
    for (let to = place + way; to >= 0 && to < all.length; to += way)
      if (section(to) !== section(place))
        return way > 0 ? to : all.findIndex((_, at) => section(at) === section(to));
    return way > 0 ? all.length - 1 : 0;
  };
  const to = {
    ArrowRight: Math.min(place + 1, all.length - 1),
    ArrowLeft: Math.max(place - 1, 0),
    Home: 0,
    End: all.length - 1,
    PageDown: begins(1),
    PageUp: begins(-1),
  }[event.key];
  if (to === undefined) return undefined;
  event.preventDefault();
  return go(app, walk, all[to]);
}
