// Filters the tables of "What libraries answer", and shows the clause, the call and the answer of a cell.
// It reads the answers from the page itself, so it works from a file; without it the page shows all tables.

const ANY = "any answer";
const NOT_THE_CONTRACT = "other than the contract";

function build() {
  const stored = document.getElementById("conformance-answers");
  const board = document.querySelector(".conformance");
  if (!stored || !board) return;
  const found = JSON.parse(stored.textContent);
  const tables = [...board.querySelectorAll("table")].map(readTable);
  const filters = makeFilters(found, tables);
  board.prepend(filters.form);

  const dialog = makeDialog();
  document.body.append(dialog);
  for (const table of tables) {
    for (const row of table.rows) {
      row.cells.forEach((cell, library) => {
        cell.replaceChildren(cellButton(cell, () => showCell(dialog, found, row.clause, library)));
      });
    }
  }
  filters.form.addEventListener("input", () => applyFilters(filters, tables, found));
  filters.form.addEventListener("submit", (event) => event.preventDefault());
  applyFilters(filters, tables, found);
}

// A table with its libraries, its rows by clause, and the heading and the notes that belong to it.
function readTable(element) {
  const libraries = [...element.tHead.rows[0].cells].slice(1).map((cell) => cell.textContent.trim());
  const rows = [...element.tBodies[0].rows].map((row) => ({
    element: row,
    clause: row.cells[0].textContent.trim(),
    cells: new Map(libraries.map((library, number) => [library, row.cells[number + 1]])),
    signs: new Map(libraries.map((library, number) => [library, row.cells[number + 1].textContent.trim()])),
  }));
  const box = element.closest(".md-typeset__scrollwrap") ?? element;
  let heading = box.previousElementSibling;
  while (heading && heading.tagName !== "H2") heading = heading.previousElementSibling;
  const parts = [];
  const notes = new Map();
  for (let next = box.nextElementSibling; next && next.tagName !== "H2"; next = next.nextElementSibling) {
    parts.push(next);
    if (next.tagName !== "UL") continue;
    for (const item of next.children) notes.set(item.querySelector("strong")?.textContent.trim(), item);
  }
  return { element, box, heading, libraries, rows, notes, parts };
}

function makeFilters(found, tables) {
  const form = document.createElement("form");
  form.className = "conformance-filters";
  form.setAttribute("aria-label", "Filter the tables");

  const text = document.createElement("input");
  text.type = "search";
  text.placeholder = "mask, gradient, NaN …";
  const group = selection(["all groups", ...tables.map((table) => table.heading.firstChild.textContent.trim())]);
  const answer = selection([ANY, NOT_THE_CONTRACT, ...Object.values(found.signs)]);
  form.append(labelled("Clause", text), labelled("Group", group), labelled("Some answer is", answer));

  const choices = document.createElement("details");
  const summary = document.createElement("summary");
  summary.textContent = "Libraries";
  choices.append(summary);
  const boxes = Object.keys(found.libraries).map((library) => {
    const box = document.createElement("input");
    box.type = "checkbox";
    box.checked = true;
    box.name = library;
    choices.append(labelled(library, box));
    return box;
  });
  const all = document.createElement("button");
  all.type = "button";
  all.textContent = "All or none";
  all.addEventListener("click", () => {
    const checked = !boxes.every((box) => box.checked);
    for (const box of boxes) box.checked = checked;
    form.dispatchEvent(new Event("input"));
  });
  choices.append(all);
  const count = document.createElement("output");
  form.append(choices, count);
  return { form, text, group, answer, boxes, count };
}

function selection(words) {
  const select = document.createElement("select");
  for (const word of words) select.add(new Option(word));
  return select;
}

function labelled(words, control) {
  const label = document.createElement("label");
  const name = document.createElement("span");
  name.textContent = words;
  if (control.type === "checkbox") label.append(control, name);
  else label.append(name, control);
  return label;
}

function applyFilters(filters, tables, found) {
  const words = filters.text.value.toLowerCase().split(/\s+/).filter(Boolean);
  const chosen = new Set(filters.boxes.filter((box) => box.checked).map((box) => box.name));
  const wanted = wantedSigns(filters.answer.value, found.signs);
  let count = 0;
  tables.forEach((table, number) => {
    const inGroup = filters.group.selectedIndex === 0 || filters.group.selectedIndex === number + 1;
    let shown = 0;
    for (const row of table.rows) {
      const about = `${row.clause} ${found.clauses[row.clause].sentence}`.toLowerCase();
      const answers = table.libraries.filter((library) => chosen.has(library)).map((library) => row.signs.get(library));
      const fits = inGroup && words.every((word) => about.includes(word)) && answers.some((sign) => wanted.has(sign));
      row.element.hidden = !fits;
      const note = table.notes.get(row.clause);
      if (note) note.hidden = !fits;
      if (fits) shown += 1;
    }
    for (const part of [table.heading, table.box, ...table.parts]) part.hidden = shown === 0;
    const columns = [...table.element.tHead.rows[0].cells].slice(1);
    table.libraries.forEach((library, place) => {
      columns[place].hidden = !chosen.has(library);
      for (const row of table.rows) row.cells.get(library).hidden = !chosen.has(library);
    });
    count += shown;
  });
  filters.count.textContent = `${count} of ${Object.keys(found.clauses).length} clauses`;
}

function wantedSigns(choice, signs) {
  const all = Object.keys(signs);
  if (choice === ANY) return new Set(all);
  if (choice === NOT_THE_CONTRACT) return new Set(all.filter((sign) => sign !== "✓" && sign !== "–"));
  return new Set(all.filter((sign) => signs[sign] === choice));
}

function cellButton(cell, act) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = cell.textContent;
  button.addEventListener("click", act);
  return button;
}

function makeDialog() {
  const dialog = document.createElement("dialog");
  dialog.className = "conformance-cell md-typeset";
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  return dialog;
}

function showCell(dialog, found, clause, library) {
  const { sentence, call, tolerance } = found.clauses[clause];
  const asked = found.libraries[library];
  const answer = asked.answers[clause];
  const isError = /^\d/.test(answer);
  const title = document.createElement("h3");
  title.textContent = `${clause}: ${library}`;
  const list = document.createElement("dl");
  const facts = {
    "The contract": `${sentence}.`,
    "The answer": isError ? `as the contract; the largest error is ${answer}, at most ${tolerance} is allowed` : answer,
    Called: `${asked.call} (${asked.version})`,
  };
  for (const [name, value] of Object.entries(facts)) {
    const term = document.createElement("dt");
    term.textContent = name;
    const words = document.createElement("dd");
    words.textContent = value;
    list.append(term, words);
  }
  const code = document.createElement("code");
  code.textContent = program(found, clause, call, library);
  const block = document.createElement("pre");
  block.tabIndex = 0;
  block.append(code);
  const buttons = document.createElement("form");
  buttons.method = "dialog";
  const copy = document.createElement("button");
  copy.type = "button";
  copy.textContent = "Copy the code";
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(code.textContent);
    copy.textContent = "Copied";
  });
  const close = document.createElement("button");
  close.textContent = "Close";
  buttons.append(copy, close);
  dialog.setAttribute("aria-label", `${clause}: ${library}`);
  dialog.replaceChildren(title, list, block, buttons);
  dialog.showModal();
}

function program(found, clause, call, library) {
  return `${found.imports}
call = ${call}
attend = IMPLEMENTATIONS["${library}"].new()
print(attend(call))
print(judge(CLAUSES["${clause}"], attend))
`;
}

build();
