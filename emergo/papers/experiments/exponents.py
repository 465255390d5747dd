"""Components between the toy model and the Transformer, and the exponents of the plateau.

Each component is added along a path, added alone, and removed from the end of the path.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ...models import Assembly, ToyAttention
from ...study import Study
from ...tasks import SingleLocation
from ...training import Config, Optimizer
from ..transformers import TASK

TOKENS = Assembly(
    width=32, mlp=False, embed=0.0, queries=0.0, maps=1.0, biases=0.0, skip=0.0, positions=0.0
)
"""The toy model with a learned vector on tokens."""
FULL = Assembly(width=32)
"""A Transformer of one layer."""
LAST = SingleLocation(2, 1)


def change(base: Config, **model: Any) -> Config:
    return base.replace(**{f"model__{name}": value for name, value in model.items()})


def path(base: Config) -> dict[str, Config]:
    """Return the steps from the toy model to the Transformer; each keeps what came before."""
    toy = base.replace(task=LAST, model=ToyAttention(0.0))
    steps = {"toy model": toy, "random start": change(toy, scale=1.0)}
    here = base.replace(model=TOKENS)
    steps["vector on tokens"] = here
    for name, switches in PATH.items():
        here = change(here, **switches)
        steps[name] = here
    return steps


PATH: Mapping[str, Mapping[str, Any]] = {
    "biases": {"biases": 1.0},
    "queries and keys": {"queries": 1.0},
    "three value maps": {"maps": 3.0},
    "embedding": {"embed": 1.0},
    "skip connection": {"skip": 1.0},
    "positions": {"positions": 1.0},
    "MLP": {"mlp": True},
}
ALONE: Mapping[str, Mapping[str, Any]] = {
    "biases": {"biases": 1.0},
    "queries, keys, biases": {"queries": 1.0, "biases": 1.0},
    "three value maps": {"maps": 3.0},
    "embedding": {"embed": 1.0},
    "skip connection": {"skip": 1.0},
    "positions": {"positions": 1.0},
    "MLP": {"mlp": True, "skip": 1.0},
}
REMOVED: Mapping[str, Mapping[str, Any]] = {
    "embedding of constant size": {"keep_content": 1.0, "keep_mark": 1.0},
    "embedding": {"embed": 0.0},
    "positions": {"positions": 0.0},
    "content of constant size": {"keep_content": 1.0},
    "indicator of constant size": {"keep_mark": 1.0},
    "MLP": {"mlp": False},
    "skip connection": {"skip": 0.0},
    "biases": {"biases": 0.0},
    "queries and keys": {"queries": 0.0},
    "three value maps": {"maps": 1.0},
}
RATES: Mapping[str, tuple[float, float, float]] = {
    # with positions, without, of the toy model
    "sgd": (0.06, 0.2, 0.3),
    "adam": (5e-4, 5e-4, 5e-4),
}
STEPS = {"sgd": 30_000, "adam": 12_000}


def with_optimizer(config: Config, name: str, **options: Any) -> Config:
    """Return a config with this optimizer at a rate in the flow limit."""
    model: Any = config.model
    slow, fast, toy = RATES[name]
    rate = slow if getattr(model, "positions", 0) else fast
    rate = toy if isinstance(model, ToyAttention) else rate
    return config.replace(optimizer=Optimizer(name, rate, **options), steps=STEPS[name])


@dataclasses.dataclass(frozen=True)
class Settings:
    base: Config
    dims: tuple[int, ...] = (4, 8, 16)
    lengths: tuple[int, ...] = (8, 16, 32)
    seeds: int = 3

    def grid(self, config: Config) -> Study:
        return Study.of(config, grid={"length": self.lengths, "dim": self.dims}, seeds=self.seeds)

    def variants(self, optimizer: str) -> dict[str, Config]:
        """Return every variant, the most valuable first."""
        full = self.base
        ends = path(full)
        every = {"path/MLP": ends["MLP"], "path/vector on tokens": ends["vector on tokens"]}
        every |= {f"removed/{name}": change(full, **s) for name, s in REMOVED.items()}
        every |= {f"path/{name}": config for name, config in ends.items()}
        tokens = ends["vector on tokens"]
        every |= {f"alone/{name}": change(tokens, **s) for name, s in ALONE.items()}
        return {name: with_optimizer(config, optimizer) for name, config in every.items()}


BASE = Config(TASK, FULL, Optimizer(), precision="fp32")
PAPER = Settings(BASE)
