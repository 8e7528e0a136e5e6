"""Padding marked in sounds of which a model makes its own tokens: numbers that can be worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import unsmooth
from unsmooth.errors import UnsmoothError
from unsmooth.models.look import real_tokens_in

EACH, DIM = 4, 4
# Of sounds with 16, 10 and 8 samples in 16, the second's third token is half made of padding.
LENGTHS = torch.tensor([16, 10, 8])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return x


class Block(nn.Module):
    """Hands its tokens on twice as long, so that no measure changes with depth."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(), nn.Linear(DIM, DIM)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.self_attn(hidden_states) * 2


class Listener(nn.Module):
    """Makes a token of each four samples, real where all (or, with `rounds_up`, any) of them are."""

    def __init__(self, handed: str = "", rounds_up: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.handed, self.rounds_up = handed, rounds_up

    def forward(self, input_features: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = input_features[:, ::EACH].clone()
        mask = None
        if attention_mask is not None and not bool(attention_mask.all()) and self.handed:
            mask = self.form(self.tokens(attention_mask))
        for layer in self.layers:
            x = layer(x, mask) if self.handed == "by place" else layer(x, attention_mask=mask)
        return x

    def tokens(self, mask_BS: Tensor) -> Tensor:
        parts = mask_BS.bool().unflatten(1, (-1, EACH))
        return parts.any(2) if self.rounds_up else parts.all(2)

    def form(self, real_BN: Tensor) -> Tensor:
        seen = real_BN[:, None, None] & real_BN[:, None, :, None]
        if self.handed == "added":
            return torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
        return {"two axes": real_BN, "numbers": real_BN.long()}.get(self.handed, seen)


class Counter(Listener):
    """Hands its blocks no mask, and can say how many tokens a sound becomes."""

    def _get_feat_extract_output_lengths(self, lengths: Tensor) -> tuple[Tensor, Tensor]:
        return lengths // EACH, lengths // (2 * EACH)


def sounds(padding: float = 7.0) -> dict[str, Tensor]:
    """Tokens e1, e1, e2, e3 in the first sound, the same without the last in the second, e1, e1 in the third."""
    tokens = torch.eye(DIM)[[0, 0, 1, 2]].expand(3, -1, -1)
    real = torch.arange(16) < LENGTHS[:, None]
    filled = torch.where(real[..., None], tokens.repeat_interleave(EACH, 1), torch.tensor(padding))
    return {"input_features": filled, "attention_mask": real.long()}


def value(model: nn.Module, *batches: dict[str, Tensor]) -> list[float]:
    """The token similarity at each layer."""
    found: Any = unsmooth.scan(model, list(batches), metrics=["token_similarity"], progress=False)
    return [row.mean for row in found.curve("token_similarity")]


# |sum|²/(n·sum of |x|²): e1, e1, e2, e3 come to (4+1+1)/16; e1, e1, e2 to 5/9; e1, e1 to 1.
WHOLE, HALF, ALONE = 6 / 16, 5 / 9, 1.0
DOWN, UP = (WHOLE + ALONE + ALONE) / 3, (WHOLE + HALF + ALONE) / 3


@pytest.mark.parametrize("padding", [0.5, 7.0])
@pytest.mark.parametrize("handed", ["four axes", "two axes", "numbers", "added", "by place"])
@pytest.mark.parametrize("rounds_up", [False, True])
def test_the_mask_handed_to_blocks_says_which_tokens_are_real(handed: str, rounds_up: bool, padding: float) -> None:
    expected = UP if rounds_up else DOWN
    assert value(Listener(handed, rounds_up), sounds(padding)) == pytest.approx([expected] * 4)


def test_without_one_the_models_own_arithmetic_says_it() -> None:
    assert value(Counter(), sounds()) == pytest.approx([DOWN] * 4)
    left = {name: one.flip(1) for name, one in sounds().items()}
    with pytest.raises(UnsmoothError, match="which are not"):  # lengths say nothing of padding in front
        value(Counter(), left)


def test_without_either_padding_is_refused_and_sounds_without_padding_are_not() -> None:
    batch = sounds()
    with pytest.raises(UnsmoothError, match=r"'attention_mask' marks some but got .*'layers\.\*'.*\"token_mask\""):
        value(Listener(), batch)
    whole = {name: one[:1] for name, one in batch.items()}
    with pytest.raises(UnsmoothError, match="token_mask"):
        value(Listener(), whole, batch)
    assert value(Listener(), whole) == pytest.approx([WHOLE] * 4)
    own = Listener().tokens(batch["attention_mask"])
    assert value(Listener(), {**batch, "token_mask": own}) == pytest.approx([DOWN] * 4)


def test_padding_that_only_a_later_batch_has_is_left_out_of_it() -> None:
    batch = sounds()
    whole = {name: one[:1].repeat(3, *[1] * (one.ndim - 1)) for name, one in batch.items()}
    for model in (Listener("four axes"), Counter()):
        assert value(model, whole, batch) == pytest.approx([(3 * WHOLE + WHOLE + 2 * ALONE) / 6] * 4)


class ByPadding(nn.Module):
    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None, all_masked_rows: Any = None) -> Tensor:
        return x


def test_masks_of_padding_are_the_other_way_round_and_others_are_none() -> None:
    x, real = torch.zeros(2, 3, DIM), torch.tensor([[True, True, False], [True, True, True]])
    for mask in (~real, torch.zeros(2, 3).masked_fill(~real, -torch.inf)):
        assert real_tokens_in(ByPadding(), (x,), {"key_padding_mask": mask}, (2, 3)).equal(real)
        assert real_tokens_in(ByPadding(), (x, mask), {}, (2, 3)).equal(real)
    assert real_tokens_in(ByPadding(), (x,), {"key_padding_mask": real[:1], "all_masked_rows": ~real}, (2, 3)) is None


class Chooser(nn.Module):
    """Two stacks: of ids, and of ids that the model chooses itself, of which it makes one more than it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.speech = nn.Embedding(8, DIM), nn.Embedding(8, DIM)
        self.reader, self.speaker = (nn.ModuleList(Block() for _ in range(2)) for _ in range(2))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.text(input_ids)
        for layer in self.reader:
            x = layer(x)
        # The last id shows in one place, and the first in none.
        y = self.speech(torch.cat([torch.zeros_like(input_ids), input_ids[:, -1:]], dim=1))
        for layer in self.speaker:
            y = layer(y)
        return y


def test_ids_that_a_model_chooses_itself_are_not_those_of_the_batch() -> None:
    ids = torch.tensor([[1, 2, 3, 4], [4, 3, 2, 5]])
    batch = {"input_ids": ids, "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])}
    found: Any = unsmooth.scan(Chooser(), batch, metrics=["token_similarity"], progress=False)
    assert any("A stack was not measured" in note and "'speaker.*'" in note for note in found.notes)
    assert not [part for part in found.parts if part.stack == "speaker"]


def test_a_mask_of_windows_says_nothing_of_padding() -> None:
    class Windows(Listener):
        def form(self, real_BN: Tensor) -> Tensor:
            return torch.ones(len(real_BN), 1, real_BN.shape[1], real_BN.shape[1], dtype=torch.bool).tril()

    # Of 64 tokens all are seen by some other one, though half of the second sound is padding.
    long = {"input_features": torch.randn(2, 256, DIM, generator=torch.Generator().manual_seed(1))}
    batch = {**long, "attention_mask": (torch.arange(256) < torch.tensor([[256], [128]])).long()}
    with pytest.raises(UnsmoothError, match="token_mask"):
        value(Windows("windows"), batch)
