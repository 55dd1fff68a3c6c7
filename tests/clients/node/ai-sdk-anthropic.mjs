// The AI SDK by its provider for Anthropic.

import { createAnthropic } from '@ai-sdk/anthropic';
import { askModel } from './ai-sdk-core.mjs';

export { refused } from './ai-sdk-core.mjs';

export async function ask(place, question) {
  const provider = createAnthropic({
    baseURL: `${place.url}/v1`,
    apiKey: '-',
    headers: { 'x-crossover-pin': place.pin },
  });
  const options = question.parallel === null ? {} : { anthropic: { disableParallelToolUse: !question.parallel } };
  return askModel(provider(question.model), question, options);
}
