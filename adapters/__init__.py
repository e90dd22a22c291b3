"""Built-in adapters, installed as ``handoff.adapters``."""

if __name__ != "handoff.adapters":
    raise ImportError("import handoff.adapters.<name>; the folder adapters/ is no package itself")
