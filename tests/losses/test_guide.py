"""The examples of the guides run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

DOCS = Path(__file__).parents[2] / "docs"


def run_examples(page: str) -> dict[str, Any]:
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"<!-- run by a test -->\n```python\n(.*?)```", text, flags=re.DOTALL)
    assert blocks
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    return names


def test_losses_in_a_loop_and_in_a_trainer(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    names = run_examples("losses.md")
    assert torch.isfinite(names["loss"])
    model, batch = names["model"], names["batch"]
    settings = transformers.TrainingArguments(
        output_dir=str(tmp_path), report_to=[], use_cpu=True, gradient_accumulation_steps=2, save_strategy="no"
    )
    trainer = names["Apart"](model=model, args=settings)
    model.eval()
    plain = trainer.compute_loss(model, dict(batch)).item()
    assert plain == pytest.approx(model(**batch).loss.item(), rel=1e-6)
    for module in model.modules():
        module.p = 0.0 if isinstance(module, torch.nn.Dropout) else getattr(module, "p", None)
    model.train()
    out = model(**batch, output_hidden_states=True)
    added = names["losses"].cosine(out.hidden_states[-1], batch["attention_mask"].bool()).item()
    found = trainer.compute_loss(model, dict(batch)).item()
    assert found == pytest.approx(out.loss.item() + 0.1 * added / 2, rel=1e-5)


def test_posthoc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = run_examples("posthoc.md")
    torch.testing.assert_close(names["back"], names["x"], atol=1e-3, rtol=0)
