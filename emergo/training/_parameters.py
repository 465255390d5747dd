"""Parameters of trained models: without padding, saved as safetensors, and ready for a forward
pass."""

import fnmatch
import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ..core.contract import Batch, Output, Tap
from ..core.errors import InputError, naming, unknown
from ..core.files import atomic_write, half_of_memory, regular_file
from ..core.json import parse_json
from ..core.random import fold_in, raw
from ._config import Run
from ._interventions import Patch
from ._program import Program, Slot, arithmetic, held_out, products, shared_data, start, user_key
from ._schedules import (
    Tree,
    at_start,
    resolve,
    schedules_by_name,
    schedules_in,
    start_states,
)
from ._start import STATE, Start, arrays_of, named_leaves, read_start, start_from


def log_steps(last: int, eval_every: int = 25) -> tuple[int, ...]:
    """Return the steps at which parameters are kept by default: 0, `eval_every` and doublings."""
    doubled = (eval_every * 2**i for i in itertools.count())
    return (0, *itertools.takewhile(lambda step: step < last, doubled), last)


class Trained(NamedTuple):
    """The model of a run at a step of its training.

    >>> import jax
    >>> task, model = em.SingleLocation(length=4, dim=2), em.Transformer(1, heads=2, width=4)
    >>> run = em.Run(em.Config(task, model), seed=0)
    >>> trained = em.Trained(run, 0, model.init(jax.random.key(0), task.spec))
    >>> trained.attention_maps(3).shape
    (1, 3, 2, 4, 4)
    """

    run: Run
    step: int
    params: PyTree
    state: Mapping[str, np.ndarray] = {}
    """The rest of the state of training at the end of the run: see [`emergo.resume`][]."""

    def forward(
        self, inputs: Array | Batch, reads: str | Sequence[str] = (), changes: Sequence[Any] = ()
    ) -> Output:
        """Compute the output of the model.

        **Arguments:**

        - `inputs`: sequences, or a batch if interventions read more than the sequences.
        - `reads`: names of taps, with `*` as a wildcard, whose values are returned in `taps`.
        - `changes`: interventions that act after those of the run.
        """
        names = [reads] if isinstance(reads, str) else reads
        output, taken = self._apply(inputs, names, changes)
        for pattern in names:
            if not fnmatch.filter(taken, pattern):
                _, every = self._apply(inputs, ["*"])
                raise unknown(f"tap of {type(self.run.config.model).__name__}", pattern, every)
        return output._replace(taps=taken)

    def _apply(
        self, inputs: Array | Batch, reads: Sequence[str] = (), changes: Sequence[Any] = ()
    ) -> tuple[Output, dict[str, Array]]:
        """Return the output and the values at taps; unknown names of taps are left out."""
        config = self.run.config
        batch = inputs if isinstance(inputs, Batch) else Batch(inputs, None)
        where = f"{type(config.model).__name__}.apply"
        with arithmetic(config.precision), products("fp32"), naming(where):
            model, interventions = self._now((config.model, config.interventions))
            tap = Tap(
                config.task.spec,
                step=jnp.int32(self.step),
                changes=(*interventions, *changes),
                reads=reads,
                batch=batch,
            )
            output = model.apply(jax.tree.map(jnp.asarray, self.params), batch.inputs, tap)
            value = output.value
            if output.features is not None and output.readout is not None:
                value = output.readout(output.features)
        return output._replace(value=value), tap.taken

    def patched(
        self,
        inputs: Array | Batch,
        source: Array | Batch,
        taps: str | Sequence[str],
        head: int | None = None,
        position: int | None = None,
    ) -> Output:
        """Compute the output on `inputs` with the values at some taps from `source`.

        This is activation patching. If the output moves to that on `source`, what differs between
        the two inputs passes through these taps.

        **Arguments:**

        - `inputs`, `source`: as many sequences each.
        - `taps`: names of taps, such as `"layers.0.mixed"`, with `*` as a wildcard.
        - `head`, `position`: patch one head or one position; None: all.
        """
        values = self.forward(source, taps).taps or {}
        return self.forward(inputs, changes=[Patch(values, head, position)])

    def logit_lens(self, inputs: Array | Batch) -> Float[Array, "depths n *outputs"]:
        """Compute the output as if the model ended after the embedding, after layer 0, and so on.

        Every entry is read out like the last residual stream, with the final norm, if any.
        The last entry is the output of the model.
        """
        _, taps = self._apply(inputs, ["embed", "layers.*.output"])
        names = sorted(taps, key=_layer)
        if len({taps[name].shape for name in names}) != 1:
            model = type(self.run.config.model).__name__
            raise InputError(f"logit_lens needs a residual stream, which {model} does not have")
        streams = [self.forward(inputs, changes=[Patch({names[-1]: taps[n]})]) for n in names]
        return jnp.stack([output.value for output in streams])

    def to_torch(self) -> Any:
        """Return the model as a plain `torch.nn.Module` that holds the trained parameters.

        It maps the same inputs to the same outputs, without dropout. Needs PyTorch.
        """
        config = self.run.config
        model, interventions = self._now((config.model, config.interventions))
        active = [one for one in interventions if one.first <= self.step < one.until]
        if active:
            raise InputError(
                f"to_torch: at step {self.step} the intervention {active[0]!r} is active, which a "
                f"PyTorch module would not have"
            )
        return model.to_torch(self.params, config.task.spec)

    def batch(self, n: int = 8) -> Batch:
        """Return the first `n` sequences of the run's test set.

        If the draws of a task depend on their number, these are other sequences of the same
        distribution.
        """
        config = self.run.config
        task = config.task
        with arithmetic(config.precision):
            if task.finite or task.has_corpus:
                slot = start(Program.of(config), self.run)._replace(shared=shared_data(task))
                whole = held_out(Program.of(config), slot, self._now(task.at_test()))
                return jax.tree.map(lambda part: part[:n], whole)
            truth = at_start(task).truth(self._key(0))
            return self._now(task.at_test()).batch(self._key(3), n, truth)

    def sample(
        self, prompt: str = "", tokens: int = 200, temperature: float = 1.0, seed: int = 0
    ) -> str:
        """Continue a text, token by token.

        The model sees at most as many tokens as in training, the last ones.

        **Arguments:**

        - `prompt`: the text to continue; if it is empty, the start of a document.
        - `tokens`: number of tokens to draw.
        - `temperature`: divides the logits; 0 chooses the most likely token.
        - `seed`: of the random draws.

        **Returns:** the continuation, without the prompt.
        """
        config = self.run.config
        task = config.task
        if tokens < 1 or not 0 <= temperature < math.inf:
            raise InputError(
                f"sample needs at least 1 token and a temperature of 0 or more, got {tokens} and "
                f"{temperature:g}"
            )
        length = task.spec.length
        given = (task.encode(prompt) or [0])[-length:]
        window = jnp.zeros(length, jnp.int32).at[: len(given)].set(jnp.array(given))
        with arithmetic(config.precision), products("fp32"):
            key = jax.random.key(seed)
            drawn = jax.jit(self._drawn, static_argnums=(2, 3))(
                window, jnp.int32(len(given)), tokens, temperature, key
            )
        return task.decode(np.asarray(drawn).tolist())

    def _drawn(
        self,
        window: Int[Array, " length"],
        filled: Int[Array, ""],
        tokens: int,
        temperature: float,
        key: Array,
    ) -> Int[Array, " tokens"]:
        """Draw tokens that continue those at the start of a window."""

        def draw(carry: tuple[Array, Array], key: Array) -> tuple[tuple[Array, Array], Array]:
            window, filled = carry
            # What follows is not seen, because the model does not look ahead.
            logits = self.forward(window[None]).value[0, filled - 1]
            if temperature == 0:
                token = jnp.argmax(logits)
            else:
                token = jax.random.categorical(key, logits / temperature)
            full = filled == len(window)
            window = jnp.where(full, jnp.roll(window, -1), window)
            filled = jnp.where(full, filled, filled + 1)
            return (window.at[filled - 1].set(token), filled), token

        return jax.lax.scan(draw, (window, filled), jax.random.split(key, tokens))[1]

    def _key(self, number: int) -> Array:
        return user_key(fold_in(raw(jax.random.key(self.run.seed)), number))

    def _now(self, tree: Tree) -> Tree:
        """Resolve the schedules in parts of the config at this step."""
        for schedule in schedules_in(tree):
            if schedule.metrics():
                raise InputError(
                    f"{schedule!r} reacts to the run's measurements, which are not kept with its "
                    f"parameters"
                )
        return resolve(tree, self.step, start_states(tree))

    def attention_maps(self, n: int = 8) -> Float[Array, "layers n heads queries length"]:
        """Compute the attention patterns of all layers on `n` sequences of the test set."""
        taps = self.forward(self.batch(n), ["layers.*.pattern"]).taps or {}
        return jnp.stack([taps[name] for name in sorted(taps, key=_layer)])


