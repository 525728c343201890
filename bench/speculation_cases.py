"""What a small chat model is asked when drafts are measured: how much of an answer stands in the prompt differs."""

from __future__ import annotations

import json
from dataclasses import dataclass

END_OF_TURN = "<|im_end|>"

_RECORDS = [
    {"name": name, "city": city, "age": age, "team": team}
    for name, city, age, team in (
        ("Ada Brandt", "Lisbon", 34, "storage"),
        ("Milo Reyes", "Porto", 41, "network"),
        ("Ines Duarte", "Braga", 29, "storage"),
        ("Tom Keller", "Faro", 52, "kernel"),
        ("Rita Nunes", "Evora", 38, "network"),
        ("Jan Novak", "Coimbra", 45, "kernel"),
    )
]
_TEXT = (
    "The harbour of the old town was built in three parts. The eastern basin is the oldest; its walls are made of "
    "granite from the hills, and fishing boats still land there every morning. The middle basin was dug when steam "
    "ships came, and it is deep enough for ferries. The western basin is the newest, and it is used by sailing clubs. "
    "A lighthouse stands at the end of the western wall. It was automated forty years ago, and its keeper's house is "
    "now a small museum that opens on weekends. Storms from the south are broken by a long mole, which was raised by "
    "two metres after the flood. The market hall lies behind the eastern basin, where the catch is sold at dawn."
)
_CODE = '''\
def collect_orders(source, limit):
    """Return the open orders of a source, newest first."""
    orders = []
    for entry in source.read_entries():
        if entry.is_closed:
            continue
        orders.append(entry)
        if len(orders) == limit:
            break
    orders.sort(key=lambda entry: entry.created_at, reverse=True)
    return orders


def total_price(orders, discount):
    """Return the sum of all prices, less the discount."""
    total = 0
    for entry in orders:
        total += entry.price * entry.count
    return total * (1 - discount)
'''


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to ask for, and what drafts shall make of it."""

    name: str
    wishes: tuple[str, ...]
    least: float  # tokens per second with drafts, over those without
    prediction: str = ""  # what the caller says that the answer will be
    max_tokens: int = 80


CASES = (
    Case("copy", (f"Repeat the following text word for word.\n\n{_TEXT}",), 2.5),
    Case(
        "edit with a prediction",
        (f"Repeat this code, but call the parameter limit most.\n\n```python\n{_CODE}```",),
        2.5,
        prediction=f"```python\n{_CODE.replace('limit', 'most')}```",
    ),
    Case(
        "JSON extraction",
        (
            "Write these people as a JSON list of objects with name, city, age and team.\n\n"
            + "\n".join(f"{r['name']} from {r['city']}, {r['age']} years old, team {r['team']}" for r in _RECORDS)
            + f"\n\nBegin like this:\n{json.dumps(_RECORDS[:2], indent=2)}",
        ),
        2.0,
    ),
    Case(
        "quotes from a text",
        tuple(
            f"{_TEXT}\n\nQuestion: {question} Answer with the sentences of the text that say so, word for word."
            for question in ("Which basin is the oldest?", "What is told of the lighthouse?", "How are storms broken?")
        ),
        1.3,
    ),
    Case("an edit of code", (f"Add a comment to every loop of this code.\n\n```python\n{_CODE}```",), 1.3),
    Case(
        "chat",
        (
            "What should I cook tonight with rice and two eggs?",
            "Explain in a few sentences why the sky is blue.",
            "Write a short story about a mouse that sleeps all winter.",
        ),
        1.0,
    ),
)


def prompt_of(wish: str) -> str:
    """Return a chat of one turn, as the model was trained on them."""
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    return f"<|im_start|>system\n{system}{END_OF_TURN}\n<|im_start|>user\n{wish}{END_OF_TURN}\n<|im_start|>assistant\n"
