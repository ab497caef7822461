// Two plots, quality and speed: ours filled, the paper's hollow, a Pareto front for each model and text.

const SYMBOLS = { measured: "circle", "stand-in": "diamond", "synthetic weights": "square", paper: "circle-open" };
const BY = ["method", "model", "table", "g", "q", "kernel", "machine"];
const X = { "stored bits a weight": "stored_bits", q: "q", g: "g", model: "model", method: "method", kernel: "kernel" };
const COLOURS = [...page.colours, "#5f8a1f", "#9c5a3c", "#0fa3b1", "#e0569b", "#7a828e", "#5b4fd6"];
const NEAR = 8; // pixels within which points count as under one click

const plots = {
  quality: { kind: "quality", x: "stored_bits", y: "", by: "method", text: undefined, model: "", front: true, paper: true },
  speed: { kind: "speed", x: "stored_bits", y: "", by: "kernel", text: "", model: "", front: true, paper: true },
};

// Plotly reads tags in its texts.
const unmarked = (text) => String(text).replace(/</g, "&lt;");
const plain = (cell, name) => (name === "table" ? tableOf(cell) : cell[name] ?? cell.run.shared[name]);

// The paper's model by its label, where a row has one.
const paperModel = (cell) => cell.run.labels.Model ?? cell.run.shared.model ?? "";

// Where a point of the paper lies on the axis of bits: at its own where it prints them, else at ours of the same row.
function paperX(cell, x) {
  const printed = cell.run.cells.find((one) => one.metric === "bits_per_weight" && one.published !== undefined);
  if (x === "stored_bits") return printed?.published ?? cell.stored_bits;
  return plain(cell, x) ?? cell.run.labels[x];
}

// [{cell, paper, x, y, by, group}] of what the filters and the plot's own choices leave
function pointsOf(plot, shown) {
  const points = [];
  for (const cell of shown.flatMap((one) => one.cells)) {
    if (metricOf(cell) !== plot.y || (plot.text && !textsOf(cell).includes(plot.text))) continue;
    const by = String(plain(cell, plot.by) ?? "none");
    const mine = { cell, by, paper: false, x: plain(cell, plot.x), y: cell.measured, model: cell.model };
    points.push({ ...mine, kind: kindOf(cell) });
    const theirs = { ...mine, paper: true, x: paperX(cell, plot.x), y: cell.published, model: paperModel(cell), kind: "paper" };
    if (plot.paper) points.push(theirs);
  }
  const chosen = points.filter((point) => typeof point.y === "number" && (!plot.model || point.model === plot.model));
  return { drawn: chosen.filter((point) => point.x !== undefined), without: chosen.filter((point) => point.x === undefined) };
}

// A cell is found by the text that was read, and by the one that the paper's number is of.
const textsOf = (cell) => [readText(cell) && `on ${readText(cell)}`, cell.paper_text && `for ${cell.paper_text}`].filter(Boolean);
const metricOf = (cell) => `${metricName(cell)}${cell.unit ? `, ${cell.unit}` : ""}`;

// Points that no other one beats: fewer bits and a better number. For each model, text and side.
function frontsOf(points) {
  const key = ({ cell, paper, model }) => JSON.stringify([paper, model, paper ? cell.paper_text : readText(cell)]);
  return [...grouped(points, key).values()].map((some) => {
    const { metric, lower_is_better: lower = page.metrics[metric]?.lower_is_better } = some[0].cell;
    const better = lower ? (a, b) => a < b : (a, b) => a > b;
    const sorted = [...some].sort((a, b) => a.x - b.x || (better(a.y, b.y) ? -1 : 1));
    const best = [];
    for (const point of sorted) if (!best.length || better(point.y, best.at(-1).y)) best.push(point);
    return best;
  }).filter((best) => best.length > 1);
}

// ---- drawing ----

