"""Test the observation of one step: layers, statistics, tokens and clean-up."""

import threading

import pytest
import torch
from torch import nn

from emergo.torch._gradients import Gradients
from emergo.torch._observation import Observation
from emergo.torch._packed import read
from emergo.torch._paths import find_pieces
from emergo.torch._scores import Part
from emergo.torch._statistics import head_statistics

from .models import LENGTH, WORDS, Block, Encoder, Words, batch, gpt2, loss_of

ALL = Part(4, LENGTH)


def observe(
    model: nn.Module, layers: list[tuple[str, int]] | None = None, part: Part = ALL
) -> Observation:
    modules = dict(model.named_modules())
    gradients = Gradients(find_pieces(modules), True)
    known = [] if layers is None else layers
    return Observation(modules, part, head_statistics, gradients, known)


def columns(model: nn.Module, tokens: torch.Tensor, part: Part = ALL) -> dict[str, float]:
    observation = observe(model, part=part)
    loss_of(model, tokens).backward()
    observation.close()
    return values_of(observation)


def values_of(observation: Observation) -> dict[str, float]:
    gradients = observation.gradients.summary([name for name, _ in observation.layers])
    heads, found = read(observation.heads(), gradients)
    return heads | found


def test_layers_are_named_after_the_module_that_attends():
    for model, names in {
        Words(Block("sdpa"), Block("by name"), Block("softmax"), Block("fused")): [
            f"blocks.{i}" for i in range(4)
        ],
        Words(Encoder(), Encoder(batch_first=False)): [
            "blocks.0.layer.self_attn",
            "blocks.1.layer.self_attn",
        ],
        gpt2("eager"): ["transformer.h.0.attn", "transformer.h.1.attn"],
        gpt2("sdpa"): ["transformer.h.0.attn", "transformer.h.1.attn"],
    }.items():
        observation = observe(model)
        loss_of(model, batch(0))
        observation.close()
        assert observation.layers == [(name, 0) for name in names]


def test_all_implementations_of_attention_give_the_same_numbers():
    torch.manual_seed(0)
    blocks = [Block("sdpa") for _ in range(3)]
    for block, kind in zip(blocks[1:], ("by name", "softmax"), strict=True):
        block.load_state_dict(blocks[0].state_dict())
        block.kind = kind
    embed = nn.Embedding(WORDS, 8)
    values = []
    for block in blocks:
        model = Words(block)
        model.embed, model.readout = embed, nn.Linear(8, WORDS)
        values.append(
            {name: value for name, value in columns(model, batch(0)).items() if "gr" not in name}
        )
    assert {name.rpartition("_0_")[0] for name in values[0]} == {
        "entropy",
        "largest",
        "previous",
        "same",
        "score_scale",
    }
    for each in values[1:]:
        assert each == pytest.approx(values[0], rel=1e-4)


def test_weights_are_those_before_dropout():
    """Hugging Face returns weights after dropout."""
    torch.manual_seed(0)
    model = gpt2("eager")
    torch.manual_seed(1)
    dropped = columns(model, batch(0))
    sure = columns(model.eval(), batch(0))
    assert dropped["entropy_0_0"] == pytest.approx(
        sure["entropy_0_0"], rel=0.01
    )  # the embedding has dropout, too
    assert dropped["largest_1_1"] <= 1


def test_only_a_part_of_the_batch_is_observed():
    model = Words(Block("sdpa"))
    tokens = batch(0, 8)
    small = columns(model, tokens, Part(2, 3))
    alone = columns(model, tokens[:2], Part(2, 3))
    for name in ("entropy_0_0", "largest_0_1", "same_0_0"):
        assert small[name] == pytest.approx(alone[name], rel=1e-5, nan_ok=True)


def test_tokens_are_found_by_name():
    model = gpt2("sdpa")
    for order in (1, -1):
        inputs = {
            "input_ids": batch(0),
            "attention_mask": torch.ones_like(batch(0)),
            "labels": batch(1),
        }
        observation = observe(model)
        model(**dict(list(inputs.items())[::order]))
        observation.close()
        observed = values_of(observation)
        assert observed["same_0_0"] == pytest.approx(
            columns(model.eval(), batch(0))["same_0_0"], rel=0.02
        )


def test_passes_without_gradients_do_not_count():
    """An example is a validation between two steps."""
    model = Words(Block("sdpa"))
    observation = observe(model)
    with torch.no_grad():
        model(batch(0))
    assert (observation.passes, observation.layers) == (0, [])
    loss_of(model, batch(0))
    assert (observation.passes, observation.layers) == (1, [("blocks.0", 0)])
    observation.close()


def test_a_module_that_attends_several_times_has_several_layers():
    block = Block("sdpa")
    model = Words(block, block)
    values = columns(model, batch(0))
    assert {"entropy_0_0", "entropy_1_0", "gradient_query_key_0"} <= values.keys()
    assert "gradient_query_key_1" not in values
    assert block.q_proj.weight.grad is not None
    assert block.k_proj.weight.grad is not None
    norm = torch.cat([block.q_proj.weight.grad, block.k_proj.weight.grad]).norm()
    assert values["gradient_query_key_0"] == pytest.approx(float(norm), rel=1e-4)


def test_a_layer_keeps_its_number():
    """Stochastic depth skips layers at random."""
    model = Words(Block("sdpa"), Block("sdpa"))
    layers = []
    for blocks in ([0, 1], [1]):
        observation = observe(model, layers)
        x = model.embed(batch(0))
        for i in blocks:
            x = model.blocks[i](x)
        observation.close()
    assert layers == [("blocks.0", 0), ("blocks.1", 0)]
    values = values_of(observation)
    assert "entropy_1_0" in values
    assert "entropy_0_0" not in values


def test_hooks_and_modes_are_removed():
    model = Words(Block("sdpa"), Encoder())

    class Failing(nn.Module):
        def forward(self, x):
            raise RuntimeError("on purpose")

    model.blocks.append(Failing())
    observation = observe(model)
    with pytest.raises(RuntimeError, match="on purpose"):
        model(batch(0))
    assert not torch._C._len_torch_function_stack()
    assert observation.layers[0] == ("blocks.0", 0)
    observation.close()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_only_one_thread_is_observed():
    """`DataParallel` computes copies of a model in threads. The first one is observed."""
    model = Words(Block("sdpa"))
    observation = observe(model)
    loss_of(model, batch(0))
    thread = threading.Thread(target=loss_of, args=(model, batch(1)))
    thread.start()
    thread.join()
    observation.close()
    assert observation.passes == 1
