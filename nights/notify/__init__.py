"""nights/notify: telling people: signed webhooks, Slack, e-mail, a dead man's ping; each event once, never with row content unless asked."""
