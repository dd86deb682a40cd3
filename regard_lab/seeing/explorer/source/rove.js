// Groups of buttons of which one is a stop of the Tab key; arrows move within a group.

const GROUPS = "[role=toolbar], [role=radiogroup], [role=tablist]";
const buttonsOf = (group) =>
  [...group.querySelectorAll("button, summary")].filter((one) => !one.closest("[data-apart]"));

/**
 * After each drawing: one stop in each group, the button that arrows led to last, else the chosen
 * one, else the first.
 */
export function stops(root) {
  for (const group of root.querySelectorAll(GROUPS)) {
    const buttons = buttonsOf(group);
    const chosen =
      buttons.find((one) => one === group.last) ??
      buttons.find((one) => one.matches("[aria-checked=true], [aria-selected=true], .chosen")) ??
      buttons[0];
    for (const one of buttons) one.tabIndex = one === chosen ? 0 : -1;
  }
}

const next = (key, at, count) =>
  ({
    ArrowRight: (at + 1) % count,
    ArrowLeft: (at - 1 + count) % count,
    Home: 0,
    End: count - 1,
  })[key];

/** Arrows, Home and End within a group; up and down lead to the group of the other line. */
export function rove(event) {
  const group = event.target.closest(GROUPS);
  if (!group || !event.target.matches("button, summary")) return;
  const buttons = buttonsOf(group);
  const other = {ArrowDown: "written", ArrowUp: "given"}[event.key];
  const line =
    other && group.dataset.line && group.parentElement.querySelector(`[data-line=${other}]`);
  const to =
    line && line !== group
      ? buttonsOf(line).find((one) => one.tabIndex === 0)
      : buttons[next(event.key, buttons.indexOf(event.target), buttons.length)];
  if (!to) return;
  event.preventDefault();
  const stop = to.closest(GROUPS);
  stop.last = to;
  for (const one of buttonsOf(stop)) one.tabIndex = one === to ? 0 : -1;
  to.focus();
  if (stop.matches("[role=radiogroup], [role=tablist]")) to.click();
}
