"use strict";
// The page's data: columns of distinct values and indices -> cells -> runs, which are rows of tables.

function decode({ count, columns }) {
  const rows = Array.from({ length: count }, () => ({}));
  for (const [name, [values, at]] of Object.entries(columns)) {
    at.forEach((index, row) => { if (index >= 0) rows[row][name] = values[index]; });
  }
  return rows;
}

// Cells of one row of one table; a record that stands in no table is of the row of its axes.
function gather(all) {
  const found = new Map();
  for (const cell of all) {
    const place = cell.row ? [cell.paper, cell.artifact, cell.variant, cell.row] : axesOf(cell).flat();
    const key = JSON.stringify([cell.folder, cell.machine, ...place]);
    if (!found.has(key)) found.set(key, { cells: [] });
    found.get(key).cells.push(cell);
  }
  return [...found.values()].map(finished);
}

// What a run's cells share: its place, and the axes that its measured cells have.
function finished(run) {
  run.shared = Object.assign({}, run.cells[0], run.cells.find((cell) => cell.method !== undefined));
  run.shared.kind = run.cells.map(kindOf).find((kind) => kind !== "paper") ?? "paper";
  run.labels = labelsOf(run.shared);
  for (const cell of run.cells) cell.run = run;
  return run;
}

// All that a run's cells say, for the search: joined when it is first asked for.
function wordsOf(run) {
  run.words ??= run.cells.map(({ run: _, ...said }) => Object.values(said).join(" ")).join(" ").toLowerCase();
  return run.words;
}

// "Model=OPT-30B; q=4" -> {Model: "OPT-30B", q: "4"}
function labelsOf(cell) {
  const pairs = (cell.labels ?? "").split("; ").filter(Boolean).map((pair) => pair.split(/=(.*)/s));
  return Object.fromEntries(pairs.map(([name, value]) => [name, value ?? ""]));
}

// ---- names of a cell's fields ----

const PLACE = ["paper", "artifact", "variant", "row", "labels", "column", "title", "metric", "unit", "lower_is_better"];
const MEASURED = ["text", "paper_text", "measured_on", "published", "measured", "predicted", "delta", "baseline", "difference",
  "error", "n", "stored_bits", "verdict", "note", "stand_in", "on_front", "cell_id", "status", "reason"];
const PROVENANCE = ["command", "citation", "source", "machine", "cpu", "cores", "threads", "gpu", "commit", "dirty",
  "measured_at", "seconds", "versions", "folder"];
const OWN = new Set([...PLACE, ...MEASURED, ...PROVENANCE, "run", "kind"]);
const OF_EVALUATION = /^(evaluator|data\.|evaluator\.)/;

const axesOf = (cell) => Object.entries(cell).filter(([name]) => !OWN.has(name) && !OF_EVALUATION.test(name)).sort();
const readText = (cell) => cell.measured_on || cell.text || "";
// The name of a metric without its unit, which stands beside it: a table may print latency_us in ms.
const metricName = (cell) => (cell.unit ? (cell.metric ?? "").replace(/_(us|ms|mj|w|mb|gb)$/, "") : cell.metric ?? "");
const tableOf = (cell) => (cell.artifact ? `${cell.paper}/${cell.artifact}` : cell.paper || "no table");

// What a number was measured on: not the paper's model or text, drawn weights, or the real thing.
function kindOf(cell) {
  if (cell.measured === undefined) return "paper";
  if (String(cell.model ?? "").startsWith("synthetic")) return "synthetic weights";
  const asked = (cell.paper_text ?? "").replace(" [inferred]", "");
  const otherText = asked && cell.text && asked !== cell.text;
  return cell.stand_in || otherText || cell.verdict === "stand-in" ? "stand-in" : "measured";
}

// ---- numbers and elements ----

function digits(value, metric, unit) {
  if (value === undefined) return "";
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (size >= 1e5 || (size > 0 && size < 1e-4)) return value.toExponential(2);
  if (/ppl|perplexity/.test(metric ?? "")) return value.toFixed(2);
  if (/^bit/.test(unit ?? "")) return value.toFixed(3);
  return size >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(4)));
}

const percent = (share) => `${share >= 0 ? "+" : "−"}${Math.abs(100 * share).toFixed(1)} %`;

// element("td", {class: "wide", onclick: f}, "text", child): every text goes in as text, never as HTML.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== undefined && child !== ""));
  return made;
}

const byId = (id) => document.getElementById(id);
const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b
  : String(a).localeCompare(String(b), undefined, { numeric: true }));
const badge = (kind) => (kind === "measured" ? "" : element("span", { class: `badge ${kind.replace(" ", "-")}` },
  { paper: "not measured", "synthetic weights": "synthetic" }[kind] ?? kind));
const option = (value, text, chosen) => element("option", { value, selected: value === chosen }, text);

function choice(label, values, chosen, onchange) {
  const list = element("select", { "data-key": `choice ${label}`, onchange: (event) => onchange(event.target.value) },
    values.map(([value, text]) => option(value, text, chosen)));
  return element("label", {}, element("span", {}, label), list);
}

function tick(label, checked, onchange) {
  const box = element("input", { type: "checkbox", checked, "data-key": `tick ${label}`, onchange: (event) => onchange(event.target.checked) });
  return element("label", { class: "tick" }, box, label);
}

// ---- the data themselves, once all that reads them is defined ----

const page = JSON.parse(document.getElementById("data").textContent);
const cells = decode(page.cells);
const runs = gather(cells);
