"""``python -m handoff`` is the ``handoff`` command."""

from handoff.cli import main

if __name__ == "__main__":
    main()
