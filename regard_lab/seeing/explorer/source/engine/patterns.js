// Which query may look at which key: the texts of regard.patterns, read into functions.

const floor = (value, by) => Math.floor(value / by);
const modulo = (value, by) => value - by * floor(value, by); // as Python's %, from 0
const inside = (runs) => (at) => runs.some(([first, last]) => at >= first && at <= last);

// Each name with its arguments and, from their values, a function of the positions i of the query
// and j of the key, of the number of keys and of the head.
const KINDS = {
  full: [[], () => () => true],
  causal: [[], () => (i, j) => j <= i],
  sliding_window: [["size"], (size) => (i, j) => Math.abs(i - j) <= size >> 1],
  causal_window: [["size"], (size) => (i, j) => j <= i && i - j < size],
  diagonals: [
    ["back", "ahead"],
    (back = null, ahead = null) =>
      (i, j) =>
        (back === null || j - i >= -back) && (ahead === null || j - i <= ahead),
  ],
  prefix: [["length"], (length) => (_, j) => j < length],
  key_span: [
    ["start", "stop"],
    (start = 0, stop = null) =>
      (_, j) =>
        j >= start && (stop === null || j < stop),
  ],
  lattice: [["stride"], (stride) => (i, j) => (i - j) % stride === 0],
  strided: [
    ["stride", "local"],
    (stride, local = true) =>
      (i, j) =>
        (i - j) % stride === 0 || (local && Math.abs(i - j) < stride),
  ],
  dilated_window: [
    ["size", "dilation"],
    (size, by) => (i, j) => (i - j) % by === 0 && Math.abs(i - j) <= by * (size >> 1),
  ],
  same_block: [
    ["size", "offset"],
    (size, offset = 0) =>
      (i, j) =>
        floor(i - offset, size) === floor(j - offset, size),
  ],
  summary: [
    ["stride", "last"],
    (stride, last = 1) =>
      (_, j) =>
        modulo(j, stride) >= stride - last,
  ],
  fixed: [
    ["stride", "summary", "local"],
    (stride, last = 1, local = true) =>
      (i, j) =>
        modulo(j, stride) >= stride - last || (local && floor(i, stride) === floor(j, stride)),
  ],
  random_blocks: [["count", "block", "seed", "past"], randomBlocks],
};
const OF_RUNS = {
  // names whose arguments are positions and spans of them, such as (0, 5..9)
  key_set: (has) => (_, j) => has(j),
  query_set: (has) => (i) => has(i),
  global_tokens: (has) => (i, j) => has(i) || has(j),
};
const NAMES = [...Object.keys(KINDS), ...Object.keys(OF_RUNS), "per_head"];
const WORDS = {all: null, true: true, false: false};

class Reader {
  constructor(text) {
    this.text = text;
    this.words = [];
    const word = /\s*([^\W\d]\w*|-?\d+(?!\w|\.\d)|\.\.|[()&|~,=])/y;
    const end = text.trimEnd().length;
    while (word.lastIndex < end) {
      const place = word.lastIndex;
      const found = word.exec(text);
      if (!found)
        throw this.error(`\u201c${text.slice(place).trim().slice(0, 20)}\u201d is not understood`);
      this.words.push(found[1]);
    }
    this.at = 0;
  }

  error(reason) {
    return new Error(
      `The pattern \u201c${this.text.slice(0, 80)}\u201d cannot be read: ${reason}; ` +
        "an example is \u201ccausal & sliding_window(4)\u201d.",
    );
  }

  take(sign) {
    if (this.words[this.at] !== sign) return false;
    this.at += 1;
    return true;
  }

  need(sign) {
    if (!this.take(sign)) throw this.error(`\u201c${sign}\u201d is missing`);
  }

  whole() {
    const read = this.either();
    if (this.at < this.words.length)
      throw this.error(`\u201c${this.words[this.at]}\u201d follows a pattern that is complete`);
    return read;
  }

  either() {
    const parts = [this.both()];
    while (this.take("|")) parts.push(this.both());
    return parts.length === 1 ? parts[0] : (...pair) => parts.some((part) => part(...pair));
  }

  both() {
    const parts = [this.single()];
    while (this.take("&")) parts.push(this.single());
    return parts.length === 1 ? parts[0] : (...pair) => parts.every((part) => part(...pair));
  }

