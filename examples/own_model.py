"""Your own model, optimizer and attention: one head whose attention weights are squared scores,
trained by Lion.

python examples/own_model.py
"""

import jax
import jax.numpy as jnp

import emergo as em


class SquaredAttention(em.Model):
    """One layer that reads the last position; weights are squared scores over their sum."""

    width: int = em.option(default=32, low=1)

    def init(self, key, spec):
        shapes = {
            "embed": (spec.inputs, self.width),
            "query": (self.width, self.width),
            "key": (self.width, self.width),
        }
        shapes |= {
            "value": (self.width, self.width),
            "out": (self.width, spec.outputs),
            "place": (spec.length, self.width),
        }
        keys = jax.random.split(key, len(shapes))
        return {
            n: jax.random.normal(k, s) / jnp.sqrt(s[0])
            for k, (n, s) in zip(keys, shapes.items(), strict=True)
        }

    def apply(self, params, inputs, tap=em.Tap()):
        x = inputs @ params["embed"] + params["place"]
        query = x[:, -1] @ params["query"]
        keys = x @ params["key"]
        values = x @ params["value"]
        products = jnp.einsum("nw,ntw->nt", query, keys) / jnp.sqrt(self.width)
        # (n, heads, queries, length)
        scores = tap("layers.0.scores", products[:, None, None])
        squares = scores**2 + 1e-6
        pattern = tap("layers.0.pattern", squares / squares.sum(-1, keepdims=True))
        mixed = jnp.einsum("nt,ntw->nw", pattern[:, 0, 0], values)
        # The shape of attention is (n, layers, heads, length).
        return em.Output(tap("value", mixed @ params["out"]), attention=pattern)


def study():
    task = em.SingleLocation(length=8, dim=2, position="random", indicator=True)
    optimizer = em.Optimizer(
        "lion", learning_rate=2e-3, b2=0.98
    )  # any of Optax's by name, with its options
    return em.Study(
        task,
        SquaredAttention(),
        optimizer,
        grid={"width": [16, 32]},
        seeds=2,
        steps=2000,
        threshold=0.1,
        plugins=[__file__],
    )


if __name__ == "__main__":
    runs = study().run("out/own_model")
    print(runs)
