"""Interventions: hold attention uniform until a step, scale its scores, or stop its gradient; the
rest is trained as ever.

python examples/intervention.py
"""

import emergo as em

INTERVENTIONS = {
    "none": (),
    "uniform until step 300": (em.Clamp("layers.0.pattern", until=300),),
    "scores doubled": (em.Scale("layers.0.scores", factor=2.0),),
    "no gradient through the pattern": (em.Freeze("layers.0.pattern"),),
}


def study():
    task = em.SingleLocation(length=8, dim=4, position="random", indicator=True)
    model = em.Transformer(layers=1, heads=1, width=32)
    adam = em.Optimizer("adam", learning_rate=4e-3)
    grid = {"interventions": INTERVENTIONS}
    return em.Study(task, model, adam, grid=grid, seeds=2, steps=1000, batch=16)


if __name__ == "__main__":
    print(study().run("out/intervention"))
