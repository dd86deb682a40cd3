// Text to ids and back, as regard_lab.text does it: byte-pair encoding over bytes, words, and words
// that training never had.

export const [PAD, UNKNOWN, BEGIN, END] = [0, 1, 2, 3];
const SPECIALS = ["<pad>", "<unknown>", "<begin>", "<end>"];

// Python's white space, which differs from \s of JavaScript: U+001C to U+001F and U+0085 count,
// U+FEFF does not.
const SPACES = /[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+/gu;
const LETTER = "[\\p{L}\\p{N}]";
const REST = "[\\p{L}\\p{M}\\p{N}\\u200C\\u200D]*";
const BLANK = "\\p{White_Space}";

/**
 * The units that no piece crosses: words, runs of marks, runs of symbols, each with the space
 * before it.
 */
function units(apostrophe, markSpace) {
  const word = ` ?${LETTER}${REST}(?:${apostrophe}${LETTER}${REST})*`;
  return new RegExp(
    `${word}|${markSpace}?\\p{P}+|${markSpace}?[^${BLANK}\\p{L}\\p{N}\\p{P}]+|${BLANK}+`,
    "gu",
  );
}
const PLAIN = units("'", " ");
// With typography a no-break space belongs to the mark after it; a word has the ordinary space
// alone.
const TYPOGRAPHIC = units("['\\u2019\\u2018]", "[ \\u00a0\\u202f]");
const split = (text, by) => text.match(by) ?? [];

const encodable = (text) => text.replace(/\p{Cs}/gu, "\ufffd"); // lone surrogates have no bytes
const decoded = (bytes) => new TextDecoder("utf-8", {ignoreBOM: true}).decode(bytes);

// Characters without a sign of their own, as regard_lab.text.lines drops them; marks of the
// direction stay in targets.
const HIDDEN = "\u00ad\u034f\u2060-\u2064\ufeff";
const DIRECTIONS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069";
const UNSPACED = "\u0e00-\u109f\u1780-\u17ff"; // Thai, Lao, Tibetan, Burmese, Khmer
const invisible = (hidden) =>
  new RegExp(
    `(?<=[0-9A-Za-z\u00aa-\u05ff\u1e00-\u1fff])[${hidden}\u200b-\u200d]+|` +
      `[${hidden}]|(?<![${UNSPACED}])\u200b`,
    "gu",
  );
const INVISIBLE = invisible(HIDDEN);
const INVISIBLE_OR_DIRECTION = invisible(HIDDEN + DIRECTIONS);
const dropInvisible = (text, pattern) => text.normalize("NFC").replace(pattern, "");

export function normalise(text) {
  text = encodable(text)
    .replace(/[\u2019\u2018\u02bc]/g, "'")
    .normalize("NFC");
  return text.replace(SPACES, " ").replace(/^ | $/g, "");
}

/** GPT-2's table: the printable letter that stands for each byte. */
function byteLetters() {
  const plain = (byte) =>
    (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte < 0xad) || byte > 0xad;
  let moved = 0;
  return Array.from({length: 256}, (_, byte) =>
    String.fromCharCode(plain(byte) ? byte : 256 + moved++),
  );
}

/**
 * The characters of bytes, each with the byte where it begins; a byte that is not UTF-8 is a U+FFFD
 * of its own.
 */
function characters(bytes) {
  const strict = new TextDecoder("utf-8", {fatal: true, ignoreBOM: true});
  const found = [];
  for (let at = 0; at < bytes.length;) {
    const size = bytes[at] < 0x80 ? 1 : bytes[at] < 0xe0 ? 2 : bytes[at] < 0xf0 ? 3 : 4;
    let [letter, taken] = ["\ufffd", 1];
    try {
      if (at + size <= bytes.length)
        [letter, taken] = [strict.decode(bytes.subarray(at, at + size)), size];
    } catch {
      /* not UTF-8 */
    }
    found.push([letter, at]);
    at += taken;
  }
  return found;
}

/** A tokeniser of regard, from the JSON that its `to_json` writes. */
export class Tokeniser {
  constructor({
    kind,
    merges,
    verbatim = false,
    typographic = false,
    without_invisible: drops = false,
    dropped = [],
  }) {
    Object.assign(this, {
      kind,
      verbatim,
      drops,
      units: typographic ? TYPOGRAPHIC : PLAIN,
      letters: byteLetters(),
    });
    const byteOf = new Map(this.letters.map((letter, byte) => [letter, byte]));
    this.ranks = new Map(merges.map(([left, right], rank) => [`${left} ${right}`, rank]));
    // of two merges the first
    const parts = new Map(merges.map((pair) => [pair[0] + pair[1], pair]).reverse());
    const gone = new Set(dropped);
    this.spelling = new Map(); // of merged pieces, by ids: a dropped one is spelled by its parts
    this.raw = SPECIALS.map(() => null); // the bytes of each id
    for (const piece of new Set([
      ...[...this.letters].sort(),
      ...merges.map(([left, right]) => left + right),
    ])) {
      if (gone.has(piece))
        this.spelling.set(
          piece,
          parts.get(piece).flatMap((part) => this.spelling.get(part)),
        );
      else {
        this.spelling.set(piece, [this.raw.length]);
        this.raw.push(Uint8Array.from(piece, (letter) => byteOf.get(letter)));
      }
    }
    this.known = new Map(); // units whose ids are kept
  }

  /** The text as a model reads it. */
  reads(text) {
    if (this.verbatim) return encodable(text);
    return normalise(this.drops ? dropInvisible(text, INVISIBLE_OR_DIRECTION) : text);
  }

  encode(text) {
    if (this.verbatim)
      return split(encodable(text), /[^\n]*\n|[^\n]+/g).flatMap((line) => this.#line(line));
    text = this.reads(text);
    // with the space the first word has the same pieces as elsewhere
    return text ? this.#line(` ${text}`) : [];
  }

  /** The ids of a text that a model writes: its typography is kept if the training kept it. */
  encodeTarget(text) {
    if (this.units !== TYPOGRAPHIC) return this.encode(text);
    const written = this.drops ? dropInvisible(encodable(text), INVISIBLE) : encodable(text);
    return written ? this.#line(` ${written}`) : [];
  }

  #line(line) {
    const parts = this.kind === "bpe" ? split(line, this.units) : [...line];
    return parts.flatMap((unit) => this.#unit(unit));
  }

  #unit(unit) {
    let ids = this.known.get(unit);
    if (ids) return ids;
    const pieces = Array.from(new TextEncoder().encode(unit), (byte) => this.letters[byte]);
    for (;;) {
      let [best, where] = [Infinity, -1];
      for (let at = 0; at + 1 < pieces.length; at += 1) {
        const rank = this.ranks.get(`${pieces[at]} ${pieces[at + 1]}`);
        if (rank < best) [best, where] = [rank, at];
      }
      if (where < 0) break;
      pieces.splice(where, 2, pieces[where] + pieces[where + 1]);
    }
    ids = pieces.flatMap((piece) => this.spelling.get(piece));
    if (this.known.size < 5000) this.known.set(unit, ids);
    return ids;
  }

  #bytes(ids) {
    return Uint8Array.from(ids.flatMap((id) => [...(this.raw[id] ?? [])]));
  }

  decode(ids) {
    const text = decoded(this.#bytes(ids));
    return this.verbatim ? text : text.replace(/^ /, "");
  }

  /** Each sub-word as it stands. */
  pieces(ids) {
    return ids.map((id) => (this.raw[id] ? stripped(escaped(this.raw[id])) : SPECIALS[id]));
  }

  /** A sub-word as it would continue ids; as it stands where it would continue a word. */
  continued(ids, id) {
    const [piece] = this.pieces([id]);
    const text = this.decode([...ids, id]).slice(this.decode(ids).length);
    return text.startsWith(" ") || !ids.length ? text.replace(STRIPPED, "") || piece : piece;
  }

  /** [word, first place, end] of all ids: each place is in one word. */
  words(ids) {
    const words = [];
    for (let [first, at] = [0, 0]; at <= ids.length; at += 1) {
      if (at < ids.length && ids[at] > END) continue;
      if (at > first) words.push(...this.#wordsOfRun(ids.slice(first, at), first));
      if (at < ids.length) words.push([SPECIALS[ids[at]], at, at + 1]);
      first = at + 1;
    }
    return words;
  }

  /** An id belongs to the word that has its first byte. */
  #wordsOfRun(ids, first) {
    const letters = characters(this.#bytes(ids));
    const starts = []; // the byte at which each unit begins
    let letter = 0;
    for (const unit of split(letters.map(([one]) => one).join(""), this.units)) {
      starts.push(letters[letter][1]);
      letter += [...unit].length;
    }
    const words = [];
    let [byte, unit] = [0, -1];
    ids.forEach((id, at) => {
      let next = unit;
      while (next + 1 < starts.length && starts[next + 1] <= byte) next += 1;
      if (next !== unit) words.push(["", first + at, first + at]);
      unit = next;
      words.at(-1)[2] = first + at + 1;
      byte += this.raw[id].length;
    });
    for (const word of words)
      word[0] = shown(this.#bytes(ids.slice(word[1] - first, word[2] - first)));
    return words;
  }
}

const STRIPPED = new RegExp(`^${SPACES.source}|${SPACES.source}$`, "gu"); // what strip() takes away
const stripped = (text) => text.replace(/^[ \u00a0\u202f]+|[ \u00a0\u202f]+$/g, "") || "\u2423";
const shown = (bytes) => stripped(decoded(bytes));
const isPart = (bytes, at, letter) =>
  letter === "\ufffd" && (bytes[at] !== 0xef || bytes[at + 1] !== 0xbf); // of a character
const escaped = (bytes) =>
  characters(bytes)
    .map(([letter, at]) => (isPart(bytes, at, letter) ? `\\x${bytes[at].toString(16)}` : letter))
    .join("");

// Letters of scripts that write no spaces between words: also kana and Han.
const UNSPACED_LETTER = new RegExp(
  `^[${UNSPACED}\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u{20000}-\u{3ffff}]`,
  "u",
);
// A symbol with the marks, tones and joined symbols that belong to it; two regions are a flag.
const OF_SYMBOLS = "\\p{S}\\p{Co}\\p{Cn}";
const SYMBOL = new RegExp(
  `(?:\\p{RI}{2}|[${OF_SYMBOLS}])(?:(?<=\u200d)[${OF_SYMBOLS}]|\\p{EMod}|[^${OF_SYMBOLS}])*`,
  "gu",
);
const isSymbol = (letter) => letter.search(SYMBOL) === 0;

function splitUnspaced(word) {
  const parts = [];
  for (const letter of word) {
    const joins =
      parts.length &&
      (/\p{M}/u.test(letter) ||
        !(UNSPACED_LETTER.test(letter) || UNSPACED_LETTER.test(parts.at(-1))));
    if (joins) parts[parts.length - 1] += letter;
    else parts.push(letter);
  }
  return parts;
}

/**
 * The words and symbols of a text that the training never had; null if its words are not known, no
 * symbols if these are not.
 */
export function unknownWords(text, known, symbols) {
  if (!known) return null;
  const found = new Set();
  let begins = true; // whether the next word may begin a sentence
  for (const unit of split(normalise(text), PLAIN)) {
    if (!/[\p{L}\p{N}]/u.test(unit)) {
      for (const symbol of split(unit, SYMBOL))
        if (symbols && [...symbol].some((letter) => isSymbol(letter) && !symbols.includes(letter)))
          found.add(symbol);
      begins ||= /[.!?\u2026:"'\u201c\u201d\u201e\u00ab\u00bb\u2039\u203a([\u00bf\u00a1]/u.test(
        unit,
      );
      continue;
    }
    for (const word of splitUnspaced(unit.trim())) {
      const [head] = word;
      const upper = head.toUpperCase();
      const swapped = (head === upper ? head.toLowerCase() : upper) + word.slice(head.length);
      if (!known.has(word) && !(begins && known.has(swapped))) found.add(word);
      begins = false;
    }
  }
  return [...found];
}
