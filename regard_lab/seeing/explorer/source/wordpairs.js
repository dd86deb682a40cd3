// Words of texts: which of them two texts have in common, where they differ, and the last one.

/** Places of equal words in both texts, in order: their longest common subsequence. */
export function common(one, other) {
  const longest = Array.from({length: one.length + 1}, () => new Uint16Array(other.length + 1));
  const pairs = [];
  for (let i = one.length - 1; i >= 0; i -= 1)
    for (let j = other.length - 1; j >= 0; j -= 1)
      longest[i][j] =
        one[i] === other[j]
          ? longest[i + 1][j + 1] + 1
          : Math.max(longest[i + 1][j], longest[i][j + 1]);
  for (let [i, j] = [0, 0]; i < one.length && j < other.length;) {
    if (one[i] === other[j]) pairs.push([i++, j++]);
    else if (longest[i + 1][j] >= longest[i][j + 1]) i += 1;
    else j += 1;
  }
  return pairs;
}

/** Runs of words that differ: words before and after, and the place where each run begins. */
export function differences(one, other) {
  const found = [];
  let [i, j] = [0, 0];
  for (const [x, y] of [...common(one, other), [one.length, other.length]]) {
    if (x > i || y > j)
      found.push({before: one.slice(i, x), after: other.slice(j, y), from: i, to: j});
    [i, j] = [x + 1, y + 1];
  }
  return found;
}

/** Which words of a text are others in another text, without the marks at their ends. */
export function replacedWords(before, after) {
  return differences(before.split(" "), after.split(" ")).map((one) => ({
    before: one.before.join(" ").replace(/[.,!?]$/, ""),
    after: one.after.join(" ").replace(/[.,!?]$/, ""),
  }));
}

/** Where a word of one text stands in the other, or what has replaced it. */
export function followed(place, one, other) {
  const same = common(one, other).find(([at]) => at === place);
  if (same) return same[1];
  const run = differences(one, other).find(
    ({before, from}) => place >= from && place < from + before.length,
  );
  if (!run) return 0;
  const within = Math.min(place - run.from, Math.max(run.after.length - 1, 0));
  return Math.min(run.to + within, other.length - 1);
}

/** Words that no text contains, such as those of its beginning and its end. */
export const isSpecial = (word) => /^(<[^<>]+>|\[[A-Z]+\])$/.test(word);

/** The place of the last word of a text that has letters. */
export function lastWord(words) {
  const at = words.findLastIndex((word) => /\p{L}/u.test(word) && !isSpecial(word));
  return Math.max(at, 0);
}

/** The words that a model reads. */
export const readOf = ({texts: {source, text}}) => source ?? text;

/**
 * The text with another word at a place; null where the words do not stand in it as they are read.
 */
export function exchanged({given: {source}, header}, place, other) {
  const words = readOf(header).slice(0, place + 1);
  let from = 0;
  for (const word of words.filter((one) => !isSpecial(one))) {
    const at = source.indexOf(word, from);
    if (at < 0) return null;
    from = at + word.length;
  }
  return source.slice(0, from - words.at(-1).length) + other + source.slice(from);
}
