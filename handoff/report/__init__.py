"""Tables, figures and pages: a ledger DataFrame and a ``RunInfo`` in, words and pictures out."""
