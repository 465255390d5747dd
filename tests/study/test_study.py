"""Studies as files and as objects: the same meaning, and errors that name the mistake. Nothing is
trained here."""

import itertools
import tomllib
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emergo.core.errors import InputError
from emergo.core.pytree import per_run
from emergo.models import (
    Attention,
    ChainTransformer,
    EquinoxModel,
    MinimalAttention,
    Transformer,
)
from emergo.study import Fit, Slurm, Study, estimate
from emergo.study.toml import toml_text
from emergo.tasks import Groups, MarkovChain, SingleLocation
from emergo.training import Clamp, Optimizer, Switch, WarmupCosine, When

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))

TEXT = """
name = "full"
seeds = [0, 3]
retries = 2
unit = 8
keep = [0, 100]

[task]
type = "SingleLocation"
position = "random"
indicator = true

[model]
layers = 1
heads = 2
width = 32

[optimizer]
name = "adamw"
weight_decay = 0.1

[train]
batch = 16
precision = "fp32"
n_test = 64
steps = 1000
threshold = 0.2
overtrain = 0.5

[grid]
dim = [4, 8]
repeat = [0, 0.5]

[zip]
length = [16, 32]
burst = [1, 2]

[tune]
learning_rate = [1e-3, 3e-3]

[law]
x = ["dim", "length/burst"]
fix = {length = 1}

[slurm]
partition = "gpu"
minutes = 60
memory_gb = 8
setup = ["module load cuda"]
extra = {qos = "low"}
"""

OBJECT = Study(
    SingleLocation(16, 4, position="random", indicator=True),
    Transformer(layers=1, heads=2, width=32),
    Optimizer("adamw", weight_decay=0.1),
    batch=16,
    precision="fp32",
    n_test=64,
    steps=1000,
    threshold=0.2,
    overtrain=0.5,
    grid={"dim": [4, 8], "repeat": [0.0, 0.5]},
    zip={"length": [16, 32], "burst": [1, 2]},
    tune={"learning_rate": [1e-3, 3e-3]},
    seeds=[0, 3],
    law=Fit(("dim", "length/burst"), fix={"length": 1}),
    keep=[0, 100],
    name="full",
    retries=2,
    unit=8,
    slurm=Slurm("gpu", 60, memory_gb=8, setup=("module load cuda",), extra={"qos": "low"}),
)


def study(text=TEXT, **changes):
    return Study.from_data(tomllib.loads(text) | changes)


def identities(study):
    return [run.identity for run in study.runs]


def test_a_file_and_an_object_mean_the_same(tmp_path):
    (tmp_path / "full.toml").write_text(TEXT)
    read = Study.read_file(tmp_path / "full.toml")
    assert read == OBJECT
    assert hash(read) == hash(OBJECT)
    assert identities(read) == identities(OBJECT)
    read.write_file(tmp_path / "again.toml")
    assert Study.read_file(tmp_path / "again.toml") == OBJECT
    assert Study.from_data(OBJECT.data()) == OBJECT
    assert OBJECT.replace(unit=9) != OBJECT


def scheduled():
    silenced = Clamp("layers.0.mlp", to=0.0).replace(strength=Switch(1.0, 0.0, at=5))
    return Study(
        SingleLocation(16, 4).replace(repeat=Switch(0.4, 0.0, at=50)),
        Transformer(layers=1, heads=1, width=8),
        Optimizer("lion", learning_rate=WarmupCosine(1e-3, 10, 100), b2=0.9),
        interventions=(Clamp("layers.0.pattern", until=50), silenced),
        grid={
            "repeat": [0.0, Switch(0.4, 0.0, at=20), When("loss", below=0.5, before=0.4)],
            "model.width": [8, 16],
        },
        threshold=None,
        precision="fp32",
    )


class Slanted(Attention):
    slant: float = per_run(default=1.0)


def make_nothing(key, spec, width, sizes):
    raise NotImplementedError


def own_attention():
    return Study(
        SingleLocation(8, 2),
        Transformer(layers=1, heads=1, width=8),
        grid={"attention": ["softmax", "linear", Slanted(), Slanted(2.0)]},
    )


