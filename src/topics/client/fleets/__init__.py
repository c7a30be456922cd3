"""Several servers as one set of topics: `Fleet` for blocking code, `AsyncFleet` for asyncio.

    addresses    the list of servers, and whose key is whose
    aio          AsyncFleet
    blocking     the same for blocking code, generated from aio

Each topic lives on one server. Which one that is for a new topic, `topics.placement` says.
"""
