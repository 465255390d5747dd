"""Who may ask, and what browsers are told."""

import pytest

from emergo.view._guard import HEADERS, Guard, new_token
from emergo.view._server import make_app

from .asking import ask

TOKEN = new_token()


@pytest.fixture
def app(catalog):
    return make_app(catalog, TOKEN)


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/api/index", "/api/picture", "/nowhere"])
@pytest.mark.parametrize(
    "token", ["", "wrong", TOKEN[:-1], TOKEN + "x", "ü"], ids=["none", "wrong", "short", "long", "foreign"]
)
def test_nothing_without_the_token(app, path, token):
    answers = [ask(app, path, params={"token": token}), ask(app, path, headers={"x-emergo-token": token.encode()})]
    answers.append(ask(app, path, headers={"cookie": f"{app.cookie}={token}".encode()}))
    assert {answer.status_code for answer in answers} == {403}
    assert not any("set-cookie" in answer.headers for answer in answers)


def test_the_token_in_the_address_becomes_a_cookie_that_no_script_reads(app):
    answer = ask(app, "/", params={"token": TOKEN})
    assert answer.status_code == 200
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert ask(app, "/api/index", headers={"cookie": cookie.partition(";")[0]}).status_code == 200
    header = ask(app, "/api/index", headers={"x-emergo-token": TOKEN})
    assert header.status_code == 200
    assert "set-cookie" not in header.headers


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8642", "127.0.0.1.evil.example", "0.0.0.0:8642", "", "localhost.:1"]
)
def test_another_name_of_this_machine_is_refused(app, host):
    """A page whose name was made to resolve to this machine would otherwise be let in by the browser."""
    assert ask(app, "/", params={"token": TOKEN}, headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost:8642", "127.0.0.1", "[::1]:8642", "127.0.0.1:9999"])
def test_this_machine_may_ask_also_through_a_forwarded_port(app, host):
    assert ask(app, "/", params={"token": TOKEN}, headers={"host": host}).status_code == 200


def test_every_answer_has_a_strict_policy(app):
    for answer in (ask(app, "/"), ask(app, "/", params={"token": TOKEN}), ask(app, "/api/index")):
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS


def test_two_servers_do_not_take_each_others_cookie(catalog):
    assert Guard(None, TOKEN).cookie != Guard(None, TOKEN).cookie
