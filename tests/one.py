"""`make one NAME=gfsa`: whatever tests one metric, remedy, host, preset, loss, recipe, claim or file, and no more.

Run are the doctests of the files of that name, test files that import them or are named after them, and of the rooms
that hold them every test whose parameters or name have the name in them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE, TESTS = ROOT / "src/unsmooth", ROOT / "tests"


def sources_of(name: str) -> list[Path]:
    """Files that are called so, or in which something has this name or id.

    >>> [path.name for path in sources_of("gfsa")]
    ['gfsa.py']
    """
    says = re.compile(
        rf"""^\s*(?:name|id)\b[^=\n]*=\s*["']{re.escape(name)}["']|^def {re.escape(name)}\(""", re.MULTILINE
    )
    called = re.compile(rf"""^\s*name(?:, \w+)+ = ["']{re.escape(name)}["']""", re.MULTILINE)
    files = sorted(SOURCE.rglob("*.py"))
    return [
        file
        for file in files
        if file.stem == name or says.search(text := file.read_text(encoding="utf-8")) or called.search(text)
    ]


def about(name: str, sources: list[Path]) -> tuple[list[Path], list[Path]]:
    """Test files that are about these files, and folders of tests with others about the same rooms."""
    modules = "|".join(re.escape(".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)) for path in sources)
    imports = re.compile(rf"\b(?:{modules})\b") if modules else None
    whole = [
        file
        for file in sorted(TESTS.rglob("test_*.py"))
        if file.stem == f"test_{name}" or (imports and imports.search(file.read_text(encoding="utf-8")))
    ]
    rooms = {TESTS / path.relative_to(SOURCE).parts[0] for path in sources}
    return whole, sorted(room for room in rooms if room.is_dir())


def main() -> int:
    """Run them; 1 where one fails, 2 where nothing goes by that name."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    sources = sources_of(name) if name else []
    whole, rooms = about(name, sources)
    if not (sources or whole):
        print(f"Expected the name of a metric, remedy, host, preset, claim or file but got {name!r}. Try NAME=gfsa")
        return 2
    said = ", ".join(str(path.relative_to(ROOT)) for path in (*sources, *whole, *rooms))
    print(f"{name}: {said}", flush=True)
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    codes = [subprocess.call([*run, *map(str, (*sources, *whole))], cwd=ROOT)]
    if rooms:
        left = [f"--ignore={file}" for file in whole]
        codes.append(subprocess.call([*run, "-k", name, *left, *map(str, rooms)], cwd=ROOT))
    return int(any(code not in (0, 5) for code in codes))  # 5: there was nothing to run


if __name__ == "__main__":
    sys.exit(main())
