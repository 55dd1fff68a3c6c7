// The AI SDK by its provider for servers that speak OpenAI's chat completions.

import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { askModel } from './ai-sdk-core.mjs';

export { refused } from './ai-sdk-core.mjs';

export async function ask(place, question) {
  const provider = createOpenAICompatible({
    name: 'crossover',
    baseURL: `${place.url}/v1`,
    headers: { 'x-crossover-pin': place.pin },
    includeUsage: true,
    supportsStructuredOutputs: true,
  });
  const options = question.parallel === null ? {} : { crossover: { parallel_tool_calls: question.parallel } };
  return askModel(provider(question.model), question, options);
}
