// The table of runs: what all rows share above it, what differs in columns, then the numbers.

const IDENTITY = ["table", "row", "model", "method", "q", "g"];
const BEHIND = ["options", "machine"];
const ROWS_AT_ONCE = 100;
const table = { sort: "", descending: false, values: 6, drawn: 0, rows: [] };
const checked = new Set();

// The number of one column: metric, the text it was measured on, the paper's text.
function columnOf(cell) {
  return JSON.stringify([metricName(cell), cell.unit ?? "", readText(cell), cell.paper_text ?? ""]);
}

// Column -> cell of a run; a column that the run has twice is told apart by its title.
function byColumnOf(some) {
  const mine = new Map();
  for (const cell of some) {
    const key = columnOf(cell);
    mine.set(mine.has(key) ? JSON.stringify([...JSON.parse(key), cell.title ?? cell.column]) : key, cell);
  }
  return mine;
}

// Columns of numbers that two thirds of the rows have, the fullest first; what other numbers a row has is listed behind.
function columnsOf(rows) {
  const counts = new Map();
  for (const row of rows) for (const key of row.byColumn.keys()) counts.set(key, (counts.get(key) ?? 0) + 1);
  return [...counts].filter(([, count]) => 3 * count >= 2 * rows.length).sort(([, a], [, b]) => b - a).map(([key]) => key);
}

function identityOf(run, options) {
  const { shared } = run;
  const more = options.filter((name) => shared[name] !== undefined)
    .map((name) => `${name.replace(/^method\./, "")}=${shared[name]}`).join(" ");
  const variant = shared.variant === shared.artifact ? "" : (shared.variant ?? "").replace(/^embedded-?/, "");
  return { table: `${tableOf(shared)} ${variant}`.trim(), row: shared.row ?? "", model: shared.model ?? "",
    method: shared.method ?? "", q: shared.q ?? "", g: shared.g ?? "", options: more, machine: shared.machine ?? "" };
}

// Axes beside the named ones that differ between these runs: of a method, between those of the same method.
function differingAxes(some) {
  const said = new Map();
  for (const { run } of some) {
    for (const [name, value] of axesOf(run.shared)) {
      if (["model", "method", "q", "g"].includes(name)) continue;
      const key = name.startsWith("method.") ? `${name} ${run.shared.method}` : name;
      if (!said.has(key)) said.set(key, new Set());
      said.get(key).add(value);
    }
  }
  const differing = [...said].filter(([, values]) => values.size > 1).map(([key]) => key.split(" ")[0]);
  return [...new Set(differing)];
}

function drawRuns(shown) {
  const options = differingAxes(shown);
  table.rows = shown.map(({ run, cells: some }) => (
    { run, identity: identityOf(run, options), byColumn: byColumnOf(some) }));
  const all = columnsOf(table.rows);
  const columns = all.slice(0, table.values);
  const same = [...IDENTITY, ...BEHIND].filter((name) => new Set(table.rows.map((row) => row.identity[name])).size <= 1);
  const heads = IDENTITY.filter((name) => name === "row" || !same.includes(name));
  const behind = BEHIND.filter((name) => !same.includes(name));
  const others = table.rows.some((row) => [...row.byColumn.keys()].some((key) => !columns.includes(key)));
  const draw = () => drawMore(body, heads, columns, behind);
  sortRows();
  const body = element("tbody", {});
  const head = element("thead", {}, element("tr", {},
    element("th", { scope: "col" }, element("span", { class: "hidden" }, "compare")),
    heads.map((name) => headOf(name, name, [])), columns.map((key) => numberHead(key)),
    element("th", { scope: "col" }, !others ? "" : columns.length ? "other numbers" : "numbers"),
    behind.map((name) => headOf(name, name, []))));
  byId("runs").replaceChildren(toolbar(all.length, same), element("div", { class: "scroll", tabindex: 0,
    role: "region", "aria-label": "Table of runs" }, element("table", { id: "table" },
    element("caption", { class: "hidden" }, "Measured rows; the paper's number stands behind ours"), head, body),
  element("button", { type: "button", id: "more", onclick: draw }, "")));
  table.drawn = 0;
  table.drawAll = () => { while (table.drawn < table.rows.length) draw(); };
  draw();
  watchEnd(draw);
}

function toolbar(count, same) {
  const row = table.rows[0];
  const said = row ? same.filter((name) => row.identity[name] !== "").map((name) => `${name} ${row.identity[name]}`) : [];
  const sizes = [6, 12, 24, 1000].filter((size, i, list) => i === 0 || list[i - 1] < count);
  const columns = sizes.length < 2 ? "" : choice("columns", sizes.map((size) => [String(size),
    size >= count ? `all ${count}` : `${size} of ${count}`]), String(table.values), (value) => {
    table.values = Number(value);
    refresh();
  });
  return element("div", { class: "tools" }, element("span", { class: "same" },
    said.length ? `all: ${said.join(" · ")}` : ""), element("span", { class: "legend" },
    element("b", {}, "● measured"), element("i", {}, "○ paper"), element("em", {}, "pred. not measured")), columns);
}

