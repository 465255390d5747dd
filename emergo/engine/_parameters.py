"""Parameters of trained models, out of the engine: unpadded, as safetensors, and back with the forward pass."""

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .._contract import Batch, Output, Tap
from .._errors import InputError
from .._files import atomic_write, regular_file
from .._json import parse_json
from .._random import fold_in, raw
from ._config import Run
from ._program import PROBED, arithmetic, products, user_key
from ._schedules import Tree, at_start, resolve, schedules_in, start_states


def log_steps(last: int, eval_every: int = 25) -> tuple[int, ...]:
    """The steps at which parameters are kept by default: 0, the first evaluation, and from there twice as many each time."""
    doubled = itertools.takewhile(lambda step: step < last, (eval_every * 2**i for i in itertools.count()))
    return (0, *doubled, last)


class Trained(NamedTuple):
    """A model as it was at a step of a run.

    >>> import jax
    >>> run = em.Run(em.Config(em.SingleLocation(length=4, dim=2), em.Transformer(layers=1, heads=2, width=4)), seed=0)
    >>> trained = em.Trained(run, 0, run.config.model.init(jax.random.key(0), run.config.task.spec))
    >>> trained.test(3).value.shape, trained.attention_maps(3).shape
    ((3, 2), (1, 3, 2, 4, 4))
    """

    run: Run
    step: int
    params: PyTree

    def __repr__(self) -> str:
        count = sum(int(np.size(array)) for array in jax.tree.leaves(self.params))
        return f"Trained(run={self.run!r}, step={self.step}, params={count:,} numbers)"

    def forward(self, inputs: Array | Batch, reads: Sequence[str] = ()) -> Output:
        """The model's output on sequences, or on a batch where interventions look at more than these; `reads` names taps, whose
        values are in `taps` of it."""
        config, batch = self.run.config, inputs if isinstance(inputs, Batch) else Batch(inputs, None)
        with arithmetic(config.precision), products("fp32"):
            model, interventions = self.now((config.model, config.interventions))
            tap = Tap(config.task.spec, step=jnp.int32(self.step), changes=interventions, reads=reads, batch=batch)
            output = model.apply(jax.tree.map(jnp.asarray, self.params), batch.inputs, tap)
        return output._replace(taps=tap.taken)

    def batch(self, n: int = 8, training: bool = False) -> Batch:
        """The first sequences of the run's test set; of a task whose draws depend on their number, some of its distribution.
        With `training`, sequences of the distribution that it trains on at this step, none of which it has trained on."""
        if n < 1:
            raise InputError(f"n must be at least 1, got {n}")
        key, task = raw(jax.random.key(self.run.seed)), self.run.config.task
        with arithmetic(self.run.config.precision):
            if training:
                return self.now(task).batch(user_key(fold_in(fold_in(key, 2), PROBED)), n, self.truth)
            return self.now(task.at_test()).batch(user_key(fold_in(key, 3)), n, self.truth)

    @property
    def truth(self) -> PyTree:
        """What the run has to find."""
        with arithmetic(self.run.config.precision):
            return at_start(self.run.config.task).truth(user_key(fold_in(raw(jax.random.key(self.run.seed)), 0)))

    def now(self, tree: Tree) -> Tree:
        """Parts of the config with the numbers that their schedules have at this step."""
        for schedule in schedules_in(tree):
            if schedule.metrics():
                raise InputError(f"{schedule!r} reacts to what the run has measured, which is not kept with its parameters")
        return resolve(tree, self.step, start_states(tree))

    def test(self, n: int = 8, reads: Sequence[str] = ()) -> Output:
        """The output on the run's test set."""
        return self.forward(self.batch(n), reads)

    def attention_maps(self, n: int = 8) -> Float[Array, "layers n heads queries length"]:
        """The attention patterns of all layers on the run's test set."""
        taps = self.test(n, ["layers.*.pattern"]).taps or {}
        if not taps:
            raise InputError(f"{type(self.run.config.model).__name__} has no taps called layers.*.pattern")
        return jnp.stack([taps[name] for name in sorted(taps, key=lambda name: int(name.split(".")[1]))])


def unpadded(run: Run, params: PyTree) -> PyTree:
    """The parameters of a run without the zeros that padding has put at the ends of their axes."""
    return jax.tree.map(lambda x, own: x[tuple(slice(0, size) for size in own.shape)], params, _shapes(run))


def _shapes(run: Run) -> PyTree:
    return jax.eval_shape(lambda: run.config.model.init(user_key(jnp.zeros(2, jnp.uint32)), run.config.task.spec))


def _names(tree: PyTree) -> list[str]:
    """A name for every array: the path to it, such as `layers.0.query.weight`."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    return [jax.tree_util.keystr(path, simple=True, separator=".") or "params" for path in paths]


def save_parameters(path: Path, trained: Trained) -> None:
    """Writes parameters as a safetensors file, with the run as plain data beside them."""
    from safetensors.numpy import save

    leaves = map(np.ascontiguousarray, jax.tree.leaves(trained.params))
    arrays = dict(zip(_names(trained.params), leaves, strict=True))
    about = {"run": json.dumps(trained.run.describe()), "step": str(trained.step)}
    atomic_write(path, save(arrays, about | {"checksum": _checksum(arrays, about)}))


def _checksum(arrays: Mapping[str, np.ndarray], about: Mapping[str, str]) -> str:
    """A hash of parameters, of their names and shapes, and of the run and step that they belong to."""
    hashed = hashlib.sha256(json.dumps([about.get("run"), about.get("step")]).encode())
    for name, array in sorted(arrays.items()):
        hashed.update(json.dumps([name, str(array.dtype), list(array.shape)]).encode() + np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()


def load_parameters(path: Path | str, run: Run, sealed: bool = False) -> Trained:
    """Reads what [`emergo.engine.save_parameters`][] wrote; parameters of another run are refused, and `sealed` says that those
    without a checksum are, too."""
    from safetensors import SafetensorError, safe_open

    try:
        regular_file(path)
        with safe_open(path, "numpy") as file:
            about: Mapping[str, str] = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        described, step = parse_json(about.get("run", "null").encode()), int(about.get("step", "-1"))
        if (sealed or "checksum" in about) and about.get("checksum") != _checksum(arrays, about):
            raise ValueError("its checksum is not that of its content: it was damaged or changed")
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(f"{path}: cannot be read as parameters ({' '.join(str(error).split())})") from None
    if described != json.loads(json.dumps(run.describe())):
        raise InputError(f"{path}: holds the parameters of another run than {run.identity}")
    shapes = _shapes(run)
    # In 64 bits a run starts from the parameters of 32 bits.
    wider = {np.dtype("float32"): np.dtype("float64")} if run.config.precision == "fp64" else {}
    names, expected = _names(shapes), [(leaf.shape, wider.get(leaf.dtype, leaf.dtype)) for leaf in jax.tree.leaves(shapes)]
    if sorted(arrays) != sorted(names) or [(arrays[name].shape, arrays[name].dtype) for name in names] != expected:
        raise InputError(f"{path}: does not hold the parameters of {type(run.config.model).__name__}")
    with arithmetic(run.config.precision):
        params = jax.tree.unflatten(jax.tree.structure(shapes), [jnp.asarray(arrays[name]) for name in names])
    return Trained(run, step, params)
