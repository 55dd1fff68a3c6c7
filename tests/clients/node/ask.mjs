// Asks one client's questions: `node ask.mjs openai-node`. A line of JSON in, {place, question}; a line of JSON out:
// {answer}, {refused} for an error that the client raised for the gateway's, {fault} for any other.

import { createInterface } from 'node:readline';

const { ask, refused } = await import(`./${process.argv[2]}.mjs`);

async function tell({ place, question }) {
  try {
    return { answer: await ask(place, question) };
  } catch (error) {
    const told = refused(error);
    return told ? { refused: told } : { fault: `${error?.stack ?? error}` };
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(await tell(JSON.parse(line)))}\n`);
}
