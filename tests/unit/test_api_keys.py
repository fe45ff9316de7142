"""The file of API keys, the limits of a client, who a client is, and for how long it is refused."""

import hashlib
import json

import msgspec
import pytest
from starlette.requests import HTTPConnection

from syrinx_operator.commands.key import KeyOptionsError, generate_key
from syrinx_stages.contract.api_keys import MAX_BYTES, MAX_KEYS, KeysError, Limits, digest, parse_keys
from syrinx_stages.gateway.clients.allowance import MAX_RETRY_SECONDS, Allowance, LimitExceeded
from syrinx_stages.gateway.clients.client import (
    MAX_CLIENTS,
    REPEAT_SECONDS,
    Client,
    Refusals,
    client_key,
    current_client,
)
from syrinx_stages.gateway.errors import unavailable

FULL = unavailable("full", 1)


def entry(name: str, key: str, **limits: float) -> bytes:
    return json.dumps({"name": name, "sha256": hashlib.sha256(key.encode()).hexdigest(), **limits}).encode() + b"\n"


def test_a_file_has_a_key_a_line() -> None:
    data = b"# since May\n\n" + entry("alice", "one", streams=2) + entry("bob", "two", requestsPerSecond=0.5)
    keys = parse_keys(data)
    assert keys.names == {digest(b"one"): "alice", digest(b"two"): "bob"}
    assert keys.limits == {"alice": Limits(streams=2), "bob": Limits(requests_per_second=0.5)}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "contains no key"),
        (b"# nobody\n", "contains no key"),
        (entry("alice", "a") + b"alice:secret", "line 2: JSON is malformed"),
        (b'\n{"name": "alice", "key": "secret"}', "line 2: Object contains unknown field `key`"),
        (b'{"name": "alice"}', "line 1: Object missing required field `sha256`"),
        (b'{"name": "alice", "sha256": "secret"}', r"line 1: .*\$\.sha256"),
        (entry("", "a"), r"line 1: .*\$\.name"),
        (entry('a"}', "a"), r"line 1: .*\$\.name"),
        (entry("alice", "a", streams=0), r"line 1: .*\$\.streams"),
        (entry("alice", "a", requestsPerSecond=-1), r"line 1: .*\$\.requestsPerSecond"),
        (entry("alice", "a", burst=3), r"line 1 \(alice\): burst needs requestsPerSecond"),
        (entry("alice", "a") + entry("alice", "b", streams=1), r"line 2 \(alice\): other limits"),
        (entry("alice", "a") + entry("bob", "a"), r"line 2 \(bob\): the same key as one of alice"),
        (b"#" * (MAX_BYTES + 1), "larger than 1 MiB"),
        (b"".join(entry("a", str(n)) for n in range(MAX_KEYS + 1)), f"line {MAX_KEYS + 1} .*more than {MAX_KEYS} keys"),
    ],
)
def test_an_invalid_file_is_refused_without_showing_what_may_be_a_key(data: bytes, message: str) -> None:
    with pytest.raises(KeysError, match=message) as refused:
        parse_keys(data)
    assert "secret" not in str(refused.value)


def test_a_generated_key_is_valid_and_random() -> None:
    (key, line), (other, _) = (generate_key("alice", requests_per_second=2.5, burst=9, streams=3) for _ in range(2))
    keys = parse_keys(line.encode())
    assert keys.names == {digest(key.encode()): "alice"}
    assert keys.limits == {"alice": Limits(requests_per_second=2.5, burst=9, streams=3)}
    assert key != other and key not in line and len(key) > 40


@pytest.mark.parametrize(("name", "limits"), [("a b", {}), ("", {}), ("a", {"burst": 2}), ("a", {"streams": 10**6})])
def test_no_key_is_generated_that_the_gateway_would_refuse(name: str, limits: dict[str, int]) -> None:
    with pytest.raises(KeyOptionsError):
        generate_key(name, **limits)


def retry_after(allowance: Allowance, now: float) -> tuple[str, float]:
    with pytest.raises(LimitExceeded) as exceeded:
        allowance.begin(now)
    assert exceeded.value.error.status == 429
    return exceeded.value.limit, pytest.approx(exceeded.value.error.retry_after)


