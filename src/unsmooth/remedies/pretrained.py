"""Remedies in transformers' own saving and loading: `save_pretrained`, `from_pretrained` and all that call them.

A remedied model is saved with the state it has, so that a Trainer goes on from a checkpoint of it. Beside it are, under
keys of their own, the weights that remedies replaced. ``config.json`` says which remedies they are, and has a model
type that transformers alone does not know, so that no auto class takes the folder for a plain model; a class that is
named outright stops at the name of the weights file, which is a sentence. Nothing is marked in the model, so there is
nothing that `undo` and `fold` could forget: what counts is which edits there are. A configuration that was read by
itself from such a folder is written as it was read.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from unsmooth.errors import UnsmoothError, expected
from unsmooth.files import read_json, write_whole
from unsmooth.models.checkpoint import safetensors_files
from unsmooth.models.quiet import quiet
from unsmooth.models.remedied import HOME, SAVED_TYPE, is_remedied
from unsmooth.remedies.checking import is_sharded
from unsmooth.remedies.saving import (
    CONFIG,
    RECORD,
    is_of_remedy,
    put_on,
    read_saved,
    record_in,
    replaced_key,
    unfit,
    write_record,
)
from unsmooth.remedies.verbs import applied, replaced

# Where transformers looks for the name of the weights file; it refuses, in a line that quotes it, what is none.
_FILE = "transformers_weights"
# The same for adapters.
_ADAPTERS, _KIND = "adapter_config.json", "UNSMOOTH_"
_STOP = "none for a class alone, as this model has remedies: import unsmooth first, or unsmooth.load(folder)"


def install(modeling: Any) -> None:
    """Put our part around five methods of transformers, once; `modeling` is its `modeling_utils`."""
    model, config = modeling.PreTrainedModel, modeling.PreTrainedConfig
    if hasattr(model.save_pretrained, HOME):
        return
    model.save_pretrained = _saving(model.save_pretrained)
    model.from_pretrained = classmethod(_loading(model.from_pretrained.__func__))
    model.load_state_dict = _filling(model.load_state_dict)
    config.to_json_string = _writing(config.to_json_string)
    config.get_config_dict = classmethod(_reading(config.get_config_dict.__func__))


def install_adapters(peft_model: Any) -> None:
    """The same for PEFT, of which this is a module: adapters alone say which remedies their base has to have.

    They stop, by a kind that PEFT alone does not know, where nobody would ask.
    """
    mixin, tuner = import_module("peft.config").PeftConfigMixin, import_module("peft.tuners.tuners_utils").BaseTuner
    if hasattr(peft_model.PeftModel.save_pretrained, HOME):
        return
    peft_model.PeftModel.save_pretrained = _saving_adapters(peft_model.PeftModel.save_pretrained)
    peft_model.PeftModel.load_adapter = _loading_adapters(peft_model.PeftModel.load_adapter)
    mixin.from_json_file = classmethod(_reading_adapters(mixin.from_json_file.__func__))
    tuner.inject_adapter = _adding_adapters(tuner.inject_adapter)


def _saving(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def save_pretrained(self: Any, *args: Any, **options: Any) -> Any:
        vars(self.config).pop(HOME, None)  # of the folder it was read from
        given = signature.bind(self, *args, **options)
        folder = Path(given.arguments["save_directory"])
        if getattr(self, "_hf_peft_config_loaded", False):
            saved = original(self, *args, **options)
            _mark_adapters(self, folder)
            return saved
        if (folder / RECORD).is_file():  # of what was in the folder before
            (folder / RECORD).unlink(missing_ok=True)
        if not is_remedied(self):
            return original(self, *args, **options)
        state = given.arguments.get("state_dict")
        kept, knows_plain = _replaced(self, state)
        state = (self.state_dict() if state is None else dict(state)) | kept
        given.arguments |= {"state_dict": state, "save_original_format": False}  # a Trainer reads it by these names
        vars(self.config)[HOME] = _record(self, knows_plain)
        try:
            return original(*given.args, **given.kwargs)
        finally:
            del vars(self.config)[HOME]

    setattr(save_pretrained, HOME, True)
    return save_pretrained


def _replaced(model: Any, state: Mapping[str, Any] | None) -> tuple[dict[str, Tensor], bool]:
    """What `undo` would put back, and whether that is known: not where the weights are elsewhere."""
    own = dict(model.named_parameters())
    elsewhere = any(tensor.is_meta or not tensor.numel() for tensor in own.values()) or is_sharded(model)
    elsewhere |= state is not None and any(key in state and state[key].shape != own[key].shape for key in own)
    try:
        return ({}, False) if elsewhere else (replaced(model), True)
    except UnsmoothError:  # as after loading what was saved without
        return {}, False


def _record(model: Any, knows_plain: bool) -> dict[str, Any]:
    try:
        return write_record(applied(model), knows_plain=knows_plain)
    except UnsmoothError as error:  # what was trained is saved all the same, and loading says that it cannot
        warnings.warn(f"saved without a list of its remedies, so it cannot be loaded by name: {error}", stacklevel=4)
        return {}


def _writing(original: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(original)
    def to_json_string(self: Any, *args: Any, **options: Any) -> str:
        text = original(self, *args, **options)
        if HOME not in vars(self):
            return text
        content = json.loads(text)
        content |= {"model_type": f"{SAVED_TYPE}{content.get('model_type', '')}", _FILE: _STOP}
        return json.dumps(content, indent=2, sort_keys=True) + "\n"

    return to_json_string


def _filling(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load_state_dict(self: Any, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        if not strict:  # as a Trainer that resumes; torch refuses by itself where it is
            brought = {key for key in state_dict if is_of_remedy(key) and replaced_key(key) is None}
            if brought and (absent := sorted(brought - self.state_dict().keys())):
                hint = "unsmooth.apply with the same options first"
                raise expected("a model with the remedies of these weights", f"none for {absent[0]}", hint)
        return original(self, state_dict, strict, assign)

    return load_state_dict


def _reading(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def get_config_dict(cls: Any, *args: Any, **options: Any) -> Any:
        content, rest = original(cls, *args, **options)
        if HOME in content and str(content.get("model_type")).startswith(SAVED_TYPE):
            content = {**content, "model_type": content["model_type"].removeprefix(SAVED_TYPE)}
            content.pop(_FILE, None)
        return content, rest

    return get_config_dict


def _loading(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def from_pretrained(cls: Any, *args: Any, output_loading_info: bool = False, **options: Any) -> Any:
        name = args[0] if args else options.get("pretrained_model_name_or_path")
        with quiet() if _says_remedied(name, options.get("config")) else contextlib.nullcontext():
            model, told = original(cls, *args, output_loading_info=True, **options)
        content = vars(model.config).pop(HOME, None)
        if content is not None or any(map(is_of_remedy, told["unexpected_keys"])):
            _put_on(model, told, content, name, options)
        return (model, told) if output_loading_info else model

    return from_pretrained


def _says_remedied(name: Any, config: Any) -> bool:
    """Whether a load is known to be of a remedied model before it begins: then its report of keys would mislead."""
    if hasattr(config, "__dict__"):
        return HOME in vars(config)
    with contextlib.suppress(OSError, UnsmoothError, TypeError):
        return HOME in read_json(Path(name) / CONFIG, constants=True)
    return False


def _put_on(model: Any, told: dict[str, Any], content: Any, name: Any, options: Mapping[str, Any]) -> None:
    """Make the plain model that was loaded the remedied one that was saved."""
    if content is None:
        got = "weights of a remedied one beside a configuration that does not say so"
        hint = "the folder that save_pretrained or unsmooth wrote, and the class that was saved"
        raise expected(f"a plain model in {str(name)!r}", got, hint)
    record = record_in(content, name)
    if any(tensor.is_meta for tensor in model.parameters()):
        raise expected("a remedied model loaded whole", "one that is offloaded", "a device_map that offloads nothing")
    given, plain = options.get("state_dict"), model.state_dict()
    try:
        # The model that was loaded from a state has the very tensors of it.
        saved = read_saved(_files(name, options)) if given is None else {key: given[key].clone() for key in given}
        saved = _by_names_of(model, saved)
        put_on(model, record, saved)
    except (RuntimeError, SafetensorError, OSError) as error:
        raise unfit(model, name, error) from None
    filled = {replaced_key(key) for key in saved} | (plain.keys() - model.state_dict().keys())
    told["missing_keys"] = set(told["missing_keys"]) - filled
    told["unexpected_keys"] = {key for key in told["unexpected_keys"] if not is_of_remedy(key)}


def _files(name: Any, options: Mapping[str, Any]) -> list[Path]:
    """The weight files that were just loaded: in a folder, or in the hub's cache."""
    from transformers.utils import cached_file

    where = {key: options[key] for key in ("cache_dir", "revision", "subfolder", "token") if options.get(key)}
    config = cached_file(str(name), CONFIG, local_files_only=True, **where)
    files = safetensors_files(Path(config).parent, options.get("variant"))
    if not files:
        raise expected(f"safetensors in {str(name)!r}", "none", "the folder that save_pretrained wrote")
    return files


