"""A small text for tests: sentences that differ, made of few words."""

import hashlib

NAMES = ("Ada", "Emil", "Grete", "Kurt", "Emmy", "Paul", "Hedy", "Alan")
VERBS = ("counts", "finds", "forgets", "draws", "repeats", "follows", "copies", "names")
THINGS = ("the river", "a prime", "the old map", "her letter", "a wheel", "the second door")
PLACES = ("at noon", "in the rain", "near the sea", "without a word", "for the third time")


def sentences(count: int, seed: int = 0) -> str:
    """Return sentences of random words, twelve in each paragraph."""
    made = []
    for i in range(count):
        words = hashlib.sha256(f"{seed} {i}".encode()).digest()
        parts = (NAMES, VERBS, THINGS, PLACES)
        chosen = [part[words[k] % len(part)] for k, part in enumerate(parts)]
        made.append(f"{' '.join(chosen)}." + ("\n" if i % 12 == 11 else " "))
    return "".join(made)


TEXT = sentences(400)  # about 14,000 bytes
