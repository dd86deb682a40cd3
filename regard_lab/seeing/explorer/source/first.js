// The first screen: a text and what a model makes of it, links from the chosen word to the words
// that it depends on, one sentence in probabilities, and three experiments.

import {html, nothing} from "lit-html";
import {explain} from "./background.js";
import {experimentsOf} from "./experiments.js";
import {field} from "./field.js";
import {drawer, sentenceForm} from "./form.js";
import {guessed, headline} from "./headline.js";
import {offers} from "./offers.js";
import {outcome} from "./outcome.js";
import {isChanged, undo} from "./past.js";
import {saveFirst} from "./picture.js";
import {pills} from "./pills.js";
import {rove} from "./rove.js";
import {liveForm} from "./server.js";
import {share, short} from "./shares.js";
import {fit, fitText, link} from "./stage.js";
import {around, named, pointedAt, quoted, storyOf, strengths} from "./stories.js";
import {drawn} from "./surface.js";
import {differences, isSpecial, readOf} from "./wordpairs.js";

const MODES = {depends: "Depends on", looks: "Looks at"};

export function firstScreen(app) {
  const story = storyOf(app);
  if (!story) return html`<h1><bdi>${app.source.header.title}</bdi></h1>`;
  if (story.waits || (app.engine && !experimentsOf(app))) queueMicrotask(() => explain(app));
  const strong = strengths(story);
  const {busy} = app.state;
  return html`<div
    class="screen"
    data-by=${story.by}
    @keydown=${(event) => onKey(app, event)}
    @click=${{handleEvent: (event) => closeSheet(app, event), capture: true}}
  >
    <div class="top">
      ${top(app, story)}
      <span role="alert">${busy}</span>
    </div>
    <h1 class="answer" ${drawn(fitText)}>${guessed(app)}${headline(app, story, strong)}</h1>
    ${stage(app, story, strong)} ${tells(app, story) ? told(app, story) : nothing}
  </div>`;
}

/** What a change has done, and experiments. */
function told(app, story) {
  const changed = Boolean(app.engine) && isChanged(app);
  return html`<div class="told">
      <p aria-live="polite" class="outcome" ${drawn(fitText)}>${outcome(app, story)}</p>
      <button class="undo ${changed ? "on" : ""}" ?disabled=${!changed} @click=${() => undo(app)}>
        Undo
      </button>
    </div>
    ${experiments(app, story)}`;
}

/**
 * Before the answer: what runs here and what can be pressed. It gives its room to the form of
 * another text, to what is changed, or to what can be pressed while links show attention. The form
 * of a served page stands below.
 */
function top(app, {orientation, hint, kind}) {
  const {live, title} = app.source.header;
  const asks = hint ? html`<p class="orientation">${hint}</p>` : nothing;
  const changes = app.engine && isChanged(app) ? pills(app) : asks;
  const shown = app.engine && app.state.types ? sentenceForm(app) : changes;
  const heading = html`<p class="title"><bdi>${title}</bdi></p>`;
  // of a translation it is the lines below
  return html`${app.engine || kind === "written" ? nothing : heading}
    <div class="room">
      <p class="orientation ${shown === nothing ? "" : "behind"}">${orientation}</p>
      ${shown}
    </div>
    ${live && !app.engine ? liveForm(app) : nothing}`;
}

function stage(app, story, strong) {
  const {given, written, options, arcs, asker} = story;
  const key = [app.origin?.header.title ?? app.source.header.title, story.kind].join("/");
  const gap = html`<div class="gap">${field(app)}</div>`;
  return html`<section
    class="stage"
    aria-label="The words, and links between them"
    ${drawn((element) => {
      fit(element, key, Boolean(arcs));
      link(element, {strengths: strong, pointed: pointedAt(app, story), asker});
    })}
  >
    <svg aria-hidden="true"></svg>
    <div class="cap">
      <p class="note"><strong>${given.label}</strong> ${legend(story, strong)}</p>
      ${story.modes.length > 1 ? modeSwitch(app, story) : nothing}
    </div>
    ${arcs ? gap : nothing} ${readLine(app, story, strong)}
    ${arcs || options?.length === 0 ? nothing : gap} ${written ? writtenLine(app, story) : nothing}
    ${options ? optionList(app, story) : nothing}
    <div class="cap below">
      <p class="note">${below(app, story)}</p>
      ${tools(app)}
    </div>
  </section>`;
}

function modeSwitch(app, {by}) {
  return html`<div class="switch" role="radiogroup" aria-label="Links show what the word">
    ${Object.entries(MODES).map(
      ([mode, title]) =>
        html`<button
          role="radio"
          data-mode=${mode}
          aria-checked=${String(mode === by)}
          @click=${() => app.set({by: mode})}
        >
          ${title}
        </button>`,
    )}
  </div>`;
}

