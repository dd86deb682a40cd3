// The engine in a page: checks and unpacks the model, and answers what the page asks, in a thread
// of its own.

import {TextModel} from "./text-model.js";
import {Translator} from "./translator.js";
import {RecurrentTranslator} from "./recurrent.js";

const KINDS = {
  "translation-transformer": Translator,
  "recurrent-translator": RecurrentTranslator,
  "language-model": TextModel,
  "text-encoder": TextModel,
};

/** The tensors: float32, or int8 with the scale of each row before its numbers. */
function unpacked(records, buffer) {
  return Object.fromEntries(
    records.map(({name, shape, kind, at}) => {
      const count = shape.reduce((product, one) => product * one, 1);
      if (kind === "float32") return [name, new Float32Array(buffer, at, count)];
      const [rows] = shape;
      const scales = new Float32Array(buffer.slice(at, at + 4 * rows));
      const numbers = new Int8Array(buffer, at + 4 * rows, count);
      const values = new Float32Array(count);
      for (let row = 0, place = 0; row < rows; row += 1)
        for (const end = place + count / rows; place < end; place += 1)
          values[place] = numbers[place] * scales[row];
      return [name, values];
    }),
  );
}

/**
 * The model of a page. text: what it is, as JSON; packed: its tensors in base64, deflated if they
 * are int8; digest: the SHA-256 of the text and the packed bytes.
 */
export async function load({text, packed, digest}) {
  const what = new TextEncoder().encode(text);
  const bytes = ofBase64(packed);
  const all = new Uint8Array(what.length + bytes.length);
  all.set(what);
  all.set(bytes, what.length);
  const found = await globalThis.crypto.subtle?.digest("SHA-256", all);
  if (
    found &&
    Array.from(new Uint8Array(found), (byte) => byte.toString(16).padStart(2, "0")).join("") !==
      digest
  )
    throw new Error(
      "The model in this page was changed or damaged since it was exported, so it does not run; " +
        "export the page again.",
    );
  const content = JSON.parse(text);
  const inflated = () =>
    new Response(
      new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate")),
    ).arrayBuffer();
  const buffer = content.deflated ? await inflated() : bytes.buffer;
  return Object.assign(new KINDS[content.kind](content, unpacked(content.tensors, buffer)), {
    checked: Boolean(found),
  });
}

function ofBase64(text) {
  // ten times as fast, where the browser has it
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

/**
 * Answer messages {id, ask, ...}. A newer question, unless it is for pairs, ends a lens, or effects
 * of heads, that are under way; the page asks for one run at a time.
 */
function serve(port) {
  const {port1, port2} = new MessageChannel();
  const turns = [];
  let [model, newest] = [null, 0];
  port1.onmessage = () => turns.shift()();
  const turn = () =>
    new Promise((done) => {
      turns.push(done);
      port2.postMessage(0);
    }); // setTimeout would wait 4 ms
  port.onmessage = async ({data: {id, ask, ...given}}) => {
    if (ask !== "pairs") newest = id;
    try {
      if (ask === "load") model = await load(given);
      const answer =
        ask === "load"
          ? {checked: model.checked}
          : await model[ask](given, async () => (await turn(), newest !== id));
      port.postMessage({id, answer});
    } catch (error) {
      port.postMessage({id, error: error.message});
    }
  };
}

if (typeof WorkerGlobalScope !== "undefined" && self instanceof WorkerGlobalScope) serve(self);
