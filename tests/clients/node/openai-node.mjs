// The official client for Node: plain calls, streams, `runTools` and `parse`.

import OpenAI from 'openai';
import { zodResponseFormat } from 'openai/helpers/zod';
import { City } from './question.mjs';

export async function ask(place, question) {
  const client = new OpenAI({
    baseURL: `${place.url}/v1`,
    apiKey: '-',
    maxRetries: question.retries,
    defaultHeaders: { 'x-crossover-pin': place.pin },
  });
  if (question.weather) return runTools(client, question);
  return question.stream ? stream(client, question) : call(client, question);
}

function body(question) {
  const named = !['auto', 'required', 'none', null].includes(question.choice);
  return {
    model: question.model,
    messages: question.messages,
    temperature: question.temperature,
    max_completion_tokens: question.max_tokens ?? undefined,
    tools: question.tools.length ? question.tools : undefined,
    tool_choice: named ? { type: 'function', function: { name: question.choice } } : question.choice ?? undefined,
    parallel_tool_calls: question.parallel ?? undefined,
    response_format: question.as_city ? zodResponseFormat(City, 'city') : undefined,
    ...(question.stream ? { stream: true, stream_options: { include_usage: true } } : {}),
  };
}

async function call(client, question) {
  const { stream, ...rest } = body(question);
  const completion = question.as_city
    ? await client.chat.completions.parse(rest)
    : await client.chat.completions.create(rest);
  return fold([completion], [completion.choices[0].message.content]);
}

async function stream(client, question) {
  const stream = client.chat.completions.stream(body(question));
  const pieces = [];
  stream.on('content', (delta) => pieces.push(delta));
  return fold([await stream.finalChatCompletion()], pieces);
}

async function runTools(client, question) {
  const get_weather = ({ city }) => question.weather[city];
  const tools = question.tools.map(({ function: declared }) => ({
    type: 'function',
    function: { ...declared, function: get_weather, parse: JSON.parse },
  }));
  const runner = client.chat.completions.runTools({ ...body(question), tools });
  let pieces = [];
  if (question.stream) {
    runner.on('content', (delta) => pieces.push(delta));
  }
  const text = await runner.finalContent();
  return fold(runner.allChatCompletions(), question.stream ? pieces : [text]);
}

function fold(completions, pieces) {
  const messages = completions.map((completion) => completion.choices[0].message);
  const { usage } = completions.at(-1);
  return {
    pieces: pieces.filter(Boolean),
    finish_reasons: completions.map((completion) => completion.choices[0].finish_reason),
    prompt_tokens: usage.prompt_tokens,
    completion_tokens: usage.completion_tokens,
    calls: messages.flatMap((message) => message.tool_calls ?? []).map(readCall),
    city: messages.at(-1).parsed ?? null,
  };
}

function readCall({ id, function: called }) {
  return { id, name: called.name, arguments: JSON.parse(called.arguments) };
}

export function refused(error) {
  if (!(error instanceof OpenAI.APIError)) return null;
  const { status = null, code, param, message } = error;
  return { error: error.constructor.name, status, code, param, message };
}
