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


def studies():
    task = em.SingleLocation(length=8, dim=4, position="random", indicator=True)
    model = em.Transformer(layers=1, heads=1, width=32)
    base = em.Study(
        task, model, em.Optimizer("adam", learning_rate=4e-3), seeds=2, steps=1000, batch=16
    )
    return {name: base.replace(interventions=written) for name, written in INTERVENTIONS.items()}


if __name__ == "__main__":
    for name, study in studies().items():
        plateaus = study.run("out/intervention").table["plateau"]
        print(
            f"{name:32s} plateau of each seed: {', '.join(f'{steps:.0f}' for steps in plateaus)} "
            f"steps"
        )
