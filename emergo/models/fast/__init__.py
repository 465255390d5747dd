"""Optimised forward passes and GPU kernels, found by exact class and listed options."""

from .._attention import causal
from ._attention import attend_all
from ._table import PATHS, VARIABLE, FastPath, Rate, Size, SubsetOf, find_path, paths_are_on

__all__ = [
    "PATHS",
    "VARIABLE",
    "FastPath",
    "Rate",
    "Size",
    "SubsetOf",
    "attend_all",
    "causal",
    "find_path",
    "paths_are_on",
]
