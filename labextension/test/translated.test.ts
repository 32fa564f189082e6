import { Linter } from 'eslint';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import tseslint from 'typescript-eslint';
import { describe, expect, it } from 'vitest';

import { noUntranslatedTexts } from '../eslint.texts.mjs';

const HERE = join(__dirname, '..');
/** What language packs call their file of this extension. */
const DOMAIN = 'jdist';

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
    'this._trans.__("Stop " + name)',
    'trans._n("%1 rank", many, count)',
    'context.trans.__("Stop")',
    '_trans.__("Stop")',
    'this.context.trans._n("%1 rank", "%1 ranks", count)'
  ])('has to be translated: %s', code => {
    expect(complaints(code)).toBe(1);
  });

  it.each([
    '<b>{trans.__("Stop")}</b>',
    '<b title={trans.__("Stop %1", name)} className="jdist-b">⏸ {count}</b>',
    'node.textContent = trans.__("Stop")',
    'node.textContent = `${sign} · ${text}`',
    'node.setAttribute("role", "status")',
    'this._trans.__("Stop %1", name)',
    'props.trans._p("button", "Stop")',
    'this.props.trans._n("%1 rank", "%1 ranks", count)'
  ])('may be: %s', code => {
    expect(complaints(code)).toBe(0);
  });
});

describe('the domain of translations', () => {
  it('is the same wherever texts are translated', () => {
    const sources = readdirSync(join(HERE, 'src'), { recursive: true, encoding: 'utf8' });
    const texts = sources
      .filter(name => /\.tsx?$/.test(name))
      .map(name => readFileSync(join(HERE, 'src', name), 'utf8'));
    const loads = texts.flatMap(text => [...text.matchAll(/ranslator\)?\s*\.load\(([^)]*)\)/g)]);
    expect(loads.length).toBeGreaterThan(6);
    expect(new Set(loads.map(([, domain]) => domain))).toEqual(new Set([`'${DOMAIN}'`]));
  });

  it('is the one in which the server looks up the texts of the settings and menus', () => {
    const schema = JSON.parse(readFileSync(join(HERE, 'schema', 'plugin.json'), 'utf8')) as Record<string, unknown>;
    expect(schema['jupyter.lab.internationalization']).toEqual({ domain: DOMAIN });
    expect(readdirSync(join(HERE, 'locale'))).toEqual([`${DOMAIN}.pot`]);
  });
});