def _layer(tap: str) -> int:
    """Return the layer in the name of a tap; -1 for none."""
    return int(tap.split(".")[1]) if "." in tap else -1


def snapshot_of(run: Run, slot: Slot, with_state: bool) -> Trained:
    """Return the model of a run from its slot, without padding.

    **Arguments:**

    - `with_state`: whether to include the state of the optimizer and of schedules, and the step.
    """
    params = _unpadded(slot.params, _shapes(run))
    state = {}
    if with_state:
        with arithmetic(run.config.precision):
            own = named_leaves(_state(jax.eval_shape(lambda: start(Program.of(run.config), run))))
        state = {
            f"{STATE}{name}": _unpadded(leaf, own[name])
            for name, leaf in named_leaves(_state(slot)).items()
        }
    return Trained(run, int(slot.step), params, state)


def _state(slot: Slot) -> dict[str, PyTree]:
    """Return what else than the parameters changes during training."""
    states = schedules_by_name(slot.varying, slot.schedule_states)
    schedules = {name: state for name, (_, state) in states.items()}
    return {"optimizer": slot.opt_state, "schedules": schedules, "step": slot.step}


def _unpadded(tree: PyTree, shapes: PyTree) -> PyTree:
    """Remove the zeros that padding has added at the ends of axes."""
    return jax.tree.map(
        lambda x, own: np.asarray(x[tuple(slice(0, size) for size in own.shape)]), tree, shapes
    )


