// What a structured answer is read into; in ../question.py again.

import { z } from 'zod';

export const City = z.object({ country: z.string(), capital: z.string() });
