// Asks one client's questions: `node ask.mjs openai-node`. A line of JSON in, {place, question}; a line of JSON out:
// {answer}, {refused} for an error that the client raised for the gateway's, {fault} for any other.

import { createInterface } from 'node:readline';

const { ask, refused } = await import(`./${process.argv[2]}.mjs`);

async function answer({ place, question }) {
  try {
    return { answer: await ask(place, question) };
  } catch (error) {
    const raised = refused(error);
    return raised ? { refused: raised } : { fault: `${error?.stack ?? error}` };
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(await answer(JSON.parse(line)))}\n`);
}
