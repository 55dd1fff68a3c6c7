// The official client for Node: Responses, plain and streamed, `parse`, and a tool loop.

import OpenAI from 'openai';
import { zodTextFormat } from 'openai/helpers/zod';
import { City } from './question.mjs';

export async function ask(place, question) {
  const client = new OpenAI({
    baseURL: `${place.url}/v1`,
    apiKey: '-',
    maxRetries: question.retries,
    defaultHeaders: { 'x-crossover-pin': place.pin },
  });
  const input = [...question.messages];
  const turns = [await request(client, question, input)];
  while (question.weather && readCalls(turns.at(-1)).length) {
    // The client's own items go back as they came, with every field that the gateway put there.
    input.push(...turns.at(-1).response.output);
    for (const { id, arguments: { city } } of readCalls(turns.at(-1))) {
      input.push({ type: 'function_call_output', call_id: id, output: question.weather[city] });
    }
    turns.push(await request(client, question, input));
  }
  return fold(turns);
}

function body(question, input) {
  const named = !['auto', 'required', 'none', null].includes(question.choice);
  return {
    model: question.model,
    input,
    temperature: question.temperature,
    max_output_tokens: question.max_tokens ?? undefined,
    tools: question.tools.length ? question.tools.map(({ function: declared }) => ({ type: 'function', ...declared })) : undefined,
    tool_choice: named ? { type: 'function', name: question.choice } : question.choice ?? undefined,
    parallel_tool_calls: question.parallel ?? undefined,
    text: question.as_city ? { format: zodTextFormat(City, 'city') } : undefined,
  };
}

async function request(client, question, input) {
  if (!question.stream) {
    const send = question.as_city ? 'parse' : 'create';
    const response = await client.responses[send](body(question, input));
    return { response, pieces: [response.output_text] };
  }
  const pieces = [];
  const stream = client.responses.stream(body(question, input));
  stream.on('response.output_text.delta', ({ delta }) => pieces.push(delta));
  return { response: await stream.finalResponse(), pieces };
}

function readCalls({ response }) {
  const calls = response.output.filter(({ type }) => type === 'function_call');
  return calls.map(({ call_id, name, arguments: written }) => ({ id: call_id, name, arguments: JSON.parse(written) }));
}

function readReason(turn) {
  if (turn.response.status === 'incomplete') return 'length';
  return readCalls(turn).length ? 'tool_calls' : 'stop';
}

function fold(turns) {
  const { response, pieces } = turns.at(-1);
  return {
    pieces: pieces.filter(Boolean),
    finish_reasons: turns.map(readReason),
    prompt_tokens: response.usage.input_tokens,
    completion_tokens: response.usage.output_tokens,
    calls: turns.flatMap(readCalls),
    city: response.output_parsed ?? null,
  };
}

export function refused(error) {
  if (!(error instanceof OpenAI.APIError)) return null;
  const { status = null, code, param, message } = error;
  return { error: error.constructor.name, status, code, param, message };
}