def equinox():
    return Study(SingleLocation(8, 2), EquinoxModel(make_nothing, width=3, sizes=[1, 2]))


def chains():
    return Study(
        MarkovChain(Groups((1, 2), weights=((1,), (2, 3))), 5, generated=4),
        MinimalAttention(2),
        Optimizer("adamw", clip=1.0),
        grid={"importance": [2.0, 1.5], "generated": [4, 6], "scale": [1e-3, 1e-6]},
        seeds=2,
        batch=8,
        n_train=16,
        steps=20,
        threshold=0.2,
        precision="fp32",
    )


@pytest.mark.parametrize("make", [scheduled, chains, own_attention, equinox])
def test_schedules_interventions_and_nested_parts_can_be_written(tmp_path, make):
    one = make()
    one.write_file(tmp_path / "study.toml")
    again = Study.read_file(tmp_path / "study.toml")
    assert again == one
    assert identities(again) == identities(one)
    assert {one.base, *one.configs} == {again.base, *again.configs}


def test_a_form_of_attention_is_in_the_table():
    columns = [config.columns()["attention"] for config in own_attention().configs]
    assert columns == ["softmax", "linear", "Slanted()", "Slanted(slant=2.0)"]


def test_the_runs_are_the_product_of_the_axes():
    full = study()
    assert full.count == len(full.runs) == 2 * 2 * 2 * 2 * 2
    assert full.axes == ["dim", "repeat", "length", "burst", "learning_rate"]
    cells = {tuple(full.values_of(run)) for run in full.runs}
    expected = itertools.product([4, 8], [0, 0.5], [(16, 1), (32, 2)], [1e-3, 3e-3])
    assert cells == {(d, p, *row, rate) for d, p, row, rate in expected}
    assert {run.seed for run in full.runs} == {0, 3}
    for run in full.runs:
        assert run.config.threshold == 0.2
        assert dict(run.config.optimizer.options) == {"weight_decay": 0.1}


def test_the_name_of_a_file_is_the_name_of_its_study(tmp_path):
    (tmp_path / "mine.toml").write_text("[task]\nlength = 8\ndim = 4\n")
    read = Study.read_file(tmp_path / "mine.toml")
    assert (read.name, read.count, read.axes) == ("mine", 3, [])


def _shuffled(data, order):
    """Return the same content with the keys of every table in another order."""
    if not isinstance(data, dict):
        return data
    names = sorted(data, key=lambda name: zlib.crc32(f"{order} {name}".encode()))
    return {name: _shuffled(data[name], order) for name in names}


_REFERENCE = Study(
    SingleLocation(8, 4, position="random", indicator=True),
    Transformer(1, 1, 8),
    Optimizer(learning_rate=5e-4),
    precision="fp32",
    grid={"repeat": [0.0, 1.0], "dim": [8, 4]},
)


@given(order=st.integers(0, 1000), whole=st.booleans(), exponent=st.booleans())
def test_identity_depends_on_neither_order_nor_defaults_nor_formatting(order, whole, exponent):
    """Promise 1: key order, defaults written out or left out, 5e-4 or 0.0005, 0 or 0.0 or -0.0."""
    rate = "5e-4" if exponent else "0.000500"
    plain = (
        f'[train]\nprecision = "fp32"\n[optimizer]\nlearning_rate = {rate}\n[grid]\ndim = '
        f"[4, 8]\nrepeat = [0, 1]\n"
    )
    data = tomllib.loads(plain)
    data["task"] = {"length": 8, "indicator": True, "position": "random"}
    data["model"] = {"layers": 1, "heads": 1, "width": 8}
    if whole:
        data["optimizer"] |= {"name": "adam"}
        data["task"] |= {"type": "SingleLocation", "burst": 1, "special": "basis"}
        data["model"] |= {"type": "Transformer", "mlp_factor": 4}
        data["train"] |= {"steps": 50_000, "threshold": 0.1, "overtrain": 0}
        data["grid"]["repeat"] = [-0.0, 1.0]
    assert identities(Study.from_data(_shuffled(data, order))) == identities(_REFERENCE)


