"""Sequences as spans, the shared history tree, and recency orders; no policy."""
