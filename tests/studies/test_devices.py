"""All devices of a machine train one study, with the results that one of them has."""

import itertools
import json
import os
import subprocess
import sys

import numpy as np
import pytest

FOUR_DEVICES = """
import collections, json, sys, tempfile
import jax
from emergo.engine import _scheduler as scheduler
from tests.studies.tiny import quiet, tiny

held, launch = collections.defaultdict(set), scheduler.DeviceStack.launch
def watched(stack, *arguments):
    held[stack.device.id] |= {tracked.run.seed for tracked in stack.tracked if tracked}
    return launch(stack, *arguments)
scheduler.DeviceStack.launch = watched

study, calls = tiny(seeds=8, steps=400, threshold=0.3), []
for options in ({}, {"devices": jax.devices()[:1]}):
    held.clear()
    with tempfile.TemporaryDirectory() as folder:
        runs = study.run(folder, progress=quiet, n_parallel=1, **options)
    table = runs.table.sort_values("seed")
    outcomes = {name: table[name].tolist() for name in ("identity", "state", "plateau")}
    calls.append({"held": {str(k): sorted(v) for k, v in held.items()}, "outcomes": outcomes})
print(json.dumps(calls))
"""


@pytest.mark.slow
def test_a_study_uses_all_devices_and_has_the_results_of_one(request):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command, folder = [sys.executable, "-c", FOUR_DEVICES], request.config.rootpath
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    four, one = json.loads(done.stdout.splitlines()[-1])
    assert sorted(four["held"]) == ["0", "1", "2", "3"]
    assert sorted(itertools.chain(*four["held"].values())) == list(range(8))  # each run on one of them
    assert one["held"] == {"0": list(range(8))}
    assert four["outcomes"]["identity"] == one["outcomes"]["identity"]
    assert four["outcomes"]["state"] == one["outcomes"]["state"] == ["reached"] * 8
    # The programs of two devices may round otherwise; a plateau is interpolated between the same two evaluations.
    np.testing.assert_allclose(four["outcomes"]["plateau"], one["outcomes"]["plateau"], rtol=1e-3)
