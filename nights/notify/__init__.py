"""nights/notify: telling people: signed webhooks, Slack, e-mail, a dead man's ping. Each event once, never with row content unless asked.

`messages` makes texts (pure), `channels` sends one and says what became of it, `deliver` sees to it that each event is told once.
"""

from nights.notify.channels import Channel, Sent
from nights.notify.deliver import Delivery, ping, tell
from nights.notify.messages import Failures, Message, message_of

__all__ = ["Channel", "Delivery", "Failures", "Message", "Sent", "message_of", "ping", "tell"]
