"""Compare gradients of half batches from one backward pass with separate backward passes."""

import contextlib

import pytest
import torch

from emergo.torch._gradients import Gradients
from emergo.torch._observation import Observation
from emergo.torch._packed import read
from emergo.torch._paths import find_pieces, find_raw
from emergo.torch._scores import Part
from emergo.torch._statistics import head_statistics

from .models import Block, Encoder, RawBlock, Words, batch, gpt2, loss_of


@contextlib.contextmanager
def observed(model, paths=None):
    """Observe the code in the block; the columns are complete after it."""
    modules = dict(model.named_modules())
    pieces = find_pieces(modules, paths)
    raw = {name: weight for name, weight in find_raw(modules).items() if name in pieces}
    gradients = Gradients(pieces, paths is None, raw)
    observation = Observation(modules, Part(2, 4), head_statistics, gradients, [])
    columns = {}
    yield columns
    observation.close()
    summary = gradients.summary([name for name, _ in observation.layers])
    for found in read(observation.heads(), summary):
        columns |= found


def path_gradient(model, layer: str, path: str) -> torch.Tensor:
    """Concatenate the gradients of PyTorch for the weights of a path."""
    parts = []
    for name, parameter in model.named_parameters():
        if name.startswith(layer) and name.endswith("weight") and parameter.grad is not None:
            grad = parameter.grad
            last = name.removesuffix(".weight").rpartition(".")[2]
            if last in ("c_attn", "qkv", "in_proj_weight"):
                grad = grad if grad.shape[0] > grad.shape[1] else grad.T
                parts.append(grad[:16] if path == "query_key" else grad[16:])
            elif last in (
                ("q_proj", "k_proj")
                if path == "query_key"
                else ("v_proj", "o_proj", "c_proj", "out_proj")
            ):
                parts.append(grad)
    return torch.cat([part.flatten() for part in parts])


def gradient_norms(modules, name: str) -> list[float]:
    gradients = [module.get_parameter(name).grad for module in modules]
    return [float(gradient.norm()) for gradient in gradients if gradient is not None]


MODELS = {
    "separate": (lambda: Words(Block("sdpa"), Block("softmax")), "blocks.1."),
    "fused": (lambda: Words(Block("fused"), Block("fused")), "blocks.1."),
    "multi-head": (
        lambda: Words(Encoder(), Encoder(batch_first=False)),
        "blocks.1.layer.self_attn.",
    ),
    "gpt2": (lambda: gpt2("eager").eval(), "transformer.h.1.attn."),
    "checkpointed": (lambda: Words(Block("sdpa"), Block("sdpa"), reentrant=False), "blocks.1."),
    "checkpointed, reentrant": (
        lambda: Words(Block("sdpa"), Block("sdpa"), reentrant=True),
        "blocks.1.",
    ),
    "checkpointed multi-head": (
        lambda: Words(Encoder(), Encoder(), reentrant=True),
        "blocks.1.layer.self_attn.",
    ),
}


