"""``ramify ui --act``: who may start work, and what a hostile page, form or text can do."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest
from test_hostile import CHROMIUM, Inert
from web_hostile import PAYLOADS

from ramify.jobs.acts import Act, ActLimits
from ramify.jobs.queue import Queue
from ramify.web.acting import MOST_FORM
from ramify.web.server import ServedRuns, guarded_pages, open_server
from tests.jobs.queue_runs import halls_run, steps_of_a
from tests.waiting import until

FORM = {"content-type": "application/x-www-form-urlencoded"}


class Site:
    """A server, and requests with any header."""

    def __init__(self, port: int) -> None:
        self.port, self.own = port, f"127.0.0.1:{port}"

    def ask(
        self, path: str, body: dict[str, str] | str | None = None, method: str = "", **headers: str
    ) -> tuple[int, dict[str, str], str]:
        link = HTTPConnection("127.0.0.1", self.port, timeout=60)
        text = urlencode(body) if isinstance(body, dict) else body
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        link.request(method or ("GET" if body is None else "POST"), path, text, (FORM if body is not None else {}) | named)
        answer = link.getresponse()
        told = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()
        link.close()
        return told

    def token(self, path: str) -> str:
        found = re.search(r'name="form_token" value="([^"]+)"', self.ask(path)[2])
        assert found is not None
        return found[1]


@contextmanager
def served(shown: ServedRuns) -> Iterator[Site]:
    server, listener = open_server(guarded_pages(shown))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    try:
        yield Site(listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return halls_run(tmp_path_factory.mktemp("acting") / "halls").parent


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[Site]:
    with served(ServedRuns(folder, act=True)) as up:
        yield up


@pytest.fixture(scope="module")
def step(folder: Path) -> str:
    return steps_of_a(folder / "halls", False)[1]


def test_without_act_nothing_is_offered_and_nothing_answers(folder: Path, step: str) -> None:
    with served(ServedRuns(folder)) as plain:
        for path in ("/", "/jobs", "/run/halls/", f"/run/halls/node/{step}"):
            status, headers, page = plain.ask(path)
            assert status == 200
            assert "<form" not in page
            assert "/act/" not in page
            assert "form-action 'none'" in headers["content-security-policy"]
        for path in ("/run/halls/act/fork", "/jobs/1/stop", "/jobs/1/continue"):
            assert plain.ask(path, {"node": step, "form_token": ""})[0] in (404, 405)
        assert plain.ask(f"/run/halls/act/edit?node={step}")[0] == 404
    assert Queue(folder).numbers() == []


def test_a_step_leads_to_forms_whose_budget_is_shown(site: Site, step: str) -> None:
    _, headers, page = site.ask(f"/run/halls/node/{step}")
    assert "form-action 'self'" in headers["content-security-policy"]
    assert headers["referrer-policy"] == "same-origin"
    for name in ("edit", "fork", "token", "cause", "fix"):
        link = f"/run/halls/act/{name}?node={step}"
        assert escape(link) in page
        status, _, form = site.ask(link)
        assert status == 200
        assert 'name="tokens" type="number"' in form
        assert 'value="1000000"' in form
        assert f'value="{step}"' in form
    assert site.ask("/run/halls/act/why")[0] == 200
    assert site.ask("/run/halls/act/screen")[0] == site.ask("/run/none/act/why")[0] == 404
    assert "/act/record" not in site.ask("/run/halls/")[2]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:1"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"sec_fetch_site": "none"}, 403),
        ({"host": "evil.example"}, 421),
        ({"content_type": "text/plain"}, 400),
        ({"content_type": "application/json"}, 400),
        ({"content_type": "multipart/form-data; boundary=x"}, 400),
    ],
)
def test_other_sites_start_nothing_though_they_knew_the_token(
    site: Site, folder: Path, step: str, headers: dict[str, str], status: int
) -> None:
    token = site.token(f"/run/halls/act/fork?node={step}")
    for path in ("/run/halls/act/fork", "/jobs/1/stop", "/jobs/1/continue"):
        link = HTTPConnection("127.0.0.1", site.port, timeout=60)
        named = FORM | {"Host": site.own} | {name.replace("_", "-").title(): value for name, value in headers.items()}
        named = {name.lower(): value for name, value in named.items()}
        link.request("POST", path, urlencode({"node": step, "form_token": token}), named)
        assert link.getresponse().status == status
        link.close()
    assert Queue(folder).numbers() == []


@pytest.mark.parametrize("token", ["", "x", "\u00e9", "A" * 100_000])
def test_a_form_without_its_token_starts_nothing(site: Site, folder: Path, step: str, token: str) -> None:
    assert site.ask("/run/halls/act/fork", {"node": step, "form_token": token})[0] == 403
    assert site.ask("/run/halls/act/fork", {"node": step})[0] == 403
    assert Queue(folder).numbers() == []


def test_only_a_post_starts_something(site: Site, folder: Path, step: str) -> None:
    token = site.token(f"/run/halls/act/fork?node={step}")
    asked = urlencode({"node": step, "form_token": token, "n": "1"})
    assert site.ask(f"/run/halls/act/fork?{asked}")[0] == 200
    for method in ("PUT", "DELETE", "PATCH"):
        assert site.ask(f"/run/halls/act/fork?{asked}", "", method)[0] == 405
    assert site.ask("/jobs/1/stop")[0] in (404, 405)
    assert Queue(folder).numbers() == []


def test_forms_that_are_too_large_or_broken_are_refused(site: Site, folder: Path, step: str) -> None:
    token = site.token(f"/run/halls/act/edit?node={step}")
    good = {"node": step, "form_token": token, "text": "x", "how": "rule"}
    assert site.ask("/run/halls/act/edit", good | {"text": "x" * MOST_FORM})[0] == 400
    assert site.ask("/run/halls/act/edit", good | {"text": "x" * (11 << 20)})[0] == 413
    assert site.ask("/run/halls/act/edit", good | {f"f{i}": "" for i in range(50)})[0] == 400
    assert site.ask("/run/halls/act/edit", f"form_token={token}&text=%ff%fe")[0] == 400
    for wrong in (
        {"n": "0"},
        {"text": ""},
        {"text": "a\0"},
        {"tokens": "-1"},
        {"seconds": "x"},
        {"node": "../.."},
        {"model": "m"},
    ):
        status, _, page = site.ask("/run/halls/act/edit", good | wrong)
        assert status == 400, wrong
        assert 'role="alert"' in page
    assert Queue(folder).numbers() == []


@pytest.mark.parametrize("payload", PAYLOADS)
def test_hostile_values_come_back_as_text(site: Site, step: str, payload: str) -> None:
    good = {"node": step, "form_token": site.token(f"/run/halls/act/edit?node={step}"), "n": "0"}
    status, _, page = site.ask("/run/halls/act/edit", good | {"text": payload})
    assert status == 400
    inert(page)


OWN = re.compile(
    r"<(?:form|input|select|option|textarea|label|button|progress|noscript|strong)>|form action=/|meta http-equiv=refresh|"
    "a href=#content"
)
"""What pages with forms hold besides what others do."""


def inert(page: str) -> None:
    """Nothing but our own elements, and our own addresses."""
    read = Inert(page)
    assert [fault for fault in read.found if not OWN.match(fault)] == []


def test_hostile_texts_of_jobs_stay_texts(site: Site, folder: Path, tmp_path: Path) -> None:
    text = "\n".join(PAYLOADS)
    queue = Queue(tmp_path)
    act = Act("fork", tmp_path / "<img src=x>", text, ("fork", "--", "<script>alert(1)</script>", "ab"), 1)
    number = queue.submit(act, ActLimits()).number
    assert until(lambda: queue.state(number).over)
    (tmp_path / ".jobs" / str(number) / "log.txt").write_text(text)
    with served(ServedRuns(tmp_path, act=True)) as hostile:
        for path in ("/jobs", f"/jobs/{number}"):
            status, _, page = hostile.ask(path)
            assert status == 200
            inert(page)
        assert hostile.ask("/jobs/7")[0] == hostile.ask("/jobs/x")[0] == hostile.ask("/jobs/../../etc")[0] == 404
    queue.close()


def test_a_damaged_job_leaves_the_others_in_the_list(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    first, second = (queue.submit(Act("fork", tmp_path / "run", "a job", ("--version",), 1), ActLimits()).number for _ in "ab")
    assert until(lambda: queue.state(second).over)
    queue.close()
    file = tmp_path / ".jobs" / str(first) / "job.json"
    file.write_text(file.read_text().replace('"asked": ', '"asked": "x", "was": '))
    (tmp_path / ".jobs" / str(second) / "result.json").write_text('{"sections": 5}')
    with served(ServedRuns(tmp_path)) as site:
        status, _, page = site.ask("/jobs")
        assert status == 200
        assert "A job cannot be read" in page
        assert f'href="/jobs/{second}"' in page
        assert site.ask(f"/jobs/{first}")[0] == 404
        status, _, page = site.ask(f"/jobs/{second}")
        assert status == 200
        assert "result.json" in page


@pytest.mark.slow
def test_two_people_at_once_wait_for_each_other(folder: Path, step: str) -> None:
    with served(ServedRuns(folder, act=True)) as up:
        token = up.token(f"/run/halls/act/edit?node={step}")
        good = {"node": step, "form_token": token, "text": "Go left.", "how": "rule", "n": "3"}
        answers: list[tuple[int, dict[str, str], str]] = []

        def person() -> None:
            answers.append(up.ask("/run/halls/act/edit", good, origin=f"http://{up.own}", sec_fetch_site="same-origin"))

        people = [threading.Thread(target=person) for _ in range(4)]
        for thread in people:
            thread.start()
        for thread in people:
            thread.join()
        assert [status for status, _, _ in answers] == [303] * 4
        numbers = sorted(int(headers["location"].rpartition("/")[2]) for _, headers, _ in answers)
        assert len(set(numbers)) == 4
        assert until(lambda: all('"over": true' in up.ask(f"/jobs/{number}/data")[2] for number in numbers))
        for number in numbers:
            page = up.ask(f"/jobs/{number}")[2]
            assert "done" in page
            assert "What it found" in page
        assert up.ask(f"/jobs/{numbers[0]}/continue", {"form_token": token})[0] == 409


@pytest.mark.slow
@pytest.mark.parametrize("scripts", [True, False])
def test_an_edit_is_four_clicks_from_a_run(folder: Path, step: str, scripts: bool) -> None:
    """In a browser, with and without scripts: a step, its page, the form, start; then the result comes by itself."""
    from playwright.sync_api import sync_playwright

    with served(ServedRuns(folder, act=True)) as up, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_context(java_script_enabled=scripts).new_page()
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(f"http://{up.own}/run/halls/")
        if scripts:
            page.locator(".explore [role=treeitem]").nth(2).click()
            page.click("text=its whole path")
        else:
            page.goto(f"http://{up.own}/run/halls/node/{step}")
        page.click("text=Try an edit")
        page.fill("textarea", "Always go left.")
        page.fill("#n", "4")
        page.click("text=Start")
        assert "/jobs/" in page.url
        for _ in range(240):
            page.wait_for_timeout(250)
            if page.inner_text("#state") == "done":
                break
        assert "The edit changed success" in page.inner_text("main")
        assert said == []
        browser.close()


def test_who_has_not_the_printed_address_starts_nothing(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "ramify", "ui", str(halls_run(tmp_path / "run")), "--act", "--port", "0", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = urlsplit(json.loads(process.stdout.readline())["url"])
        site = Site(int(told.port or 0))
        try:
            assert site.ask("/")[0] == 401
            status, headers, _ = site.ask(f"{told.path}?{told.query}")
            while status in (302, 303, 307):  # to the address without the token, which stands in a cookie then
                kept = headers["set-cookie"].partition(";")[0]
                status, headers, _ = site.ask(headers["location"], cookie=kept)
            assert status == 200
        finally:
            process.terminate()
