"""Schedules: repeat the relevant token early, then stop: at a step, along a line, or when attention
has formed.

A repeated token is found sooner; but what is to be learned is in the others, so that stopping in
time is sooner still.

python examples/schedule.py
"""

import emergo as em

REPEATS = [
    0.0,  # never
    0.5,  # in half of the sequences, for ever
    em.Switch(0.5, 0.0, at=300),
    em.Ramp(0.5, 0.0, begin=200, end=600),
    em.When(
        "attention", above=0.5, before=0.5, after=0.0
    ),  # reacts to what the run's own evaluations measure
]


def study():
    task = em.SingleLocation(length=64, dim=32)
    model = em.ToyAttention()
    optimizer = em.Optimizer("sgd", learning_rate=em.WarmupCosine(1.0, warmup=50, end=5000))
    return em.Study(task, model, optimizer, grid={"repeat": REPEATS}, seeds=2, steps=2000, batch=16)


if __name__ == "__main__":
    runs = study().run("out/schedule")
    print(runs)
    runs.plot("loss", by="repeat").savefig("out/schedule/loss.png")
