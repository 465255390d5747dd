"""Test `watch`: unchanged training, kills, continued logs, and errors of one line."""

import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import emergo.torch as et
from emergo import InputError
from emergo.torch._log import MOST_ROWS

from .models import (
    LENGTH,
    WORDS,
    Block,
    Encoder,
    Gate,
    RawBlock,
    Words,
    batch,
    gpt2,
    loop,
    loss_of,
)

MODELS = {
    "sdpa": lambda: Words(Block("sdpa", dropout=0.2), Block("by name", dropout=0.2)),
    "softmax": lambda: Words(Block("softmax", dropout=0.2), Block("fused", dropout=0.2)),
    "multi-head": lambda: Words(Encoder(0.2), Encoder(0.2, batch_first=False)),
    "checkpointed": lambda: Words(Block("sdpa", dropout=0.2), Encoder(0.2), reentrant=False),
    "reentrant": lambda: Words(Block("sdpa", dropout=0.2), Encoder(0.2), reentrant=True),
    "gpt2 eager": lambda: gpt2("eager"),
    "gpt2 sdpa": lambda: gpt2("sdpa"),
}


@pytest.mark.filterwarnings(
    "ignore:None of the inputs have requires_grad"
)  # in the checkpoint of the first block
@pytest.mark.parametrize("options", [{}, {"micro": 2}, {"autocast": True}], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_bit_for_bit_equal(tmp_path, name, options):
    """Compare training with and without `watch`, with dropout everywhere."""
    trained = []
    for watched in (False, True):
        torch.manual_seed(0)
        model = MODELS[name]()
        if watched:
            with et.watch(model, tmp_path / "log.csv", every=2) as watch:
                loop(model, watch, **options)
        else:
            loop(model, lambda **metrics: None, **options)
        trained.append([*model.state_dict().values(), torch.rand(3)])
    for without, with_watch in zip(*trained, strict=True):
        assert torch.equal(without, with_watch)
    log = pd.read_csv(tmp_path / "log.csv")
    assert log["step"].tolist() == [0, 2, 4]
    assert list(log)[:2] == ["step", "loss"]
    heads = {
        f"{kind}_{layer}_{head}"
        for kind in ("entropy", "largest", "previous", "score_scale")
        for layer in (0, 1)
        for head in (0, 1)
    }
    paths = {
        f"{kind}_{path}_{i}"
        for kind in ("gradient", "agreement")
        for path in ("query_key", "value_output")
        for i in (0, 1)
    }
    assert heads | paths <= set(log)
    seen = log[[*heads, *paths]].to_numpy()
    if (
        name == "reentrant"
    ):  # nothing before its first block needs a gradient, so that PyTorch computes none in it
        seen = seen[
            :, [not column.endswith("_0") or column in heads for column in [*heads, *paths]]
        ]
    assert np.isfinite(seen).all()


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning",
    "ignore:Guards may run slower on Python 3.13.0:RuntimeWarning",
)  # both come from PyTorch
@pytest.mark.parametrize(
    ("backend", "inside"),
    [("eager", False), ("eager", True), pytest.param("inductor", False, marks=pytest.mark.slow)],
)
def test_a_compiled_model_is_seen(tmp_path, backend, inside):
    """Observed steps run without compiled code. Other steps reuse it without a recompilation."""
    torch.manual_seed(0)
    model = Words(Block("sdpa"), Block("fused"))
    trained = torch.compile(model, backend=backend, dynamic=False)
    assert isinstance(trained, nn.Module)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with et.watch(model if inside else trained, tmp_path / "log.csv", every=3) as watch:
        loop(trained, watch, steps=9)
    assert watch.layers == ["blocks.0", "blocks.1"]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert torch.compiler.set_stance("default").prev.stance == "default"
    log = pd.read_csv(tmp_path / "log.csv")
    torch.manual_seed(0)
    plain = Words(Block("sdpa"), Block("fused"))
    with et.watch(plain, tmp_path / "plain.csv", every=3) as watch:
        loop(plain, watch, steps=9)
    # The compiler sums in another order. Adam's first steps depend on signs of gradients only.
    pd.testing.assert_frame_equal(log, pd.read_csv(tmp_path / "plain.csv"), rtol=1e-2, atol=1e-4)