_SCALAR = st.one_of(
    st.booleans(),
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"])),
)
_KEY = st.one_of(
    st.from_regex("[a-z_]{1,8}", fullmatch=True),
    st.sampled_from(["model.width", "a b", 'say "so"', ""]),
)
_LISTS = st.lists(st.one_of(_SCALAR, st.dictionaries(_KEY, _SCALAR, max_size=2)), max_size=4)
_TABLES = st.recursive(
    st.dictionaries(_KEY, st.one_of(_SCALAR, _LISTS), max_size=4),
    lambda inner: st.dictionaries(_KEY, st.one_of(_SCALAR, inner), max_size=4),
    max_leaves=8,
)


@given(_TABLES)
def test_what_is_written_as_toml_is_read(data):
    assert tomllib.loads(toml_text(data)) == data


# The content of a study file, and its error. A task is added unless the content has one.
MISTAKES = [
    ("sedes = 3", "unknown key of the study 'sedes'; did you mean seeds?"),
    ("task = 3", "[task] must be a table, got 3"),
    ("[task]\ntype = 'Recal'", "unknown type in [task] 'Recal'; did you mean Recall?"),
    (
        "[task]\ntype = 'own:Loudest'",
        "[task]: the type own:Loudest is not known; name the file or module that defines it",
    ),
    (
        "[task]\nlength = 1\ndim = 4",
        "[task]: SingleLocation.length must be a whole number of at least 2, got 1",
    ),
    (
        "[task]\nlength = 8\ndim = 4\n[task.repeat]\ntype = 'Swich'\nat = 3",
        "unknown type in [task].repeat 'Swich'",
    ),
    (
        "[optimizer]\nlearning_rat = 1",
        "unknown option of adam 'learning_rat'; did you mean learning_rate?",
    ),
    (
        "[optimizer]\nname = 'own:mine'",
        "[optimizer]: there is no function own:mine; name the file or module that defines it",
    ),
    ("[train]\nthreshold = 'no'", "[train] threshold must be a number, 'task' or 'none', got 'no'"),
    (
        "[grid]\ndim = 3",
        "[grid] dim must be a list of values, got 3; a single value belongs to the base",
    ),
    ("[grid]\ndim = []", "[grid] dim needs at least one value"),
    ("[grid]\n'optimizer.b3' = [0.5]", "unknown option of adam 'b3'; did you mean b2 or b1?"),
    ("[grid]\ndim = [4]\n[zip]\ndim = [8]", "axis dim is given twice"),
    ("[tune]\nlearning_rate = [1e-3]", "[tune] takes one axis with two values or more"),
    ("seeds = [4294967296]", "from 0 to 2^32 - 1, got [4294967296]"),
    (
        "seeds = 600000\n[grid]\ndim = [4, 8]",
        "this study has 1,200,000 runs; at most 1,000,000 are taken",
    ),
    ("seeds = ", "not a TOML file"),
    ("keep = 3", "Study.keep must be True or False or a Sequence, got 3"),
    ("plugins = ['own.py']", "own.py: FileNotFoundError: no such file"),
    ("[law]\nx = ['length']", "[law] 'length' is the same in all runs of this study"),
    (
        "[law]\nx = ['dim/lenght']\n[grid]\ndim = [4, 8]",
        "unknown column in [law] x 'lenght'; did you mean length?",
    ),
    ("[law]\nx = ['dim']\nfix = {dim = 'one'}", "[law] fix must give finite exponents"),
    (
        "[law]\nx = ['dim']\ny = 'loss'\n[grid]\ndim = [4, 8]",
        "unknown Fit.y 'loss'; known: plateau, steps",
    ),
    (
        "[train]\nthreshold = 'none'\n[law]\nx = ['dim']\n[grid]\ndim = [4, 8]",
        "[law] and [tune] are about plateaus",
    ),
    (
        "[task]\nlength = 8\n[grid]\nwidth = [8]",
        "[task] needs dim; give it there, or vary it in the grid",
    ),
    ("[slurm]\nsetup = 'module load cuda'", "slurm.setup must be a list of texts"),
]


