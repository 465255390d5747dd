"""Your own attention in our Transformer, next to softmax, and a look inside what was trained.

python examples/own_attention.py
"""

import jax
import jax.numpy as jnp

import emergo as em


class Gated(em.Attention):
    """Softmax, times a learned gate per head."""

    # Numbers may be axes and share a program.
    bias: float = em.per_run(default=0.0)

    def init(self, key, heads, size, length):
        return {"gate": jnp.full(heads, self.bias)}

    def weights(self, params, scores, visible):  # (n, heads, length, length)
        gate = jax.nn.sigmoid(params["gate"])
        return super().weights(params, scores, visible) * gate[:, None, None]


def study():
    softmax = em.Transformer(layers=1, heads=2, width=32)
    models = {"softmax": softmax, "gated": softmax.replace(attention=Gated())}
    return em.Study(
        em.SingleLocation(length=8, dim=4, position="random", indicator=True),
        softmax,
        em.Optimizer("adam", learning_rate=4e-3),
        grid={"model": models},
        seeds=1,
        steps=800,
        batch=16,
        keep=True,
        probes=(em.head_probe,),
        plugins=[__file__],
    )


def look_inside(trained):
    batch = trained.batch(64)
    task = trained.run.config.task

    def loss(value):
        return float(task.loss(em.Output(value), batch).mean())

    for depth, value in enumerate(trained.logit_lens(batch)):
        print(f"read out after {depth} layers: loss {loss(value):.3f}")
    for tap in ("layers.0.pattern", "layers.0.mlp"):
        patched = trained.patched(batch, batch.inputs[::-1], tap)  # values on other sequences
        print(f"{tap} of other sequences: loss {loss(patched.value):.3f}")


if __name__ == "__main__":
    runs = study().run("out/own_attention")
    print(runs)
    runs.plot_heads(0, "first_token_head").savefig("out/own_attention/heads.png")
    runs.plot_maps(0).savefig("out/own_attention/maps.png")
    runs.log("tensorboard")
    look_inside(runs.where(model="gated").parameters())