/** A line of words: the pointer and the focus on a word mark it in every head. */
function line(app, name, label, text, range, {words, can}, draw) {
  const points = (event) => point(app, event, text, can);
  return html`<div
    class="line ${name}"
    data-line=${name}
    role="toolbar"
    aria-label="Words that are ${label}"
    @pointerover=${(event) => event.pointerType === "mouse" && hasMoved(app, event) && points(event)}
    @pointerleave=${() => unpoint(app)}
    @focusin=${(event) => event.target.matches(":focus-visible") && points(event)}
    @focusout=${() => unpoint(app)}
  >
    ${rows(words, range, draw)}
  </div>`;
}

/** The words that are read. */
function readLine(app, story, strong) {
  const {given, chosen, arcs, by, looks, kind, asker} = story;
  const unknown = app.source.answer?.unknown ?? []; // null where the words are not stored
  const range = around(arcs ? chosen : given.words.length, given.words.length);
  const replaced = arcs || !app.origin ? [] : replacedIn(readOf(app.origin.header), given.words);
  const text = kind === "written" ? "source" : app.attention.columns;
  const number = (at) => {
    if (!(strong[at] > 0)) return "";
    if (by === "looks") return share(looks.values[at]);
    const {p} = story.without(at);
    return kind === "vectors" ? share(p) : short(p);
  };
  const draw = (word, at) => {
    const can = given.can(at);
    const gone = given.gone.includes(at);
    const asked = at === asker;
    const pointed = given.pointed === at;
    const measured = `${by === "looks" ? "looked at with" : "without it"} ${number(at)}`;
    const says = [...(gone ? ["erased"] : []), ...(number(at) ? [measured] : [])].join(", ");
    const writes = app.field?.at === at;
    return html`<button
      class="w ${looksOf(word)} ${classes({gone, chosen: asked, hot: pointed, still: !can, strange: unknown.includes(word)})}"
      data-at=${at}
      aria-description=${says || nothing}
      aria-pressed=${can ? String(gone || pointed || asked) : nothing}
      aria-disabled=${can ? nothing : "true"}
      .style="--k:${(strong[at] ?? 0).toFixed(3)}"
      @click=${() => can && given.press(at)}
    >
      <span class="n" aria-hidden="true">${number(at)}</span
      ><span class="t"><bdi>${named(word)}</bdi></span>
      ${writes ? nothing : was(replaced[at])}
    </button>`;
  };
  const erases = app.engine && !arcs && by === "depends";
  const label = erases ? "read; press one to erase or replace it" : "read";
  return line(app, "given", label, text, range, given, draw);
}

/** Under a word stands the one that it has replaced. */
const was = (word) => (word ? html`<span class="was"><bdi>${word}</bdi></span>` : nothing);

/** The words before, by the place of those that have replaced them. */
function replacedIn(one, other) {
  const replaced = [];
  for (const {before, after, to} of differences(one, other)) {
    const alike = before.length === after.length;
    const places = Math.max(after.length, 1);
    for (let at = 0; at < places; at += 1)
      replaced[to + at] = alike ? before[at] : at === 0 ? before.join(" ") : "";
  }
  return replaced;
}

/** The words that are written. */
function writtenLine(app, {kind, written, chosen, asker}) {
  const replaced = replacedIn(written.before, written.words);
  const text = kind === "written" ? "target" : app.attention.rows;
  const isChosen = (at) => at === chosen && asker === undefined;
  const draw = (word, at) =>
    html`<button
      class="w ${looksOf(word)} ${classes({chosen: isChosen(at)})}"
      data-at=${at}
      aria-pressed=${String(isChosen(at))}
      @click=${() => written.press(at)}
    >
      <span class="t"><bdi>${named(word)}</bdi></span>
      ${was(replaced[at])}
    </button>`;
  const range = around(chosen, written.words.length);
  return line(app, "written", "written; press one to explain it", text, range, written, draw);
}

/** Next words, classes or guesses with their probabilities. */
function optionList(app, {options, chosen, optionsLabel}) {
  const most = Math.max(...options.map(([, p]) => p));
  return html`<div class="options" data-line="written" role="toolbar" aria-label=${optionsLabel}>
    ${options.map(
      ([word, p], at) =>
        html`<button
            class="w ${classes({chosen: at === chosen})}"
            aria-pressed=${String(at === chosen)}
            @click=${() => app.set({pick: at})}
          >
            <span class="t"><bdi>${named(word)}</bdi></span>
          </button>
          <i
            class=${at === chosen ? "chosen" : ""}
            .style="width:${((100 * p) / most).toFixed(1)}%"
          ></i>
          <strong>${short(p)}</strong>`,
    )}
  </div>`;
}

const classes = (names) =>
  Object.keys(names)
    .filter((name) => names[name])
    .join(" ");

const isMark = (word) => /^[\p{P}]$/u.test(word);

/** How a word is set: the beginning and the end small, marks close to the word before them. */
function looksOf(word) {
  if (isSpecial(word)) return "e";
  return isMark(word) ? "p" : "";
}

