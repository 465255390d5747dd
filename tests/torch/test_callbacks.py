"""Test the callbacks with the real libraries: Hugging Face, Lightning and accelerate."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch

import emergo.torch as et

from .models import WORDS, Block, Words, batch, gpt2, loss_of

STEPS = 6


class Tokens(torch.utils.data.Dataset):
    def __init__(self, n: int = 200) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        tokens = batch(i, 1)[0]
        return {"input_ids": tokens, "labels": tokens}


def hugging_face(folder, log, callback=True, **options):
    """Train GPT-2 with the Trainer; returns it with the final parameters."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="the Trainer needs accelerate")
    watching = options.pop("watch", {})
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        max_steps=STEPS,
        logging_steps=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **({"save_strategy": "no"} | options),
    )
    torch.manual_seed(0)
    trainer = transformers.Trainer(
        gpt2("sdpa"),
        arguments,
        train_dataset=Tokens(),
        eval_dataset=Tokens(4),
        callbacks=[et.HuggingFaceWatch(log, **watching)] if callback else [],
    )
    return trainer


def parameters(model) -> list[torch.Tensor]:
    return [x.detach().clone() for x in model.state_dict().values()]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of these libraries
def test_the_trainer_of_hugging_face(tmp_path):
    """The log has the loss that the Trainer reports. A resumed run continues it."""
    log = tmp_path / "log.csv"
    saves = {"eval_strategy": "steps", "eval_steps": 4, "save_strategy": "steps", "save_steps": 4}
    trainer = hugging_face(tmp_path, log, **saves)
    trainer.train()
    table = pd.read_csv(log)
    assert table["step"].tolist() == [1, 3, 4, 5, 6]
    reports = [entry for entry in trainer.state.log_history if "loss" in entry]
    trained = table.dropna(subset="loss")
    assert trained["step"].tolist() == [entry["step"] - 1 for entry in reports]
    assert trained["loss"].tolist() == [entry["loss"] for entry in reports]
    seen = trained[["entropy_0_0", "gradient_query_key_1"]]
    assert np.isfinite(seen).all(axis=None)
    assert table["induction_head_1_1"].first_valid_index() == 0
    evaluated = {e["step"]: e["eval_loss"] for e in trainer.state.log_history if "eval_loss" in e}
    assert evaluated.keys() == {4, 6}
    assert table.set_index("step")["eval_loss"].dropna().to_dict() == evaluated

    plain = hugging_face(tmp_path / "plain", log, callback=False, **saves)
    plain.train()
    for with_watch, without in zip(*map(parameters, (trainer.model, plain.model)), strict=True):
        assert torch.equal(with_watch, without)

    again = hugging_face(tmp_path, log)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    continued = pd.read_csv(log)
    assert continued["step"].tolist() == [1, 3, 5]
    pd.testing.assert_frame_equal(continued[:2][list(seen)], table[:2][list(seen)])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of these libraries
def test_an_exception_in_the_trainer_leaves_a_log(tmp_path):
    log = tmp_path / "log.csv"
    trainer = hugging_face(tmp_path, log, watch={"every": 1, "overwrite": True})
    calls = iter(range(100))

    def fail(module, args, kwargs):
        if next(calls) == 2:
            raise RuntimeError("on purpose")

    hook = trainer.model.register_forward_pre_hook(fail, with_kwargs=True)
    with pytest.raises(RuntimeError, match="on purpose"):
        trainer.train()
    hook.remove()
    trainer.train()  # replaces the log
    assert pd.read_csv(log)["step"].tolist() == list(range(STEPS))
    assert not any(module._forward_hooks for module in trainer.model.modules())
    other = hugging_face(tmp_path, log)
    with pytest.raises(ValueError, match="exists already"):
        other.train()


def lightning_module():
    lightning = pytest.importorskip("pytorch_lightning", reason="Lightning is not installed")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Words(Block("sdpa", dropout=0.2))

        def training_step(self, tokens, number):
            loss = loss_of(self.model, tokens["input_ids"])
            self.log("train_loss", loss)
            if number == getattr(self, "fails_at", None):
                raise RuntimeError("on purpose")
            return loss

        def validation_step(self, tokens, number):
            self.log("val_loss", loss_of(self.model, tokens["input_ids"]))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    return Module()


def fit(folder, module, callbacks, accumulate=1):
    lightning = pytest.importorskip("pytorch_lightning")
    data = torch.utils.data.DataLoader(Tokens(), 4)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=STEPS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accumulate_grad_batches=accumulate,
        val_check_interval=4,
        limit_val_batches=1,
        default_root_dir=folder,
        callbacks=callbacks,
    )
    trainer.fit(module, data, data)
    return trainer


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of this library
def test_lightning(tmp_path):
    """The log has the loss of the step and what the module logs. The parameters do not change."""
    trained = []
    for callbacks in ([et.LightningWatch(tmp_path / "log.csv", every=2)], []):
        torch.manual_seed(0)
        module = lightning_module()
        fit(tmp_path, module, callbacks)
        trained.append(parameters(module))
    for with_watch, without in zip(*trained, strict=True):
        assert torch.equal(with_watch, without)
    table = pd.read_csv(tmp_path / "log.csv").set_index("step")
    assert table.index.tolist() == [0, 2, 4]
    assert table["loss"].tolist() == pytest.approx(table["train_loss"].tolist())
    assert table["val_loss"].dropna().index.tolist() == [4]
    assert np.isfinite(table[["agreement_query_key_0", "entropy_0_1"]]).all(axis=None)

    module = lightning_module()
    module.fails_at = 2
    with pytest.raises(RuntimeError, match="on purpose"):
        fit(tmp_path, module, [et.LightningWatch(tmp_path / "failed.csv", every=1)])
    assert pd.read_csv(tmp_path / "failed.csv")["step"].tolist() == [0, 1]
    assert not any(each._forward_hooks for each in module.modules())
    module = lightning_module()
    fit(tmp_path, module, [et.LightningWatch(tmp_path / "sum.csv", every=1)], accumulate=2)
    table = pd.read_csv(tmp_path / "sum.csv").dropna(subset="loss")
    assert table["step"].tolist() == list(range(STEPS))


@pytest.mark.slow
def test_accelerate(tmp_path):
    """`watch` needs nothing else than the model, prepared or not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
        accelerator = accelerate.Accelerator(cpu=True)
        model = Words(Block("sdpa"))
        optimizer = torch.optim.Adam(model.parameters())
        model, optimizer = accelerator.prepare(model, optimizer)
        with et.watch(model, tmp_path / "log.csv", every=1) as watch:
            for step in range(3):
                loss = loss_of(model, batch(step))
                optimizer.zero_grad()
                accelerator.backward(loss)
                optimizer.step()
                watch(loss)
    table = pd.read_csv(tmp_path / "log.csv")
    assert table["step"].tolist() == [0, 1, 2]
    assert np.isfinite(table["agreement_query_key_0"]).all()
    assert model.readout.out_features == WORDS


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'KerasWatch'"):
        et.KerasWatch  # type: ignore[attr-defined]  # noqa: B018
