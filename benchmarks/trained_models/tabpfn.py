"""TabPFN (arXiv 2207.01848), a classifier whose tokens are the rows of a table, on torch's own encoder.

Each row is one token: its features and its class, each through a linear layer, added. Rows whose class is known attend
to one another and to nothing else, so without rows to classify the attention map is square.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unsmooth.errors import expected

CHECKPOINT = "prior_diff_real_checkpoint_n_0_epoch_42.cpkt"
TABLES = ("iris.csv", "wine_data.csv", "breast_cancer.csv", "digits.csv.gz")
ROWS = 100
DRAWS = 8
OUTLIER_SIGMAS = 4.0
LARGEST = 100.0


class TabPFN(nn.Module):
    """Post-norm encoder over rows; sizes are those of the weights, names those of the checkpoint.

    Args:
        weights: Parameters by name.
        heads: Attention heads of each layer.
    """

    def __init__(self, weights: Mapping[str, Tensor], heads: int) -> None:
        super().__init__()
        width, features = weights["encoder.weight"].shape
        hidden = weights["transformer_encoder.layers.0.linear1.weight"].shape[0]
        layers = len({name.split(".")[2] for name in weights if name.startswith("transformer_encoder.layers.")})
        layer = nn.TransformerEncoderLayer(width, heads, hidden, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.Linear(features, width)
        self.y_encoder = nn.Linear(1, width)
        self.transformer_encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        decoder_hidden, classes = weights["decoder.0.weight"].shape[0], weights["decoder.2.weight"].shape[0]
        self.decoder = nn.Sequential(nn.Linear(width, decoder_hidden), nn.GELU(), nn.Linear(decoder_hidden, classes))
        self.load_state_dict(dict(weights))

    def forward(self, features: Tensor, classes: Tensor) -> Tensor:
        """Logits (batch, rows, classes) of rows (batch, rows, features) of known class (batch, rows)."""
        rows_BND = self.encoder(features) + self.y_encoder(classes[..., None])
        logits: Tensor = self.decoder(self.transformer_encoder(rows_BND))
        return logits


def build_tabpfn(folder: Path) -> TabPFN:
    """The model in a checkpoint of TabPFN: a pickle of (weights, optimizer, settings), read as plain values alone."""
    content = torch.load(folder / CHECKPOINT, map_location="cpu", weights_only=True)
    try:
        weights, _, settings = content
        # Wrapped for training on several devices; the weights of the loss are no part of the model.
        kept = {name.removeprefix("module."): value for name, value in weights.items() if "criterion" not in name}
        return TabPFN(kept, int(settings["nhead"])).eval()
    except (ValueError, KeyError, AttributeError, RuntimeError) as error:
        raise expected(f"a checkpoint of TabPFN v1 in {CHECKPOINT}", repr(error), "to download it again") from None


def read_tables(folder: Path, width: int = 100, rows: int = ROWS, draws: int = DRAWS) -> dict[str, Tensor]:
    """Random draws of rows from each table, encoded as the model was trained to read them.

    Args:
        folder: Where the tables are.
        width: Features that the model takes.
        rows: Rows in a draw.
        draws: Draws from each table.
    """
    generator = np.random.default_rng(0)
    features, classes = [], []
    for name in TABLES:
        table = read_table(folder / name)
        for _ in range(draws):
            drawn = table[generator.permutation(len(table))[:rows]]
            features.append(encode(drawn[:, :-1], width))
            classes.append(drawn[:, -1])
    return {
        "features": torch.tensor(np.stack(features), dtype=torch.float32),
        "classes": torch.tensor(np.stack(classes), dtype=torch.float32),
    }


def read_table(path: Path) -> NDArray[np.float64]:
    """Rows of features with the class last; a first line that names the classes is left out."""
    start = 0 if path.suffix == ".gz" else 1
    return np.loadtxt(path, delimiter=",", skiprows=start, ndmin=2)


def encode(features_NF: NDArray[Any], width: int) -> NDArray[np.float64]:
    """Standardise each feature, bend outliers in, and fill up to `width` features with zeros at the same total scale.

    >>> encode(np.array([[1.0, 5.0], [3.0, 5.0]]), 3).round(3).tolist()  # the second feature says nothing
    [[-2.121, 0.0, 0.0], [2.121, 0.0, 0.0]]
    """
    kept = features_NF[:, features_NF.std(axis=0) > 0]
    scaled = np.clip((kept - kept.mean(axis=0)) / (kept.std(axis=0, ddof=1) + 1e-6), -LARGEST, LARGEST)
    bent = _bend_outliers(scaled) * width / kept.shape[1]
    return np.pad(bent, ((0, 0), (0, width - kept.shape[1])))


def _bend_outliers(values_NF: NDArray[np.float64]) -> NDArray[np.float64]:
    """Beyond 4 standard deviations of what remains without such values, grow with the logarithm only."""
    low, high = _band(values_NF)
    low, high = _band(np.where((values_NF < low) | (values_NF > high), np.nan, values_NF))
    growth = np.log1p(np.abs(values_NF))
    return np.minimum(high + growth, np.maximum(low - growth, values_NF))


def _band(values_NF: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    middle, spread = np.nanmean(values_NF, axis=0), OUTLIER_SIGMAS * np.nanstd(values_NF, axis=0, ddof=1)
    return middle - spread, middle + spread
