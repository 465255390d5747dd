"""Test the ports of the server, and its message without the extra `view`."""

import socket
import sys

import pytest

import emergo as em
from emergo.view import serve
from emergo.view._serve import HOST, free_port, listen


def test_the_error_for_a_taken_port_names_the_next_free_one():
    with listen(free_port(20_000)) as taken:
        port = taken.getsockname()[1]
        message = f"port {port} is taken; --port {free_port(port + 1)} is free"
        with pytest.raises(em.InputError, match=message):
            listen(port)


def test_only_this_machine_can_connect():
    with listen(free_port(20_100)) as opened:
        assert opened.getsockname()[0] == HOST
        assert socket.inet_aton(HOST)[0] == 127


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_an_invalid_port_is_an_error(port):
    with pytest.raises(em.InputError, match="between 1 and 65535"):
        listen(port)


@pytest.mark.parametrize("missing", ["uvicorn", "starlette"])
def test_a_missing_package_is_named_with_the_extra(catalog, monkeypatch, missing):
    for name in list(sys.modules):
        if name == "emergo.view._server" or name.partition(".")[0] == missing:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    message = rf"needs {missing}.*; install it with pip install 'emergo\[view\]'"
    with pytest.raises(em.InputError, match=message):
        serve(catalog, 8642, print)
