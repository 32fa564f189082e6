import { Token } from '@lumino/coreutils';

import { Clusters } from './clusters';

/** This user's clusters, for the plugins that show them. */
export type IClusters = Clusters;
export const IClusters = new Token<IClusters>('jdist:IClusters', "This user's clusters, as the server tells them.");

/** What can be done, each an entry of the command palette. `{ cluster, ranks }` say with what; else what is chosen. */
export namespace Do {
  export const openPanel = 'jdist:open-panel';
  export const start = 'jdist:start';
  export const choose = 'jdist:choose';
  export const attach = 'jdist:attach';
  export const insertAttachCode = 'jdist:insert-attach-code';
  export const insertCell = 'jdist:insert-cell';
  export const stop = 'jdist:stop';
  export const revive = 'jdist:revive';
  export const refresh = 'jdist:refresh';
  export const interrupt = 'jdist:interrupt';
  export const restart = 'jdist:restart';
  export const logs = 'jdist:logs';
  export const stack = 'jdist:stack';
  export const console = 'jdist:console';
}
