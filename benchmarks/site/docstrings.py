"""Docstrings as Markdown: formulas as MathML, which browsers draw by themselves; sections and examples."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

SECTIONS = {
    "Args": "Arguments",
    "Attributes": "Attributes",
    "Example": "Example",
    "Raises": "Errors",
    "Returns": "Returns",
}
_MATH, _INLINE = re.compile(r"^\s*\.\. math::\s*"), re.compile(r":math:`([^`]+)`")
# What latex2mathml does not know, in words that it does.
_OTHERWISE = {r"\Bigl": r"\left", r"\Bigr": r"\right", r"\bigl": r"\left", r"\bigr": r"\right", r"\#": r"\text{#}"}


def formula(latex: str, display: str = "block") -> str:
    r"""LaTeX as MathML.

    >>> formula(r"\frac{1}{n}", "inline").startswith('<math xmlns="http://www.w3.org/1998/Math/MathML"')
    True
    """
    from latex2mathml.converter import convert

    for known, plain in _OTHERWISE.items():
        latex = latex.replace(known, plain)
    return " ".join(convert(" ".join(latex.split()), display=display).split())


def to_markdown(text: str) -> str:
    r"""A docstring in the house's style as Markdown.

    >>> print(to_markdown("One line.\n\nArgs:\n    x: What it is,\n        in short."))
    One line.
    <BLANKLINE>
    **Arguments**
    <BLANKLINE>
    - `x`: What it is, in short.
    """
    parts = [_paragraph(lines) for lines in _paragraphs(inspect.cleandoc(text).splitlines())]
    return "\n\n".join(part for part in parts if part)


def _paragraphs(lines: list[str]) -> Iterator[list[str]]:
    """Lines without a blank one between them; a section's heading is a paragraph of its own."""
    found: list[str] = []
    for line in lines:
        heading = line.rstrip(":") in SECTIONS and line.endswith(":")
        if (not line.strip() or heading) and found:
            yield found
            found = []
        if heading:
            yield [line]
        elif line.strip():
            found.append(line)
    if found:
        yield found


def _paragraph(lines: list[str]) -> str:
    first = lines[0].strip()
    if first.rstrip(":") in SECTIONS and first.endswith(":"):
        return f"**{SECTIONS[first.rstrip(':')]}**"
    if _MATH.match(first):
        return f'<div class="formula">{formula(_MATH.sub("", " ".join(lines)))}</div>'
    if first.startswith(">>>"):
        return "\n".join(["```pycon", *inspect.cleandoc("\n".join(lines)).splitlines(), "```"])
    if all(line.startswith("    ") for line in lines):
        return _entries(lines)
    return _spoken(" ".join(line.strip() for line in lines))


def _entries(lines: list[str]) -> str:
    """What is indented below a heading: ``name: text`` each, or a text."""
    entries: list[str] = []
    for line in lines:
        if line.startswith("     ") and entries:
            entries[-1] += " " + line.strip()
        else:
            entries.append(line.strip())
    named = [re.match(r"(\w+): (.*)", entry) for entry in entries]
    if all(named):
        return "\n".join(f"- `{match[1]}`: {_spoken(match[2])}" for match in named if match)
    return _spoken(" ".join(entries))


def _spoken(text: str) -> str:
    return _INLINE.sub(lambda match: formula(match.group(1), "inline"), text)
