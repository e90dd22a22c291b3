"""What five LLM inference frameworks do after a prefix-cache hit, exactly.

    import handoff
    handoff.run("mid-block")
    handoff.explain(shared=1000, tail=37)

``run``, ``explain``, ``sweep``, ``stairs`` and ``load_ledger`` are those of ``handoff.api``, loaded
when first used.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import Explanation, Run, Stairs, Sweep, load_ledger, run, stairs, sweep
    from .api import explain as explain
    from .errors import HandoffError

__all__ = [
    "Explanation",
    "HandoffError",
    "Run",
    "Stairs",
    "Sweep",
    "__version__",
    "explain",
    "load_ledger",
    "run",
    "stairs",
    "sweep",
]

__version__ = version("handoff")


def __getattr__(name: str) -> Any:
    """The API's names, each loaded when it is first asked for."""
    if name == "explain":  # the package of that name can be called
        return import_module(".explain", __name__)
    if name == "HandoffError":
        return import_module(".errors", __name__).HandoffError
    if name in __all__:
        return getattr(import_module(".api", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
