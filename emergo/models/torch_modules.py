"""The models as plain PyTorch modules, for tools that need one. Importing this needs PyTorch.

Each module computes what `apply` computes in an evaluation, without dropout. Parameters have the
same names as in the JAX model if both have them.
"""

import importlib.util
from typing import Any

import numpy as np

from ..core.contract import Spec
from ..core.errors import InputError
from ._chain_transformer import ChainParameters, ChainTransformer
from ._layers import RMSNorm
from ._minimal import MinimalAttention
from ._model import Model
from ._toy import ToyAttention
from ._transformer import Transformer, TransformerParameters

if importlib.util.find_spec("torch") is None:
    raise InputError("to_torch needs PyTorch: pip install 'torch>=2.6'")

import torch
from torch import Tensor, nn


def to_torch(model: Model, params: Any, spec: Spec) -> nn.Module:
    """Return a PyTorch module with the parameters of a model; see `Trained.to_torch`."""
    kind = type(model)
    if kind is Transformer or kind is ChainTransformer:
        form = getattr(model, "attention", "softmax")
        if not isinstance(form, str):
            raise InputError(
                f"to_torch: attention {form!r} is a form of your own, which is written in JAX; "
                f"define to_torch(params, spec) in a subclass of Transformer"
            )
        return TorchTransformer(model, params, spec).eval()
    if type(model) is MinimalAttention:
        return TorchMinimal(model, params, spec).eval()
    if kind is ToyAttention:
        return TorchToy(params).eval()
    raise InputError(f"to_torch: {kind.__name__} must define to_torch(params, spec)")


def _parameter(array: Any) -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(np.array(array)))


def _linear(weight: Any, bias: Any = None) -> nn.Linear:
    """Return a linear map; ours multiplies from the right."""
    inputs, outputs = weight.shape
    linear = nn.Linear(inputs, outputs, bias=bias is not None)
    linear.weight = _parameter(weight.T)
    if bias is not None:
        linear.bias = _parameter(bias)
    return linear


def _norm(norm: Any) -> nn.Module:
    if norm is None:
        return nn.Identity()
    if isinstance(norm, RMSNorm):
        root = nn.RMSNorm(len(norm.gain), eps=1e-5)
        root.weight = _parameter(norm.gain)
        return root
    layer = nn.LayerNorm(len(norm.gain), eps=1e-5)
    layer.weight = _parameter(norm.gain)
    layer.bias = _parameter(norm.offset)
    return layer


def _positions(length: int, size: int) -> Tensor:
    """Return the angle of every position and pair of features (Vaswani et al. 2017)."""
    rates = torch.exp(torch.arange(0, size, 2) * (-np.log(10_000) / size))
    return torch.arange(length)[:, None] * rates


def _visible(length: int, causal: bool, window: int | None) -> Tensor:
    """Return which positions each query sees."""
    behind = torch.arange(length)[:, None] - torch.arange(length)
    visible = behind >= 0 if causal else torch.ones(length, length, dtype=torch.bool)
    return visible if window is None else visible & (behind.abs() < window)


class TorchMlp(nn.Module):
    """An MLP, with a gate if the model has one."""

    def __init__(self, model: Any, layer: Any) -> None:
        super().__init__()
        gelu = getattr(model, "activation", "relu") == "gelu"
        self.activation = nn.GELU(approximate="tanh") if gelu else nn.ReLU()
        self.up = _linear(*layer.up)
        self.down = _linear(*layer.down)
        gate = getattr(layer, "gate", None)
        self.gate = None if gate is None else _linear(*gate)

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x)
        if self.gate is None:
            return self.down(self.activation(up))
        return self.down(nn.functional.silu(self.gate(x)) * up)


class TorchLayer(nn.Module):
    """Attention, and an MLP if the model has one."""

    def __init__(self, model: Any, layer: Any) -> None:
        super().__init__()
        self.heads = model.heads
        self.form = getattr(model, "attention", "softmax")
        self.rotates = getattr(model, "positions", "") == "rope"
        self.skip = getattr(model, "skip", True)
        self.top_k = getattr(model, "top_k", None)
        when = "post" if isinstance(model, ChainTransformer) else model.norm
        none = (None, None)
        self.before = nn.ModuleList(map(_norm, layer.norms if when == "pre" else none))
        self.after = nn.ModuleList(map(_norm, layer.norms if when == "post" else none))
        maps = (layer.query, layer.key, layer.value, layer.out)
        if isinstance(model, ChainTransformer):  # its maps have no bias
            maps = [(weight,) for weight in maps]
        self.query, self.key, self.value, self.out = (_linear(*map_) for map_ in maps)
        bias = getattr(layer, "bias", None)
        self.bias = None if bias is None else _parameter(bias)
        temperature = getattr(layer, "temperature", None)
        self.temperature = None if temperature is None else _parameter(temperature)
        self.mlp = None if layer.up is None else TorchMlp(model, layer)

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        mixed = self._attend(self.before[0](x), visible)
        x = self.after[0]((x if self.skip else 0) + self.out(mixed))
        if self.mlp is not None:
            x = self.after[1]((x if self.skip else 0) + self.mlp(self.before[1](x)))
        return x

    def _attend(self, x: Tensor, visible: Tensor) -> Tensor:
        """Return the mixed values of all positions, heads side by side."""
        shape = (*x.shape[:2], self.heads, -1)
        maps = (self.query, self.key, self.value)
        q, k, v = (map_(x).reshape(shape).transpose(1, 2) for map_ in maps)
        if self.rotates:
            q, k = _rotated(q), _rotated(k)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if self.bias is not None:
            scores = self.bias + (0 if self.form == "positional" else scores)
        if self.temperature is not None:
            scores = scores / self.temperature.exp()[:, None, None]
        if self.top_k is not None:
            seen = scores.masked_fill(~visible, -torch.inf)
            least = seen.topk(min(self.top_k, seen.shape[-1])).values[..., -1:]
            visible = (seen >= least) & (seen > -torch.inf)
        mixed = self._weights(scores, visible) @ v
        return mixed.transpose(1, 2).reshape(x.shape)

    def _weights(self, scores: Tensor, visible: Tensor) -> Tensor:
        count = visible.sum(-1, keepdim=True)
        if self.form == "linear":
            return (scores / count).masked_fill(~visible, 0)
        if self.form == "sigmoid":
            return torch.sigmoid(scores - count.to(scores.dtype).log()).masked_fill(~visible, 0)
        return scores.masked_fill(~visible, -torch.inf).softmax(-1)


