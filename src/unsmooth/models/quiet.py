"""transformers talks while it loads; what matters of it is said in our own words."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' progress bars and warnings, and put both back as they were.

    Some of its bars heed no setting, so the error stream is set aside as well; errors are exceptions.
    """
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
