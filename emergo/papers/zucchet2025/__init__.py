"""Figures of *The emergence of sparse attention: impact of data distribution and benefits of
repetition* (arXiv 2505.17863)."""