@pytest.mark.parametrize(("change", "words"), MISTAKES)
@pytest.mark.usefixtures("unchecked")
def test_a_mistake_in_a_file_is_named_with_what_would_be_right(tmp_path, change, words):
    """The error is one line with the name of the file."""
    path = tmp_path / "study.toml"
    has_task = "[task" in change or "task =" in change
    path.write_text(change if has_task else f"{change}\n[task]\nlength = 8\ndim = 4\n")
    with pytest.raises(InputError) as caught:
        Study.read_file(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"stepps": 3}, "unknown key of Study 'stepps'; did you mean steps or stop?"),
        ({"law": "dim"}, "Study.law must be a Fit, got 'dim'"),
        ({"slurm": {"gpus": 1}}, "Study.slurm must be a Slurm, got {'gpus': 1}"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_mistake_in_python_is_named_too(arguments, words):
    with pytest.raises(InputError) as caught:
        Study(**({"task": SingleLocation(8, 4)} | arguments))
    assert words in str(caught.value)


def test_a_field_that_a_task_needs_may_be_given_by_an_axis(tmp_path):
    for axes in ({"grid": {"dim": [4]}}, {"zip": {"task.dim": [4]}}):
        made = Study.from_data({"task": {"length": 8}} | axes)
        assert made.base.task == SingleLocation(8, 4)
    with pytest.raises(InputError, match="no such file"):
        Study.read_file(tmp_path / "none.toml")
    with pytest.raises(InputError, match="not a TOML file that can be read"):
        Study.read_file(tmp_path)


def test_a_study_with_changes():
    changes = {"task__position": "fixed", "optimizer__weight_decay": 0.2, "optimizer__b2": 0.9}
    other = OBJECT.replace(**changes, steps=10, name="other")
    assert other.base.task == OBJECT.base.task.replace(position="fixed")
    assert (other.base.steps, other.name, other.grid) == (10, "other", OBJECT.grid)
    assert dict(other.base.optimizer.options) == {"weight_decay": 0.2, "b2": 0.9}
    nothing_varied = {"grid": {}, "zip": {}, "tune": {}, "law": None}
    chain = OBJECT.replace(task=MarkovChain(), model=ChainTransformer(width=6), **nothing_varied)
    assert chain.count == 2
    axes = {name: getattr(other, name) for name in ("grid", "zip", "tune", "seeds")}
    assert Study.of(other.base, **axes).runs == other.runs
    words = "unknown field of SingleLocation 'positon'; did you mean position"
    with pytest.raises(InputError, match=words):
        OBJECT.replace(task__positon="fixed")


def test_a_study_grows():
    grown = OBJECT.grown({"dim": [16, 8], "length": [64], "burst": [3]}, seeds=[7])
    assert grown.grid["dim"] == (4, 8, 16)
    assert grown.zip["length"] == (16, 32, 64)
    assert grown.seeds == (0, 3, 7)
    assert set(identities(OBJECT)) < set(identities(grown))
    with pytest.raises(InputError, match="unknown axis of this study 'dmi'; did you mean dim"):
        OBJECT.grown({"dmi": [3]})
    with pytest.raises(InputError, match="as many values each"):
        OBJECT.grown({"length": [64]})


def test_a_study_describes_itself_and_its_cost():
    first, *rest, last = repr(OBJECT).splitlines()
    assert first == "full: 32 runs = 16 cells x 2 seeds"
    for words in ("SingleLocation(length=16", "grid dim: 4, 8", "tune learning_rate: 0.001, 0.003"):
        assert words in "\n".join(rest)
    assert "2 programs" in last
    assert "at most about" in last
    assert repr(Study(SingleLocation(8, 4), seeds=1)).startswith("study: 1 run = 1 cell x 1 seed\n")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_studies(path):
    example = Study.read_file(path)
    assert example.count == len(example.runs)
    assert estimate(example, slurm=path.stem == "slurm").groups
