"""docs/demo/mean_cosine.svg: the three models that come with the package, scanned on the images that come with them.

python -m benchmarks.demo_figure
"""

from __future__ import annotations

from pathlib import Path

import unsmooth
from unsmooth.files import write_whole
from unsmooth.models import demo
from unsmooth.report.charts import chart_svg, layer_chart

FIGURE = Path(__file__).parent.parent / "docs" / "demo" / "mean_cosine.svg"


def main() -> None:
    """Scan, draw, write."""
    scans = []
    for name in ("plain", "sharpen", "smooth"):
        model = unsmooth.load(f"demo:{name}")
        scans.append(unsmooth.scan(model, demo.batches(model), metrics=["mean_cosine"]))
        print(f"{name}: {scans[-1].sentence}")
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    write_whole(FIGURE, chart_svg(layer_chart(scans)))


if __name__ == "__main__":
    main()
