import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { describe, expect, it } from 'vitest';

const SOURCE = join(__dirname, '..', 'src');

/** The modules that each module of the folder imports, types included. */
function importsIn(folder: string): Map<string, string[]> {
  const files = readdirSync(folder, { recursive: true, encoding: 'utf8' }).filter(name => /\.tsx?$/.test(name));
  const byModule = new Map(files.map(name => [name.replace(/(\.d)?\.tsx?$/, ''), name]));
  const resolve = (path: string): string[] => [path, join(path, 'index')].filter(each => byModule.has(each));
  return new Map(
    [...byModule].map(([module, file]) => {
      const text = readFileSync(join(folder, file), 'utf8');
      const paths = [...text.matchAll(/from '(\.[^']+)'/g)].map(match => join(dirname(module), match[1]));
      return [module, paths.flatMap(resolve)];
    })
  );
}

/** The first cycle found, as the modules on it; empty if there is none. */
function cycleIn(imports: Map<string, string[]>): string[] {
  const done = new Set<string>();
  const visit = (module: string, path: string[]): string[] => {
    if (path.includes(module)) {
      return [...path.slice(path.indexOf(module)), module];
    }
    for (const next of done.has(module) ? [] : (imports.get(module) ?? [])) {
      const found = visit(next, [...path, module]);
      if (found.length) {
        return found;
      }
    }
    done.add(module);
    return [];
  };
  return [...imports.keys()].map(module => visit(module, [])).find(found => found.length) ?? [];
}

describe('imports', () => {
  it('finds a cycle where there is one', () => {
    const imports = new Map([
      ['a', ['b']],
      ['b', ['c', 'd']],
      ['c', []],
      ['d', ['b']]
    ]);
    expect(cycleIn(imports)).toEqual(['b', 'd', 'b']);
  });

  it('have no cycles', () => {
    const imports = importsIn(SOURCE);
    expect(imports.get('index')).toContain('clusters');
    expect(cycleIn(imports)).toEqual([]);
  });

  it('leave the interfaces free of their implementation', () => {
    expect(importsIn(SOURCE).get('tokens')).not.toContain('clusters');
  });
});
