"""A batch seen from inside is what the model's own hooks see, and a block can be run again as it ran."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.explaining.seeing import encoder, streams, view, view_of
from tests.models.entries import ENTRIES
from tests.models.entry import Entry, Padding, real_tokens
from unsmooth.explaining.observe import Differentiable, observe
from unsmooth.models import find_anatomy, watch_attention

CASES = [(entry, padding) for entry in ENTRIES for padding in entry.paddings]
each_case = pytest.mark.parametrize(("entry", "padding"), CASES, ids=[f"{e.name}-{p}" for e, p in CASES])


def hooks(model: nn.Module) -> int:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs")
    return sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)


@each_case
def test_sites_and_maps_are_those_of_the_anatomy(entry: Entry, padding: Padding) -> None:
    model, batch = entry.model(), entry.batch(padding)
    seen = view(model, batch, real_tokens(padding), entry.prefix_tokens)
    theirs: dict[tuple[int, str], Tensor] = {}
    maps: dict[int, Tensor] = {}
    anatomy = find_anatomy(model)

    def note(layer: int, site: str, tensor: Tensor) -> None:
        theirs[layer, site] = tensor.clone()

    with torch.no_grad(), anatomy.watch(note, anatomy.sites), watch_attention(anatomy, maps.__setitem__):
        model(**batch)
    assert len(seen.layers) == entry.calls
    assert seen.missing_maps == ()
    for number, layer in enumerate(seen.layers, start=1):
        assert torch.equal(layer.sites["input"], theirs[number - 1, "residual"])
        assert torch.equal(layer.sites["output"], theirs[number, "residual"])
        assert set(layer.sites) == {"input", "output", *entry.paths}
        for site in entry.paths:
            assert torch.equal(layer.sites[site], theirs[number, site]), site
        assert layer.maps_BHNN is not None
        assert torch.equal(layer.maps_BHNN, maps[number])
    assert hooks(model) == 0


@each_case
def test_a_block_run_again_gives_what_it_gave(entry: Entry, padding: Padding) -> None:
    seen = view_of(entry, padding, torch.float32)
    for layer in seen.layers:
        with torch.no_grad():
            again = layer.rerun(layer.sites["input"])
            with Differentiable():
                by_other_kernels = layer.rerun(layer.sites["input"])
        wanted = layer.sites["output"]
        scale = float(wanted[seen.real_BN].abs().max())
        for found in (again, by_other_kernels):
            assert (found - wanted)[seen.real_BN].abs().max() <= 1e-6 * max(scale, 1.0)


def test_a_block_run_again_elsewhere_gives_something_else() -> None:
    seen = view(encoder(), streams(), None)
    layer = seen.layers[0]
    with torch.no_grad():
        moved = layer.rerun(layer.sites["input"] + 1.0)
    assert not torch.equal(moved, layer.sites["output"])
    assert torch.equal(layer.args[0], layer.sites["input"]), "the call that was kept must not change"


class Keyword(nn.Module):
    """Calls its blocks by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(src=x)
        return x


def test_blocks_called_by_keyword() -> None:
    torch.manual_seed(0)
    seen = view(Keyword().eval(), streams(), None)
    layer = seen.layers[1]
    with torch.no_grad():
        torch.testing.assert_close(layer.rerun(layer.sites["input"]), layer.sites["output"], rtol=0, atol=1e-6)
        assert (layer.rerun(layer.sites["input"] * 2) - layer.sites["output"]).abs().max() > 0.1


class BoomError(RuntimeError):
    pass


def test_hooks_are_gone_after_an_error() -> None:
    model = encoder()

    def fail(module: nn.Module, args: object) -> None:
        raise BoomError

    handle = model.layers[1].linear1.register_forward_pre_hook(fail)
    with pytest.raises(BoomError):
        observe(find_anatomy(model), streams(), None)
    handle.remove()
    assert hooks(model) == 0
    # Nothing of the failed pass is left over.
    assert len(view(model, streams(), None).layers) == 2


@pytest.mark.parametrize("masked", [None, "boolean", "added"])
def test_attention_has_forward_derivatives_and_is_the_same(masked: str | None) -> None:
    query, key, value = torch.randn(3, 2, 4, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    seen = torch.ones(5, 5).tril().bool()
    mask = {None: None, "boolean": seen, "added": torch.where(seen, 0.5, -torch.inf).double()}[masked]

    def attend(query: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(query, key, value, mask)

    scores = query @ key.mT / 8**0.5
    if mask is not None:
        scores = scores.masked_fill(~seen, -torch.inf) if masked == "boolean" else scores + mask
    step = 1e-6
    with Differentiable():
        found, tangent = torch.func.jvp(attend, (query,), (torch.ones_like(query),))
        ahead, behind = attend(query + step), attend(query - step)
    torch.testing.assert_close(found, scores.softmax(dim=-1) @ value)
    torch.testing.assert_close(tangent, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-8)


def test_torchs_own_attention_gives_what_it_gave() -> None:
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True).eval(), streams()
    with torch.no_grad():
        for wanted in (True, False):
            plain = attention(x, x, x, need_weights=wanted, average_attn_weights=False)
            with Differentiable():
                found = attention(x, x, x, need_weights=wanted, average_attn_weights=False)
            torch.testing.assert_close(found, plain)


def test_a_padding_mask_that_blocks_are_handed_is_read() -> None:
    model = encoder()
    real = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [True] * 2 + [False] * 4])
    batch = {"src": streams(), "src_key_padding_mask": ~real}
    assert torch.equal(view(model, batch, None).real_BN, real)
    assert view(model, streams(), None).real_BN.all()
    other = real.flip(0)
    assert torch.equal(view(model, batch, other).real_BN, other), "what the caller says goes first"


def test_a_block_alone_is_a_stack_of_one() -> None:
    seen = view(encoder().layers[0], streams(), None)
    assert [layer.path for layer in seen.layers] == [""]


def test_blocks_of_unknown_families_have_no_maps_but_a_stream() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with torch.no_grad():
        seen = observe(find_anatomy(model, "*"), streams(), None)
    assert len(seen.layers) == 2
    assert set(seen.layers[0].sites) == {"input", "output"}
    assert all(layer.maps_BHNN is None for layer in seen.layers)
    assert len(seen.missing_maps) == 1
