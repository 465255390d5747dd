"""The front door: every public name explains itself with an example. That the examples are right is
tested as doctests."""

import doctest
import importlib
import pkgutil

import pytest

import emergo as em

NAMES = [name for name in em.__all__ if not name.startswith("__")]


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_an_example(name):
    assert doctest.DocTestParser().get_examples(getattr(em, name).__doc__ or ""), (
        f"em.{name} has no example"
    )


def test_the_front_door_is_what_dir_lists():
    assert set(NAMES) <= set(dir(em))


def test_subpackages_offer_the_names_they_list():
    for subpackage in pkgutil.iter_modules(em.__path__):
        if subpackage.ispkg:
            module = importlib.import_module(f"emergo.{subpackage.name}")
            missing = [name for name in getattr(module, "__all__", ()) if not hasattr(module, name)]
            assert not missing, f"emergo.{subpackage.name}: {missing}"
