"""Built-in scenarios: one YAML file a question."""
