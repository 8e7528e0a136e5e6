"""A page for every host: which blocks it recognises, and what can be done with them."""

from __future__ import annotations

from benchmarks.site.page import Page, chapter, facts
from unsmooth.models import HOSTS, Host


def host_pages() -> list[Page]:
    """All hosts."""
    found = sorted(HOSTS.values(), key=lambda host: host.name)
    introduction = (
        "Families of models, recognised by the class of their blocks, however these are wrapped. Any other "
        '`nn.Module` is scanned by a pattern: `unsmooth.scan(model, data, blocks="encoder.layers.*")`. '
        "`unsmooth ls models` prints this list."
    )
    about = {host.name: host.example for host in found}
    return chapter("hosts", "Models", introduction, [_page(host) for host in found], about)


def _page(host: Host) -> Page:
    declared = facts(
        {
            "such as": host.example,
            "blocks": ", ".join(f"`{block}`" for block in host.blocks),
            "value weights (`explain`)": "read" if host.wiring else "not known",
            "attention maps": "seen" if host.attention_module else "not seen",
            "remedies (`apply`)": "fit" if host.wiring else "do not fit",
        }
    )
    return Page(f"reference/hosts/{host.name}.md", host.name, f"# {host.name}\n\n{declared}\n")
