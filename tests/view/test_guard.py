"""Test access control: token, host, cookie and security headers."""

import pytest

from emergo.view._guard import HEADERS
from emergo.view._server import make_app

from .asking import ask

TOKEN = "token-of-this-test"
WRONG_TOKENS = {
    "none": "",
    "wrong": "wrong",
    "short": TOKEN[:-1],
    "long": TOKEN + "x",
    "foreign": "ü",
}


@pytest.fixture
def app(catalog):
    return make_app(catalog, TOKEN)


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/api/index", "/api/picture", "/nowhere"])
@pytest.mark.parametrize("token", WRONG_TOKENS.values(), ids=WRONG_TOKENS)
def test_every_path_needs_the_token(app, path, token):
    answers = [
        ask(app, path, params={"token": token}),
        ask(app, path, headers={"cookie": f"{app.cookie}={token}".encode()}),
    ]
    assert {answer.status_code for answer in answers} == {403}
    assert not any("set-cookie" in answer.headers for answer in answers)


def test_the_token_in_the_address_becomes_a_cookie_that_scripts_cannot_read(app):
    answer = ask(app, "/", params={"token": TOKEN})
    assert answer.status_code == 200
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    by_cookie = ask(app, "/api/index", headers={"cookie": cookie.partition(";")[0]})
    assert by_cookie.status_code == 200
    assert "set-cookie" not in by_cookie.headers


@pytest.mark.parametrize(
    "host", ["evil.example:8642", "127.0.0.1.evil.example", "0.0.0.0:8642", "", "localhost.:1"]
)
def test_other_host_names_are_refused(app, host):
    """A browser would let in a page whose name was made to resolve to this machine."""
    assert ask(app, "/", params={"token": TOKEN}, headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost:8642", "127.0.0.1", "[::1]:8642", "127.0.0.1:9999"])
def test_this_machine_is_accepted_on_any_port(app, host):
    assert ask(app, "/", params={"token": TOKEN}, headers={"host": host}).status_code == 200


def test_every_answer_has_a_strict_policy(app):
    for answer in (ask(app, "/"), ask(app, "/", params={"token": TOKEN}), ask(app, "/api/index")):
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        directives = answer.headers["content-security-policy"].split("; ")
        policy = dict(directive.split(" ", 1) for directive in directives)
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert "unsafe" not in answer.headers["content-security-policy"]


def test_two_servers_have_different_cookies(catalog):
    assert make_app(catalog, TOKEN).cookie != make_app(catalog, TOKEN).cookie