def warm_start(slot: Slot, run: Run) -> Slot:
    """Return the first state of a run with the parameters that its config starts from.

    A resumed run also gets the state of the optimizer, the states of those schedules that were
    there before, and the step.
    """
    begin = run.config.start
    assert begin is not None
    arrays = arrays_of(begin.of(run.seed))
    check_start(arrays, named_leaves(_shapes(run)), f"start of {type(run.config.model).__name__}")
    slot = slot._replace(params=_filled(slot.params, arrays))
    if not begin.resume:
        return slot
    state = {name.removeprefix(STATE): array for name, array in arrays.items()}
    own = named_leaves(_state(jax.eval_shape(lambda: start(Program.of(run.config), run))))
    kept = {n: x for n, x in own.items() if n in state or not n.startswith("schedules.")}
    check_start(state, kept, "the optimizer of start; leave out `resume` to begin with a new one,")
    for name in state:
        if name.startswith("optimizer.") and name not in own:
            raise InputError(
                f"the optimizer of start has {name}, which {run.config.optimizer.label} does not "
                f"have; leave out `resume` to begin with a new one"
            )
    if int(state["step"]) >= run.config.steps:
        raise InputError(
            f"start continues after step {int(state['step'])}, and this run ends at step "
            f"{run.config.steps}; steps counts from the beginning of the first training"
        )
    names = list(schedules_by_name(slot.varying, slot.schedule_states))
    filled = _filled(_state(slot), state)
    return slot._replace(
        opt_state=filled["optimizer"],
        schedule_states=tuple(filled["schedules"][name] for name in names),
        step=filled["step"],
    )


def check_start(arrays: Mapping[str, Any], wanted: Mapping[str, Any], where: str) -> None:
    """Raise an `InputError` if arrays do not have these names and shapes."""
    for name, own in wanted.items():
        shape = list(own.shape)
        if name not in arrays:
            raise InputError(f"{where} has no {name}, which must have shape {shape}")
        if list(arrays[name].shape) != shape:
            raise InputError(
                f"{where} has {name} of shape {list(arrays[name].shape)}, and this run needs "
                f"{shape}"
            )


def _filled(tree: PyTree, arrays: Mapping[str, np.ndarray]) -> PyTree:
    """Replace the leaves of a pytree by arrays of their names, with zeros as padding."""

    def fill(name: str, leaf: Any) -> Any:
        if name not in arrays:
            return leaf
        whole = np.zeros(leaf.shape, leaf.dtype)
        whole[tuple(slice(0, size) for size in arrays[name].shape)] = arrays[name]
        return whole

    filled = [fill(name, leaf) for name, leaf in named_leaves(tree).items()]
    return jax.tree.unflatten(jax.tree.structure(tree), filled)


