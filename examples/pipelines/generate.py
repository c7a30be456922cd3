"""The data of the examples, generated from a seed: the same everywhere, so results can be checked.

orders   {"id", "sku", "price", "at"}      one every few seconds of an afternoon; now and then one is late
clicks   {"user", "page", "at"}            users who come, click for a while, and come back after hours
jobs     {"kind", "to" or "amount" …}      work for a queue, tagged by the service that does it; some jobs are broken
"""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

START = datetime(2026, 3, 2, 12, tzinfo=UTC)
SKUS = {"apple": "0.50", "bread": "2.80", "coffee": "6.90", "honey": "9.40"}
PAGES = ("home", "search", "product", "basket", "paid")


def orders(count: int, seed: int = 1) -> Iterator[dict[str, Any]]:
    """Orders in the order in which they arrive. `at` is when they were placed; one in fifty is up to 40 s late."""
    dice = random.Random(seed)
    at = START
    for number in range(1, count + 1):
        at += timedelta(seconds=dice.uniform(0.5, 6))
        placed = at - timedelta(seconds=dice.uniform(10, 40)) if dice.random() < 0.02 else at
        sku = dice.choice(list(SKUS))
        price = Decimal(SKUS[sku]) * dice.randint(1, 5)
        yield {"id": number, "sku": sku, "price": str(price), "at": text(placed)}


def clicks(users: int, seed: int = 1) -> list[dict[str, Any]]:
    """One to three visits per user with hours between them, all users mixed, ordered by time."""
    dice = random.Random(seed)
    found = []
    for number in range(1, users + 1):
        at = START + timedelta(minutes=dice.uniform(0, 60))
        for _ in range(dice.randint(1, 3)):
            for page in dice.choices(PAGES, k=dice.randint(1, 8)):
                found.append({"user": f"user-{number}", "page": page, "at": text(at)})
                at += timedelta(minutes=dice.uniform(0.1, 20))
            at += timedelta(hours=dice.uniform(1, 3))
    return sorted(found, key=lambda click: str(click["at"]))


def jobs(count: int, seed: int = 1) -> Iterator[tuple[str, dict[str, Any]]]:
    """Tag and data. A mail needs the service smtp; an invoice needs an amount, and one in ten has none."""
    dice = random.Random(seed)
    for number in range(1, count + 1):
        if dice.random() < 0.5:
            yield "smtp", {"kind": "mail", "to": f"user-{number}@example.org"}
        else:
            amount = None if dice.random() < 0.1 else dice.randint(1, 500)
            yield "invoices", {"kind": "invoice", "number": number, "amount": amount}


def text(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
