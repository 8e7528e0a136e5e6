"""The site: pages made from the registries, notebooks that were run, and docs/ as it is. `make docs` builds it."""
