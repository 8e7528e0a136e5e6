"""Hosts beyond one of each family, in a few chosen cases (the matrix has them all), and what is special about them."""

from __future__ import annotations

import copy
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
    ("gfsa", "timm_vit"),
    ("differential", "timm_vit"),
    ("talking_heads", "timm_vit"),
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
    ("gfsa", "swin"),
    ("differential", "swin"),
    ("talking_heads", "swin"),
    ("deepnorm", "deberta_v2"),
    ("attnscale", "deberta_v2"),
    ("deescalate", "modernbert"),
    ("attnscale", "bloom"),
    ("neutreno", "falcon"),
    ("sharpen", "phi3"),
    ("layernorm_scaling", "phi"),
    ("sharpen", "falcon_one_norm"),
    ("layerscale", "mixtral"),
    ("b2t", "torch_decoder_post"),
    ("gfsa", "torch_decoder_pre"),
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


OF_TWO_BRANCHES = ("rezero", "skipinit", "layernorm_scaling", "peri_norm")


@pytest.mark.parametrize("host", ["t5", "whisper", "torch_decoder_pre"])
@pytest.mark.parametrize("remedy", OF_TWO_BRANCHES)
def test_what_is_promised_of_every_branch_is_not_done_to_two_of_three(remedy: str, host: str) -> None:
    model, stack = BY_NAME[host].model(), None if host == "torch_decoder_pre" else "decoder"
    before = Snapshot.of(model)
    with pytest.raises(UnsmoothError, match="its cross-attention adds to the stream too, and "):
        remedies.apply(model, remedy, stack=stack)
    before.check(model)


@pytest.mark.parametrize("remedy", OF_TWO_BRANCHES)
def test_an_encoder_beside_a_decoder_has_no_cross_attention(remedy: str) -> None:
    model = remedies.apply(BY_NAME["t5"].model(), remedy, stack="encoder")
    assert [done.stack for done in remedies.applied(model)] == ["encoder"]
    with pytest.warns(UserWarning, match="is not applied to the stack 'decoder': .* its cross-attention adds"):
        both = remedies.apply(BY_NAME["t5"].model(), remedy)
    assert [done.stack for done in remedies.applied(both)] == ["encoder"]


@pytest.mark.parametrize("remedy", ["residual_scaling", "layerscale"])
def test_what_reaches_cross_attention_is_in_every_stack(remedy: str) -> None:
    model = remedies.apply(BY_NAME["t5"].model(), remedy)
    assert [done.stack for done in remedies.applied(model)] == ["encoder", "decoder"]


@pytest.mark.parametrize(("remedy", "why"), [
    ("rezero", "its cross-attention adds to the stream too, and "), ("skipinit", "its cross-attention adds "),
    ("layerscale", "did not run"), ("residual_scaling", "did not run"),
])  # fmt: skip
def test_cross_attention_that_was_asked_for_counts_too(remedy: str, why: str) -> None:
    sizes = {"n_embd": DIM, "n_layer": 2, "n_head": 4, "vocab_size": VOCAB}
    model = transformers.GPT2Model(transformers.GPT2Config(**sizes, add_cross_attention=True))
    with pytest.raises(UnsmoothError, match=why):
        remedies.apply(model, remedy)


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


@pytest.mark.parametrize(("host", "norm"), [("phi", "input_layernorm"), ("falcon_one_norm", "input_layernorm")])
def test_one_norm_for_both_branches_is_acted_on_once(host: str, norm: str) -> None:
    """Scaled by s, not s², folded as it runs; turned around by norm="both"; in front of it by default."""
    case, plain = BY_NAME[host], BY_NAME[host].model()
    call = case.call(case.inputs())
    path = next(name for name, _ in plain.named_modules() if name.endswith(f"1.{norm}"))
    weight = plain.get_parameter(f"{path}.weight").detach()
    scaled = remedies.apply(case.model(), "layernorm_scaling", scale=0.5, layers=[1])
    torch.testing.assert_close(seen_at(scaled, path, call), 0.5 * seen_at(plain, path, call), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(remedies.fold(scaled).get_parameter(f"{path}.weight").detach(), 0.5 * weight)
    turned = remedies.apply(case.model(), "norm_signs", norm="both", layers=[1])
    assert torch.equal(turned.get_parameter(f"{path}.weight"), -weight)
    dropped = remedies.undo(remedies.apply(case.model(), "rezero"))
    assert torch.equal(dropped.get_parameter(f"{path}.weight"), weight)
    spread = remedies.apply(case.model(), "contranorm", layers=[1])
    assert len(spread.get_submodule(path)._forward_pre_hooks) == 1


@pytest.mark.parametrize(
    ("remedy", "options"),
    [
        ("deescalate", {"place": "norm"}),
        ("contranorm", {"place": "attention_norm"}),
        ("contranorm", {"place": "after_mlp_norm"}),
    ],
)
def test_one_norm_is_not_edited_for_one_of_the_branches(remedy: str, options: dict[str, str]) -> None:
    model = BY_NAME["phi"].model()
    before = Snapshot.of(model)
    with pytest.raises(UnsmoothError, match="edits what one of attention and MLP reads, and here both read one norm"):
        remedies.apply(model, remedy, **options)
    before.check(model)


def test_what_a_router_sends_to_few_experts_is_folded_too() -> None:
    """In the harness all experts are chosen for every token, here two of four, in float64, where no choice is close."""
    sizes = {"vocab_size": VOCAB, "hidden_size": DIM, "num_hidden_layers": 2, "num_attention_heads": 4}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2, "intermediate_size": 24}
    torch.manual_seed(0)
    config = transformers.MixtralConfig(**sizes, **experts, **SPECIAL, pad_token_id=PAD, experts_implementation="eager")
    model = transformers.MixtralModel(config).eval().double()
    call = {"input_ids": torch.arange(5, 25).reshape(2, -1)}
    before = model.layers[0].mlp.experts.down_proj.detach().clone()
    remedies.apply(model, "layerscale", start=1.0)
    gamma = model.layers[0].unsmooth.layerscale.gamma
    with torch.no_grad():
        gamma.copy_(torch.randn(gamma.shape))
        wanted = model(**call).last_hidden_state
        found = remedies.fold(model)(**call).last_hidden_state
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(model.layers[0].mlp.experts.down_proj.detach(), before * gamma[1][:, None])


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_mean_in_torch_decoder_is_over_what_its_mask_shows(norm_first: bool) -> None:
    """Up to each token where the mask hides later ones, over all else; cross-attention is left alone."""
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(DIM, 4, 48, 0.0, batch_first=True, norm_first=norm_first)
    plain = nn.TransformerDecoder(layer, 2).eval()
    tokens, memory = torch.randn(2, 6, DIM), torch.randn(2, 4, DIM)
    hidden = nn.Transformer.generate_square_subsequent_mask(6)
    counted = torch.arange(1, 7).double()[:, None]
    for call in ({}, {"tgt_mask": hidden}, {"tgt_mask": hidden, "tgt_is_causal": True}):
        fed = {"tgt": tokens, "memory": memory, **call}
        branch = seen_at(plain, "layers.0.dropout1", fed)
        model = remedies.apply(copy.deepcopy(plain), "deescalate", first="remove", layers=[0])
        mean = branch.cumsum(1) / counted if call else branch.mean(1, keepdim=True)
        torch.testing.assert_close(seen_at(model, "layers.0.dropout1", fed), branch - mean, atol=1e-5, rtol=1e-5)
        assert type(model.layers[0].multihead_attn) is nn.MultiheadAttention


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
