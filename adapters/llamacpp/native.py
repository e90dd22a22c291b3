"""placeholder"""


def replay_native(case):
    from handoff.errors import Unsupported

    raise Unsupported("later")
