"""Your own probe: how far the largest attention score stands out, read at a tap.

python examples/probe.py
"""

import jax.numpy as jnp

import emergo as em


def parameter_norm(params, output, batch, truth, step):
    """Probe the parameters; the output is that of the whole test set."""
    return {"query_norm": jnp.linalg.norm(params.layers[0].query.weight)}


@em.probe(reads=["layers.0.scores"])
def score_gap(params, output, batch, truth, step):
    """Probe a tap on the first 64 test sequences."""
    # The last position's scores: (n, heads, length).
    scores = output.taps["layers.0.scores"][:, :, -1]
    top = jnp.sort(scores, -1)
    # One number per head.
    return {"score_gap": jnp.mean(top[..., -1] - top[..., -2], 0)}


def study():
    task = em.SingleLocation(length=8, dim=4, position="random", indicator=True)
    model = em.Transformer(layers=1, heads=2, width=32)
    optimizer = em.Optimizer("adam", learning_rate=4e-3)
    return em.Study(
        task, model, optimizer, seeds=2, steps=1000, batch=16, probes=(parameter_norm, score_gap)
    )


if __name__ == "__main__":
    runs = study().run("out/probe")
    print(runs.curves[["seed", "step", "loss", "query_norm", "score_gap_0", "score_gap_1"]])
