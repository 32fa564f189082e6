import { Token } from '@lumino/coreutils';

import { Clusters } from './clusters';

/** This user's clusters, for the plugins that show them. */
export type IClusters = Clusters;
export const IClusters = new Token<IClusters>('jdist:IClusters', "This user's clusters, as the server tells them.");

/** What can be done, each an entry of the command palette. `{ cluster, ranks }` say with what; else what is chosen. */
export const CommandIDs = {
  openPanel: 'jdist:open-panel',
  start: 'jdist:start',
  choose: 'jdist:choose',
  attach: 'jdist:attach',
  insertAttachCode: 'jdist:insert-attach-code',
  insertCell: 'jdist:insert-cell',
  stop: 'jdist:stop',
  revive: 'jdist:revive',
  refresh: 'jdist:refresh',
  interrupt: 'jdist:interrupt',
  restart: 'jdist:restart',
  logs: 'jdist:logs',
  stack: 'jdist:stack',
  console: 'jdist:console'
} as const;
