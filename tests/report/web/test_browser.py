"""The pages in a real browser: open, filter, group, compare, be refused, follow a training, in the dark, on a phone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sample_rows import make_checkpoint, make_end, make_run
from shown_runs import exam, fill, rows

import extras
from browser import NEEDS_BROWSER, chromium, serious, served
from mileage.ledger.rows import Run
from mileage.ledger.store import Store
from mileage.report.report import report_on

pytestmark = [NEEDS_BROWSER, extras.needs("web", "starlette", "uvicorn"), extras.needs("dev", "axe_playwright_python")]

Page = Any


class Ledger:
    """A ledger with its pages."""

    def __init__(self, db: Path) -> None:
        self.db = db
        self.runs: dict[str, Run] = fill(db)
        self.base = ""


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    made = Ledger(tmp_path_factory.mktemp("ledger") / "l.db")
    with served(made.db) as made.base:
        yield made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Page]]:
    """Pages that note what they ask for and what goes wrong in them."""
    contexts = []

    def opened(address: str, **how: Any) -> Page:
        context = browser.new_context(viewport=how.pop("viewport", {"width": 1100, "height": 800}), **how)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.asked, page.wrong = [], []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        page.on("console", lambda said: page.wrong.append(said.text) if said.type == "error" else None)
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()


def test_a_report_opens_from_disk_asks_nobody_and_has_no_serious_fault(
    ledger: Ledger, open_page: Callable[..., Page], tmp_path: Path
) -> None:
    with Store(ledger.db) as store:
        report = report_on(store, ["fast", "slow", ledger.runs["evil"].run_id], replay=False)
    file = tmp_path / "report.html"
    report.write(file)
    page = open_page(file.as_uri())
    assert page.asked == [file.as_uri()]
    assert page.wrong == []
    assert page.evaluate("window.hit") is None
    assert serious(page) == []
    shown = page.locator(".tab:visible .chart")
    assert "environment steps" in (shown.get_attribute("aria-label") or "")
    page.get_by_text("dollars", exact=True).click()
    assert "dollars" in (page.locator(".tab:visible .chart").get_attribute("aria-label") or "")
    page.emulate_media(media="print")
    assert page.locator(".tab:visible").count() == 3  # on paper all of them
    page.emulate_media(media="screen", color_scheme="dark")
    assert serious(page) == []
    assert page.asked == [file.as_uri()]


def test_from_the_list_to_a_run_with_filter_and_sort(ledger: Ledger, open_page: Callable[..., Page]) -> None:
    page = open_page(ledger.base)
    assert serious(page) == []
    page.get_by_label("Search").fill("slow")
    page.get_by_label("State").select_option("not_reached")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**/?q=slow&state=not_reached")
    assert page.locator("tbody tr").count() == 1
    page.go_back()
    page.get_by_role("link", name="return").click()
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("return")
    page.locator("tbody a").first.click()
    assert page.locator("section.card h2").all_inner_texts()[1:3] == ["Learning curve", "Cost to target"]
    assert serious(page) == []
    assert page.wrong == []


def test_recipes_are_chosen_and_compared(ledger: Ledger, open_page: Callable[..., Page]) -> None:
    page = open_page(ledger.base + "/recipes")
    page.get_by_label("A: fast").check()
    page.get_by_label("B: slow").check()
    page.get_by_role("button", name="Compare A with B").click()
    assert "verdict: A cheaper" in page.locator(".verdict").inner_text()
    assert serious(page) == []
    page.get_by_label("B", exact=True).fill("pendulum")
    page.get_by_role("button", name="Compare", exact=True).click()
    refusal = page.get_by_role("alert")
    assert "Not compared. these runs may not be compared" in refusal.inner_text()
    assert serious(page) == []


def test_names_that_are_attacks_do_nothing(ledger: Ledger, open_page: Callable[..., Page]) -> None:
    evil = ledger.runs["evil"].run_id
    for path in ("/", "/recipes", f"/runs/{evil}", f"/recipes/{evil}"):
        page = open_page(ledger.base + path)
        assert page.evaluate("window.hit") is None
        assert page.wrong == []
        assert all(asked.startswith((ledger.base, "data:")) for asked in page.asked)


def test_a_page_follows_a_run_until_it_ends(ledger: Ledger, open_page: Callable[..., Page]) -> None:
    run = make_run(name="live", seed=0, **exam())
    with Store(ledger.db) as store:
        store.deliver(rows(run, end=False)[:12])
        page = open_page(f"{ledger.base}/runs/{run.run_id}")
        page.get_by_text("dollars", exact=True).click()
        status = page.get_by_role("status")
        assert "running" in status.inner_text()
        store.deliver([make_checkpoint(run, 40, step=7000, target_value=444.0, mean_return=444.0, path=None)])
        page.get_by_role("status").filter(has_text="last held-out value 444").wait_for()
        # What was chosen stays chosen.
        assert "dollars" in (page.locator(".tab:visible .chart").get_attribute("aria-label") or "")
        store.deliver([make_end(run)])
        page.get_by_role("status").filter(has_text="reached").wait_for()
    assert page.wrong == []


@pytest.mark.parametrize("path", ["/", "/recipes/{run}", "/runs/{run}", "/compare?a=fast&b=slow"])
def test_on_a_phone_in_the_dark(ledger: Ledger, open_page: Callable[..., Page], path: str) -> None:
    where = ledger.base + path.format(run=ledger.runs["slow-0"].run_id)
    page = open_page(where, viewport={"width": 390, "height": 800}, color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 19, 25)"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert serious(page) == []
    page.get_by_role("button", name="Light").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(246, 248, 250)"
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"


def test_everything_can_be_reached_by_keys_alone(ledger: Ledger, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{ledger.base}/runs/{ledger.runs['fast-0'].run_id}")

    def focused() -> str:
        return str(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))

    page.keyboard.press("Tab")
    assert focused() == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.url.endswith("#content")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.type") == "radio":
            break
    page.keyboard.press("ArrowRight")
    assert "wall-clock" in (page.locator(".tab:visible .chart").get_attribute("aria-label") or "")
    page.locator("summary", has_text="Why these numbers").focus()
    page.keyboard.press("Enter")
    assert page.get_by_text("env steps / training s").is_visible()
    page.goto(f"{ledger.base}/recipes/{ledger.runs['fast-0'].run_id}")
    page.get_by_role("link", name="dollars").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**?x=dollars")
    assert page.locator(".pill[aria-current]").inner_text() == "dollars"
