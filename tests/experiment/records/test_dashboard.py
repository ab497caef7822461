"""The dashboard: the numbers of records on a page that fetches nothing, used in a real browser as a reader does."""

import json
import re
import shutil

import pytest
from tests.command_line import QUICK
from tests.experiment.records.browser import choose, one, opened, text_of

from lutlab.base.errors import LutlabError
from lutlab.experiment.records import dashboard, frame, wandb_files
from tools.published_list import PUBLISHED

ARTIFACTS = ("lut-gemm-v3/table4", "lut-gemm-iclr2024/table1")
NUMBERS = ("paper", "artifact", "variant", "row", "column", "metric", "measured", "published", "cell_id")  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two published artifacts of one machine."""
    machine = next(path for path in sorted(PUBLISHED.iterdir()) if (path / ARTIFACTS[0]).is_dir())
    copy = tmp_path_factory.mktemp("published") / machine.name
    for name in ARTIFACTS:
        shutil.copytree(machine / name, copy / name)
    return copy.parent


@pytest.fixture(scope="module")
def cells(folder):
    return frame.results(folder)


@pytest.fixture(scope="module")
def page(folder):
    return dashboard.write(
        folder / "page" / "dashboard.html", *dashboard.of_records(folder), str(folder)
    )


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
    return {tuple(row.get(name) for name in NUMBERS) for row in rows}


def recorded(cells):
    """Measured cells, without what is empty."""
    rows = cells[cells.measured.notna()].to_dict("records")
    return [{k: v for k, v in row.items() if v == v and v not in (None, "")} for row in rows]


# ---- the data ----


def test_every_number_on_the_page_is_that_of_its_record(page, cells):
    rows = shown(page.read_text())
    assert len(rows) == len(cells)
    assert numbers(row for row in rows if "measured" in row) == numbers(recorded(cells))


@pytest.mark.slow
def test_tracked_runs_show_the_same_numbers(command, folder, tmp_path):
    """Of a table of products, tracked from its records and read back by wandb's own command."""
    name = ARTIFACTS[1]
    (machine,) = [path for path in folder.iterdir() if (path / name).is_dir()]
    records = tmp_path / "published" / machine.name / name
    shutil.copytree(machine / name, records)
    tracked = command("mode=track", "logger=offline", f"logger.records={tmp_path / 'published'}")
    assert tracked.code == 0, tracked.err
    cells = frame.results(tmp_path / "published")
    rows = shown(dashboard.render(dashboard.of_tracked(command.results / "wandb"), [], "wandb"))
    assert numbers(row for row in rows if "measured" in row) == numbers(recorded(cells))


def test_runs_without_a_row_are_no_page(monkeypatch, tmp_path):
    monkeypatch.setattr(
        wandb_files, "read", lambda _: [{"config": {"kind": "table"}, "summary": {}}]
    )
    with pytest.raises(LutlabError, match="no row of a table"):
        dashboard.of_tracked(tmp_path)


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


# ---- in a browser ----


@pytest.fixture(scope="module")
def browser(page, tmp_path_factory):
    with opened(page, tmp_path_factory.mktemp("chromium")) as chrome:
        yield chrome


def shown_value(browser):
    """The number of the record that is open, without its standard error."""
    return text_of(browser, "#value").partition(" ± ")[0]


def test_filters_and_search_leave_what_they_say(browser, cells):
    one(browser, "#reset").click()
    choose(browser, "artifact", "table4")
    choose(browser, "variant", "embedded")
    choose(browser, "q", "3")
    mine = cells[(cells.artifact == "table4") & (cells.variant == "embedded") & (cells.q == 3)]
    assert text_of(browser, "#summary").startswith(f"{mine.row.nunique()} of ")
    drawn = browser.find_elements("css selector", "#table tbody tr")
    assert len(drawn) == mine.row.nunique() > 1
    one(browser, "#words").send_keys("opt-66b g64")
    assert len(browser.find_elements("css selector", "#table tbody tr")) == 1
    assert "stand-in" in one(browser, "#table tbody tr").text
    one(browser, "#table th[scope=col] button").click()
    assert one(browser, "[aria-sort=ascending] button") == browser.switch_to.active_element


