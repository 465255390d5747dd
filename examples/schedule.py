"""Schedules: repeat the relevant token early, then stop: at a step, along a line, or when attention has formed.

python examples/schedule.py
"""

import emergo as em

REPEATS = [
    0.0,  # never
    0.5,  # in half of the sequences, for ever
    em.Switch(0.5, 0.0, at=200),
    em.Ramp(0.5, 0.0, begin=100, end=500),
    em.When("attention", above=0.5, before=0.5, after=0.0),  # reacts to what the run's own evaluations measure
]


def study():
    task = em.SingleLocation(length=16, dim=8, position="random", indicator=True, special="draw")
    model = em.Transformer(layers=1, heads=1, width=32)
    optimizer = em.Optimizer("adam", learning_rate=em.WarmupCosine(4e-3, warmup=50, end=3000))
    return em.Study(task, model, optimizer, grid={"repeat": REPEATS}, seeds=2, steps=2000, batch=16)


if __name__ == "__main__":
    runs = study().run("out/schedule")
    print(runs)
    runs.plot("loss", by="repeat").savefig("out/schedule/loss.png")
