"""A page in headless Chromium, as a reader has it."""

import shutil
from contextlib import contextmanager

import pytest


class Page:
    """What a reader does with a page, by CSS selectors."""

    def __init__(self, driver):
        self.driver = driver

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def first(self, selector):
        return self.driver.find_element("css selector", selector)

    def click(self, *selectors):
        for selector in selectors:
            self.first(selector).click()

    def script(self, code):
        return self.driver.execute_script(code)

    def text(self, selector):
        return self.script(f"return document.querySelector('{selector}').textContent")

    def choose(self, **filters):
        from selenium.webdriver.support.select import Select

        for name, value in filters.items():
            Select(self.first(f"#filter-{name}")).select_by_value(value)


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
        yield Page(chrome)
    finally:
        chrome.quit()
