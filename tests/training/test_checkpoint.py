"""Interrupts, deadlines and checkpoints: nothing is lost, and unreadable files are named."""

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from emergo.core.errors import InputError
from emergo.training._checkpoint import checkpoints_in, previous, read_arrays

from .helpers import Interrupt, alike, identical
from .own import clock, run_of, signs
from .untyped import CheckpointError, Optimizer, OutOfTime, train

RUNS = [run_of(seed, steps=steps) for seed, steps in enumerate((12, 30, 20, 35, 16))]


def interrupt(folder, after, runs=RUNS, **options):
    """Train with Ctrl-C after a number of chunks; return the checkpoint."""
    options = {"n_parallel": 2, "checkpoint": folder, "progress": Interrupt(after), **options}
    with pytest.raises(KeyboardInterrupt):
        train(runs, **options)
    return min(folder.iterdir(), key=lambda path: len(path.name))


def resume(folder, expected, **options):
    """Continue, require bitwise these results, and return the number of chunks."""
    chunks = []
    runs = [result.run for result in expected]
    options = {"n_parallel": 2, "checkpoint": folder, "progress": chunks.append, **options}
    for one, two in zip(train(runs, **options), expected, strict=True):
        identical(one, two)
    assert list(folder.iterdir()) == []
    return len(chunks)


