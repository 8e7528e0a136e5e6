"""`timm:NAME`: a vision model of timm by the name that timm gives it, with its weights or with random ones."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError, expected, unknown_name
from unsmooth.models.checkpoint import check_weights, safetensors_files
from unsmooth.models.origin import Origin, set_origin
from unsmooth.models.randomise import private_randomness
from unsmooth.models.resolve import Source, Wishes, from_hub
from unsmooth.spec import Option, read
from unsmooth.weights import load_tensors

PREFIX = "timm:"
_FORM = "timm:NAME or timm:NAME(pretrained=False)"
_RANDOM_NOTE = "Random weights (pretrained=False), always the same ones: nothing has been learnt."


def is_timm(name: str) -> bool:
    """Whether `name` asks for a model of timm.

    >>> is_timm("timm:vit_tiny_patch16_224"), is_timm("timm/vit_tiny_patch16_224")
    (True, False)
    """
    return name.startswith(PREFIX)


def read_name(text: str) -> tuple[str, dict[str, Any]]:
    """Name and options: `pretrained`, and any other that ``timm.create_model`` takes.

    >>> read_name("timm:vit_tiny_patch16_224(pretrained=False, img_size=96)")
    ('vit_tiny_patch16_224', {'pretrained': False, 'img_size': 96})
    """
    spec = read(text.strip().removeprefix(PREFIX), _FORM, "timm:vit_tiny_patch16_224")
    return spec.name, dict(spec.options)


def load_timm(text: str, wishes: Wishes, dtype: torch.dtype | str) -> nn.Module:
    """Build the model that `text` names, filled with its weights from the hub unless they are declined.

    Raises:
        UnsmoothError: timm is not there or has no such model, or its weights cannot be reached.
    """
    name, options = read_name(text)
    timm = _import_timm()
    if not timm.is_model(name):
        raise _unknown(timm, name)
    notes: tuple[str, ...] = ()
    if Option.of("pretrained", True, bool).check(options.pop("pretrained", True)):
        source = _weights(timm, name, wishes)
        model = _create(timm, text, name, options, _read(source, wishes.allow_pickle))
        revision, path = source.revision, str(source.path)
    else:
        if wishes.revision is not None:
            raise expected("a revision only with pretrained weights", repr(text), "without pretrained=False")
        with private_randomness(seed=0):
            model = _create(timm, text, name, options, None)
        revision, path, notes = f"timm {timm.__version__}", None, (_RANDOM_NOTE,)
    set_origin(model, Origin(text, revision, path, image_processor=TimmImages(model), notes=notes))
    return model.to(dtype) if isinstance(dtype, torch.dtype) else model


@dataclass(frozen=True)
class TimmImages:
    """Images as timm shows them to a model when it is evaluated: scaled, cropped and normalised as it was trained."""

    model: nn.Module

    def __call__(self, images: Sequence[Any], return_tensors: str = "pt") -> dict[str, Tensor]:
        """Pillow images as {"x": (batch, channels, height, width)}."""
        from timm.data import create_transform, resolve_model_data_config

        how = resolve_model_data_config(self.model)
        # A size that was asked for when the model was built; timm goes on naming the one of the weights.
        size = getattr(getattr(self.model, "patch_embed", None), "img_size", None)
        if size is not None:
            how["input_size"] = (how["input_size"][0], *size)
        transform = create_transform(**how, is_training=False)
        return {"x": torch.stack([transform(image.convert("RGB")) for image in images])}


def _import_timm() -> Any:
    try:
        import timm
        import timm.data
    except ImportError:
        raise expected("timm, to load a model of it", "none", 'pip install "unsmooth[timm]"') from None
    except RuntimeError as error:  # torchvision of another build than torch
        text = str(error).splitlines()[0]
        hint = "the build of torchvision that belongs to your torch (pytorch.org says which)"
        raise expected("a torchvision that fits torch, for timm", f"{text!r}", hint) from None
    return timm


def _unknown(timm: Any, name: str) -> UnsmoothError:
    near = timm.list_models(f"*{name.partition('.')[0][:8]}*") or timm.list_models("vit_*")
    error = unknown_name("model of timm", name, near[:400])
    # timm has more than a thousand.
    return UnsmoothError(f"{str(error).partition(' Known: ')[0]} Try timm.list_models('vit_*').")


def _weights(timm: Any, name: str, wishes: Wishes) -> Source:
    """The files of the hub's repository that holds the weights of `name`."""
    aside = f"timm:{name}(pretrained=False) for random weights"
    try:
        about = timm.get_pretrained_cfg(name, allow_unregistered=False)
    except RuntimeError as error:
        raise expected(f"weights of timm's {name}", str(error).rstrip("."), aside) from None
    hub, other = getattr(about, "hf_hub_id", None), getattr(about, "hf_hub_filename", None)
    if not hub or other:
        got = "none on the hub" if not hub else f"{other}, which timm alone can read"
        raise expected(f"weights of timm's {name}", got, f"timm.create_model and the model itself, or {aside}")
    try:
        return from_hub(hub, wishes, None)
    except UnsmoothError as error:
        why = str(error).partition(" but got ")[2].partition(". Try ")[0] or str(error)
        raise expected(f"the weights of timm's {name}, which a network brings", why, aside) from None


def _read(source: Source, allow_pickle: bool) -> Mapping[str, Tensor]:
    if check_weights(source, allow_pickle)[0] == "pickle":
        content = torch.load(source.path / "pytorch_model.bin", map_location="cpu", weights_only=True)
        weights: Mapping[str, Tensor] = content
        return weights
    return {name: tensor for file in safetensors_files(source.path) for name, tensor in load_tensors(file).items()}


def _create(
    timm: Any, text: str, name: str, options: Mapping[str, Any], weights: Mapping[str, Tensor] | None
) -> nn.Module:
    if taken := options.keys() & inspect.signature(timm.create_model).parameters.keys():
        # Of create_model itself: a checkpoint_path, say, would make notes of random weights untrue.
        raise expected(f"options of timm's {name}", ", ".join(sorted(taken)), f"{PREFIX}{name}")
    overlay = None if weights is None else {"state_dict": dict(weights)}
    try:
        model: nn.Module = timm.create_model(
            name, pretrained=weights is not None, pretrained_cfg_overlay=overlay, **options
        )
    except Exception as error:  # each network has its own way to stumble over an option
        got = (str(error).strip().splitlines() or [""])[0].rstrip(".:")
        kind = "" if " " in got else f"{type(error).__name__} "
        raise expected(f"a model that timm can build as {text!r}", f"{kind}{got}".strip(), f"{PREFIX}{name}") from error
    # Of another kind they may be built with, and mean something else: any word is true.
    for option, declared in inspect.signature(type(model)).parameters.items():
        if option in options and declared.annotation is not declared.empty:
            Option.of(option, declared.default, declared.annotation).check(options[option])
    if overlay is not None:
        # timm keeps what it was told; the weights would be held twice.
        getattr(model, "pretrained_cfg", {}).pop("state_dict", None)
    return model
