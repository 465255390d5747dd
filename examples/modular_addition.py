"""Grokking: a Transformer that knows its training pairs by heart learns to add modulo 23 if its
weights decay (Power et al. 2022).

python examples/modular_addition.py
"""

import jax
import jax.numpy as jnp
import numpy as np

import emergo as em


class Sums(em.Task):
    """The sum of two numbers modulo `base`, from a table of all pairs."""

    base: int = 23

    learned = em.Above("accuracy", 0.8)

    @property
    def spec(self):
        return em.Spec(length=2, inputs=self.base, outputs=self.base)

    def truth(self, key):
        return ()

    def data(self):  # a run trains on `n_train` of these pairs and is tested on others
        return np.indices((self.base, self.base)).reshape(2, -1).T

    def pick(self, data, rows):
        pairs = jnp.asarray(data)[rows]
        return em.Batch(pairs, pairs.sum(1) % self.base)

    def loss(self, output, batch):
        right = batch.target[:, None] == jnp.arange(self.base)
        return -jnp.sum(jnp.where(right, jax.nn.log_softmax(output.value), 0), axis=1)

    def metrics(self, output, batch, truth):
        return {"accuracy": (output.value.argmax(1) == batch.target).astype(jnp.float32)}


def study():
    model = em.Transformer(layers=1, heads=2, width=32, positions="none")
    return em.Study(
        Sums(),
        model,
        em.Optimizer("adamw", learning_rate=1e-2),
        grid={"weight_decay": [0.0, 1.0]},  # all decays share one program
        seeds=2,
        batch=370,
        n_train=370,
        n_test=150,
        steps=1000,
        precision="fp32",
        plugins=[__file__],
    )


if __name__ == "__main__":
    runs = study().run("out/modular_addition")
    print(runs)
    runs.plot("accuracy", by="weight_decay").savefig("out/modular_addition/accuracy.png")
