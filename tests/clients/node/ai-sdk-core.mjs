// Vercel's AI SDK, with any of its providers: `generateText`, `streamText`, their tool loop, `Output`.

import { AISDKError, Output, generateText, isStepCount, jsonSchema, streamText, tool } from 'ai';
import { City } from './question.mjs';

// `providerOptions`: what each provider names in its own way.
export async function askModel(model, question, providerOptions = {}) {
  const options = { ...read(question, model), providerOptions };
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
    finish_reasons: steps.map(readReason),
    prompt_tokens: usage.inputTokens,
    completion_tokens: usage.outputTokens,
    calls: steps.flatMap((step) => step.toolCalls).map(readCall),
    city: city ?? null,
  };
}

// The provider's own word where it is one of OpenAI's chats, else the SDK's.
function readReason({ rawFinishReason, finishReason }) {
  if (['stop', 'length', 'tool_calls'].includes(rawFinishReason)) return rawFinishReason;
  return finishReason === 'tool-calls' ? 'tool_calls' : finishReason;
}

function readCall({ toolCallId, toolName, input }) {
  return { id: toolCallId, name: toolName, arguments: input };
}

// Of an error in a stream this one makes up a status.
const MADE_UP = 'AI_StreamProviderError';

export function refused(error) {
  // An answer with a status holds the gateway's body, an event of a stream the error in it.
  const body = error.data?.error ?? error.data;
  if (!AISDKError.isInstance(error) || body === undefined) return null;
  const { code, param, message, type } = body;
  return { error: error.name, status: error.name === MADE_UP ? null : error.statusCode ?? null, code: code ?? type, param: param ?? null, message };
}
