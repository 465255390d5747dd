"""A few hundred of the mutations of `fuzz.py`; `python -m tests.store.fuzz --count 10000 --train
50` tries more."""

import collections

import pytest

from .fuzz import BAD, judge, labs
from .fuzz_checkpoints import TrainingLab


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_damage_is_named_and_mended(tmp_path):
    """Of every kind of file of a study and of logs; the reading commands and `run` after each."""
    verdicts: collections.Counter[str] = collections.Counter()
    with labs(tmp_path) as lab:
        for number in range(80):
            verdict, what, words = judge(lab, number)
            assert verdict not in BAD, f"mutation {number}, {what}: {verdict}: {words}"
            verdicts[verdict] += 1
    assert verdicts["named"] > 40  # else nothing was damaged
    assert verdicts["harmless"] < 40


@pytest.mark.slow
def test_a_damaged_checkpoint_is_named_and_training_goes_on_from_the_one_before(tmp_path):
    """Bit for bit as without; 80 are only read, since training takes its time."""
    lab = TrainingLab(tmp_path)
    for number in range(80):
        verdict, what, words = lab.judge_read(number)
        assert verdict not in BAD, f"{number}, {what}: {verdict}: {words}"
    for number in range(2):
        verdict, what, words = lab.judge(number)
        assert verdict == "named", f"{number}, {what}: {verdict}: {words}"
