import { Linter } from 'eslint';
import tseslint from 'typescript-eslint';
import { describe, expect, it } from 'vitest';

import { noUntranslatedTexts } from '../eslint.texts.mjs';

/** How many texts the linter complains of. */
function complaints(code: string): number {
  const parser = tseslint.parser as Linter.Parser;
  const found = new Linter().verify(
    code,
    {
      files: ['**/*.tsx'],
      languageOptions: { parser, parserOptions: { ecmaFeatures: { jsx: true } } },
      rules: { 'no-restricted-syntax': noUntranslatedTexts as Linter.RuleEntry }
    },
    'sample.tsx'
  );
  expect(found.filter(each => each.fatal)).toEqual([]);
  return found.length;
}

describe('a text that is shown', () => {
  it.each([
    '<b>Stop</b>',
    '<b>{"Stop"}</b>',
    '<b>{`Stop ${name}`}</b>',
    '<b title="Stop" />',
    '<b aria-label={`Stop ${name}`} />',
    'node.textContent = "Stop"',
    'node.title = `Stop ${name}`',
    'node.setAttribute("aria-label", "Stop")',
    'const options = { label: "Stop" }',
    'trans.__(text)',
    'this._trans.__("Stop " + name)'
  ])('has to be translated: %s', code => {
    expect(complaints(code)).toBe(1);
  });

  it.each([
    '<b>{trans.__("Stop")}</b>',
    '<b title={trans.__("Stop %1", name)} className="jdist-b">⏸ {count}</b>',
    'node.textContent = trans.__("Stop")',
    'node.textContent = `${sign} · ${text}`',
    'node.setAttribute("role", "status")',
    'this._trans.__("Stop %1", name)'
  ])('may be: %s', code => {
    expect(complaints(code)).toBe(0);
  });
});
