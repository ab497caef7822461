"""The dashboard: the numbers of records on a page that fetches nothing, used in a real browser as a reader does."""

import json
import re
import shutil

import pytest
from tests.base.refusals import refused
from tests.command_line import QUICK
from tests.experiment.records.browser import opened

import lutlab
from lutlab.experiment.records import dashboard, frame, wandb_files
from lutlab.experiment.records.dashboard import SCRIPTS, _part

ARTIFACTS = ("lut-gemm-v3/table4", "lut-gemm-iclr2024/table1")
NUMBERS = ("paper", "artifact", "variant", "row", "column", "metric", "measured", "published", "cell_id")  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory, copied):
    return copied(tmp_path_factory.mktemp("published"), *ARTIFACTS).parent


@pytest.fixture(scope="module")
def cells(folder):
    return frame.results(folder)


@pytest.fixture(scope="module")
def page(folder):
    path = folder / "page" / "dashboard.html"
    return dashboard.write(path, *dashboard.of_records(folder), str(folder))


def shown(html):
    """The cells on a page: its data, column by column, as rows."""
    data = json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])["cells"]
    rows = [{} for _ in range(data["count"])]
    for name, (values, at) in data["columns"].items():
        for row, index in zip(rows, at, strict=True):
            if index >= 0:
                row[name] = values[index]
    return rows


def numbers(rows):
    return {tuple(row.get(name) for name in NUMBERS) for row in rows if "measured" in row}


def recorded(cells):
    """Numbers of measured cells, without what is empty."""
    rows = cells[cells.measured.notna()].to_dict("records")
    return numbers({k: v for k, v in r.items() if v == v and v not in (None, "")} for r in rows)


def test_every_number_on_the_page_is_that_of_its_record(page, cells):
    rows = shown(page.read_text())
    assert len(rows) == len(cells)
    assert numbers(rows) == recorded(cells)


@pytest.mark.slow
def test_tracked_runs_show_the_same_numbers(command, copied, tmp_path):
    """Of a table of products, tracked from its records and read back by wandb's own command."""
    copied(tmp_path / "published", ARTIFACTS[1])
    tracked = command("mode=track", "logger=offline", f"logger.records={tmp_path / 'published'}")
    assert tracked.code == 0, tracked.err
    rows = shown(dashboard.render(dashboard.of_tracked(command.results / "wandb"), [], "wandb"))
    assert numbers(rows) == recorded(frame.results(tmp_path / "published"))


def test_runs_without_a_row_are_no_page(monkeypatch, tmp_path):
    table = {"config": {"kind": "table"}, "summary": {}}
    monkeypatch.setattr(wandb_files, "read", lambda _: [table])
    refused("no row of a table", dashboard.of_tracked, tmp_path)


@pytest.mark.slow
def test_all_that_is_published_fits_into_ten_megabytes(published):
    html = dashboard.render(dashboard.rows(published), [], "all")
    assert len(html.encode()) < 9_500_000  # claims add some 0.1 MB
    assert len(shown(html)) == len(published)


def test_a_text_of_a_record_cannot_end_the_script(cells):
    rows = [{"row": "</script><script>alert(1)</script>", "measured": 1.0}]
    html = dashboard.render(rows, [], "<b>")
    assert "alert(1)</script>" not in html.partition('id="data"')[2].partition("</script>")[0]
    assert shown(html) == rows
    assert "&lt;b&gt;" in html


def test_the_command_draws_all_of_a_results_folder(command, folder):
    shutil.copytree(folder, command.results)
    drawn = command("mode=dashboard")
    assert drawn.code == 0, drawn.err
    assert "dashboard.html" in drawn.out
    assert len(shown((command.results / "dashboard.html").read_text())) > 100
    assert "exp= says nothing to mode=dashboard" in command("mode=dashboard", "+exp=table4").err


def test_an_empty_folder_has_no_page(command):
    command.results.mkdir()
    outcome = command("mode=dashboard")
    assert outcome.code == 2
    assert "nothing measured" in outcome.err


@pytest.fixture(scope="module")
def browser(page, tmp_path_factory):
    with opened(page, tmp_path_factory.mktemp("chromium")) as reader:
        yield reader


