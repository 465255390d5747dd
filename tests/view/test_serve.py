"""Ports of this machine."""

import socket
import sys

import pytest

import emergo as em
from emergo.view._serve import HOST, free_port, listen, serve


def test_a_taken_port_is_named_with_the_next_free_one():
    with listen(free_port(20_000)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(em.InputError, match=f"port {port} is taken; --port {free_port(port + 1)} is free"):
            listen(port)


def test_only_this_machine_is_listened_to():
    with listen(free_port(20_100)) as opened:
        assert opened.getsockname()[0] == HOST
        assert socket.inet_aton(HOST)[0] == 127


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_that_there_is_not(port):
    with pytest.raises(em.InputError, match="between 1 and 65535"):
        listen(port)


@pytest.mark.parametrize("lacking", ["uvicorn", "starlette"])
def test_without_the_extra_it_says_what_to_install(catalog, monkeypatch, lacking):
    for name in [name for name in sys.modules if name == "emergo.view._server" or name.partition(".")[0] == lacking]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, lacking, None)
    with pytest.raises(em.InputError, match=rf"needs {lacking}.*; install it with pip install 'emergo\[view\]'"):
        serve(catalog, 8642, print)
