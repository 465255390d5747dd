"""Some of the mutations of `fuzz.py`; `python -m tests.store.fuzz --count 20000` tries more."""

import collections

import pytest

from .fuzz import BAD, judge, labs
from .fuzz_checkpoints import TrainingLab

# A range from each quarter of the 20,000.
NUMBERS = [first + i for first in (0, 5000, 10000, 15000) for i in range(125)]
# Steps that are whole numbers above 2^53 beside fractions; names of runs that are bytes; a pack in
# which a comment hides the rest of the list.
NUMBERS += [10266, 12830, 16378]


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_damage_is_named_and_repaired(tmp_path):
    verdicts: collections.Counter[str] = collections.Counter()
    with labs(tmp_path) as lab:
        for number in NUMBERS:
            verdict, what, words = judge(lab, number)
            assert verdict not in BAD, f"mutation {number}, {what}: {verdict}: {words}"
            verdicts[verdict] += 1
    assert verdicts["named"] > len(NUMBERS) / 3  # otherwise nothing was damaged
    assert verdicts["harmless"] < len(NUMBERS) / 2


@pytest.mark.slow
def test_damaged_checkpoints_are_named_and_training_continues_from_the_previous_one(tmp_path):
    """Training takes time, so most checkpoints are only read."""
    lab = TrainingLab(tmp_path)
    for number in range(80):
        verdict, what, words = lab.judge_read(number)
        assert verdict not in BAD, f"{number}, {what}: {verdict}: {words}"
    for number in range(2):
        verdict, what, words = lab.judge(number)
        assert verdict == "named", f"{number}, {what}: {verdict}: {words}"
