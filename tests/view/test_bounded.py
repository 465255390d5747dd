"""Bounds of the server: half-sent requests, idle connections, readers that do not read, many
connections."""

import contextlib
import socket
import time

import pytest

from emergo.view._bounded import MOST, BoundedProtocol

from .conftest import Served

SECONDS = 0.5


@pytest.fixture
def port(folder, monkeypatch):
    """The port of a server with short times."""
    monkeypatch.setattr(BoundedProtocol, "seconds", SECONDS)
    server = Served(folder)
    yield int(server.origin.rpartition(":")[2])
    server.end()


def connect(port, text=b""):
    opened = socket.create_connection(("127.0.0.1", port), timeout=30)
    opened.sendall(text)
    return opened


def closed(opened):
    """Wait until the server closes a connection."""
    try:
        while opened.recv(65536):
            pass
    except ConnectionError:
        pass
    return True


REQUEST = b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n"


@pytest.mark.parametrize("sent", [b"", b"G", REQUEST, REQUEST + b"\r\n"], ids=repr)
def test_half_sent_requests_and_idle_connections_end(port, sent):
    with connect(port, sent) as opened:
        assert closed(opened)


def test_single_bytes_do_not_keep_a_request_alive(port):
    def drip(opened):
        begun = time.monotonic()
        while time.monotonic() - begun < 60:
            opened.sendall(b"x")
            time.sleep(SECONDS / 10)

    with connect(port, REQUEST) as opened, pytest.raises(ConnectionError):
        drip(opened)


def test_the_number_of_connections_is_bounded(port, monkeypatch):
    monkeypatch.setattr(BoundedProtocol, "seconds", 60.0)
    held = [connect(port, REQUEST) for _ in range(MOST)]
    more = [connect(port) for _ in range(200)]
    assert all(map(closed, more))
    for one in (*held, *more):
        one.close()


def test_requests_are_answered_again_afterwards(port):
    held = [connect(port, REQUEST) for _ in range(2 * MOST)]
    assert all(map(closed, held))
    for one in held:
        one.close()
    with connect(port, REQUEST + b"\r\n") as opened:
        assert opened.recv(100).startswith(b"HTTP/1.1 403")


LARGE = 2**26  # bytes, more than the buffers of a connection hold


async def answer(scope, receive, send):
    length = (b"content-length", b"%d" % LARGE)
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": bytes(LARGE)})


def test_a_client_that_does_not_read_the_answer_is_disconnected(folder, monkeypatch):
    monkeypatch.setattr(BoundedProtocol, "seconds", SECONDS)
    monkeypatch.setattr("emergo.view._server.make_app", lambda *about: answer)
    server = Served(folder)
    with connect(int(server.origin.rpartition(":")[2]), REQUEST + b"\r\n") as opened:
        time.sleep(6 * SECONDS)
        length = 0
        with contextlib.suppress(ConnectionError):
            while data := opened.recv(2**20):
                length += len(data)
    server.end()
    assert 0 < length < LARGE
