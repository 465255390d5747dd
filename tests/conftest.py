"""Settings that all tests share."""

import hypothesis
import matplotlib as mpl

mpl.use("Agg")
# Compilation makes the first example slow; runs must not depend on the clock or on chance.
hypothesis.settings.register_profile("emergo", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.load_profile("emergo")
