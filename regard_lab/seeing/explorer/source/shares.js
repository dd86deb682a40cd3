// Probabilities and shares of attention as the first screen writes them.

/** A probability in a sentence: three decimals without the 0 before them. */
export function probability(p) {
  return p < 0.0005 ? "under .001" : short(p);
}

/** The same above a word, where room is short. */
export function short(p) {
  if (p < 0.0005) return "<.001";
  return p >= 0.9995 ? "1.000" : p.toFixed(3).slice(1);
}

/** The largest number of three decimals that is not above a probability. */
export function floor(p) {
  return short(Math.floor(p * 1000 + 1e-9) / 1000);
}

/** The smallest number of three decimals above a probability. */
export function ceiling(p) {
  return short(Math.floor(p * 1000 + 1) / 1000);
}

/** A number from 0 to 1 in a table: three decimals, and of small numbers two digits. */
export function digits(p) {
  return p >= 0.01 || p <= 0 ? p.toFixed(3) : p.toPrecision(2);
}

/** A share of attention, with two decimals. */
export function share(weight) {
  return weight.toFixed(2).replace(/^0/, "");
}

/** Texts as a list in a sentence. */
export function listed(texts) {
  return texts.flatMap((one, at) => {
    if (at === 0) return [one];
    return [at === texts.length - 1 ? " and " : ", ", one];
  });
}
