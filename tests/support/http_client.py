"""An HTTP client for tests that ask a process again and again."""

import httpx

# One for all: loading certificates, which none needs, would be most of the time of a request.
HTTP = httpx.Client(timeout=5.0, trust_env=False, verify=False, limits=httpx.Limits(max_keepalive_connections=0))
