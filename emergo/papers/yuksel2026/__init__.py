"""Figures of *Incremental learning of sparse attention patterns in Transformers* (arXiv
2602.19143)."""
