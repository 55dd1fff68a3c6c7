// The AI SDK by its provider for OpenAI, which uses Responses unless it is told otherwise.

import { createOpenAI } from '@ai-sdk/openai';
import { askModel } from './ai-sdk-core.mjs';

export { refused } from './ai-sdk-core.mjs';

export async function ask(place, question) {
  const provider = createOpenAI({
    baseURL: `${place.url}/v1`,
    apiKey: '-',
    headers: { 'x-crossover-pin': place.pin },
  });
  const options = question.parallel === null ? {} : { openai: { parallelToolCalls: question.parallel } };
  return askModel(provider(question.model), question, options);
}
