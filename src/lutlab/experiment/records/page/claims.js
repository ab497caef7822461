// Claims as a tree: paper and kind, table, claim; a score on each level. Kinds never share a score.

const CLAIM_FIELDS = ["paper", "artifact", "variant", "machine", "text", "where", "kind", "published_hold",
  "published_decidable", "hold", "decidable", "failing"];
const KINDS = { sentence: "sentences of the paper", reading: "our readings of its tables", ours: "claims of ours" };
const SIGNS = { hold: "✓", fail: "✗", undecidable: "–" };

const stateOf = (claim) => (!claim.decidable ? "undecidable" : claim.hold === claim.decidable ? "hold" : "fail");
const counted = (holds, decidable) => (decidable ? `${holds}/${decidable}` : "not decidable");

function drawClaims() {
  const mine = page.claims.filter((claim) => ["paper", "artifact", "variant", "machine"].every(
    (name) => !filters[name] || claim[name] === filters[name]));
  if (!mine.length) {
    byId("claims").replaceChildren(element("p", { class: "empty" },
      page.claims.length ? "No claims under these filters." : "This source has no claims: they are judged on records."));
    return;
  }
  const papers = grouped(mine, (claim) => `${claim.paper}: ${KINDS[claim.kind]}`);
  byId("claims").replaceChildren(...[...papers].map(([paper, claims]) => element("details", { class: "paper", open: true },
    element("summary", {}, element("b", {}, paper), scoreOf(claims)),
    [...grouped(claims, (claim) => [claim.artifact, claim.variant, claim.machine].filter(Boolean).join(" · "))]
      .map(([name, some]) => tableClaims(name, some)))));
}

function grouped(list, key) {
  const groups = new Map();
  for (const one of list) groups.set(key(one), [...(groups.get(key(one)) ?? []), one]);
  return groups;
}

// Claims that hold, fail, are undecidable, as a bar and in words; instances in words.
function scoreOf(claims) {
  const counts = Object.fromEntries(Object.keys(SIGNS).map((state) => (
    [state, claims.filter((claim) => stateOf(claim) === state).length])));
  const sum = (name) => claims.reduce((total, claim) => total + (claim[name] ?? 0), 0);
  return element("span", { class: "score" },
    element("span", { class: "bar", "aria-hidden": "true" }, Object.entries(counts).filter(([, count]) => count)
      .map(([state, count]) => element("span", { class: state, style: `flex-grow:${count}` }))),
    Object.entries(counts).map(([state, count]) => element("span", { class: state }, `${SIGNS[state]} ${count} ${state}`)),
    element("small", {}, `instances: ours ${counted(sum("hold"), sum("decidable"))}, `
      + `paper's own ${counted(sum("published_hold"), sum("published_decidable"))}`
      + (sum("below_noise") ? `, ${sum("below_noise")} below noise` : "")));
}

function tableClaims(name, claims) {
  const { paper, artifact, variant, machine = "" } = claims[0];
  return element("details", { class: "of-table" },
    element("summary", {}, name, scoreOf(claims)),
    element("button", { type: "button", onclick: () => { setFilters({ paper, artifact, variant, machine }); showTab("runs"); } },
      "Show its rows"),
    element("ul", {}, claims.map(claimItem)));
}

function claimItem(claim) {
  const more = Object.entries(claim).filter(([name, value]) => !CLAIM_FIELDS.includes(name) && value)
    .map(([name, value]) => `${name.replaceAll("_", " ")}: ${value}`);
  const counts = [`ours ${counted(claim.hold, claim.decidable)}`,
    `paper ${counted(claim.published_hold, claim.published_decidable)}`, ...more].join(" · ");
  return element("li", { class: stateOf(claim) },
    element("span", { class: "sign", role: "img", "aria-label": stateOf(claim) }, SIGNS[stateOf(claim)]),
    element("span", {}, claim.text, " ", element("small", {}, `(${claim.where}) ${counts}`),
      claim.failing ? element("small", { class: "failing" }, `fails: ${claim.failing}`) : ""));
}
