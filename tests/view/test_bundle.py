"""Test the page's modules, and the one script that they become."""

import re

import pytest

from emergo.view._bundle import STATIC, bundle

MODULES = sorted([*STATIC.glob("*.js"), STATIC / "vendor" / "uplot.js"])
MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function"
    r"|https?://(?!www\.w3\.org)"
)


def test_every_module_is_in_the_script_once_and_before_its_use():
    script = bundle()
    assert not re.search(r"^(import|export) ", script, re.MULTILINE)
    assert "</script" not in script  # it would close the element that holds it
    for path in MODULES:
        name = "module_" + path.relative_to(STATIC).with_suffix("").as_posix().replace("/", "_")
        definition = f"const {name} = (() =>"
        assert script.count(definition) == 1, path.name
        if path.stem != "app":
            assert script.index(definition) < script.index(f"}} = {name};")


@pytest.mark.parametrize("path", sorted(STATIC.glob("*.js")), ids=lambda path: path.stem)
def test_modules_never_insert_markup(path):
    """Names from a store must reach the page as text."""
    assert not MARKUP.search(path.read_text())


def test_the_page_loads_every_module_at_once():
    """A module that only another module names would load one round trip later."""
    page = (STATIC / "index.html").read_text()
    for path in MODULES:
        assert f'"static/{path.relative_to(STATIC).as_posix()}"' in page, path.name