@pytest.mark.filterwarnings(
    "ignore:None of the inputs have requires_grad"
)  # in the checkpoint of the first block
@pytest.mark.parametrize("micro", [1, 2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_halves_are_the_gradients_of_halves(name, micro):
    """Accumulated gradients are included, down to one sample per pass."""
    torch.manual_seed(0)
    make, layer = MODELS[name]
    model = make()
    tokens = batch(0, 4)
    with observed(model) as columns:
        for part in tokens.chunk(micro):
            (loss_of(model, part) / micro).backward()
    whole = {path: path_gradient(model, layer, path) for path in ("query_key", "value_output")}
    # The halves are swapped in every pass: with two samples each, samples 0 and 3 are in one half.
    first = {1: [0, 2], 2: [0, 3], 4: [0, 2]}[micro]
    halves = []
    for mine in (first, [i for i in range(4) if i not in first]):
        model.zero_grad()
        loss_of(model, tokens[mine]).backward()
        halves.append({path: path_gradient(model, layer, path) for path in whole})
    for path, gradient in whole.items():
        assert columns[f"gradient_{path}_1"] == pytest.approx(float(gradient.norm()), rel=1e-4)
        cosine = torch.nn.functional.cosine_similarity(halves[0][path], halves[1][path], 0)
        # Float32; the cosine is of vectors of about 1e-2 whose entries are sums of 20 terms.
        assert columns[f"agreement_{path}_1"] == pytest.approx(float(cosine), abs=1e-4)
    assert sorted(name for name in columns if "agreement" in name) == [
        f"agreement_{path}_{layer}" for path in ("query_key", "value_output") for layer in range(2)
    ]


@pytest.mark.parametrize("need_weights", [True, False])
def test_dropout_is_the_same_when_attention_is_computed_again(need_weights):
    """The second pass through `nn.MultiheadAttention` must drop the same weights."""
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(8, 2, dropout=0.5)
    x = torch.randn(6, 4, 8)
    with observed(module) as columns:
        (module(x, x, x, need_weights=need_weights)[0] * torch.randn(6, 4, 8)).mean().backward()
        torch.manual_seed(1)
        after = torch.rand(3)
    for path in ("query_key", "value_output"):
        assert columns[f"gradient_{path}_0"] == pytest.approx(
            float(path_gradient(module, "", path).norm()), rel=1e-4
        )
    torch.manual_seed(1)
    torch.testing.assert_close(after, torch.rand(3), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["separate", "multi-head"])
def test_mixed_precision(name):
    torch.manual_seed(0)
    make, layer = MODELS[name]
    model = make()
    with observed(model) as columns:
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, batch(0))
        loss.backward()
    for path in ("query_key", "value_output"):
        # PyTorch sums in bfloat16, with 8 bits.
        assert columns[f"gradient_{path}_1"] == pytest.approx(
            float(path_gradient(model, layer, path).norm()), rel=0.05
        )


def test_the_agreement_of_one_sample_is_nan():
    model = Words(Block("sdpa"))
    with observed(model) as columns:
        loss_of(model, batch(0, 1)).backward()
    assert columns["gradient_query_key_0"] > 0
    assert columns["agreement_query_key_0"] != columns["agreement_query_key_0"]


def test_frozen_maps_and_overwritten_inputs_are_left_out():
    model = Words(Block("sdpa"))
    model.blocks[0].requires_grad_(False)
    with observed(model) as columns:
        loss_of(model, batch(0)).backward()
    assert not any("gradient" in name for name in columns)

    class Overwriting(torch.nn.Module):
        """Autocast saves a copy for the backward pass, so the original may be overwritten."""

        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = (torch.nn.Linear(8, 8) for _ in range(3))

        def forward(self, x):
            x = x.clone()
            q, k, v = (f(x)[:, None] for f in (self.query, self.key, self.value))
            x += 1
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    model = Overwriting()
    with observed(model) as columns:
        with torch.autocast("cpu", torch.bfloat16):
            output = model(torch.randn(4, 6, 8))
        output.float().square().mean().backward()
    assert "entropy_0_0" in columns
    assert not any("gradient" in name for name in columns)


def test_the_users_paths():
    """The user may choose any linear map, such as the MLP."""
    model = Words(Block("sdpa"), Block("sdpa"))
    with observed(model, {"query_key": ["blocks.*.mlp"]}) as columns:
        loss_of(model, batch(0)).backward()
    norms = gradient_norms(model.blocks, "mlp.weight")
    assert [columns[f"gradient_query_key_{i}"] for i in range(2)] == pytest.approx(norms, rel=1e-4)
    assert "gradient_value_output_0" not in columns


def test_layers_that_the_model_computes_itself():
    """The model itself attends twice. The modules with the maps belong to the calls in order."""

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.maps = torch.nn.ModuleList(
                torch.nn.ModuleDict({name: torch.nn.Linear(8, 8) for name in ("q", "k", "v")})
                for _ in range(2)
            )

        def forward(self, x):
            for maps in self.maps:
                q, k, v = (maps.get_submodule(name)(x)[:, None] for name in ("q", "k", "v"))
                x = x + torch.nn.functional.scaled_dot_product_attention(q, k, v)[:, 0]
            return x

    model = Flat()
    with observed(model) as columns:
        (model(torch.randn(4, 6, 8)) * torch.randn(4, 6, 8)).mean().backward()
    norms = gradient_norms(model.maps, "v.weight")
    assert [columns[f"gradient_value_output_{i}"] for i in range(2)] == pytest.approx(
        norms, rel=1e-4
    )


@pytest.mark.parametrize("micro", [1, 2])
def test_raw_parameters_can_be_named(micro):
    """Parameters that are not weights of modules have the gradients of equal linear maps."""
    torch.manual_seed(0)
    block = Block("sdpa")
    raw = RawBlock(block)
    model = Words(block)
    other = Words(raw)
    other.embed, other.readout = model.embed, model.readout
    names = {"query_key": ["blocks.0.W_Q", "blocks.0.W_K"], "value_output": ["*.W_V", "*.W_O"]}
    found = []
    for each, paths in ((model, None), (other, names)):
        with observed(each, paths) as columns:
            for tokens in batch(0).chunk(micro):
                (loss_of(each, tokens) / micro).backward()
        found.append({name: x for name, x in columns.items() if name.startswith(("grad", "agree"))})
    assert len(found[0]) == 4
    assert found[1] == pytest.approx(found[0], rel=1e-4)
