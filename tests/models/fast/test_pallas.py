"""The GPUs on which kernels are used."""

import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from emergo.models.fast import _chain_kernels, _mlp_kernel, _pallas

LAYER = jnp.zeros((1, 8, 8)), jnp.zeros((1, 8, 4))
TOKENS = jnp.zeros((2, 4), jnp.int32)


@pytest.mark.parametrize(
    ("capabilities", "mlp", "chain"),
    [
        (["9.0"], True, True),  # H100, H200
        (["9.0", "9.0"], True, True),
        (["8.0"], False, True),  # A100
        (["8.9"], False, True),
        (["10.0"], False, True),  # B200
        (["9.0", "8.6"], False, True),
        (["9.0", "7.5"], False, False),
        (["7.0"], False, False),  # V100
        (["gfx942"], False, False),  # AMD
        ([None], False, False),  # a CPU
    ],
)
def test_kernels_are_used_on_supported_gpus(monkeypatch, capabilities, mlp, chain):
    devices = [
        SimpleNamespace() if each is None else SimpleNamespace(compute_capability=each)
        for each in capabilities
    ]
    monkeypatch.setattr(_pallas, "triton", object())
    monkeypatch.setattr(jax, "devices", lambda: devices)
    assert _mlp_kernel.applies(jnp.dtype(jnp.bfloat16), 256, 256, 1024, 4) == mlp
    assert _chain_kernels.applies(LAYER, TOKENS) == chain
    monkeypatch.setattr(_pallas, "triton", None)
    assert not _pallas.usable(0)


def test_importing_models_does_not_import_pallas():
    """Pallas takes 0.3 s to import."""
    code = "import sys, emergo.models; sys.exit('jax.experimental.pallas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0
