"""The chat page in headless Chromium. LK_PICTURE=FILE writes the picture that docs/serve.md shows."""

import os
import re
import shutil
import signal
import time

import pytest

from server import Server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no chromium (tools/setup test installs it)")


@pytest.fixture(scope="module")
def own():
    s = Server("--ctx", "4096")
    yield s
    assert s.stop() == 0


@pytest.fixture
def page(own):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        b = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        ctx = b.new_context(viewport={"width": 1000, "height": 720})
        page = ctx.new_page()
        faults, outside = [], []
        page.on("pageerror", lambda e: faults.append(str(e)))
        page.on("request", lambda r: outside.append(r.url) if not r.url.startswith((own.url, "data:", "blob:")) else None)
        page.on("dialog", lambda d: d.accept())
        page.goto(own.url)
        yield page
        assert not faults and not outside
        b.close()


def ask(page, text):
    page.fill("#input", text)
    page.click("#send")


def settle(page):
    page.wait_for_selector("#stop", state="hidden", timeout=60000)


def settings(page, **kw):
    page.click("#settings")
    for k, v in kw.items():
        if k == "think":
            page.select_option("#s-think", v)
        else:
            page.fill("#s-" + k, v)
    page.click("#s-save")


def last(page):
    return page.locator(".turn.assistant").last


def test_conversation(page):
    settings(page, temperature="0", max_tokens="80")
    ask(page, 'What does "lighthouse" mean?')
    settle(page)
    assert "lighthouse" in last(page).locator(".text").inner_text()
    details = last(page).locator("details")
    assert details.is_visible() and details.get_attribute("open") is None  # thinking is folded away
    details.locator("summary").click()
    assert last(page).locator(".think").inner_text().strip()
    assert re.search(r"\d+ tokens, [\d.]+ tok/s.*drafts accepted \d+ %", last(page).locator(".stats").inner_text())
    ask(page, "And a river?")
    settle(page)
    assert page.locator(".turn").count() == 4
    if os.environ.get("LK_PICTURE"):
        page.screenshot(path=os.environ["LK_PICTURE"])
    first = page.locator(".turn.assistant").first.locator(".text").inner_text()
    page.reload()  # kept in the browser
    assert page.locator(".turn").count() == 4
    assert page.locator(".turn.assistant").first.locator(".text").inner_text() == first
    page.locator(".turn.assistant").first.get_by_role("button", name="Regenerate").click()
    settle(page)
    assert page.locator(".turn").count() == 2 and last(page).locator(".text").inner_text() == first  # greedy: the same again
    page.locator(".turn.user").get_by_role("button", name="Edit").click()
    page.locator(".turn.user textarea").fill("What does \"tree\" mean?")
    page.locator(".turn.user").get_by_role("button", name="Send").click()
    settle(page)
    assert page.locator(".turn.user .text").inner_text() == 'What does "tree" mean?'
    page.click("#new")
    assert page.locator(".turn").count() == 0
    page.locator("#list .name").first.click()
    assert page.locator(".turn").count() == 2


def endless(page):
    """an answer that goes on for thousands of tokens: so hot that its end is hardly ever drawn"""
    settings(page, temperature="90", top_p="1", think="none", max_tokens="3000")
    ask(page, "Write a very long story about everything.")
    end = time.time() + 60
    while len(last(page).locator(".text").inner_text()) <= 20 and time.time() < end:
        time.sleep(0.01)


def test_stop(page, own):
    endless(page)
    page.click("#stop")
    settle(page)
    assert len(last(page).locator(".text").inner_text()) > 20 and last(page).locator(".stats").inner_text() == "stopped"
    own.wait_idle()


def test_engine_restart_in_the_middle(page, own):
    endless(page)
    os.kill(own.engine_pid(), signal.SIGKILL)
    settle(page)
    assert "engine process died" in last(page).locator(".error").inner_text()
    assert len(last(page).locator(".text").inner_text()) > 20  # what was said stays
    own.wait_ready()
    settings(page, temperature="0", max_tokens="20")
    last(page).get_by_role("button", name="Regenerate").click()
    settle(page)
    assert last(page).locator(".error").inner_text() == "" and last(page).locator(".text").inner_text()


def test_phone(page):
    page.set_viewport_size({"width": 390, "height": 800})
    settings(page, temperature="0", max_tokens="30", think="none")
    ask(page, "Hello")
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert not page.locator("nav").is_visible()
    page.click("#menu")
    assert page.locator("nav").is_visible()
    page.locator("#list .name").first.click()
    assert not page.locator("nav").is_visible() and last(page).locator(".text").inner_text()


def test_model_text_is_text(page):
    """markup in a message never becomes markup of the page"""
    settings(page, max_tokens="2", think="none")
    ask(page, "<img src=x onerror=alert(1)> **b** `c`")
    settle(page)
    assert page.locator(".turn img").count() == 0
