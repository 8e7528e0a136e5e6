"""The harness over timm's own blocks, and models of timm by name. Run by test_timm.py, where timm can be imported."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import unsmooth
from tests.models import test_hosts as hosts
from tests.models.entry import DIM, LAYERS, Entry
from tests.models.rebuilding import largest_error
from tests.models.timm_entries import entry_of
from tests.remedies.snapshot import Snapshot
from unsmooth.errors import UnsmoothError
from unsmooth.models import find_anatomy, origin_of, value_projection
from unsmooth.remedies import names

NAME = "vit_tiny_patch16_224"
# Eight layers less than the real one, and few patches: quick, and otherwise the same.
SMALL = "img_size=64, depth=4"


def vit(**options: Any) -> Callable[[], nn.Module]:
    from timm.models.vision_transformer import VisionTransformer

    sizes = {"img_size": 8, "patch_size": 4, "embed_dim": DIM, "depth": LAYERS, "num_heads": 2, "mlp_ratio": 1.5}
    return lambda: VisionTransformer(**(sizes | {"num_classes": 0, "global_pool": ""} | options))


def gated(**options: Any) -> Callable[[], nn.Module]:
    from timm.layers import RmsNorm, SwiGLUPacked

    return vit(mlp_layer=SwiGLUPacked, norm_layer=RmsNorm, **options)


VARIANTS: dict[str, Callable[[], Entry]] = {
    "plain": lambda: entry_of("timm-plain", vit()),
    "scaled": lambda: entry_of("timm-scaled", vit(init_values=0.5, qk_norm=True, reg_tokens=4), prefix_tokens=5),
    "gated": lambda: entry_of("timm-gated", gated(init_values=0.5)),
    "without class token": lambda: entry_of("timm-gap", vit(class_token=False), prefix_tokens=0),
}
each_variant = pytest.mark.parametrize("variant", VARIANTS)
each_way = pytest.mark.parametrize("fused", [True, False])

# Remedies that do attention's mixing themselves, with options away from the plain model; and where it is the same.
MIXING: dict[str, dict[str, Any]] = {
    "gfsa": {"w0": 0.1, "start": 0.3},
    "differential": {},
    "talking_heads": {},
}
NEUTRAL: dict[str, dict[str, Any]] = {
    "gfsa": {"w0": 0.0, "start": 0.0},
    "differential": {"form": "kept", "lam": 0.0, "learn": "head", "norm": False},
}


@each_variant
def test_sites(variant: str) -> None:
    entry = VARIANTS[variant]()
    hosts.test_independent_hooks_agree(entry, "none")
    hosts.test_algebra_of_the_block_holds(entry, "none")
    hosts.test_watching_does_not_change_the_output(entry, "none")
    hosts.test_tensors_handed_out_are_not_changed_afterwards(entry)
    hosts.test_prefix_tokens(entry)


@each_variant
def test_attention_is_rebuilt_from_weights_and_maps(variant: str) -> None:
    entry = VARIANTS[variant]()
    for fused in (True, False):
        model = entry.model()
        for block in model.blocks:
            block.attn.fused_attn = fused
        assert largest_error(entry, model, "none") < 1e-5


def test_the_norm_on_the_heads_of_timm_is_folded_in() -> None:
    """By hand: the output weights take the norm's weight, and its mean is taken off, in float64."""
    model = vit(scale_attn_norm=True)()
    attention, found = model.blocks[0].attn, value_projection(model, 0)
    assert found.heads_norm is not None
    w_o = attention.proj.weight.detach().double().T
    wanted = attention.norm.weight.detach().double()[:, None] * w_o
    torch.testing.assert_close(found.w_o.flatten(0, 1).double(), wanted - wanted.mean(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("variant", ["scaled", "gated"])
def test_remedies(variant: str) -> None:
    """Each that timm's blocks can have runs, and goes without a trace; means are taken over all tokens."""
    entry = VARIANTS[variant]()
    pixels = entry.batch("none")["x"]
    model = entry.model()
    before, plain, refused = Snapshot.of(model), model(pixels), []
    for name in names():
        try:
            unsmooth.apply(model, name)
        except UnsmoothError as error:
            refused.append((name, str(error)))
            before.check(model)
            continue
        assert model(pixels).isfinite().all(), name
        before.check(unsmooth.undo(model))
        assert torch.equal(model(pixels), plain), name
    assert {"b2t", "deepnorm"} <= {name for name, _ in refused}
    possible = {"deescalate", "attnscale", "neutreno", "sharpen", "rezero", *MIXING}
    assert not possible & {name for name, _ in refused}, refused
    unsmooth.apply(model, "deescalate", layers=[0])
    kept: list[torch.Tensor] = []
    model.norm_pre.register_forward_hook(lambda module, args, output: kept.append(output))
    model.blocks[0].ls1.register_forward_hook(lambda module, args, output: kept.append(output))
    model.blocks[0].norm2.register_forward_pre_hook(lambda module, args: kept.append(args[0]))
    model(pixels)
    stream, branch, summed = (tokens.double() for tokens in kept)
    torch.testing.assert_close(summed, stream + branch - branch.mean(dim=1, keepdim=True), atol=1e-5, rtol=1e-5)


def run_as(model: Any, fused: bool) -> Any:
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = fused
    return model


@each_variant
@each_way
def test_edits_of_the_mixing(variant: str, fused: bool) -> None:
    """To the bit the plain model where they are neutral, and after they are gone; another one else."""
    entry = VARIANTS[variant]()
    model, pixels = run_as(entry.model(), fused), entry.batch("none")["x"]
    before, plain = Snapshot.of(model), model(pixels)
    for name, options in NEUTRAL.items():
        unsmooth.apply(model, name, **options)
        assert torch.equal(model(pixels), plain), name
        before.check(unsmooth.undo(model))
    for name, options in MIXING.items():
        unsmooth.apply(model, name, **options)
        if name == "talking_heads":
            torch.testing.assert_close(model(pixels), plain, atol=1e-5, rtol=1e-4)
            model.blocks[0].unsmooth.talking_heads.maps.data.add_(0.1)
        assert not torch.allclose(model(pixels), plain, atol=1e-4), name
        attention = model.blocks[0].attn
        assert (type(attention).__name__, type(attention).__module__) == ("Attention", "timm.layers.attention")
        before.check(unsmooth.undo(model))
        assert torch.equal(model(pixels), plain), name
    with pytest.raises(UnsmoothError, match="its attention is not causal"):
        unsmooth.apply(model, "spa")
    before.check(model)


def filtered(attention: Any, made: Tensor, hidden: Tensor | None = None) -> Tensor:
    """What GFSA with w0=0.1, w1=1, wK=0.3 and K=4 makes of what `qkv` gave: (batch, tokens, heads · head dim)."""
    query, key, value = made.unflatten(-1, (3, 2, DIM // 2)).permute(2, 0, 3, 1, 4)
    for_both = [(attention.q_norm, query), (attention.k_norm, key)]
    query, key = (
        x
        if isinstance(norm, nn.Identity)
        else nn.functional.layer_norm(x, (DIM // 2,), norm.weight, norm.bias, norm.eps)
        for norm, x in for_both
    )
    logits = torch.einsum("bhne,bhme->bhnm", query, key) / (DIM // 2) ** 0.5
    if hidden is not None:
        logits = logits.masked_fill(hidden, -torch.inf)
    once = logits.softmax(dim=-1)
    polynomial = 0.1 * torch.eye(once.shape[-1], dtype=once.dtype) + once + 0.3 * (once + 3 * (once @ once - once))
    return (polynomial @ value).transpose(1, 2).flatten(2)


def qkv_and_heads(attention: nn.Module, run: Callable[[], object]) -> tuple[Tensor, Tensor]:
    """What `qkv` gave and what `proj` read, by hooks."""
    kept: dict[str, Tensor] = {}
    qkv, proj = attention.get_submodule("qkv"), attention.get_submodule("proj")
    handles = [
        qkv.register_forward_hook(lambda module, args, output: kept.update(qkv=output)),
        proj.register_forward_pre_hook(lambda module, args: kept.update(proj=args[0])),
    ]
    with torch.no_grad():
        run()
    for handle in handles:
        handle.remove()
    return kept["qkv"], kept["proj"]


@pytest.mark.parametrize("variant", ["plain", "scaled"])
@each_way
def test_gfsa_is_its_polynomial(variant: str, fused: bool) -> None:
    entry = VARIANTS[variant]()
    model = run_as(unsmooth.apply(entry.model().double(), "gfsa", **MIXING["gfsa"]), fused)
    for block in model.blocks:
        made, heads = qkv_and_heads(block.attn, lambda: model(entry.batch("none")["x"].double()))
        torch.testing.assert_close(heads, filtered(block.attn, made), atol=1e-12, rtol=1e-10)


def masks() -> dict[str, tuple[dict[str, Any], Tensor]]:
    """How a block of five tokens, called with two sequences, may be told who sees whom; and what is hidden."""
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)
    padding = torch.arange(5) >= torch.tensor([5, 3])[:, None, None, None]
    as_numbers = torch.zeros(5, 5, dtype=torch.double).masked_fill(future, -torch.inf)
    return {
        "causal": ({"is_causal": True}, future),
        "words": ({"attn_mask": ~future}, future),
        "numbers": ({"attn_mask": as_numbers}, future),
        "padding": ({"attn_mask": ~padding}, padding),
    }


@pytest.mark.parametrize("mask", masks())
@each_way
def test_gfsa_under_masks(mask: str, fused: bool) -> None:
    from timm.models.vision_transformer import Block

    torch.manual_seed(0)
    plain = run_as(nn.Sequential(Block(DIM, 2, qk_norm=True)).eval().double(), fused)
    x, (told, hidden) = torch.randn(2, 5, DIM, dtype=torch.double), masks()[mask]
    neutral = unsmooth.apply(copy.deepcopy(plain), "gfsa")
    assert torch.equal(neutral[0](x, **told), plain[0](x, **told))
    model = unsmooth.apply(copy.deepcopy(plain), "gfsa", **MIXING["gfsa"])
    made, heads = qkv_and_heads(model[0].attn, lambda: model[0](x, **told))
    wanted = filtered(model[0].attn, made, hidden)
    real = torch.ones(2, 5, dtype=torch.bool) if mask != "padding" else ~hidden[:, 0, 0]
    torch.testing.assert_close(heads[real], wanted[real], atol=1e-12, rtol=1e-10)


@each_way
def test_dropout_of_maps_is_timms(fused: bool) -> None:
    """The first run of attention, all of a neutral one, drops what the plain model would."""
    from timm.models.vision_transformer import Block

    torch.manual_seed(0)
    plain = run_as(nn.Sequential(Block(DIM, 2, attn_drop=0.5)), fused)
    model, x = unsmooth.apply(copy.deepcopy(plain), "gfsa"), torch.randn(2, 5, DIM)
    found = []
    for one in (plain, model):
        torch.manual_seed(1)
        found.append(one.train()(x))
    assert torch.equal(*found)
    assert not torch.equal(found[0], plain.eval()(x))
    assert torch.equal(model.eval()(x), plain(x))


@pytest.mark.parametrize("name", MIXING)
@each_way
def test_edits_of_the_mixing_compile_and_are_copied(name: str, fused: bool) -> None:
    entry = VARIANTS["scaled"]()
    model, pixels = run_as(entry.model(), fused), entry.batch("none")["x"]
    before, plain = Snapshot.of(model), model(pixels)
    unsmooth.apply(model, name, **MIXING[name])
    wanted, saved = model(pixels), io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    for other in (copy.deepcopy(model), torch.load(saved, weights_only=False)):
        assert torch.equal(other(pixels), wanted)
        before.check(unsmooth.undo(other), copied=True)
        assert torch.equal(other(pixels), plain)
    assert torch.equal(model(pixels), wanted)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(pixels), wanted, atol=1e-6, rtol=1e-5)


WRITTEN_OUT = r"does not go into the stream as it is|has attention written out inside|not called in a pass"


def test_attention_with_another_forward_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from timm.layers import Attention

    class Shifted(Attention):
        def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
            return 1.0 + super().forward(x, attn_mask, is_causal)

    def check(model: Any) -> None:
        before = Snapshot.of(model)
        for name in MIXING:
            with pytest.raises(UnsmoothError, match=WRITTEN_OUT):
                unsmooth.apply(model, name)
        before.check(model)

    check(vit(attn_layer=Shifted)())
    model: Any = vit()()
    model.blocks[1].attn.forward = lambda x, attn_mask=None, is_causal=False: x
    check(model)
    monkeypatch.setattr(Attention, "forward", Shifted.forward)
    check(vit()())


def test_remedies_fold_and_follow_a_causal_call() -> None:
    from timm.models.vision_transformer import Block

    model = vit(init_values=0.5, class_token=False)()
    pixels = torch.randn(2, 3, 8, 8)
    wanted = unsmooth.apply(model.eval(), "residual_scaling", scale=0.5)(pixels)
    torch.testing.assert_close(unsmooth.fold(model)(pixels), wanted, atol=1e-5, rtol=1e-4)
    torch.manual_seed(0)
    block = torch.nn.Sequential(Block(DIM, 2)).eval()
    unsmooth.apply(block, "deescalate", first="remove")
    x = torch.randn(1, 5, DIM)
    other = x.clone()
    other[:, 3] += 1.0
    ahead, now = (block[0](tokens, is_causal=True) for tokens in (other, x))
    assert torch.equal(ahead[:, :3], now[:, :3])
    assert not torch.equal(ahead[:, 4], now[:, 4])


def test_random_weights_by_name() -> None:
    state = torch.get_rng_state()
    model, again = (unsmooth.load(f"timm:{NAME}(pretrained=False, {SMALL})") for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert not model.training
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    origin = origin_of(model)
    assert origin is not None
    assert origin.id.startswith(f"timm:{NAME}(")
    assert "Random weights" in origin.notes[0]
    assert find_anatomy(model).host.name == "timm_vit"


@pytest.mark.parametrize(
    ("name", "prefix_tokens"),
    [
        ("deit_tiny_distilled_patch16_224(pretrained=False, img_size=64, depth=2)", 2),
        ("vit_small_patch14_reg4_dinov2(pretrained=False, img_size=56, depth=2)", 5),
        ("vit_medium_patch16_gap_240(pretrained=False, img_size=64, depth=2)", 0),
    ],
)
def test_scan_counts_patches_alone(name: str, prefix_tokens: int) -> None:
    model: Any = unsmooth.load(f"timm:{name}")
    pixels = torch.randn(2, 3, *model.patch_embed.img_size)
    found = unsmooth.scan(model, pixels, metrics=["mean_cosine"], progress=False)
    assert find_anatomy(model).host.prefix_tokens(model) == prefix_tokens
    assert {row.tokens for row in found.rows} == {2 * 16}
    last: list[torch.Tensor] = []
    handle = model.blocks[-1].register_forward_hook(lambda module, args, output: last.append(output))
    with torch.no_grad():
        model(pixels)
    handle.remove()
    vectors = last[0][:, prefix_tokens:].double().numpy()
    unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    wanted = (((unit @ unit.swapaxes(-1, -2)).sum(axis=(1, 2)) - 16) / (16 * 15)).mean()
    assert found.curve("mean_cosine")[-1].mean == pytest.approx(wanted, abs=1e-6)


def in_cache(home: Path, monkeypatch: pytest.MonkeyPatch, weights: dict[str, torch.Tensor]) -> str:
    """Put weights where the hub's cache would have them."""
    from safetensors.torch import save_file

    commit = "0123456789" * 4
    repository = home / "models--timm--vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, snapshot / "model.safetensors")
    (snapshot / "config.json").write_text(json.dumps({"architecture": NAME}))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(home))
    return commit


def test_pretrained_weights_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import timm

    torch.manual_seed(7)
    weights = timm.create_model(NAME, depth=2).state_dict()
    commit = in_cache(tmp_path, monkeypatch, weights)
    model = unsmooth.load(f"timm:{NAME}(depth=2)", offline=True)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    origin = origin_of(model)
    assert origin is not None
    assert (origin.revision, origin.notes) == (commit, ())
    assert "state_dict" not in model.pretrained_cfg
    with pytest.raises(UnsmoothError, match="a model that timm can build as"):
        unsmooth.load(f"timm:{NAME}(depth=3)", offline=True)  # its third block would be random


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"timm:{NAME}", rf"weights of timm's {NAME}, which a network brings.*Try timm:{NAME}\(pretrained=False\)"),
        (f"timm:{NAME}.nope", r"weights of timm's .*Invalid pretrained tag.*pretrained=False"),
        ("timm:vit_tiny_patch16_24", "a known model of timm but got 'vit_tiny_patch16_24'. Did you mean 'vit_tiny_"),
        (f"timm:{NAME}(pretrained=False, depht=3)", "a model that timm can build as .* but got .*depht"),
    ],
)
def test_one_clear_line(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UnsmoothError, match=message) as caught:
        unsmooth.load(text, offline=True)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_command_on_a_folder_of_images(tmp_path: Path) -> None:
    from PIL import Image

    from unsmooth.cli.app import app

    for number in range(3):
        noise = np.random.default_rng(number).integers(0, 255, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / f"{number}.png")
    word = f"timm:{NAME}(pretrained=False, {SMALL})"
    done = CliRunner().invoke(app, ["scan", word, str(tmp_path), "--json", "--offline"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["manifest"]["model"]["host"] == "timm_vit"
    assert found["manifest"]["data"]["sequences"] == 3


def test_images_are_what_timm_makes_of_them() -> None:
    from PIL import Image

    model = unsmooth.load(f"timm:{NAME}(pretrained=False, {SMALL})")
    origin = origin_of(model)
    assert origin is not None
    pixels = origin.image_processor([Image.new("RGB", (90, 70), (51, 51, 51))])["x"]
    assert pixels.shape == (1, 3, 64, 64)
    torch.testing.assert_close(pixels, torch.full_like(pixels, (51 / 255 - 0.5) / 0.5))


@pytest.mark.parametrize("name", ["value_residual", "neutreno", "deescalate", "sigma_reparam"])
def test_timms_ways_past_its_stack(name: str) -> None:
    model = unsmooth.apply(vit()(), name).eval()
    images = [torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(count)) for count in (2, 3)]
    with torch.no_grad():
        for _ in range(2):
            for image in images:
                wanted = model.forward_features(image)
                found = model.forward_intermediates(image, output_fmt="NLC", norm=True)[0]
                torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-5)
    model.train().set_grad_checkpointing(True)
    for image in images:
        model(image).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.requires_grad)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("num_heads=0", "a model that timm can build as"),
        ("act_layer=nope", "a model that timm can build as .* but got KeyError 'nope'"),
        ("class_token=no", "class_token as True or False but got 'no'"),
        ("num_heads=True", "num_heads as a whole number but got True"),
        ("checkpoint_path=weights.pth", "options of timm's vit_tiny_patch16_224 but got checkpoint_path"),
    ],
)
def test_options_that_are_none_of_the_network(options: str, said: str) -> None:
    with pytest.raises(UnsmoothError, match=said):
        unsmooth.load(f"timm:vit_tiny_patch16_224(pretrained=False, img_size=32, depth=1, {options})")
