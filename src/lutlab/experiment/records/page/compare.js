// The checked runs side by side: a column a run, a line an axis, a number or a fact; lines that differ are marked.

const compared = { differing: false };

function drawCompare() {
  const chosen = [...checked];
  if (chosen.length < 2) {
    byId("compare").replaceChildren(element("p", { class: "empty" },
      "Check two rows or more in Runs: they will stand here side by side."));
    return;
  }
  const heads = chosen.map((run) => element("th", { scope: "col" }, `${tableOf(run.shared)}`,
    element("small", {}, run.shared.row ?? ""), badge(run.shared.kind),
    element("button", { type: "button", class: "drop", "aria-label": "take out", onclick: () => {
      check(run, false);
      refresh();
    } }, "×")));
  const groups = [["Axes", axisLines(chosen)], ["Numbers", numberLines(chosen)], ["Provenance", factLines(chosen)]];
  byId("compare").replaceChildren(
    element("div", { class: "tools" }, tick("only what differs", compared.differing, (on) => {
      compared.differing = on;
      refresh();
    }), element("button", { type: "button", onclick: () => { checked.clear(); nameTabs(); refresh(); } }, "Clear")),
    element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Comparison" },
      element("table", { id: "comparison" }, element("thead", {}, element("tr", {}, element("td", {}), heads)),
        groups.map(([title, lines]) => groupOf(title, lines, chosen.length)))));
}

function groupOf(title, lines, width) {
  const shown = lines.filter((line) => line.differs || !compared.differing);
  return element("tbody", {}, element("tr", { class: "group" },
    element("th", { scope: "rowgroup", colspan: width + 1 }, title, shown.length ? "" : element("small", {}, "no difference"))),
  shown.map((line) => element("tr", { class: line.differs ? "differs" : "" },
    element("th", { scope: "row" }, line.name), line.entries.map((entry) => element("td", {}, entry)))));
}

const line = (name, values, entries = values.map((value) => String(value ?? "–"))) => (
  { name, entries, differs: new Set(values.map((value) => JSON.stringify(value ?? null))).size > 1 });

function axisLines(chosen) {
  const names = [...new Set(chosen.flatMap((run) => axesOf(run.shared).map(([name]) => name)))];
  return names.map((name) => line(name, chosen.map((run) => run.shared[name])));
}

// Ours, the paper's, and how far ours is from the first run's.
function numberLines(chosen) {
  const tables = chosen.map((run) => byColumnOf(run.cells));
  const keys = [...new Set(tables.flatMap((mine) => [...mine.keys()]))];
  return keys.map((key) => {
    const [metric, , text, paperText, title] = JSON.parse(key);
    const first = tables[0].get(key)?.measured;
    const name = [metric, text && `on ${text}`, paperText && !text.startsWith(paperText) && `for ${paperText}`, title];
    return line(name.filter(Boolean).join(" "), tables.map((mine) => [mine.get(key)?.measured, mine.get(key)?.published]),
      tables.map((mine, i) => {
        const cell = mine.get(key);
        const change = i && first && cell?.measured !== undefined && cell.measured !== first
          ? element("small", {}, percent(cell.measured / first - 1)) : "";
        return element("span", {}, numberButton(cell) || "–", change);
      }));
  });
}

function factLines(chosen) {
  const names = ["variant", "stored_bits", ...PROVENANCE.filter((name) => name !== "command")];
  const each = (name) => chosen.map((run) => {
    const said = [...new Set(run.cells.map((cell) => cell[name]).filter((value) => value !== undefined))];
    return said.length > 4 ? `${said[0]} … (${said.length})` : said.join(", ") || undefined;
  });
  return names.map((name) => line(name, each(name)));
}
