"""The benchmark of language models: the PyTorch peer is the same model, and rows are resumed."""

import dataclasses

import jax
import numpy as np
import pandas as pd
import pytest

from benchmarks import text
from benchmarks.text import TINY, cases_of, main, with_ratios
from emergo.core.contract import Tap

torch = pytest.importorskip("torch")


def test_the_peer_has_the_loss_and_the_gradients_of_our_model():
    from benchmarks.text_peer import language_loss, torch_language_model

    config = TINY.config
    params = config.model.init(jax.random.key(0), config.task.spec)
    batch = config.task.batch(jax.random.key(1), 4, ())

    def loss(params):
        output = config.model.apply(params, batch.inputs, Tap(config.task.spec))
        return config.task.loss(output, batch).mean()

    peer = torch_language_model(TINY)

    def arrays(tree):
        """Name the arrays as in PyTorch. Weights of linear maps are transposed there."""
        # Ours adds a bias to the embedding, which the peer has in its positions.
        named = {"embed.weight": tree.embed.weight, "positions": tree.positions}
        named |= {"norm.weight": tree.norm.gain, "norm.bias": tree.norm.offset}
        maps = {"readout": tree.readout}
        for i, layer in enumerate(tree.layers):
            maps |= {f"blocks.{i}.{n}": getattr(layer, n) for n in ("out", "up", "down")}
            three = zip(layer.query, layer.key, layer.value, strict=True)
            maps[f"blocks.{i}.query_key_value"] = tuple(np.concatenate(x, -1) for x in three)
            for j, norm in enumerate(layer.norms):
                named[f"blocks.{i}.norms.{j}.weight"] = norm.gain
                named[f"blocks.{i}.norms.{j}.bias"] = norm.offset
        named |= {f"{name}.weight": np.asarray(weight).T for name, (weight, _) in maps.items()}
        return named | {f"{name}.bias": bias for name, (_, bias) in maps.items()}

    ours = arrays(params) | {"positions": params.positions + params.embed.bias}
    state = {name: torch.tensor(np.asarray(array)) for name, array in ours.items()}
    peer.load_state_dict(state)
    tokens = np.concatenate([batch.inputs, batch.target[:, -1:]], 1)
    theirs = language_loss(peer, torch.tensor(tokens, dtype=torch.long))
    theirs.backward()
    value, gradient = jax.value_and_grad(loss)(params)
    np.testing.assert_allclose(value, theirs.detach().numpy(), rtol=1e-5)
    for name, array in arrays(gradient).items():
        expected = peer.get_parameter(name).grad.numpy()
        # fp32 sums in other orders.
        np.testing.assert_allclose(array, expected, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_rows_are_written_at_once_and_measured_once(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda loss: loss)  # takes half a minute
    monkeypatch.setattr(text, "cases_of", lambda *given: list(cases_of(*given))[:2])
    main(tmp_path, -1.0, ("main",), tiny=True)
    assert not (tmp_path / "text.csv").exists()
    main(tmp_path, 0.05, ("main",), tiny=True)
    (first,) = pd.read_csv(tmp_path / "text.csv").to_dict("records")
    assert first["framework"] == "pytorch"
    main(tmp_path, 100.0, ("main",), tiny=True)
    table = pd.read_csv(tmp_path / "text.csv")
    assert len(table) == 2
    assert table.ms[0] == first["ms"]
    assert (table.ms > 0).all()
    assert table.ratio.notna().all()
    tokens = table.runs * table.batch * table.length
    np.testing.assert_allclose(table.tokens_per_second, 1e3 * tokens / table.ms)


def test_the_ratio_compares_with_the_peer_of_the_same_size():
    sizes = [dataclasses.asdict(case) for case in cases_of("main", TINY)]
    rates = (2, 3, 5, 4, 20)
    rows = [size | {"tokens_per_second": r} for size, r in zip(sizes, rates, strict=True)]
    np.testing.assert_allclose(with_ratios(rows).ratio, [1, 1.5, 2.5, 1, 5])
    alone = with_ratios(rows[1:3])
    assert alone.ratio.isna().all()
