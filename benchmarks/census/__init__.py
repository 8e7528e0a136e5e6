"""The census: every architecture at hand built tiny, asked of the library, judged by other hooks."""