def test_steps_and_metrics(tmp_path):
    model = Words(Block("sdpa"))
    with et.watch(model, tmp_path / "log.csv", every=3) as watch:
        assert watch.layers == []
        for step in range(7):
            loss = loss_of(model, batch(step))
            loss.backward()
            watch(loss=loss, accuracy=np.float32(0.5), done=step > 3, step=10 * step)
    log = pd.read_csv(tmp_path / "log.csv")
    assert list(log)[:4] == ["step", "loss", "accuracy", "done"]
    assert log["step"].tolist() == [0, 30, 60]
    assert log["done"].tolist() == [0, 0, 1]


def test_a_run_is_continued(tmp_path):
    """A log with rows up to step 6 is continued at step 5."""
    path = tmp_path / "log.csv"
    model = Words(Block("sdpa"))
    with et.watch(model, path, every=2) as watch:
        loop(model, watch, steps=7)
    before = pd.read_csv(path)
    with et.watch(model, path, every=2, start=5) as watch:
        loop(model, watch, steps=6)
    log = pd.read_csv(path)
    assert log["step"].tolist() == [0, 2, 4, 6, 8, 10]
    pd.testing.assert_frame_equal(log[:3], before[:3])
    other = Words(Block("sdpa"), Block("sdpa"))
    with (
        pytest.raises(InputError, match="the log belongs to another model"),
        et.watch(other, path, every=2, start=5) as watch,
    ):
        loop(other, watch, steps=6)
    pd.testing.assert_frame_equal(pd.read_csv(path), log)


def test_a_loop_that_fails_keeps_its_rows(tmp_path):
    model = Words(Block("sdpa"))

    def fail() -> None:
        with et.watch(model, tmp_path / "log.csv", every=1) as watch:
            loop(model, watch, steps=3)
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail()
    assert pd.read_csv(tmp_path / "log.csv")["step"].tolist() == [0, 1, 2]
    assert not any(module._forward_hooks for module in model.modules())


KILLED = """
import sys, time, torch
sys.path.insert(0, {root!r})
import emergo.torch as et
from tests.torch.models import Block, Words, loop
model = Words(Block("sdpa"))
with et.watch(model, {path!r}, every=1) as watch:
    loop(model, watch, steps=30)
    print("ready", flush=True)
    loop(model, watch, steps=10**9)
"""


def test_a_kill_loses_few_rows(tmp_path, pytestconfig):
    """The kill may come while a row is written."""
    path = tmp_path / "log.csv"
    code = KILLED.format(root=str(pytestconfig.rootpath), path=str(path))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        rows = len(pd.read_csv(path))
        assert rows >= 29 - MOST_ROWS
        process.send_signal(signal.SIGKILL)
    model = Words(Block("sdpa"))
    with et.watch(model, path, every=1, start=10) as watch:
        loop(model, watch, steps=2)
    assert pd.read_csv(path)["step"].tolist() == list(range(12))


def test_writers_receive_the_same_numbers(tmp_path):
    pytest.importorskip("tensorboardX")
    model = Words(Block("sdpa"))
    rows = []
    writers = ["tensorboard", lambda step, values: rows.append((step, dict(values)))]
    with et.watch(model, tmp_path / "log.csv", every=2, writers=writers) as watch:
        loop(model, watch, steps=3)
    assert [step for step, _ in rows] == [0, 2]
    log = pd.read_csv(tmp_path / "log.csv")
    logged = log.drop(columns="step").iloc[1].dropna().to_dict()
    assert rows[1][1] == pytest.approx(logged, rel=1e-5, nan_ok=True)  # six digits are written
    (events,) = (tmp_path / "tensorboard").glob("log-*/events*")
    assert events.stat().st_size > 500
    with pytest.raises(
        InputError, match=r"unknown writer 'tensorbord'; did you mean tensorboard\?"
    ):
        et.watch(model, tmp_path / "other.csv", writers=["tensorbord"])


