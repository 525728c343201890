// Vercel's AI SDK with its provider for servers that speak OpenAI's API.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";
import { QUESTION, tell } from "./asking.mjs";

const usageOf = (usage) => [usage.inputTokens, usage.outputTokens];

// The SDK's own names of what may be asked for.
function named({ max_tokens, stop, top_p }) {
  return { maxOutputTokens: max_tokens, stopSequences: stop, topP: top_p };
}

tell((address, key, model) => {
  const provider = createOpenAICompatible({ name: "dormouse", baseURL: address, apiKey: key, includeUsage: true });
  const asked = { model: provider(model), prompt: QUESTION, temperature: 0, maxRetries: 0 };
  return {
    async answer(sampling) {
      const got = await generateText({ ...asked, ...named(sampling) });
      return { text: got.text, finish: got.finishReason, usage: usageOf(got.usage), logprobs: null };
    },
    async stream(sampling) {
      let problem;
      const onError = ({ error }) => (problem = error);
      const got = streamText({ ...asked, ...named(sampling), onError });
      const texts = await Array.fromAsync(got.textStream);
      if (problem) throw problem;
      const usage = usageOf(await got.usage);
      return { text: texts.join(""), finish: await got.finishReason, usage, logprobs: null };
    },
    async models() {
      return null; // it has no such call
    },
    async leave(sampling) {
      const stop = new AbortController();
      const providerOptions = { dormouse: { ignore_eos: true } };
      const got = streamText({ ...asked, ...named(sampling), providerOptions, abortSignal: stop.signal });
      for await (const _ of got.textStream) break;
      stop.abort();
    },
  };
});