def _by_names_of(model: Any, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under the names that the model has for them: one with a head knows its body by a prefix, or has none."""
    prefix = f"{model.base_model_prefix}."
    ours = {key.partition(f".{HOME}.")[0] for key in saved if is_of_remedy(key)}
    paths = {path for path, _ in model.named_modules()}
    if not ours or ours <= paths:
        return dict(saved)
    if all(path.removeprefix(prefix) in paths for path in ours):
        return {key.removeprefix(prefix): value for key, value in saved.items()}
    return {f"{prefix}{key}": value for key, value in saved.items()}


# Adapters: PEFT saves them alone, and lays them on whatever base it is given.


def _saving_adapters(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def save_pretrained(self: Any, save_directory: Any, *args: Any, **options: Any) -> Any:
        saved = original(self, save_directory, *args, **options)
        _mark_adapters(self, save_directory)
        return saved

    setattr(save_pretrained, HOME, True)
    return save_pretrained


def _mark_adapters(model: Any, folder: Any) -> None:
    """Have the configurations of a model's adapters say its remedies, which are those of their base."""
    for name in ("", *getattr(model, "peft_config", ())):
        file = Path(folder, name, _ADAPTERS)
        if not file.is_file():
            continue
        before = read_json(file, constants=True)
        about = {key: value for key, value in (before.get("auto_mapping") or {}).items() if key != HOME}
        kind = str(before["peft_type"]).removeprefix(_KIND)
        if is_remedied(model):
            about, kind = {**about, HOME: _record(model, knows_plain=True)}, f"{_KIND}{kind}"
        after = {**before, "auto_mapping": about or None, "peft_type": kind}
        if after != before:
            write_whole(file, json.dumps(after, indent=2, sort_keys=True))


def _reading_adapters(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def from_json_file(cls: Any, *args: Any, **options: Any) -> Any:
        content = original(cls, *args, **options)
        if "peft_type" in content:
            content["peft_type"] = str(content["peft_type"]).removeprefix(_KIND)
        return content

    return from_json_file


def _adding_adapters(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def inject_adapter(self: Any, model: Any, adapter_name: str, *args: Any, **options: Any) -> Any:
        _check_base(model, self.peft_config[adapter_name])
        return original(self, model, adapter_name, *args, **options)

    return inject_adapter


def _loading_adapters(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load_adapter(self: Any, model_id: Any, adapter_name: str, *args: Any, **options: Any) -> Any:
        if adapter_name in self.peft_config and Path(model_id, _ADAPTERS).is_file():  # as a Trainer that resumes
            _check_base(self, type(self.peft_config[adapter_name]).from_pretrained(model_id))
        return original(self, model_id, adapter_name, *args, **options)

    return load_adapter


def _check_base(model: Any, adapters: Any) -> None:
    """Refuse a base for adapters that were trained on one with other remedies."""
    record = (getattr(adapters, "auto_mapping", None) or {}).get(HOME)
    if record is None:
        return
    both = record_in(record, _ADAPTERS).applied, applied(model) if is_remedied(model) else ()
    # As they are written, where a tuple is a list.
    wanted, found = (json.dumps(write_record(each)["applied"], sort_keys=True) for each in both)
    if wanted != found:
        what, got = (", ".join(one.name for one in each) or "none" for each in both)
        got = f"others ({got})" if what != got else "the same with other options, or in other layers"
        hint = "unsmooth.apply first with the same options, or AutoPeftModel where the base was saved too"
        raise expected(f"a base with the remedies of these adapters ({what})", got, hint)
