"""Test constants from the names of logs and from config files."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from emergo.core.errors import InputError
from emergo.logs import read_logs
from emergo.logs._config import columns_of, compile_columns, parse_yaml, read_configs

PATTERN = r"d(?P<dim>\d+)_s(?P<seed>\d+)"


def test_groups_that_look_like_numbers_become_numbers(tmp_path):
    pattern = compile_columns(
        r"lr(?P<lr>[\d.e-]+)_(?P<task>[a-z]+)(?:_(?P<tag>x))?_v(?P<version>\w+)"
    )
    assert columns_of(pattern, "lr1e-3_recall_v07", tmp_path) == {
        "lr": 1e-3,
        "task": "recall",
        "version": 7,
    }
    assert columns_of(pattern, "lr.5_chain_x_v1a", tmp_path) == {
        "lr": 0.5,
        "task": "chain",
        "tag": "x",
        "version": "1a",
    }


def test_the_name_of_the_run_comes_before_the_path(tmp_path):
    pattern = compile_columns(r"s(?P<seed>\d+)")
    assert columns_of(pattern, "s1", tmp_path / "runs2" / "s1.csv") == {"seed": 1}
    assert columns_of(pattern, "log", tmp_path / "s3" / "log.csv") == {"seed": 3}
    with pytest.raises(
        InputError,
        match=r"^log\.csv: columns 's\(\?P<seed>\\d\+\)' is not found in the name of run 'log'",
    ):
        columns_of(pattern, "log", Path("log.csv"))


@pytest.mark.parametrize(
    "pattern",
    [r"d(\d+)", "d(?P<dim>", "(?P<1>x)", "x", "(?P<a>" + "(" * 5000, "(?P<a>x{99999999999999})"],
)
def test_patterns_without_columns_are_one_line(tmp_path, pattern):
    (tmp_path / "log.csv").write_text("step,loss\n0,1\n1,0\n")
    with pytest.raises(InputError, match=r"^columns '.*e\.g\. d\(\?P<dim>\\d\+\)_s") as caught:
        list(read_logs([tmp_path / "log.csv"], columns=pattern))
    assert len(str(caught.value)) < 400


def test_the_name_takes_precedence_over_the_log_and_the_log_over_its_config(tmp_path):
    (tmp_path / "d4_s0.csv").write_text("step,loss,dim,width\n0,1,99,8\n1,0,99,8\n")
    (tmp_path / "config.json").write_text(
        json.dumps({"seed": 5, "width": 16, "optimizer": {"lr": 0.1}})
    )
    (run,) = read_logs([tmp_path / "d4_s0.csv"], columns=PATTERN)
    assert run.constants == {"dim": 4, "seed": 0, "width": 8, "optimizer.lr": 0.1}


WANDB = """wandb_version: 1

_wandb:
  desc: null
  value:
    cli_version: 0.19.1
    t:
      1:
      - 1
      - 55
learning_rate:
  desc: null
  value: 0.001
model:
  value:
    layers: 2
    kinds:
    - a
    - b: 3
      c: 4
    name: 'it: #1'
bias:
  value: false
"""
LIGHTNING = """# written by save_hyperparameters
lr: 1.0e-05
betas:
- 0.9
- 0.95
optimizer: !!python/object/apply:torch.optim.Adam
  args: 5
note: |
  width: 7
  depth: 8
flow: {a: 1}
long: some words
  go: on
width: 64   # of the stream
empty:
'quoted': "yes"
gain: .inf
"""


def test_configs_of_loggers(tmp_path):
    (tmp_path / "config.yaml").write_text(WANDB)
    (tmp_path / "hparams.yaml").write_text(LIGHTNING)
    (tmp_path / "args.json").write_text(
        '{"learning_rate": 7, "seed": 1, "huge": 1e400, "n": %s, "nan": NaN}' % ("9" * 30)
    )
    found = read_configs(tmp_path)
    assert found.pop("nan") != found.get("nan")
    assert found == {
        **{"learning_rate": 0.001, "model.layers": 2, "model.name": "it: #1", "bias": False},
        **{"seed": 1, "huge": float("inf")},
        **{"lr": 1e-5, "long": "some words", "width": 64, "quoted": "yes", "gain": float("inf")},
    }


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b"// not JSON"),
        ("config.json", b"[1, 2]"),
        ("config.json", b'{"a": ' * 60 + b"1" + b"}" * 60),
        ("config.json", b"{" + b",".join(b'"%d": 1' % i for i in range(1001)) + b"}"),
        ("config.yaml", b"a: \xff"),
        ("args.json", b" " * (2**20 + 1)),
    ],
)
def test_an_unreadable_config_is_reported_and_the_log_is_read(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    (tmp_path / "log.csv").write_text("step,loss\n0,1\n1,0\n")
    lines = []
    (run,) = read_logs([tmp_path / "log.csv"], say=lines.append)
    assert run.constants == {}
    assert len(lines) == 1
    assert lines[0].startswith(f"{tmp_path / name}: not read as a config (")


plain = st.text("abz_", min_size=1, max_size=5)
scalars = (
    st.integers(-(10**9), 10**9)
    | st.booleans()
    | st.none()
    | st.floats(allow_nan=False).map(lambda x: round(x, 3))
    | plain
)
trees = st.dictionaries(
    plain,
    st.recursive(scalars, lambda inner: st.dictionaries(plain, inner, max_size=3), max_leaves=6),
)


@given(trees)
def test_plain_yaml_is_read_as_pyyaml_reads_it(tree):
    """Compare numbers, texts and levels; empty entries are not columns."""

    def pruned(value):
        if not isinstance(value, dict):
            return value
        inner = {key: pruned(v) for key, v in value.items()}
        return {key: v for key, v in inner.items() if v not in ({}, None)}

    text = yaml.safe_dump(tree)
    assert pruned(parse_yaml(text)) == pruned(yaml.safe_load(text))


@given(st.text("ab:-#'\" \n|>[{\t&", max_size=60))
def test_any_text_can_be_parsed(text):
    assert isinstance(parse_yaml(text), dict)
