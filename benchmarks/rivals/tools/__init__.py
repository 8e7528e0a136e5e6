"""One file per tool: how it is asked what it measures, and in which environment it lives.

Each has `ENVIRONMENT`, `PACKAGES`, `load`, `WAYS` (measurements of a model's forward pass) and `answers` (numbers for
token sets whose truth is known). A tool's file imports the tool when asked, and nothing of the other tools.
"""
