from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
from web_sample import make_run

from ramify.base.errors import UserError
from ramify.trace.db import Run
from ramify.trace.node import make_node
from ramify.web.limits import is_loopback
from ramify.web.pages import trees_html
from ramify.web.server import ServedRuns, guarded_pages, open_server
from ramify.web.way import Nav

NAV = Nav("record", "run", "/run/run")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("served") / "run")


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    server, listener = open_server(guarded_pages(ServedRuns.of(folder)))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(60)
    listener.close()
    assert not thread.is_alive()


def get(address: str, path: str, host: str | None = None, method: str = "GET") -> tuple[int, dict[str, str], str]:
    request = urllib.request.Request(f"http://{address}{path}", headers={} if host is None else {"Host": host}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, {k.lower(): v for k, v in error.headers.items()}, error.read().decode()


def test_pages_are_served(address: str, folder: Path) -> None:
    with Run.open(folder) as run:
        name = run.trees()[0].name
        node = run.tree(name).leaves()[0].id
    for path, words in (
        ("/run/run/", "+37.5 points"),
        ("/run/run/trees", name),
        (f"/run/run/tree/{name}", "Attempts"),
        (f"/run/run/node/{node[:8]}", "The path to it"),
    ):
        status, headers, body = get(address, path)
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert words in body


@pytest.mark.parametrize("path", ["/", "/run/run/", "/run/run/tree/none", "/nowhere"])
def test_every_answer_carries_the_security_headers(address: str, path: str) -> None:
    _, headers, _ = get(address, path)
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert "server" not in headers


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/run/run/tree/ours-0000/task-00", "did you mean"),
        ("/run/run/tree/%3Cscript%3Ealert(1)%3C/script%3E", "&lt;script&gt;"),
        ("/run/run/node/zz", "has no node"),
        ("/%3Cimg%20src=x%20onerror=alert(1)%3E", "There is no page"),
        ("/run/run/tree/..%2f..%2fetc/passwd", "has no tree"),
    ],
)
def test_what_is_not_there_is_one_sentence(address: str, path: str, words: str) -> None:
    status, _, body = get(address, path)
    assert status == 404
    assert words in body
    assert "Traceback" not in body
    assert body.count("<script") == 1
    assert "<img" not in body


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1", ""]
)
def test_another_hosts_name_is_refused(address: str, host: str) -> None:
    status, _, body = get(address, "/run/run/", host)
    assert status in (400, 421)
    assert "+37.5 points" not in body


def test_names_of_this_machine_are_accepted(address: str) -> None:
    assert [get(address, "/runs", host)[0] for host in ("localhost", "localhost:99", "127.0.0.1", "[::1]:80")] == [200] * 4


def test_it_only_reads(address: str) -> None:
    assert [get(address, "/", method=method)[0] for method in ("POST", "PUT", "DELETE")] == [405] * 3


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.com", ""])
def test_a_bind_beyond_this_machine_is_refused(folder: Path, host: str) -> None:
    with pytest.raises(UserError, match="loopback only"):
        open_server(guarded_pages(ServedRuns.of(folder), host))


def test_bad_starts_are_one_sentence(folder: Path, tmp_path: Path, address: str) -> None:
    with pytest.raises(UserError, match="is not a run"):
        open_server(guarded_pages(ServedRuns.of(tmp_path)))
    with pytest.raises(UserError, match="port 99999"):
        open_server(guarded_pages(ServedRuns.of(folder)), 99999)
    with pytest.raises(UserError, match="already in use; --port N takes another port"):
        open_server(guarded_pages(ServedRuns.of(folder)), int(address.rpartition(":")[2].strip("/")))
    assert is_loopback("127.8.9.1")
    assert not is_loopback("localhost.")


def test_the_data_of_a_page_are_those_in_it(address: str, folder: Path) -> None:
    with Run.open(folder) as run:
        name = run.trees()[-1].name
    for page, path in (("/run/run/", "/run/run/data"), (f"/run/run/tree/{name}", f"/run/run/data/tree/{name}")):
        status, headers, body = get(address, path)
        assert (status, headers["content-type"]) == (200, "application/json")
        block = get(address, page)[2].partition('id="data">')[2].partition("</script>")[0]
        assert json.loads(body) == json.loads(block)
        assert path.startswith(unquote(json.loads(body)["source"]))
    assert get(address, "/run/run/data/tree/none")[0] == 404


def test_a_run_that_grows_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", updates=1, tasks=1)
    server, listener = open_server(guarded_pages(ServedRuns.of(run)))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        host = f"127.0.0.1:{listener.getsockname()[1]}"
        before = get(host, "/run/run/changed")[2]
        assert get(host, "/run/run/changed")[2] == before
        rows = len(json.loads(get(host, "/run/run/data")[2])["tasks"])
        with Run.open(run, write=True) as opened:
            opened.add_tree("more", {"id": "more"})
            opened.add(make_node("more", None, 0, "user", "hello"))
        assert get(host, "/run/run/changed")[2] != before
        assert len(json.loads(get(host, "/run/run/data")[2])["tasks"]) == rows + 1
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()


def test_the_list_of_trees_has_pages(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        for at in range(450):
            run.add_tree(f"tree-{at:03d}", {"id": at})
        run.commit()
        assert "tree-199" in trees_html(run, NAV)
        assert "tree-200" not in trees_html(run, NAV)
        last = trees_html(run, NAV, 99)
        assert "tree-449" in last
        assert "page 3 of 3" in last