  single() {
    if (this.take("~")) {
      const part = this.single();
      return (...pair) => !part(...pair);
    }
    if (this.take("(")) {
      const part = this.either();
      this.need(")");
      return part;
    }
    const name = this.words[this.at];
    if (!NAMES.includes(name))
      throw this.error(
        name ? `there is no pattern \u201c${name.slice(0, 40)}\u201d here` : "a pattern is missing",
      );
    this.at += 1;
    if (name === "per_head") {
      const heads = this.listed(() => this.either());
      return (i, j, count, head) => heads[head](i, j, count, head);
    }
    if (Object.hasOwn(OF_RUNS, name)) return OF_RUNS[name](inside(this.listed(() => this.run())));
    const [takes, make] = KINDS[name];
    const values = [];
    for (const [argument, value] of this.listed(() => this.argument(), takes)) {
      const place = argument === null ? values.length : takes.indexOf(argument);
      if (place < 0 || place >= takes.length)
        throw this.error(`${name} takes (${takes.join(", ")})`);
      values[place] = value;
    }
    if (values.length < make.length) throw this.error(`${name} takes (${takes.join(", ")})`);
    return make(...values);
  }

  listed(read) {
    const items = [];
    if (this.take("("))
      while (!this.take(")")) {
        if (items.length) this.need(",");
        items.push(read());
      }
    return items;
  }

  argument() {
    if (this.words[this.at + 1] !== "=") return [null, this.value()];
    this.at += 2;
    return [this.words[this.at - 2], this.value()];
  }

  value() {
    const word = this.words[this.at];
    return Object.hasOwn(WORDS, word) ? WORDS[this.words[this.at++]] : this.number();
  }

  number() {
    const word = this.words[this.at];
    if (!/^-?\d{1,18}$/.test(word ?? "")) throw this.error("a whole number is missing");
    this.at += 1;
    return Number(word);
  }

  run() {
    const first = this.number();
    return [first, this.take("..") ? this.number() : first];
  }
}

/**
 * The distinct blocks of keys that each block of queries draws: Floyd's sampling with the hash of
 * SplitMix64.
 */
function randomBlocks(drawn, block = 64, seed = 0, past = false) {
  const kept = new Map();
  return (i, j, count) => {
    const own = floor(i, block);
    const choices = past ? own + 1 : Math.ceil(count / block);
    const wanted = floor(j, block);
    if (choices <= drawn) return wanted < choices;
    const key = `${own} ${choices}`;
    if (!kept.has(key)) kept.set(key, distinct(drawn, BigInt(seed), BigInt(own), choices));
    return kept.get(key).has(wanted);
  };
}

function distinct(count, seed, own, choices) {
  const drawn = new Set();
  for (let step = 0; step < count; step += 1) {
    const added = choices - count + step; // above every earlier draw
    const number = draw(seed, own, BigInt(step), BigInt(added + 1));
    drawn.add(drawn.has(number) ? added : number);
  }
  return drawn;
}

const unsigned = (number) => BigInt.asUintN(64, number);

function draw(seed, place, step, choices) {
  const first = scrambled(unsigned((place + 1n) * 0x9e3779b97f4a7c15n + seed));
  const state = scrambled(unsigned(first + (step + 1n) * 0xc2b2ae3d27d4eb4fn));
  return Number(((state >> 32n) * choices) >> 32n);
}

/** The finaliser of SplitMix64 (Steele et al. 2014, figure 16). */
function scrambled(state) {
  state = unsigned((state ^ (state >> 30n)) * 0xbf58476d1ce4e5b9n);
  state = unsigned((state ^ (state >> 27n)) * 0x94d049bb133111ebn);
  return state ^ (state >> 31n);
}

/**
 * A pattern's text as a function: the keys, of the first `count`, that the query of a head at
 * position i may look at.
 */
export function pattern(text) {
  const allows = new Reader(text).whole();
  const byHead = text.includes("per_head");
  const kept = new Map();
  return (i, count, head) => {
    const key = `${i} ${count} ${byHead ? head : ""}`;
    let keys = kept.get(key);
    if (!keys) {
      keys = Int32Array.from({length: count}, (_, j) => j).filter((j) => allows(i, j, count, head));
      if (kept.size > 20_000) kept.clear();
      kept.set(key, keys);
    }
    return keys;
  };
}