@pytest.fixture(scope="module")
def together():
    """The results of all runs in two slots, and the progress."""
    progress = []
    return train(RUNS, n_parallel=2, progress=progress.append), progress


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A checkpoint of all runs after their first chunk."""
    return interrupt(tmp_path_factory.mktemp("interrupted"), 1)


@pytest.mark.parametrize("after", [1, 4])
def test_a_call_continues_after_an_interrupt(together, tmp_path, after):
    """Before and after runs have ended. The results are bitwise equal."""
    file = interrupt(tmp_path, after)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert file.suffix == ".npz"
    ended = []
    chunks = resume(tmp_path, together[0], on_end=ended.append)
    assert chunks == len(together[1]) - after
    assert len(ended) == len(RUNS)


def test_a_failed_run_is_saved_before_its_next_evaluation(tmp_path):
    """The sum of its losses is NaN then. It starts later than its neighbour, so chunks end between
    its evaluations."""
    runs = [
        run_of(0, steps=3),
        run_of(1, steps=30),
        run_of(2, steps=30, optimizer__learning_rate=1e30),
    ]
    whole = train(runs, n_parallel=2)
    assert [result.state for result in whole] == ["trained", "trained", "failed"]
    meta = json.loads(read_arrays(interrupt(tmp_path, 2, runs))["meta"].tobytes())
    assert None in [entry["total"] for entry in meta["stacks"][0] if entry]
    resume(tmp_path, whole)


def test_fewer_devices_continue_with_the_stacks_of_more(together, tmp_path):
    (device,) = jax.devices("cpu")[:1]
    file = interrupt(tmp_path, 2, n_parallel=1, devices=[device, device])
    assert len(json.loads(read_arrays(file)["meta"].tobytes())["stacks"]) == 2
    begun = []
    resumed = train(
        RUNS, n_parallel=1, devices=[device], checkpoint=tmp_path, progress=begun.append
    )
    assert min(step for _, step, _ in begun[0].running) > 5  # they do not start again
    for one, two in zip(resumed, together[0], strict=True):
        alike(one, two)


def test_changed_probes_are_named(tmp_path):
    """The probes have the same name, so only their curves reveal the change."""

    def probe_of(name):
        def probe(params, output, batch, truth, step):
            return {name: jnp.float32(1)}

        return probe

    interrupt(tmp_path, 2, [run_of(0, probes=(probe_of("before"),))])
    with pytest.raises(InputError, match="the curves after, before begin or end at step 10"):
        train([run_of(0, probes=(probe_of("after"),))], checkpoint=tmp_path)


def test_checkpoints_are_written_while_training(tmp_path):
    """After every chunk, if the interval is zero."""
    files = []
    train(
        RUNS[:2],
        n_parallel=2,
        checkpoint=tmp_path,
        checkpoint_seconds=0.0,
        progress=lambda _: files.append(len(list(tmp_path.iterdir()))),
    )
    assert files[0] == 0
    assert files[1] == 1
    assert set(files[2:]) == {2}  # the last one, and the one before
    assert list(tmp_path.iterdir()) == []


def test_a_deadline_writes_a_checkpoint(together, tmp_path):
    with pytest.raises(OutOfTime):
        train(RUNS, n_parallel=2, checkpoint=tmp_path, deadline=time.monotonic())
    assert resume(tmp_path, together[0]) == len(together[1]) - 1


@pytest.mark.parametrize("damage", ["cut", "text", "empty", "no meta"])
def test_an_unreadable_checkpoint_is_named(tmp_path, damage):
    file = interrupt(tmp_path, 1)
    if damage == "no meta":
        np.savez(file, other=np.zeros(3))
    else:
        file.write_bytes(
            {"cut": file.read_bytes()[:-200], "text": b"not a checkpoint", "empty": b""}[damage]
        )
    with pytest.raises(CheckpointError, match=file.name) as error:
        train(RUNS, n_parallel=2, checkpoint=tmp_path)
    assert error.value.path == file
    assert issubclass(CheckpointError, InputError)


def write(file, content):
    """Write a checkpoint with the right checksum."""
    checksum = hashlib.sha256(content).hexdigest().encode()
    file.write_bytes(b"emergo checkpoint " + checksum + b"\n" + content)


HOSTILE = {
    "a missing slot": lambda arrays: {
        name: array for name, array in arrays.items() if name != "slots/0/1"
    },
    "another shape": lambda arrays: arrays | {"slots/0/0": np.zeros((2, 77), np.float32)},
    "another type": lambda arrays: arrays | {"slots/0/0": arrays["slots/0/0"].astype(np.float64)},
    "other sizes": lambda arrays: arrays | {"meta": other_meta(arrays, sizes={"dim": 10**9})},
    "no sizes": lambda arrays: arrays | {"meta": other_meta(arrays, sizes=3)},
    "no queue": lambda arrays: arrays | {"meta": other_meta(arrays, queue=3)},
    "curves of two lengths": lambda arrays: arrays | {"curves/0/0/loss": np.zeros(99, np.float32)},
    "no steps": lambda arrays: {
        name: array for name, array in arrays.items() if name != "curves/0/0/step"
    },
    "objects": lambda arrays: arrays | {"slots/0/0": np.array([{"a": 1}], object)},
}


def other_meta(arrays, **changes):
    return np.frombuffer(
        json.dumps(json.loads(arrays["meta"].tobytes()) | changes).encode(), np.uint8
    )


@pytest.mark.parametrize("case", HOSTILE)
def test_arrays_that_do_not_fit_the_program_are_rejected(interrupted, tmp_path, case):
    """The checksum is right: the file was written on purpose, not damaged."""
    buffer = io.BytesIO()
    np.savez(buffer, **HOSTILE[case](read_arrays(interrupted)))
    write(tmp_path / interrupted.name, buffer.getvalue())
    with pytest.raises(CheckpointError, match=interrupted.name):
        train(RUNS, n_parallel=2, checkpoint=tmp_path)


def test_an_array_may_not_be_larger_than_the_file(interrupted, tmp_path):
    """An array of 40 TB is declared in a file of some kilobytes."""
    content = io.BytesIO()
    array = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        array, {"descr": "<f4", "fortran_order": False, "shape": (10**13,)}
    )
    with zipfile.ZipFile(content, "w") as packed:
        packed.writestr("meta.npy", array.getvalue() + bytes(12))
    write(tmp_path / interrupted.name, content.getvalue())
    with pytest.raises(CheckpointError, match="does not have the size that it declares"):
        train(RUNS, n_parallel=2, checkpoint=tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "loop", "folder", "huge"])
def test_only_regular_files_are_read(interrupted, tmp_path, kind):
    file = tmp_path / interrupted.name
    make = {
        "pipe": os.mkfifo,
        "loop": lambda path: path.symlink_to(path.name),
        "folder": os.mkdir,
        "huge": Path.touch,
    }
    make[kind](file)
    if kind == "huge":
        os.truncate(file, 2**43)
    with pytest.raises(CheckpointError, match=file.name):
        train(RUNS, n_parallel=2, checkpoint=tmp_path)


def test_the_previous_checkpoint_is_used_if_the_last_is_removed(together, tmp_path):
    interrupt(tmp_path, 4, checkpoint_seconds=0.0)
    last, before = checkpoints_in(tmp_path, "*")
    assert before == previous(last)
    last.write_bytes(last.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match=last.name):
        train(RUNS, n_parallel=2, checkpoint=tmp_path)
    last.unlink()
    assert resume(tmp_path, together[0]) == len(together[1]) - 3


def test_a_checkpoint_of_other_runs_is_ignored(together, tmp_path):
    interrupt(tmp_path, 1, RUNS[:2])
    results = train(RUNS, n_parallel=2, checkpoint=tmp_path)
    for one, two in zip(results, together[0], strict=True):
        identical(one, two)


def test_ended_runs_may_be_left_out_of_the_next_call(together, tmp_path):
    """A store keeps their results."""
    ended = []
    interrupt(tmp_path, 5, on_end=lambda result: ended.append(result.run))
    rest = [result for result in together[0] if result.run not in ended]
    assert 0 < len(rest) < len(RUNS)
    assert resume(tmp_path, rest) == len(together[1]) - 5


OTHER_PROCESS = """
import sys
from emergo.training import Clamp, Optimizer, train
from tests.training.helpers import Interrupt
from tests.training.own import clock, run_of, signs

signs = Optimizer(signs, 0.02)
runs = [run_of(seed, optimizer=signs, probes=(clock,), steps=20) for seed in range(2)]
try:
    train(runs, n_parallel=2, checkpoint=sys.argv[1], progress=Interrupt(2))
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.slow
def test_another_process_continues_with_functions_of_the_user(tmp_path, request):
    """Functions have other addresses there, and the same names."""
    command = [sys.executable, "-c", OTHER_PROCESS, str(tmp_path)]
    done = subprocess.run(command, cwd=request.config.rootpath, capture_output=True, text=True)
    assert done.stdout.strip() == "interrupted", done.stderr[-2000:]
    runs = [
        run_of(seed, optimizer=Optimizer(signs, 0.02), probes=(clock,), steps=20)
        for seed in range(2)
    ]
    progress = []
    train(runs, n_parallel=2, checkpoint=tmp_path, progress=progress.append)
    assert progress[-1].steps == 2 * 20 - 2 * 10
