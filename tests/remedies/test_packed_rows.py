"""Tokens that a mask keeps apart, two sequences in one row or later ones, where means do not know it: refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.remedies.hosts import BY_NAME
from unsmooth import remedies
from unsmooth.errors import UnsmoothError

FIRST, TOKENS = 3, 8
AVERAGING = ("deescalate", "centred", "contranorm", "pairnorm", "shaped", "attnscale", "featscale", "softdecay")
apart = torch.block_diag(torch.ones(FIRST, FIRST), torch.ones(TOKENS - FIRST, TOKENS - FIRST)).bool()
REFUSED = "one sequence in each row for {}, .* but got several that the mask keeps apart"


def bert(name: str) -> Any:
    return remedies.apply(BY_NAME["bert"].model(), name).eval()


@pytest.mark.parametrize("name", AVERAGING)
def test_in_an_encoder(name: str) -> None:
    ids = BY_NAME["bert"].inputs()[:1].repeat(1, 4)[:, :TOKENS]
    with pytest.raises(UnsmoothError, match=REFUSED.format(name)):
        bert(name)(input_ids=ids, attention_mask=apart[None, None])
    # Padding on either side, a window and no mask at all are one sequence each.
    padded = torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool)
    padded[..., :2] = False
    near = (torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)).abs() < 3
    for mask in (padded, padded.flip(-1), near[None, None], None):
        bert(name)(input_ids=ids, attention_mask=mask)


ONE_WAY = "tokens that see each other for {}, .* but got a mask that hides later ones from those before"
future = torch.ones(TOKENS, TOKENS).tril().bool()
prefixed = future | (torch.arange(TOKENS) < FIRST)


@pytest.mark.parametrize("seen", [future, prefixed], ids=["future", "prefixed"])
@pytest.mark.parametrize("name", AVERAGING)
def test_a_future_that_only_the_mask_hides_from_an_encoder(name: str, seen: Tensor) -> None:
    ids = BY_NAME["bert"].inputs()[:1].repeat(1, 4)[:, :TOKENS]
    lowest = torch.finfo(torch.float).min
    for mask in (seen[None, None], torch.zeros(1, 1, TOKENS, TOKENS).masked_fill(~seen, lowest)):
        with pytest.raises(UnsmoothError, match=ONE_WAY.format(name)):
            bert(name)(input_ids=ids, attention_mask=mask)


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("name", ["deescalate", "centred", "contranorm", "pairnorm"])
def test_a_prefix_that_sees_no_more_than_itself_in_torchs_layers(name: str, kind: str) -> None:
    with pytest.raises(UnsmoothError, match=ONE_WAY.format(name)):
        encoder(name)(torch.randn(1, TOKENS, 8), mask=hiding(prefixed, kind))


def test_a_leak_that_was_allowed_stays_allowed() -> None:
    encoder("softdecay", allow_leak=True)(torch.randn(1, TOKENS, 8), mask=hiding(prefixed, "bool"))
    with pytest.raises(UnsmoothError, match=ONE_WAY.format("softdecay")):
        encoder("softdecay")(torch.randn(1, TOKENS, 8), mask=hiding(prefixed, "bool"))


@pytest.mark.parametrize("name", ["gfsa", "talking_heads", "differential", "layerscale"])
def test_what_goes_by_attentions_own_map_hides_the_future(name: str) -> None:
    ids = BY_NAME["bert"].inputs()[:1].repeat(1, 4)[:, :TOKENS]
    other, model = ids.clone(), bert(name)
    other[:, 5] = (ids[:, 5] - 4) % 45 + 5
    with torch.no_grad():
        before, after = (model(input_ids=one, attention_mask=future[None, None])[0] for one in (ids, other))
    assert torch.equal(before[:, :5], after[:, :5])


@pytest.mark.parametrize("name", ["gfsa", "talking_heads", "differential", "layerscale"])
def test_what_goes_by_attentions_own_map_keeps_them_apart(name: str) -> None:
    ids = BY_NAME["bert"].inputs()[:1].repeat(1, 4)[:, :TOKENS]
    places = torch.cat([torch.arange(FIRST), torch.arange(TOKENS - FIRST)])[None]
    model = bert(name)
    with torch.no_grad():
        both = model(input_ids=ids, attention_mask=apart[None, None], position_ids=places)[0]
        alone = model(input_ids=ids[:, FIRST:])[0]
    torch.testing.assert_close(both[:, FIRST:], alone, atol=1e-5, rtol=1e-4)


def encoder(name: str, **options: Any) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    return remedies.apply(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), name, **options).eval()


def hiding(seen: Tensor, kind: str) -> Tensor:
    return ~seen if kind == "bool" else torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["deescalate", "centred", "contranorm", "pairnorm"])
def test_in_torchs_layers(name: str, causal: bool, kind: str) -> None:
    x, model = torch.randn(1, TOKENS, 8), encoder(name)
    whole = torch.ones(TOKENS, TOKENS).tril().bool() if causal else torch.ones(TOKENS, TOKENS).bool()
    with pytest.raises(UnsmoothError, match=REFUSED.format(name)):
        model(x, mask=hiding(whole & apart, kind))
    model(x, mask=hiding(whole, kind))


def test_places_are_counted_from_where_a_sequence_begins() -> None:
    model, causal = encoder("spa"), torch.ones(TOKENS, TOKENS).tril().bool()
    with pytest.raises(UnsmoothError, match=REFUSED.format("spa")):
        model(torch.randn(1, TOKENS, 8), mask=hiding(causal & apart, "float"))
    model(torch.randn(1, TOKENS, 8), mask=hiding(causal, "float"))


def test_whatever_is_in_the_blocks_before() -> None:
    model = remedies.apply(BY_NAME["bert"].model(), "residual_scaling", layers=[0])
    remedies.apply(model, "contranorm", layers=[1, 2])
    ids = BY_NAME["bert"].inputs()[:1].repeat(1, 4)[:, :TOKENS]
    with pytest.raises(UnsmoothError, match=REFUSED.format("contranorm")):
        model(input_ids=ids, attention_mask=apart[None, None])


def test_masks_that_hide_some_and_keep_nobody_apart() -> None:
    x, model = torch.randn(2, TOKENS, 8), encoder("contranorm")
    seen = torch.ones(TOKENS, TOKENS).bool()
    seen[:, 2] = False
    model(x, mask=~seen)  # one that nobody sees
    places = torch.arange(TOKENS)
    model(x, mask=(places[:, None] - places) % 2 == 1)  # but this is two sequences, shuffled
    every_other = (places[:, None] - places) % 2 == 0
    model(x, mask=~(every_other | (places == 0)))
