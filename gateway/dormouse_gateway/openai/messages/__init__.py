"""Anthropic's door: /v1/messages and its counting of tokens, mapped onto the same wish as all others."""
