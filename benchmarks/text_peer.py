"""The peer of language models: a compiled PyTorch loop that trains one run.

It has fused attention, fused AdamW and bf16 autocast: what a researcher writes who wants one model
to train fast on one GPU. Needs the extra `bench`.
"""

import dataclasses
import importlib.util
import statistics
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.text import TextCase

torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None


def torch_language_model(case: "TextCase") -> Any:
    """Return the model of a case: pre-norm, GELU, learned positions, a separate readout."""
    nn = torch.nn
    width = case.width

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
            self.query_key_value = nn.Linear(width, 3 * width)
            self.out = nn.Linear(width, width)
            self.up = nn.Linear(width, 4 * width)
            self.down = nn.Linear(4 * width, width)

        def forward(self, x):
            n, length, _ = x.shape
            maps = self.query_key_value(self.norms[0](x)).split(width, -1)
            q, k, v = (part.view(n, length, case.heads, -1).transpose(1, 2) for part in maps)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(n, length, width))
            hidden = nn.functional.gelu(self.up(self.norms[1](x)), approximate="tanh")
            return x + self.down(hidden)

    class LanguageModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(case.vocabulary, width)
            self.positions = nn.Parameter(torch.randn(case.length, width))
            self.blocks = nn.ModuleList(Block() for _ in range(case.layers))
            self.norm = nn.LayerNorm(width)
            self.readout = nn.Linear(width, case.vocabulary)

        def forward(self, tokens):
            x = self.embed(tokens) + self.positions
            for block in self.blocks:
                x = block(x)
            return self.readout(self.norm(x))

    return LanguageModel()


def language_loss(model: Any, tokens: Any) -> Any:
    """Return the mean cross-entropy of the next tokens."""
    logits = model(tokens[:, :-1])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


@dataclasses.dataclass
class Loop:
    """A training loop on random tokens, drawn on the device."""

    case: "TextCase"
    model: Any
    optimizer: Any
    loss: Any  # `language_loss`, compiled
    device: str

    @classmethod
    def of(cls, case: "TextCase") -> "Loop":
        torch.set_float32_matmul_precision("high")
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = torch_language_model(case).to(device)
        fused = device == "cuda"
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=fused)
        return cls(case, model, optimizer, torch.compile(language_loss), device)

    def step(self) -> Any:
        """Take one step; return its loss."""
        case = self.case
        size = (case.batch, case.length + 1)
        tokens = torch.randint(case.vocabulary, size, device=self.device)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device, torch.bfloat16):
            loss = self.loss(self.model, tokens)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def seconds(self, steps: int) -> float:
        """Time some steps; return the seconds of one."""
        begun = time.perf_counter()
        for _ in range(steps):
            self.step()
        if self.device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - begun) / steps


def peer_row(case: "TextCase", seconds: float) -> dict[str, float]:
    """Time the peer for about so many seconds after it was compiled.

    **Returns:** milliseconds per step, the median of five blocks, and the peak of its memory on a
    GPU in GB.
    """
    torch.manual_seed(0)
    loop = Loop.of(case)
    loop.seconds(3)
    steps = max(1, int(seconds / 5 / loop.seconds(3)))
    milliseconds = 1e3 * statistics.median(loop.seconds(steps) for _ in range(5))
    memory = torch.cuda.max_memory_allocated() / 1e9 if loop.device == "cuda" else float("nan")
    del loop
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return {"ms": milliseconds, "memory_gb": memory}
