"""Models with remedies on disk: a folder that any library reads as the plain model, and we as the remedied one.

``model.safetensors`` has the plain weights, with every key that the model has without remedies;
``remedies.safetensors`` has what they bring or change, under the keys of the remedied model; ``remedies.json`` says
which they are, with which options, in which layers. Where remedies were folded the weights hold them already, and
``remedies.json`` only tells of it.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.files import Saved, check_room, whole_folder, write_whole
from unsmooth.models.origin import origin_of, unwrapped
from unsmooth.models.quiet import quiet
from unsmooth.models.randomise import private_randomness
from unsmooth.networks.saving import description, write_description
from unsmooth.remedies.base import Edit
from unsmooth.remedies.block import remedies_of
from unsmooth.remedies.stack import find_remedied
from unsmooth.remedies.verbs import Applied, applied, apply, undo

M = TypeVar("M", bound=nn.Module)

FORMAT = 1
RECORD, TENSORS, WEIGHTS = "remedies.json", "remedies.safetensors", "model.safetensors"
_SAVED = Saved("remedies", "unsmooth.remedies.save", "apply", "saving the model again", FORMAT)
# Beside the weights, a model's folder has what turns text and images into its input, and its licence.
_BESIDE = ("*.json", "*.txt", "*.model", "*.jinja", "LICENSE*", "NOTICE*")
# A manifest tells how the plain model was trained and how well it does, which is not true of another.
_NOT_BESIDE = ("*.index.json", "adapter_config.json", "manifest.json", RECORD)


@dataclass(frozen=True)
class Record:
    """What ``remedies.json`` says.

    Args:
        applied: Remedies to apply when the model is loaded, in order.
        folded: Remedies that the weights hold already.
        blocks: The pattern under which the blocks were found, where one was needed.
        version: The version of unsmooth that wrote it.
    """

    applied: tuple[Applied, ...]
    folded: tuple[Applied, ...]
    blocks: str | None
    version: str


def save(
    model: nn.Module,
    folder: str | Path,
    *,
    blocks: str | None = None,
    folded: Sequence[Applied] = (),
    overwrite: bool = False,
) -> Path:
    """Write a model with its remedies into a folder, which appears whole or not at all.

    A transformers model, or one of `unsmooth.networks`, comes back by ``unsmooth.load(folder)``; any other by `restore`
    into a model built anew. A library that knows nothing of remedies reads the plain model from it, as `undo` would
    leave it. While it is written there is a second copy of the model in memory.

    Args:
        model: With remedies applied, or folded, see `folded`.
        folder: Must not exist, or be empty.
        blocks: Pattern over module paths, as in `unsmooth.apply`.
        folded: What `applied` gave before `fold`, to be told in the folder.
        overwrite: Replace a folder that this function wrote; no other is ever replaced.

    Raises:
        UnsmoothError: There are no remedies, or the folder is taken.
    """
    folder, inner = Path(folder), unwrapped(model)
    found = applied(inner, blocks=blocks)
    if not found and not folded:
        hint = "unsmooth.apply(model, name) first, or the model's own save_pretrained"
        raise expected("a model with remedies applied", "a plain one", hint)
    check_free(folder, overwrite=overwrite)
    record = _written(found, folded, blocks)
    plain = undo(copy.deepcopy(inner), blocks=blocks) if found else inner
    with whole_folder(folder, replace=overwrite) as draft:
        _save_plain(plain, draft)
        _save_beside(inner, draft)
        if found:
            save_file(_differing(inner, plain), draft / TENSORS)
        made = write_whole(draft / RECORD, record)
        for file in filter(Path.is_file, draft.rglob("*")):  # safetensors' are for their owner's eyes only
            file.chmod(made.stat().st_mode)
    return folder


def check_free(folder: Path, *, overwrite: bool = False) -> None:
    """Refuse a folder that `save` must not write to, before any work is done for it."""
    check_room(folder)
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not (folder / RECORD).is_file():
        raise expected("a new or empty folder", f"{str(folder)!r}, which holds other files", "another folder")
    if not overwrite:
        hint = "another folder, or overwrite=True (--force) to replace it"
        raise expected("a new or empty folder", f"{str(folder)!r}, which holds a remedied model", hint)
    read_record(folder)


def restore(model: M, folder: str | Path, *, weights: bool = True) -> M:
    """Put remedies that `save` wrote into a plain model, in place, and return it.

    While the weights of a transformers model are read there is a second copy of it in memory.

    Args:
        model: Built as the saved one was, without remedies.
        folder: What `save` was given.
        weights: Also load the plain weights from there.

    Raises:
        UnsmoothError: The folder is not whole, or does not fit the model.
    """
    folder = Path(folder)
    record = read_record(folder)
    if weights:
        _load_plain(model, folder)
    if not record.applied:
        return model
    with private_randomness(seed=0):  # what remedies draw is overwritten below
        for one in record.applied:
            # Whoever applied it was told of a leak and allowed it; `apply` warns once more.
            layers, stack = list(one.layers), None if record.blocks else one.stack or None
            apply(model, one.name, layers=layers, blocks=record.blocks, stack=stack, allow_leak=True, **one.options)
    _load_differing(model, folder)
    return model


def unfoldable(model: nn.Module, *, blocks: str | None = None) -> dict[str, str]:
    """The remedies of a model that do not fold into weights, and why not."""
    edits = [edit for one in find_remedied(model, blocks) for site in one.sites for edit in _edits(site.block)]
    reasons = {edit.name: edit.why_not_foldable() for edit in edits}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _edits(block: nn.Module) -> list[Edit]:
    home = remedies_of(block)
    return [] if home is None else list(home.edits().values())


def read_record(folder: str | Path) -> Record:
    """What ``remedies.json`` in a folder says."""
    return _SAVED.read(folder, _parse)


def _written(found: Sequence[Applied], folded: Sequence[Applied], blocks: str | None) -> str:
    content = {
        "format": FORMAT,
        "unsmooth": import_module("unsmooth").__version__,
        "blocks": blocks,
        "applied": [_entry(one) for one in found],
        "folded": [_entry(one) for one in folded],
    }
    try:
        return json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise expected("options that JSON can hold", str(error), "numbers, words, lists, True, False or None") from None


def _entry(one: Applied) -> dict[str, Any]:
    entry = {"name": one.name, "options": dict(one.options), "layers": list(one.layers)}
    return {**entry, "stack": one.stack} if one.stack else entry


def _parse(content: dict[str, Any]) -> Record:
    def read(entries: Sequence[Mapping[str, Any]]) -> tuple[Applied, ...]:
        return tuple(_read_entry(entry) for entry in entries)

    return Record(read(content["applied"]), read(content["folded"]), content["blocks"], str(content["unsmooth"]))


def _read_entry(entry: Mapping[str, Any]) -> Applied:
    layers = tuple(map(int, entry["layers"]))
    return Applied(str(entry["name"]), dict(entry["options"]), layers, {}, str(entry.get("stack", "")))


def _is_transformers(model: nn.Module) -> bool:
    return any(base.__name__ == "PreTrainedModel" for base in type(model).__mro__)


def _save_plain(model: nn.Module, folder: Path) -> None:
    if not _is_transformers(model):
        save_model(model, str(folder / WEIGHTS))
        if description(model) is not None:
            write_description(model, folder)
        return
    save_pretrained: Any = model.save_pretrained
    with quiet():
        save_pretrained(folder)


def _save_beside(model: nn.Module, folder: Path) -> None:
    """Tokenizer and image processor: their own files where the model came from a folder, else written anew."""
    origin = origin_of(model)
    if origin is None:
        return
    home = None if origin.path is None else Path(origin.path)
    if home is not None and home.is_dir():
        for file in sorted({file for pattern in _BESIDE for file in home.glob(pattern)}):
            ours = (folder / file.name).exists() or any(file.match(pattern) for pattern in _NOT_BESIDE)
            if file.is_file() and not ours and _copy_modules(file, folder):
                shutil.copyfile(file, folder / file.name)
        return
    with quiet():
        for one in (origin.tokenizer, origin.image_processor):
            if one is not None:
                one.save_pretrained(folder)


def _copy_modules(file: Path, folder: Path) -> bool:
    """Where the file is sentence-transformers' list of modules, copy those that come after the model, or say no."""
    if file.name != "modules.json":
        return True
    try:
        paths = [str(module["path"]) for module in json.loads(file.read_text(encoding="utf-8")) if module["path"]]
    except (ValueError, TypeError, KeyError):
        return False
    if not all(Path(path).name == path and (file.parent / path).is_dir() for path in paths):
        return False
    for path in paths:
        shutil.copytree(file.parent / path, folder / path)
    return True


