from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from unsmooth.errors import UnsmoothError
from unsmooth.training.data.cards import card
from unsmooth.training.data.download import download

CONTENT = bytes(range(256)) * 4000


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if "absent" in self.path:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[: len(CONTENT) // (2 if "cut" in self.path else 1)])

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_file_arrives_whole_and_tells_how_far_it_is(address: str, tmp_path: Path) -> None:
    wanted = replace(card("cifar100"), url=f"{address}/any.tar.gz", md5=hashlib.md5(CONTENT).hexdigest())
    steps: list[tuple[int, int | None]] = []
    path = download(wanted, tmp_path, lambda done, total: steps.append((done, total)))
    assert path == tmp_path / "any.tar.gz"
    assert path.read_bytes() == CONTENT
    assert steps[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("other.tar.gz", ["Expected md5", "03b5dce01913d631647c71ecec9e9cb8", hashlib.md5(CONTENT).hexdigest()]),
        ("cut.tar.gz", ["IncompleteRead", "--from"]),
        ("absent.tar.gz", ["Not Found", "--from with a copy of absent.tar.gz", "--from uoft-cs/cifar100"]),
    ],
)
def test_what_goes_wrong_is_told_in_a_line(address: str, tmp_path: Path, path: str, words: list[str]) -> None:
    with pytest.raises(UnsmoothError) as caught:
        download(replace(card("cifar100"), url=f"{address}/{path}"), tmp_path)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_network(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with pytest.raises(UnsmoothError, match=r"Expected enwik8 from .*refused.*Try again with a network, or --from"):
        download(replace(card("enwik8"), url=f"http://127.0.0.1:{port}/enwik8.zip"), tmp_path)
