// What the state of a page says: which word is chosen, what is changed, and the question that this
// asks of the engine.

/** The state of a model as it was trained. */
export const PLAIN = {erase: "", off: "", factor: "1", warmth: "1", masks: ""};

/** What is said where there is nothing to read. */
export const EMPTY = "The sentence is empty; write one.";

export const chosenPlace = ({state, source}) => Number(state.place ?? source.header.chosen);

/** The places of the words that are erased. */
export const gone = ({erase}) => (erase ? erase.split(".").map(Number) : []);

/** The heads that are switched off: a kind of attention, a layer and the index of a head. */
export const switchedOff = ({off}) =>
  off
    .split(",")
    .filter(Boolean)
    .map((one) => one.split("."))
    .map(([kind, layer, head]) => [kind, Number(layer), Number(head)]);

/** What a state asks of the engine: its text, and what is changed. */
export function questionOf(state) {
  const {text, factor, warmth, masks} = state;
  const erase = gone(state);
  const off = switchedOff(state);
  const patterns = Object.fromEntries(
    masks
      .split(";")
      .filter((one) => one.includes(":"))
      .map((one) => one.split(/:(.*)/s).map((part) => part.trim())),
  );
  return {
    source: text,
    changed: {
      ...(erase.length ? {erase} : {}),
      ...(off.length ? {off} : {}),
      ...(Number(factor) !== 1 ? {scale: Number(factor)} : {}),
      ...(Number(warmth) !== 1 ? {temperature: Number(warmth)} : {}),
      ...(Object.keys(patterns).length ? {patterns} : {}),
    },
  };
}
