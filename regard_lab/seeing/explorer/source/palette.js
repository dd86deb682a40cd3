// The colours of regard_lab/seeing/palette.json that the script needs. The style gets its own from
// `styleOf` in build.mjs.

import {against, depends, page, weights} from "../../palette.json";

const greys = ({paper, line, edge, faint, ink}) => [paper, line, edge, faint, ink];

/** By what a colour means: a weight, a number below 0, a dependence, what speaks against it. */
const scales = (theme) => ({
  weight: weights[theme],
  against: against[theme],
  depends: depends[theme],
  opposes: greys(page[theme]),
});

export const STOPS = {light: scales("light"), dark: scales("dark")};