def test_a_rate_allows_a_burst_and_then_one_request_in_each_interval() -> None:
    allowance = Allowance(Limits(requests_per_second=0.5, burst=3), 100.0)
    for _ in range(3):
        allowance.begin(100.0)
    assert retry_after(allowance, 100.0) == ("requests", 2.0)
    assert retry_after(allowance, 101.5) == ("requests", 0.5)
    allowance.begin(102.0)
    assert retry_after(allowance, 102.0) == ("requests", 2.0)
    for _ in range(3):
        allowance.begin(1000.0)
    assert retry_after(allowance, 1000.0) == ("requests", 2.0), "a pause saves up one burst"


def test_a_limit_of_streams_names_when_one_will_probably_end() -> None:
    allowance = Allowance(Limits(streams=2), 0.0)
    for _ in range(50):
        allowance.begin(0.0)
        allowance.end(8.0)
    for _ in range(2):
        allowance.begin(0.0)
    limit, seconds = retry_after(allowance, 0.0)
    assert limit == "streams" and seconds == pytest.approx(4.0, rel=0.01)
    allowance.end(8.0)
    allowance.begin(0.0)
    allowance.end(1e6)
    allowance.begin(0.0)
    assert retry_after(allowance, 0.0)[1] == MAX_RETRY_SECONDS


def test_a_request_that_exceeds_one_limit_counts_toward_no_other() -> None:
    allowance = Allowance(Limits(requests_per_second=1, burst=2, streams=1), 0.0)
    allowance.begin(0.0)
    for _ in range(5):
        assert retry_after(allowance, 0.0)[0] == "streams"
    allowance.end(1.0)
    allowance.begin(0.0)


def test_each_item_of_a_batch_counts() -> None:
    allowance = Allowance(Limits(requests_per_second=1, streams=4), 0.0)
    allowance.begin(0.0)
    allowance.charge(7)
    with allowance.reserve(8) as streams:
        assert streams == 4
        assert retry_after(allowance, 100.0)[0] == "streams"
    assert retry_after(allowance, 2.0) == ("requests", 6.0)
    allowance.begin(8.0)
    with allowance.reserve(2) as streams:
        assert streams == 2
    with Allowance(Limits(), 0.0).reserve(8) as streams:
        assert streams == 8


def peer(host: str, authorization: str = "") -> HTTPConnection:
    headers = [(b"authorization", authorization.encode())] if authorization else []
    return HTTPConnection({"type": "http", "headers": headers, "client": (host, 1)})


def test_without_keys_a_client_is_its_address_whatever_headers_it_sends() -> None:
    assert client_key(peer("10.0.0.1", "Bearer a")) == client_key(peer("10.0.0.1", "Bearer b"))
    assert client_key(peer("10.0.0.1")) != client_key(peer("10.0.0.2"))
    assert client_key(peer("::ffff:10.0.0.1")) == client_key(peer("10.0.0.1")) != client_key(peer("::ffff:10.0.0.2"))
    assert (
        client_key(peer("2001:db8::1")) == client_key(peer("2001:db8::ffff:2")) != client_key(peer("2001:db8:0:1::1"))
    )
    assert client_key(peer("unknown")) != client_key(peer(""))


def test_with_keys_a_client_is_the_name_of_its_key() -> None:
    def named(name: str, host: str) -> str:
        token = current_client.set(Client(name, Allowance(Limits(), 0.0)))
        try:
            return client_key(peer(host))
        finally:
            current_client.reset(token)

    assert named("alice", "10.0.0.1") == named("alice", "10.0.0.2") != named("bob", "10.0.0.1")
    assert named("10.0.0.1", "10.0.0.1") != client_key(peer("10.0.0.1")), "a name is no address"
    assert "alice" not in msgspec.json.encode(named("alice", "10.0.0.1")).decode()


def test_a_refusal_is_repeated_for_a_short_time() -> None:
    refusals = Refusals()
    refusals.add("one", FULL, True, 10.0)
    refusal = refusals.recent("one", 10.0 + 0.9 * REPEAT_SECONDS)
    assert refusal is not None and (refusal.error, refusal.live) == (FULL, True)
    assert refusals.recent("one", 10.0 + 1.1 * REPEAT_SECONDS) is None
    assert refusals.recent("two", 10.0) is None


def test_refusals_of_many_clients_are_forgotten() -> None:
    refusals = Refusals()
    for number in range(10 * MAX_CLIENTS):
        refusals.add(str(number), FULL, True, number * REPEAT_SECONDS)
    assert len(refusals._last) <= MAX_CLIENTS
