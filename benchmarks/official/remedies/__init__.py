"""One file per remedy: the authors' modules, built and filled, and ours beside them."""
