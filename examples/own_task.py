"""Your own task: the answer is a map of the loudest token, which the model has to find by itself.

python examples/own_task.py
"""

import jax
import jax.numpy as jnp

import emergo as em


class Loudest(em.Task):
    """The target is a map of the loudest token's content."""

    length: int  # static: decides shapes, and which runs share a program
    dim: int
    # A number or a schedule, which may differ between the runs of one program.
    gain: float = em.per_run(default=4.0, low=0.0)

    version = 1  # raise it when the same fields come to mean other numbers
    # A run has learned when this holds; a study may override the number.
    learned = em.Above("accuracy", 0.9)

    @property
    def spec(self):
        inputs = self.dim + 1
        return em.Spec(length=self.length, inputs=inputs, outputs=self.dim)

    def truth(self, key):  # drawn once for a run
        return jax.random.orthogonal(key, self.dim)

    def batch(self, key, n, truth):
        contents, loudness = jax.random.split(key)
        x = jax.random.normal(contents, (n, self.length, self.dim)) / jnp.sqrt(self.dim)
        loud = jax.random.uniform(loudness, (n, self.length))
        loudest = loud == loud.max(1, keepdims=True)
        target = jnp.sum(jnp.where(loudest[..., None], x, 0), 1) @ truth
        return em.Batch(jnp.concatenate([self.gain * loud[..., None], x], -1), target, loudest)

    def loss(self, output, batch):  # one number per sequence
        return 0.5 * jnp.sum((output.value - batch.target) ** 2, -1)

    def metrics(self, output, batch, truth):
        return {"accuracy": (self.loss(output, batch) < 0.1).astype(jnp.float32)}


def study():
    model = em.Transformer(layers=1, heads=1, width=32)
    optimizer = em.Optimizer("adam", learning_rate=1e-3)
    grid = {"gain": [1.0, 2.0, 4.0]}  # the more the loudest stands out, the sooner it is found
    return em.Study(
        Loudest(length=8, dim=2),
        model,
        optimizer,
        grid=grid,
        seeds=2,
        steps=1500,
        plugins=[__file__],
    )


if __name__ == "__main__":
    print(study())
    runs = study().run("out/own_task")
    print(runs)
    runs.plot("attention", by="gain").savefig("out/own_task/attention.png")