def test_only_the_first_process_logs(tmp_path, monkeypatch):
    model = Words(Block("sdpa"))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    with et.watch(model, tmp_path / "log.csv", every=1) as watch:
        loop(model, watch, steps=2)
    assert not list(tmp_path.iterdir())


def test_distributed_training(tmp_path):
    """A group of one process keeps its gradient hooks."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1
    )
    try:
        model = nn.parallel.DistributedDataParallel(Words(Block("sdpa"), Encoder()))
        with et.watch(model, tmp_path / "log.csv", every=1) as watch:
            loop(model, watch, steps=2)
    finally:
        torch.distributed.destroy_process_group()
    assert watch.layers == ["blocks.0", "blocks.1.layer.self_attn"]
    assert "agreement_query_key_1" in pd.read_csv(tmp_path / "log.csv")


def test_a_model_without_attention_logs_its_metrics(tmp_path, capsys):
    """A gate, or a mixture of experts, is not attention."""
    for model in (
        nn.Sequential(nn.Embedding(WORDS, 8), nn.Linear(8, WORDS)),
        Words(Gate()),
    ):
        with et.watch(model, tmp_path / "log.csv", every=2, overwrite=True) as watch:
            loop(model, watch)
        log = pd.read_csv(tmp_path / "log.csv")
        assert list(log) == ["step", "loss"]
        assert log["step"].tolist() == [0, 2, 4]
        printed = capsys.readouterr().err
        kind = type(model).__name__
        assert printed.startswith(f"emergo: no attention was found in {kind}, so only metrics are")
        assert printed.count("\n") == 1


def test_folded_heads_are_recognised_and_reported(tmp_path, capsys):
    torch.manual_seed(0)
    block = Block("softmax")
    models = [Words(block), Words(RawBlock(block))]
    models[1].embed, models[1].readout = models[0].embed, models[0].readout
    logs = []
    for number, model in enumerate(models):
        with et.watch(model, tmp_path / f"{number}.csv", every=1) as watch:
            loss_of(model, batch(0)).backward()
            watch()
        log = pd.read_csv(tmp_path / f"{number}.csv")
        logs.append(log[[name for name in log if not str(name).startswith(("grad", "agree"))]])
    assert "entropy_0_1" in logs[0]
    pd.testing.assert_frame_equal(logs[1], logs[0], rtol=1e-4)
    printed = capsys.readouterr().err
    assert "layer 0 (blocks.0): 8 maps are read as 4 sequences of 2 heads each" in printed
    assert "layer 0: the maps to queries, keys and values were not found" in printed


def frozen() -> nn.Module:
    model = Words(Block("sdpa"))
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        model.get_submodule(f"blocks.0.{name}").requires_grad_(False)
    return model


def frozen_encoder() -> nn.Module:
    model = Words(Encoder())
    model.get_submodule("blocks.0.layer.self_attn").requires_grad_(False)
    return model


def test_frozen_queries_and_keys_are_named(tmp_path, capsys):
    model = Words(Block("sdpa"))
    for name in ("q_proj", "k_proj"):
        model.get_submodule(f"blocks.0.{name}").requires_grad_(False)
    with et.watch(model, tmp_path / "log.csv") as watch:
        loss_of(model, batch(0)).backward()
        watch()
    assert capsys.readouterr().err == (
        "emergo: no gradients of queries and keys are logged for layer 0: the weights are frozen "
        "(requires_grad=False)\n"
    )
    assert "gradient_value_output_0" in pd.read_csv(tmp_path / "log.csv")


@pytest.mark.parametrize(
    ("make", "backward", "words"),
    [
        (frozen, True, "the weights are frozen (requires_grad=False)"),
        (frozen_encoder, True, "the weights are frozen (requires_grad=False)"),
        (
            lambda: Words(Block("sdpa")),
            False,
            "there was no backward pass before watch was called; call it after backward()",
        ),
        (
            lambda: Words(Encoder()),
            False,
            "there was no backward pass before watch was called; call it after backward()",
        ),
    ],
)
def test_missing_gradients_have_the_true_reason(tmp_path, capsys, make, backward, words):
    model = make()
    with et.watch(model, tmp_path / "log.csv") as watch:
        loss = loss_of(model, batch(0))
        if backward:
            loss.backward()
        watch(loss)
    assert capsys.readouterr().err == f"emergo: no gradients are logged for layer 0: {words}\n"


def test_the_loss_needs_no_name(tmp_path):
    model = Words(Block("sdpa"))
    with et.watch(model, tmp_path / "log.csv") as watch:
        loss = loss_of(model, batch(0))
        watch(loss, accuracy=0.5)
        with pytest.raises(InputError, match=r"watch\(loss, loss=\.\.\.\): give the loss once"):
            watch(loss, loss=loss)
    assert list(pd.read_csv(tmp_path / "log.csv"))[:3] == ["step", "loss", "accuracy"]


def test_a_loop_that_never_calls_watch_is_told_so(tmp_path, capsys):
    model = Words(Block("sdpa"))
    with et.watch(model, tmp_path / "log.csv"):
        loop(model, lambda **metrics: None, steps=1)
    assert "watch was never called, so nothing is logged" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_cell_of_a_notebook_can_be_run_again(tmp_path):
    for steps in (4, 2):
        model = Words(Block("sdpa"))
        with et.watch(model, tmp_path / "log.csv", every=1, overwrite=True) as watch:
            loop(model, watch, steps=steps)
            watch.flush()
            assert len(pd.read_csv(tmp_path / "log.csv")) == steps


def test_metrics_of_other_steps(tmp_path):
    """Evaluations join the row of their step, or get a row of their own."""
    model = Words(Block("sdpa"))
    with et.watch(model, tmp_path / "log.csv", every=2) as watch:
        for step in range(4):
            loss_of(model, batch(step)).backward()
            watch(0.1 * step)
            watch.report(step, {"eval/loss": float(step)})
        with pytest.raises(InputError, match="steps must grow: step 1 after step 3"):
            watch.report(1, {"eval/loss": 0.0})
    log = pd.read_csv(tmp_path / "log.csv")
    assert log["step"].tolist() == [0, 1, 2, 3]
    assert log["eval/loss"].tolist() == [0, 1, 2, 3]
    assert log["loss"].isna().tolist() == [False, True, False, True]


def test_an_error_while_looking_does_not_end_the_training(tmp_path, capsys, monkeypatch):
    def fail(scores, tokens):
        raise RuntimeError("out of memory\nmore")

    monkeypatch.setattr("emergo.torch._watch.head_statistics", fail)
    model = Words(Block("sdpa"))
    with et.watch(model, tmp_path / "log.csv", every=1) as watch:
        loop(model, watch, steps=3)
    assert len(pd.read_csv(tmp_path / "log.csv")) == 3
    printed = capsys.readouterr().err
    assert printed.count("some attention could not be observed: RuntimeError: out of memory\n") == 1


class Unusual(nn.Module):
    """Attention with unusual names of its maps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(
            self.first(x)[:, None], self.second(x)[:, None], x[:, None]
        )[:, 0]


