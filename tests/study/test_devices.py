"""All devices of a machine train one study, with the same results as one device."""

import itertools
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from .tiny import quiet, tiny

# Prints the seeds that each device held, and the outcomes.
SCRIPT = """
import collections, json, sys, tempfile
from emergo.training import _scheduler as scheduler
from tests.study.tiny import quiet, tiny

held, launch = collections.defaultdict(set), scheduler.DeviceStack.launch
def watched(stack, *arguments):
    held[stack.device.id] |= {tracked.run.seed for tracked in stack.tracked if tracked}
    return launch(stack, *arguments)
scheduler.DeviceStack.launch = watched

study = tiny(seeds=8, steps=400, threshold=0.3)
with tempfile.TemporaryDirectory() as folder:
    table = study.run(folder, progress=quiet, n_parallel=1).table.sort_values("seed")
outcomes = {name: table[name].tolist() for name in ("identity", "state", "plateau")}
print(json.dumps({"held": {str(k): sorted(v) for k, v in held.items()}, "outcomes": outcomes}))
"""


def run_on(devices, folder):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_study_uses_all_devices_and_has_the_results_of_one(request):
    study = tiny(seeds=8, steps=400, threshold=0.3)
    four = run_on(4, request.config.rootpath)
    assert sorted(four["held"]) == ["0", "1", "2", "3"]
    # Each run stays on one device.
    assert sorted(itertools.chain(*four["held"].values())) == list(range(8))
    one = study.run(progress=quiet).table.sort_values("seed")  # this process has one device
    assert four["outcomes"]["identity"] == one["identity"].tolist()
    assert four["outcomes"]["state"] == one["state"].tolist() == ["reached"] * 8
    # The programs of two devices may round differently; a plateau is interpolated between the same
    # two evaluations.
    np.testing.assert_allclose(four["outcomes"]["plateau"], one["plateau"], rtol=1e-3)
