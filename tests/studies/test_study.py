"""A study as an object and as a file: the same meaning, and every mistake named. Nothing is trained here."""

import dataclasses
import itertools
import tomllib
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emergo._errors import InputError
from emergo.engine import Config, Optimizer
from emergo.models import Transformer
from emergo.studies import Fit, Slurm, Study, estimate, groups_of, make_plan
from emergo.studies._toml import toml_text
from emergo.tasks import Recall, SingleLocation

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))

TEXT = """
name = "full"
seeds = [0, 3]
retries = 2
unit = 8

[base]
batch = 16
precision = "fp32"
tests = 64

[base.task]
position = "random"
indicator = true

[base.model]
layers = 1
heads = 2
width = 32

[base.optimizer]
method = "adamw"
weight_decay = 0.1

[stop]
steps = 1000
threshold = 0.2
beyond = 0.5

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
    Config(
        SingleLocation(16, 4, position="random", indicator=True),
        Transformer(layers=1, heads=2, width=32),
        Optimizer("adamw", weight_decay=0.1),
        batch=16,
        precision="fp32",
        tests=64,
        steps=1000,
        threshold=0.2,
        beyond=0.5,
    ),
    grid={"dim": [4, 8], "repeat": [0.0, 0.5]},
    zip={"length": [16, 32], "burst": [1, 2]},
    tune={"learning_rate": [1e-3, 3e-3]},
    seeds=[0, 3],
    law=Fit(("dim", "length/burst"), fix={"length": 1}),
    name="full",
    retries=2,
    unit=8,
    slurm=Slurm("gpu", 60, memory_gb=8, setup=("module load cuda",), extra={"qos": "low"}),
)


def study(text=TEXT, **changes):
    return Study.of(tomllib.loads(text) | changes)


def identities(made):
    return [run.identity for run in made.runs]


def test_a_file_and_an_object_mean_the_same(tmp_path):
    (tmp_path / "full.toml").write_text(TEXT)
    made = Study.read(tmp_path / "full.toml")
    assert made == OBJECT
    assert identities(made) == identities(OBJECT)
    made.write(tmp_path / "again.toml")
    assert Study.read(tmp_path / "again.toml") == OBJECT
    assert Study.of(OBJECT.data()) == OBJECT


def test_the_runs_are_the_product_of_the_axes():
    made = study()
    assert made.count == len(made.runs) == 2 * 2 * 2 * 2 * 2
    assert made.axes == ["dim", "repeat", "length", "burst", "learning_rate"]
    seen = {tuple(made.values_of(run)) for run in made.runs}
    expected = itertools.product([4, 8], [0, 0.5], [(16, 1), (32, 2)], [1e-3, 3e-3])
    assert seen == {(d, p, *row, rate) for d, p, row, rate in expected}
    assert {run.seed for run in made.runs} == {0, 3}
    for run in made.runs:
        assert run.config.threshold == 0.2
        assert run.config.optimizer.weight_decay == 0.1


def test_the_name_of_a_file_is_the_name_of_its_study(tmp_path):
    (tmp_path / "mine.toml").write_text("[base.task]\nlength = 8\ndim = 4\n")
    made = Study.read(tmp_path / "mine.toml")
    assert (made.name, made.count, made.axes) == ("mine", 3, [])


def _shuffled(data, order):
    """The same content with the keys of every table in another order."""
    if not isinstance(data, dict):
        return data
    names = sorted(data, key=lambda name: zlib.crc32(f"{order} {name}".encode()))
    return {name: _shuffled(data[name], order) for name in names}


@given(order=st.integers(0, 1000), whole=st.booleans(), exponent=st.booleans())
def test_identity_depends_on_neither_order_nor_defaults_nor_formatting(order, whole, exponent):
    """Promise 1: key order, defaults written out or left out, 5e-4 or 0.0005, 0 or 0.0 or -0.0."""
    base = {"task": {"length": 8, "indicator": True, "position": "random"}, "model": {"layers": 1, "heads": 1, "width": 8}}
    rate = "5e-4" if exponent else "0.000500"
    plain = f'[base]\nprecision = "fp32"\n[base.optimizer]\nlearning_rate = {rate}\n[grid]\ndim = [4, 8]\nrepeat = [0, 1]\n'
    data = tomllib.loads(plain)
    data["base"] |= {name: dict(part) for name, part in base.items()}
    if whole:
        data["base"]["optimizer"] |= {"method": "adam", "b1": 0.9, "momentum": 0, "weight_decay": 1e-2}
        data["base"]["task"] |= {"burst": 1, "special": "basis"}
        data["stop"] = {"steps": 50_000, "threshold": 0.1, "beyond": 0}
        data["grid"]["repeat"] = [-0.0, 1.0]
    made = Study.of(_shuffled(data, order))
    assert sorted(identities(made)) == sorted(_PLAIN)
    assert {unit.id for unit in make_plan(made).units} == _UNITS


_REFERENCE = Study(
    Config(
        SingleLocation(8, 4, position="random", indicator=True),
        Transformer(1, 1, 8),
        Optimizer(learning_rate=5e-4),
        precision="fp32",
    ),
    grid={"repeat": [0.0, 1.0], "dim": [8, 4]},
)
_PLAIN = identities(_REFERENCE)
_UNITS = {unit.id for unit in make_plan(_REFERENCE).units}


_SCALAR = st.one_of(
    st.booleans(), st.integers(-(2**62), 2**62), st.floats(allow_nan=False), st.text(st.characters(exclude_categories=["Cs"]))
)
_KEY = st.from_regex("[a-z_]{1,8}", fullmatch=True)
_TABLES = st.recursive(
    st.dictionaries(_KEY, st.one_of(_SCALAR, st.lists(_SCALAR, max_size=4)), max_size=4),
    lambda inner: st.dictionaries(_KEY, st.one_of(_SCALAR, inner), max_size=4),
    max_leaves=8,
)


@given(_TABLES)
def test_what_is_written_as_toml_is_read(data):
    assert tomllib.loads(toml_text(data)) == data


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("sedes = 3", "unknown key 'sedes'; did you mean seeds"),
        ("dim = 3", "unknown key 'dim'; did you mean base.task.dim?"),
        ("learning_rate = 3", "did you mean base.optimizer.learning_rate?"),
        ("[bse]", "did you mean base"),
        ("[base]\nlearning_rate = 1", "[base] has no key 'learning_rate'; did you mean base.optimizer.learning_rate?"),
        ("[base]\nsteps = 1", "[base] has no key 'steps'; did you mean stop.steps?"),
        ("[base]\ntask = 3", "base.task must be a table, got 3"),
        ("[base.task]\nlenght = 8", "[base.task] has no key 'lenght'; did you mean length?"),
        ("[base.task]\nlength = 1\ndim = 4", "length must be a whole number of at least 2, got 1"),
        ("[base.task]\nlength = 8\ndim = 4\n[base.model]\nnorm = 'per'", "did you mean pre"),
        ("[base.task]\nlength = 8\ndim = 4\n[base.model]\nlayers = 2.0", "layers must be a whole number"),
        ("[stop]\nstep = 3", "[stop] has no key 'step'; did you mean steps?"),
        ("[stop]\nsteps = 'many'", "steps must be a whole number"),
        ("[grid]\ndimm = [3]", "[grid] has no axis 'dimm'; did you mean dim?"),
        ("[grid]\ndim = 3", "[grid] dim must be a list of values, got 3; for one value write it in [base]"),
        ("[grid]\ndim = []", "[grid] dim needs at least one value"),
        ("[grid]\ndim = [4, 4]", "[grid] dim has a value twice"),
        ("[grid]\ndim = [[4]]", "[grid] dim: [4] is neither a number nor a text"),
        ("[grid]\ndim = ['a']", "study.toml: [grid] dim must be a whole number of at least 1, got 'a'"),
        ("[zip]\ndim = ['a']", "study.toml: [zip] dim must be a whole number"),
        ("[tune]\nlearning_rate = ['a', 1]", "study.toml: [tune] learning_rate must be"),
        ("[grid]\nprecision = ['fp23']", "study.toml: [grid] unknown precision 'fp23'; did you mean fp32"),
        ("[stop]\nsteps = -1", "study.toml: [stop] steps must be a whole number of at least 1, got -1"),
        ("[grid]\noptimizer = ['sgd']", "[grid] has no axis 'optimizer'; did you mean method?"),
        ("[grid]\nspans = [2]", "[grid] spans is a list and cannot be an axis; give it in [base.task.groups]"),
        ("[grid]\nwindows = [2]", "[grid] windows is a list and cannot be an axis; give it in [base]"),
        ("[grid]\ndim = [4, 0]", "the cell dim = 0: dim must be a whole number of at least 1"),
        ("[grid]\nburst = [1, 8]", "the cell burst = 8: burst must be smaller than length"),
        ("grid = 3", "[grid] must be a table, got 3"),
        ("[zip]\ndim = [4, 8]\nlength = [8]", "need as many values each; dim has 2, length has 1"),
        ("[grid]\ndim = [4]\n[zip]\ndim = [8]", "axis dim is given twice"),
        ("[tune]\nlearning_rate = [1e-3]", "[tune] takes one axis with two values or more"),
        ("[tune]\nlearning_rate = [1e-3, 1e-4]\nbatch = [1, 2]", "[tune] takes one axis"),
        ("seeds = 0", "seeds must be a whole number of at least 1, got 0"),
        ("seeds = [0, 0]", "seeds has a seed twice"),
        ("seeds = [-1]", "a seed must be a whole number from 0"),
        ("seeds = 'three'", "seeds must be a number of seeds or a list of them, got 'three'"),
        ("seeds = true", "seeds must be"),
        ("retries = -1", "retries must be a whole number of at least 0, got -1"),
        ("unit = 0", "unit must be a whole number of at least 1, got 0"),
        ("name = ''", "name must be a text"),
        ("[law]\nx = ['length']", "[law] 'length' is the same in all runs of this study"),
        ("[law]\nx = ['dmi']", "[law] x has no key 'dmi'; did you mean dim?"),
        ("[law]\nx = ['dim^']", "'dim^' is not a term"),
        ("[law]\nx = []", "[law] x needs at least one term"),
        ("[law]\nx = 'dim'", "[law] x must be a list of texts, got 'dim'"),
        ("[law]\nx = ['dim']\nfix = {dim = 'one'}", "[law] fix must give exponents"),
        ("[slurm]\nsetup = 'module load cuda'", "slurm.setup must be a list of texts"),
        ("[slurm]\npartition = 3", "slurm.partition must be a text, got 3"),
        ("[law]\nz = ['dim']", "[law] has no key 'z'"),
        ("[law]\ny = 'plateau'", "[law] needs x"),
        ("[law]\nx = ['dim']\ny = 'loss'", "[law] y must be plateau or steps"),
        ("[slurm]\npartion = 'a'", "[slurm] has no key 'partion'; did you mean partition?"),
        ("[slurm]\nminutes = 0", "slurm.minutes must be a whole number of at least 1, got 0"),
        ("[slurm]\nmemory_gb = -1", "slurm.memory_gb must be positive"),
        ("[grid]\nbatch = [1, 2]\nseed = [1]", "[grid] has no axis 'seed'"),
        ("seeds = 2000000", "this study has 2,000,000 runs"),
        ("seeds = ", "not a TOML file"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_mistake_is_named_with_what_would_be_right(tmp_path, change, words):
    path = tmp_path / "study.toml"
    needed = "[base.task]\nlength = 8\ndim = 4\n" if "[base" not in change else ""
    path.write_text(f"{change}\n{needed}")
    with pytest.raises(InputError) as caught:
        Study.read(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_study_of_recall():
    data = {"base": {"task": {"kind": "recall", "pairs": 4}}, "grid": {"vocabulary": [8, 16]}, "stop": {"threshold": 0.9}}
    study = Study.of(data)
    assert [run.config.task for run in study.runs[:: len(study.runs) // 2]] == [Recall(4, 16), Recall(4, 8)]
    assert Study.of(study.data()) == study
    with pytest.raises(InputError, match=r"\[base.task\] has no axis 'dim'"):
        Study.of(data | {"grid": {"vocabulary": [8], "dim": [4]}})
    with pytest.raises(InputError, match=r"unknown base.task.kind 'recal'; did you mean recall"):
        Study.of({"base": {"task": {"kind": "recal", "pairs": 4}}})


def test_what_a_task_needs_is_asked_for(tmp_path):
    with pytest.raises(InputError, match=r"\[base.task\] needs dim; give it there, or vary it in \[grid\]"):
        Study.of({"base": {"task": {"length": 8}}})
    assert Study.of({"base": {"task": {"length": 8}}, "grid": {"dim": [4]}}).base.task.inputs == 4
    with pytest.raises(InputError, match="no such file"):
        Study.read(tmp_path / "none.toml")
    with pytest.raises(InputError, match="a folder, not a study file"):
        Study.read(tmp_path)


def test_the_axes_that_are_known_can_be_axes():
    with pytest.raises(InputError) as caught:
        study(grid={"zzz": [1]})
    assert "known: length, dim," in str(caught.value)
    assert not {"spans", "weights", "windows"} & set(str(caught.value).replace(",", "").split())


def test_units_hold_runs_of_one_shape():
    made = study(unit=5)
    plan = make_plan(made)
    groups = groups_of(made.runs)
    assert len(groups) == 2  # by length; dim, burst, repeat and rate share a program
    assert len(plan.units) == sum(-(-len(group) // 5) for group in groups)
    assert sorted(run.identity for run in plan.runs) == sorted(identities(made))
    for unit in plan.units:
        assert len(unit.runs) <= 5
        assert len({run.values[plan.axes.index("length")] for run in unit.runs}) == 1


def test_a_study_grows_and_keeps_its_units():
    """Promise 5, the plan's part: units that are there stay, new runs get new ones."""
    made = study(unit=5)
    before = make_plan(made)
    grown = made.grown({"dim": [16], "length": [64], "burst": [3]}, seeds=[7])
    after = make_plan(grown, before)
    assert len(grown.runs) == 3 * 2 * 3 * 2 * 3
    assert [unit.id for unit in after.units[: len(before.units)]] == [unit.id for unit in before.units]
    assert [run.identity for run in after.runs[: len(before.runs)]] == [run.identity for run in before.runs]
    assert sorted(run.identity for run in after.runs) == sorted(identities(grown))
    assert make_plan(made.grown({"dim": [8]}), before) == before
    with pytest.raises(InputError, match=r"a study can grow, not shrink.*`emergo study run out/x` goes on") as caught:
        make_plan(study(seeds=1), before, "out/x")
    assert "--out" not in str(caught.value)
    with pytest.raises(InputError, match="this study has no axis 'dmi'; did you mean dim"):
        made.grown({"dmi": [3]})
    with pytest.raises(InputError, match="as many values each"):
        made.grown({"length": [64]})


def test_an_estimate_adds_up():
    made = study()
    found = estimate(made)
    assert sum(group.runs for group in found.groups) == made.count
    assert found.seconds > 0
    assert found.bytes > 0
    half = frozenset(identities(made)[:16])
    assert sum(group.runs for group in estimate(made, half).groups) == 16
    longer = dataclasses.replace(made, base=dataclasses.replace(made.base, steps=2000))
    assert estimate(longer).seconds > found.seconds
    remote = estimate(made, slurm=True)
    assert remote.platform == "gpu"
    assert remote.devices == 4  # 32 runs in units of 8


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_studies(path):
    made = Study.read(path)
    assert made.count == len(made.runs)
    assert made.law is not None or path.stem == "chain"  # which asks for no power law: log²(1/s) is none
    assert estimate(made, slurm=path.stem == "slurm").groups


def test_there_are_examples_for_every_place():
    assert {"smoke", "gpu", "slurm", "chain"} <= {path.stem for path in EXAMPLES}
