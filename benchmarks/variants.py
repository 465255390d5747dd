import functools, math
import jax, jax.numpy as jnp
from emergo.models import _minimal as M
from emergo.models._attention import causal
from emergo.models._model import answers
from emergo._contract import Output, NO_TAP
import numpy as np

PARTS = 40
P = jax.lax.DotAlgorithmPreset

def dot(spec, a, b, how):
    if how == "fp32": return jnp.einsum(spec, a, b, precision="highest")
    return jnp.einsum(spec, a, b, precision={"x3": P.TF32_TF32_F32_X3, "b6": P.BF16_BF16_F32_X6, "b3": P.BF16_BF16_F32_X3}[how])

def hots(tokens, V, last=None):
    n, L = tokens.shape
    hot = jax.nn.one_hot(tokens, V, dtype=jnp.float32)
    return jnp.concatenate([hot, jnp.broadcast_to(jnp.eye(L), (n, L, L))], -1)

def over(x, g, how):
    p = math.gcd(len(x), PARTS)
    x, g = (a.reshape(p, -1, a.shape[-1]) for a in (x, g))
    return dot("pri,pro->pio", x, g, how).sum(0)

@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def scores(table, tokens, last, how):  # table (query, key, h)
    L = tokens.shape[1]; V = len(table) - L
    by_t = table[:V] + table[len(table) - last:, None]  # (t, query token, key, h)
    t = jnp.arange(last)[:, None]; asked = tokens[:, L - last:, None]
    return by_t[t, asked, tokens[:, None, :]] + by_t[t, asked, V + jnp.arange(L)]
def scores_f(table, tokens, last, how): return scores(table, tokens, last, how), (tokens, len(table))
def scores_b(last, how, saved, g):  # g (n,t,i,h)
    tokens, size = saved; n, L = tokens.shape; V = size - L; h = g.shape[-1]
    q = jax.nn.one_hot(tokens[:, L - last:], V, dtype=jnp.float32)
    q = jnp.concatenate([q, jnp.broadcast_to(jnp.eye(last), (n, last, last))], -1)
    G = dot("ntk,ntb->nkb", g.reshape(n, last, -1), q, how).reshape(n * L, -1)  # ((n i), (h b))
    d = over(hots(tokens, V).reshape(n * L, -1), G, how).reshape(size, h, V + last)  # key, h, query
    d = jnp.transpose(d, (2, 0, 1))
    return jnp.concatenate([d[:V], jnp.zeros((L - last, size, h)), d[V:]]), None
scores.defvjp(scores_f, scores_b)

@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def rows(table, tokens, how):  # (c, h, o) -> (n, i, h, o)
    V = len(table) - tokens.shape[1]
    return table[tokens] + table[V:]
def rows_b(how, saved, g):
    tokens, size = saved; n, L = tokens.shape
    return over(hots(tokens, size - L).reshape(n * L, -1), g.reshape(n * L, -1), how).reshape(size, *g.shape[2:]), None
rows.defvjp(lambda t, k, how: (rows(t, k, how), (k, len(t))), rows_b)

@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def spread(w, tokens, size, how):  # w (n,t,i,h) -> (n,t,h,size)
    return dot("ntih,nia->ntah", w, hots(tokens, size - tokens.shape[1]), how)
def spread(w, tokens, size, how):
    @jax.custom_vjp
    def f(w): return dot("nkia,nib->nkab" if 0 else "ntih,nia->ntha", w, hots(tokens, size - tokens.shape[1]), how)
    def b(_, g):  # (n,t,h,a)
        V = size - tokens.shape[1]
        d = jnp.take_along_axis(g, tokens[:, None, None, :], -1) + g[..., V:]  # n t h i
        return (jnp.swapaxes(d, 2, 3),)
    f.defvjp(lambda w: (f(w), None), b)
    return f(w)

@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def big(m, v, how): return jnp.einsum("ntk,ko->nto", m, v, precision="highest")
def big_b(how, saved, g):
    m, v = saved
    dm = jnp.einsum("nto,ko->ntk", g, v, precision="highest")
    return dm, over(m.reshape(-1, m.shape[-1]), g.reshape(-1, g.shape[-1]), "fp32")
big.defvjp(lambda m, v, how: (big(m, v, how), (m, v)), big_b)

def first(model, layer, tokens, last, kind, how):
    n, L = tokens.shape; size = layer.query.shape[-1]; h = len(layer.query)
    s = scores(jnp.transpose(layer.query, (2, 1, 0)), tokens, last, how) / math.sqrt(size)
    mask = causal(L, model.context)[L - last:, :, None]
    w = jax.nn.softmax(jnp.where(mask, s, -jnp.inf), -2)
    if kind == "A":
        v = rows(jnp.swapaxes(layer.value, 0, 1), tokens, how)
        out = jnp.einsum("ntk,nko->nto", w.reshape(n, last, -1), v.reshape(n, L * h, -1), precision="highest")
    else:
        m = spread(w, tokens, size, how)
        out = big(m.reshape(n, last, -1), layer.value.reshape(h * size, -1), how)
    return out, jnp.moveaxis(w[:, -1], -1, 1)  # n h i

def make_fast(kind, how):
    def fast(self, params, inputs, tap=NO_TAP):
        read = answers(tap)
        assert len(params) == 1
        x, row = first(self, params[0], inputs, read or 1, kind, how)
        return Output(tap("value", x[:, 0] if read is None else x), row[:, None])
    return fast

original = M.MinimalAttention.fast
def use(name):
    M.MinimalAttention.fast = original if name == "base" else make_fast(*name.split("-"))
    jax.clear_caches()
    from emergo.engine import _cost
    _cost._compile.cache_clear()
