"""Show scans: charts, figures for papers, one HTML page, a notebook cell. Heavy imports wait for the first call."""

from unsmooth.report.charts import layer_chart, save_figures
from unsmooth.report.html import write_report
from unsmooth.report.notebook import notebook_html

__all__ = ["layer_chart", "notebook_html", "save_figures", "write_report"]