def test_missing_maps_are_reported_in_one_line(tmp_path, capsys):
    model = Words(Block("sdpa"), Unusual())
    with et.watch(model, tmp_path / "log.csv", every=1) as watch:
        loop(model, watch, steps=2)
    assert capsys.readouterr().err == (
        "emergo: no gradients are logged for layer 1: the maps to queries, keys and values "
        "were not found; name them with paths=\n"
    )
    with et.watch(
        model, tmp_path / "named.csv", every=1, paths={"query_key": ["blocks.*.second"]}
    ) as watch:
        loop(model, watch, steps=1)
    assert "gradient_query_key_1" in pd.read_csv(tmp_path / "named.csv")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "gpt2"}, "watch needs a torch.nn.Module, got str"),
        ({"every": 0}, "every must be a whole number of at least 1, got 0"),
        ({"every": 2.5}, "every must be a whole number of at least 1, got 2.5"),
        ({"queries": 0}, "queries must be a whole number of at least 1, got 0"),
        ({"start": -1}, "start must be a whole number of at least 0, got -1"),
        ({"log": "log.parquet"}, "log.parquet: the log must be a .csv file"),
        ({"log": "away/log.csv"}, "there is no folder away; create it"),
        ({"heads": "all"}, "heads must be a HeadBatch, 'auto' or None, got 'all'"),
        ({"metrics": {"loss": "low"}}, r"watch\(loss=...\): a metric must be a number, got 'low'"),
        (
            {"metrics": {"loss": torch.ones(3)}},
            r"watch\(loss=...\): a metric must be a number, got a tensor of shape \(3,\)",
        ),
        (
            {"metrics": {"entropy_0_0": 1.0}},
            r"watch\(entropy_0_0=...\): a column of this name is logged already",
        ),
        ({"metrics": {"step": -3}}, "step must be a whole number of at least 0, got -3"),
        ({"writers": ["wandb"]}, "the writer wandb needs wandb: pip install wandb"),
    ],
    ids=str,
)
def test_wrong_use_is_one_line(tmp_path, monkeypatch, change, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", None)
    options = {"model": Words(Block("sdpa")), "log": "log.csv", "metrics": {"loss": 1.0}} | change
    model, log, metrics = (options.pop(name) for name in ("model", "log", "metrics"))

    def use() -> None:
        with et.watch(model, log, **options) as watch:
            loss_of(model, batch(0))
            watch(**metrics)

    with pytest.raises(InputError, match=words) as caught:
        use()
    assert "\n" not in str(caught.value)


def test_watching_another_model_is_an_error(tmp_path):
    model = Words(Block("sdpa"))
    other = Words(Block("sdpa"))
    with (
        pytest.raises(InputError, match="the model did not compute with gradients"),
        et.watch(other, tmp_path / "log.csv") as watch,
    ):
        loop(model, watch)
    with pytest.raises(InputError, match="watch is called outside of its block"):
        watch(loss=1.0)


def test_steps_must_grow(tmp_path):
    model = Words(Block("sdpa"))
    with et.watch(model, tmp_path / "log.csv", every=1) as watch:
        loss_of(model, batch(0))
        watch(step=7)
        with pytest.raises(InputError, match="steps must grow: step 3 after step 7"):
            watch(step=3)


def test_cross_attention_and_eval_mode(tmp_path):
    """PyTorch's layer uses its fast path in evaluation, and is observed in training."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(WORDS, 8)
            self.transformer = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
            self.readout = nn.Linear(8, WORDS)

        def forward(self, tokens):
            x = self.embed(tokens)
            return self.readout(self.transformer(x, x[:, : LENGTH - 2]))

    torch.manual_seed(0)
    model = Model().eval()
    with torch.no_grad():
        expected = model(batch(0))
    with et.watch(model, tmp_path / "log.csv", every=1) as watch:
        with torch.no_grad():
            assert torch.equal(model(batch(0)), expected)
        model(batch(0)).sum().backward()
        watch(loss=1.0)
    names = [
        "encoder.layers.0.self_attn",
        "decoder.layers.0.self_attn",
        "decoder.layers.0.multihead_attn",
    ]
    assert watch.layers == [f"transformer.{name}" for name in names]
    log = pd.read_csv(tmp_path / "log.csv")
    assert {"previous_0_0", "previous_1_0"} <= set(log)
    assert "previous_2_0" not in log
    assert "agreement_value_output_2" in log


def test_the_error_without_pytorch_says_what_to_install():
    code = "import sys; sys.modules['torch'] = None; import emergo.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].startswith(
        "ImportError: emergo.torch needs PyTorch: pip install 'torch>=2.6'"
    )


def test_watching_does_not_import_jax():
    code = "import sys, emergo.torch; assert 'jax' not in sys.modules and 'torch' in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
