"""emergo: when does a Transformer's attention become sparse, and what makes it happen sooner?

The rooms, in the order in which data flows through them: `tasks` and `models`, `theory`, `engine`, `measure`, `papers`,
`report`. Each knows only the rooms before it. `emergo.cli` is a thin door to all of them.
"""

__version__ = "0.1.0"
__all__ = ["__version__"]
