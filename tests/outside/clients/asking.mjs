// What every client's program is asked for, and how it tells what it saw: asking.py for programs of Node.

export const QUESTION = "What does join do?";
const MODEL = "tiny";
const NUM_TOKENS = 8;
const MANY_TOKENS = 1500;

// make(address, key, model) returns an object with answer, stream, models and leave; sampling is named as in OpenAI's API.
export async function tell(make) {
  const [address, key] = process.argv.slice(2);
  const client = make(address, key, MODEL);
  const unknown = make(address, key, "unknown");
  const whole = await client.answer({ max_tokens: NUM_TOKENS });
  const stop = whole.text.trim().split(/\s+/).at(-1);
  const told = {
    whole,
    streamed: await client.stream({ max_tokens: NUM_TOKENS }),
    stop,
    stopped: await client.answer({ max_tokens: NUM_TOKENS, stop: [stop] }),
    models: await client.models(),
    refused: {
      "unknown model": await refusal(() => unknown.answer({})),
      "unknown model, streamed": await refusal(() => unknown.stream({})),
      "wrong key": await refusal(() => make(address, "wrong", MODEL).answer({})),
      "wrong parameter": await refusal(() => client.answer({ top_p: 7 })),
    },
  };
  process.stdout.write(JSON.stringify(told) + "\n");
  await client.leave({ max_tokens: MANY_TOKENS });
  process.stdout.write("left\n");
  for await (const _ of process.stdin); // lives on until standard input ends
}

// The kinds of the error that a call ends with, its own first, and at the end its words.
async function refusal(ask) {
  try {
    return [`no error, but ${JSON.stringify(await ask())}`];
  } catch (error) {
    const kinds = [];
    for (let kind = error.constructor; kind?.name; kind = Object.getPrototypeOf(kind)) kinds.push(kind.name);
    return [...kinds, String(error.message)];
  }
}