def test_checked_rows_stand_side_by_side_with_their_differences(browser):
    one(browser, "#reset").click()
    choose(browser, "artifact", "table4")
    choose(browser, "variant", "embedded")
    for row in ("opt-30b/q4_g32", "opt-30b/q4_g64"):
        one(browser, f"[aria-label='compare lut-gemm-v3/table4 {row}']").click()
    one(browser, "#tab-compare").click()
    lines = browser.find_elements("css selector", "#comparison tr.differs th")
    differing = {line.text for line in lines}
    assert "g" in differing
    assert "ppl on topics for wikitext2" in differing
    assert not {"q", "method", "machine", "commit"} & differing


def test_a_number_opens_its_record_and_an_address_does(browser, page, cells):
    one(browser, "#reset").click()
    one(browser, "#tab-runs").click()
    choose(browser, "artifact", "table4")
    cell = cells[(cells.row == "opt-30b/q4_g32") & (cells.column == "wiki2")].iloc[0]
    one(browser, f"#table [data-cell='{cell.cell_id}']").click()
    assert shown_value(browser) == str(cell.measured)
    said = one(browser, "#record").text
    for fact in (cell.cell_id, cell.commit, cell.versions, cell.command, cell.source, cell.verdict):
        assert fact in said
    assert browser.current_url.endswith(f"#{cell.cell_id}")
    one(browser, "#record .close").click()
    assert "#" not in browser.current_url
    browser.execute_script(f"location.hash = '{cell.cell_id}'")
    assert shown_value(browser) == str(cell.measured)


def test_a_click_on_a_point_lists_all_under_it_and_leads_to_a_record(browser, cells):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.support.wait import WebDriverWait

    one(browser, "#reset").click()
    one(browser, "#tab-quality").click()
    wait = WebDriverWait(browser, 10)
    assert wait.until(lambda b: "stand-in" in text_of(b, "#quality .legend"))
    point = one(browser, "#quality .points path")
    ActionChains(browser).move_to_element(point).perform()
    wait.until(lambda b: b.find_elements("css selector", "#quality .hoverlayer .hovertext"))
    ActionChains(browser).click().perform()
    wait.until(lambda b: b.find_elements("css selector", "#record h2"))
    listed = browser.find_elements("css selector", "#points button")
    if listed:
        listed[0].click()
    address = browser.current_url.partition("#")[2]
    assert shown_value(browser) in {str(v) for v in cells[cells.cell_id == address].measured}


def test_claims_are_scored_and_nothing_was_fetched_or_failed(browser):
    one(browser, "#tab-claims").click()
    assert re.search(r"✓ \d+ hold", one(browser, "#claims details.paper summary").text)
    one(browser, "#tab-speed").click()
    assert one(browser, "#speed .plot").is_displayed()
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
    addresses = {params["request"]["url"].partition(":")[0] for params in asked}
    assert addresses
    assert not addresses & {"http", "https", "ws", "wss"}
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert browser.get_log("browser") == []


@pytest.mark.slow
@pytest.mark.parametrize("store", ["empty", "running", "interrupted", "published"])
def test_a_store_in_any_state_has_its_page(command, store, folder, tmp_path):
    """No cell, a table half measured, a record in no table, published tables alone; a chart asked for at once."""
    if store == "empty":
        command.results.mkdir()
        outcome = command("mode=dashboard")
        assert outcome.code == 2
        assert "nothing measured" in outcome.err
        return
    source = f"dashboard.of=[{folder}]"
    if store != "published":
        assert command("method=rtn", "q=4,3", "g=32", *QUICK).code == 0
        source = f"results={command.results}"
    if store == "running":
        next((command.results / "records").glob("*.json")).unlink()
        assert command("method=rtn", "q=4,3", "g=32", "mode=report", *QUICK).code == 0
    if store == "interrupted":
        shutil.rmtree(command.results / "sweep")
    output = tmp_path / "page.html"
    assert command("mode=dashboard", source, f"dashboard.output={output}").code == 0
    with opened(output, tmp_path / "profile") as chrome:
        one(chrome, "#tab-quality").click()
        assert not [entry for entry in chrome.get_log("browser") if entry["level"] == "SEVERE"]
        assert one(chrome, "#quality .plot")
        one(chrome, "#tab-runs").click()
        assert one(chrome, "#table tbody tr")
        if store == "running":
            assert one(chrome, "#filter-artifact").get_attribute("value"), (
                "it opens on the last sweep"
            )
