"""OpenAI's door /v1/responses, without a memory: mapped onto the same wish as all others."""
