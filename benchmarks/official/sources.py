"""The authors' files: which they are, how they come here, and how single classes are taken out of them.

None of them is part of this project. They want libraries of 2021 that no longer install, but the classes that matter
want nothing but torch: so a file is parsed, and only those are run.
"""

from __future__ import annotations

import ast
import hashlib
import http.client
import math
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from unsmooth.errors import expected
from unsmooth.files import write_whole

URL = "https://raw.githubusercontent.com/{repository}/{commit}/{path}"
_SECONDS = 30


@dataclass(frozen=True)
class Source:
    """A file as it was when it was read here.

    Args:
        repository: On GitHub.
        commit: Of it.
        path: In it.
        digest: SHA-256 of the file.
    """

    repository: str
    commit: str
    path: str
    digest: str

    def below(self, folder: Path) -> Path:
        """Where a clone of the repository below `folder` has it."""
        return folder / self.repository.rpartition("/")[2] / self.path

    def read(self, folder: Path) -> str:
        """Its text, if it is the file that was meant."""
        place = self.below(folder)
        if not place.is_file():
            raise expected(f"{self.repository}'s {self.path} below {folder}", "no such file", "--fetch")
        data = place.read_bytes()
        if (found := hashlib.sha256(data).hexdigest()) != self.digest:
            wanted = f"{self.path} of {self.repository} at commit {self.commit[:10]} (SHA-256 {self.digest[:10]}…)"
            raise expected(wanted, f"{found[:10]}… in {place}", "--fetch, or that commit")
        return data.decode("utf-8")


def fetch(sources: Iterable[Source], folder: Path, url: str = URL) -> None:
    """Bring those that are not there."""
    for source in sources:
        place = source.below(folder)
        if not place.is_file():
            parts = {"repository": source.repository, "commit": source.commit, "path": source.path}
            write_whole(place, _answer(url.format(**parts), place))


def _answer(address: str, place: Path) -> bytes:
    """What is at an address; without a network one line says what to do."""
    try:
        with urllib.request.urlopen(address, timeout=_SECONDS) as answer:
            found: bytes = answer.read()
            return found
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        reason = " ".join(str(getattr(error, "reason", None) or error).split()) or type(error).__name__
        hint = f"again with a network, or with a copy of it at {place}"
        raise expected(f"the authors' file from {address}", reason, hint) from None


def definitions(text: str, names: Iterable[str], given: Mapping[str, Any] | None = None) -> SimpleNamespace:
    r"""Classes and functions of a file by name; nothing else of it runs.

    Args:
        text: Of the file.
        names: Which.
        given: What they find beside torch, in place of what the file imports.

    Example:
        >>> definitions("import nowhere\n\ndef twice(x):\n    return 2 * x\n", ["twice"]).twice(3)
        6
    """
    wanted = {*names}
    kinds = (ast.ClassDef, ast.FunctionDef)
    found = [node for node in ast.parse(text).body if isinstance(node, kinds) and node.name in wanted]
    if missing := wanted - {node.name for node in found}:
        raise expected(f"a file that defines {', '.join(sorted(missing))}", "one that does not", "the file it was")
    scope: dict[str, Any] = {"torch": torch, "nn": nn, "F": nn.functional, "math": math, **(given or {})}
    exec(compile(ast.Module(body=list(found), type_ignores=[]), "<the authors' file>", "exec"), scope)
    return SimpleNamespace(**{node.name: scope[node.name] for node in found})
