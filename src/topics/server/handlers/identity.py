"""What a key is to its holder: a ticket in its place (AU18), and what it allows (AU20)."""

from topics.server.call import Call
from topics.server.wire.replies import Me, TicketGiven
from topics.server.wire.requests import nothing_in


def give_ticket(call: Call) -> None:
    nothing_in(call.request.body)
    ticket, expires_ts = call.app.tickets.give(call.key)
    call.answer(200, TicketGiven(ticket, expires_ts, call.performance()))


def show_me(call: Call) -> None:
    key = call.key
    call.answer(200, Me(key.name, sorted(key.scopes), list(key.prefixes), call.performance()))
