"""Interrupts, deadlines and checkpoints: nothing is lost, and what cannot be read is named."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from emergo._errors import InputError

from .helpers import Interrupt, identical
from .own import clock, run_of, signs
from .untyped import CheckpointError, Optimizer, OutOfTime, train

RUNS = [run_of(seed, steps=steps) for seed, steps in enumerate((12, 30, 20, 35, 16))]


@pytest.fixture(scope="module")
def together():
    """All runs in two slots, which are filled again as runs end, and the progress."""
    progress = []
    return train(RUNS, n_parallel=2, progress=progress.append), progress


@pytest.mark.parametrize("after", [1, 4])
def test_an_interrupted_call_goes_on_where_it_was(together, tmp_path, after):
    """Bit for bit, since it is the same program on the same numbers; after some runs have ended, and before any has."""
    with pytest.raises(KeyboardInterrupt):
        train(RUNS, n_parallel=2, checkpoint=tmp_path, progress=Interrupt(after))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    (file,) = tmp_path.iterdir()
    assert file.suffix == ".npz"
    progress, ended = [], []
    resumed = train(
        RUNS, n_parallel=2, checkpoint=tmp_path, progress=progress.append, on_end=lambda result: ended.append(result.run)
    )
    for one, two in zip(resumed, together[0], strict=True):
        identical(one, two)
    assert list(tmp_path.iterdir()) == []
    assert len(progress) == len(together[1]) - after
    assert len(ended) == len(RUNS)


def test_checkpoints_are_written_on_the_way(tmp_path):
    """Without an interrupt, at least as often as asked; here after every chunk."""
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


def test_a_deadline_keeps_what_was_trained(together, tmp_path):
    with pytest.raises(OutOfTime):
        train(RUNS, n_parallel=2, checkpoint=tmp_path, deadline=time.monotonic())
    assert len(list(tmp_path.iterdir())) == 1
    progress = []
    for one, two in zip(train(RUNS, n_parallel=2, checkpoint=tmp_path, progress=progress.append), together[0], strict=True):
        identical(one, two)
    assert len(progress) == len(together[1]) - 1


@pytest.mark.parametrize("damage", ["cut", "text", "empty", "no meta"])
def test_a_checkpoint_that_cannot_be_read_is_named(tmp_path, damage):
    with pytest.raises(KeyboardInterrupt):
        train(RUNS, n_parallel=2, checkpoint=tmp_path, progress=Interrupt(1))
    (file,) = tmp_path.iterdir()
    if damage == "no meta":
        np.savez(file, other=np.zeros(3))
    else:
        file.write_bytes({"cut": file.read_bytes()[:-200], "text": b"not a checkpoint", "empty": b""}[damage])
    with pytest.raises(CheckpointError, match=file.name) as error:
        train(RUNS, n_parallel=2, checkpoint=tmp_path)
    assert error.value.path == file
    assert issubclass(CheckpointError, InputError)


def test_a_checkpoint_of_other_runs_is_not_used(together, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(RUNS[:2], n_parallel=2, checkpoint=tmp_path, progress=Interrupt(1))
    progress = []
    results = train(RUNS, n_parallel=2, checkpoint=tmp_path, progress=progress.append)
    for one, two in zip(results, together[0], strict=True):
        identical(one, two)
    assert len(progress) == len(together[1])


def test_runs_that_had_ended_need_not_be_asked_for_again(together, tmp_path):
    """A store keeps them: the next call asks for the rest."""
    ended = []
    with pytest.raises(KeyboardInterrupt):
        train(RUNS, n_parallel=2, checkpoint=tmp_path, progress=Interrupt(5), on_end=lambda result: ended.append(result.run))
    rest = [result for result in together[0] if result.run not in ended]
    assert 0 < len(rest) < len(RUNS)
    progress = []
    again = train([result.run for result in rest], n_parallel=2, checkpoint=tmp_path, progress=progress.append)
    for one, two in zip(again, rest, strict=True):
        identical(one, two)
    assert len(progress) == len(together[1]) - 5


OTHER_PROCESS = """
import sys
from emergo.engine import Clamp, Optimizer, train
from tests.engine.helpers import Interrupt
from tests.engine.own import clock, run_of, signs

runs = [run_of(seed, optimizer=Optimizer(signs, 0.02), probes=(clock,), steps=20) for seed in range(2)]
try:
    train(runs, n_parallel=2, checkpoint=sys.argv[1], progress=Interrupt(2))
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.slow
def test_another_process_goes_on_with_functions_of_the_user(tmp_path, request):
    """Functions have other addresses there, and the same names."""
    command = [sys.executable, "-c", OTHER_PROCESS, str(tmp_path)]
    done = subprocess.run(command, cwd=request.config.rootpath, capture_output=True, text=True)
    assert done.stdout.strip() == "interrupted", done.stderr[-2000:]
    runs = [run_of(seed, optimizer=Optimizer(signs, 0.02), probes=(clock,), steps=20) for seed in range(2)]
    progress = []
    train(runs, n_parallel=2, checkpoint=tmp_path, progress=progress.append)
    assert progress[-1].steps == 2 * 20 - 2 * 10
