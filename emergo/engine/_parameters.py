"""Parameters of trained models, out of the engine: unpadded, as safetensors, and back with the forward pass."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._contract import Batch, Output, Tap
from .._errors import InputError
from .._random import fold_in, raw
from ._config import Run
from ._cost import next_evaluation
from ._program import Tree, arithmetic, products, user_key
from ._schedules import resolve, schedules_in, start_states


def log_steps(last: int, eval_every: int = 25) -> tuple[int, ...]:
    """The steps at which parameters are kept by default: 0, the first evaluation, and from there twice as many each time."""
    steps, step = [0], next_evaluation(0, eval_every)
    while step < last:
        steps.append(step)
        step *= 2
    return (*steps, last)


class Trained(NamedTuple):
    """A model as it was at a step of a run.

    ```python
    >>> task, model = em.SingleLocation(length=4, dim=2), em.Transformer(layers=1, heads=1, width=4, mlp=False)
    >>> adam = em.Optimizer("adam", learning_rate=0.02)
    >>> config = em.Config(task, model, adam, steps=50, batch=8, n_test=16, precision="fp32")
    >>> kept = []
    >>> _ = em.train([em.Run(config, 0)], keep=[0, 50], snapshot=lambda *snapshot: kept.append(em.Trained(*snapshot)))
    >>> [(trained.step, trained.test(3).value.shape) for trained in kept]
    [(0, (3, 2)), (25, (3, 2))]

    ```
    """

    run: Run
    step: int
    params: Any

    def forward(self, inputs: Array, reads: Sequence[str] = ()) -> Output:
        """The model's output; `reads` names taps, whose values are in `taps` of it."""
        config = self.run.config
        with arithmetic(config.precision), products("fp32"):
            model, interventions = self._now((config.model, config.interventions))
            tap = Tap(config.task.spec, step=jnp.int32(self.step), changes=interventions, reads=reads)
            output = model.apply(jax.tree.map(jnp.asarray, self.params), inputs, tap)
        return output._replace(taps=tap.taken)

    def batch(self, n: int = 8) -> Batch:
        """The first sequences of the run's test set; of a task whose draws depend on their number, some of its distribution."""
        key, task = raw(jax.random.key(self.run.seed)), self.run.config.task
        with arithmetic(self.run.config.precision):
            truth = resolve(task, 0, start_states(task)).truth(user_key(fold_in(key, 0)))
            return self._now(task.at_test()).batch(user_key(fold_in(key, 3)), n, truth)

    def _now(self, tree: Tree) -> Tree:
        """A part of the config with the numbers that its schedules have at this step."""
        for schedule in schedules_in(tree):
            if schedule.metrics():
                raise InputError(f"{schedule!r} reacts to what the run has measured, which is not kept with its parameters")
        return resolve(tree, self.step, start_states(tree))

    def test(self, n: int = 8, reads: Sequence[str] = ()) -> Output:
        """The output on the run's test set."""
        return self.forward(self.batch(n).inputs, reads)

    def attention_maps(self, n: int = 8) -> Float[Array, "layers n heads queries length"]:
        """The attention patterns of all layers on the run's test set."""
        taps = self.test(n, ["layers.*.pattern"]).taps or {}
        if not taps:
            raise InputError(f"{type(self.run.config.model).__name__} has no taps called layers.*.pattern")
        return jnp.stack([taps[name] for name in sorted(taps, key=lambda name: int(name.split(".")[1]))])


def unpadded(run: Run, params: Any) -> Any:
    """The parameters of a run without the zeros that padding has put at the ends of their axes."""
    shapes = _shapes(run)
    return jax.tree.map(lambda array, shape: array[tuple(slice(0, size) for size in shape.shape)], params, shapes)


def _shapes(run: Run) -> Any:
    key = user_key(jnp.zeros(2, jnp.uint32))
    return jax.eval_shape(lambda: run.config.model.init(key, run.config.task.spec))


def _names(tree: Any) -> list[str]:
    """A name for every array: the path to it, such as `layers.0.query.weight`."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    return [jax.tree_util.keystr(path, simple=True, separator=".") or "params" for path in paths]


def save_parameters(path: Path, trained: Trained) -> None:
    """Writes parameters as a safetensors file, with the run as plain data beside them."""
    from safetensors.numpy import save_file

    arrays = {n: np.ascontiguousarray(a) for n, a in zip(_names(trained.params), jax.tree.leaves(trained.params), strict=True)}
    save_file(arrays, path, {"run": json.dumps(trained.run.describe()), "step": str(trained.step)})


def load_parameters(path: Path | str, run: Run) -> Trained:
    """Reads parameters that a run has kept.

    **Arguments:**

    - `path`: a safetensors file that [`emergo.engine.save_parameters`][] wrote.
    - `run`: the run; the file says of which run it is, and another is refused.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            described: Mapping[str, str] = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: cannot be read as parameters ({error})") from None
    if json.loads(described.get("run", "null")) != json.loads(json.dumps(run.describe())):
        raise InputError(f"{path}: holds the parameters of another run than {run.identity}")
    shapes = _shapes(run)
    names = _names(shapes)
    if sorted(arrays) != sorted(names):
        raise InputError(f"{path}: does not hold the parameters of {type(run.config.model).__name__}")
    with arithmetic(run.config.precision):
        params = jax.tree.unflatten(jax.tree.structure(shapes), [jnp.asarray(arrays[name]) for name in names])
    return Trained(run, int(described["step"]), params)
