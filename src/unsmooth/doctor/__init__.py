"""What is installed, what is missing and how to get it, and whether the core works.

Nothing but Python's own library is imported here: this must work where everything else is broken. What has to import
other packages does so in a process of its own.
"""

from unsmooth.doctor.checks import Check, Examination, examine

__all__ = ["Check", "Examination", "examine"]
