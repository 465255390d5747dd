"""Why SGD is later than the flow in Fig. 9: the same runs from random and from zero weights
(Assumption 4 of A.1).

    python benchmarks/toy_start.py

Prints the mean plateau over that of the flow, and its standard error over 16 seeds, at length = dim
= 64.
"""

import numpy as np

from emergo import theory
from emergo.measure import emergence
from emergo.papers import toy_probe, train_toy
from emergo.tasks import SingleLocation

flow = float(theory.plateau(theory.cells(64, 64)).time)
for name, scale in (("random", 1.0), ("zero", 0.0)):
    curves = train_toy(
        SingleLocation(64, 64), toy_probe(), seeds=16, steps=2000, every=5, initial_scale=scale
    )
    ratio = (
        np.array(
            [emergence(curves.step, v, theory.THRESHOLD * v[0]).time for v in curves.values["loss"]]
        )
        / flow
    )
    print(f"{name} weights: {ratio.mean():.3f} ± {ratio.std(ddof=1) / 4:.3f}")
