"""Recordings of upstream runs against the adapters; built so that it cannot flatter."""
