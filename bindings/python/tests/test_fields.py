"""The parser of RateLimit fields, against the vectors that all clients share."""

import base64
import json
import os
import random
from datetime import timedelta
from pathlib import Path

import pytest

import slidegate
from slidegate.fields import MAX_FIELD_BYTES, MAX_ITEMS

REPOSITORY = Path(__file__).parents[3]
VECTORS = Path(os.environ.get("SLIDEGATE_FIELD_VECTORS", REPOSITORY / "clients" / "ratelimit-fields.json"))


def seconds(after):
    return None if after is None else after.total_seconds()


def key(given):
    return None if given is None else base64.b64encode(given).decode()


def expected_seconds(given):
    # "A client whose durations are too short for a number uses its longest."
    return None if given is None else min(given, timedelta.max.total_seconds())


def vectors():
    return [pytest.param(one, id=one["name"]) for one in json.loads(VECTORS.read_text())["vectors"]]


# A program must read the same limits from a response, whatever language it is in.
@pytest.mark.parametrize("vector", vectors())
def test_a_vector_is_read_as_by_the_other_clients(vector):
    limits = slidegate.parse_rate_limit([tuple(field) for field in vector["fields"]])
    assert [
        {"name": o.name, "remaining": o.remaining, "reset_s": seconds(o.reset_after), "partition_key": key(o.partition_key)}
        for o in limits.items
    ] == [{**o, "reset_s": expected_seconds(o["reset_s"])} for o in vector["items"]]
    assert [
        {"name": o.name, "quota": o.quota, "window_s": seconds(o.window), "unit": o.unit, "partition_key": key(o.partition_key)}
        for o in limits.policies
    ] == [{**o, "window_s": expected_seconds(o["window_s"])} for o in vector["policies"]]
    assert seconds(limits.retry_after) == expected_seconds(vector["retry_after_s"])
    assert list(limits.invalid) == vector["invalid"]
    assert seconds(limits.wait) == expected_seconds(vector["wait_s"])


# A server that sends megabytes must not keep its client busy.
def test_fields_beyond_the_bounds_are_ignored():
    many = ",".join(f'"{number}";r=1' for number in range(MAX_ITEMS))
    assert len(slidegate.parse_rate_limit({"RateLimit": many}).items) == MAX_ITEMS
    assert slidegate.parse_rate_limit({"RateLimit": many + ',"more";r=1'}).invalid == ("RateLimit",)
    assert slidegate.parse_rate_limit({"RateLimit": f'"{"a" * MAX_FIELD_BYTES}";r=1'}).invalid == ("RateLimit",)
    assert slidegate.parse_rate_limit({"RateLimit": '"a";r=1' + "".join(f";x{n}" for n in range(100))}).invalid


# A client reads what any server sends it, and must not fail.
def test_no_bytes_make_it_raise():
    random.seed(7)
    alphabet = '"\\a1;=,:?@%*()-. \t\0é\ud800r qtw'
    for _ in range(20_000):
        text = "".join(random.choices(alphabet, k=random.randrange(24)))
        slidegate.parse_rate_limit([("RateLimit", '"a";r=1' + text), ("RateLimit-Policy", text), ("Retry-After", text)])
