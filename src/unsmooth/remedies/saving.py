"""Models with remedies on disk.

A model of transformers is written by its own `save_pretrained`, which `unsmooth.remedies.pretrained` has seen to: the
weights are those of the remedied model, with what `undo` would put back beside them, and ``config.json`` says which
remedies they are, under a model type that transformers alone does not know.

Of any other model ``model.safetensors`` has the plain weights, with every key that it has without remedies, and
``remedies.safetensors`` what they bring or change, under the keys of the remedied model.

``remedies.json`` says which remedies, with which options, in which layers. Where they were folded the weights hold them
already, and ``remedies.json`` only tells of it.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_file, save_model
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError, expected
from unsmooth.files import Saved, check_room, read_json, whole_folder, write_whole
from unsmooth.models.checkpoint import read_config, safetensors_files
from unsmooth.models.origin import origin_of, unwrapped
from unsmooth.models.quiet import quiet
from unsmooth.models.randomise import private_randomness
from unsmooth.networks.saving import description, write_description
from unsmooth.remedies.base import Edit
from unsmooth.remedies.block import HOME, REPLACED, remedies_of
from unsmooth.remedies.checking import checked_options
from unsmooth.remedies.leading import ExactBuffers
from unsmooth.remedies.listing import find_remedy
from unsmooth.remedies.stack import find_remedied
from unsmooth.remedies.verbs import Applied, applied, apply, undo
from unsmooth.schema import parse
from unsmooth.weights import load_tensors, no_larger, read_header

M = TypeVar("M", bound=nn.Module)

FORMAT = 2
CONFIG, RECORD = "config.json", "remedies.json"
TENSORS, WEIGHTS = "remedies.safetensors", "model.safetensors"
_SAVED = Saved("remedies", "unsmooth.remedies.save", "apply", "saving the model again", FORMAT)
# Beside the weights, a model's folder has what turns text and images into its input, and its licence.
_BESIDE = ("*.json", "*.txt", "*.model", "*.jinja", "LICENSE*", "NOTICE*")
# A manifest tells how the plain model was trained and how well it does, which is not true of another.
_NOT_BESIDE = ("*.index.json", "adapter_config.json", "manifest.json", RECORD)


@dataclass(frozen=True)
class Record:
    """What a saved model says of its remedies.

    Args:
        applied: Remedies to apply when the model is loaded, in order.
        folded: Remedies that the weights hold already.
        knows_plain: Whether the weights that the remedies replaced were saved too.
        version: The version of unsmooth that wrote it.
    """

    applied: tuple[Applied, ...]
    folded: tuple[Applied, ...]
    knows_plain: bool
    version: str


def save(model: nn.Module, folder: str | Path, *, folded: Sequence[Applied] = (), overwrite: bool = False) -> Path:
    """Write a model with its remedies into a folder, which appears whole or not at all.

    A transformers model comes back by ``unsmooth.load(folder)`` or, where unsmooth is imported, its own
    `from_pretrained`; one of `unsmooth.networks` by ``unsmooth.load(folder)``; any other by `restore` into a model
    built anew. While another than transformers' is written there is a second copy of the model in memory.

    Args:
        model: With remedies applied, or folded, see `folded`.
        folder: Must not exist, or be empty.
        folded: What `applied` gave before `fold`, to be told in the folder.
        overwrite: Replace a folder that this function wrote; no other is ever replaced.

    Raises:
        UnsmoothError: There are no remedies, or the folder is taken.
    """
    folder, inner = Path(folder), unwrapped(model)
    found = applied(inner)
    if not found and not folded:
        hint = "unsmooth.apply(model, name) first, or the model's own save_pretrained"
        raise expected("a model with remedies applied", "a plain one", hint)
    check_free(folder, overwrite=overwrite)
    record = json.dumps(write_record(found, folded), indent=1, ensure_ascii=False)
    try:
        with whole_folder(folder, replace=overwrite) as draft:
            _save_weights(inner, draft)
            _save_tokenizer(inner, draft)
            made = write_whole(draft / RECORD, record)
            for file in filter(Path.is_file, draft.rglob("*")):  # safetensors' are for their owner's eyes only
                file.chmod(made.stat().st_mode)
    except SafetensorError as error:  # in place of the system's own
        raise expected(f"a place to write {folder.name!r}", str(error), "another folder") from None
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


def restore(model: M, folder: str | Path, *, weights: bool = True, batch: Any = None) -> M:
    """Put remedies that `save` wrote into a plain model, in place, and return it.

    Args:
        model: Built as the saved one was, without remedies.
        folder: What `save` was given or, of a transformers model, `save_pretrained`.
        weights: Also load the plain weights from there.
        batch: What the model is called with, where `unsmooth.apply` needs that for it.

    Raises:
        UnsmoothError: The folder is not whole, or does not fit the model.
    """
    folder = Path(folder)
    record = read_record(folder)
    try:
        if _is_transformers(model):
            put_on(model, record, read_saved(_weights(folder)), weights=weights, batch=batch)
            return model
        if weights:
            read_header(_weights(folder)[0])
            load_model(model, str(_weights(folder)[0]))
        if record.applied:
            put_on(model, record, load_tensors(folder / TENSORS), batch=batch)
    except (RuntimeError, SafetensorError, OSError) as error:
        raise unfit(model, folder, error) from None
    return model


def put_on(
    model: nn.Module, record: Record, saved: Mapping[str, Tensor], *, weights: bool = False, batch: Any = None
) -> None:
    """Apply the remedies of a saved model to a plain one, and load what they brought and changed.

    Args:
        model: The plain model.
        record: Which remedies.
        saved: Tensors of the remedied model, with what they replaced: all, or what differs from the plain one.
        weights: Whether `saved` has all weights, to be loaded too, or the model has those outside its remedied blocks.
        batch: What the model is called with; None where it says so itself.
    """
    before = {name: value for key, value in saved.items() if (name := replaced_key(key)) is not None}
    blocks = {f".{key}".partition(f".{HOME}.")[0] for key in saved if is_of_remedy(key)}
    now = {key: value for key, value in saved.items() if replaced_key(key) is None and (weights or _is_in(key, blocks))}
    told = model.load_state_dict({key: now[key] for key in now if not is_of_remedy(key)} | before, strict=False)
    named = dict(model.named_parameters(remove_duplicate=False))
    loaded = {id(named[key]) for key in (*now, *before) if key in named}  # tied weights are saved by one of their names
    missing = [key for key in told.missing_keys if weights and id(named.get(key)) not in loaded]
    # Applying remedies may write over weights that are saved as they were.
    plain = {key: value.clone() for key, value in model.state_dict().items() if _is_in(key, blocks) and key not in now}
    size = sum(tensor.numel() * tensor.element_size() for tensor in saved.values())
    with private_randomness(seed=0), no_larger(len(saved), size):  # what remedies draw is overwritten below
        for one in record.applied:
            kind = find_remedy(one.name)
            options = kind.recorded(one.options)
            checked_options(kind, options)  # or one would be taken for an argument of `apply`
            # Whoever applied it was told of a leak and allowed it; `apply` warns once more.
            layers, stack = list(one.layers), None if one.blocks else one.stack or None
            try:
                where = {"layers": layers, "blocks": one.blocks, "stack": stack, "batch": batch}
                apply(model, one.name, allow_leak=True, **where, **options)
            except UnsmoothError as error:
                got = f"{type(model).__name__} ({str(error).partition(' Try ')[0].rstrip('.')})"
                hint = "the class that was saved"
                if batch is None and "not called in a pass" in got:
                    hint = "unsmooth.remedies.restore(plain_model, folder, batch=...) with what it is called with"
                raise expected(f"a model that {one.name} was saved with", got, hint) from None
    kept = {path: module for path, module in model.named_modules() if isinstance(module, ExactBuffers)}
    follows = {f"{path}.{name}" for path, module in kept.items() for name in module.follows}
    state = {key: value for key, value in model.state_dict().items() if key not in follows}
    missing += [key for key in state if is_of_remedy(key) and key not in now]
    unexpected = [key for key in told.unexpected_keys if key in before]
    if missing or unexpected:
        raise RuntimeError(f"{_listed('no', missing)}{_listed('Unexpected key', unexpected)}")
    # All of the state, so that no remedy takes its part for a plain checkpoint's.
    model.load_state_dict({**state, **{key: plain[key] for key in plain if key in state}, **now})
    for module in model.modules():
        if (home := remedies_of(module)) is not None:
            home.knows_plain = record.knows_plain


def _is_in(key: str, blocks: Iterable[str]) -> bool:
    return any(f".{key}".startswith(f"{block}.") for block in blocks)


def read_saved(files: Sequence[Path]) -> dict[str, Tensor]:
    """The tensors of a saved transformers model."""
    return {key: value for file in files for key, value in load_tensors(file).items()}


def replaced_key(key: str) -> str | None:
    """The key in the plain model of a weight that was saved for `undo`; None for any other.

    >>> replaced_key("layer.0.unsmooth.replaced.output.weight")
    'layer.0.output.weight'
    """
    block, found, inside = f".{key}".rpartition(f".{HOME}.{REPLACED}.")
    return f"{block}.{inside}".lstrip(".") if found else None


def is_of_remedy(key: str) -> bool:
    """Whether a key of a state is one that remedies brought."""
    return HOME in key.split(".")


def _listed(what: str, keys: Sequence[str], most: int = 3) -> str:
    more = f" and {len(keys) - most} more" if len(keys) > most else ""
    return f"{what} {', '.join(keys[:most])}{more}. " if keys else ""


def _weights(folder: Path) -> list[Path]:
    files = safetensors_files(folder)
    if not files:
        raise expected(f"{WEIGHTS} in {str(folder)!r}", "none", "the folder that the model was saved in")
    return files


def unfoldable(model: nn.Module, *, blocks: str | None = None) -> dict[str, str]:
    """The remedies of a model that do not fold into weights, and why not."""
    edits = [edit for one in find_remedied(model, blocks) for site in one.sites for edit in _edits(site.block)]
    reasons = {edit.name: edit.why_not_foldable() for edit in edits}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _edits(block: nn.Module) -> list[Edit]:
    home = remedies_of(block)
    return [] if home is None else list(home.edits().values())


def read_record(folder: str | Path) -> Record:
    """What a saved model says of its remedies: of one of transformers its ``config.json``, else ``remedies.json``."""
    folder = Path(folder)
    content = read_config(folder).get(HOME) if (folder / CONFIG).is_file() else None
    return _SAVED.read(folder, parse_record) if content is None else record_in(content, folder)


def record_in(content: Any, folder: object) -> Record:
    """The record that the ``config.json`` of a folder holds."""
    try:
        return parse_record(content)
    except UnsmoothError as error:
        got = str(error).partition(" Try ")[0].rstrip(".")
        raise expected(f"remedies in the {CONFIG} of {str(folder)!r}", got, "saving the model again") from None


def write_record(found: Sequence[Applied], folded: Sequence[Applied] = (), knows_plain: bool = True) -> dict[str, Any]:
    """What `parse_record` reads, as JSON can hold it."""
    content = {
        "format": FORMAT,
        "unsmooth": import_module("unsmooth").__version__,
        "applied": [_entry(one) for one in found],
        "folded": [_entry(one) for one in folded],
        "knows_plain": knows_plain,
    }
    try:
        json.dumps(content, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise expected("options that JSON can hold", str(error), "numbers, words, lists, True, False or None") from None
    return content


def _entry(one: Applied) -> dict[str, Any]:
    entry = {"name": one.name, "options": dict(one.options), "layers": list(one.layers)}
    return entry | {key: value for key, value in (("stack", one.stack), ("blocks", one.blocks)) if value}


@dataclass(frozen=True)
class _Entry:
    name: str
    options: Mapping[str, Any]
    layers: tuple[int, ...]
    stack: str = ""
    blocks: str | None = None


@dataclass(frozen=True)
class _Content:
    format: int
    unsmooth: str
    applied: tuple[_Entry, ...]
    folded: tuple[_Entry, ...]
    knows_plain: bool


def parse_record(content: Any) -> Record:
    """A record as it was written; raises UnsmoothError where it was not written by `write_record`."""
    if isinstance(content, Mapping) and content.get("format", FORMAT) != FORMAT:
        raise expected(f"remedies format {FORMAT}", content["format"], "the unsmooth version that wrote it")
    told = parse(_Content, content, where="its remedies")
    applied, folded = (
        tuple(Applied(one.name, dict(one.options), one.layers, {}, one.stack, one.blocks) for one in entries)
        for entries in (told.applied, told.folded)
    )
    return Record(applied, folded, told.knows_plain, told.unsmooth)


def _is_transformers(model: nn.Module) -> bool:
    return any(base.__name__ == "PreTrainedModel" for base in type(model).__mro__)


def _save_weights(model: nn.Module, folder: Path) -> None:
    """As transformers does; of any other model the plain weights, and what the remedied one has beside or otherwise."""
    if _is_transformers(model):
        with quiet():
            model.save_pretrained(folder)  # type: ignore[operator]
        return
    found = applied(model)
    plain = undo(copy.deepcopy(model)) if found else model
    save_model(plain, str(folder / WEIGHTS))
    if description(plain) is not None:
        write_description(plain, folder)
    if found:
        save_file(_differing(model, plain), folder / TENSORS)


def _save_tokenizer(model: nn.Module, folder: Path) -> None:
    """Tokenizer and image processor: their own files where the model came from a folder, else written anew."""
    origin = origin_of(model)
    if origin is None:
        return
    home = None if origin.path is None else Path(origin.path)
    if home is not None and home.is_dir():
        for file in sorted({file for pattern in _BESIDE for file in home.glob(pattern)}):
            ours = (folder / file.name).exists() or any(file.match(pattern) for pattern in _NOT_BESIDE)
            if not ours and _is_within(file, home) and _copy_modules(file, folder):
                shutil.copyfile(file, folder / file.name)
        return
    with quiet():
        for one in (origin.tokenizer, origin.image_processor):
            if one is not None:
                one.save_pretrained(folder)


def _is_within(file: Path, home: Path) -> bool:
    """Whether it is a file of its folder, or a link as the hub's cache has it; what lies elsewhere is not passed on."""
    real, folder = file.resolve(), home.resolve()
    return file.is_file() and any(real.is_relative_to(one) for one in (folder, folder.parent.parent / "blobs"))