def _differing(model: nn.Module, plain: nn.Module) -> dict[str, Tensor]:
    """What the remedied model's checkpoint has that the plain one's has not, or has otherwise."""
    known = plain.state_dict()
    return {
        # A copy: two names may share one tensor, which the format does not allow.
        key: value.detach().cpu().contiguous().clone()
        for key, value in model.state_dict().items()
        if isinstance(value, Tensor) and (key not in known or not torch.equal(value, known[key]))
    }


def _load_plain(model: nn.Module, folder: Path) -> None:
    state = _read_by_transformers(model, folder) if _is_transformers(model) else None
    if state is None and not (folder / WEIGHTS).is_file():
        raise expected(f"{WEIGHTS} in {str(folder)!r}", "none", "unsmooth.load(folder) for a model in several files")
    try:
        if state is None:
            load_model(model, str(folder / WEIGHTS))
        else:
            model.load_state_dict(state)
    except (RuntimeError, SafetensorError) as error:
        raise _unfit(model, folder / WEIGHTS, error) from None


def _read_by_transformers(model: Any, folder: Path) -> Mapping[str, Tensor] | None:
    """The weights under the names that the model has for them, as transformers saves some models under others.

    None where it makes no such model of the folder: then the names on disk are to be the model's.
    """
    with quiet(), private_randomness(seed=0):  # what the folder lacks is drawn, and left out below
        try:
            again, told = type(model).from_pretrained(
                str(folder),
                config=copy.deepcopy(model.config),
                dtype=model.dtype,
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
            )
        except Exception:  # for whatever reason: reading the names as they are tells what is wrong
            return None
    state = {key: value for key, value in again.state_dict().items() if key not in told["missing_keys"]}
    whole = not told["unexpected_keys"] and state.keys() == model.state_dict().keys()
    return state if whole else None


def _load_differing(model: nn.Module, folder: Path) -> None:
    try:
        # All of the state, so that no remedy takes its part for a plain checkpoint's.
        model.load_state_dict({**model.state_dict(), **load_file(folder / TENSORS)})
    except (RuntimeError, SafetensorError, OSError) as error:
        raise _unfit(model, folder / TENSORS, error) from None


def _unfit(model: nn.Module, file: Path, error: Exception) -> Exception:
    text = " ".join(str(error).split())[:200]
    hint = "the model and folder it belongs to" + (", or unsmooth.load(folder)" if _is_transformers(model) else "")
    return expected(f"a whole {str(file)!r} that fits {type(model).__name__}", text, hint)
