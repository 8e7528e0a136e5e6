"""Show scans and explanations: charts, figures for papers, one HTML page, a notebook cell.

Heavy imports wait for the first call.
"""

from unsmooth.report.charts import layer_chart, save_figures
from unsmooth.report.html import notebook_html, report_html, write_report
from unsmooth.report.profiles import profile_chart
from unsmooth.report.why.figures import save_why_figures, why_figures

__all__ = [
    "layer_chart",
    "notebook_html",
    "profile_chart",
    "report_html",
    "save_figures",
    "save_why_figures",
    "why_figures",
    "write_report",
]
