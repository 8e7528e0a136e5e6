"""An official archive from its address, to a file that is checked before it is used."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from unsmooth.errors import expected
from unsmooth.training.data.cards import Card
from unsmooth.training.data.digests import file_digest

_SECONDS = 30
_BLOCK = 1 << 18


def download(card: Card, folder: Path, progress: Callable[[int, int | None], None] | None = None) -> Path:
    """Fetch the archive of a data set into `folder` and check it.

    Args:
        card: Which one.
        folder: Where to put it, under its official name.
        progress: Called with the bytes so far, and in all where the server says so.
    """
    path = folder / card.archive
    try:
        _fetch(card.url, path, progress)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", None) or error
        said = " ".join(str(reason).split()) or type(error).__name__
        hint = f"again with a network, or --from with a copy of {card.archive}{_or_hub(card)}"
        raise expected(f"{card.name} from {card.url}", said, hint) from None
    if card.md5 is not None and (found := file_digest(path, "md5")) != card.md5:
        hint = "again, or --from with another copy"
        raise expected(f"md5 {card.md5} for {card.url}", found, hint)
    return path


def _fetch(url: str, path: Path, progress: Callable[[int, int | None], None] | None) -> None:
    with urllib.request.urlopen(url, timeout=_SECONDS) as answer, path.open("wb") as file:
        length = answer.headers.get("Content-Length")
        total = int(length) if length else None
        done = 0
        while block := answer.read(_BLOCK):
            file.write(block)
            done += len(block)
            if progress is not None:
                progress(done, total)
    if total is not None and done != total:
        raise http.client.IncompleteRead(b"", total - done)


def _or_hub(card: Card) -> str:
    return f", or --from {card.hub}" if card.hub else ""
