// OpenAI's own library for Node.

import OpenAI from "openai";
import { QUESTION, tell } from "./asking.mjs";

const usageOf = (got) => [got.usage.prompt_tokens, got.usage.completion_tokens];
const logprobsOf = (choice) => (choice.logprobs?.content ?? []).map((token) => token.logprob);

tell((address, key, model) => {
  const client = new OpenAI({ baseURL: address, apiKey: key, maxRetries: 0 });
  const asked = { model, messages: [{ role: "user", content: QUESTION }] };
  const create = (how) => client.chat.completions.create({ ...asked, ...how });
  return {
    async answer(sampling) {
      const got = await create({ temperature: 0, logprobs: true, ...sampling });
      const choice = got.choices[0];
      const logprobs = logprobsOf(choice);
      return { text: choice.message.content, finish: choice.finish_reason, usage: usageOf(got), logprobs };
    },
    async stream(sampling) {
      const how = { temperature: 0, logprobs: true, stream: true, stream_options: { include_usage: true } };
      const chunks = await Array.fromAsync(await create({ ...how, ...sampling }));
      const choices = chunks.flatMap((chunk) => chunk.choices);
      const texts = choices.map((choice) => choice.delta.content).filter(Boolean);
      return {
        text: texts.join(""),
        finish: choices.at(-1).finish_reason,
        usage: usageOf(chunks.at(-1)),
        logprobs: choices.flatMap(logprobsOf),
      };
    },
    async models() {
      return (await Array.fromAsync(client.models.list())).map((found) => found.id);
    },
    async leave(sampling) {
      for await (const chunk of await create({ stream: true, ignore_eos: true, ...sampling })) {
        if (chunk.choices[0].delta.content) break; // leaving the loop aborts the stream
      }
    },
  };
});
