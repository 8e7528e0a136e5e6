"""The census: every architecture at hand built tiny, run through the library, and judged by an oracle of another hand."""
