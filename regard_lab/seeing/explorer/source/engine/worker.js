// The engine in a page: checks and unpacks the model, and answers what the page asks, in a thread of its own.

import {TextModel, Translator} from "./models.js";

const KINDS = {"translation-transformer": Translator, "language-model": TextModel, "text-encoder": TextModel};

/** SHA-256, FIPS 180-4; pages in a frame or on a plain address have no crypto.subtle. */
function sha256(bytes) {
  const primes = [];
  for (let one = 2; primes.length < 64; one += 1) if (primes.every((prime) => one % prime)) primes.push(one);
  const fraction = (number) => (number % 1) * 2 ** 32 | 0;
  const constants = primes.map((one) => fraction(Math.cbrt(one))), state = Int32Array.from(primes.slice(0, 8), (one) => fraction(Math.sqrt(one)));
  const padded = new Uint8Array((bytes.length + 72) >> 6 << 6), view = new DataView(padded.buffer), w = new Int32Array(64);
  padded.set(bytes);
  padded[bytes.length] = 0x80;
  view.setUint32(padded.length - 8, Math.floor(bytes.length / 2 ** 29));
  view.setUint32(padded.length - 4, bytes.length << 3);
  for (let from = 0; from < padded.length; from += 64) {
    for (let i = 0; i < 16; i += 1) w[i] = view.getInt32(from + 4 * i);
    for (let i = 16; i < 64; i += 1) {
      const x = w[i - 15], y = w[i - 2];
      w[i] = w[i - 16] + w[i - 7] + ((x >>> 7 | x << 25) ^ (x >>> 18 | x << 14) ^ x >>> 3) + ((y >>> 17 | y << 15) ^ (y >>> 19 | y << 13) ^ y >>> 10);
    }
    let [a, b, c, d, e, f, g, h] = state;
    for (let i = 0; i < 64; i += 1) {
      const one = h + ((e >>> 6 | e << 26) ^ (e >>> 11 | e << 21) ^ (e >>> 25 | e << 7)) + ((e & f) ^ (~e & g)) + constants[i] + w[i] | 0;
      const two = ((a >>> 2 | a << 30) ^ (a >>> 13 | a << 19) ^ (a >>> 22 | a << 10)) + ((a & b) ^ (a & c) ^ (b & c)) | 0;
      h = g; g = f; f = e; e = d + one | 0; d = c; c = b; b = a; a = one + two | 0;
    }
    [a, b, c, d, e, f, g, h].forEach((one, at) => (state[at] += one));
  }
  return Array.from(state, (one) => (one >>> 0).toString(16).padStart(8, "0")).join("");
}

/** The tensors: float32, or int8 with the scale of each row before its numbers. */
function unpacked(records, buffer) {
  return Object.fromEntries(records.map(({name, shape, kind, at}) => {
    const count = shape.reduce((product, one) => product * one, 1);
    if (kind === "float32") return [name, new Float32Array(buffer.slice(at, at + 4 * count))];
    const [rows] = shape, scales = new Float32Array(buffer.slice(at, at + 4 * rows)), numbers = new Int8Array(buffer, at + 4 * rows, count);
    const values = new Float32Array(count);
    for (let row = 0, place = 0; row < rows; row += 1) for (const end = place + count / rows; place < end; place += 1) values[place] = numbers[place] * scales[row];
    return [name, values];
  }));
}

/** The model of a page. text: what it is, as JSON; packed: its tensors, deflated, in base64; digest: of both. */
export async function load({text, packed, digest}) {
  if (sha256(new TextEncoder().encode(text + packed)) !== digest)
    throw new Error("The model in this page was changed or damaged since it was exported, so it does not run; export the page again.");
  const letters = atob(packed), bytes = new Uint8Array(letters.length);
  for (let at = 0; at < bytes.length; at += 1) bytes[at] = letters.charCodeAt(at);
  const buffer = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();
  const content = JSON.parse(text);
  return new KINDS[content.kind](content, unpacked(content.tensors, buffer));
}

/** Answer messages {id, ask, ...}. A newer question ends a lens that is under way; the page asks for one run at a time. */
function serve(port) {
  const {port1, port2} = new MessageChannel(), turns = [];
  let [model, newest] = [null, 0];
  port1.onmessage = () => turns.shift()();
  const turn = () => new Promise((done) => { turns.push(done); port2.postMessage(0); }); // setTimeout would wait 4 ms
  port.onmessage = async ({data: {id, ask, ...given}}) => {
    newest = id;
    try {
      if (ask === "load") model = await load(given);
      const answer = ask === "load" ? {} : await model[ask](given, async () => (await turn(), newest !== id));
      port.postMessage({id, answer});
    } catch (error) {
      port.postMessage({id, error: error.message});
    }
  };
}

if (typeof WorkerGlobalScope !== "undefined" && self instanceof WorkerGlobalScope) serve(self);
