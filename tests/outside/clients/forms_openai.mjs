// OpenAI's own library for Node: answers that its users bind to a zod schema, and tools, in both of its APIs.

import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodResponsesFunction, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const [address, key] = process.argv.slice(2);
const client = new OpenAI({ baseURL: address, apiKey: key, maxRetries: 0 });
const FORM = z.object({
  animal: z.enum(["dormouse", "hedgehog"]),
  weeks: z.number().int().min(0).max(52),
  asleep: z.boolean(),
});
const TOOL = { name: "look_up", description: "Look an animal up.", parameters: FORM };
const ONE = { parallel_tool_calls: false }; // a model that has learnt nothing would call until it is cut
const messages = [{ role: "user", content: "Which animal sleeps, and how long?" }];
const chat = { model: "tiny", messages, max_tokens: 512, temperature: 0 };
const asked = { model: "tiny", input: messages, max_output_tokens: 512, temperature: 0, store: false };

async function parsed() {
  const got = await client.chat.completions.parse({ ...chat, response_format: zodResponseFormat(FORM, "animal") });
  return got.choices[0].message.parsed;
}

async function streamedCalls() {
  const pieces = [];
  const stream = client.chat.completions.stream({ ...chat, tools: [zodFunction(TOOL)], tool_choice: "required", ...ONE });
  stream.on("tool_calls.function.arguments.delta", (event) => pieces.push(event.arguments_delta));
  const choice = (await stream.finalChatCompletion()).choices[0];
  const calls = choice.message.tool_calls.map((call) => [call.function.name, call.function.parsed_arguments]);
  return { calls, pieces: pieces.length, joined: pieces.join(""), finish: choice.finish_reason };
}

async function ranTool() {
  const seen = [];
  const tool = zodFunction({ ...TOOL, function: (given) => seen.push(given) && "it sleeps" });
  const named = { type: "function", function: { name: TOOL.name } };
  await client.chat.completions.runTools({ ...chat, tools: [tool], tool_choice: named }).done();
  return seen;
}

async function respondedParsed() {
  return (await client.responses.parse({ ...asked, text: { format: zodTextFormat(FORM, "animal") } })).output_parsed;
}

async function respondedCalls() {
  const how = { ...asked, tools: [zodResponsesFunction(TOOL)], tool_choice: "required", ...ONE };
  const stream = client.responses.stream(how);
  const events = [];
  stream.on("event", (event) => events.push(event.type));
  const made = await stream.finalResponse();
  const calls = made.output.map((item) => [item.name, item.parsed_arguments]);
  return { calls, events, status: made.status };
}

const told = {
  parsed: [await parsed(), await respondedParsed(), ...(await ranTool())],
  chat: await streamedCalls(),
  responses: await respondedCalls(),
};
process.stdout.write(JSON.stringify(told) + "\n");
