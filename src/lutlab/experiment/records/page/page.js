// The page: views, and what follows a change of the filters.

const VIEWS = { runs: "Runs", compare: "Compare", quality: "Size and quality", speed: "Speed", claims: "Claims" };
let view = "runs";

function drawTabs() {
  byId("tabs").append(...Object.entries(VIEWS).map(([name]) => element("button", { type: "button", role: "tab",
    id: `tab-${name}`, "aria-controls": name, onclick: () => showTab(name), onkeydown: moveTab })));
  nameTabs();
}

function nameTabs() {
  for (const [name, text] of Object.entries(VIEWS)) {
    const count = name === "compare" && checked.size ? ` (${checked.size})` : "";
    byId(`tab-${name}`).textContent = text + count;
    byId(`tab-${name}`).setAttribute("aria-selected", name === view);
    byId(`tab-${name}`).tabIndex = name === view ? 0 : -1;
  }
}

function moveTab(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const names = Object.keys(VIEWS);
  const next = names[(names.indexOf(view) + step + names.length) % names.length];
  showTab(next);
  byId(`tab-${next}`).focus();
}

function showTab(name) {
  view = name;
  for (const one of Object.keys(VIEWS)) byId(one).hidden = one !== name;
  nameTabs();
  refresh();
}

function refresh() {
  const some = search();
  fillFilters(some);
  const shown = select(some);
  const measured = new Set(shown.flatMap((one) => one.cells).filter((cell) => cell.measured !== undefined)
    .map((cell) => cell.cell_id));
  byId("summary").textContent = `${shown.length} of ${runs.length} rows · ${measured.size} records · `
    + `${shown.reduce((total, one) => total + one.cells.length, 0)} cells`;
  const draw = { runs: () => drawRuns(shown), compare: drawCompare, quality: () => drawPlot("quality", shown),
    speed: () => drawPlot("speed", shown), claims: drawClaims };
  const key = document.activeElement.dataset.key; // drawn anew, the control that was used keeps the focus
  draw[view]();
  if (key) document.querySelector(`main [data-key="${CSS.escape(key)}"]`)?.focus();
}

drawTabs();
drawFilters();
setFilters(filtersOfLast());
openAddress();
addEventListener("popstate", openAddress);
addEventListener("hashchange", openAddress);
addEventListener("keydown", (event) => { if (event.key === "Escape" && byId("record").classList.contains("open")) leaveRecord(); });
addEventListener("beforeprint", () => { if (view === "runs") table.drawAll(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", refresh);
