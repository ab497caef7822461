"""A page in headless Chromium, as a reader has it."""

import shutil
from contextlib import contextmanager

import pytest


@contextmanager
def opened(page, profile):
    """The browser with a page open; skips where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    driver = shutil.which("chromedriver")
    if driver is None:
        pytest.skip("no chromedriver: apt-get install chromium-driver")
    options = webdriver.ChromeOptions()
    for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "window-size=1500,900"):
        options.add_argument(f"--{argument}")
    options.add_argument(f"--user-data-dir={profile}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options, webdriver.ChromeService(driver))
    try:
        chrome.get(page.as_uri())
        yield chrome
    finally:
        chrome.quit()


def one(browser, selector):
    return browser.find_element("css selector", selector)


def text_of(browser, selector):
    return browser.execute_script(f"return document.querySelector('{selector}').textContent")


def choose(browser, name, value):
    from selenium.webdriver.support.select import Select

    Select(one(browser, f"#filter-{name}")).select_by_value(value)