def shown_value(browser):
    """The number of the record that is open, without its standard error."""
    return browser.text("#value").partition(" ± ")[0]


def test_filters_and_search_leave_what_they_say(browser, cells):
    browser.click("#reset")
    browser.choose(artifact="table4", variant="embedded", q="3")
    mine = cells[(cells.artifact == "table4") & (cells.variant == "embedded") & (cells.q == 3)]
    assert browser.text("#summary").startswith(f"{mine.row.nunique()} of ")
    assert len(browser.all("#table tbody tr")) == mine.row.nunique() > 1
    browser.first("#words").send_keys("opt-66b g64")
    (row,) = browser.all("#table tbody tr")
    assert "stand-in" in row.text
    browser.click("#table th[scope=col] button")
    active = browser.driver.switch_to.active_element
    assert browser.first("[aria-sort=ascending] button") == active


def test_checked_rows_stand_side_by_side_with_their_differences(browser):
    browser.click("#reset")
    browser.choose(artifact="table4", variant="embedded")
    rows = ("opt-30b/q4_g32", "opt-30b/q4_g64")
    browser.click(*(f"[aria-label='compare lut-gemm-v3/table4 {row}']" for row in rows))
    browser.click("#tab-compare")
    differing = {line.text for line in browser.all("#comparison tr.differs th")}
    assert {"g", "ppl on topics for wikitext2"} <= differing
    assert not {"q", "method", "machine", "commit"} & differing


def test_a_number_opens_its_record_and_an_address_does(browser, page, cells):
    browser.click("#reset", "#tab-runs")
    browser.choose(artifact="table4")
    cell = cells[(cells.row == "opt-30b/q4_g32") & (cells.column == "wiki2")].iloc[0]
    browser.click(f"#table [data-cell='{cell.cell_id}']")
    assert shown_value(browser) == str(cell.measured)
    text = browser.first("#record").text
    for fact in (cell.cell_id, cell.commit, cell.versions, cell.command, cell.source, cell.verdict):
        assert fact in text
    assert browser.driver.current_url.endswith(f"#{cell.cell_id}")
    browser.click("#record .close")
    assert "#" not in browser.driver.current_url
    browser.script(f"location.hash = '{cell.cell_id}'")
    assert shown_value(browser) == str(cell.measured)


def test_a_click_on_a_point_lists_all_under_it_and_leads_to_a_record(browser, cells):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.support.wait import WebDriverWait

    browser.click("#reset", "#tab-quality")
    wait = WebDriverWait(browser, 10)
    assert wait.until(lambda b: "stand-in" in b.text("#quality .legend"))
    mouse = ActionChains(browser.driver)
    mouse.move_to_element(browser.first("#quality .points path")).perform()
    wait.until(lambda b: b.all("#quality .hoverlayer .hovertext"))
    ActionChains(browser.driver).click().perform()
    wait.until(lambda b: b.all("#record h2"))
    for listed in browser.all("#points button")[:1]:
        listed.click()
    address = browser.driver.current_url.partition("#")[2]
    assert shown_value(browser) in {str(v) for v in cells[cells.cell_id == address].measured}


def test_claims_are_scored_and_nothing_was_fetched_or_failed(browser):
    browser.click("#tab-claims")
    assert re.search(r"✓ \d+ hold", browser.first("#claims details.paper summary").text)
    browser.click("#tab-speed")
    assert browser.first("#speed .plot").is_displayed()
    log = [json.loads(event["message"]) for event in browser.driver.get_log("performance")]
    urls = [sent["url"] for event in log if (sent := event["message"]["params"].get("request"))]
    assert urls
    assert not {url.partition(":")[0] for url in urls} & {"http", "https", "ws", "wss"}
    assert browser.script("return performance.getEntriesByType('resource').length") == 0
    assert browser.driver.get_log("browser") == []


