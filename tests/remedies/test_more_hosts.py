"""Hosts beyond one of each family, in a few chosen cases (the matrix has them all), and what is special about them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from tests.remedies import checks_lifecycle, checks_tokens, checks_training  # noqa: F401 - register the checks
from tests.remedies.harness import Case, run_all
from tests.remedies.hosts import BY_NAME, DIM, PAD, SPECIAL, VOCAB
from tests.remedies.settings import SETTINGS
from tests.remedies.snapshot import Snapshot
from unsmooth import remedies
from unsmooth.errors import UnsmoothError

CHOSEN = (
    ("neutreno", "timm_vit"),
    ("deescalate", "timm_vit"),
    ("attnscale", "clip_text"),
    ("contranorm", "clip_vision"),
    ("featscale", "siglip_vision"),
    ("sharpen", "dinov2"),
    ("rezero", "gemma2"),
    ("residual_scaling", "gemma2"),
    ("sharpen", "gemma3"),
    ("deescalate", "t5_encoder"),
    ("contranorm", "t5"),
    ("rezero", "swin"),
    ("deescalate", "swin"),
    ("deepnorm", "deberta_v2"),
    ("attnscale", "deberta_v2"),
    ("deescalate", "modernbert"),
    ("attnscale", "bloom"),
    ("neutreno", "falcon"),
    ("sharpen", "phi3"),
)


@pytest.mark.parametrize(("remedy", "host"), CHOSEN)
def test_remedy_on_host(remedy: str, host: str) -> None:
    found = run_all(Case(remedy, next(iter(SETTINGS[remedy])), BY_NAME[host]), without=("compiles whole",))
    failed = [f"{words}: {outcome.reason}" for words, outcome in found.items() if outcome.status == "fail"]
    assert found["applies"].status == "pass"
    assert not failed, "\n".join(failed)


def seen_at(model: nn.Module, path: str, call: dict[str, Any]) -> Tensor:
    """What the module at `path` gives, in float64."""
    kept: list[Any] = []
    handle = model.get_submodule(path).register_forward_hook(lambda module, args, output: kept.append(output))
    with torch.no_grad():
        model(**call)
    handle.remove()
    return (kept[0] if isinstance(kept[0], Tensor) else kept[0][0]).double()


@pytest.mark.parametrize(
    ("host", "weight"),
    [
        ("gemma2", "model.layers.1.post_attention_layernorm.weight"),
        ("gemma3", "model.layers.1.post_feedforward_layernorm.weight"),
    ],
)
def test_a_norm_that_adds_one_to_its_weight_folds_with_it(host: str, weight: str) -> None:
    model = BY_NAME[host].model()
    before = model.get_parameter(weight).detach().double()
    remedies.fold(remedies.apply(model, "residual_scaling", scale=0.25))
    torch.testing.assert_close(model.get_parameter(weight).double(), 0.25 * (1.0 + before) - 1.0, atol=1e-6, rtol=0)


def test_the_mean_in_t5_is_over_real_tokens_of_its_own_stack() -> None:
    """Encoder: over those that are no padding; decoder: over those up to each one; cross-attention is left alone."""
    host = BY_NAME["t5"]
    source = torch.tensor([[7, 8, 9, 10, 11], [12, 13, 14, PAD, PAD]])
    call = {"input_ids": source, "attention_mask": (source != PAD).long(), "decoder_input_ids": host.inputs()}
    plain, model = host.model(), remedies.apply(host.model(), "deescalate", first="remove", layers=[0])
    at = "encoder.block.0.layer.0.dropout"
    branch, real = seen_at(plain, at, call), (source != PAD).double()[..., None]
    mean = (branch * real).sum(1, keepdim=True) / real.sum(1, keepdim=True)
    torch.testing.assert_close(seen_at(model, at, call), branch - mean, atol=1e-5, rtol=1e-5)
    at = "decoder.block.0.layer.0.dropout"
    branch = seen_at(plain, at, call)
    means = branch.cumsum(1) / torch.arange(1, 9).double()[:, None]
    torch.testing.assert_close(seen_at(model, at, call), branch - means, atol=1e-5, rtol=1e-5)
    for name, module in model.named_modules():
        if "EncDecAttention" in name:
            assert not module._forward_hooks, name
            assert not module._forward_pre_hooks, name


@pytest.mark.parametrize("remedy", ["deescalate", "contranorm"])
def test_t5_decodes_with_its_cache(remedy: str) -> None:
    host = BY_NAME["t5"]
    model = Case(remedy, next(iter(SETTINGS[remedy])), host).remedied()
    call = host.call(host.inputs())
    with torch.no_grad():
        whole, cache, pieces = model(**call).logits, None, []
        for piece in call["decoder_input_ids"].split([3, 1, 4], dim=1):
            out = model(**{**call, "decoder_input_ids": piece}, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            pieces.append(out.logits)
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, atol=2e-5, rtol=1e-4)
    settings = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "num_beams": 3}
    source = {"input_ids": torch.arange(7, 15).reshape(2, 4), "decoder_start_token_id": 3}
    with_cache, without = (model.generate(**source, **settings, use_cache=used) for used in (True, False))
    assert torch.equal(with_cache, without)


def test_the_mean_in_swin_is_over_the_image() -> None:
    """Also in the block whose windows are shifted, whose 64 tokens lie in four windows."""
    host = BY_NAME["swin"]
    call = host.call(host.inputs())
    plain, model = host.model(), remedies.apply(host.model(), "deescalate", layers=[1])
    at = "encoder.layers.0.blocks.1.drop_path"
    branch = seen_at(plain, at, call)
    assert branch.shape[1] == 64
    torch.testing.assert_close(seen_at(model, at, call), branch - branch.mean(1, keepdim=True), atol=1e-5, rtol=1e-5)
    for options in ({"place": "values"}, {"place": "values", "layers": [2]}):
        with pytest.raises(UnsmoothError, match="those of one window, shifted and filled up"):
            remedies.apply(host.model(), "deescalate", **options)


def test_falcon_with_one_norm_for_both_branches_is_refused() -> None:
    sizes = {"vocab_size": VOCAB, "hidden_size": DIM, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = transformers.FalconModel(transformers.FalconConfig(**sizes, parallel_attn=True, **SPECIAL))
    with pytest.raises(UnsmoothError, match=r"a norm for each branch .* but got one that attention and MLP both read"):
        remedies.apply(model, "residual_scaling")


def test_whisper() -> None:
    """Both stacks change, the decoder does not look ahead, and both come back."""
    wide = {
        f"{part}_{what}": size for part in ("encoder", "decoder") for what, size in (("layers", 2), ("ffn_dim", 24))
    }
    heads = {f"{part}_attention_heads": 2 for part in ("encoder", "decoder")}
    special = {**SPECIAL, "pad_token_id": PAD, "decoder_start_token_id": 2, "max_target_positions": 16}
    sizes = {"d_model": DIM, "num_mel_bins": 4, "max_source_positions": 6, "vocab_size": VOCAB}
    torch.manual_seed(0)
    model = transformers.WhisperModel(transformers.WhisperConfig(**sizes, **wide, **heads, **special)).eval()
    text = torch.arange(5, 13).reshape(1, -1)
    other = text.clone()
    other[0, 5] = 40
    call = {"input_features": torch.randn(1, 4, 12), "decoder_input_ids": text}
    before = Snapshot.of(model)
    with torch.no_grad():
        plain = model(**call)
        remedies.apply(model, "deescalate", tau=0.5)
        assert [(one.stack, one.layers) for one in remedies.applied(model)] == [
            ("encoder", (0, 1)),
            ("decoder", (0, 1)),
        ]
        changed, ahead = model(**call), model(**{**call, "decoder_input_ids": other})
    assert (changed.encoder_last_hidden_state - plain.encoder_last_hidden_state).abs().max() > 1e-4
    assert torch.equal(ahead.last_hidden_state[:, :5], changed.last_hidden_state[:, :5])
    assert not torch.equal(ahead.last_hidden_state[:, 5:], changed.last_hidden_state[:, 5:])
    before.check(remedies.undo(model))
