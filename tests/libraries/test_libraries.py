"""Libraries, unchanged: to those that were written for torchrun, a rank is one process of a launched world; to those
that display something or look for the notebook's folder, it is a kernel beside the notebook's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import jdist
from jdist.core.messages.runs import Display, Output
from support.lacking import need

WORLD = range(4)


@pytest.fixture(autouse=True)
def quiet(cluster: jdist.Cluster) -> None:
    cluster.run("import warnings; warnings.simplefilter('ignore')")


def test_accelerate(cluster: jdist.Cluster) -> None:
    need("accelerate")
    code = """
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.arange(64))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    seen = []
    for x, index in loader:
        accelerator.backward(model(x).pow(2).mean() * (rank + 1))
        optimizer.step()
        optimizer.zero_grad()
        seen += accelerator.gather_for_metrics(index).tolist()
    total = accelerator.reduce(torch.tensor(float(rank)))
    weights = accelerator.gather(model.module.weight.detach()[None])
    (
        accelerator.num_processes, accelerator.process_index, accelerator.local_process_index, sorted(seen),
        total.item(), all(torch.equal(w, weights[0]) for w in weights), accelerator.is_main_process,
    )
    """
    run = cluster.run(code, timeout=120)
    assert run.values == {r: (4, r, r % 2, list(range(64)), 6.0, True, r == 0) for r in WORLD}


def test_lightning_fabric(cluster: jdist.Cluster) -> None:
    need("lightning")
    code = """
    from lightning.fabric import Fabric
    fabric = Fabric(accelerator="cpu", strategy="ddp", devices=2, num_nodes=2)
    fabric.launch()
    torch.manual_seed(rank)
    model = torch.nn.Linear(4, 2)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    fabric.backward(model(torch.randn(8, 4)).pow(2).mean())
    optimizer.step()
    weights = fabric.all_gather(next(model.parameters()).detach())
    fabric.barrier()
    (
        fabric.world_size, fabric.global_rank, fabric.local_rank, fabric.node_rank, fabric.broadcast(rank * 10, src=2),
        bool((weights == weights[0]).all()),
    )
    """
    run = cluster.run(code, timeout=120)
    assert run.values == {r: (4, r, r % 2, r // 2, 20, True) for r in WORLD}


def test_lightning_trainer(cluster: jdist.Cluster) -> None:
    """Its bar is drawn by rank 0, as text, over itself."""
    need("lightning")
    code = """
    import lightning, tempfile

    class Tiny(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)

        def training_step(self, batch, index):
            loss = self.layer(batch[0]).pow(2).mean()
            self.log("loss", loss, prog_bar=True, on_epoch=True, sync_dist=True)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 4)), batch_size=4)
    trainer = lightning.Trainer(
        accelerator="cpu", strategy="ddp", devices=2, num_nodes=2, max_epochs=2, logger=False,
        enable_checkpointing=False, enable_model_summary=False,
        callbacks=[lightning.pytorch.callbacks.TQDMProgressBar()],
    )
    module = Tiny()
    trainer.fit(module, data)
    loss = round(float(trainer.callback_metrics["loss"]), 6)
    (trainer.world_size, trainer.global_rank, trainer.num_training_batches, loss)
    """
    run = cluster.run(code, timeout=120)
    loss = run.values[0][3]
    assert 0 < loss < 2
    assert run.values == {r: (4, r, 4, loss) for r in WORLD}
    said = run.outcomes[0].stdout + run.outcomes[0].stderr
    assert "Epoch 1: 100%|" in said
    assert "\r" in said
    assert "Epoch 1" not in run.outcomes[1].stdout + run.outcomes[1].stderr


def test_transformers(cluster: jdist.Cluster) -> None:
    need("transformers")
    need("accelerate")
    code = """
    import tempfile
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16,
    )
    data = [{"input_ids": torch.arange(i, i + 8), "labels": torch.tensor(i % 2)} for i in range(32)]
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder, num_train_epochs=2, per_device_train_batch_size=4, use_cpu=True, report_to=[],
            save_strategy="no", logging_steps=1, eval_strategy="epoch",
        )
        trainer = Trainer(
            model=BertForSequenceClassification(config), args=settings, train_dataset=data, eval_dataset=data
        )
        steps = trainer.train().global_step
    weights = [torch.empty_like(trainer.model.classifier.weight) for _ in range(world_size)]
    dist.all_gather(weights, trainer.model.classifier.weight.detach())
    (
        settings.world_size, settings.process_index, settings.local_process_index, steps,
        all(torch.equal(w, weights[0]) for w in weights),
        [c for c in map(lambda c: type(c).__name__, trainer.callback_handler.callbacks) if "Progress" in c],
    )
    """
    run = cluster.run(code, timeout=120)
    assert run.values == {r: (4, r, r % 2, 4, True, ["ProgressCallback"]) for r in WORLD}
    assert "100%|" in run.outcomes[0].stderr


def test_plotly(cluster: jdist.Cluster) -> None:
    """As in the notebook's kernel, its JavaScript does not travel with a figure."""
    need("plotly")
    code = """
    import plotly.graph_objects as go, plotly.io
    figure = go.Figure(go.Scatter(y=[1, 2, rank]))
    figure.show()
    display(figure)
    plotly.io.renderers.default
    """
    run = cluster.submit(code, tuple(WORLD), timeout=120)
    messages: list[object] = []
    run.watch(messages.append)
    assert run.wait(150)
    assert run.values == dict.fromkeys(WORLD, "plotly_mimetype")
    mime = "application/vnd.plotly.v1+json"
    items = [item for message in messages if isinstance(message, Output) for item in message.items]
    figures = [item for item in items if isinstance(item, Display) and not item.is_result]
    assert Counter(rank for figure in figures for rank in figure.ranks) == dict.fromkeys(WORLD, 2)
    assert {name for figure in figures for name in figure.data} == {mime}
    assert {figure.data[mime]["data"][0]["y"][2] for figure in figures} == set(WORLD)


def test_hydra(fresh_cluster: Callable[..., jdist.Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path is one beside the notebook, also where a cell has changed the working directory since."""
    need("hydra")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("lr: 0.5\n")
    monkeypatch.chdir(tmp_path)
    cluster = fresh_cluster(2, 1)
    code = """
    import os
    from hydra import compose, initialize
    os.chdir("/")
    with initialize(version_base=None, config_path="conf"):
        settings = compose("config", overrides=[f"+rank={rank}"])
    settings.lr, settings.rank
    """
    assert cluster.run(code, timeout=60).values == {0: (0.5, 0), 1: (0.5, 1)}