@pytest.mark.slow
@pytest.mark.parametrize("store", ["running", "interrupted", "published"])
def test_a_store_in_any_state_has_its_page(command, store, folder, tmp_path):
    """A table half measured, a record in no table, published tables alone; a chart asked for at once."""
    sweep = ("method=rtn", "q=4,3", "g=32", *QUICK)
    source = f"dashboard.of=[{folder}]"
    if store != "published":
        assert command(*sweep).code == 0
        source = f"results={command.results}"
    if store == "running":
        next((command.results / "records").glob("*.json")).unlink()
        assert command("mode=report", *sweep).code == 0
    if store == "interrupted":
        shutil.rmtree(command.results / "sweep")
    output = tmp_path / "page.html"
    assert command("mode=dashboard", source, f"dashboard.output={output}").code == 0
    with opened(output, tmp_path / "profile") as browser:
        browser.click("#tab-quality")
        log = browser.driver.get_log("browser")
        assert not [entry for entry in log if entry["level"] == "SEVERE"]
        assert browser.all("#quality .plot")
        browser.click("#tab-runs")
        assert browser.all("#table tbody tr")
        if store == "running":
            assert browser.first("#filter-artifact").get_attribute("value"), "of the last sweep"


def test_nothing_is_read_before_it_is_defined():
    """A `const` is unreadable above its line: whatever runs on load stands below all that its functions read."""
    lines = "\n".join(_part(f"{name}.js") for name in SCRIPTS).splitlines()

    def starting(pattern: str) -> dict[str, int]:
        """The name that a line begins with -> its place."""
        return {m[1]: at for at, line in enumerate(lines) if (m := re.match(pattern, line))}

    defined = starting(r"(?:const|let) (\w+)")
    functions = starting(r"(?:async )?function (\w+)")
    bodies = {name: "\n".join(lines[at : lines.index("}", at)]) for name, at in functions.items()}

    def reads(code: str, seen: frozenset[str] = frozenset()) -> set[str]:
        words = set(re.findall(r"\w+", code))
        called = words & (bodies.keys() - seen)
        return (words & defined.keys()).union(*(reads(bodies[f], seen | called) for f in called))

    runs = re.compile(rf"(?:(?:const|let) \w+ = )?({'|'.join(bodies)})\(")
    calls = {at: line for at, line in enumerate(lines) if runs.match(line)}
    assert len(calls) > 5
    for at, line in calls.items():
        late = {word for word in reads(line) if defined[word] > at}
        assert not late, f"line {at + 1} of the scripts, {line!r}, reads {late} too early"


METHODS = ("rtn", "bcq", "gptq")
SWEEP = [
    f"method={','.join(METHODS)}", "q=3", "g=32", "name=first", "evaluate=[ppl:lambada-joined]", "data.limit=2",
    "calibration.samples=2",
]  # fmt: skip


@pytest.mark.slow
def test_the_same_comparison_everywhere(command, tmp_path):
    outcome = command(*SWEEP)
    assert outcome.code == 0, outcome.err
    assert "sweep/first" in outcome.out
    rows = lutlab.results(command.results)
    ppl = rows[rows.metric == "ppl"]
    assert set(rows.cell_id) >= set(command.records())
    assert ppl["model"].unique().tolist() == ["opt-embedded-s"]
    assert set(ppl.method) == {*METHODS, "none"}
    assert (ppl[ppl.method != "none"].difference > 0).all()
    numbers = dict(zip(ppl.row, ppl.measured, strict=True))

    shutil.copytree(command.results / "sweep", command.results / "rendered" / "sweep")
    assert len(lutlab.results(command.results)) == len(rows)
    runs = [run for run in wandb_files.read(command.results / "wandb") if run["config"].get("row")]
    key = "passages-joined-first2/ppl"
    assert {run["config"]["row"]: run["summary"][key] for run in runs} == numbers

    assert command("mode=dashboard").code == 0
    page = command.results / "dashboard.html"
    with opened(page.resolve(), tmp_path / "chromium") as browser:
        assert len(browser.all("#table tbody tr")) == len(numbers)
        browser.click(*(f"[aria-label='compare sweep/first {row}']" for row in numbers))
        browser.click("#tab-compare")
        compared = browser.first("#comparison").text
        assert [value for value in numbers.values() if f"{value:.4g}" not in compared] == []
