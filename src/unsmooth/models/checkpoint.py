"""What is wrong with a checkpoint is found before it is loaded, so that it can be said in one line."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any, Literal

from unsmooth.errors import UnsmoothError, expected
from unsmooth.models.remedied import HOME, SAVED_TYPE
from unsmooth.models.resolve import Source

_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")


def read_config(folder: Path) -> dict[str, Any]:
    """The content of config.json."""
    path = folder / "config.json"
    if not path.is_file():
        below = sorted(folder.glob("*/config.json"))
        ggufs = sorted(folder.glob("*.gguf"))
        hint = next((str(p) for p in (*(b.parent for b in below), *ggufs)), "the folder that save_pretrained wrote")
        raise expected(f"config.json in {str(folder)!r}", "a folder without one", hint)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise expected(f"JSON in {str(path)!r}", f"{error}", "to download the file again") from None
    if not isinstance(config, dict):
        raise expected(f"an object in {str(path)!r}", type(config).__name__, "to download the file again")
    return config


def check_model_type(config: dict[str, Any], source: Source, trust_remote_code: bool) -> None:
    """Refuse a model that transformers does not know, or knows only through code of the checkpoint's own."""
    import transformers

    kind = config.get("model_type")
    kind = kind.removeprefix(SAVED_TYPE) if isinstance(kind, str) and HOME in config else kind
    names = config.get("architectures") or []
    if kind in transformers.CONFIG_MAPPING or (kind is None and any(hasattr(transformers, n) for n in names)):
        return
    if config.get("auto_map"):
        if trust_remote_code:
            return
        raise expected(
            f"a model that transformers knows in {source.id!r}",
            f"{kind!r}, which comes with Python code of its own",
            "trust_remote_code=True (--trust-remote-code) if you trust that code",
        )
    near = difflib.get_close_matches(str(kind), list(transformers.CONFIG_MAPPING), n=1)
    guess = f" Did you mean {near[0]!r}?" if near else ""
    raise UnsmoothError(
        f"Expected a model_type that transformers {transformers.__version__} knows in {source.id!r} but got "
        f"{kind!r}.{guess} Try a newer transformers, or another model."
    )


def check_weights(source: Source, allow_pickle: bool) -> Literal["safetensors", "pickle"]:
    """Say in which form the weights are, and refuse those that are damaged or unsafe."""
    folder = source.path
    files = safetensors_files(folder)
    if files:
        for file in files:
            _check_safetensors(file)
        return "safetensors"
    pickles = [name for name in _PICKLES if (folder / name).is_file()] or list(source.pickles)
    if pickles and not allow_pickle:
        raise expected(
            f"model.safetensors in {source.id!r}",
            f"only {pickles[0]}, a pickle, which can run code when it is read",
            "allow_pickle=True (--allow-pickle) if you trust it; torch then reads tensors only",
        )
    if not pickles:
        raise expected(f"weights in {str(folder)!r}", "no model.safetensors there", "to download the model again")
    return "pickle"


def safetensors_files(folder: Path, variant: str | None = None) -> list[Path]:
    """The weight files that transformers will read, all of them there."""
    middle = f".{variant}" if variant else ""
    whole, index = folder / f"model{middle}.safetensors", f"model.safetensors.index{middle}.json"
    if whole.is_file():
        return [whole]
    if not (folder / index).is_file():
        return []
    try:
        shards = sorted(set(json.loads((folder / index).read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError) as error:
        raise expected(f"an index of weights in {index}", repr(error), "to download the file again") from None
    for shard in shards:
        if not (folder / shard).is_file():
            raise expected(f"all shards named in {index}", f"no {shard}", "to download the model again")
    return [folder / shard for shard in shards]


def _check_safetensors(file: Path) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt"):
            pass
    except (SafetensorError, OSError) as error:
        got = f"a truncated or damaged file of {file.stat().st_size:,} bytes ({error})"
        raise expected(f"a complete safetensors file {str(file)!r}", got, "to download it again") from None


def check_gguf(file: Path) -> None:
    """Refuse what is no GGUF file."""
    with file.open("rb") as stream:
        magic = stream.read(4)
    if magic != b"GGUF":
        raise expected(f"a GGUF file {str(file)!r}", f"one that starts with {magic!r}", "to download it again")


def explain_gguf(file: Path, error: Exception) -> UnsmoothError:
    """Tell a truncated GGUF file from one whose architecture is not supported."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if "accelerate" in text or "GGUF support" in text or isinstance(error, ImportError):
        return expected("the packages that read GGUF", text.rstrip("."), 'pip install "unsmooth[gguf]"')
    if "supported" in text:
        return expected(f"a GGUF architecture that transformers reads in {str(file)!r}", text, "a safetensors copy")
    got = f"a truncated or damaged file of {file.stat().st_size:,} bytes ({text})"
    return expected(f"a complete GGUF file {str(file)!r}", got, "to download it again")