/** Words of a line; a mark, and the end, on the row of the word before. */
function rows(words, [from, to], draw) {
  const groups = [];
  for (let at = from; at < to; at += 1) {
    const follows = isMark(words[at]) || (at === words.length - 1 && isSpecial(words[at]));
    if (follows && groups.length) groups.at(-1).push(at);
    else groups.push([at]);
  }
  return groups.map(
    (group) => html`<span class="g">${group.map((at) => draw(words[at], at))}</span>`,
  );
}

/** The word under the pointer, or with the focus: the answer speaks of one that can be erased. */
function point(app, event, text, can) {
  const word = event.target.closest(".w");
  if (!word) return;
  light(app, {text, at: Number(word.dataset.at)});
  const at = can?.(app.lit.at) ? app.lit.at : null;
  if (app.hot === at) return;
  app.hot = at;
  app.drawFirst();
}

/** Whether the pointer came to a word, rather than a word to the pointer. */
function hasMoved(app, {clientX, clientY}) {
  const before = app.pointer;
  app.pointer = `${clientX}/${clientY}`;
  return app.pointer !== before;
}

function unpoint(app) {
  light(app, null);
  if (app.hot === null) return;
  app.hot = null;
  app.drawFirst();
}

function light(app, word) {
  app.lit = word;
  app.light?.();
}

/** What the numbers above the words are. */
function legend({by, looks, kind, word, without}, strong) {
  if (by === "looks") return `numbers: share of attention, ${looks.says}`;
  if (!without || !strong.some((one) => one > 0)) return "";
  const numbers = kind === "vectors" ? "cosine of the vector of" : "probability of";
  return html`numbers: ${numbers} ${quoted(word, true)} without that word`;
}

/** What the lower line is, and the probability of its chosen word. */
function below({source}, {kind, written, optionsLabel, word, own, hint}) {
  const cut = source.answer?.finished === false ? " (cut, as it does not end)" : "";
  const label = html`<strong>${written?.label ?? optionsLabel}${cut}</strong>`;
  if (hint) return html`${label} press any word to see where it looks`;
  if (own === undefined || kind === "vectors") return label;
  return html`${label} ${quoted(word, true)} has <span class="o">probability ${short(own)}</span>`;
}

/** Another sentence, the drawer in which the model is changed, and what can be taken away. */
function tools(app) {
  return html`<div class="tools" role="toolbar" aria-label="Text, model and picture">
    ${
      app.engine
        ? html`<button class="plain" @click=${() => writes(app)}>
              Another ${app.source.header.texts.source ? "sentence" : "text"}
            </button>
            ${drawer(app)}`
        : nothing
    }
    ${sharing(app)}
  </div>`;
}

/** The address of what is shown, and its picture. */
function sharing(app) {
  return html`<details class="tweaks share">
    <summary>Share</summary>
    <div class="sheet" data-apart>
      <button @click=${() => copyLink(app)}>Copy the link to this screen</button>
      <button @click=${() => saveFirst(app, "svg")}>Save the sentence picture as SVG</button>
      <button @click=${() => saveFirst(app, "png")}>Save the sentence picture as PNG</button>
      <p class="hint" role="status">${app.state.copied}</p>
    </div>
  </details>`;
}

async function copyLink(app) {
  const copied = await navigator.clipboard?.writeText(location.href).then(
    () => "The link is copied.",
    () => null,
  );
  app.set({copied: copied ?? "Copy the address of this page instead."});
}

async function writes(app) {
  await app.set({types: !app.state.types});
  const input = app.element.querySelector("#sentence");
  input?.focus(); // which scrolls to it
  input?.select();
}

/** Whether a page has experiments: those of its model, or heads that it can show. */
const tells = (app, {kind}) => Boolean(app.engine) || (kind !== "next" && kind !== "masked");

const TRYING = html`<button disabled>
  <strong>…</strong><span>trying words and heads</span>
</button>`;

function experiments(app, story) {
  const found = app.engine ? experimentsOf(app) : offers(app, story);
  const list = found ?? [null, null, null];
  return html`<div class="try" role="toolbar" aria-label="Experiments">
    ${list.map((one) =>
      one
        ? html`<button aria-pressed=${String(Boolean(one.on(app.state)))} @click=${one.press}>
            <strong>${one.title}</strong><span>${one.says}</span>
          </button>`
        : TRYING,
    )}
  </div>`;
}

/**
 * A click beside the open sheet closes it, and does nothing else: words lie below it on a phone.
 */
function closeSheet(app, event) {
  const sheet = app.element.querySelector(".tweaks[open]");
  if (!sheet || sheet.contains(event.target)) return;
  sheet.open = false;
  if (event.target.closest(".tools")) return;
  event.stopPropagation();
  event.preventDefault();
}

function onKey(app, event) {
  const typing = event.target.matches("input");
  const takesBack = event.key === "z" && (event.ctrlKey || event.metaKey) && !typing;
  const sheet = app.element.querySelector(".tweaks[open]");
  if (event.key === "Escape" && sheet) sheet.open = false;
  else if (event.key === "Escape" && app.state.types) app.set({types: false});
  else if (takesBack || (event.key === "Escape" && !typing)) undo(app);
  else rove(event);
}
