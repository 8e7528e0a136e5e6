"""What every page is built in: its templates, its chart runtime, and a policy that forbids everything else."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path, PurePath
from typing import Any

from unsmooth import extras
from unsmooth.files import write_whole


def import_extra(name: str) -> Any:
    """Import a package of the `report` extra, or say how to get it."""
    return extras.import_extra(name, extra="report", purpose="which draws the charts")


PAGE_FONT = "system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif"


def page_html(
    template: str,
    includes: Sequence[str] = (),
    *,
    styles: Sequence[str] = ("page.css",),
    filters: Mapping[str, Callable[..., Any]] | None = None,
    scripts: Sequence[str] | None = None,
    **values: Any,
) -> str:
    """A page as text: every variable is escaped, and nothing runs in it but our own scripts.

    Args:
        template: Its file in this room.
        includes: Files of templates that it includes.
        styles: Files of style sheets.
        filters: Functions by the names that templates call them by.
        scripts: What runs after the chart runtime; None where nothing is to run.
        **values: What the template shows.
    """
    jinja2, markup = import_extra("jinja2"), import_extra("markupsafe").Markup
    page = jinja2.Environment(
        loader=jinja2.DictLoader({PurePath(name).name: resource(name) for name in (template, *includes)}),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page.filters.update(filters or {})
    running = [] if scripts is None else [runtime(), *scripts]
    if scripts is not None:
        values |= {"runtime": markup(runtime()), "scripts": [markup(script) for script in scripts]}
    style = markup("\n".join(map(resource, styles)))
    return str(page.get_template(PurePath(template).name).render(policy=policy(*running), style=style, **values))


def write_page(path: str | Path, html: str) -> Path:
    """Write a page, which appears whole or not at all; half a surrogate pair, which UTF-8 has not, becomes "?"."""
    return write_whole(Path(path), html.encode("utf-8", errors="replace"))


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


def script_json(data: object) -> Any:
    r"""JSON that cannot end the script element it stands in, marked as safe to stand there.

    >>> str(script_json({"a": "</script>"}))
    '{"a":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))  # pure ASCII: U+2028 is escaped too
    safe = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return import_extra("markupsafe").Markup(safe)
