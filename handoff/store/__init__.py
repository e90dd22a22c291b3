"""The shared store: counts, tables, pages, states and content tags."""
