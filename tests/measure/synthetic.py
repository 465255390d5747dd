"""Synthetic runs of a known power law, with noise and censoring."""

import numpy as np
import pandas as pd

LENGTHS = (32, 64, 128, 256)
DIMS = (16, 32, 64)


def synthetic(seed, noise=0.2, C=2.0, length=0.8, dim=1.3, seeds=5):
    rng = np.random.default_rng(seed)
    rows = [(T, d, s) for T in LENGTHS for d in DIMS for s in range(seeds)]
    table = pd.DataFrame(rows, columns=["length", "dim", "seed"])
    clean = C * table["length"] ** length * table["dim"] ** dim
    return table.assign(plateau=clean * np.exp(noise * rng.normal(size=len(table))))


def censor(table, share):
    cap = table["plateau"].quantile(1 - share)
    return table.assign(censored=table["plateau"] > cap, plateau=table["plateau"].clip(upper=cap))
