"""Few-shot classification: a model learns labels from the context if the training data are bursty,
and by heart otherwise (Chan et al. 2022; Singh et al. 2024).

python examples/few_shot.py
"""

import jax
import jax.numpy as jnp

import emergo as em


class FewShot(em.Task):
    """The label of the last item. Every other token holds an item and its label."""

    items: int = 6
    dim: int = 16
    classes: int = 512
    labels: int = 4
    noise: float = 0.3  # within a class
    bursty: float = em.per_run(default=1.0, low=0.0, high=1.0)  # its class occurs twice before
    novel: float = em.per_run(default=0.0, low=0.0, high=1.0)  # 1: classes that no run trains on

    @property
    def spec(self):
        return em.Spec(length=self.items + 1, inputs=self.dim + self.labels, outputs=self.labels)

    def truth(self, key):
        return jax.random.normal(key, (2 * self.classes, self.dim))

    def batch(self, key, n, truth):
        keys = jax.random.split(key, 5)
        query = jax.random.randint(keys[0], (n, 1), 0, self.classes)
        others = query + jax.random.randint(keys[1], (n, self.items), 1, self.classes)
        copies = jnp.argsort(jax.random.uniform(keys[2], (n, self.items)), axis=1) < 2
        bursty = jax.random.uniform(keys[3], (n, 1)) < self.bursty
        context = jnp.where(copies & bursty, query, others % self.classes)
        classes = jnp.concatenate([context, query], axis=1)
        centres = truth[classes + self.classes * (self.novel > 0)]
        items = centres + self.noise * jax.random.normal(keys[4], centres.shape)
        labels = classes % self.labels
        shown = jax.nn.one_hot(labels, self.labels).at[:, -1].set(0)
        relevant = (classes == query).at[:, -1].set(False)
        return em.Batch(jnp.concatenate([items, shown], axis=-1), labels[:, -1], relevant)

    def variants(self):  # two more test sets, measured as accuracy_in_context, ..._in_weights
        return {
            "in_context": em.Variant(self.replace(bursty=1.0, novel=1.0)),
            "in_weights": em.Variant(self.replace(bursty=0.0, novel=0.0)),
        }

    def loss(self, output, batch):
        right = batch.target[:, None] == jnp.arange(self.labels)
        return -jnp.sum(jnp.where(right, jax.nn.log_softmax(output.value), 0), axis=1)

    def metrics(self, output, batch, truth):
        return {"accuracy": (output.value.argmax(1) == batch.target).astype(jnp.float32)}


def study():
    return em.Study(
        FewShot(),
        em.Transformer(layers=1, heads=1, width=64, positions="none"),
        em.Optimizer("adam", learning_rate=3e-3),
        grid={"bursty": [0.0, 0.5, 1.0]},
        seeds=1,
        steps=1000,
        n_test=256,
        threshold=None,
        precision="fp32",
        plugins=[__file__],
    )


if __name__ == "__main__":
    runs = study().run("out/few_shot")
    shown = runs.curves[runs.curves["step"] % 200 == 0]
    values = ["accuracy_in_context", "accuracy_in_weights"]
    print(shown.pivot(index="step", columns="bursty", values=values).round(2).to_string())
