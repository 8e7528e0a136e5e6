"""The part of the report that says why: pictures and words of an explanation."""
