"""Test access control: token, host, cookie and security headers."""

import email.message
import http.cookiejar
import types
import urllib.request
from typing import Any

import pytest

from emergo.view._guard import HEADERS
from emergo.view._server import make_app

from .asking import HOST, ask

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
    return make_app(catalog, TOKEN, 8642)


def enter(app):
    """Open the printed address; return the answer and the header with its cookie."""
    answer = ask(app, "/", params={"token": TOKEN})
    return answer, {"cookie": answer.headers["set-cookie"].partition(";")[0]}


@pytest.mark.parametrize("path", ["", "static/app.js", "api/index", "api/picture", "nowhere"])
@pytest.mark.parametrize("token", WRONG_TOKENS.values(), ids=WRONG_TOKENS)
def test_every_path_needs_the_token_or_the_cookie(app, path, token):
    cookie = {"cookie": f"{app.cookie}={token}".encode()}
    _, right = enter(app)
    answers = [
        ask(app, f"/{path}", params={"token": token}),
        ask(app, f"/{path}", headers=cookie),
        ask(app, f"/{path}", headers=right),  # not at its place
        ask(app, f"{app.place}{path}", headers=cookie),
        ask(app, f"{app.place}{path}", params={"token": token}),
    ]
    assert {answer.status_code for answer in answers} == {403}
    assert not any("set-cookie" in answer.headers for answer in answers)
    # Else another program could hold all connections with one refused request on each.
    assert {answer.headers["connection"] for answer in answers} == {"close"}


def test_the_address_leads_to_a_place_with_a_cookie_of_its_own(app):
    """Other ports of this machine do not receive the cookie, which does not hold the token."""
    answer, header = enter(app)
    assert answer.status_code == 200
    assert app.place in answer.text
    cookie, *options = answer.headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Strict", f"Path={app.place}"} == set(options)
    assert len(app.place) > 16
    assert cookie.startswith("emergo_8642=")
    assert TOKEN not in cookie + answer.text
    page = ask(app, app.place, headers=header)
    assert "static/app.js" in page.text
    by_cookie = ask(app, f"{app.place}api/index", headers=header)
    assert by_cookie.status_code == 200
    assert "set-cookie" not in by_cookie.headers


def test_browsers_send_the_cookie_to_this_place_alone(app):
    """By the rules of Python's cookie jar, which are those of browsers."""
    answer, _ = enter(app)
    jar = http.cookiejar.CookieJar()
    first = urllib.request.Request(f"{HOST}/")
    response = email.message.Message()
    response["Set-Cookie"] = answer.headers["set-cookie"].replace("HttpOnly; ", "")
    answered: Any = types.SimpleNamespace(info=lambda: response)
    jar.extract_cookies(answered, first)

    def sent(address):
        request = urllib.request.Request(address)
        jar.add_cookie_header(request)
        return request.has_header("Cookie")

    assert sent(f"{HOST}{app.place}api/index")
    other = HOST.replace("8642", "8000")  # the same host for a cookie
    assert sent(f"{other}{app.place}")  # whoever knows the place
    for path in ("/", "/api/index", "/static/app.js", "/emergo", f"/x{app.place}"):
        assert not sent(f"{other}{path}")


@pytest.mark.parametrize(
    "host", ["evil.example:8642", "127.0.0.1.evil.example", "0.0.0.0:8642", "", "localhost.:1"]
)
def test_other_host_names_are_refused(app, host):
    """A browser would let in a page whose name was made to resolve to this machine."""
    answer = ask(app, "/", params={"token": TOKEN}, headers={"host": host})
    assert (answer.status_code, answer.headers["connection"]) == (421, "close")


@pytest.mark.parametrize("host", ["localhost:8642", "127.0.0.1", "[::1]:8642", "127.0.0.1:9999"])
def test_this_machine_is_accepted_on_any_port(app, host):
    assert ask(app, "/", params={"token": TOKEN}, headers={"host": host}).status_code == 200


def test_every_answer_has_a_strict_policy(app):
    _, header = enter(app)
    page = ask(app, app.place, headers=header)
    for answer in (ask(app, "/"), page, ask(app, "/api/index")):
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        directives = answer.headers["content-security-policy"].split("; ")
        policy = dict(directive.split(" ", 1) for directive in directives)
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert "unsafe" not in answer.headers["content-security-policy"]


def test_two_servers_have_different_cookies_and_places(catalog):
    one, two = (make_app(catalog, TOKEN, port) for port in (8642, 8643))
    assert one.cookie != two.cookie
    assert one.place != two.place
    assert enter(one)[1]["cookie"].partition("=")[2] != enter(two)[1]["cookie"].partition("=")[2]
