/** Where a notebook lies on the server. */

import { PageConfig, PathExt } from '@jupyterlab/coreutils';

/** The folder of a notebook as the server knows it, such as `~/work/project`; empty without a notebook. */
export function notebookFolder(path: string | undefined, root = PageConfig.getOption('serverRoot')): string {
  if (path === undefined) {
    return '';
  }
  const local = path.slice(path.indexOf(':') + 1); // without the name of a drive
  return [root.replace(/\/$/, '') || '.', PathExt.dirname(local)].filter(Boolean).join('/');
}
