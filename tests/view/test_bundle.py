"""The page's modules, and the one script that they become."""

import re

import pytest

from emergo.view._bundle import STATIC, bundle

MODULES = sorted(STATIC.glob("*.js"))


def test_every_module_is_in_the_script_once():
    script = bundle()
    assert not re.search(r"^(import|export) ", script, re.MULTILINE)
    for path in (*MODULES, STATIC / "vendor" / "uplot.js"):
        name = "module_" + path.relative_to(STATIC).with_suffix("").as_posix().replace("/", "_")
        assert script.count(f"const {name} = (() =>") == 1, path.name
        assert path.stem == "app" or script.index(f"const {name} = (() =>") < script.index(f"}} = {name};")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_modules_set_text_and_never_markup(path):
    """What a store holds reaches the page as text alone."""
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|https?://(?!www\.w3\.org)",
        path.read_text(),
    )


def test_the_page_loads_every_module_at_once():
    """A module that is only found in another one is asked for a round trip later."""
    page = (STATIC / "index.html").read_text()
    for path in (*MODULES, STATIC / "vendor" / "uplot.js"):
        assert f'"/static/{path.relative_to(STATIC).as_posix()}"' in page, path.name
