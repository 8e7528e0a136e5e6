"""What every page is built in: its templates, its chart runtime, and a policy that forbids everything else."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from unsmooth.report.extras import import_extra

PAGE_FONT = "system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif"


def environment(templates: Mapping[str, str]) -> Any:
    """Templates in which every variable is escaped.

    Args:
        templates: What templates call one another, to their file in this room.
    """
    jinja2 = import_extra("jinja2")
    return jinja2.Environment(
        loader=jinja2.DictLoader({name: resource(path) for name, path in templates.items()}),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def policy(*scripts: str) -> str:
    """No network, and no script but ours: what a user's text might smuggle in does not run."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    rest = "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {allowed}; {rest}"


@cache
def runtime() -> str:
    """Vega, Vega-Lite and vega-embed, as vl-convert carries them, made safe to stand in a script element."""
    bundle: str = import_extra("vl_convert").javascript_bundle()
    return re.sub(r"<(?=/script|!--)", r"\\x3C", bundle.replace("\r\n", "\n"), flags=re.IGNORECASE).strip()


def resource(name: str) -> str:
    """The text of a file in this room."""
    return files("unsmooth.report").joinpath(name).read_text(encoding="utf-8").strip()
