"""What keys may use at all gateways together: who counts, and the streams to those who ask."""
