"""When the queue refuses a request: numbers of the script that queues it, and of the operator's model of a pipeline."""

BURST_SHARE = 2
"""A request is admitted if its expected wait is within this part of `max_queue_seconds`: requests are longer or shorter
than expected, and few that are admitted shall be refused later."""
STANDING_SHARE = 9
"""The same in an overload for all but the first in the queue: a longer one would only delay those who are admitted, and
not serve more."""
ARRIVALS_SECONDS = 3
"""Time constant of the rate at which requests arrive. In an overload more of them arrive than are served."""
