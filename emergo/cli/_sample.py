"""`emergo sample`: continue a text with a trained language model."""

import dataclasses

from ..core.terminal import print_json, say, short, show
from ._study import StudyOptions


@dataclasses.dataclass(frozen=True)
class Sample(StudyOptions):
    """Continue a text with a model that was trained on text and kept (`--keep`)."""

    prompt: str = ""  # The text to continue; by default a new document.
    index: int = 0  # Row of the run in the table of the study's finished runs.
    step: int | None = None  # A step at which parameters were kept; by default the last.
    tokens: int = 200  # Number of tokens to draw.
    temperature: float = 1.0  # Divides the logits; 0 chooses the most likely token.
    seed: int = 0  # Seed of the random draws.

    def run(self) -> None:
        study = self.read_study()
        runs = study.read(self.folder, curves=False)
        trained = runs.parameters(self.index, self.step)
        if len(runs) > 1:
            values = zip(study.axes, study.values_of(trained.run), strict=True)
            cell = [f"{name} {short(value)}" for name, value in values]
            words = ", ".join([*cell, f"seed {trained.run.seed}", f"step {trained.step}"])
            say(f"run {self.index} of {len(runs)}: {words}; --index chooses")
        text = trained.sample(self.prompt, self.tokens, self.temperature, self.seed)
        if self.json:
            about = {"run": trained.run.identity, "step": trained.step, "prompt": self.prompt}
            return print_json(about | {"text": text})
        show(self.prompt + text)
