// The panel of one number, in a fixed place: what it is, how it came to be, where it stands in the paper.

// A record's id; of a number that only the paper has, its place.
const addressOf = (cell) => cell.cell_id || [cell.paper, cell.artifact, cell.variant, cell.row, cell.column].join("/");
const byAddress = grouped(cells, addressOf);
let opened = null;

function openRecord(cell) {
  opened = cell;
  drawRecord(cell);
  if (decodeURIComponent(location.hash.slice(1)) !== addressOf(cell)) {
    history.pushState(null, "", `#${encodeURIComponent(addressOf(cell))}`);
  }
}

function openAddress() {
  const address = decodeURIComponent(location.hash.slice(1));
  const cell = byAddress.get(address)?.[0];
  if (cell === undefined) closeRecord(address ? `There is no record ${address} on this page.` : "");
  else if (!opened || addressOf(opened) !== address) openRecord(cell);
}

function closeRecord(said = "") {
  opened = null;
  byId("record").classList.remove("open");
  byId("record").replaceChildren(element("p", { class: "empty" },
    said || "Choose a number or a point: its record stands here."));
}

const fact = (name, value) => (value === undefined || value === "" ? [] : [element("dt", {}, name),
  element("dd", {}, value instanceof Node ? value : String(value))]);
const group = (title, ...facts) => (facts.flat().length
  ? [element("h3", {}, title), element("dl", {}, facts.flat())] : []);

function drawRecord(cell) {
  const panel = byId("record");
  const error = cell.error === undefined ? "" : ` ± ${cell.error}`;
  panel.classList.add("open");
  panel.replaceChildren(
    element("div", { class: "head" }, element("h2", {}, metricName(cell) || (cell.title ?? "record"),
      element("small", {}, [cell.unit !== cell.metric && cell.unit, readText(cell) && `on ${readText(cell)}`].filter(Boolean).join(" "))),
    element("button", { type: "button", class: "close", "aria-label": "close the record", onclick: () => leaveRecord() }, "×")),
    element("p", { class: "value" }, badge(kindOf(cell)), " ",
      element("output", { id: "value" }, cell.measured === undefined ? "not measured" : `${cell.measured}${error}`)),
    ...group("Number", fact("metric", cell.metric), fact("published", cell.published), fact("predicted, not measured", cell.predicted), fact("measured / published", cell.delta === undefined ? "" : percent(cell.delta)),
      fact("verdict", cell.verdict), fact("note", cell.note), fact("n", cell.n), fact("standard error", cell.error),
      fact("baseline", cell.baseline), fact("to baseline", cell.difference), fact("stored bits", cell.stored_bits),
      fact("on front", cell.on_front ? "yes" : ""), fact("status", cell.status), fact("reason", cell.reason)),
    ...group(cell.citation ? "In the paper" : "Place", fact("citation", cell.citation), fact("place", cell.source), fact("table", tableOf(cell)),
      fact("variant", cell.variant), fact("row", cell.row), fact("labels", cell.labels), fact("column", cell.title ?? cell.column),
      fact("text asked for", cell.paper_text)),
    ...group("Code", fact("cell id", cell.cell_id), fact("command", cell.command && commandOf(cell.command)),
      fact("commit", cell.commit && cell.commit + (cell.dirty ? " with changes" : "")), fact("versions", cell.versions)),
    ...group("Machine", ...["machine", "cpu", "cores", "threads", "gpu", "measured_at", "seconds", "folder"]
      .map((name) => fact(name.replace("_", " "), cell[name]))),
    ...group("Protocol", fact("text read", cell.text), ...Object.entries(cell).filter(([name]) => OF_EVALUATION.test(name))
      .map(([name, value]) => fact(name, value))),
    ...group("Axes", ...axesOf(cell).map(([name, value]) => fact(name, value))),
    ...elsewhere(cell));
  panel.scrollTop = 0;
}

function commandOf(command) {
  const copy = element("button", { type: "button", class: "copy", onclick: async (event) => {
    await navigator.clipboard.writeText(command);
    event.target.textContent = "copied";
  } }, "copy");
  return element("span", {}, element("code", {}, command), " ", copy);
}

// Other cells that show this record.
function elsewhere(cell) {
  const others = cell.cell_id ? byAddress.get(cell.cell_id).filter((other) => other !== cell) : [];
  return others.length ? [element("h3", {}, "Also in"), element("ul", { class: "list" }, others.map((other) => element("li", {},
    element("button", { type: "button", onclick: () => openRecord(other) },
      `${tableOf(other)} ${other.variant ?? ""} ${other.row ?? ""} ${other.column ?? ""} ${other.metric}`))))] : [];
}

// All points under a click, nearest first.
function listPoints(points) {
  const panel = byId("record");
  panel.classList.add("open");
  panel.replaceChildren(element("div", { class: "head" }, element("h2", {}, `${points.length} points here`),
    element("button", { type: "button", class: "close", "aria-label": "close the list", onclick: () => leaveRecord() }, "×")),
  element("ul", { class: "list", id: "points" }, points.map(({ cell, paper, x, y }) => element("li", {},
    element("button", { type: "button", class: paper ? "hollow" : "", "data-cell": addressOf(cell), onclick: () => openRecord(cell) },
      element("b", {}, paper ? `○ ${digits(y, cell.metric)}` : `● ${digits(y, cell.metric)}`),
      ` at ${digits(x, "", "bits")} · ${nameOf(cell)}`, " ", paper ? element("small", {}, "paper") : badge(kindOf(cell)))))));
  panel.scrollTop = 0;
}

const nameOf = (cell) => [tableOf(cell), cell.row || cell.model, cell.method].filter(Boolean).join(" · ");

function leaveRecord() {
  history.pushState(null, "", location.pathname + location.search);
  closeRecord();
}
