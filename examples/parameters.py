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


if __name__ == "__main__":
    runs = study().run("out/parameters")
    for step in runs.kept(0):
        trained = runs.parameters(0, step)
        attention = trained.attention_maps(64)[
            0, :, 0, -1
        ]  # of the last position, in the only layer and head
        relevant = np.asarray(trained.batch(64).relevant)
        share = float(np.mean(np.sum(np.where(relevant, attention, 0), -1)))
        print(
            f"step {step:4d}: attention to the relevant token {share:.2f}, maps "
            f"{trained.attention_maps(2).shape}"
        )
