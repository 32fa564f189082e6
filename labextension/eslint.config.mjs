// The recommended rules, those that know types included. Formatting is prettier's.
import js from '@eslint/js';
import tseslint from 'typescript-eslint';

import { noUntranslatedTexts } from './eslint.texts.mjs';

export default tseslint.config(
  { ignores: ['built/', 'lib/', 'node_modules/', 'style/'] },
  {
    files: ['src/**/*.{ts,tsx}', 'test/**/*.ts'],
    extends: [js.configs.recommended, tseslint.configs.recommendedTypeChecked, tseslint.configs.stylisticTypeChecked],
    languageOptions: { parserOptions: { project: 'tsconfig.lint.json', tsconfigRootDir: import.meta.dirname } },
    linterOptions: { reportUnusedDisableDirectives: 'error' },
    rules: {
      complexity: ['error', 16],
      curly: 'error',
      eqeqeq: ['error', 'smart'],
      'max-lines': ['error', 400],
      'no-console': ['error', { allow: ['warn', 'error'] }],
      '@typescript-eslint/no-misused-promises': ['error', { checksVoidReturn: { arguments: false } }],
      '@typescript-eslint/no-unused-vars': ['error', { argsIgnorePattern: '^_' }],
      // An empty string stands for "unknown" in what the server sends, and is to be replaced, too.
      '@typescript-eslint/prefer-nullish-coalescing': 'off',
      // Signals are connected as Lumino has it: the method, and what it is bound to.
      '@typescript-eslint/unbound-method': 'off',
      '@typescript-eslint/naming-convention': [
        'error',
        // As in JupyterLab: what others implement or pass on begins with an I.
        { selector: 'interface', format: ['PascalCase'], custom: { regex: '^I[A-Z]', match: true } }
      ]
    }
  },
  {
    files: ['src/**/*.{ts,tsx}'],
    rules: { 'no-restricted-syntax': noUntranslatedTexts }
  },
  // As many lines as the server has Structs.
  { files: ['src/generated/*.ts'], rules: { 'max-lines': 'off' } }
);
