"""Figures of *Incremental learning of sparse attention patterns in Transformers* (arXiv 2602.19143)."""

import importlib

FIGURES = tuple(importlib.import_module(f"{__name__}.fig{n}").FIGURE for n in range(1, 20))
__all__ = ["FIGURES"]