def resume(source: Any) -> Start:
    """Continue the training of runs instead of only starting from their parameters.

    The state of the optimizer and of schedules and the step are restored as well. With the same
    task, model, optimizer and seed, the parameters are bit for bit those of a run that never
    stopped. `steps` counts from the beginning of the first training.

    **Arguments:**

    - `source`: a `Trained` model, a file of parameters, or the runs of one cell, of which each
      seed continues its own.

    >>> em.resume("mine")
    Traceback (most recent call last):
    emergo.core.errors.InputError: mine: cannot be read as parameters (No such file or directory)
    """
    return as_start(source, resuming=True)


def as_start(source: Any, resuming: bool = False) -> Start:
    """Return the start of runs from a trained model, models by seed, or a file of parameters.

    A method `trained()` of the source, as runs have it, returns models by seed.
    """
    if isinstance(source, Start):
        return source.replace(resume=True) if resuming else source
    if hasattr(source, "trained"):
        source = source.trained()
    if isinstance(source, Trained):
        return start_from(_arrays(source), resuming)
    if isinstance(source, str | Path):
        return read_start(source, resuming)
    if isinstance(source, Mapping) and source and all(map(_is_of_seed, source.items())):
        starts = {seed: as_start(one, resuming) for seed, one in sorted(source.items())}
        return Start(by_seed=tuple((s, one.digest) for s, one in starts.items()), resume=resuming)
    raise InputError(
        f"start must be a trained model, trained models by seed, runs or a file, got {source!r}"
    )


def _is_of_seed(pair: tuple[Any, Any]) -> bool:
    seed, one = pair
    return isinstance(seed, int) and isinstance(one, Trained)


def _arrays(trained: Trained) -> dict[str, np.ndarray]:
    return {n: np.asarray(x) for n, x in named_leaves(trained.params).items()} | dict(trained.state)


def _shapes(run: Run) -> PyTree:
    return jax.eval_shape(
        lambda: run.config.model.init(user_key(jnp.zeros(2, jnp.uint32)), run.config.task.spec)
    )


def save_parameters(path: Path, trained: Trained) -> None:
    """Write parameters as a safetensors file, with a description of the run in its metadata."""
    from safetensors.numpy import save

    arrays = {name: np.asarray(x, order="C") for name, x in _arrays(trained).items()}
    about = {"run": json.dumps(trained.run.describe()), "step": str(trained.step)}
    atomic_write(path, save(arrays, about | {"checksum": _checksum(arrays, about)}))


def _checksum(arrays: Mapping[str, np.ndarray], about: Mapping[str, str]) -> str:
    """Hash parameters, their names and shapes, and the run and step that they belong to."""
    hashed = hashlib.sha256(json.dumps([about.get("run"), about.get("step")]).encode())
    for name, array in sorted(arrays.items()):
        header = json.dumps([name, str(array.dtype), list(array.shape)])
        hashed.update(header.encode() + np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()


def load_parameters(path: Path | str, run: Run, sealed: bool = False) -> Trained:
    """Read a file written by [`emergo.training.save_parameters`][].

    **Arguments:**

    - `run`: the run that the parameters must belong to.
    - `sealed`: whether the file must have a checksum.
    """
    from safetensors import SafetensorError, safe_open

    own = _shapes(run)
    shapes = named_leaves(own)
    # An fp64 run starts from the parameters of an fp32 run, so `init` has the smaller type.
    wider = {np.dtype("float32"): np.dtype("float64")} if run.config.precision == "fp64" else {}
    expected = {name: (x.shape, wider.get(x.dtype, x.dtype)) for name, x in shapes.items()}
    try:
        regular_file(path, half_of_memory())
        with safe_open(path, "numpy") as file:
            about: Mapping[str, str] = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        described = parse_json(about.get("run", "null").encode())
        step = int(about.get("step", "-1"))
        if (sealed or "checksum" in about) and about.get("checksum") != _checksum(arrays, about):
            raise ValueError("its content does not have its checksum: it was damaged or changed")
        if described != json.loads(json.dumps(run.describe())):
            raise ValueError(f"it holds the parameters of another run than {run.identity}")
        state = {name: x for name, x in arrays.items() if name.startswith(STATE)}
        arrays = {name: x for name, x in arrays.items() if name not in state}
        if expected != {name: (x.shape, x.dtype) for name, x in arrays.items()}:
            raise ValueError("its arrays do not have the shapes of the model")
    except (OSError, ValueError, SafetensorError) as error:
        why = " ".join(str(error).split())
        raise InputError(f"{path}: cannot be read as parameters ({why})") from None
    with arithmetic(run.config.precision):
        leaves = [jnp.asarray(arrays[name]) for name in shapes]
    return Trained(run, step, jax.tree.unflatten(jax.tree.structure(own), leaves), state)
