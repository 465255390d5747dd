"""Two-set training: the last digit of a product is learned sooner if a small set of examples is
repeated (Charton and Kempe 2024). The test numbers are drawn afresh.

python examples/two_sets.py
"""

import jax
import jax.numpy as jnp

import emergo as em


class Products(em.Task):
    """The last digit of the product of two numbers. Attention must find the first one's last."""

    digits: int = 8
    base: int = 7
    small: int = 32  # examples that are repeated, drawn once for a run
    repeat: float = em.per_run(default=0.0, low=0.0, high=1.0)  # their share of a batch

    learned = em.Above("accuracy", 0.9)

    @property
    def spec(self):
        return em.Spec(length=2 * self.digits, inputs=self.base, outputs=self.base)

    def truth(self, key):
        return jax.random.randint(key, (self.small, 2 * self.digits), 0, self.base)

    def batch(self, key, n, truth):
        draw, choose, pick = jax.random.split(key, 3)
        fresh = jax.random.randint(draw, (n, 2 * self.digits), 0, self.base)
        repeated = truth[jax.random.randint(pick, (n,), 0, self.small)]
        again = jax.random.uniform(choose, (n, 1)) < self.repeat
        digits = jnp.where(again, repeated, fresh)
        product = digits[:, self.digits - 1] * digits[:, -1] % self.base
        relevant = jnp.arange(2 * self.digits) == self.digits - 1
        return em.Batch(digits, product, jnp.tile(relevant, (n, 1)))

    def at_test(self):
        return self.replace(repeat=0.0)

    def loss(self, output, batch):
        right = batch.target[:, None] == jnp.arange(self.base)
        return -jnp.sum(jnp.where(right, jax.nn.log_softmax(output.value), 0), axis=1)

    def metrics(self, output, batch, truth):
        return {"accuracy": (output.value.argmax(1) == batch.target).astype(jnp.float32)}


def study():
    return em.Study(
        Products(),
        em.Transformer(layers=1, heads=1, width=32),
        em.Optimizer("adam", learning_rate=3e-3),
        grid={"repeat": [0.0, 0.25, 0.5]},
        seeds=3,
        steps=1500,
        n_test=256,
        precision="fp32",
        plugins=[__file__],
    )


if __name__ == "__main__":
    runs = study().run("out/two_sets")
    print(runs)
    runs.plot("attention", by="repeat").savefig("out/two_sets/attention.png")
