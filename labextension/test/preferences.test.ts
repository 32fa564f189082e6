import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { describe, expect, it } from 'vitest';

import { DEFAULTS, Preferences } from '../src/preferences';

interface ISchema {
  properties: Record<string, { default: unknown }>;
}

describe('the preferences', () => {
  it('have the defaults of the schema', () => {
    const file = join(__dirname, '..', 'schema', 'plugin.json');
    const { properties } = JSON.parse(readFileSync(file, 'utf8')) as ISchema;
    const defaults = Object.entries(properties).map(([name, property]) => [name, property.default]);
    expect(Object.fromEntries(defaults)).toEqual(DEFAULTS);
    expect(new Preferences().values).toEqual(DEFAULTS);
  });

  it('are what was set last, and say so', () => {
    const preferences = new Preferences();
    const seen: number[] = [];
    preferences.changed.connect(() => void seen.push(preferences.values.maxRankTabs));
    preferences.set({ maxRankTabs: 3, showStatus: false });
    expect(preferences.values).toEqual({ ...DEFAULTS, maxRankTabs: 3, showStatus: false });
    preferences.set({});
    expect(seen).toEqual([3, DEFAULTS.maxRankTabs]);
    expect(preferences.values).toEqual(DEFAULTS);
  });
});
