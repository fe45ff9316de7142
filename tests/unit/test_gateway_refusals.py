"""A refusal applies to the same client's requests for a short time, and to no other client's."""

from syrinx_stages.gateway.client import MAX_CLIENTS, REPEAT_SECONDS, Refusals
from syrinx_stages.gateway.errors import unavailable

ERROR = unavailable("full", 1)


def test_a_refusal_is_repeated_for_a_short_time() -> None:
    refusals = Refusals()
    refusals.add("one", ERROR, True, 10.0)
    refusal = refusals.recent("one", 10.0 + 0.9 * REPEAT_SECONDS)
    assert refusal is not None and (refusal.error, refusal.live) == (ERROR, True)
    assert refusals.recent("one", 10.0 + 1.1 * REPEAT_SECONDS) is None
    assert refusals.recent("two", 10.0) is None


def test_refusals_of_many_clients_are_forgotten() -> None:
    refusals = Refusals()
    for number in range(10 * MAX_CLIENTS):
        refusals.add(str(number), ERROR, True, number * REPEAT_SECONDS)
    assert len(refusals._last) <= MAX_CLIENTS
