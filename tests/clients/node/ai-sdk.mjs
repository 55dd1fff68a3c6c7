// Vercel's AI SDK and its provider for servers that speak OpenAI's API: `generateText`, `streamText`, their tool loop, `Output`.

import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { AISDKError, Output, generateText, isStepCount, jsonSchema, streamText, tool } from 'ai';
import { City } from './question.mjs';

export async function ask(place, question) {
  const provider = createOpenAICompatible({
    name: 'crossover',
    baseURL: `${place.url}/v1`,
    headers: { 'x-crossover-pin': place.pin },
    includeUsage: true,
    supportsStructuredOutputs: true,
  });
  const options = read(question, provider(question.model));
  return question.stream ? stream(options) : call(options);
}

function read(question, model) {
  const [first, ...rest] = question.messages;
  const [instructions, messages] = first.role === 'system' ? [first.content, rest] : [undefined, question.messages];
  return {
    model,
    instructions,
    messages,
    temperature: question.temperature,
    maxOutputTokens: question.max_tokens ?? undefined,
    maxRetries: question.retries,
    tools: readTools(question),
    toolChoice: readChoice(question.choice),
    providerOptions: question.parallel === null ? {} : { crossover: { parallel_tool_calls: question.parallel } },
    stopWhen: isStepCount(question.weather ? 5 : 1),
    output: question.as_city ? Output.object({ schema: City }) : undefined,
  };
}

function readTools({ tools, weather }) {
  const declared = tools.map(({ function: { name, description, parameters } }) => {
    const execute = weather ? ({ city }) => weather[city] : undefined;
    return [name, tool({ description, inputSchema: jsonSchema(parameters), execute })];
  });
  return declared.length ? Object.fromEntries(declared) : undefined;
}

function readChoice(choice) {
  if (choice === null) return undefined;
  return ['auto', 'required', 'none'].includes(choice) ? choice : { type: 'tool', toolName: choice };
}

async function call(options) {
  const result = await generateText(options);
  return fold(result.steps, [result.text], options.output && result.output);
}

async function stream(options) {
  const result = streamText({ ...options, onError() {} }); // by default it prints what it hands on as well
  let pieces = [];
  for await (const part of result.stream) {
    if (part.type === 'error') throw part.error;
    if (part.type === 'start-step') pieces = [];
    if (part.type === 'text-delta') pieces.push(part.text);
  }
  return fold(await result.steps, pieces, options.output && (await result.output));
}

function fold(steps, pieces, city) {
  const { usage } = steps.at(-1);
  return {
    pieces: pieces.filter(Boolean),
    finish_reasons: steps.map((step) => step.rawFinishReason),
    prompt_tokens: usage.inputTokens,
    completion_tokens: usage.outputTokens,
    calls: steps.flatMap((step) => step.toolCalls).map(readCall),
    city: city ?? null,
  };
}

function readCall({ toolCallId, toolName, input }) {
  return { id: toolCallId, name: toolName, arguments: input };
}

export function refused(error) {
  // An answer with a status holds the gateway's body, an event of a stream the error in it.
  const body = error.data?.error ?? error.data;
  if (!AISDKError.isInstance(error) || body === undefined) return null;
  const { code, param, message } = body;
  return { error: error.name, status: error.statusCode ?? null, code, param, message };
}
