/** The interface by which plugins share the user's clusters, and the names of the commands. */

import { Token } from '@lumino/coreutils';
import { IDisposable } from '@lumino/disposable';
import { ISignal } from '@lumino/signaling';

import { Api, ICluster, RequestError } from './api';

/** What has changed: the cluster's name ("": the list, or which cluster is shown), and what to tell the user. */
export interface IClusterChange {
  name: string;
  notices: string[];
}

/** This user's clusters, as the server last reported them, and the one of them that the panel shows. */
export interface IClusters {
  readonly api: Api;
  /** Settled once the list has been requested for the first time; `problem` is set if that failed. */
  readonly ready: Promise<void>;
  /** A cluster, the list, `current` or `problem` has changed. */
  readonly changed: ISignal<IClusters, IClusterChange>;
  /** All clusters, sorted by name. */
  readonly all: ICluster[];
  /** Whether the first request for the list has been answered or refused. */
  readonly isKnown: boolean;
  /** Since when the server's events do not arrive, in milliseconds of `Date.now()`; null if they do. */
  readonly lostAt: number | null;
  /** Why there is no list; null if there is one. */
  readonly problem: RequestError | null;
  /** The cluster that is shown: the one chosen, else the first one known; it does not change when others appear. */
  readonly current: ICluster | undefined;
  get(name: string): ICluster | undefined;
  /** Show this cluster from now on; the first one as long as there is none of this name. */
  choose(name: string): Promise<void>;
  /** Has the server follow a cluster of another host until this is disposed; it does for the one that is shown. */
  look(name: string): IDisposable;
  /** Request everything from the server again. */
  refresh(): Promise<void>;
}

export const IClusters = new Token<IClusters>('jdist:IClusters', "This user's clusters, as the server reports them.");

/** The settings; their meaning is told in schema/plugin.json. */
export interface IPreferenceValues {
  readonly showStatus: boolean;
  readonly notifyHangs: boolean;
  readonly notifyEvents: boolean;
  readonly notifyClusters: boolean;
  readonly showCellMarks: boolean;
  readonly maxRankTabs: number;
  readonly maxRankLines: number;
  readonly maxOutputLines: number;
  readonly refreshSeconds: number;
}

/** What the user has set, and that it has changed. */
export interface IPreferences {
  readonly values: IPreferenceValues;
  readonly changed: ISignal<IPreferences, void>;
}

export const IPreferences = new Token<IPreferences>('jdist:IPreferences', 'The settings of jdist.');

/** The commands. Their arguments `{ cluster, ranks }` say for which ranks; the default is what the panel shows. */
export const CommandIDs = {
  openPanel: 'jdist:open-panel',
  showResources: 'jdist:show-resources',
  start: 'jdist:start',
  choose: 'jdist:choose',
  attach: 'jdist:attach',
  insertAttachCode: 'jdist:insert-attach-code',
  insertCell: 'jdist:insert-cell',
  /** `{ choice }`: that of `IRanksArgs` in toolbar/cellranks.ts. */
  chooseRanks: 'jdist:choose-ranks',
  stop: 'jdist:stop',
  instructions: 'jdist:instructions',
  revive: 'jdist:revive',
  logIn: 'jdist:log-in',
  addNode: 'jdist:add-node',
  sync: 'jdist:sync',
  doctor: 'jdist:doctor',
  /** `{ cluster, id, run }`, or the run of `{ ranks }`, that of the verdict, or the first one. */
  goToCell: 'jdist:go-to-cell',
  /** `{ cluster, run }`; without a run, all verdicts on the cluster. */
  copyVerdict: 'jdist:copy-verdict',
  refresh: 'jdist:refresh',
  interrupt: 'jdist:interrupt',
  restart: 'jdist:restart',
  pause: 'jdist:pause',
  continue: 'jdist:continue',
  step: 'jdist:step',
  next: 'jdist:next',
  return: 'jdist:return',
  nextCall: 'jdist:next-call',
  /** `{ cluster, ranks, index }`; 0 is the outermost frame. */
  chooseFrame: 'jdist:choose-frame',
  /** `{ cluster, ranks, name }` */
  deleteVariable: 'jdist:delete-variable',
  /** `{ cluster, ranks, file, line }`; of the first of the ranks. */
  openSource: 'jdist:open-source',
  logs: 'jdist:logs',
  stack: 'jdist:stack',
  console: 'jdist:console',
  /** `{ cluster, id, ranks }`: asks for code and runs it on the ranks, while the notebook waits; what came of it. */
  runBeside: 'jdist:run-beside',
  /** `{ cluster, id, run }`; run 0 is the last one, and `id` that of the cluster, if it has to be a certain one. */
  openTimeline: 'jdist:open-timeline'
} as const;
