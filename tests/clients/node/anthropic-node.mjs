// Anthropic's official client for Node.js: `create`, `stream`, and a tool loop.

import Anthropic from '@anthropic-ai/sdk';

const REASONS = { end_turn: 'stop', max_tokens: 'length', tool_use: 'tool_calls' };
const SCHEMA = {
  type: 'object',
  properties: { country: { type: 'string' }, capital: { type: 'string' } },
  required: ['country', 'capital'],
  additionalProperties: false,
};

export async function ask(place, question) {
  const client = new Anthropic({
    baseURL: place.url,
    apiKey: '-',
    maxRetries: question.retries,
    defaultHeaders: { 'x-crossover-pin': place.pin },
  });
  const messages = question.messages.filter(({ role }) => role !== 'system');
  const turns = [await request(client, question, messages)];
  while (question.weather && readCalls(turns.at(-1)).length) {
    const calls = readCalls(turns.at(-1));
    const results = calls.map((call) => ({
      type: 'tool_result',
      tool_use_id: call.id,
      content: question.weather[call.arguments.city],
    }));
    messages.push({ role: 'assistant', content: turns.at(-1).message.content }, { role: 'user', content: results });
    turns.push(await request(client, question, messages));
  }
  if (question.then !== null) {
    messages.push({ role: 'assistant', content: turns.at(-1).message.content }, { role: 'user', content: question.then });
    turns.push(await request(client, question, messages));
  }
  return fold(turns, question);
}

async function request(client, question, messages) {
  const options = {
    model: question.model,
    messages,
    max_tokens: question.max_tokens ?? 800,
    temperature: question.temperature,
    system: question.messages.find(({ role }) => role === 'system')?.content,
    tools: question.tools.length ? question.tools.map(readTool) : undefined,
    tool_choice: readChoice(question),
    thinking: question.thinks ? { type: 'enabled', budget_tokens: 1024 } : undefined,
    output_config: question.as_city ? { format: { type: 'json_schema', schema: SCHEMA } } : undefined,
  };
  const counted = question.counts ? await count(client, options) : null;
  if (!question.stream) {
    const message = await client.messages.create(options);
    return { message, pieces: readTexts(message), counted };
  }
  const pieces = [];
  const stream = client.messages.stream(options).on('text', (text) => pieces.push(text));
  return { message: await stream.finalMessage(), pieces, counted };
}

async function count(client, { model, messages, system, tools, tool_choice }) {
  const { input_tokens } = await client.messages.countTokens({ model, messages, system, tools, tool_choice });
  return input_tokens;
}

function readTool({ function: { name, description, parameters } }) {
  return { name, description, input_schema: parameters };
}

function readChoice({ choice, parallel }) {
  if (choice === null && parallel === null) return undefined;
  const words = { auto: { type: 'auto' }, none: { type: 'none' }, required: { type: 'any' } };
  const chosen = words[choice ?? 'auto'] ?? { type: 'tool', name: choice };
  return parallel === null ? chosen : { ...chosen, disable_parallel_tool_use: !parallel };
}

function readTexts({ content }) {
  return content.filter(({ type }) => type === 'text').map(({ text }) => text);
}

function readCalls({ message }) {
  const blocks = message.content.filter(({ type }) => type === 'tool_use');
  return blocks.map(({ id, name, input }) => ({ id, name, arguments: input }));
}

function fold(turns, question) {
  const { message, pieces, counted } = turns.at(-1);
  return {
    pieces: pieces.filter(Boolean),
    finish_reasons: turns.map((turn) => REASONS[turn.message.stop_reason]),
    prompt_tokens: message.usage.input_tokens,
    completion_tokens: message.usage.output_tokens,
    calls: turns.flatMap(readCalls),
    city: question.as_city ? JSON.parse(readTexts(message).join('')) : null,
    counted,
    thoughts: message.content.filter(({ type }) => type === 'thinking').map(({ thinking }) => thinking),
  };
}

export function refused(error) {
  const body = error.error?.error;
  if (!(error instanceof Anthropic.APIError) || body === undefined) return null;
  return { error: error.constructor.name, status: error.status ?? null, code: body.type, param: null, message: body.message };
}