def _rotated(x: Tensor) -> Tensor:
    """Apply rotary positions (Su et al. 2021)."""
    angle = _positions(*x.shape[-2:]).to(x)
    even = x[..., ::2]
    odd = x[..., 1::2]
    turned = (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos())
    return torch.stack(turned, -1).reshape(x.shape)


class TorchTransformer(nn.Module):
    """`Transformer` or `ChainTransformer`. Inputs are features, or integer tokens."""

    def __init__(
        self, model: Any, params: TransformerParameters | ChainParameters, spec: Spec
    ) -> None:
        super().__init__()
        self.answers = spec.answers
        if isinstance(params, ChainParameters):
            window = None if model.context is None else int(model.context)
            visible = _visible(spec.length, True, window)
            self.embed = _linear(params.encode)
            layers = params.blocks
            readout = params.decode
        else:
            visible = _visible(spec.length, model.mask == "causal", model.window)
            self.embed = _linear(*params.embed)
            layers = params.layers
            readout = params.readout
        self.register_buffer("visible", visible)
        self.positions: Any = None
        if params.positions is not None:
            self.positions = _parameter(params.positions)
        elif model.positions == "sinusoidal":
            angle = _positions(spec.length, model.width)
            waves = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)
            self.register_buffer("waves", waves.to(self.embed.weight))
            self.positions = self.waves
        self.layers = nn.ModuleList(TorchLayer(model, layer) for layer in layers)
        self.norm = _norm(getattr(params, "norm", None))
        self.readout = None if readout is None else _linear(*readout)

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.is_floating_point():
            x = self.embed(inputs)
        else:
            x = self.embed.weight.T[inputs]
            x = x if self.embed.bias is None else x + self.embed.bias
        if self.positions is not None:
            x = x + self.positions
        for layer in self.layers:
            x = layer(x, self.visible)
        x = self.norm(x[:, -1] if self.answers is None else x[:, -self.answers :])
        return x @ self.embed.weight if self.readout is None else self.readout(x)


class TorchMinimal(nn.Module):
    """`MinimalAttention`. Inputs are integer tokens."""

    visible: Tensor  # a buffer

    def __init__(self, model: MinimalAttention, params: Any, spec: Spec) -> None:
        super().__init__()
        self.tokens = spec.inputs
        self.answers = spec.answers
        window = None if model.context is None else int(model.context)
        self.register_buffer("visible", _visible(spec.length, True, window))
        self.query = nn.ParameterList(_parameter(layer.query) for layer in params)
        self.value = nn.ParameterList(_parameter(layer.value) for layer in params)

    def forward(self, inputs: Tensor) -> Tensor:
        count, length = inputs.shape
        query = self.query[0]
        tokens = nn.functional.one_hot(inputs.long(), self.tokens).to(query)
        positions = torch.eye(length).to(query).expand(count, length, length)
        x = torch.cat([tokens, positions], -1)
        for query, value in zip(self.query, self.value, strict=True):
            scores = torch.einsum("nic,hcd,ntd->nhti", x, query, x) / x.shape[-1] ** 0.5
            weights = scores.masked_fill(~self.visible, -torch.inf).softmax(-1)
            x = torch.einsum("nhti,nic,hco->nto", weights, x, value)
        return x[:, -1] if self.answers is None else x[:, -self.answers :]


class TorchToy(nn.Module):
    """`ToyAttention`. Inputs are features."""

    def __init__(self, params: Any) -> None:
        super().__init__()
        self.logits = _parameter(params.logits)
        self.weights = _parameter(params.weights)

    def forward(self, inputs: Tensor) -> Tensor:
        return (self.logits.softmax(0)[:, None] * inputs).sum(1) @ self.weights.T
