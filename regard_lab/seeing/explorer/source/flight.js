// The number that is followed from step to step: its place in each, and its flight to the next one.

const FLIGHT = 700; // of a number on its way to the next step

/** Whether a followed number flies: as chosen, else as the system prefers. */
export function moves({state: {motion}}) {
  return motion ? motion === "on" : !matchMedia("(prefers-reduced-motion: reduce)").matches;
}

/**
 * The number that is followed: its place in a step stays the same on all axes that the next step
 * has too.
 */
export function indexOf({indices = {}}, {rows, columns}) {
  const at = (axis) => (axis ? Math.min(indices[axisKey(axis)] ?? 0, axis.size - 1) : 0);
  return at(rows) * columns.size + at(columns);
}

const axisKey = ({unit, labels, size}) => `${unit} ${labels ?? size}`;

export function follow(app, {rows, columns}, index) {
  app.indices = {
    ...app.indices,
    [axisKey(columns)]: index % columns.size,
    ...(rows ? {[axisKey(rows)]: Math.floor(index / columns.size)} : {}),
  };
  app.draw();
}

/** Where the followed number is now, and its flight from where it was in another step. */
export function land(app, cell, step) {
  const box = cell.getBoundingClientRect();
  const {flight: from} = app;
  app.flight = {step, box, text: cell.textContent};
  if (!from || from.step === step || !moves(app)) return;
  const flying = document.createElement("span");
  flying.className = "flying";
  flying.textContent = from.text;
  cell.closest(".step").append(flying);
  const at = ({left, top}) => ({transform: `translate(${left}px, ${top}px)`});
  flying.animate([at(from.box), at(box)], {duration: FLIGHT, easing: "ease-in-out"}).finished.then(
    () => flying.remove(),
    () => flying.remove(),
  );
}