def _copy_modules(file: Path, folder: Path) -> bool:
    """Where the file is sentence-transformers' list of modules, copy those that come after the model, or say no."""
    if file.name != "modules.json":
        return True
    try:
        paths = [str(module["path"]) for module in read_json(file, tuple[dict[str, Any], ...]) if module["path"]]
    except (OSError, ValueError, KeyError):
        return False
    if not all(_is_module(path, file.parent) for path in paths):
        return False
    for path in paths:
        shutil.copytree(file.parent / path, folder / path)
    return True


def _is_module(path: str, home: Path) -> bool:
    """Whether a module lies in a folder of its own, with nothing in it that leads out or is no file."""
    folder = home / path
    if path in ("", ".", "..") or Path(path).name != path or folder.is_symlink() or not folder.is_dir():
        return False
    return all(_is_within(one, home) or (one.is_dir() and not one.is_symlink()) for one in folder.rglob("*"))


def _differing(model: nn.Module, plain: nn.Module) -> dict[str, Tensor]:
    """What the remedied model's checkpoint has that the plain one's has not, or has otherwise."""
    known = plain.state_dict()
    return {
        # A copy: two names may share one tensor, which the format does not allow.
        key: value.detach().cpu().contiguous().clone()
        for key, value in model.state_dict().items()
        if isinstance(value, Tensor) and (key not in known or not torch.equal(value, known[key]))
    }


def unfit(model: nn.Module, place: object, error: Exception) -> Exception:
    """What to raise where saved tensors are not this model's."""
    text = " ".join(str(error).split())[:200].rstrip(".")
    return expected(
        f"whole weights in {str(place)!r} that fit {type(model).__name__}", text, "the model they belong to"
    )
