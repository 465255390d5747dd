"""In-context Markov chains: a model first predicts from how often each symbol has occurred, later
from pairs of symbols, as an induction head does (Edelman et al. 2024).

python examples/in_context_chains.py
"""

import jax
import jax.numpy as jnp

import emergo as em


class Chains(em.Task):
    """Predict the next symbol at every position; every sequence has a Markov chain of its own."""

    length: int = 48
    symbols: int = 3

    learned = em.Below("from_pairs", 0.04)

    @property
    def spec(self):
        size = self.symbols
        return em.Spec(length=self.length, inputs=size, outputs=size, answers=self.length)

    def truth(self, key):
        return ()

    def batch(self, key, n, truth):
        chains, first, noise = jax.random.split(key, 3)
        # Exponential draws that are divided by their sum are uniform on the simplex.
        rates = jnp.log(jax.random.exponential(chains, (n, self.symbols, self.symbols)))
        noise = jax.random.gumbel(noise, (self.length, n, self.symbols))

        def step(now, noise):
            after = jnp.argmax(rates[jnp.arange(n), now] + noise, axis=1)
            return after, after

        start = jax.random.randint(first, (n,), 0, self.symbols)
        _, tokens = jax.lax.scan(step, start, noise)
        return em.Batch(jnp.concatenate([start[None], tokens[:-1]]).T, tokens.T)

    def loss(self, output, batch):
        right = batch.target[..., None] == jnp.arange(self.symbols)
        chances = jax.nn.log_softmax(output.value)
        return -jnp.sum(jnp.where(right, chances, 0), axis=-1).mean(1)

    def metrics(self, output, batch, truth):
        """Measure the KL divergence from the best prediction by counts of symbols, or of pairs."""
        now, after = (jax.nn.one_hot(x, self.symbols) for x in (batch.inputs, batch.target))
        pairs = jnp.cumsum(now[..., None] * after[:, :, None], axis=1)
        before = jnp.pad(pairs, ((0, 0), (1, 0), (0, 0), (0, 0)))[:, :-1]
        counts = {
            "from_symbols": jnp.cumsum(now, axis=1) + 1,
            "from_pairs": jnp.einsum("ntk,ntkj->ntj", now, before) + 1,
        }
        chances = {name: count / count.sum(-1, keepdims=True) for name, count in counts.items()}
        log_output = jax.nn.log_softmax(output.value)
        return {
            name: jnp.sum(best * (jnp.log(best) - log_output), axis=-1).mean(1)
            for name, best in chances.items()
        }


def study():
    return em.Study(
        Chains(),
        em.Transformer(layers=2, heads=1, width=32, mask="causal", mlp=False, positions="learned"),
        em.Optimizer("adam", learning_rate=3e-3),
        seeds=2,
        steps=1200,
        precision="fp32",
        plugins=[__file__],
    )


if __name__ == "__main__":
    runs = study().run("out/in_context_chains")
    print(runs)
    print(runs.where(seed=0).curves[["step", "from_symbols", "from_pairs"]])