function headOf(key, text, small, note) {
  const sorted = table.sort === key;
  const button = element("button", { type: "button", title: note, "data-key": `sort ${key}`, onclick: () => {
    table.descending = sorted && !table.descending;
    table.sort = key;
    refresh();
  } }, text, small.map((line) => element("small", {}, line)));
  return element("th", { scope: "col",
    "aria-sort": sorted ? (table.descending ? "descending" : "ascending") : "none" }, button);
}

function numberHead(key) {
  const [metric, unit, text, paperText, title] = JSON.parse(key);
  const forText = paperText && !text.startsWith(paperText) ? `for ${paperText}` : "";
  return headOf(key, metric, [title, text, forText, unit === metric || unit === "perplexity" ? "" : unit].filter(Boolean),
    `${metric}${text && ` on ${text}`}${paperText && `; the paper's on ${paperText}`}`);
}

function sortRows() {
  if (!table.sort) return;
  const value = (row) => {
    const cell = row.byColumn.get(table.sort);
    const own = table.sort in row.identity ? row.identity[table.sort] : cell?.measured ?? cell?.published;
    return own === "" ? undefined : own;
  };
  const sign = table.descending ? -1 : 1;
  table.rows.sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
    return sign * compare(x, y);
  });
}

function drawMore(body, heads, columns, behind) {
  const next = table.rows.slice(table.drawn, table.drawn + ROWS_AT_ONCE);
  body.append(...next.map((row) => lineOf(row, heads, columns, behind)));
  table.drawn += next.length;
  const left = table.rows.length - table.drawn;
  byId("more").hidden = !left;
  byId("more").textContent = `${left} more rows`;
}

function watchEnd(onend) {
  table.watcher?.disconnect();
  table.watcher = new IntersectionObserver(([entry]) => { if (entry.isIntersecting) onend(); });
  table.watcher.observe(byId("more"));
}

function lineOf(row, heads, columns, behind) {
  const { run, identity } = row;
  const label = `${identity.table} ${identity.row || identity.model}`;
  const box = element("input", { type: "checkbox", "aria-label": `compare ${label}`, checked: checked.has(run),
    onchange: (event) => check(run, event.target.checked) });
  const marked = heads.includes("model") ? "model" : "row";
  const axis = (name) => {
    const content = [identity[name], name === marked ? element("span", {}, " ", badge(run.shared.kind)) : ""];
    return name === "row" ? element("th", { scope: "row", title: run.shared.labels ?? "" }, content)
      : element("td", { class: name, title: identity[name] }, content);
  };
  return element("tr", {}, element("td", {}, box), heads.map(axis),
    columns.map((key) => element("td", {}, numberButton(row.byColumn.get(key)))),
    element("td", { class: "rest" }, [...row.byColumn].filter(([key]) => !columns.includes(key)).map(([, cell]) => (
      element("span", {}, element("small", {}, `${metricName(cell)}${readText(cell) && ` on ${readText(cell)}`}`), numberButton(cell))))),
    behind.map(axis));
}

// A number that opens its record: ours filled, the paper's hollow.
function numberButton(cell) {
  if (!cell) return "";
  const error = typeof cell.error === "number" ? element("small", {}, ` ± ${digits(cell.error, "", "")}`) : "";
  const ours = cell.measured === undefined ? "" : element("b", {}, digits(cell.measured, cell.metric, cell.unit), error);
  const guess = cell.verdict === "predicted" ? element("em", {}, `pred. ${digits(cell.predicted ?? "OOM", cell.metric, cell.unit)}`) : "";
  const theirs = cell.published === undefined ? "" : element("i", {}, digits(cell.published, cell.metric, cell.unit));
  const none = ours || theirs || guess ? "" : element("span", { class: "none" }, cell.verdict ?? "–");
  return element("button", { type: "button", class: `number ${kindOf(cell).replace(" ", "-")} ${verdictClass(cell)}`,
    "data-cell": addressOf(cell), title: `${cell.title ?? cell.metric}, ${kindOf(cell)}: ${cell.verdict ?? ""}${cell.note ? `, ${cell.note}` : ""}${cell.n ? `, n = ${cell.n}` : ""}`,
    onclick: () => openRecord(cell) }, ours, guess, theirs, none);
}

const verdictClass = (cell) => `v-${(cell.verdict ?? "").toLowerCase().replace(/[^a-z]+/g, "-")}`;

function check(run, on) {
  if (on) checked.add(run);
  else checked.delete(run);
  nameTabs();
}
