// The colours of regard_lab/seeing/palette.json that the script needs. The style gets its own from
// `styleOf` in build.mjs.

import {against, weights} from "../../palette.json";

export const STOPS = {
  light: {weight: weights.light, against: against.light},
  dark: {weight: weights.dark, against: against.dark},
};
