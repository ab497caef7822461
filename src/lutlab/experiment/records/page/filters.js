// Filters -> the runs that pass, each with the cells of it that pass.

const OF_RUN = ["paper", "artifact", "variant", "model", "method", "q", "g", "machine"];
const OF_CELL = ["text", "metric", "verdict"];
const FILTERS = [...OF_RUN, ...OF_CELL];
const filters = { words: "", ...Object.fromEntries(FILTERS.map((name) => [name, ""])) };

const valuesOf = (name, run, cell) => (name === "text" ? [cell.text, cell.paper_text]
  : [OF_CELL.includes(name) ? cell[name] : run.shared[name]]).map((value) => String(value ?? ""));

function passes(run, cell, without) {
  return FILTERS.every((name) => !filters[name] || name === without || valuesOf(name, run, cell).includes(filters[name]));
}

// Runs that have every word that is searched for.
function search() {
  const words = filters.words.toLowerCase().split(/\s+/).filter(Boolean);
  return words.length ? runs.filter((run) => words.every((word) => wordsOf(run).includes(word))) : runs;
}

// [{run, cells}] of the runs, and of their cells, that pass
function select(some) {
  return some
    .map((run) => ({ run, cells: run.cells.filter((cell) => passes(run, cell)) }))
    .filter((one) => one.cells.length);
}

// The values that a filter can have under the other ones, with the number of runs that have them.
function offered(name, some) {
  const counts = new Map();
  for (const run of some) {
    const mine = new Set();
    for (const cell of run.cells) {
      if (passes(run, cell, name)) valuesOf(name, run, cell).filter(Boolean).forEach((value) => mine.add(value));
    }
    for (const value of mine) counts.set(value, (counts.get(value) ?? 0) + 1);
  }
  if (filters[name] && !counts.has(filters[name])) counts.set(filters[name], 0);
  return [...counts].sort(([a], [b]) => compare(a, b));
}

function drawFilters() {
  const words = element("input", { type: "search", id: "words", placeholder: "words of a row",
    value: filters.words, oninput: (event) => setFilter("words", event.target.value) });
  const lists = FILTERS.map((name) => element("label", { class: `of-${name}` }, element("span", {}, name),
    element("select", { id: `filter-${name}`, onchange: (event) => setFilter(name, event.target.value) })));
  const reset = element("button", { type: "button", id: "reset", onclick: () => setFilters({}) }, "Reset");
  byId("filters").append(element("label", {}, element("span", {}, "search"), words), ...lists, reset);
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
}

function fillFilters(some) {
  for (const name of FILTERS) {
    const list = byId(`filter-${name}`);
    const values = offered(name, some).map(([value, count]) => option(value, `${value} (${count})`, filters[name]));
    list.replaceChildren(option("", "all", filters[name]), ...values);
    list.classList.toggle("set", filters[name] !== "");
  }
  if (byId("words").value !== filters.words) byId("words").value = filters.words;
}

function setFilter(name, value) {
  filters[name] = value;
  refresh();
}

// The filters of the table of the reader's own that was measured last; none where there is no such table.
function filtersOfLast() {
  const mine = cells.filter((cell) => !cell.machine && cell.row && cell.measured_at);
  const last = mine.reduce((a, b) => (!a || b.measured_at > a.measured_at ? b : a), undefined);
  return last ? { paper: last.paper, artifact: last.artifact, variant: last.variant } : {};
}

function setFilters(given) {
  for (const name of Object.keys(filters)) filters[name] = given[name] ?? "";
  refresh();
}
