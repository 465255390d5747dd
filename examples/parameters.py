"""Parameters out: kept at log-spaced steps as safetensors, loaded back with the forward pass and
the attention maps.

python examples/parameters.py
"""

import numpy as np

import emergo as em


def study():
    task = em.SingleLocation(length=8, dim=4, position="random", indicator=True)
    model = em.Transformer(layers=1, heads=1, width=32)
    return em.Study(
        task,
        model,
        em.Optimizer("adam", learning_rate=4e-3),
        seeds=1,
        steps=800,
        batch=16,
        keep=True,
    )


def relevant_attention(runs, step):
    """Return the attention of the last position to the relevant token, mean over sequences."""
    trained = runs.parameters(0, step)
    # Of the only layer and head.
    attention = trained.attention_maps(64)[0, :, 0, -1]
    relevant = np.asarray(trained.batch(64).relevant)
    return float(np.mean(np.sum(np.where(relevant, attention, 0), -1)))


if __name__ == "__main__":
    runs = study().run("out/parameters")
    for step in runs.kept(0):
        share = relevant_attention(runs, step)
        maps = runs.parameters(0, step).attention_maps(2)
        print(f"step {step:4d}: attention to the relevant token {share:.2f}, maps {maps.shape}")
