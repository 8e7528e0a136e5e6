from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.remedies.hosts import BY_NAME
from unsmooth import remedies
from unsmooth.errors import UnsmoothError
from unsmooth.remedies.call import Call, read_mask
from unsmooth.remedies.entering import EnterBlock
from unsmooth.remedies.token_mean import token_mean

BATCH, TOKENS, DIM = 3, 7, 4
CUTS = torch.tensor([0, 3, 7, 8])


def call_of(x: Tensor, **fields: Any) -> Call:
    return Call(x, **{"causal": False, "real_BN": None, "starts_BN": None, "memory": None, "shared": {}, **fields})


def vectors(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape or (BATCH, TOKENS, DIM), generator=torch.Generator().manual_seed(0), dtype=dtype)


def by_hand(x: Tensor, seen: Tensor, prior: float = 0.0, keep_alone: bool = False) -> Tensor:
    """Token by token in float64: row i of `seen` (batch, tokens, tokens) says whom token i sees."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for row in range(x.shape[0]):
        for token in range(x.shape[1]):
            who = seen[row, token]
            number = int(who.sum())
            if number and not (keep_alone and number == 1):
                out[row, token] = x[row, who].double().sum(0) / max(number + prior, 1.0)
    return out


def lower() -> Tensor:
    return torch.ones(BATCH, TOKENS, TOKENS).tril().bool()


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("prior", "keep_alone"), [(0.0, False), (0.0, True), (2.5, False)])
def test_padded(side: str, causal: bool, prior: float, keep_alone: bool) -> None:
    x = vectors()
    lengths = torch.tensor([[7], [4], [1]])
    real = torch.arange(TOKENS) < lengths if side == "right" else torch.arange(TOKENS) >= TOKENS - lengths
    x = torch.where(real[..., None], x, float("nan"))
    seen = (lower() if causal else torch.ones(BATCH, TOKENS, TOKENS).bool()) & real[:, None]
    mean = token_mean(x, call_of(x, causal=causal, real_BN=real), "x", prior=prior, keep_alone=keep_alone)
    wanted = by_hand(torch.nan_to_num(x), seen, prior, keep_alone)
    torch.testing.assert_close(mean.expand(x.shape)[real].double(), wanted[real], atol=1e-6, rtol=1e-6)
    assert mean.isfinite().all()


def test_whole_looks_ahead_in_a_causal_model() -> None:
    x = vectors()
    mean = token_mean(x, call_of(x, causal=True), "x", whole=True)
    torch.testing.assert_close(mean, x.mean(1, keepdim=True))


def test_heads_have_means_of_their_own() -> None:
    x = vectors(BATCH, TOKENS, 2, 3)
    mean = token_mean(x, call_of(x, causal=True), "x")
    for head in range(2):
        alone = token_mean(x[:, :, head], call_of(x, causal=True), "x")
        torch.testing.assert_close(mean[:, :, head], alone)


def test_packed_sequences_do_not_meet() -> None:
    x = vectors()
    starts = torch.zeros(BATCH, TOKENS, dtype=torch.bool)
    starts[0, 3] = starts[0, 5] = starts[1, 1] = True
    seen = lower() & (starts.cumsum(1)[:, :, None] == starts.cumsum(1)[:, None])
    mean = token_mean(x, call_of(x, causal=True, starts_BN=starts), "x")
    torch.testing.assert_close(mean.double(), by_hand(x, seen), atol=1e-6, rtol=1e-6)


def test_sums_are_exact_in_half_precision() -> None:
    # 2,048 ones and a half: in bfloat16 a running sum stops at 256.
    x = torch.ones(1, 2049, 1, dtype=torch.bfloat16)
    x[0, -1] = 0.5
    for causal in (True, False):
        mean = token_mean(x, call_of(x, causal=causal), "x")
        assert mean.dtype == torch.bfloat16
        assert mean[0, -1].item() == pytest.approx(2048.5 / 2049, abs=4e-3)
    assert token_mean(x, call_of(x, causal=True), "x")[0, -2].item() == 1.0


class Remembered:
    """A cache's place without a cache."""

    def __init__(self) -> None:
        self.held: dict[str, Tensor] = {}

    def read(self, key: str) -> Tensor | None:
        return self.held.get(key)

    def write(self, key: str, value: Tensor) -> None:
        self.held[key] = value


@pytest.mark.parametrize("sizes", [(1,) * TOKENS, (3, 4), (2, 1, 4)])
def test_in_pieces_it_is_the_same(sizes: tuple[int, ...]) -> None:
    x = vectors()
    real = torch.arange(TOKENS) >= torch.tensor([[0], [3], [6]])
    whole = token_mean(x, call_of(x, causal=True, real_BN=real), "x", keep_alone=True)
    memory, pieces, start = Remembered(), [], 0
    for size in sizes:
        now = slice(start, start + size)
        call = call_of(x[:, now], causal=True, real_BN=real[:, now], memory=memory)
        pieces.append(token_mean(x[:, now], call, "x", keep_alone=True))
        start += size
    torch.testing.assert_close(torch.cat(pieces, 1), whole)


