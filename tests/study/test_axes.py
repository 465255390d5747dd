"""Fields of a config by name."""

import pytest

from emergo.core.errors import InputError
from emergo.models import MinimalAttention, Transformer
from emergo.study.axes import axis_value, field_paths, resolve_axis, with_axes
from emergo.tasks import Groups, MarkovChain, SingleLocation
from emergo.training import Config, Optimizer, Switch

ADAMW = Optimizer("adamw", weight_decay=0.1)
LOCATION = Config(SingleLocation(8, 4), Transformer(1, 1, 8), ADAMW, precision="fp32")
CHAIN = Config(MarkovChain(Groups((1, 2))), MinimalAttention(), threshold=None, precision="fp32")


@pytest.mark.parametrize(
    ("config", "name", "path", "value"),
    [
        (LOCATION, "dim", "task.dim", 16),
        (LOCATION, "model.width", "model.width", 32),
        (LOCATION, "weight_decay", "optimizer.weight_decay", 0.5),
        (LOCATION, "optimizer.b2", "optimizer.b2", 0.5),
        (LOCATION, "batch", "batch", 3),
        (LOCATION, "repeat", "task.repeat", Switch(0.5, 0.0, at=3)),
        (CHAIN, "importance", "task.groups.importance", 3.0),
        (CHAIN, "spans", "task.groups.spans", (2, 2)),
    ],
)
def test_an_axis_is_found_set_and_read_by_its_name(config, name, path, value):
    assert resolve_axis(config, name) == path
    changed = with_axes(config, {path: value})
    assert axis_value(changed, path) == value
    assert changed != config
    others = {p for paths in field_paths(config).values() for p in paths} - {path}
    assert all(axis_value(changed, other) == axis_value(config, other) for other in others)


@pytest.mark.parametrize(
    ("config", "name", "words"),
    [
        (LOCATION, "dmi", "unknown axis of the grid 'dmi'; did you mean dim"),
        (LOCATION, "optimizer.b7", "unknown option of adamw 'b7'"),
        (LOCATION, "probes", "unknown axis of the grid 'probes'"),
    ],
)
def test_an_unknown_axis_is_named(config, name, words):
    with pytest.raises(InputError, match=words):
        resolve_axis(config, name)


def test_a_name_that_several_parts_have_needs_the_part():
    class Wide(SingleLocation):
        width: int = 3

    config = LOCATION.replace(task=Wide(8, 4))
    words = r"width is a field of several parts; write task\.width or model\.width"
    with pytest.raises(InputError, match=words):
        resolve_axis(config, "width")
    assert resolve_axis(config, "task.width") == "task.width"
