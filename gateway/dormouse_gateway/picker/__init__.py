"""Envoy's external processing: other people's gateways ask here which worker gets a request of theirs."""
