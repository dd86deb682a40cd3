// Formulas: nested lists of a page as elements of MathML.

const MATHML = "http://www.w3.org/1998/Math/MathML";

const NAME = /^m(ath|row|i|n|o|text|sub|sup|subsup|frac|sqrt)$/;

/** An element of a formula; only names of MathML are made. */
export function mathml([tag, ...inside]) {
  const element = document.createElementNS(MATHML, NAME.test(tag) ? tag : "mtext");
  if (tag === "math") element.setAttribute("display", "block");
  if (tag === "mo" && "()[]|".includes(inside[0])) element.setAttribute("stretchy", "false");
  element.append(...inside.map((one) => (Array.isArray(one) ? mathml(one) : one)));
  return element;
}
