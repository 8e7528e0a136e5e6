"""What is wrong with a checkpoint is found before it is loaded, so that it can be said in one line."""

from __future__ import annotations

import difflib
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from unsmooth.errors import UnsmoothError, expected
from unsmooth.files import below, read_json
from unsmooth.models.remedied import HOME, SAVED_TYPE
from unsmooth.models.resolve import Source
from unsmooth.schema import parse
from unsmooth.weights import Header, check_pickle, read_header

_MOST = 1 << 17
# Where a name with a slash is a repository of the hub, whose code runs.
_IMPLEMENTATIONS = ("_implementation", "_implementation_internal")
_AGAIN = "to download the model again"
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")


def read_config(folder: Path) -> dict[str, Any]:
    """The content of config.json."""
    path = folder / "config.json"
    if not path.is_file():
        below = sorted(folder.glob("*/config.json"))
        ggufs = sorted(folder.glob("*.gguf"))
        hint = next((str(p) for p in (*(b.parent for b in below), *ggufs)), "the folder that save_pretrained wrote")
        raise expected(f"config.json in {str(folder)!r}", "a folder without one", hint)
    config = read_json(path, constants=True)
    _check_values(config)
    kind, names = config.get("model_type"), config.get("architectures")
    if not isinstance(kind, str | None) or not isinstance(names, list | None) or not all(map(_is_text, names or ())):
        raise expected(f"model_type and architectures as words in {str(path)!r}", "other values", _AGAIN)
    return config


def check_beside(folder: Path, config: dict[str, Any]) -> None:
    """Refuse what transformers would read besides the configuration and the weights that `check_weights` knows."""
    with suppress(FileNotFoundError):
        read_json(folder / "generation_config.json", constants=True)
    if (folder / "adapter_config.json").is_file():  # it loads them where PEFT is, of a pickle too; else it is silent
        got, hint = "one with adapters (adapter_config.json)", "PEFT's AutoPeftModel, and handing over its model"
        raise expected(f"a model alone in {str(folder)!r}", got, hint)
    ours = HOME in config and str(config.get("model_type")).startswith(SAVED_TYPE)  # to stop other readers
    if "transformers_weights" in config and not ours:
        got = f"config.json that names others, {config['transformers_weights']!r}"
        raise expected(f"weights in model.safetensors in {str(folder)!r}", got, "naming them so instead")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _check_values(config: Any, name: str = "", counts: bool = False, deep: int = 0) -> None:
    """Refuse more layers, heads or labels than any model has, of which transformers makes lists at once.

    And what would have it run code from the hub, or read files that are named elsewhere.
    """
    if name.endswith("checkpoint_path") or (name.endswith(_IMPLEMENTATIONS) and "/" in str(config)):
        raise expected(f"no code or file of another place as {name} in config.json", str(config), "deleting that entry")
    got = len(config) if isinstance(config, dict | list) else config
    if (counts or deep > 1) and isinstance(got, int | float) and not abs(got) <= _MOST:
        raise expected(f"{name} of at most {_MOST:,} in config.json", got, "another copy of it")
    if isinstance(config, list):  # in lists of lists numbers stand for how often something comes
        for one in config:
            _check_values(one, name, counts, deep + 1)
    for key, value in config.items() if isinstance(config, dict) else ():
        counted = key.startswith(("num_", "n_")) or any(word in key for word in ("layer", "depth", "label", "block"))
        _check_values(value, f"{name}.{key}".lstrip("."), counted)


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


def check_weights(source: Source, allow_pickle: bool) -> tuple[Literal["safetensors", "pickle"], list[Header]]:
    """Say in which form the weights are and what they hold, and refuse those that are damaged or unsafe."""
    folder = source.path
    files = safetensors_files(folder)
    if files:
        return "safetensors", [read_header(file) for file in files]
    pickles = [name for name in _PICKLES if (folder / name).is_file()] or list(source.pickles)
    if pickles and not allow_pickle:
        raise expected(
            f"model.safetensors in {source.id!r}",
            f"only {pickles[0]}, a pickle, which can run code when it is read",
            "allow_pickle=True (--allow-pickle) if you trust it; torch then reads tensors only",
        )
    if not pickles:
        raise expected(f"weights in {str(folder)!r}", "no model.safetensors there", _AGAIN)
    for name in (*pickles, *(file.name for file in folder.glob("pytorch_model-*.bin"))):
        check_pickle(folder / name)
    return "pickle", []


def safetensors_files(folder: Path, variant: str | None = None) -> list[Path]:
    """The weight files that transformers will read, all of them there."""
    middle = f".{variant}" if variant else ""
    whole, index = folder / f"model{middle}.safetensors", f"model.safetensors.index{middle}.json"
    if whole.is_file():
        return [whole]
    if not (folder / index).is_file():
        return []
    found = read_json(folder / index)
    shards = sorted(set(parse(dict[str, str], found.get("weight_map"), where=f"weight_map of {index}").values()))
    for shard in shards:
        if not below(folder, shard).is_file():
            raise expected(f"all shards named in {index}", f"no {shard}", _AGAIN)
    return [folder / shard for shard in shards]


def explain_gguf(file: Path, error: Exception) -> UnsmoothError:
    """Tell a truncated GGUF file from one whose architecture is not supported."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if "accelerate" in text or "GGUF support" in text or isinstance(error, ImportError):
        return expected("the packages that read GGUF", text.rstrip("."), 'pip install "unsmooth[gguf]"')
    if "supported" in text:
        return expected(f"a GGUF architecture that transformers reads in {str(file)!r}", text, "a safetensors copy")
    got = f"a truncated or damaged file of {file.stat().st_size:,} bytes ({text})"
    return expected(f"a complete GGUF file {str(file)!r}", got, "to download it again")
