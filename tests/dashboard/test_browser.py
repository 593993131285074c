"""Every view in a browser, while a pipeline runs, with hostile keys."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from dashboard.pipelines import ADDRESS, COMMAND, HOSTILE, PAGES, live_run
from support.components import chromium
from support.processes import WAIT_SECONDS, started

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
VIEWS = {
    "keys": "table.keys tbody tr",
    "windows": "table.compared tbody tr",
    "privacy": ".chart canvas",
    "health": "dl",
}
PATIENCE_MS = 120_000
PHONE, DESKTOP = (360, 760), (1280, 900)
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The distribution's Chromium."""
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield launched
        launched.close()


@contextmanager
def serving(path: Path, *options: str, **environment: str) -> Iterator[str]:
    command = [*COMMAND, "serve", str(path), "--port", "0", *options]
    with started(
        command, stderr=subprocess.PIPE, text=True, env=os.environ | environment
    ) as server:
        assert server.stderr is not None
        found = ADDRESS.search(server.stderr.readline())
        assert found is not None
        yield found[0]
        server.terminate()  # the server removes its cache
        server.wait(WAIT_SECONDS)


@pytest.fixture(scope="module")
def address(ran: Path) -> Iterator[str]:
    """A dashboard of pipelines that have run."""
    with serving(ran / "state") as found:
        yield found


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The dashboard of a pipeline with a trigger every second."""
    with live_run(tmp_path_factory.mktemp("live"), "--operator-metrics") as found:
        yield found


@contextmanager
def opened(
    browser: Browser, size: tuple[int, int] = DESKTOP, scheme: Any = "light", **options: Any
) -> Iterator[Page]:
    """A tab that tolerates no error and no request to elsewhere."""
    viewport: Any = {"width": size[0], "height": size[1]}
    context = browser.new_context(viewport=viewport, color_scheme=scheme, **options)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    page.on("dialog", lambda dialog: problems.append("a dialog"))
    page.on(
        "request",
        lambda r: None if r.url.startswith("http://127.0.0.1:") else problems.append(r.url),
    )
    yield page
    context.close()
    assert problems == []


def go(page: Page, view: str) -> None:
    page.click(f"header nav a[data-view={view}]")
    page.wait_for_selector(VIEWS[view])


def last_release(page: Page) -> str:
    return page.locator("#tick").inner_text()


def test_every_view_follows_a_running_pipeline(browser: Browser, live: str) -> None:
    with opened(browser) as page:
        page.goto(live)
        page.wait_for_selector(VIEWS["keys"])
        expect(page.locator("#status")).to_have_text("running")
        for view in VIEWS:
            go(page, view)
            before = last_release(page)
            page.wait_for_function(
                "before => document.getElementById('tick').innerText > before", arg=before
            )
            assert re.fullmatch(r"Last release: \d{4}-\d\d-\d\d [\d:]+ UTC\.", last_release(page))
            page.wait_for_selector(VIEWS[view])
        expect(page.locator(".notprivate")).to_contain_text("not private")
        go(page, "keys")
        page.locator("th.key a").first.click()
        page.wait_for_selector(".chart canvas")


@pytest.mark.parametrize("which", ["address", "live"])
def test_hostile_keys_are_text(
    browser: Browser, which: str, request: pytest.FixtureRequest
) -> None:
    with opened(browser) as page:
        page.goto(request.getfixturevalue(which))
        page.wait_for_selector(VIEWS["keys"])
        for search in ("<script", "<img", "xxxxxxxx", "emoji", "مرحبا", "quoted", "a?b&c", "tail"):
            page.fill("input[type=search]", search)
            link = page.locator("th.key a")
            expect(link).to_have_count(1)
            expect(link).to_contain_text(search)
            expect(page.locator("tbody th.key bdi")).to_have_count(1)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            link.click()
            page.wait_for_selector(".chart canvas")
            shown = page.locator("h1.keyname").inner_text()
            assert search in shown
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            page.go_back()
            page.wait_for_selector("input[type=search]")
        assert page.locator("main script, main img").count() == 0
        assert "owned" not in page.title()


def test_what_hides_or_reorders_text_is_shown(browser: Browser, address: str) -> None:
    with opened(browser) as page:
        page.goto(f"{address}#/keys?search=tail")
        link = page.locator("th.key a")
        expect(link).to_have_text("abc⟨U+202E⟩dcba␇␊␉tail")
        page.goto(f"{address}#/keys?order=key&direction=asc")
        expect(link.first).to_have_text("empty text")


def test_search_order_and_pages(browser: Browser, address: str) -> None:
    with opened(browser) as page:
        page.goto(address)
        page.wait_for_selector(VIEWS["keys"])
        rows = page.locator(VIEWS["keys"])
        expect(rows).to_have_count(50)
        page.click("text=Next")
        expect(page.locator(".pager input")).to_have_value("2")
        expect(rows).to_have_count(len(PAGES) - 50)
        page.type("input[type=search]", "page/00", delay=60)
        expect(rows).to_have_count(10)
        expect(page.locator("input[type=search]")).to_be_focused()
        expect(page.locator("input[type=search]")).to_have_value("page/00")
        page.select_option("select[data-focus=order]", "asc seconds")
        expect(page.locator("thead")).to_contain_text("seconds ± 2 sd")
        page.fill("input[type=search]", "rare")
        expect(page.locator(".empty")).to_contain_text("too few units")
        page.goto(f"{address}#/keys?page=2")
        page.go_back()
        page.go_forward()
        expect(page.locator(".pager input")).to_have_value("2")


def test_the_chart_of_a_key_has_a_noise_band(browser: Browser, address: str) -> None:
    with opened(browser) as page:
        page.goto(address)
        page.wait_for_selector(VIEWS["keys"])
        page.locator("th.key a").first.click()
        page.wait_for_selector(".chart canvas")
        part = page.locator("#over-triggers")
        expect(part.locator(".legend")).to_contain_text("± 2 standard deviations")
        expect(part.locator(".readout")).to_contain_text("±")
        painted = page.evaluate(
            "() => { const c = document.querySelector('#over-triggers canvas');"
            " const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
            " let n = 0; for (let i = 3; i < d.length; i += 4) if (d[i] > 20 && d[i] < 80) n++;"
            " return n }"
        )
        assert painted > 500  # the band is translucent
        page.click("summary")
        expect(part.locator("details tbody tr")).to_have_count(4)
        expect(part.locator("details tbody tr .final")).to_have_count(1)
        expect(part.locator("p.lead")).to_contain_text("The last value is final.")
        page.select_option("select[data-focus=column]", "people")
        expect(part.locator(".legend")).to_contain_text("threshold for the key to appear")
        page.select_option("select[data-focus=window]", index=1)
        expect(part.locator("h2")).to_contain_text("01:00 – 02:00")


def test_a_key_over_windows_has_its_changes(browser: Browser, address: str) -> None:
    with opened(browser) as page:
        page.goto(f"{address}#/keys?search=/news")
        page.locator("th.key a").first.click()
        part = page.locator("#over-windows")
        expect(part.locator("canvas")).to_have_count(1)
        expect(part.locator("tbody tr")).to_have_count(3)
        expect(part.locator(".note").first).to_contain_text("Released in 3 of 3 windows")
        changes = part.locator("tbody tr td:last-child > span").all_inner_texts()
        assert [bool(re.fullmatch(r"[+-]?[\d,]+ ± [\d.,]+", text)) for text in changes] == [
            True,
            True,
            False,
        ]
        assert changes[-1] == "–"  # there is no window before the first
        part.locator("tbody a").last.click()
        expect(page.locator("#over-triggers h2")).to_contain_text("00:00 – 01:00")


def test_a_single_release_is_a_number_and_no_dot(browser: Browser, address: str) -> None:
    """Of one window that has one release."""

    def once(route: Route) -> None:
        body = route.fetch().json()
        for name in ("triggers", "due"):
            body[name] = body[name][-1:]
        for name in ("values", "sd", "threshold"):
            body[name] = [column and column[-1:] for column in body[name]]
        route.fulfill(json=body)

    def first(route: Route) -> None:
        body = route.fetch().json()
        body["values"][1:] = [None] * (len(body["values"]) - 1)
        body["changes"] = [None] * len(body["changes"])
        route.fulfill(json=body)

    with opened(browser) as page:
        page.route("**/key?*", once)
        page.route("**/key/windows?*", first)
        page.goto(address)
        page.locator("th.key a").first.click()
        expect(page.locator("#over-triggers .lead")).to_contain_text("Released once, at 2024-05-01")
        expect(page.locator("#over-windows .note").first).to_contain_text("1 of 3 windows")
        expect(page.locator("#over-windows .readout")).to_contain_text("±")
        expect(page.locator(".chart")).to_have_count(0)


def test_a_key_that_a_window_lacks_still_has_its_windows(browser: Browser, address: str) -> None:
    absent = {"status": 404, "json": {"error": "No key."}}
    with opened(browser) as page:
        page.goto(address)
        page.wait_for_selector(VIEWS["keys"])
        where = page.locator("th.key a").first.get_attribute("href")
    context = browser.new_context()
    page = context.new_page()
    page.route("**/key?*", lambda route: route.fulfill(**absent))
    page.goto(f"{address}{where}")
    expect(page.locator("#over-windows tbody tr")).to_have_count(3)
    expect(page.locator("#over-triggers")).to_have_count(0)
    context.close()


@pytest.mark.parametrize("token", [None, "sesame"])
def test_what_is_shown_can_be_downloaded(browser: Browser, ran: Path, token: str | None) -> None:
    """Every view with values, also with a token, which a link could not send."""
    environment = {} if token is None else {"DPSQLP_DASHBOARD_TOKEN": token}
    with serving(ran / "state", **environment) as address:
        context = browser.new_context(accept_downloads=True)
        page = context.new_page()
        page.goto(f"{address}#/keys?search=/page/00")
        if token is not None:
            page.fill("#token", token)
            page.keyboard.press("Enter")
        page.wait_for_selector(VIEWS["keys"])
        assert downloaded(page, "these keys", "CSV", "popular-keys.csv").count(b"\n") == 11
        page.locator("th.key a").first.click()
        for what, name in (("the windows", "popular-key-windows"), ("the values", "popular-key")):
            assert downloaded(page, what, "Parquet", f"{name}.parquet").startswith(b"PAR1")
        go(page, "windows")
        assert b'"/sport"' in downloaded(page, "these windows", "CSV", "popular-windows.csv")
        context.close()


def downloaded(page: Page, what: str, kind: str, name: str) -> bytes:
    with page.expect_download(timeout=PATIENCE_MS) as found:
        page.click(f'button[aria-label^="Download {what}"][aria-label$="{kind}"]')
    assert found.value.suggested_filename == name
    return found.value.path().read_bytes()


def test_a_download_that_fails_says_so(browser: Browser, address: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector(VIEWS["keys"])
    refused = {"status": 400, "json": {"error": "These rows are too many."}}
    page.route("**/download?*", lambda route: route.fulfill(**refused))
    page.click("text=Parquet")
    expect(page.locator(".downloads .note")).to_contain_text("These rows are too many.")
    expect(page.locator(".downloads button").first).to_be_enabled()
    context.close()


def test_name_epsilon_and_delta_are_on_every_view(browser: Browser, address: str) -> None:
    for size in (PHONE, DESKTOP):
        with opened(browser, size) as page:
            page.goto(address)
            page.wait_for_selector(VIEWS["keys"])
            for view in VIEWS:
                go(page, view)
                expect(page.locator("#promise")).to_have_text("ε = 8, δ = 10⁻⁴ per user_id")
                expect(page.locator("#promise")).to_be_in_viewport()
                assert page.locator("#sink").input_value() == "popular"
            go(page, "keys")
            expect(page.locator(".bounds")).to_contain_text("biased down")
            page.goto(f"{address}#/keys?sink=total")
            expect(page.locator("#promise")).to_have_text("ε = 1, δ = 10⁻⁶ per user_id")
            assert page.locator("#sink").input_value() == "total"


def test_times_stand_for_triggers(browser: Browser, address: str) -> None:
    with opened(browser) as page:
        page.goto(address)
        for view in VIEWS:
            page.goto(f"{address}#/{view}")
            page.wait_for_selector(VIEWS[view])
            assert not re.search(r"[Tt]rigger \d", page.locator("body").inner_text()), view
        expect(page.locator("#tick")).to_have_text("Last release: 2024-05-01 03:00 UTC.")


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_every_column_is_seen(browser: Browser, address: str, size: tuple[int, int]) -> None:
    """And no text runs into another, with four long columns."""

    def wide(route: Route) -> None:
        body = route.fetch().json()
        for sink in body["sinks"]:
            sink["aggregates"] = [f"seconds_on_a_page_{n}" for n in range(4)]
        route.fulfill(json=body)

    def four(route: Route) -> None:
        body = route.fetch().json()
        for row in body["rows"]:
            row["values"] = [{"value": 123_456_789, "sd": 5_432.1}] * 4
        body["scale"] = [[0, 130_000_000]] * 4
        route.fulfill(json=body)

    with opened(browser, size) as page:
        page.route("**/api/v1/sinks", wide)
        page.route("**/keys?*", lambda route: four(route))
        page.goto(f"{address}#/keys?order=views")
        page.wait_for_selector(VIEWS["keys"])
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        boxes = page.evaluate(
            "() => [...document.querySelector('table.keys tbody tr').children].map(cell => {"
            " const { left, right, top, bottom } = cell.getBoundingClientRect();"
            " return [left, right, top, bottom, cell.scrollWidth - cell.clientWidth]; })"
        )
        assert len(boxes) == 6
        for left, right, top, bottom, hidden in boxes:
            assert right - left > 60
            assert bottom > top
            assert hidden <= 1
            assert 0 <= left < right <= size[0]


def test_windows_are_compared(browser: Browser, address: str) -> None:
    with opened(browser) as page:
        page.goto(address)
        page.wait_for_selector(VIEWS["keys"])
        go(page, "windows")
        expect(page.locator("table.compared thead th")).to_have_count(4)
        expect(page.locator("table.compared thead .final")).to_have_count(3)
        page.select_option("select[data-focus=count]", "2")
        expect(page.locator("table.compared thead th")).to_have_count(3)
        first = page.locator("table.compared tbody tr").first
        expect(first.locator(".errorbar .noise")).to_have_count(6)
        expect(first.locator(".change")).to_have_count(2)
        expect(first.locator(".change").first).to_contain_text("±")


def test_the_guarantee_is_in_words_and_numbers(browser: Browser, address: str) -> None:
    with opened(browser) as page:
        page.goto(f"{address}#/privacy")
        page.wait_for_selector(VIEWS["privacy"])
        text = page.locator("main").inner_text()
        for part in ("Who is protected", "What is not promised", "ε = 8", "δ = 10⁻⁴", "user_id"):
            assert part in text
        assert "The last table of a window is the best one" in text
        assert "τ of closing" not in text
        assert page.locator(".chart canvas").count() == 2
        page.click("summary")
        expect(page.locator("pre")).to_contain_text("-differentially private for each user_id")
        page.select_option("#sink", "total")
        expect(page.locator("main")).to_contain_text("ε = 1")


def test_a_closing_is_shown(browser: Browser, address: str) -> None:
    """Its part of delta, its threshold, and what it means for keys."""

    def with_closing(route: Route) -> None:
        response = route.fetch()
        body = response.json()
        body["numbers"]["closing"] = {"failure": 2e-5, "threshold": 6.5, "weights_max": [0.75, 0.5]}
        route.fulfill(response=response, json=body)

    with opened(browser) as page:
        page.route("**/statement", with_closing)
        page.goto(f"{address}#/privacy")
        page.wait_for_selector(VIEWS["privacy"])
        text = page.locator("main").inner_text()
        for part in ("β of closing", "τ of closing", "at most 0.75 each", "or at the last trigger"):
            assert part in text


def test_a_sink_without_metadata(browser: Browser, ran: Path) -> None:
    with serving(ran / "out") as address, opened(browser) as page:
        page.goto(address)
        page.wait_for_selector(VIEWS["keys"])
        assert page.locator(VIEWS["keys"]).count() == 50
        go(page, "windows")
        go(page, "health")
        expect(page.locator("main")).to_contain_text("the state of the pipeline is unknown")


def test_a_token_is_asked_for_and_kept_in_the_tab(browser: Browser, ran: Path) -> None:
    with serving(ran / "state", DPSQLP_DASHBOARD_TOKEN="sesame") as address:
        context = browser.new_context()
        page = context.new_page()
        page.goto(address)
        page.fill("#token", "wrong")
        page.click("text=Open")
        expect(page.locator("form")).to_contain_text("not accepted")
        page.fill("#token", "sesame")
        page.keyboard.press("Enter")
        page.wait_for_selector(VIEWS["keys"])
        page.reload()
        page.wait_for_selector(VIEWS["keys"])
        assert context.cookies() == []
        assert "sesame" not in page.url
        assert page.evaluate("JSON.stringify(localStorage)").count("sesame") == 0
        context.close()


def test_a_server_that_fails_is_reported_and_retried(browser: Browser, ran: Path) -> None:
    with serving(ran / "state") as address:
        context = browser.new_context()
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector(VIEWS["keys"])
        page.route("**/api/**", lambda route: route.abort())
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # polls at once
        expect(page.locator("#banner")).to_contain_text("does not respond")
        page.unroute("**/api/**")
        expect(page.locator("#banner")).to_be_hidden()
        context.close()


@pytest.mark.parametrize("asked", ["**/api/v1/sinks", "**/keys?*"])
def test_a_failed_request_is_repeated(browser: Browser, address: str, asked: str) -> None:
    """A view that failed to draw is drawn at the next poll."""
    failed = {"status": 500, "body": '{"error": "no"}', "content_type": "application/json"}
    context = browser.new_context()
    page = context.new_page()
    page.route(asked, lambda route: route.fulfill(**failed), times=1)
    page.goto(address)
    page.wait_for_selector(VIEWS["keys"], timeout=PATIENCE_MS)
    expect(page.locator("#banner")).to_be_hidden()
    context.close()


def test_what_is_not_protected_stands_above_the_numbers(browser: Browser, address: str) -> None:
    def spoilt(route: Route) -> None:
        body = route.fetch().json()
        body["numbers"]["unprotected"] = ["NOT PROTECTED: something."]
        body["numbers"]["columns"][0]["standard_deviation"] = [1.0] * 500_000
        route.fulfill(json=body)

    with opened(browser) as page:
        page.route("**/statement", spoilt)
        page.goto(f"{address}#/privacy")
        expect(page.locator(".gauge .warning")).to_have_text("NOT PROTECTED: something.")
        expect(page.locator(".gauge")).to_contain_text("added probability")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_axe_finds_no_violation_and_nothing_sticks_out(
    browser: Browser, address: str, size: tuple[int, int], scheme: str
) -> None:
    with opened(browser, size, scheme) as page:
        page.goto(address)
        page.wait_for_selector(VIEWS["keys"])
        for view in ("keys", "key", "windows", "privacy", "health"):
            if view == "key":
                page.locator("th.key a").first.click()
                page.wait_for_selector(".chart canvas")
                page.click("summary")
            else:
                go(page, view)
            found = Axe().run(page)
            assert found.violations_count == 0, found.generate_report()
            wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, view


def test_the_theme_can_be_chosen(browser: Browser, address: str) -> None:
    with opened(browser, scheme="light") as page:
        page.goto(address)
        page.wait_for_selector(VIEWS["keys"])
        ground = "getComputedStyle(document.body).backgroundColor"
        colours = [page.evaluate(ground)]
        for _ in range(2):
            page.click("#theme")
            colours.append(page.evaluate(ground))
        auto, light, dark = colours
        assert auto == light != dark
        page.reload()
        page.wait_for_selector(VIEWS["keys"])
        assert page.evaluate(ground) == dark
        assert Axe().run(page).violations_count == 0


def test_the_keyboard_reaches_everything_in_order(browser: Browser, address: str) -> None:
    with opened(browser) as page:
        page.goto(address)
        page.wait_for_selector(VIEWS["keys"])
        stops = []
        for _ in range(14):
            page.keyboard.press("Tab")
            stops.append(
                page.evaluate(
                    "(e => e.id || e.dataset.view || e.dataset.focus?.split('-')[0] || e.className)"
                    "(document.activeElement)"
                )
            )
        assert stops[:11] == [
            "skip",
            "sink",
            "status",
            "theme",
            "keys",
            "windows",
            "privacy",
            "health",
            "search",
            "window",
            "order",
        ]
        assert stops[11:] == ["key"] * 3
        assert page.evaluate(
            "getComputedStyle(document.activeElement).outlineStyle !== 'none'"
        )  # the focus is visible
        page.keyboard.press("Enter")
        page.wait_for_selector(".chart canvas")
        page.evaluate("document.activeElement.blur()")
        page.goto(address)
        page.wait_for_selector(VIEWS["keys"])
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"


def test_the_keys_of_these_tests_are_hostile() -> None:
    assert any(len(key) >= 10_000 for key in HOSTILE)
    assert any("<script>" in key for key in HOSTILE)
