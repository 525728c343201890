"""Pure decisions over observed facts: no clock, no clients, no asyncio. Every branch is tested."""
