"""The waiting queue under both policies (request_queue.py; RULES 6.2, 13)."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

from .state import RequestState

__all__ = ["RequestQueue"]


class RequestQueue:
    """Requests in the order in which admission looks at them.

    Requests that were passed over (they wait for a load or for outputs in flight) come before all
    others the next time; under ``priority`` everything is ordered by (priority, arrival).
    """

    def __init__(self, policy: str) -> None:
        self._by_priority = policy == "priority"
        self._passed: deque[RequestState] = deque()
        self._queue: deque[RequestState] = deque()
        self._heap: list[tuple[int, int, RequestState]] = []

    def __len__(self) -> int:
        return len(self._passed) + len(self._queue) + len(self._heap)

    def add(self, state: RequestState) -> None:
        """A new request, at the end."""
        if self._by_priority:
            self._push(state)
        else:
            self._queue.append(state)

    def peek(self) -> RequestState:
        """The next request to look at; it stays where it is."""
        if self._by_priority:
            return self._heap[0][2]
        return (self._passed or self._queue)[0]

    def pop(self) -> RequestState:
        """Take the next request out."""
        if self._by_priority:
            return heapq.heappop(self._heap)[2]
        return (self._passed or self._queue).popleft()

    def put_in_front(self, state: RequestState) -> None:
        """A preempted request, at the head."""
        if self._by_priority:
            self._push(state)
        else:
            self._queue.appendleft(state)

    def pass_over(self, states: list[RequestState]) -> None:
        """Requests that were looked at and could not be considered, in order."""
        if self._by_priority:
            for state in states:
                self._push(state)
        else:
            self._passed.extendleft(reversed(states))

    def remove(self, state: RequestState) -> None:
        """Take a request out, wherever it stands."""
        if self._by_priority:
            self._heap.remove((state.priority, state.order, state))
            heapq.heapify(self._heap)
        elif state in self._passed:
            self._passed.remove(state)
        else:
            self._queue.remove(state)

    def __iter__(self) -> Iterator[RequestState]:
        yield from self._passed
        yield from self._queue
        yield from (entry[2] for entry in sorted(self._heap))

    def _push(self, state: RequestState) -> None:
        heapq.heappush(self._heap, (state.priority, state.order, state))