function drawPlot(name, shown) {
  const plot = plots[name];
  const counts = countsOf(shown, (cell) => (page.metrics[cell.metric]?.kind ?? "quality") === plot.kind,
    (cell) => [metricOf(cell)]);
  if (!counts.some(([y]) => y === plot.y)) plot.y = counts[0]?.[0] ?? "";
  const texts = countsOf(shown, (cell) => metricOf(cell) === plot.y, textsOf);
  if (plot.text !== "" && !texts.some(([text]) => text === plot.text)) plot.text = texts.find(([text]) => text.startsWith("on "))?.[0] ?? "";
  const models = [...new Set(pointsOf({ ...plot, model: "" }, shown).drawn.map((point) => point.model).filter(Boolean))].sort(compare);
  if (!models.includes(plot.model)) plot.model = "";
  const { drawn, without } = pointsOf(plot, shown);
  const box = byId(name);
  if (!counts.length) {
    box.replaceChildren(element("p", { class: "empty" }, `No number of ${name} under these filters.`));
    return;
  }
  if (!box.querySelector(".plot")) {
    box.replaceChildren(element("div", { class: "tools" }), element("div", { class: "plot" }), element("p", { class: "said" }));
  }
  box.querySelector(".tools").replaceChildren(...toolsOf(plot, counts, texts, models));
  box.querySelector(".said").textContent = `${drawn.length} points${
    without.length ? `; ${without.length} are not drawn, which have no ${plot.x.replace("_", " ")}` : ""}. A click lists all points `
    + "under it. The paper's points stand at the bits that it prints, else at those that we store for the same row.";
  const area = box.querySelector(".plot");
  if (typeof Plotly === "undefined") { // its script is the page's last and largest
    area.textContent = "The chart is being loaded.";
    addEventListener("load", () => { area.textContent = ""; refresh(); }, { once: true });
    return;
  }
  Plotly.react(area, tracesOf(plot, drawn), layoutOf(plot, drawn), { displaylogo: false, responsive: true,
    modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"], toImageButtonOptions: { format: "svg", filename: `lutlab-${name}` } });
  area.removeAllListeners("plotly_click");
  area.on("plotly_click", (event) => answer(area, event.points[0]));
}

// [[key, number of cells]] of the cells that fit, the most frequent first
function countsOf(shown, fits, keysOf) {
  const counts = new Map();
  for (const cell of shown.flatMap((one) => one.cells)) {
    if (!fits(cell) || (cell.measured === undefined && cell.published === undefined)) continue;
    for (const key of keysOf(cell)) counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  return [...counts].sort(([, a], [, b]) => b - a);
}

function toolsOf(plot, counts, texts, models) {
  const set = (name) => (value) => { plot[name] = value; refresh(); };
  const listed = (some) => some.map(([value, count]) => [value, `${value} (${count})`]);
  return [choice("y", listed(counts), plot.y, set("y")),
    choice("x", Object.entries(X).map(([text, name]) => [name, text]), plot.x, set("x")),
    texts.length ? choice("text", [["", "all"], ...listed(texts)], plot.text, set("text")) : "",
    choice("model", [["", "all"], ...models.map((model) => [model, model])], plot.model, set("model")),
    choice("colour", BY.map((by) => [by, by]), plot.by, set("by")),
    tick("Pareto fronts", plot.front, set("front")), tick("the paper's points", plot.paper, set("paper"))];
}

const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const isWord = (points) => points.some((point) => typeof point.x !== "number");

// Words on x are placed at whole numbers, so that a click can be measured in pixels.
const placesOf = (points) => [...new Set(points.map((point) => String(point.x)))].sort(compare);

function tracesOf(plot, points) {
  const places = isWord(points) ? placesOf(points) : undefined;
  const at = (point) => (places ? places.indexOf(String(point.x)) : point.x);
  const values = [...new Set(points.map((point) => point.by))].sort(compare);
  const series = [...grouped(points, (point) => JSON.stringify([point.by, point.kind]))].sort();
  const marks = series.map(([key, some]) => {
    const [by, kind] = JSON.parse(key);
    const colour = COLOURS[values.indexOf(by) % COLOURS.length];
    return { type: "scatter", mode: "markers", name: unmarked(kind === "measured" ? by : `${by}, ${kind}`), legendgroup: by,
      x: some.map(at), y: some.map((point) => point.y), customdata: some, text: some.map(hoverOf),
      hovertemplate: "%{text}<extra></extra>",
      marker: { color: colour, symbol: SYMBOLS[kind], size: 8, opacity: kind === "paper" ? 1 : 0.8, line: { width: kind === "paper" ? 1.5 : 0 } } };
  });
  const fronts = plot.front && plot.x === "stored_bits" ? frontsOf(points) : [];
  return [...fronts.map((best) => ({ type: "scatter", mode: "lines", x: best.map(at), y: best.map((point) => point.y), hoverinfo: "skip",
    showlegend: false, line: { color: ink("muted"), width: 1.2, dash: best[0].paper ? "dot" : "solid" } })), ...marks];
}

function hoverOf({ cell, paper, kind, x, y, model }) {
  const lines = [`<b>${digits(y, cell.metric, cell.unit)}</b> ${metricOf(cell)}`, paper ? "the paper's" : kind === "measured" ? "" : `<b>${kind}</b>`,
    `${tableOf(cell)} ${cell.row ?? ""}`, [model, cell.method].filter(Boolean).join(" · "),
    paper ? cell.paper_text : readText(cell), typeof x === "number" ? `x ${digits(x, "", "bits")}` : x];
  return lines.filter(Boolean).map((text) => text.replace(/<(?!\/?b>)/g, "&lt;")).join("<br>");
}

function layoutOf(plot, points) {
  const axis = { gridcolor: ink("line"), linecolor: ink("muted"), zeroline: false, automargin: true, tickfont: { color: ink("muted") } };
  const places = isWord(points) ? placesOf(points) : undefined;
  const sizes = points.map((point) => point.y);
  const logarithmic = sizes.length > 0 && Math.min(...sizes) > 0 && Math.max(...sizes) / Math.min(...sizes) > 5;
  const xName = Object.entries(X).find(([, name]) => name === plot.x)[0];
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink("ink"), family: "inherit", size: 12 },
    margin: { l: 60, r: 10, t: 34, b: 60 }, modebar: { bgcolor: "rgba(0,0,0,0)", color: ink("muted"), activecolor: ink("accent") }, hovermode: "closest", hoverdistance: NEAR, uirevision: `${plot.x} ${plot.y}`,
    hoverlabel: { bgcolor: ink("panel"), bordercolor: ink("line"), font: { color: ink("ink") }, align: "left" },
    legend: { font: { size: 11 }, groupclick: "toggleitem", tracegroupgap: 2 }, showlegend: true,
    xaxis: { ...axis, title: { text: xName, standoff: 10 }, ...(places ? { tickvals: places.map((_, i) => i), ticktext: places.map(unmarked) } : {}) },
    yaxis: { ...axis, title: { text: unmarked(plot.y) }, type: logarithmic ? "log" : "linear", ...(logarithmic ? ticksOf(sizes) : {}) },
  };
}

// Labels at 1, 2, 5 of each power of ten; over three powers at each power only.
function ticksOf(sizes) {
  const [low, high] = [Math.min(...sizes), Math.max(...sizes)];
  const powers = Array.from({ length: 40 }, (_, i) => i - 20);
  const values = powers.flatMap((power) => (high / low > 1000 ? [1] : [1, 2, 5]).map((digit) => digit * 10 ** power));
  return { tickvals: values, ticktext: values.map((value) => String(Number(value.toPrecision(1)))) };
}

// ---- a click ----

// All points drawn within a few pixels of the clicked one.
function answer(area, clicked) {
  const { width, height } = area.querySelector(".nsewdrag").getBoundingClientRect();
  const pixel = (axis, value, size) => {
    const { range, type } = area.layout[axis];
    return ((type === "log" ? Math.log10(value) : value) - range[0]) / (range[1] - range[0]) * size;
  };
  const place = (x, y) => [pixel("xaxis", x, width), pixel("yaxis", y, height)];
  const [x0, y0] = place(clicked.x, clicked.y);
  const near = area.data.filter((trace) => trace.mode === "markers" && trace.visible !== "legendonly").flatMap((trace) => (
    trace.customdata.map((point, i) => {
      const [x, y] = place(trace.x[i], trace.y[i]);
      return { ...point, distance: Math.hypot(x - x0, y - y0) };
    }))).filter((point) => point.distance <= NEAR).sort((a, b) => a.distance - b.distance);
  if (near.length > 1) listPoints(near);
  else openRecord(near[0].cell);
}
