// Probabilities, shares of attention and names of heads as the page writes them.

/** A probability in a sentence. */
export function probability(p) {
  return short(p).replace("<", "under ");
}

/** The same above a word and in tables. */
export function short(p) {
  if (p < 0.0005) return "<0.001";
  return p >= 0.9995 ? "1.000" : p.toFixed(3);
}

/** The largest number of three decimals that is not above a probability. */
export function floor(p) {
  return short(Math.floor(p * 1000 + 1e-9) / 1000);
}

/** The smallest number of three decimals above a probability. */
export function ceiling(p) {
  return short(Math.floor(p * 1000 + 1) / 1000);
}

/** A weight in a table: three decimals, and of small ones two digits. */
export function digits(p) {
  return p >= 0.01 || p <= 0 ? p.toFixed(3) : p.toPrecision(2);
}

/** A share of attention, with two decimals. */
export function share(weight) {
  return weight.toFixed(2);
}

/** How a head is named everywhere; both numbers count from 0. */
export const headName = (layer, head) => `head ${head} of layer ${layer}`;

/** What log odds are, where they stand beside probabilities. */
export const ODDS =
  "Log odds are ln(p / (1 − p)): they also move where a probability p stays near 1.";

/** Texts as a list in a sentence. */
export function listed(texts, last = "and") {
  return texts.flatMap((one, at) => {
    if (at === 0) return [one];
    return [at === texts.length - 1 ? ` ${last} ` : ", ", one];
  });
}