def test_a_sequence_that_begins_in_a_piece_forgets_what_was_before() -> None:
    x = vectors()
    starts = torch.zeros(BATCH, TOKENS, dtype=torch.bool)
    starts[:, 5] = True
    seen = lower() & (starts.cumsum(1)[:, :, None] == starts.cumsum(1)[:, None])
    memory = Remembered()
    first = token_mean(x[:, :3], call_of(x[:, :3], causal=True, memory=memory), "x")
    call = call_of(x[:, 3:], causal=True, starts_BN=starts[:, 3:], memory=memory)
    together = torch.cat([first, token_mean(x[:, 3:], call, "x")], 1)
    torch.testing.assert_close(together.double(), by_hand(x, seen), atol=1e-6, rtol=1e-6)


def additive(seen: Tensor, low: float) -> Tensor:
    return torch.zeros(seen.shape).masked_fill(~seen, low)


@pytest.mark.parametrize("low", [float("-inf"), torch.finfo(torch.float32).min, -10000.0, None])
def test_masks_in_all_their_forms(low: float | None) -> None:
    real = torch.arange(5) >= torch.tensor([[0], [2]])
    seen = (torch.ones(5, 5).tril().bool() & real[:, None])[:, None]
    mask = seen if low is None else additive(seen, low)
    found, starts = read_mask(mask, 2, 5, causal=True)
    assert torch.equal(found, real)
    assert not starts.any()
    # The same for every query: (batch, 1, 1, keys).
    keys = real[:, None, None] if low is None else additive(real[:, None, None], low)
    assert torch.equal(read_mask(keys, 2, 5, causal=False)[0], real)


def test_masks_of_the_newest_tokens() -> None:
    real = torch.arange(5) >= torch.tensor([[0], [2]])
    seen = (torch.ones(5, 5).tril().bool() & real[:, None])[:, None]
    assert torch.equal(read_mask(seen[:, :, 3:], 2, 2, causal=True)[0], real[:, 3:])
    assert torch.equal(read_mask(seen[:, :, 4:], 2, 1, causal=True)[0], real[:, 4:])
    assert torch.equal(read_mask(real.long(), 2, 3, causal=True)[0], real[:, 2:])


def test_a_window_is_not_a_beginning() -> None:
    window = torch.ones(6, 6).tril().triu(-1).bool()[None, None]
    assert not read_mask(window, 1, 6, causal=True)[1].any()


@pytest.mark.parametrize("mask", [object(), torch.ones(2, 3, 3)])
def test_masks_that_cannot_be_read(mask: Any) -> None:
    with pytest.raises(UnsmoothError, match="mask"):
        read_mask(mask, 2, 3, causal=False)


class FlashConfig:
    _attn_implementation = "flash_attention_2"


@pytest.mark.parametrize("told", [{"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3, 0]])}, {"cu_seq_lens_q": CUTS}])
def test_kernels_without_a_mask_are_told_of_packed_rows_otherwise(told: dict[str, Tensor]) -> None:
    """No such kernel runs here, so the block is only entered."""
    block = remedies.apply(BY_NAME["llama"].model(), "deescalate").model.layers[0]
    x = torch.randn(1, 8, 32)
    (enter,) = [hook for hook in block._forward_pre_hooks.values() if isinstance(hook, EnterBlock)]
    enter(block, (x,), {"attention_mask": None, **told})
    assert enter.now.held["call"].starts_BN is None  # the kernels of torch are told by their mask
    block.self_attn.config = FlashConfig()
    enter(block, (x,), {"attention_mask": None, **told})
    assert enter.now.held["call"].starts_BN.nonzero()[:, 1].tolist() == [3, 7]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_decoder_that_is_told_to_see_both_ways(attention: str) -> None:
    host = BY_NAME["llama"]
    plain = host.model()
    plain.config.is_causal = False
    plain.set_attn_implementation(attention)
    model, noted = remedies.apply(plain, "centred", tau=1.0, layers=[0]), []
    inner = model.model.layers[0].self_attn
    inner.v_proj.register_forward_hook(lambda module, args, values: noted.append(values))
    inner.o_proj.register_forward_pre_hook(lambda module, args: noted.append(args[0]))
    with torch.no_grad():
        model(input_ids=host.inputs())
        values, centred = noted
        noted.clear()
        remedies.undo(model)(input_ids=host.inputs())
    mean = values.mean(1, keepdim=True).unflatten(-1, (2, 8)).repeat_interleave(2, dim=2).flatten(2)
    torch.testing.assert_close(centred, noted[1] - mean)


def test_what_only_a_decoder_can_have_or_cannot_goes_by_what_it_is_told() -> None:
    model = BY_NAME["llama"].model()
    model.config.is_causal = False
    with pytest.raises(UnsmoothError, match="its attention is not causal"):
        remedies.apply(model, "spa")
    remedies.apply(model, "softdecay")(input_ids=BY_NAME["llama"].inputs())


def test_a_mask_of_other_tokens_is_refused() -> None:
    with pytest.raises(UnsmoothError, match="a row for each token but got one of 7 queries for 21 tokens"):
        read_mask(torch.zeros(1, 1, 7, 7), 1, 21, causal=True)
