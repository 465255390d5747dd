"""Classes of attention heads, and the steps at which heads entered them."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ..core.classes import HeadClass, HeadClasses
from ..core.curves import curve_columns


def head_classes(curves: pd.DataFrame | Mapping[str, np.ndarray]) -> pd.DataFrame:
    """List when heads became previous-token, induction, duplicate-token or first-token heads.

    A head belongs to a class as soon as its score is at least 0.5 in two evaluations in a row.

    **Arguments:** `curves` are the curves of a run, or a table with a column `step` or indexed by
    steps, such as a log of `emergo.torch.watch`.

    **Returns:** one row per head and class in the order of training, with the step, the interval
    between two evaluations, and the last score.

    >>> import pandas as pd
    >>> log = pd.DataFrame({"step": [0, 20, 40, 60], "induction_head_1_2": [0.1, 0.3, 0.8, 0.9]})
    >>> print(head_classes(log).to_string(index=False))
        class  layer  head  step  low  high  score
    induction      1     2  28.0 20.0  40.0    0.9
    """
    if not isinstance(curves, pd.DataFrame):
        columns = {column: curves[name][place] for column, name, place in curve_columns(curves)}
        curves = pd.DataFrame(columns)
    curves = curves.set_index("step") if "step" in curves else curves
    scores = curves.filter(regex=r"_head_\d+_\d+$")
    classes = HeadClasses()
    for step, row in zip(scores.index, scores.itertuples(index=False), strict=True):
        classes.update(float(step), dict(zip(scores.columns, map(float, row), strict=True)))
    found = sorted(classes.found.items(), key=lambda item: item[1].step)
    last = {column: scores[column].dropna().iloc[-1] for column, _ in found}
    rows = [(*each, last[column]) for column, each in found]
    names = ["class" if name == "name" else name for name in HeadClass._fields]
    return pd.DataFrame(rows, columns=pd.Index([*names, "score"]))
